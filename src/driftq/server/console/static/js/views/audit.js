// The audit: who changed what, and who was refused.

import {html} from '../../vendor/htm-preact.mjs'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {Badge, Command, Empty, Failure, Filters, Loading, More, Page, Payload, Section, Table, Time, usePages} from '../ui.js'

const RESULTS = ['', 'changed', 'unchanged', 'done', 'denied', 'refused']
const TONES = {changed: 'ok', done: 'ok', unchanged: 'notice', denied: 'denied', refused: 'refused'}
const FILTER = ['who', 'action', 'name', 'result', 'tenant']

export const Audit = ({query}) => {
  const filter = Object.fromEntries(FILTER.map((name) => [name, query[name]]))
  const pages = usePages('/v1/audit' + api.query({...filter, limit: 100}), 'records', {everyMs: 5000, on: {topic: '_audit'}})
  const off = pages.error?.status === 404
  return html`<${Page} title="Audit" subtitle="who changed what, and who was refused">
    ${!off && html`<${Filters} values=${query} onChange=${(values) => go(to('audit', values))} fields=${[
      {name: 'who', label: 'who', type: 'search'}, {name: 'action', label: 'action', type: 'search', placeholder: 'topic.delete'},
      {name: 'name', label: 'name', type: 'search'}, {name: 'result', label: 'result', options: RESULTS}, {name: 'tenant', label: 'tenant', type: 'search'}]} />`}
    ${pages.error && !off && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${8} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Audit" rows=${pages.items} keyOf=${(row) => row.offset} columns=${[
      {label: 'when', cell: (row) => html`<${Time} at=${row.at} />`},
      {label: 'who', cell: (row) => row.who || html`<span class="faint">anyone</span>`}, {label: 'action', cell: (row) => html`<span class="mono">${row.action}</span>`},
      {label: 'name', cell: (row) => row.name},
      {label: 'result', cell: (row) => html`<${Badge} state=${TONES[row.result]}>${row.result}${row.count > 1 ? ` ${f.count(row.count)} times` : ''}<//>`},
      {label: 'from', cell: (row) => row.address}, pages.items.some((row) => row.tenant) && {label: 'tenant', cell: (row) => row.tenant},
      {label: 'what', wide: true, cell: (row) => (Object.keys(row.details || {}).length ? html`<details><summary>${row.reason || row.route || 'details'}</summary>
        <${Payload} label="what is different" text=${JSON.stringify(row.details)} /></details>` : row.reason || row.route)}]} />
      <${More} pages=${pages} noun="records" /><//>`}
    ${pages.done && !pages.items.length && html`<${Empty} title=${off ? 'There is no audit yet' : 'No record fits'}>Each administrative change and each refused credential becomes a
      record in the topic <code>_audit</code>. <${Command}>driftq audit<//><//>`}
  <//>`
}
