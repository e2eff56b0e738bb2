// Streams: the list by prefix, and one stream, followed live.

import {html, useEffect, useRef, useState} from '../../vendor/htm-preact.mjs'
import {may, maySome} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to, toStream} from '../location.js'
import {
  Action, Badge, Check, Command, Confirm, Dialog, Empty, Failure, Figures, Filters, Input, Link, Loading, More, Page, Section, Table, Time, useCall, usePages,
} from '../ui.js'

const KEPT_CHARACTERS = 200000
const address = (stream) => `/v1/stream/${stream.split('/').map(encodeURIComponent).join('/')}`

export const Streams = ({query}) => {
  const pages = usePages(`/v1/streams${api.query({prefix: query.prefix, limit: 200, details: true})}`, 'streams', {everyMs: 10000, on: {stream: true}})
  const figures = Object.fromEntries((pages.reply?.figures || []).map((row) => [row.stream, row]))
  const shown = (row) => figures[row.stream] || {}
  return html`<${Page} title="Streams" actions=${maySome('append') && html`<${Create} />`}>
    <${Filters} values=${query} onChange=${(values) => go(to('streams', values))} fields=${[{name: 'prefix', label: 'path starts with', type: 'search'}]} />
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${8} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Streams" rows=${pages.items} keyOf=${(row) => row.stream} columns=${[
      {label: 'stream', cell: (row) => html`<a href=${toStream(row.stream)}>${row.stream}</a>`, sort: (row) => row.stream},
      {label: 'state', cell: (row) => html`<${Badge} state=${row.closed ? 'closed' : 'open'} />`, sort: (row) => String(row.closed)},
      {label: 'type', cell: (row) => row.content_type, sort: (row) => row.content_type},
      {label: 'size', cell: (row) => f.bytes(shown(row).size_bytes), sort: (row) => shown(row).size_bytes, end: true},
      {label: 'readers', cell: (row) => f.count(shown(row).readers), sort: (row) => shown(row).readers, end: true, hint: 'that follow it now'},
      {label: 'producers', cell: (row) => f.count(shown(row).producers), sort: (row) => shown(row).producers, end: true, hint: 'idempotent producers that wrote to it'},
      {label: 'forks', cell: (row) => (shown(row).forked_from ? html`of <a href=${toStream(shown(row).forked_from)}>${shown(row).forked_from}</a>` : f.count(shown(row).forks)), end: true},
      {label: 'last write', cell: (row) => html`<${Time} at=${shown(row).last_write} />`, sort: (row) => shown(row).last_write || '', end: true},
      {label: 'expires', cell: (row) => html`<${Time} at=${shown(row).expires_at} />`, sort: (row) => shown(row).expires_at || '9', end: true}]} />
      <${More} pages=${pages} noun="streams" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title=${query.prefix ? 'No stream begins with this' : 'There is no stream yet'}>
      A stream is read from the start by everyone who comes, while it is being written. Create one with the button, or:
      <${Command}>driftq streams create runs/1/tokens --content-type text/plain<//><//>`}
  <//>`
}

const Create = () => html`<${Action} label="Create a stream" primary>${(close) => html`
  <${Dialog} title="Create a stream" submit="Create" onClose=${close} onSubmit=${async (form) => {
    const stream = form.get('stream').trim().replace(/^\/+/, '')
    const headers = {'Content-Type': form.get('type')}
    if (form.get('ttl')) headers['Stream-TTL'] = form.get('ttl')
    await api.put(address(stream), '', {headers})
    go(toStream(stream))
  }}>
    <${Input} label="Path" name="stream" required autofocus placeholder="runs/42" />
    <${Input} label="Content type" name="type" value="application/json" required />
    <${Input} label="Lifetime in seconds" name="ttl" type="number" min="1" hint="Empty: until it is deleted." />
  <//>`}<//>`

export const Stream = ({stream}) => {
  const [info, setInfo] = useState(null)
  const [round, setRound] = useState(0)
  const [error, setError] = useState(null)
  const listed = useCall(`/v1/streams${api.query({prefix: stream, limit: 1, details: true})}`, {everyMs: 5000, on: {stream}})
  const figures = listed.data?.figures?.find((row) => row.stream === stream) || {}
  useEffect(() => {
    api.request('HEAD', address(stream), undefined, {raw: true}).then((response) => setInfo(Object.fromEntries(response.headers)), setError)
  }, [stream, round, listed.data?.streams?.[0]?.closed])
  const closed = info?.['stream-closed'] === 'true'
  const again = () => {
    setRound(round + 1)
    listed.refresh()
  }
  const size = f.bytes(figures.size_bytes)
  const readers = f.plural(figures.readers || 0, 'reader')
  return html`<${Page} title=${stream} subtitle=${info?.['content-type']} badge=${info && html`<${Badge} state=${closed ? 'closed' : 'open'} />`} crumbs=${[['Streams', to('streams')]]} actions=${info && html`
    ${may('append', stream) && html`<${Append} stream=${stream} type=${info['content-type']} closed=${closed} />
    <${Confirm} label="Close" title=${`Close ${stream}?`} text=${`Nothing can be appended to a closed stream. The ${readers} that follow it now learn that it has ended.`} disabled=${closed}
      run=${() => api.post(address(stream), undefined, {headers: {'Stream-Closed': 'true', 'Content-Type': info['content-type']}})} done=${again} />`}
    ${may('manage', stream) && html`<${Confirm} label="Trim" title=${`Trim ${stream}?`} text=${`The ${size} that are stored now are deleted; new data is appended after them.`} danger
      run=${() => api.post('/v1/streams/trim', {stream, before: info['stream-next-offset']})} done=${again} />
    <${Confirm} label="Delete" danger title=${`Delete ${stream}?`} text=${`The stream and its data (${size}) are deleted; ${readers} that follow it now get an error.${figures.forks ? ` ${f.plural(figures.forks, 'fork')} keep what they have in common with it.` : ''}`}
      run=${() => api.del(address(stream))} done=${() => go(to('streams'))} />`}`}>
    ${error && html`<${Failure} error=${error.status === 404 ? new api.ApiError(404, 'NOT_FOUND', 'There is no such stream, or it was deleted.') : error} />`}
    ${!info && !error && html`<${Section}><${Loading} lines=${2} /><//>`}
    ${info && html`<${Section}><${Figures} items=${[['size', size], ['readers', f.count(figures.readers), 'that follow it now'], ['producers', f.count(figures.producers)],
      ['forks', f.count(figures.forks)], figures.forked_from && ['forked from', figures.forked_from, '', toStream(figures.forked_from)],
      ['last write', html`<${Time} at=${figures.last_write} />`], ['expires', html`<${Time} at=${figures.expires_at || info['stream-expires-at']} />`]]} /><//>
    ${may('read', stream) && html`<${Follow} key=${`${stream}/${round}`} stream=${stream} isText=${!info['content-type'].includes('json')} />`}
    <${Writers} stream=${stream} />`}
  <//>`
}

const Writers = ({stream}) => {
  const {data} = useCall('/v1/producers' + api.query({stream, limit: 50}), {everyMs: 10000, on: {stream}})
  if (!data?.producers.length) return null
  return html`<${Section} title="Producers"><${Table} label="Producers" rows=${data.producers} keyOf=${(row) => row.producer} columns=${[
    {label: 'producer', cell: (row) => row.producer}, {label: 'epoch', cell: (row) => f.count(row.epoch), end: true},
    {label: 'sequence', cell: (row) => f.count(row.seq), end: true}, {label: 'last write', cell: (row) => html`<${Time} at=${row.last_write} />`, end: true}]} /><//>`
}

const Append = ({stream, type, closed}) => html`<${Action} label="Append" disabled=${closed}>${(close) => html`
  <${Dialog} title=${`Append to ${stream}`} submit="Append" onClose=${close} onSubmit=${(form) =>
    api.post(address(stream), form.get('data'), {headers: {'Content-Type': type}})}>
    <${Input} label=${type} name="data" area required /><//>`}<//>`

function useVisible() {
  const [visible, setVisible] = useState(!document.hidden)
  useEffect(() => {
    const turn = () => setVisible(!document.hidden)
    document.addEventListener('visibilitychange', turn)
    return () => document.removeEventListener('visibilitychange', turn)
  }, [])
  return visible
}

// Reads from the start and then follows, so a stream of tokens appears as it is written.
const Follow = ({stream, isText}) => {
  const [state, setState] = useState({text: '', status: 'connecting', cut: false})
  const [live, setLive] = useState(true)
  const box = useRef(null)
  const visible = useVisible()
  const kept = useRef({offset: '-1', text: ''})
  useEffect(() => {
    if (!live || !visible) return undefined
    const controller = new AbortController()
    let {offset, text} = kept.current
    const run = async () => {
      while (!controller.signal.aborted) {
        try {
          for await (const event of api.events(`${address(stream)}?offset=${encodeURIComponent(offset)}&live=sse`, controller.signal)) {
            if (event.event === 'control') {
              const control = JSON.parse(event.data)
              offset = control.streamNextOffset ?? offset
              kept.current = {offset, text}
              if (control.streamClosed) {
                setState((before) => ({...before, status: 'closed'}))
                return
              }
              setState((before) => ({...before, status: control.upToDate ? 'live' : 'reading'}))
            } else {
              text += isText ? event.data : JSON.parse(event.data).map((record) => `${JSON.stringify(record)}\n`).join('')
              if (text.length > KEPT_CHARACTERS) text = text.slice(-KEPT_CHARACTERS)
              setState((before) => ({...before, text, cut: text.length >= KEPT_CHARACTERS}))
            }
          }
        } catch (failure) {
          if (failure.name === 'AbortError') return
          if (failure.status === 404 || failure.status === 410 || failure.status === 403) {
            setState((before) => ({...before, status: failure.message}))
            return
          }
        }
        await new Promise((resolve) => setTimeout(resolve, 1000))
      }
    }
    run()
    return () => controller.abort()
  }, [stream, live && visible])
  const atEnd = useRef(true)
  useEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight
  }, [state.text])
  const scrolled = ({target}) => {
    atEnd.current = target.scrollHeight - target.scrollTop - target.clientHeight < 20
  }
  return html`<${Section} title="Content" note=${html`<span role="status"><${Badge} state=${state.status}>${state.status}<//></span>`}
    actions=${html`<${Check} label="follow" checked=${live} onChange=${(event) => setLive(event.target.checked)} />`}>
    ${state.cut && html`<p class="faint">Only the end is shown.</p>`}
    <pre class="follow" ref=${box} tabindex="0" onScroll=${scrolled} aria-label="Content of the stream">${state.text || ' '}</pre><//>`
}
