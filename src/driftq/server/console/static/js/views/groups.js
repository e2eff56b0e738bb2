// Groups: who is late, by how much, and who holds what.

import {html, useRef, useState} from '../../vendor/htm-preact.mjs'
import {may} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {
  Action, Badge, Bar, Command, Confirm, Dialog, Empty, Failure, Figures, Filters, Input, Link, Loading, More, Page, Plot, Section, Select, Table,
  Time, useCall, usePages, useSeries,
} from '../ui.js'

const state = (group) => (group.paused ? 'paused' : group.commits_offsets ? 'reader' : group.idle ? 'idle' : 'active')

export const Groups = ({query}) => {
  const {search, topic} = query
  const pages = usePages(`/v1/groups${api.query({details: true, limit: 200, topic, search, sort: 'lag_ms', order: 'desc'})}`, 'groups', {everyMs: 5000, on: {topic: true}})
  const rates = new Map((pages.reply?.rates || []).map((rate, index) => [`${pages.reply.groups[index].topic}/${pages.reply.groups[index].group}`, rate]))
  const rate = (row) => rates.get(`${row.topic}/${row.group}`)
  return html`<${Page} title="Groups" subtitle=${pages.reply?.total !== undefined ? f.plural(pages.reply.total, 'group') : ''}>
    <${Filters} values=${query} onChange=${(values) => go(to('groups', values))} fields=${[
      {name: 'search', label: 'name contains', type: 'search'}, {name: 'topic', label: 'topic', type: 'search'}]} />
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${8} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Groups" rows=${pages.items} sorted=${{label: 'oldest', down: true}}
      keyOf=${(row) => `${row.topic}/${row.group}`} columns=${[
        {label: 'group', cell: (row) => html`<${Link} to=${to('groups', row.topic, row.group)}>${row.group}<//>`, sort: (row) => row.group},
        {label: 'topic', cell: (row) => html`<${Link} to=${to('topics', row.topic)}>${row.topic}<//>`, sort: (row) => row.topic},
        {label: 'state', cell: (row) => html`<${Badge} state=${state(row)} />`, sort: state},
        {label: 'lag', cell: (row) => f.count(row.lag), sort: (row) => row.lag, end: true},
        {label: 'oldest', cell: (row) => (row.lag ? f.duration(row.lag_ms) : '–'), sort: (row) => row.lag_ms, end: true, hint: 'age of the oldest unsettled message'},
        {label: 'delivered', cell: (row) => f.rate(rate(row)?.delivered_per_s), sort: (row) => rate(row)?.delivered_per_s, end: true},
        {label: 'settled', cell: (row) => f.rate(rate(row)?.settled_per_s), sort: (row) => rate(row)?.settled_per_s, end: true},
        {label: 'done in', cell: (row) => eta(row, rate(row)), end: true, hint: 'at this rate, if nothing new comes'},
        {label: 'in flight', cell: (row) => f.count(row.in_flight), sort: (row) => row.in_flight, end: true},
        {label: 'waiting', cell: (row) => f.count(row.resting), sort: (row) => row.resting, end: true, hint: 'in backoff or delayed'},
        {label: 'unclaimed', cell: (row) => f.count(row.unclaimed || 0), sort: (row) => row.unclaimed || 0, end: true, hint: 'of tasks and labels that no consumer asks for'},
        {label: 'active', cell: (row) => html`<${Time} at=${row.active_at} />`, sort: (row) => row.active_at || '', end: true}]} />
      <${More} pages=${pages} noun="groups" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title=${search || topic ? 'No group fits' : 'There is no group yet'}>
      A group is made of the consumers that share the messages of a topic. It exists from its first claim on:
      <${Command}>driftq consume orders billing --drain<//><//>`}
  <//>`
}

const eta = (group, rate) => (group.lag && rate?.settled_per_s > 0.05 ? f.duration((group.lag / rate.settled_per_s) * 1000) : '–')

export const Group = ({topic, group}) => {
  const base = api.path`/v1/topics/${topic}/groups/${group}`
  const {data, error, refresh} = useCall(base, {everyMs: 2000, on: {topic, group}})
  const actions = data && may('manage', topic) && html`
      <${Confirm} label=${data.paused ? 'Resume' : 'Pause'} title=${`${data.paused ? 'Resume' : 'Pause'} ${group}?`}
        text=${data.paused ? `${f.plural(data.lag, 'message')} can be claimed again.` : `It gets no more messages until it is resumed: ${f.plural(data.lag - data.in_flight, 'message')} will wait. The ${f.count(data.in_flight)} in flight can be settled.`}
        run=${() => api.post(`${base}/${data.paused ? 'resume' : 'pause'}`)} done=${refresh} />
      <${Seek} base=${base} data=${data} refresh=${refresh} />
      <${Confirm} label="Delete" danger title=${`Delete ${group}?`} run=${() => api.del(base)} done=${() => go(to('groups'))}
        text=${`Its progress is forgotten: ${f.plural(data.lag, 'unsettled message')}, ${f.count(data.in_flight)} in flight. A later claim starts a new group.`} />`
  return html`<${Page} title=${group} badge=${data && html`<${Badge} state=${state(data)} />`} crumbs=${[['Groups', to('groups')], [topic, to('topics', topic)]]} actions=${actions}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Section}><${Loading} lines=${2} /><//>`}
    ${data && html`<${Section}><${Figures} items=${[
      ['lag', f.count(data.lag), 'messages that are not settled'], ['oldest', data.lag ? f.duration(data.lag_ms) : '–', 'age of the oldest unsettled message'],
      ['in flight', f.count(data.in_flight), 'held by workers'], ['waiting', f.count(data.resting), 'in backoff or delayed'], ['unclaimed', f.count(data.unclaimed || 0), 'of tasks and labels that no consumer asks for'],
      ['active', html`<${Time} at=${data.active_at} />`, 'last claim or settlement'], ['created', html`<${Time} at=${data.created_at} />`]]} /><//>
    <${GroupPlots} topic=${topic} group=${group} />
    <${Lanes} base=${base} topic=${topic} group=${group} />
    <${Section} title="Partitions"><${Partitions} topic=${topic} rows=${data.partitions} /><//>
    <${Pending} topic=${topic} group=${group} base=${base} partitions=${data.partitions} />`}
  <//>`
}

const Partitions = ({topic, rows}) => {
  const largest = Math.max(1, ...rows.map((row) => row.lag))
  return html`<${Table} label="Partitions" rows=${rows} keyOf=${(row) => row.partition} columns=${[
      {label: 'partition', cell: (row) => html`<${Link} to=${to('topics', topic, {partition: row.partition})}>${row.partition}<//>`, sort: (row) => row.partition},
      {label: 'lag', cell: (row) => f.count(row.lag), sort: (row) => row.lag, end: true},
      {label: 'of the most', cell: (row) => html`<${Bar} share=${row.lag / largest} tone="warn" label=${f.plural(row.lag, 'message')} />`},
      {label: 'oldest', cell: (row) => (row.lag ? f.duration(row.lag_ms) : '–'), sort: (row) => row.lag_ms, end: true},
      {label: 'in flight', cell: (row) => f.count(row.in_flight), sort: (row) => row.in_flight, end: true},
      {label: 'waiting', cell: (row) => f.count(row.resting), sort: (row) => row.resting, end: true},
      {label: 'settled up to', cell: (row) => f.count(row.floor), end: true}, {label: 'delivered up to', cell: (row) => f.count(row.cursor), end: true},
      {label: 'end', cell: (row) => f.count(row.end_offset), end: true},
      {label: 'settled after a gap', cell: (row) => f.count(row.settled_above_floor || 0), end: true, hint: 'messages that are done although an earlier one is not'}]} />`
}

// What is left to do of each priority, task, label and tenant. A group of plain messages has one lane, which the figures show.
const Lanes = ({base, topic, group}) => {
  const {data} = useCall(`${base}/lanes`, {everyMs: 5000, on: {topic, group}})
  if (!data?.lanes.length || (data.total === 1 && isPlain(data.lanes[0]))) return null
  const largest = Math.max(1, ...data.lanes.map((row) => row.lag))
  const some = (field) => data.lanes.some((row) => row[field])
  return html`<${Section} title="Lag by lane" note=${data.total > data.lanes.length ? `the largest ${f.count(data.lanes.length)} of ${f.count(data.total)}` : ''}>
    <${Table} label="Lanes" rows=${data.lanes} keyOf=${(row) => JSON.stringify([row.priority, row.task, row.label, row.tenant])} columns=${[
      {label: 'task', cell: (row) => row.task || html`<span class="faint">${isPlain(row) ? 'plain messages' : 'none'}</span>`, sort: (row) => row.task},
      some('label') && {label: 'label', cell: (row) => row.label, sort: (row) => row.label},
      some('priority') && {label: 'priority', cell: (row) => row.priority, sort: (row) => row.priority, end: true},
      some('tenant') && {label: 'tenant', cell: (row) => row.tenant, sort: (row) => row.tenant},
      {label: 'lag', cell: (row) => f.count(row.lag), sort: (row) => row.lag, end: true},
      {label: 'of the most', cell: (row) => html`<${Bar} share=${row.lag / largest} tone="warn" label=${f.plural(row.lag, 'message')} />`},
      {label: 'oldest', cell: (row) => (row.undelivered ? f.duration(row.lag_ms) : '–'), sort: (row) => row.lag_ms, end: true, hint: 'age of the oldest that was never delivered'},
      {label: 'undelivered', cell: (row) => f.count(row.undelivered), sort: (row) => row.undelivered, end: true},
      {label: 'in flight', cell: (row) => f.count(row.in_flight), sort: (row) => row.in_flight, end: true},
      {label: 'waiting', cell: (row) => f.count(row.waiting), sort: (row) => row.waiting, end: true, hint: 'in backoff or delayed'},
      {label: '', cell: (row) => !row.claimed && html`<${Badge} state="warning">no consumer asks for it<//>`}]} /><//>`
}

const isPlain = (lane) => !lane.task && !lane.label && !lane.priority && !lane.tenant

const GroupPlots = ({topic, group}) => {
  const data = useSeries({topic, group})
  if (!data) return null
  const plot = (title, names, format) => html`<${Section}><${Plot} title=${title} start=${data.start} stepMs=${data.step_ms} format=${format}
    lines=${names.map(([label, name, colour]) => ({label, colour, values: data.series[name] || []}))} /><//>`
  return html`<div class="grid">
    ${plot('Lag in messages, last hour', [['lag', 'lag'], ['in flight', 'in_flight'], ['waiting', 'waiting']], f.compact)}
    ${plot('Oldest unsettled message', [['age', 'lag_seconds']], f.seconds)}
    ${plot('Messages per second', [['delivered', 'delivered'], ['settled', 'settled', '--plot3'], ['failed', 'failed', '--plot4']], f.compact)}</div>`
}

const until = (time) => (time && f.instant(time) < Date.now() ? html`<span title=${f.exact(time)}>due now</span>` : html`<${Time} at=${time} />`)

const WINDOW = 500 // offsets that are looked at from the floor on

// Who holds what: messages that are leased or wait, with the reason.
const Pending = ({topic, group, base, partitions}) => {
  const busiest = [...partitions].sort((a, b) => b.in_flight + b.resting - a.in_flight - a.resting)[0]
  const [partition, setPartition] = useState(String(busiest?.partition ?? 0))
  const floor = partitions.find((row) => String(row.partition) === partition)?.floor ?? 0
  const {data, error} = useCall(`${base}/states${api.query({partition, offset: floor, limit: WINDOW})}`, {everyMs: 3000, on: {topic, group}})
  const last = useRef(null)
  if (data) last.current = data
  const columns = (data || last.current)?.pending
  const rows = columns ? columns.offset.map((offset, index) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[index]]))) : []
  const held = rows.filter((row) => row.owner)
  const owners = [...new Set(held.map((row) => row.owner))].map((owner) => `${owner} holds ${f.count(held.filter((row) => row.owner === owner).length)}`)
  return html`<${Section} title="Held and waiting messages" note=${owners.slice(0, 6).join(' · ')}
    actions=${html`<${Select} label="" aria-label="Partition" value=${partition} options=${partitions.map((row) => [String(row.partition),
      `partition ${row.partition}: ${f.count(row.in_flight)} held, ${f.count(row.resting)} waiting`])} onChange=${(event) => setPartition(event.target.value)} />`}>
    ${error && html`<${Failure} error=${error} />`}
    ${rows.length ? html`<${Table} label="Held and waiting messages" rows=${rows} keyOf=${(row) => row.offset} columns=${[
      {label: 'message', cell: (row) => html`<${Link} to=${to('topics', topic, partition, row.offset)}>${partition}/${row.offset}<//>`, sort: (row) => row.offset},
      {label: 'state', cell: (row) => html`<${Badge} state=${row.state}>${row.state === 'leased' ? 'held' : row.state}<//>`, sort: (row) => row.state},
      {label: 'held by', cell: (row) => row.owner || '', sort: (row) => row.owner || ''},
      {label: 'until', cell: (row) => until(row.lease_until || row.retry_at), sort: (row) => row.lease_until || row.retry_at || ''},
      {label: 'attempts', cell: (row) => row.attempts, sort: (row) => row.attempts, end: true},
      {label: 'last error', wide: true, cell: (row) => html`<span class="clip">${row.last_error}</span>`}]} />` : html`<${Empty}>Nothing is held or waits in this partition.<//>`}<//>`
}

const Seek = ({base, data, refresh}) => html`<${Action} label="Seek">${(close) => html`<${SeekDialog} ...${{base, data, refresh, close}} />`}<//>`

// Before it moves, it shows what will be delivered again and what will be skipped, partition by partition.
const SeekDialog = ({base, data, refresh, close}) => {
  const [target, setTarget] = useState('earliest')
  const [shown, setShown] = useState(null)
  const preview = async (form) => {
    const aim = goal(form)
    const reply = await api.get(api.path`/v1/topics/${data.topic}/offsets` + (aim.time ? api.query({at: aim.time}) : ''))
    const rows = reply.partitions.filter((row) => aim.partition === undefined || row.partition === aim.partition).map((row) => {
      const at = aim.to === 'earliest' ? row.start : aim.to === 'latest' ? row.end : typeof aim.to === 'number' ? aim.to : row.at ?? row.end
      const {floor, lag} = data.partitions.find((part) => part.partition === row.partition)
      return {partition: row.partition, again: Math.max(0, floor - at), skipped: at > floor ? Math.min(lag, at - floor) : 0, at}
    })
    setShown({aim, rows})
    return 'stay'
  }
  const goal = (form) => {
    const partition = form.get('partition')
    if (target === 'time') {
      const time = new Date(form.get('time')).toISOString()
      return {to: time, time}
    }
    if (target === 'offset') return {to: Number(form.get('offset')), partition: Number(partition || 0)}
    return {to: target}
  }
  const total = (field) => shown.rows.reduce((sum, row) => sum + row[field], 0)
  const seek = async () => {
    const {to: aim, partition} = shown.aim
    await api.post(`${base}/seek`, partition === undefined ? {to: aim} : {to: aim, partition})
    refresh()
  }
  return html`<${Dialog} title=${`Seek ${data.group}`} submit=${shown ? 'Seek' : 'Preview'} danger=${!!shown} onClose=${close}
    onSubmit=${(form) => (shown ? seek() : preview(form))}>
    ${!shown && html`<${Select} label="To" name="target" value=${target} onChange=${(event) => setTarget(event.target.value)}
      options=${[['earliest', 'the earliest message'], ['latest', 'the end: skip everything'], ['time', 'a time'], ['offset', 'an offset of one partition']]} />
      ${target === 'time' && html`<${Input} label="Time" name="time" type="datetime-local" required />`}
      ${target === 'offset' && html`<${Input} label="Partition" name="partition" type="number" min="0" value="0" required />
        <${Input} label="Offset" name="offset" type="number" min="0" required />`}`}
    ${shown && html`<p class="preview">${`Up to ${f.plural(total('again'), 'message')} will be delivered again; ${f.plural(total('skipped'), 'unsettled message')} will be skipped.`}</p>
      <${Table} label="Preview" rows=${shown.rows} keyOf=${(row) => row.partition} columns=${[
        {label: 'partition', cell: (row) => row.partition}, {label: 'moves to', cell: (row) => f.count(row.at), end: true},
        {label: 'again', cell: (row) => f.count(row.again), end: true}, {label: 'skipped', cell: (row) => f.count(row.skipped), end: true}]} />`}
  <//>`
}
