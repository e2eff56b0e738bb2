// Schedules: what is produced next, what was last, and whether it worked.

import {html} from '../../vendor/htm-preact.mjs'
import {may, maySome} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {
  Action, Badge, Command, Confirm, Dialog, Empty, Exact, Failure, Fields, Figures, Filters, Input, Link, Loading, More, Page, Payload, Section,
  Select, Table, Time, useCall, usePages,
} from '../ui.js'

const CATCH_UP = [['last', 'the last one'], ['none', 'none'], ['all', 'each']]
const state = (row) => html`<${Badge} state=${row.error ? 'failing' : row.state === 'active' ? 'ok' : row.state}>${row.error ? 'failing' : row.state}<//>`
const when = (row) => (row.cron ? html`<span class="mono">${row.cron}</span> <span class="faint">${row.timezone || 'UTC'}</span>` : `every ${f.duration(row.every_ms)}`)
const last = (row) => row.last && html`<${Link} to=${to('topics', row.topic, row.last.partition, row.last.offset)}><${Time} at=${row.last.fired_at} /><//>`

export const Schedules = ({query}) => {
  const pages = usePages(`/v1/schedules${api.query({limit: 200, prefix: query.prefix, topic: query.topic})}`, 'schedules', {everyMs: 5000, on: {topic: true}})
  return html`<${Page} title="Schedules" subtitle="messages that are produced at their times, each once" actions=${maySome('produce') && html`<${Create} />`}>
    <${Filters} values=${query} onChange=${(values) => go(to('schedules', values))} fields=${[
      {name: 'prefix', label: 'name starts with', type: 'search'}, {name: 'topic', label: 'topic', type: 'search'}]} />
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${6} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Schedules" rows=${pages.items} keyOf=${(row) => row.name} columns=${[
      {label: 'schedule', cell: (row) => html`<${Link} to=${to('schedules', row.name)}>${row.name}<//>`, sort: (row) => row.name},
      {label: 'state', cell: state, sort: (row) => row.state}, {label: 'when', cell: when},
      {label: 'topic', cell: (row) => html`<${Link} to=${to('topics', row.topic)}>${row.topic}<//>`, sort: (row) => row.topic},
      {label: 'next', cell: (row) => html`<${Time} at=${row.next_times[0]} />`, sort: (row) => row.next_times[0] || '9'},
      {label: 'last', cell: last, sort: (row) => row.last?.fired_at || ''},
      {label: 'fired', cell: (row) => f.count(row.firings), sort: (row) => row.firings, end: true},
      {label: 'missed', cell: (row) => f.count(row.missed), sort: (row) => row.missed, end: true, hint: 'times that passed while the broker was down, and were not made up for'},
      {label: 'error', cell: (row) => html`<span class="clip short" title=${row.error || ''}>${row.error || ''}</span>`}]} />
      <${More} pages=${pages} noun="schedules" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title=${query.prefix || query.topic ? 'No schedule fits' : 'There is no schedule yet'}>
      A schedule produces a message at the times of a cron expression, or at an interval.
      <${Command}>driftq schedules create nightly reports '{"kind": "daily"}' --cron '0 3 * * *'<//><//>`}
  <//>`
}

const Create = () => html`<${Action} label="Create a schedule" primary>${(close) => html`
  <${Dialog} title="Create a schedule" submit="Create" onClose=${close} onSubmit=${async (form) => {
    const name = form.get('name').trim()
    const cron = form.get('cron').trim()
    await api.post('/v1/schedules', {name, topic: form.get('topic').trim(), message: {value: form.get('value')}, catch_up: form.get('catch_up'),
      ...(cron ? {cron, timezone: form.get('timezone')} : {every_ms: Number(form.get('every') || 0) * 1000})})
    go(to('schedules', name))
  }}>
    <${Input} label="Name" name="name" required autofocus maxlength="200" />
    <${Input} label="Topic" name="topic" required />
    <${Input} label="Value" name="value" area required value="{}" />
    <${Input} label="Cron" name="cron" placeholder="0 3 * * *" hint="Minute, hour, day, month, weekday. Or an interval:" />
    <${Input} label="Seconds between two" name="every" type="number" min="1" />
    <${Input} label="Time zone of the expression" name="timezone" value=${Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC'} />
    <${Select} label="Of times that passed while the broker was down, fire" name="catch_up" value="last" options=${CATCH_UP} />
  <//>`}<//>`

export const Schedule = ({name}) => {
  const path = api.path`/v1/schedules/${name}`
  const {data, error, refresh} = useCall(path, {everyMs: 3000, on: {topic: true}})
  const paused = data?.state === 'paused'
  return html`<${Page} title=${name} badge=${data && state(data)} crumbs=${[['Schedules', to('schedules')]]} actions=${data && may('produce', data.topic) && html`
    <${Confirm} label="Run now" title=${`Run ${name} now?`} text=${`This produces one message in ${data.topic}, now. The times of the schedule stay as they are.`}
      run=${() => api.post(`${path}/run`, {})} done=${(reply) => go(to('topics', reply.topic, reply.partition, reply.offset))} />
    ${data.state !== 'ended' && html`<${Confirm} label=${paused ? 'Resume' : 'Pause'} title=${`${paused ? 'Resume' : 'Pause'} ${name}?`}
      text=${paused ? 'It fires from its next time on.' : 'It does not fire until it is resumed.'} run=${() => api.post(`${path}/${paused ? 'resume' : 'pause'}`, {})} done=${refresh} />`}
    <${Confirm} label="Delete" danger title=${`Delete ${name}?`} text=${`This is one schedule. Its ${f.plural(data.firings, 'message')} stay where they are; no more are produced.`}
      run=${() => api.del(path)} done=${() => go(to('schedules'))} />`}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Section}><${Loading} lines=${3} /><//>`}
    ${data && html`<${Section}><${Figures} items=${[['next', html`<${Time} at=${data.next_times[0]} />`], ['last', last(data) || '–'], ['fired', f.count(data.firings)],
      ['missed', f.count(data.missed), 'times that passed while the broker was down, and were not made up for', '', data.missed > 0 && 'warn']]} />
      ${data.error && html`<${Failure} error=${{message: `${data.error} (${f.local(data.error_at)})`}} />`}<//>
    <${Section} title="Next times">${data.next_times.length ? html`<ol class="times">${data.next_times.map((time) => html`<li><${Exact} at=${time} /> <span class="faint"><${Time} at=${time} /></span></li>`)}</ol>`
      : html`<p class="faint">${paused ? 'None while it is paused.' : 'None any more.'}</p>`}<//>
    <${Section} title="What it produces"><${Fields} items=${[['topic', html`<${Link} to=${to('topics', data.topic)}>${data.topic}<//>`], ['when', when(data)], ['jitter', data.jitter_ms && f.duration(data.jitter_ms)],
      ['of missed times', (CATCH_UP.find(([key]) => key === data.catch_up) || [])[1]], ['start', data.start], ['end', data.end], ['created', html`<${Exact} at=${data.created_at} />`], ['key', data.message.key], ['task', data.message.task]]} />
      <${Payload} text=${data.message.value} base64=${data.message.value_base64} /><//>`}
  <//>`
}
