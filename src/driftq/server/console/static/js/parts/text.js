// Small pieces of text: times, links, badges, figures, payloads. All text goes through Preact, which inserts it as text
// and never as markup.

import {html, useEffect, useState} from '../../vendor/htm-preact.mjs'
import * as f from '../format.js'

// One timer for all times of the page.
const ticking = new Set()
setInterval(() => {
  if (!document.hidden) for (const tick of ticking) tick()
}, 1000)

function useAgo(at) {
  const [text, setText] = useState(() => f.ago(at))
  useEffect(() => {
    const tick = () => setText(f.ago(at))
    tick()
    ticking.add(tick)
    return () => ticking.delete(tick)
  }, [at])
  return text
}

const Ago = ({at}) => html`<time title=${f.exact(at)} datetime=${f.iso(at)}>${useAgo(at)}</time>`

export const None = () => html`<span class="faint">–</span>`

export const Time = ({at}) => (at ? html`<${Ago} at=${at} />` : html`<${None} />`)

export const Exact = ({at}) => (at ? html`<time title=${f.exact(at)} datetime=${f.iso(at)}>${f.local(at)}</time>` : html`<${None} />`)

// A sentence of the broker, with its times in the reader's zone.
const INSTANT = /(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d))/

export const Sentence = ({text}) => text.split(INSTANT).map((part, index) => (index % 2 ? html`<${Exact} at=${part} />` : part))

export const Link = ({to, children, ...rest}) => html`<a href=${to} ...${rest}>${children}</a>`

const TONES = {
  ready: 'ok', running: 'busy', succeeded: 'ok', acked: 'ok', ok: 'ok', open: 'ok', shipping: 'ok', done: 'ok', exact: 'ok', live: 'ok', active: 'ok',
  scheduled: 'wait', retrying: 'warn', delayed: 'wait', resting: 'warn', waiting: 'warn', paused: 'warn', held: 'busy', leased: 'busy',
  draining: 'warn', warning: 'warn', idle: 'wait', dead: 'bad', failed: 'bad', critical: 'bad', failing: 'bad', error: 'bad',
  lost: 'bad', cancelled: 'wait', closed: 'wait', expired: 'wait', notice: 'wait', denied: 'bad', refused: 'bad',
}

export const Badge = ({state, children}) =>
  html`<span class=${`badge ${TONES[state] || 'wait'}`}>${children || state}</span>`

export const Empty = ({title, children}) => html`<div class="empty">${title && html`<strong>${title}</strong>`}<div>${children}</div></div>`

// A command of the shell, with a button that copies it.
export const Command = ({children}) => html`<div class="command"><code tabindex="0">${children}</code><${Copy} text=${children}>copy<//></div>`

export const Loading = ({lines = 4}) => html`<div class="skeleton" aria-hidden="true">${Array.from({length: lines}, () => html`<i></i>`)}</div>`

const TITLES = {0: 'Cannot be reached', 403: 'Not allowed', 404: 'Not found'}

export const Failure = ({error}) => html`<div class="failure" role="alert"><strong>${TITLES[error.status] || 'Failed'}</strong>
  <span>${error.message}</span></div>`

export const Page = ({title, subtitle, badge, actions, crumbs, children}) => {
  useEffect(() => {
    document.title = `${title} · DriftQ`
  }, [title])
  return html`<header class="page">
      <div class="titles">
        ${crumbs && html`<nav class="crumbs" aria-label="Where this is">${crumbs.map(([label, to], index) =>
          html`${index > 0 && html`<span aria-hidden="true">/</span>`}<${Link} to=${to}>${label}<//>`)}</nav>`}
        <div class="headline"><h1 tabindex="-1">${title}</h1>${badge}${subtitle && html`<span class="subtitle">${subtitle}</span>`}</div>
      </div>
      <div class="actions">${actions}</div>
    </header>${children}`
}

export const Section = ({title, note, actions, wide, children}) => html`<section class=${wide ? 'card wide' : 'card'}>
  ${(title || actions) && html`<div class="cardhead">${title && html`<h2>${title}</h2>`}${note && html`<span class="faint">${note}</span>`}
    <span class="spring"></span>${actions && html`<div class="actions">${actions}</div>`}</div>`}${children}</section>`

// [label, value, hint?, address?, tone?]
export const Figures = ({items}) => html`<dl class="figures">${items.filter(Boolean).map(([label, value, hint, to, tone]) =>
  html`<div class=${tone || ''}><dt title=${hint || ''}>${label}</dt><dd title=${hint || ''}>${to ? html`<${Link} to=${to}>${value}<//>` : value}</dd></div>`)}</dl>`

export const Fields = ({items}) => html`<dl class="fields">${items.filter((item) => item && item[1] !== undefined && item[1] !== ''
  && item[1] !== null && item[1] !== false).map(([label, value]) => html`<div><dt>${label}</dt><dd>${value}</dd></div>`)}</dl>`

// Words of JSON in colours: keys, texts, numbers and the rest.
const JSON_PART = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g
const COLOURED_MAX = 20000

function coloured(text) {
  const parts = []
  let end = 0
  for (const match of text.matchAll(JSON_PART)) {
    parts.push(text.slice(end, match.index))
    if (match[1] !== undefined) parts.push(html`<span class=${match[2] !== undefined ? 'jkey' : 'jtext'}>${match[1]}</span>`, match[2] || '')
    else parts.push(html`<span class=${match[3] !== undefined ? 'jnumber' : 'jword'}>${match[0]}</span>`)
    end = match.index + match[0].length
  }
  return [...parts, text.slice(end)]
}

// A value as JSON, text or bytes, with a button that copies it.
export const Payload = ({text, base64, label = 'value'}) => {
  const [raw, setRaw] = useState(false)
  const pretty = base64 ? null : f.pretty(text ?? '')
  const isJson = pretty !== null && f.isJson(text)
  const shown = base64 ? f.hexDump(base64) : raw || !isJson ? text ?? '' : pretty.length <= COLOURED_MAX ? coloured(pretty) : pretty
  const size = base64 ? atob(base64).length : new Blob([text ?? '']).size
  return html`<figure class="payload"><figcaption><span>${label}</span>
    <span class="faint">${base64 ? 'bytes' : isJson ? 'JSON' : 'text'} · ${f.bytes(size)}</span><span class="spring"></span>
    ${isJson && html`<button type="button" class="quiet" onClick=${() => setRaw(!raw)}>${raw ? 'indented' : 'as it is'}</button>`}
    <${Copy} text=${base64 || text || ''}>copy<//></figcaption><pre tabindex="0" aria-label=${label}>${shown}</pre></figure>`
}

export const Copy = ({text, children, button}) => {
  const [done, setDone] = useState(false)
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text)
    } catch {
      const area = Object.assign(document.createElement('textarea'), {value: text})
      document.body.append(area)
      area.select()
      document.execCommand('copy')
      area.remove()
    }
    setDone(true)
    setTimeout(() => setDone(false), 1500)
  }
  return html`<button type="button" class=${button ? '' : 'quiet'} onClick=${copy}>${done ? 'copied' : children}</button>`
}

// A share as a bar. `tone`: ok, busy, warn or bad.
export const Bar = ({share, label, tone = 'busy'}) => html`<svg class=${`bar ${tone}`} viewBox="0 0 100 6" preserveAspectRatio="none" role="img"
  aria-label=${label || f.percent(share)}><title>${label || f.percent(share)}</title><rect class="whole" width="100" height="6"></rect>
  <rect class="part" width=${Math.max(share > 0 ? 1.5 : 0, Math.min(1, share || 0) * 100)} height="6"></rect></svg>`
