// Idempotent producers: who writes, with which epoch and sequence.

import {html} from '../../vendor/htm-preact.mjs'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to, toStream} from '../location.js'
import {Command, Empty, Failure, Filters, Link, Loading, More, Page, Section, Table, Time, usePages} from '../ui.js'

export const Producers = ({query}) => {
  const {topic, stream: path} = query
  const pages = usePages('/v1/producers' + api.query({topic, stream: path, limit: 200}), 'producers', {everyMs: 10000, on: {topic: true, stream: true}})
  return html`<${Page} title="Producers" subtitle="that number their writes, so that each is stored once">
    <${Filters} values=${query} onChange=${(values) => go(to('producers', values))} fields=${[{name: 'topic', label: 'topic', type: 'search'}, {name: 'stream', label: 'stream', type: 'search'}]} />
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Producers" rows=${pages.items} keyOf=${(row) => `${row.producer}/${row.topic || row.stream}/${row.partition ?? ''}`} columns=${[
      {label: 'producer', cell: (row) => html`<span class="mono">${row.producer}</span>`, sort: (row) => row.producer},
      {label: 'writes to', cell: (row) => (row.stream ? html`<a href=${toStream(row.stream)}>${row.stream}</a>` : html`<${Link} to=${to('topics', row.topic)}>${row.topic}<//> ${row.partition || 0}`)},
      {label: 'epoch', cell: (row) => f.count(row.epoch), end: true}, {label: 'sequence', cell: (row) => f.count(row.seq), end: true},
      {label: 'last write', cell: (row) => html`<${Time} at=${row.last_write} />`, sort: (row) => row.last_write, end: true}]} /><${More} pages=${pages} noun="producers" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title="No producer numbers its writes">The clients do it if they have a producer id:
      <${Command}>client.producer("orders", producer_id="checkout-1")<//><//>`}
  <//>`
}
