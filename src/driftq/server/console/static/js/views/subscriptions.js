// Subscriptions: who is woken when streams grow, and whether their webhooks answer.

import {html} from '../../vendor/htm-preact.mjs'
import {may} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {Badge, Command, Confirm, Empty, Failure, Loading, More, Page, Section, Table, Time, usePages} from '../ui.js'

export const Subscriptions = () => {
  const pages = usePages('/v1/subscriptions?limit=200', 'subscriptions', {everyMs: 5000, on: {stream: true}})
  return html`<${Page} title="Subscriptions" subtitle="webhooks and workers that are woken when streams grow">
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Subscriptions" rows=${pages.items} keyOf=${(row) => row.id} columns=${[
      {label: 'subscription', cell: (row) => html`<strong>${row.id}</strong>`, sort: (row) => row.id},
      {label: 'state', cell: (row) => html`<${Badge} state=${row.state === 'woken' ? 'waiting' : row.state}>${row.state}<//>`, sort: (row) => row.state},
      {label: 'wakes', cell: (row) => html`<span class="mono">${row.target || row.type}</span>`},
      {label: 'follows', cell: (row) => [row.pattern, row.streams && f.plural(row.streams, 'stream')].filter(Boolean).join(', ')},
      {label: 'grown', cell: (row) => f.count(row.grown), sort: (row) => row.grown, end: true, hint: 'streams with data that it has not acknowledged'},
      {label: 'held by', cell: (row) => row.holder && html`${row.holder} <span class="faint">until <${Time} at=${row.lease_until} /></span>`},
      {label: 'failures', cell: (row) => f.count(row.failures), sort: (row) => row.failures, end: true, hint: 'of its webhook since the last success'},
      {label: 'created', cell: (row) => html`<${Time} at=${row.created_at} />`, sort: (row) => row.created_at, end: true},
      {label: '', acts: true, cell: (row) => may('manage', row.id) && html`<${Confirm} label="Delete" danger quiet title=${`Delete subscription ${row.id}?`}
        text=${`This is one subscription. Its target is not woken any more${row.grown ? `; ${f.plural(row.grown, 'stream')} have grown since its last acknowledgement` : ''}.`}
        run=${() => api.del(api.path`/v1/stream/__ds/subscriptions/${row.id}`)} done=${pages.refresh} />`}]} /><${More} pages=${pages} noun="subscriptions" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title="There is no subscription yet">A subscription calls a webhook, or wakes a worker, when streams grow.
      <${Command}>curl -X PUT localhost:8080/v1/stream/__ds/subscriptions/notify -H 'Content-Type: application/json' -d '{"type": "webhook", "pattern": "runs/*", "webhook": {"url": "URL"}}'<//><//>`}
  <//>`
}
