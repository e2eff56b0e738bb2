// Tenants: their quotas, and what they use of them.

import {html} from '../../vendor/htm-preact.mjs'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {Action, Bar, Command, Confirm, Dialog, Empty, Failure, Input, Link, Loading, More, Page, Section, Table, Time, useCall, usePages} from '../ui.js'

const QUOTAS = ['messages_per_s', 'bytes_per_s', 'requests_per_s', 'stored_bytes', 'backlog', 'topics', 'streams', 'groups', 'schedules', 'connections']
const amount = (name, value) => `${name.includes('bytes') ? f.bytes(value) : f.count(value)}${name.endsWith('_per_s') ? '/s' : ''}`
const words = (name) => name.replace('_per_s', '').replaceAll('_', ' ')
const given = (form) => Object.fromEntries(QUOTAS.filter((name) => form.get(name)).map((name) => [name, Number(form.get(name))]))
const fields = (quotas = {}) => QUOTAS.map((name) => html`<${Input} label=${name} name=${name} type="number" min="0" value=${quotas[name] || ''} placeholder="no limit" />`)

export const Tenants = () => {
  const pages = usePages('/v1/tenants?limit=200', 'tenants')
  const quotas = (row) => QUOTAS.filter((name) => row.quotas[name] > 0).map((name) => `${words(name)} ${amount(name, row.quotas[name])}`).join(' · ')
  return html`<${Page} title="Tenants" subtitle="each has its own names and quotas" actions=${html`<${Create} />`}>
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Tenants" rows=${pages.items} keyOf=${(row) => row.name} columns=${[
      {label: 'tenant', cell: (row) => html`<${Link} to=${to('tenants', row.name)}>${row.name}<//>`, sort: (row) => row.name},
      {label: 'quotas', cell: (row) => quotas(row) || html`<span class="faint">none</span>`},
      {label: 'created', cell: (row) => html`<${Time} at=${row.created_at} />`, sort: (row) => row.created_at, end: true}]} /><${More} pages=${pages} noun="tenants" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title="There is no tenant yet">A tenant has names of its own, tokens that see nothing else, and quotas.
      <${Command}>driftq tenants create acme --messages-per-s 1000<//><//>`}
  <//>`
}

const Create = () => html`<${Action} label="Create a tenant" primary>${(close) => html`
  <${Dialog} title="Create a tenant" submit="Create" onClose=${close} onSubmit=${async (form) => {
    const name = form.get('name').trim()
    await api.post('/v1/tenants', {name, quotas: given(form)})
    go(to('tenants', name))
  }}><${Input} label="Name" name="name" required autofocus />${fields()}<//>`}<//>`

export const Tenant = ({tenant}) => {
  const path = api.path`/v1/tenants/${tenant}`
  const {data, error, refresh} = useCall(path, {everyMs: 3000})
  const names = data && ['topics', 'streams', 'groups', 'schedules'].filter((name) => data.used[name]).map((name) => `${f.count(data.used[name])} ${name}`)
  return html`<${Page} title=${tenant} crumbs=${[['Tenants', to('tenants')]]} actions=${data && html`
    <${Action} label="Change">${(close) => html`<${Dialog} title=${`Change ${tenant}`} submit="Change" onClose=${close} onSubmit=${async (form) => {
      await api.patch(path, Object.fromEntries(QUOTAS.map((name) => [name, Number(form.get(name) || 0)])))
      refresh()
    }}>${fields(data.quotas)}<//>`}<//>
    <${Confirm} label="Delete" danger title=${`Delete ${tenant}?`} text=${names.length ? `It still has ${names.join(', ')}: delete those first.` : 'It has no topics, streams, groups or schedules. Its tokens end at once.'}
      run=${() => api.del(path)} done=${() => go(to('tenants'))} />`}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${data && html`<${Section} title="Quotas" note=${html`created <${Time} at=${data.created_at} />`}><${Table} label="Quotas" rows=${QUOTAS} keyOf=${(name) => name} columns=${[
      {label: 'what', cell: words}, {label: 'used', cell: (name) => amount(name, data.used[name]), end: true},
      {label: 'of', cell: (name) => (data.quotas[name] ? amount(name, data.quotas[name]) : html`<span class="faint">no limit</span>`), end: true},
      {label: 'share', cell: (name) => (data.quotas[name] ? html`<${Bar} share=${data.used[name] / data.quotas[name]} tone=${data.used[name] >= 0.9 * data.quotas[name] ? 'bad' : 'ok'} />` : '')}]} /><//>`}
  <//>`
}
