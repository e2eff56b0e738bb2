// The browser of a topic's messages: newest first, found by text, key, partition, offset and time, or as they arrive.

import {html, useState} from '../../vendor/htm-preact.mjs'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {Badge, Check, Empty, Failure, Filters, Link, Loading, More, Section, Table, Time, usePages} from '../ui.js'

const PAGE = 50
const SHOWN = 240 // characters of a value

const COLUMNS = (topic, rows) => [
  {label: 'message', cell: (row) => html`<${Link} to=${to('topics', topic, row.partition, row.offset)}>${row.partition}/${row.offset}<//>`, hint: 'partition / offset'},
  {label: 'time', cell: (row) => html`<${Time} at=${row.timestamp_ms} />`},
  {label: 'key', cell: (row) => html`<span class="mono clip short">${row.key}</span>`},
  {label: 'value', wide: true, cell: (row) => html`<span class="mono clip">${row.value_base64 ? `${f.bytes(atob(row.value_base64).length)}, not text` : row.value.slice(0, SHOWN)}</span>`},
  rows.some((row) => row.job?.task) && {label: 'task', cell: (row) => row.job?.task || ''},
  rows.some((row) => row.envelope?.run_id) && {label: 'run', cell: (row) => row.envelope?.run_id && html`<${Link} to=${to('runs', row.envelope.run_id)}>${row.envelope.run_id}<//>`},
  rows.some((row) => row.envelope?.tenant_id) && {label: 'tenant', cell: (row) => row.envelope?.tenant_id || ''},
]

export const Messages = ({topic, partitions, query}) => {
  const [live, setLive] = useState(false)
  const {partition, before, key, text, until} = query
  const path = api.path`/v1/topics/${topic}/messages` + api.query({partition, before, key, text, until, limit: PAGE})
  const pages = usePages(path, 'messages', live ? {everyMs: 1000, on: {topic}} : undefined)
  const one = partition !== undefined && partition !== ''
  const find = ({time, tab, ...values}) => go(to('topics', topic, {
    ...values, before: values.partition ? values.before : '', until: time ? new Date(time).toISOString() : ''}))
  return html`<${Section} title="Messages" note="newest first" actions=${html`<span role="status">${live && html`<${Badge} state="live" />`}</span><${Check}
      label="live" checked=${live} onChange=${(event) => setLive(event.target.checked)} />`}>
    <${Filters} values=${query} onChange=${find} fields=${[
      {name: 'text', label: 'text in the value', type: 'search'}, {name: 'key', label: 'key', type: 'search'},
      {name: 'partition', label: 'partition', options: [['', 'all'], ...partitions.map((row) => [String(row.partition), String(row.partition)])]},
      ...(one ? [{name: 'before', label: 'before offset', type: 'number', min: 0}] : []),
      {name: 'time', label: 'before a time', type: 'datetime-local'}]}>
      ${(text || key || one || until) && html`<${Link} to=${to('topics', topic)}>show all<//>`}<//>
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Loading} lines=${8} />`}
    ${pages.items.length > 0 && html`<${Table} label="Messages" columns=${COLUMNS(topic, pages.items)} rows=${pages.items} keyOf=${(row) => `${row.partition}/${row.offset}`} />`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty}>${pages.after
      ? `None of the ${f.count(pages.reply.scanned)} newest messages fits. There are older ones.` : 'No message fits.'}<//>`}
    <${More} pages=${pages} noun="messages" /><//>`
}
