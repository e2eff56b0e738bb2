// Settings of the broker, and the Spark pipelines that report to it.

import {html, useState} from '../../vendor/htm-preact.mjs'
import * as f from '../format.js'
import {Badge, Check, Command, Empty, Failure, Input, Page, Section, Table, Time, useCall} from '../ui.js'

const shown = (value) => (Array.isArray(value) ? value.join(', ') : typeof value === 'object' && value ? Object.entries(value).map(([name, part]) => `${name}: ${shown(part)}`).join(', ')
  : String(value)) || '–'

// A number of milliseconds or bytes as people read it.
function readable(name, value) {
  if (typeof value !== 'number' || value < 1000) return ''
  if (name.includes('_ms')) return f.duration(value)
  return name.includes('bytes') ? f.bytes(value) : ''
}

export const Settings = () => {
  const {data, error} = useCall('/v1/config')
  const [text, setText] = useState('')
  const [changed, setChanged] = useState(false)
  const rows = (data?.settings || []).filter((row) => row.name.includes(text) && (!changed || row.origin !== 'default'))
  return html`<${Page} title="Settings" subtitle="what applies now, and where it was set; secrets are masked">
    ${error && html`<${Failure} error=${error} />`}
    <div class="filters"><${Input} label="name contains" type="search" value=${text} onInput=${(event) => setText(event.target.value)} />
      <${Check} label="only those that were set" checked=${changed} onChange=${(event) => setChanged(event.target.checked)} /></div>
    ${data && html`<${Section}><${Table} label="Settings" rows=${rows} keyOf=${(row) => row.name} columns=${[
      {label: 'setting', cell: (row) => html`<code>${row.name}</code>`, sort: (row) => row.name},
      {label: 'value', cell: (row) => html`<span class="mono">${shown(row.value)}</span> <span class="faint">${readable(row.name, row.value)}</span>`},
      {label: 'set by', cell: (row) => (row.origin === 'default' ? html`<span class="faint">default</span>` : row.origin), sort: (row) => row.origin}]} /><//>`}
  <//>`
}

export const Pipelines = () => {
  const {data, error} = useCall('/v1/pipelines', {everyMs: 5000})
  return html`<${Page} title="Pipelines" subtitle="Spark pipelines that reported in the last day">
    ${error && html`<${Failure} error=${error} />`}
    ${data?.pipelines.length > 0 && html`<${Section}><${Table} label="Pipelines" rows=${data.pipelines} keyOf=${(row) => row.name} columns=${[
      {label: 'pipeline', cell: (row) => row.name, sort: (row) => row.name}, {label: 'kind', cell: (row) => row.kind},
      {label: 'topics', cell: (row) => row.topics.join(', ')}, {label: 'target', cell: (row) => row.target},
      {label: 'state', cell: (row) => html`<${Badge} state=${row.state} />`},
      {label: 'batch', cell: (row) => (row.batch < 0 ? '' : row.batch), end: true}, {label: 'rows', cell: (row) => f.count(row.rows), sort: (row) => row.rows, end: true},
      {label: 'lag', cell: (row) => (row.lag < 0 ? '' : f.count(row.lag)), sort: (row) => row.lag, end: true},
      {label: 'audit', cell: (row) => (row.audit ? html`<${Badge} state=${row.audit === 'exact' ? 'ok' : 'warning'}>${row.audit}<//>` : '')},
      {label: 'reported', cell: (row) => html`<${Time} at=${row.seen} />`}]} /><//>`}
    ${data && !data.pipelines.length && html`<${Empty} title="No pipeline has reported">Pipelines on Spark report each micro-batch.
      <${Command}>driftq pipeline run archive --topic orders --table ./orders<//><//>`}
  <//>`
}
