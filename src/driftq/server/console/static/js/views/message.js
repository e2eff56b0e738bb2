// One message: what it is, what happened to it, and why it is not running, as a row of gates.

import {html, useRef} from '../../vendor/htm-preact.mjs'
import {may, mayRedrive} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {to} from '../location.js'
import {Badge, Confirm, Copy, Exact, Failure, Fields, Link, Loading, Page, Payload, Section, Sentence, Table, Time, useCall} from '../ui.js'

export const Message = ({topic, partition, offset}) => {
  const path = api.path`/v1/topics/${topic}/partitions/${partition}/messages` + api.query({offset, limit: 1})
  const message = useCall(path)
  const found = message.data?.messages.find((row) => String(row.offset) === offset)
  const id = found?.job?.id
  const tenant = found?.envelope?.tenant_id
  const name = id || `${topic}:${partition}:${offset}`
  const job = useCall(found ? api.path`/v1/jobs/${topic}/${name}` + api.query({tenant_id: tenant}) : null, {everyMs: 2000, on: {topic}})
  const state = job.data && retryState(job.data)
  const gates = useRef(null)
  const refresh = () => {
    job.refresh()
    gates.current?.()
  }
  return html`<${Page} title=${`Message ${offset}`} subtitle=${`partition ${partition} of ${topic}`}
    crumbs=${[['Topics', to('topics')], [topic, to('topics', topic)], [`partition ${partition}`, to('topics', topic, {partition})]]}
    actions=${html`${found && html`<${Copy} button text=${curlOf(topic, found)}>Copy as curl<//>`}
      ${mayRetry(topic, state) && html`<${RetryJob} ...${{topic, id: name, tenant, state, refresh}} />`}
      ${id && may('produce', topic) && !ENDED.includes(job.data?.state) && html`<${CancelJob} topic=${topic} id=${id} tenant=${tenant} refresh=${refresh} />`}`}>
    <${Gates} ...${{topic, partition, offset}} again=${gates} />
    ${message.error && html`<${Failure} error=${message.error} />`}
    ${found && html`<${Content} topic=${topic} message=${found} />`}
    ${id && html`<${Attempts} topic=${topic} job=${job} />`}
  <//>`
}

// Why it is not running, group by group.
export const Gates = ({topic, partition, offset, again}) => {
  const {data, error, refresh} = useCall('/v1/explain' + api.query({topic, partition, offset}), {everyMs: 2000, on: {topic}})
  if (again) again.current = refresh
  return html`<${Section} title="Why is it not running?">
    ${error && !data && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Loading} lines=${4} />`}
    ${data && html`<${Explanation} topic=${topic} data=${data} />`}<//>`
}

// The call that sends the same message again.
const curlOf = (topic, message) => {
  const {envelope, key, value, value_base64: bytes, job} = message
  const body = {topic, value: value ?? '', ...(bytes ? {value_base64: bytes, value: undefined} : {}), ...(key ? {key} : {}), ...(envelope ? {envelope} : {}), ...(job?.task ? {task: job.task} : {})}
  return f.curl('POST', '/v1/produce', body, !!api.token.get())
}

export const CancelJob = ({topic, id, tenant, refresh}) => html`<${Confirm} label="Cancel" danger title=${`Cancel job ${id}?`}
  text="This is one job. It will not be delivered any more; a worker that runs it now learns it at its next heartbeat."
  run=${() => api.post(api.path`/v1/jobs/${topic}/${id}/cancel` + api.query({tenant_id: tenant}), {})} done=${refresh} />`

// --- retry now ---

export const WAITING = ['retrying', 'scheduled']
export const ENDED = ['succeeded', 'dead', 'cancelled', 'finished']

export const mayRetry = (topic, state) => may('produce', topic) && (WAITING.includes(state) || (state === 'dead' && mayRedrive(topic)))

// What a retry would change: some group may wait although another one has it, or has done it.
export const retryState = ({state, groups}) => groups.find((group) => WAITING.includes(group.state))?.state || state

export const RetryJob = ({topic, id, tenant, state, refresh}) => html`<${Confirm} label="Retry now" title=${`Retry ${id} now?`}
  text=${state === 'dead' ? 'This is one job. Its dead letter is sent back to the group in which it died.' : 'This is one job. It is due at once, for every group in which it waits.'}
  run=${async () => {
    const reply = await api.post(api.path`/v1/jobs/${topic}/${id}/retry` + api.query({tenant_id: tenant}), {})
    if (!reply.retried) throw new Error(`It is ${reply.state}: it waits for no time, and it has no dead letter that could be sent back.`)
  }} done=${refresh} />`

// --- gates ---

// What a message passes on its way to a worker, in this order. The broker names the gates that are shut.
const WAY = [
  {gates: ['not_produced', 'retention'], title: 'stored', open: 'is in the topic'},
  {gates: ['deadline'], title: 'deadline', open: 'has not passed'},
  {gates: ['delayed'], title: 'delay', open: 'its time has come'},
  {gates: ['paused'], title: 'group', open: 'is not paused'},
  {gates: ['resting'], title: 'backoff', open: 'it does not wait for a retry'},
  {gates: ['filter'], title: 'task and label', open: 'the claim asks for it'},
  {gates: ['in_flight'], title: 'in flight', open: 'there is room for more'},
  {gates: ['leased', 'lease_ended'], title: 'lease', open: 'no worker holds it'},
]

const Gate = ({post, gate, isAfter}) => html`<li class=${`gate ${gate ? (gate.opens_at ? 'timed' : 'shut') : isAfter ? 'after' : 'open'}`}>
  <span class="mark" aria-hidden="true">${gate ? (gate.opens_at ? '◷' : '✕') : isAfter ? '·' : '✓'}</span>
  <strong>${gate && !post.gates.includes(gate.gate) ? gate.gate.replaceAll('_', ' ') : post.title}</strong>
  <small>${gate ? html`<${Sentence} text=${gate.why} />` : isAfter ? '' : post.open}</small>
  ${gate && html`<small>${gate.opens_at ? html`opens <${Time} at=${gate.opens_at} />, when ${gate.opens_when}` : `opens ${gate.opens_when === 'never' ? 'never' : `when ${gate.opens_when}`}`}</small>`}</li>`

const End = ({reached, text}) => html`<li class=${`gate ${reached ? 'open' : 'after'}`}><span class="mark" aria-hidden="true">${reached ? '✓' : '·'}</span>
  <strong>worker</strong><small>${text}</small></li>`

function Way({shared, group, topic}) {
  const shut = [...shared, ...(group?.gates || [])]
  const unknown = shut.filter((gate) => !WAY.some((post) => post.gates.includes(gate.gate)))
  const posts = [...WAY, ...unknown.map((gate) => ({gates: [gate.gate], title: gate.gate.replaceAll('_', ' ')}))]
  const first = posts.findIndex((post) => shut.some((gate) => post.gates.includes(gate.gate)))
  return html`<ol class="gates" tabindex="0" aria-label=${`The way of this message to a worker${group ? ` of ${group.group}` : ''}`}>
    ${posts.map((post, index) => html`<${Gate} key=${post.title} post=${post} gate=${shut.find((gate) => post.gates.includes(gate.gate))} isAfter=${first >= 0 && index > first} />`)}
    <${End} reached=${first < 0} text=${first >= 0 ? 'not yet' : group?.ahead > 0 ? `${f.plural(group.ahead, 'message')} of its lane come before it` : 'the next claim gets it'} /></ol>`
}

const Explanation = ({topic, data}) => html`<p class="verdict"><${Sentence} text=${data.summary} /></p>
  ${!data.groups.length && html`<${Way} shared=${data.gates} topic=${topic} />`}
  ${data.groups.map((group) => html`<div class="grouphead" key=${group.group}><${Link} to=${to('groups', topic, group.group)}>${group.group}<//>
      <${Badge} state=${group.settled_as === 'dead letter' ? 'dead' : group.state}>${group.settled_as || group.state}<//>
      <span class="faint">${[group.attempts && f.plural(group.attempts, 'attempt'), group.failures && f.plural(group.failures, 'failure'),
        group.lease_losses && f.plural(group.lease_losses, 'lost lease'), group.releases && `${f.count(group.releases)} times given back`].filter(Boolean).join(' · ')}</span></div>
    ${group.state === 'settled' ? html`<p><${Sentence} text=${group.summary} /></p>` : html`<${Way} shared=${data.gates} group=${group} topic=${topic} />`}
    ${group.last_error && html`<${Payload} label="last error" text=${group.last_error} />`}`)}
  ${data.backlog && html`<p class="faint">The partition is ${f.percent(data.backlog.used)} full for group ${data.backlog.group}.</p>`}`

// --- content ---

export const Content = ({topic, message, place}) => {
  const {envelope, routing, job, dlq} = message
  const tenant = envelope?.tenant_id
  return html`<${Section} title="Content">
    <${Payload} text=${message.value} base64=${message.value_base64} />
    <${Fields} items=${[['message', place], ['produced', html`<${Exact} at=${message.timestamp_ms} />`], ['key', message.key && html`<span class="mono">${message.key}</span>`],
      ['task', job?.task], ['job', job?.id && html`<${Link} to=${to('jobs', topic, job.id, {tenant_id: tenant})}>${job.id}<//>`], ['priority', job?.priority],
      ['not before', job?.not_before_ms && html`<${Exact} at=${job.not_before_ms} />`],
      ['run', envelope?.run_id && html`<${Link} to=${to('runs', envelope.run_id)}>${envelope.run_id}<//>`], ['step', envelope?.step_id], ['parent step', envelope?.parent_step_id],
      ['tenant', tenant], ['idempotency key', envelope?.idempotency_key], ['deadline', envelope?.deadline],
      ['labels', envelope?.labels && Object.entries(envelope.labels).map(([name, value]) => `${name}=${value}`).join(', ')],
      ['retry policy', envelope?.retry_policy && JSON.stringify(envelope.retry_policy)],
      ['cannot be read', message.error && `${message.error}: ${message.message}`]]} />
    ${envelope?.idempotency_key && html`<${Effects} topic=${topic} tenant=${tenant} key_=${envelope.idempotency_key} />`}
    ${routing && html`<${Payload} label="routing decision" text=${JSON.stringify(routing)} />`}
    ${envelope && html`<details><summary class="faint">whole envelope</summary><${Payload} label="envelope" text=${JSON.stringify(envelope)} /></details>`}
    ${dlq && html`<h3>Dead letter</h3><${Fields} items=${[
      ['from', html`<${Link} to=${to('topics', dlq.topic, dlq.partition, dlq.offset)}>${`${dlq.topic} ${dlq.partition}/${dlq.offset}`}<//>`],
      ['group', dlq.group], ['reason', dlq.reason], ['attempts', dlq.attempts], ['lost leases', dlq.lease_losses],
      ['died', html`<${Exact} at=${dlq.dead_at} />`]]} /><${Payload} label="last error" text=${dlq.last_error} />`}
  <//>`
}

// What workers have recorded as done for this message, by the groups that may have.
const Effects = ({topic, tenant, key_: key}) => {
  const groups = useCall(api.path`/v1/topics/${topic}/groups` + '?limit=20')
  return html`${(groups.data?.groups || []).filter(({group}) => may('consume', `${topic}/${group}`)).map(({group}) => html`<${Effect} key=${group} ...${{topic, group, tenant}} key_=${key} />`)}`
}

const Effect = ({topic, group, tenant, key_: key}) => {
  const {data} = useCall('/v1/idempotency' + api.query({topic, group, tenant_id: tenant, key}))
  if (!data) return null
  return html`<${Payload} label=${`effect in ${group}: ${data.status}`} text=${JSON.stringify(data)} />`
}

export const Attempts = ({topic, job: {data, error}}) => {
  if (error && !data) return error.status === 404 ? null : html`<${Failure} error=${error} />`
  if (!data?.groups.length) return null
  return html`<${Section} title="Attempts">${data.groups.map((group) => html`
    <div class="grouphead"><${Link} to=${to('groups', topic, group.group)}>${group.group}<//> <${Badge} state=${group.state} /></div>
    ${group.progress !== undefined && html`<${Payload} label="progress" text=${JSON.stringify(group.progress)} />`}
    ${group.result && html`<${Payload} label="effect" text=${group.result} />`}
    ${group.attempts.length > 0 && html`<${Table} label=${`Attempts of ${group.group}`} rows=${group.attempts} keyOf=${(row) => row.attempt} columns=${[
      {label: 'attempt', cell: (row) => row.attempt}, {label: 'worker', cell: (row) => row.owner},
      {label: 'began', cell: (row) => html`<${Time} at=${row.began_at} />`},
      {label: 'took', cell: (row) => (row.ended_at ? f.duration(f.instant(row.ended_at) - f.instant(row.began_at)) : '…'), end: true},
      {label: 'end', cell: (row) => (row.end ? html`<${Badge} state=${row.end} />` : html`<${Badge} state="running" />`)},
      {label: 'error', wide: true, cell: (row) => (row.error?.includes('\n') ? html`<details><summary>${row.error.trim().split('\n').at(-1)}</summary><pre>${row.error}</pre></details>` : row.error)}]} />`}`)}<//>`
}
