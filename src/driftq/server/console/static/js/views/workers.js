// Workers: which processes are alive, on what, since when.

import {html} from '../../vendor/htm-preact.mjs'
import {may} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {to} from '../location.js'
import {Badge, Bar, Command, Confirm, Empty, Failure, Figures, Link, Loading, Page, Section, Table, Time, useCall} from '../ui.js'

const total = (rows, field) => rows.reduce((sum, row) => sum + (row[field] || 0), 0)
const name = (worker) => `${worker.host} · ${worker.pid}`
const mayEnd = (worker) => worker.workers.length > 0 ? worker.workers.every((part) => may('manage', part.topic)) : may('admin')

export const Workers = () => {
  const {data, error, refresh} = useCall('/v1/workers?limit=1000', {everyMs: 2000})
  const rows = data?.workers || []
  const parts = rows.flatMap((worker) => worker.workers)
  return html`<${Page} title="Workers" subtitle=${data ? f.plural(rows.length, 'process', 'processes') : ''}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Section}><${Loading} lines=${6} /><//>`}
    ${rows.length > 0 && html`<${Section}><${Figures} items=${[['processes', f.count(rows.length)], ['hosts', f.count(new Set(rows.map((row) => row.host)).size)],
      ['versions', [...new Set(rows.map((row) => row.version))].slice(0, 3).join(', ')],
      ['busy', `${f.count(total(rows, 'busy'))} of ${f.count(total(rows, 'concurrency'))}`, 'calls that run now, and places for them'],
      ['held', f.count(total(parts, 'held')), 'messages that are claimed and not settled'],
      ['done', f.compact(total(parts, 'acked'))], ['failed', f.compact(total(parts, 'failed')), '', '', total(parts, 'failed') > 0 && 'warn']]} /><//>`}
    ${rows.map((worker) => html`<${Section} key=${worker.id} title=${name(worker)}
      note=${html`version ${worker.version} · since <${Time} at=${worker.since} /> · seen <${Time} at=${worker.seen} />`}
      actions=${html`<span>${f.count(worker.busy)} of ${f.count(worker.concurrency)} busy</span> <${Bar} share=${worker.busy / Math.max(1, worker.concurrency)} tone="ok" />
        <${Badge} state=${worker.command ? 'draining' : worker.state}>${worker.command ? `asked to ${worker.command}` : worker.state}<//>
        ${mayEnd(worker) && html`<${Confirm} label="Drain" title=${`Drain ${name(worker)}?`} disabled=${!!worker.command}
          text=${`It claims no more, ends the ${f.plural(worker.busy, 'call')} that run now, and exits.`}
          run=${() => api.post(api.path`/v1/workers/${worker.id}/drain`)} done=${refresh} />
        <${Confirm} label="Stop" danger title=${`Stop ${name(worker)}?`} disabled=${worker.command === 'stop'}
          text=${`It exits at once. The ${f.plural(worker.busy, 'call')} that run now are interrupted and delivered again.`}
          run=${() => api.post(api.path`/v1/workers/${worker.id}/stop`)} done=${refresh} />`}`}>
      <${Table} label=${`Functions of ${worker.id}`} rows=${worker.workers} keyOf=${(row) => `${row.name}/${row.topic}/${row.group}/${row.task || ''}`} columns=${[
        {label: 'function', cell: (row) => html`<span class="mono">${row.name}</span>`}, {label: 'topic', cell: (row) => html`<${Link} to=${to('topics', row.topic)}>${row.topic}<//>`},
        {label: 'group', cell: (row) => html`<${Link} to=${to('groups', row.topic, row.group)}>${row.group}<//>`}, {label: 'task or label', cell: (row) => row.task || row.label || ''},
        {label: 'busy', cell: (row) => `${f.count(row.busy || 0)} of ${f.count(row.concurrency || 1)}`, end: true},
        {label: 'held', cell: (row) => f.count(row.held || 0), end: true}, {label: 'done', cell: (row) => f.count(row.acked || 0), end: true},
        {label: 'failed', cell: (row) => f.count(row.failed || 0), end: true}]} /><//>`)}
    ${data && !rows.length && html`<${Empty} title="No worker has announced itself">Processes that run worker functions appear here with their first heartbeat.
      <${Command}>driftq worker app --processes 2<//><//>`}
  <//>`
}
