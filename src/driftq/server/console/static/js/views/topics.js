// Topics, and one topic: its figures, partitions, groups and settings.

import {html} from '../../vendor/htm-preact.mjs'
import {may, maySome} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {
  Action, Badge, Bar, Check, Command, Confirm, Dialog, Empty, Failure, Fields, Figures, Filters, Input, Link, Loading, More, Page, Plot,
  Section, Select, Table, Tabs, Time, useCall, usePages, useSeries,
} from '../ui.js'
import {Messages} from './messages.js'
import {MoveMessages, PurgeTopic} from './topic_changes.js'

const PAGE = 200

export const Topics = ({query}) => {
  const {search, sort, order} = query
  const pages = usePages(`/v1/topics${api.query({details: true, limit: PAGE, search, sort, order})}`, 'figures', {everyMs: 10000, on: {topic: true}})
  const columns = [
    {label: 'topic', by: 'name', cell: (row) => html`<${Link} to=${to('topics', row.name)}>${row.name}<//>`, sort: (row) => row.name},
    {label: 'messages', by: 'messages', cell: (row) => f.count(row.messages), sort: (row) => row.messages, end: true},
    {label: 'size', by: 'bytes', cell: (row) => f.bytes(row.payload_bytes), sort: (row) => row.payload_bytes, end: true},
    {label: 'produced', by: 'rate', cell: (row) => f.rate(row.produced_per_s), sort: (row) => row.produced_per_s, end: true},
    {label: 'lag', by: 'lag', cell: (row) => f.count(row.lag), sort: (row) => row.lag, end: true, hint: 'unsettled messages, summed over groups'},
    {label: 'in flight', cell: (row) => f.count(row.in_flight), end: true},
    {label: 'dead letters', by: 'dead_letters', cell: (row) => (row.dead_letters ? html`<${Link} to=${to('dead-letters', row.name)}>${f.count(row.dead_letters)}<//>` : '0'), sort: (row) => row.dead_letters, end: true},
    {label: 'groups', by: 'groups', cell: (row) => f.count(row.groups), sort: (row) => row.groups, end: true},
    {label: 'partitions', cell: (row) => f.count(row.partitions), end: true},
    {label: 'holds', cell: (row) => (row.messages ? f.duration(row.oldest_ms) : '–'), end: true, hint: 'the age of its oldest message'},
    {label: 'last write', by: 'last_write', cell: (row) => html`<${Time} at=${row.last_write} />`, sort: (row) => row.last_write || '', end: true},
  ]
  const sorted = columns.find((column) => column.by === sort)
  return html`<${Page} title="Topics" subtitle=${pages.reply?.total !== undefined ? f.plural(pages.reply.total, 'topic') : ''}
    actions=${maySome('manage') && html`<${CreateTopic} />`}>
    <${Filters} values=${query} onChange=${(values) => go(to('topics', values))} fields=${[
      {name: 'search', label: 'name contains', type: 'search'}]} />
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${8} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Topics" columns=${columns} rows=${pages.items} keyOf=${(row) => row.name}
        sorted=${{label: sorted?.label || 'topic', down: order === 'desc'}}
        onSort=${(column, down) => go(to('topics', {...query, sort: column.by, order: down ? 'desc' : 'asc'}), {replace: true})} />
      <${More} pages=${pages} noun="topics" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title=${search ? 'No topic has this name' : 'There is no topic yet'}>
      A topic holds messages until its groups have settled them. Create one with the button, or:
      <${Command}>driftq topics create orders --partitions 4<//><//>`}
  <//>`
}

const CreateTopic = () => html`<${Action} label="Create a topic" primary>${(close) => html`
  <${Dialog} title="Create a topic" submit="Create" onClose=${close} onSubmit=${async (form) => {
    const name = form.get('name').trim()
    await api.post('/v1/topics', {name, partitions: Number(form.get('partitions')), history: form.get('history') === 'on'})
    go(to('topics', name))
  }}>
    <${Input} label="Name" name="name" required maxlength="249" autofocus hint="Letters, digits, and . _ - :" />
    <${Input} label="Partitions" name="partitions" type="number" min="1" max="1024" value="4" hint="Cannot be changed later." />
    <${Check} label="Record what happens to its messages in a history topic" name="history" />
  <//>`}<//>`

const sum = (rows, field) => rows.reduce((total, row) => total + row[field], 0)

export const Topic = ({topic, query}) => {
  const {data, error, refresh} = useCall(api.path`/v1/topics/${topic}`, {everyMs: 5000, on: {topic}})
  const figures = useCall(`/v1/topics${api.query({details: true, search: topic, limit: 50})}`, {everyMs: 10000, on: {topic}})
  const row = figures.data?.figures.find((candidate) => candidate.name === topic)
  const tab = query.tab || 'messages'
  const address = (name) => to('topics', topic, name === 'messages' ? {} : {tab: name})
  const tabs = [may('read', topic) && ['Messages', address('messages'), 'messages'], ['Partitions', address('partitions'), 'partitions'],
    ['Groups', address('groups'), 'groups'], ['Settings', address('settings'), 'settings']]
  return html`<${Page} title=${topic} crumbs=${[['Topics', to('topics')]]}
    actions=${data && html`${may('produce', topic) && html`<${SendMessage} topic=${topic} partitions=${data.partitions.length} />`}
      ${may('manage', topic) && html`${!topic.startsWith('dlq.') && maySome('produce') && html`<${MoveMessages} topic=${topic} partitions=${data.partitions.length} refresh=${refresh} />`}
        <${PurgeTopic} topic=${topic} refresh=${refresh} /><${DeleteTopic} topic=${topic} data=${data} />`}`}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Section}><${Loading} lines=${2} /><//>`}
    ${data && html`<${Section}><${Figures} items=${[
      ['messages', f.count(sum(data.partitions, 'messages'))], ['size', f.bytes(sum(data.partitions, 'payload_bytes'))],
      ['produced', f.rate(row?.produced_per_s)], ['lag', f.count(row?.lag), 'unsettled messages, summed over groups', to('topics', topic, {tab: 'groups'})],
      ['in flight', f.count(row?.in_flight)], ['holds', row ? f.duration(row.oldest_ms) : '–', 'the age of its oldest message'],
      ['partitions', f.count(data.partitions.length), '', address('partitions')], ['skew', skew(data.partitions), 'the largest partition, compared with the mean', address('partitions')],
      ['groups', f.count(data.groups.length), '', address('groups')],
      ['dead letters', f.count(data.dead_letters), '', may('read', topic) && to('dead-letters', topic), data.dead_letters > 0 && 'bad'],
      ['last write', html`<${Time} at=${row?.last_write} />`], ['created', html`<${Time} at=${data.created_at} />`]]} /><//>
    <${Tabs} tabs=${tabs} current=${tab} />
    ${tab === 'messages' && may('read', topic) && html`<${Messages} topic=${topic} partitions=${data.partitions} query=${query} />`}
    ${tab === 'partitions' && html`<${Partitions} topic=${topic} rows=${data.partitions} />`}
    ${tab === 'groups' && html`<${TopicGroups} topic=${topic} />`}
    ${tab === 'settings' && html`<${Settings} topic=${topic} config=${data.config} refresh=${refresh} />`}`}
  <//>`
}

function skew(rows) {
  const whole = sum(rows, 'messages')
  return whole ? `${f.compact((Math.max(...rows.map((row) => row.messages)) * rows.length) / whole)} ×` : '–'
}

const Partitions = ({topic, rows}) => {
  const largest = Math.max(1, ...rows.map((row) => row.messages))
  return html`<${TopicPlots} topic=${topic} /><${Section} title="Partitions"><${Table} label="Partitions" rows=${rows} keyOf=${(row) => row.partition} columns=${[
    {label: 'partition', cell: (row) => html`<${Link} to=${to('topics', topic, {partition: row.partition})}>${row.partition}<//>`, sort: (row) => row.partition},
    {label: 'messages', cell: (row) => f.count(row.messages), sort: (row) => row.messages, end: true},
    {label: 'of the largest', cell: (row) => html`<${Bar} share=${row.messages / largest} />`},
    {label: 'size', cell: (row) => f.bytes(row.payload_bytes), sort: (row) => row.payload_bytes, end: true},
    {label: 'from', cell: (row) => f.count(row.start_offset), end: true}, {label: 'to', cell: (row) => f.count(row.end_offset), end: true},
    {label: 'full', cell: (row) => (row.backlog ? html`<${Bar} share=${row.backlog.used} tone=${row.backlog.used > 0.8 ? 'bad' : 'ok'}
      label=${`${f.percent(row.backlog.used)} of what the slowest group may leave, which is ${row.backlog.group}`} /> ${row.backlog.group}` : '–'),
    hint: 'at 100 % producers are refused until the slowest group has settled some'}]} /><//>`
}

const TopicPlots = ({topic}) => {
  const data = useSeries({topic})
  if (!data) return null
  const plot = (title, name, format, label) => html`<${Section}><${Plot} title=${title} start=${data.start} stepMs=${data.step_ms} format=${format}
    lines=${[{label, values: data.series[name] || []}]} /><//>`
  return html`<div class="grid">${plot('Messages per second, last hour', 'produced', f.compact, 'produced')}${
    plot('Bytes per second', 'produced_bytes', f.bytesPerS, 'produced')}${plot('Messages kept', 'messages', f.compact, 'messages')}</div>`
}

const TopicGroups = ({topic}) => {
  const pages = usePages(api.path`/v1/topics/${topic}/groups` + '?limit=500', 'groups', {everyMs: 5000, on: {topic}})
  if (pages.error) return html`<${Failure} error=${pages.error} />`
  if (pages.done && !pages.items.length) {
    return html`<${Empty} title="No group reads this topic">A group exists from its first claim on.<${Command}>${`driftq consume ${topic} readers --drain`}<//><//>`
  }
  return html`<${Section}><${Table} label="Groups" rows=${pages.items} keyOf=${(row) => row.group} columns=${[
    {label: 'group', cell: (row) => html`<${Link} to=${to('groups', topic, row.group)}>${row.group}<//>`, sort: (row) => row.group},
    {label: 'state', cell: (row) => html`<${Badge} state=${row.paused ? 'paused' : row.idle ? 'idle' : 'active'} />`},
    {label: 'lag', cell: (row) => f.count(row.lag), sort: (row) => row.lag, end: true}, {label: 'oldest', cell: (row) => f.duration(row.lag_ms), sort: (row) => row.lag_ms, end: true},
    {label: 'in flight', cell: (row) => f.count(row.in_flight), sort: (row) => row.in_flight, end: true},
    {label: 'waiting', cell: (row) => f.count(row.resting), sort: (row) => row.resting, end: true},
    {label: 'active', cell: (row) => html`<${Time} at=${row.active_at} />`, end: true}]} /><//>`
}

const UNITS = {
  retention_ms: 'ms; 0: the server\'s setting', retention_bytes: 'bytes for each partition; 0: no limit', lease_ms: 'ms; 0: the server\'s setting',
  in_flight_max: 'messages for each partition and group; 0: the server\'s setting',
  backlog_messages_max: 'messages for each partition; 0: the server\'s setting', backlog_bytes_max: 'bytes for each partition; 0: the server\'s setting',
}

const readable = (name, value) => {
  if (value === null || value === 0 || value === '') return html`<span class="faint">default</span>`
  if (name.endsWith('_ms')) return f.duration(value)
  if (name.includes('bytes')) return f.bytes(value)
  return typeof value === 'object' ? JSON.stringify(value) : typeof value === 'number' ? f.count(value) : String(value)
}

const Settings = ({topic, config, refresh}) => html`<${Section} title="Settings" actions=${may('manage', topic) && html`
  <${Action} label="Change">${(close) => html`<${Dialog} title=${`Change ${topic}`} submit="Change" onClose=${close} onSubmit=${async (form) => {
    const change = {history: form.get('history') === 'on', fair: form.get('fair'), keep_unread: form.get('keep_unread')}
    for (const name of Object.keys(UNITS)) if (form.get(name) !== '') change[name] = Number(form.get(name))
    await api.patch(api.path`/v1/topics/${topic}`, change)
    refresh()
  }}>${Object.entries(UNITS).map(([name, hint]) => html`<${Input} label=${name} name=${name} type="number" min="0" hint=${hint} value=${config[name] ?? 0} />`)}
    <${Select} label="fair" name="fair" value=${config.fair || ''} options=${[['', 'in offset order'], ['tenant', 'tenants take turns']]} />
    <${Select} label="keep_unread" name="keep_unread" value=${config.keep_unread || ''} options=${[['', 'retention waits for queries (groups that commit offsets)'],
      ['all', 'retention waits for all groups'], ['none', 'retention waits for no group']]} />
    <${Check} label="history" name="history" checked=${!!config.history} /><//>`}<//>`}>
  <${Fields} items=${Object.entries(config).map(([name, value]) => [name.replaceAll('_', ' ').replace(/ ms$/, ''), readable(name, value)])} /><//>`

const DeleteTopic = ({topic, data}) => html`<${Confirm} label="Delete" danger title=${`Delete ${topic}?`}
  text=${`This deletes ${f.plural(sum(data.partitions, 'messages'), 'message')}, ${f.plural(data.groups.length, 'group')} and ${f.plural(data.dead_letters, 'dead letter')}. It cannot be undone.`}
  run=${() => api.del(api.path`/v1/topics/${topic}`)} done=${() => go(to('topics'))} />`

const SendMessage = ({topic, partitions}) => html`<${Action} label="Send a test message" primary>${(close) => html`
  <${Dialog} title=${`Send to ${topic}`} submit="Send" onClose=${close} onSubmit=${async (form) => {
    const body = {topic, value: form.get('value'), key: form.get('key')}
    if (form.get('delay')) body.delay_ms = Number(form.get('delay')) * 1000
    if (form.get('partition') !== '') body.envelope = {partition_override: Number(form.get('partition'))}
    const reply = await api.post('/v1/produce', body)
    go(to('topics', reply.routed_topic || topic, reply.partition, reply.offset))
  }}>
    <${Input} label="Value" name="value" area required value='{"hello": "world"}' />
    <${Input} label="Key" name="key" hint="Messages with the same key go to the same partition." />
    <${Input} label="Partition" name="partition" type="number" min="0" max=${partitions - 1} hint="Empty: decided by the key." />
    <${Input} label="Delay in seconds" name="delay" type="number" min="0" hint="It is delivered no earlier." />
  <//>`}<//>`
