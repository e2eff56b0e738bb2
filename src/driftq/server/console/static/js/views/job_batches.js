// Job batches: groups and chains of jobs, with the messages at their end.

import {html} from '../../vendor/htm-preact.mjs'
import {may} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {
  Badge, Bar, Command, Confirm, Empty, Failure, Figures, Filters, Link, Loading, More, Page, Payload, Section, Table, Time, useCall, usePages,
} from '../ui.js'

const STATES = ['', 'open', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled']
const ended = (counts) => counts.succeeded + counts.failed + counts.cancelled + counts.dropped
const words = (counts) => Object.entries(counts).filter(([, number]) => number).map(([state, number]) => `${f.count(number)} ${state}`).join(', ')

export const JobBatches = ({query}) => {
  const pages = usePages(`/v1/job-batches${api.query({limit: 100, state: query.state})}`, 'job_batches', {everyMs: 5000, on: {topic: true}})
  return html`<${Page} title="Job batches" subtitle="jobs that belong together, and what is sent when they have ended">
    <${Filters} values=${query} onChange=${(values) => go(to('job-batches', values))} fields=${[{name: 'state', label: 'state', options: STATES}]} />
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${6} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Job batches" rows=${pages.items} keyOf=${(row) => row.id} columns=${[
      {label: 'batch', cell: (row) => html`<${Link} to=${to('job-batches', row.id)}>${row.id}<//>`, sort: (row) => row.id},
      {label: 'kind', cell: (row) => row.kind, sort: (row) => row.kind}, {label: 'state', cell: (row) => html`<${Badge} state=${row.state} />`, sort: (row) => row.state},
      {label: 'jobs', cell: (row) => f.count(row.count), sort: (row) => row.count, end: true},
      {label: 'ended', cell: (row) => html`<${Bar} share=${ended(row.counts) / Math.max(1, row.count)} tone=${row.counts.failed ? 'bad' : 'ok'} label=${words(row.counts)} />`},
      {label: 'of them', cell: (row) => words(row.counts)}, {label: 'topics', cell: (row) => row.topics.join(', ')},
      {label: 'created', cell: (row) => html`<${Time} at=${row.created_at} />`, sort: (row) => row.created_at, end: true}]} />
      <${More} pages=${pages} noun="batches" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title=${query.state ? 'No batch is in this state' : 'There is no job batch yet'}>
      A batch is a group or a chain of jobs. When all have ended, it sends a message.
      <${Command}>curl localhost:8080/v1/job-batches -d '{"topic": "emails", "group": "senders", "jobs": [{"value": "a"}, {"value": "b"}]}'<//><//>`}
  <//>`
}

export const JobBatch = ({id}) => {
  const base = api.path`/v1/job-batches/${id}`
  const {data, error, refresh} = useCall(base, {everyMs: 2000, on: {topic: true}})
  const jobs = usePages(`${base}/jobs?limit=200`, 'jobs', {everyMs: 3000, on: {topic: true}})
  const open = data ? data.counts.running + data.counts.waiting : 0
  return html`<${Page} title=${id} badge=${data && html`<${Badge} state=${data.state} />`} crumbs=${[['Job batches', to('job-batches')]]}
    actions=${data && !data.ended_at && data.topics.every((topic) => may('produce', topic)) && html`<${Confirm} label="Cancel" danger title=${`Cancel batch ${id}?`}
      text=${`${f.plural(open, 'job')} of it did not end yet. They will not be delivered any more.`} run=${() => api.post(`${base}/cancel`, {})} done=${refresh} />`}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${data && html`<${Section}><${Figures} items=${[['kind', data.kind], ['jobs', f.count(data.count)], ...Object.entries(data.counts).map(([state, number]) =>
      [state, f.count(number), '', '', state === 'failed' && number > 0 && 'bad']), ['group', data.group || '–'],
      data.parent && ['part of', data.parent, '', to('job-batches', data.parent)], ['created', html`<${Time} at=${data.created_at} />`],
      ['ended', html`<${Time} at=${data.ended_at} />`], ['forgotten', html`<${Time} at=${data.expires_at} />`]]} /><//>
    ${data.messages?.length > 0 && html`<${Section} title="Messages at its end"><${Table} label="Messages at its end" rows=${data.messages} keyOf=${(row) => row.role} columns=${[
      {label: 'role', cell: (row) => row.role.replaceAll('_', ' ')},
      {label: 'message', cell: (row) => (row.topic ? html`<${Link} to=${to('topics', row.topic, row.partition, row.offset)}>${`${row.topic} ${row.partition}/${row.offset}`}<//>` : '')},
      {label: 'error', cell: (row) => row.error}]} /><//>`}`}
    ${jobs.error && html`<${Failure} error=${jobs.error} />`}
    ${jobs.items.length > 0 && html`<${Section} title="Jobs"><${Table} label="Jobs" rows=${jobs.items} keyOf=${(row) => row.index} columns=${[
      {label: '#', cell: (row) => row.index, end: true},
      {label: 'job', cell: (row) => (row.batch ? html`<${Link} to=${to('job-batches', row.batch)}>batch ${row.batch}<//>` : row.offset === undefined ? ''
        : html`<${Link} to=${to('topics', row.topic, row.partition || 0, row.offset)}>${row.id || `${row.topic} ${row.partition || 0}/${row.offset}`}<//>`)},
      {label: 'topic', cell: (row) => row.topic || ''}, {label: 'state', cell: (row) => html`<${Badge} state=${row.state} />`},
      {label: 'error', wide: true, cell: (row) => row.error && html`<details><summary>${row.error}</summary><${Payload} label="traceback" text=${row.traceback || row.error} /></details>`}]} />
      <${More} pages=${jobs} noun="jobs" /><//>`}
  <//>`
}
