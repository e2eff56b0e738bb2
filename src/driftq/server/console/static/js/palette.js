// The search over everything: names of topics, groups, streams and tenants, runs and views.

import {html, useEffect, useLayoutEffect, useRef, useState} from '../vendor/htm-preact.mjs'
import * as api from './api.js'
import {go, to, toStream} from './location.js'

const EACH = 6
const quiet = (promise) => promise.catch(() => null)

async function find(text, signal) {
  const query = (path, values) => quiet(api.get(path + api.query(values), {signal}))
  const [topics, groups, streams, run] = await Promise.all([
    query('/v1/topics', {details: true, search: text, limit: EACH}), query('/v1/groups', {details: true, search: text, limit: EACH}),
    query('/v1/streams', {prefix: text, limit: EACH}), /^[\w.:-]{2,}$/.test(text) ? quiet(api.get(api.path`/v1/runs/${text}`, {signal})) : null,
  ])
  return [
    ...(topics?.figures || []).map((row) => ({kind: 'topic', name: row.name, to: to('topics', row.name)})),
    ...(groups?.groups || []).map((row) => ({kind: 'group', name: `${row.topic} / ${row.group}`, to: to('groups', row.topic, row.group)})),
    ...(streams?.streams || []).map((row) => ({kind: 'stream', name: row.stream, to: toStream(row.stream)})),
    ...(run ? [{kind: 'run', name: run.run_id, to: to('runs', run.run_id)}] : []),
  ]
}

export const Palette = ({views, onClose}) => {
  const element = useRef(null)
  const [text, setText] = useState('')
  const [found, setFound] = useState([])
  const [chosen, setChosen] = useState(0)
  useLayoutEffect(() => {
    element.current.showModal()
  }, [])
  useEffect(() => {
    if (!text) {
      setFound([])
      return undefined
    }
    const controller = new AbortController()
    const timer = setTimeout(() => find(text, controller.signal).then((rows) => !controller.signal.aborted && setFound(rows)), 120)
    return () => {
      clearTimeout(timer)
      controller.abort()
    }
  }, [text])
  const fitting = views.filter((view) => view.name.toLowerCase().includes(text.toLowerCase()))
  const rows = text ? [...found, ...fitting] : fitting
  const at = Math.min(chosen, rows.length - 1)
  const open = (row) => {
    element.current.close()
    go(row.to)
  }
  const press = (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key]
    if (step) {
      event.preventDefault()
      setChosen((at + step + rows.length) % Math.max(1, rows.length))
    } else if (event.key === 'Enter') {
      event.preventDefault()
      if (rows[at]) open(rows[at])
    }
  }
  return html`<dialog ref=${element} class="palette" onClose=${onClose} aria-label="Search">
    <input type="search" aria-label="Search topics, groups, streams and runs" placeholder="Topic, group, stream, run id or view…" autofocus
      value=${text} role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${rows.length ? `found-${at}` : undefined}
      onInput=${(event) => {
        setText(event.target.value)
        setChosen(0)
      }} onKeyDown=${press} />
    <ul id="found" role="listbox" aria-label="Found">${rows.map((row, index) => html`<li id=${`found-${index}`} role="option" aria-selected=${index === at}
      onClick=${() => open(row)}><span class="faint">${row.kind}</span>${row.name}</li>`)}</ul>
    ${text && !rows.length && html`<p class="faint">Nothing has this name.</p>`}
  </dialog>`
}
