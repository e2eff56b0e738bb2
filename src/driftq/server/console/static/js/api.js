// Calls of the broker's API: credentials, errors, pages, live events.
//
// The token is kept in sessionStorage: it ends with the tab, and no other origin can read it. It is sent in a header
// and never in a URL.

const TOKEN = 'driftq-token'

export class ApiError extends Error {
  constructor(status, code, message, details) {
    super(message)
    this.status = status
    this.code = code
    this.details = details
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) || '',
  set: (text) => sessionStorage.setItem(TOKEN, text),
  clear: () => sessionStorage.removeItem(TOKEN),
}

const listeners = new Set()
let connected = true

// Calls `listener` when the broker is lost or found again, and when it asks for a credential.
export function onConnection(listener) {
  listeners.add(listener)
  return () => listeners.delete(listener)
}

function notify(event) {
  for (const listener of listeners) listener(event)
}

// Who logs in again is online again: what failed in the meantime is read once more.
export const loggedIn = () => notify('again')

function setConnected(now) {
  if (now !== connected) {
    connected = now
    notify(now ? 'online' : 'offline')
  }
}

export const isConnected = () => connected

export async function request(method, path, body, options = {}) {
  const headers = {...options.headers}
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`
  let payload
  if (body !== undefined) {
    headers['Content-Type'] ??= 'application/json'
    payload = typeof body === 'string' ? body : JSON.stringify(body)
  }
  let response
  try {
    response = await fetch(path, {method, headers, body: payload, signal: options.signal, cache: 'no-store'})
  } catch (error) {
    if (error.name === 'AbortError') throw error
    setConnected(false)
    throw new ApiError(0, 'OFFLINE', 'The broker cannot be reached. This page tries again by itself.')
  }
  setConnected(true)
  if (response.status === 401) notify('unauthorized')
  if (options.raw && response.ok) return response
  const text = await response.text()
  let parsed = null
  try {
    parsed = text ? JSON.parse(text) : null
  } catch {
    parsed = null
  }
  if (!response.ok) {
    const message = parsed?.message || text.slice(0, 300) || `HTTP ${response.status}`
    throw new ApiError(response.status, parsed?.error || `HTTP_${response.status}`, message, parsed)
  }
  return parsed
}

export const get = (path, options) => request('GET', path, undefined, options)
export const post = (path, body, options) => request('POST', path, body, options)
export const put = (path, body, options) => request('PUT', path, body, options)
export const patch = (path, body, options) => request('PATCH', path, body, options)
export const del = (path, options) => request('DELETE', path, undefined, options)

// Repeats a call that does its work in parts, each of which says in `after` where the next one begins. Yields the replies.
// At most `limit` of what fits is touched. A part that ends where it began could do nothing: it is the last.
export async function* parts(url, body, {limit = Infinity, part = 1000} = {}) {
  for (let left = limit, after; left > 0;) {
    const reply = await post(url, {...body, limit: Math.min(part, left), ...(after ? {after} : {})})
    yield reply
    if (!reply.after || reply.after === after) return
    left -= reply.matched
    after = reply.after
  }
}

// A path with its values encoded: path`/v1/topics/${name}`.
export function path(parts, ...values) {
  return parts.reduce((text, part, index) =>
    text + part + (index < values.length ? encodeURIComponent(String(values[index])) : ''), '')
}

// A query string without the values that are empty.
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== '' && value !== null && value !== undefined)
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
  return text ? `?${text}` : ''
}

// Server-sent events by fetch: EventSource cannot send a token. Yields {event, data, id} until it is aborted or ends.
export async function* events(url, signal) {
  const response = await request('GET', url, undefined, {signal, raw: true, headers: {Accept: 'text/event-stream'}})
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const {done, value} = await reader.read()
    if (done) return
    rest += value.replaceAll('\r\n', '\n')
    for (let end; (end = rest.indexOf('\n\n')) >= 0;) {
      const block = rest.slice(0, end)
      rest = rest.slice(end + 2)
      const event = {event: 'message', data: [], id: ''}
      for (const line of block.split('\n')) {
        const colon = line.indexOf(':')
        const field = colon < 0 ? line : line.slice(0, colon)
        const text = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '')
        if (field === 'data') event.data.push(text)
        else if (field === 'event') event.event = text
        else if (field === 'id') event.id = text
      }
      if (event.data.length) yield {...event, data: event.data.join('\n')}
    }
  }
}
