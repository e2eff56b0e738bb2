// Dead letters: which kinds of errors, how many, since when, of whom; sending them back, deleting and exporting them.

import {html, useEffect, useRef, useState} from '../../vendor/htm-preact.mjs'
import {may, mayDeleteLetters, mayRedrive} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {
  Action, Bar, Check, Confirm, Dialog, Empty, Failure, Filters, Input, Link, Loading, More, Page, Payload, Section, Table, Time, usePages,
} from '../ui.js'

const STEP = 200 // letters of one call of a redrive that is watched
const PART = 10000 // letters of one call that counts or deletes
const WAIT_MS = 300 // for kinds of errors that are counted for the first time since a start
const AGAIN_MS = 100

export const DeadLetters = () => {
  const pages = usePages('/v1/dlq?limit=500', 'topics', {everyMs: 5000, on: {topic: true}})
  const most = Math.max(1, ...pages.items.map((row) => row.dead_letters))
  return html`<${Page} title="Dead letters" subtitle=${pages.reply ? f.plural(pages.reply.total, 'letter') : ''}>
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Topics with dead letters" rows=${pages.items} keyOf=${(row) => row.topic} columns=${[
      {label: 'topic', cell: (row) => html`<${Link} to=${to('dead-letters', row.topic)}>${row.topic}<//>`, sort: (row) => row.topic},
      {label: 'letters', cell: (row) => f.count(row.dead_letters), sort: (row) => row.dead_letters, end: true},
      {label: '', cell: (row) => html`<${Bar} share=${row.dead_letters / most} tone="bad" label=${f.plural(row.dead_letters, 'letter')} />`},
      {label: 'last died', cell: (row) => html`<${Time} at=${row.last_at} />`, sort: (row) => row.last_at || '', end: true}]} />
      <${More} pages=${pages} noun="topics" /><//>
      ${pages.items.length <= 5 && pages.items.map((row) => html`<${Section} key=${row.topic} title=${html`<${Link} to=${to('dead-letters', row.topic)}>${row.topic}<//>`} note="its most frequent errors">
        <${Kinds} topic=${row.topic} limit=${5} /><//>`)}`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title="No message has become a dead letter">A message that fails too often, or that a worker rejects, is moved out of the
      way. It is kept here with its error until it is sent back.<//>`}
  <//>`
}

const Kinds = ({topic, limit = 50, refresh, setKinds}) => {
  const kinds = usePages(api.path`/v1/dlq/${topic}/errors` + `?limit=${limit}&wait_ms=${WAIT_MS}`, 'errors', {everyMs: 10000, on: {topic: `dlq.${topic}`}})
  useEffect(() => {
    setKinds?.(kinds)
    const timer = kinds.reply?.complete === false && !document.hidden && setTimeout(kinds.refresh, AGAIN_MS)
    return () => clearTimeout(timer)
  }, [kinds.items])
  const most = Math.max(1, ...kinds.items.map((row) => row.count))
  if (kinds.error) return html`<${Failure} error=${kinds.error} />`
  if (!kinds.done) return html`<${Loading} />`
  const {complete, counted, total} = kinds.reply
  const progress = !complete && html`<p class="faint" role="status">Counted ${f.count(counted)} of ${f.plural(total, 'letter')} so far, for the first time since the broker
    started. <${Bar} share=${counted / Math.max(1, total)} tone="ok" /></p>`
  if (progress && !kinds.items.length) return progress
  if (!kinds.items.length) return html`<${Empty}>No dead letter waits here.<//>`
  return html`${progress}<${Table} label=${`Kinds of errors of ${topic}`} rows=${kinds.items} keyOf=${(row) => `${row.group}/${row.reason}/${row.error}`} columns=${[
      {label: 'letters', cell: (row) => html`<${Link} to=${to('dead-letters', topic, kindOf(row))}>${f.count(row.count)}<//>`, sort: (row) => row.count, end: true},
      {label: '', cell: (row) => html`<${Bar} share=${row.count / most} tone="bad" label=${f.plural(row.count, 'letter')} />`},
      {label: 'error', wide: true, cell: (row) => html`<details><summary>${row.error || '(no text)'}</summary><${Payload} label="one of them" text=${row.example} /></details>`},
      {label: 'reason', cell: (row) => row.reason.replaceAll('_', ' '), sort: (row) => row.reason}, {label: 'group', cell: (row) => html`<${Link} to=${to('groups', topic, row.group)}>${row.group}<//>`, sort: (row) => row.group},
      kinds.items.some((row) => row.tenants?.length) && {label: 'tenants', cell: (row) => html`<span class="clip short" title=${(row.tenants || []).join(', ')}>${(row.tenants || []).join(', ')}</span>`},
      {label: 'first', cell: (row) => html`<${Time} at=${row.first_at} />`, sort: (row) => row.first_at || ''},
      {label: 'last', cell: (row) => html`<${Time} at=${row.last_at} />`, sort: (row) => row.last_at},
      refresh && {label: '', acts: true, cell: (row) => html`${mayRedrive(topic) && html`<${Redrive} quiet label="Send back"
        topic=${topic} filter=${kindOf(row)} refresh=${refresh} /> · `}${mayDeleteLetters(topic) && html`<${DeleteLetters} quiet label="Delete"
        topic=${topic} filter=${kindOf(row)} refresh=${refresh} />`}`}]} />
    <${More} pages=${kinds} noun="kinds" />`
}

const kindOf = (row) => ({group: row.group, reason: row.reason, kind: row.error})

export const TopicDeadLetters = ({topic, query}) => {
  const kinds = useRef(null)
  const filter = clean({group: query.group, kind: query.kind, error: query.error, reason: query.reason})
  const letters = usePages(api.path`/v1/dlq/${topic}` + api.query({limit: 50, ...filter}), 'messages', {everyMs: 10000, on: {topic: `dlq.${topic}`}})
  const refresh = () => {
    kinds.current?.refresh()
    letters.refresh()
  }
  const chosen = Object.keys(filter).length > 0
  return html`<${Page} title=${`Dead letters of ${topic}`} crumbs=${[['Dead letters', to('dead-letters')], [topic, to('topics', topic)]]}
    actions=${html`${mayRedrive(topic) && html`<${Redrive} label=${chosen ? 'Send back all that fit' : 'Send back'} primary topic=${topic} filter=${filter} refresh=${refresh} />`}
      ${may('read', `dlq.${topic}`) && html`<${ExportLetters} label=${chosen ? 'Export all that fit' : 'Export'} topic=${topic} filter=${filter} />`}
      ${mayDeleteLetters(topic) && html`<${DeleteLetters} label=${chosen ? 'Delete all that fit' : 'Delete all'} topic=${topic} filter=${filter} refresh=${refresh} />`}`}>
    <${Section} title="Kinds of errors" note="numbers, ids and quoted parts are replaced by …">
      <${Kinds} topic=${topic} refresh=${refresh} setKinds=${(pages) => {
        kinds.current = pages
      }} /><//>
    <${Section} title="Letters">
      <${Filters} values=${query} onChange=${(values) => go(to('dead-letters', topic, values))} fields=${[
        {name: 'error', label: 'error contains', type: 'search'}, {name: 'reason', label: 'reason', type: 'search'}, {name: 'group', label: 'group', type: 'search'}]}>
        ${chosen && html`<${Link} to=${to('dead-letters', topic)}>show all<//>`}<//>
      ${letters.error && html`<${Failure} error=${letters.error} />`}
      ${!letters.done && html`<${Loading} lines=${6} />`}
      ${letters.items.length > 0 && html`<${Table} label="Letters" rows=${letters.items} keyOf=${(row) => `${row.partition}/${row.offset}`} columns=${[
        {label: 'letter', cell: (row) => html`<${Link} to=${to('topics', `dlq.${topic}`, row.partition, row.offset)}>${row.partition}/${row.offset}<//>`},
        {label: 'died', cell: (row) => html`<${Time} at=${row.dlq?.dead_at} />`},
        {label: 'error', cell: (row) => html`<span class="clip" title=${row.dlq?.last_error || ''}>${(row.dlq?.last_error || '').trim().split('\n').at(-1)}</span>`},
        {label: 'key', cell: (row) => html`<span class="mono clip short">${row.key}</span>`},
        {label: 'value', cell: (row) => html`<span class="mono clip short">${row.value_base64 ? `${f.bytes(atob(row.value_base64).length)}, not text` : row.value.slice(0, 200)}</span>`},
        {label: 'group', cell: (row) => row.dlq?.group}, {label: 'attempts', cell: (row) => row.dlq?.attempts, end: true}, {label: 'tenant', cell: (row) => row.envelope?.tenant_id || ''},
        mayDeleteLetters(topic) && {label: '', acts: true, cell: (row) => html`${mayRedrive(topic) && html`<${Redrive} quiet label="Edit, send back" topic=${topic} letter=${row} filter=${only(row)} refresh=${refresh} /> · `}<${DeleteLetters} quiet label="Delete" topic=${topic} filter=${only(row)} refresh=${refresh} />`}]} />
      <${More} pages=${letters} noun="letters" />`}
      ${letters.done && !letters.items.length && !letters.error && html`<${Empty}>No letter fits.<//>`}
    <//>
  <//>`
}

const only = (letter) => ({offsets: [[letter.partition, letter.offset]]})

const clean = (filter) => Object.fromEntries(Object.entries(filter).filter(([, value]) => value))

// Which letters a filter means, in words.
function meaning({offsets, ...filter}) {
  if (offsets) return `The letter ${offsets[0].join('/')}.`
  const named = Object.entries(filter).map(([name, value]) => `${name} “${value}”`)
  return named.length ? `Letters with ${named.join(', ')}.` : 'All letters of this topic.'
}

// --- deleting and exporting ---

const DeleteLetters = ({label, quiet, topic, filter, refresh}) => html`<${Confirm} label=${label} quiet=${quiet} danger title=${`Delete dead letters of ${topic}?`} text=${meaning(filter)}
  preview=${(signal) => deleteLetters(topic, {...filter, dry_run: true}, {signal})}
  explain=${({matched}) => `${f.plural(matched, 'letter')} will be deleted. ${matched === 1 ? 'It' : 'They'} cannot be sent back any more.`}
  run=${({matched}, signal) => deleteLetters(topic, filter, {signal, limit: matched})} done=${refresh} />`

async function deleteLetters(topic, body, {signal, limit}) {
  let matched = 0
  for await (const reply of api.parts(api.path`/v1/dlq/${topic}/delete`, body, {limit, part: PART})) {
    matched += reply.matched
    if (signal.aborted) break
  }
  return {matched}
}

const ExportLetters = ({label, topic, filter}) => html`<${Confirm} label=${label} title=${`Export dead letters of ${topic}?`}
  text=${`${meaning(filter)} Each becomes a line of JSON in a file, which “driftq produce --ndjson” reads back. They stay here.`}
  run=${() => download(api.path`/v1/dlq/${topic}/export` + api.query(filter), `dlq.${topic}.ndjson`)} />`

const TAIL_BYTES = 4096 // longer than the line of an error

// A link could not send the token, so the file is made here. The broker may find damage when it has sent lines already: then its
// last line says so.
async function download(url, name) {
  const response = await api.request('GET', url, undefined, {raw: true})
  const file = await response.blob()
  const damage = errorOf((await file.slice(-TAIL_BYTES).text()).trimEnd().split('\n').at(-1))
  if (damage) throw new Error(damage)
  const address = URL.createObjectURL(file)
  Object.assign(document.createElement('a'), {href: address, download: name}).click()
  setTimeout(() => URL.revokeObjectURL(address), 60000)
}

function errorOf(line) {
  try {
    const {error, message} = JSON.parse(line)
    return error && message
  } catch {
    return null // nothing, or the end of a long letter
  }
}

// --- sending back ---

const Redrive = ({label, quiet, primary, ...rest}) => html`<${Action} label=${label} quiet=${quiet} primary=${primary}>${(close) => html`<${RedriveDialog} ...${rest} close=${close} />`}<//>`

// First a dry run that counts. Then many are sent in small calls at a rate, which can be stopped at any time, and which
// stop by themselves when letters die again.
const RedriveDialog = ({topic, filter, letter, refresh, close}) => {
  const [state, setState] = useState({step: 'form'})
  const stopped = useRef(false)
  useEffect(() => () => {
    stopped.current = true
  }, [])
  const leave = () => {
    stopped.current = true
    close()
    if (state.step === 'done' || state.step === 'running') refresh()
  }
  const path = api.path`/v1/dlq/${topic}/redrive`
  const request = (form) => {
    const body = {...filter, limit: Number(form.get('limit') || 1), rate_per_s: Number(form.get('rate') || 0), all_groups: form.get('all_groups') === 'on'}
    if (form.get('to_topic').trim()) body.to_topic = form.get('to_topic').trim()
    if (letter && form.get('value') !== null && form.get('value') !== letter.value) body.value = form.get('value')
    if (letter && form.get('key') !== null && form.get('key') !== letter.key) body.key = form.get('key')
    return body
  }
  const submit = async (form) => {
    if (state.step === 'form') {
      const body = request(form)
      const stop = form.get('stop') === 'on'
      const reply = await api.post(path, {...body, dry_run: true})
      setState({step: 'preview', request: body, reply, stop})
    } else if (state.step === 'preview') {
      await sendBack({topic, path, request: state.request, whole: state.reply.matched, stop: state.stop, stopped, show: (part) => setState((before) => ({...before, ...part}))})
    }
    return 'stay'
  }
  const {request: body, reply, step} = state
  const edited = body && (body.value !== undefined || body.key !== undefined)
  return html`<${Dialog} wide=${!!letter} title=${letter ? `Send back letter ${letter.partition}/${letter.offset}` : `Send back dead letters of ${topic}`} onClose=${leave} onSubmit=${submit}
    submit=${{form: 'Dry run', preview: 'Send back'}[step]} disabled=${step === 'preview' && !reply.matched}>
    ${step === 'form' && html`
      ${!letter && html`<p>${meaning(filter)}</p>
        <${Input} label="At most" name="limit" type="number" min="1" max="1000000" value="1000" />
        <${Input} label="Per second" name="rate" type="number" min="0" value="50" hint="0: as fast as it can." />
        <${Check} label="Stop when letters die again" name="stop" checked />`}
      ${letter && !letter.value_base64 && html`<${Input} label="Value" name="value" area value=${f.pretty(letter.value) === letter.value ? letter.value : letter.value} /><${Input} label="Key" name="key" value=${letter.key} />`}
      <${Input} label="To topic" name="to_topic" maxlength="249" hint=${`Empty: back to ${topic}. Otherwise they are moved there, for all groups.`} />
      <div><${Check} label="To every group of the topic, not only to the one in which it died" name="all_groups" /></div>`}
    ${step === 'preview' && html`<p class="preview">${`${f.plural(reply.matched, 'letter')} will be ${outcomeOf(body)}${body.all_groups && !body.to_topic ? ', to every group' : ''}.`}</p>
      ${edited && html`<${Diff} before=${`${letter.key}\n${f.pretty(letter.value)}`} after=${`${body.key ?? letter.key}\n${f.pretty(body.value ?? letter.value)}`} />`}`}
    ${(step === 'running' || step === 'done') && html`<p class="preview" role="status">${`${f.plural(state.sent, 'letter')} ${outcomeOf(body)}${step === 'running' ? ` of ${f.count(reply.matched)}` : ''}${
        state.again ? `; ${f.count(state.again)} died again, so it was stopped` : ''}${state.failed.length ? `; ${f.count(state.failed.length)} could not be sent:` : '.'}`}</p>
      ${step === 'running' && html`<p><${Bar} share=${state.sent / Math.max(1, reply.matched)} tone="ok" /> <button type="button" class="danger" onClick=${() => {
        stopped.current = true
      }}>Stop</button></p>`}
      ${state.failed.length > 0 && html`<ul>${state.failed.slice(0, 20).map((row) => html`<li>${row.partition}/${row.offset}: ${row.message}</li>`)}</ul>`}`}
  <//>`
}

const outcomeOf = ({to_topic: other}) => (other ? `moved to ${other}` : 'sent back')

// How many letters there are in all: more than expected means that some died again.
const waiting = async (topic) => (await api.get(api.path`/v1/topics/${topic}`)).dead_letters

async function sendBack({topic, path, request, whole, stop, stopped, show}) {
  let sent = 0
  let again = 0
  const failed = []
  const before = await waiting(topic)
  const perCall = request.rate_per_s ? Math.max(1, Math.min(STEP, request.rate_per_s)) : STEP
  while (sent + failed.length < whole && !stopped.current) {
    show({step: 'running', sent, failed, again})
    const reply = await api.post(path, {...request, limit: Math.min(perCall, whole - sent - failed.length)})
    sent += reply.redriven
    failed.push(...reply.failed)
    again = Math.max(0, (await waiting(topic)) - (before - sent))
    if (!reply.redriven || reply.failed.length || (stop && again)) break
  }
  show({step: 'done', sent, failed, again: stop ? again : 0})
}

// --- a diff by lines ---

function diffOf(before, after) {
  const [a, b] = [before.split('\n'), after.split('\n')]
  const lengths = Array.from({length: a.length + 1}, () => new Uint32Array(b.length + 1))
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1])
  }
  const rows = []
  let [i, j] = [0, 0]
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      rows.push(['', a[i]])
      i += 1
      j += 1
    } else if (i < a.length && (j >= b.length || lengths[i + 1][j] >= lengths[i][j + 1])) rows.push(['minus', a[i++]])
    else rows.push(['plus', b[j++]])
  }
  return rows
}

const LINES_MAX = 1000

const Diff = ({before, after}) => {
  const small = before.split('\n').length <= LINES_MAX && after.split('\n').length <= LINES_MAX
  const rows = small ? diffOf(before, after) : [['minus', before], ['plus', after]]
  return html`<div class="diff" tabindex="0" role="group" aria-label="What changes">${rows.map(([kind, line]) =>
    html`<div class=${kind}>${{minus: '− ', plus: '+ '}[kind] || '  '}${line}</div>`)}</div>`
}
