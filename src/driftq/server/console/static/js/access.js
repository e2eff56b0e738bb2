// Who looks, and what they may do. Actions that a caller may not do are not shown. The broker checks each call anyway.

import * as api from './api.js'

const EVERYTHING = {name: '', tenant: '', grants: ['admin'], authenticated: false}
let identity = EVERYTHING

export async function learn() {
  identity = await api.get('/v1/identity')
  return identity
}

export const who = () => identity

function fits(pattern, name) {
  const parts = pattern.split('*')
  if (parts.length === 1) return pattern === name
  const last = parts.pop()
  let at = parts[0].length
  const end = name.length - last.length
  if (at > end || !name.startsWith(parts[0]) || !name.endsWith(last)) return false
  for (const part of parts.slice(1)) {
    const found = name.indexOf(part, at)
    if (found < 0 || found + part.length > end) return false
    at = found + part.length
  }
  return true
}

const verbs = () => identity.grants.map((grant) => [grant.split(':', 1)[0], grant.slice(grant.indexOf(':') + 1)])

// Whether the caller may do something: may('manage', 'orders'), may('consume', 'orders/billing'), may('admin').
export const may = (verb, name = '') => verbs().some(([granted, pattern]) =>
  granted === 'admin' || (granted === verb && (granted === 'observe' || fits(pattern, name))))

// Whether some name exists for which they may: may they create a topic at all?
export const maySome = (verb) => verbs().some(([granted]) => granted === 'admin' || granted === verb)

// Dead letters are deleted and redriven by a group of the broker: the right is that of a consumer in it.
export const mayDeleteLetters = (topic) => may('consume', `dlq.${topic}/driftq.redrive`)
export const mayRedrive = (topic) => mayDeleteLetters(topic) && may('produce', topic)

// What concerns the whole server is for operators, who belong to no tenant.
export const isOperator = () => !identity.tenant
