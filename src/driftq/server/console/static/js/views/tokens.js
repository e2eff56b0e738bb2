// Access tokens: who may do what.

import {html, useState} from '../../vendor/htm-preact.mjs'
import * as api from '../api.js'
import {Action, Badge, Command, Confirm, Copy, Dialog, Empty, Failure, Input, More, Page, Section, Table, Time, usePages} from '../ui.js'

export const Tokens = () => {
  const pages = usePages('/v1/tokens?limit=200', 'tokens')
  return html`<${Page} title="Tokens" actions=${html`<${Create} refresh=${pages.refresh} />`}>
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Tokens" rows=${pages.items} keyOf=${(row) => row.id} columns=${[
      {label: 'name', cell: (row) => row.name, sort: (row) => row.name}, {label: 'id', cell: (row) => html`<span class="mono">${row.id}</span>`},
      {label: 'grants', cell: (row) => html`<span class="mono">${row.grants.join(' ')}</span>`}, {label: 'tenant', cell: (row) => row.tenant || ''},
      {label: 'created', cell: (row) => html`<${Time} at=${row.created_at} /> ${row.created_by && `by ${row.created_by}`}`, sort: (row) => row.created_at},
      {label: 'used', cell: (row) => html`<${Time} at=${row.used_at} />`, sort: (row) => row.used_at || ''},
      {label: 'expires', cell: (row) => (row.expires_at ? html`<${Time} at=${row.expires_at} />` : 'never'), sort: (row) => row.expires_at || '9'},
      {label: '', acts: true, cell: (row) => html`<${Secret} label="Rotate" title=${`Rotate ${row.name}`} submit="Rotate" refresh=${pages.refresh}
        text="It gets a new secret. The old one ends at once." send=${() => api.post(api.path`/v1/tokens/${row.id}/rotate`, {})} />
        <${Confirm} label="Revoke" danger title=${`Revoke ${row.name}?`} text="Calls with it are refused from now on; its open streams end within a second."
          run=${() => api.del(api.path`/v1/tokens/${row.id}`)} done=${pages.refresh} />`}]} />
      <${More} pages=${pages} noun="tokens" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title="There are no tokens">Without <code>auth.mode</code> this broker asks for none.
      <${Command}>driftq auth init --data DIR<//><//>`}
  <//>`
}

const Create = ({refresh}) => html`<${Secret} label="Create a token" primary title="Create a token" submit="Create" refresh=${refresh}
  send=${(form) => api.post('/v1/tokens', {name: form.get('name'), grants: form.get('grants').split(/[\s,]+/).filter(Boolean),
    ...(form.get('days') ? {ttl_ms: Number(form.get('days')) * 86400000} : {})})}>
  <${Input} label="Name" name="name" required autofocus maxlength="100" />
  <${Input} label="Grants" name="grants" required placeholder="produce:orders.* consume:orders.*/billing" hint="Verb and pattern: produce, consume, read, append, manage; or observe, admin." />
  <${Input} label="Days until it expires" name="days" type="number" min="1" hint="Empty: never." /><//>`

// A dialog whose reply contains a secret, which is shown once.
const Secret = ({label, title, text, submit, primary, send, refresh, children}) => html`<${Action} label=${label} primary=${primary}>${(close) => html`
  <${SecretDialog} ...${{title, text, submit, send, refresh, close}}>${children}<//>`}<//>`

const SecretDialog = ({title, text, submit, send, refresh, close, children}) => {
  const [secret, setSecret] = useState('')
  return html`<${Dialog} title=${title} submit=${secret ? '' : submit} onClose=${() => {
    close()
    if (secret) refresh()
  }} onSubmit=${async (form) => {
    setSecret((await send(form)).token)
    return 'stay'
  }}>${secret ? html`<p><${Badge} state="warning">shown once<//> Copy it now; the broker keeps only its hash.</p>
      <pre>${secret}</pre><${Copy} text=${secret}>Copy<//>` : html`${text && html`<p>${text}</p>`}${children}`}<//>`
}
