// Jobs: by state, task, tenant and time; one job with its attempts.

import {html, useEffect, useState} from '../../vendor/htm-preact.mjs'
import {may, mayRedrive} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to} from '../location.js'
import {
  Badge, Command, Confirm, Empty, Failure, Filters, Link, Loading, More, Page, Payload, Section, Table, Time, useCall, usePages,
} from '../ui.js'
import {Attempts, CancelJob, Content, ENDED, Gates, mayRetry, RetryJob, retryState, WAITING} from './message.js'

const STATES = ['ready', 'running', 'scheduled', 'retrying', 'unclaimed', 'succeeded', 'dead', 'cancelled', 'finished']
const FILTER = ['topic', 'state', 'task', 'tenant_id', 'since', 'until']

const chosenOf = (query, names) => Object.fromEntries(names.map((name) => [name, query[name]]))
const keyOf = (row) => `${row.topic}/${row.id}`
const instantOf = (text) => (text ? new Date(text).toISOString() : '')

export const Jobs = ({query}) => {
  const [selected, setSelected] = useState(new Set())
  const [outcome, setOutcome] = useState('')
  const filter = chosenOf(query, FILTER)
  const on = {topic: query.topic || true}
  useEffect(() => setOutcome(''), [JSON.stringify(filter)])
  const pages = usePages(`/v1/jobs${api.query({...filter, limit: 100})}`, 'jobs', {everyMs: 5000, on})
  const counts = useCall(`/v1/jobs/counts${api.query({...filter, state: ''})}`, {everyMs: 10000, on})
  const chosen = pages.items.filter((row) => selected.has(keyOf(row)) && may('produce', row.topic))
  const retriable = chosen.filter((row) => mayRetry(row.topic, row.state))
  const done = (sums) => {
    setOutcome(outcomeOf(sums))
    setSelected(new Set())
    pages.refresh()
    counts.refresh()
  }
  const open = (id) => {
    const [topic, ...rest] = id.split('/')
    go(to('jobs', topic, rest.join('/')))
  }
  return html`<${Page} title="Jobs" subtitle=${counts.data && !counts.data.complete ? `counts of the newest ${f.count(counts.data.counted)}` : ''} actions=${query.topic && may('produce', query.topic) && !chosen.length
      && html`${mayRetryAll(query) && html`<${RetryMany} label="Retry all that fit" requests=${[clean(filter)]} done=${done} />`}
        <${CancelMany} label="Cancel all that fit" requests=${[clean(filter)]} done=${done} />`}>
    <${States} query=${query} counts=${counts.data} />
    <${Filters} values=${query} onChange=${({id, from, to: last, ...values}) => (id ? open(id) : go(to('jobs', {...values, since: instantOf(from) || values.since, until: instantOf(last) || values.until})))} fields=${[
      {name: 'topic', label: 'topic', type: 'search'}, {name: 'task', label: 'task', type: 'search'}, {name: 'tenant_id', label: 'tenant', type: 'search'},
      {name: 'from', label: 'created after', type: 'datetime-local'}, {name: 'to', label: 'created before', type: 'datetime-local'},
      {name: 'id', label: 'topic/id', type: 'search', placeholder: 'emails/mail-7'}]}>
      ${FILTER.some((name) => query[name]) && html`<${Link} to=${to('jobs')}>show all<//>`}<//>
    ${outcome && html`<p class="preview" role="status">${outcome}</p>`}
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${8} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Jobs" rows=${pages.items} keyOf=${keyOf} selected=${selected} onSelect=${setSelected} columns=${[
        {label: 'job', cell: (row) => html`<${Link} to=${to('jobs', row.topic, row.id, {tenant_id: row.tenant})}>${row.id}<//>`},
        {label: 'state', cell: (row) => html`<${Badge} state=${row.state} />`, sort: (row) => row.state},
        {label: 'task', cell: (row) => row.task || '', sort: (row) => row.task || ''},
        {label: 'topic', cell: (row) => html`<${Link} to=${to('topics', row.topic)}>${row.topic}<//>`, sort: (row) => row.topic},
        {label: 'created', cell: (row) => html`<${Time} at=${row.created_at} />`, sort: (row) => row.created_at},
        {label: 'due', cell: (row) => row.due_at && html`<${Time} at=${row.due_at} />`, sort: (row) => row.due_at || ''},
        {label: 'attempts', cell: (row) => row.attempts || 0, sort: (row) => row.attempts || 0, end: true},
        {label: 'worker', cell: (row) => row.owner || ''},
        {label: 'error', cell: (row) => html`<span class="clip short" title=${row.error || ''}>${(row.error || '').trim().split('\n').at(-1)}</span>`},
        {label: 'run', cell: (row) => row.run_id && html`<${Link} to=${to('runs', row.run_id)}>${row.run_id}<//>`},
        {label: 'tenant', cell: (row) => row.tenant || '', sort: (row) => row.tenant || ''}]} />
      <${More} pages=${pages} noun="jobs" /><//>
      ${chosen.length > 0 && html`<div class="selection"><strong>${f.plural(chosen.length, 'job')} selected</strong>
        ${retriable.length > 0 && html`<${RetryMany} label=${`Retry ${f.count(retriable.length)}`} requests=${byTopic(retriable)} done=${done} />`}
        <${CancelMany} label=${`Cancel ${f.count(chosen.length)}`} requests=${byTopic(chosen)} done=${done} />
        <button type="button" class="quiet" onClick=${() => setSelected(new Set())}>Select none</button></div>`}`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title=${FILTER.some((name) => query[name]) ? 'No job fits' : 'There is no job yet'}>
      ${pages.after ? 'None of the newest jobs fits; there are older ones. ' : ''}A job is a message with a task, an id, or both:
      <${Command}>driftq jobs enqueue emails '{"user": 7}' --task send_welcome<//>
      <${More} pages=${pages} noun="jobs" /><//>`}
  <//>`
}

// A job's states as one choice, each with how many there are.
const States = ({query, counts}) => {
  const whole = counts ? Object.values(counts.states).reduce((sum, value) => sum + value, 0) : null
  const one = (state, label, number) => html`<a href=${to('jobs', {...query, state})} aria-current=${(query.state || '') === state ? 'true' : undefined}>${label}<b>${number === null ? '–' : f.compact(number)}</b></a>`
  return html`<nav class="states" aria-label="States">${one('', 'all', whole)}${STATES.filter((state) => state === query.state || !counts || counts.states[state])
    .map((state) => one(state, state, counts ? counts.states[state] || 0 : null))}</nav>`
}

const clean = (filter) => Object.fromEntries(Object.entries(filter).filter(([, value]) => value))

// One request for the jobs of each topic and tenant.
function byTopic(rows) {
  const requests = new Map()
  for (const row of rows) {
    const key = JSON.stringify([row.topic, row.tenant || ''])
    if (!requests.has(key)) requests.set(key, {topic: row.topic, ids: [], ...(row.tenant ? {tenant_id: row.tenant} : {})})
    requests.get(key).ids.push(row.id)
  }
  return [...requests.values()]
}

const mayRetryAll = ({topic, state}) => (WAITING.includes(state) || ((!state || state === 'dead') && mayRedrive(topic)))

// The requests one after the other, each in parts. Returns the sums of what their replies count.
async function changeJobs(path, requests, {signal, whole = Infinity, ...more}) {
  const sums = {matched: 0, cancelled: 0, retried: 0, redriven: 0}
  for (const request of requests) {
    for await (const reply of api.parts(path, {...request, ...more}, {limit: whole - sums.matched})) {
      for (const name of Object.keys(sums)) sums[name] += reply[name] || 0
      if (signal.aborted) break
    }
  }
  return sums
}

const outcomeOf = ({cancelled, retried, redriven}) => [cancelled && `${f.plural(cancelled, 'job')} cancelled`,
  retried && `${f.plural(retried, 'job')} due now`, redriven && `${f.plural(redriven, 'dead letter')} sent back`].filter(Boolean).join(', ') || 'Nothing changed: these jobs wait for no time any more, or have ended.'

const ChangeMany = ({path, requests, ...rest}) => html`<${Confirm} ...${rest} preview=${(signal) => changeJobs(path, requests, {signal, dry_run: true})}
  run=${({matched: whole}, signal) => changeJobs(path, requests, {signal, whole})} />`

const CancelMany = (rest) => html`<${ChangeMany} path="/v1/jobs/cancel" danger title="Cancel these jobs?" ...${rest}
  explain=${({matched}) => `${f.plural(matched, 'job')} that have not ended will not be delivered any more.`} />`

const RetryMany = (rest) => html`<${ChangeMany} path="/v1/jobs/retry" title="Retry these jobs now?" ...${rest}
  explain=${({matched}) => `${f.plural(matched, 'job')} that wait for a time or are dead will be due at once. Dead ones are sent back to the groups in which they died.`} />`

export const Job = ({topic, id, query}) => {
  const tenant = query.tenant_id
  const whose = api.query({tenant_id: tenant})
  const job = useCall(api.path`/v1/jobs/${topic}/${id}` + whose, {everyMs: 2000, on: {topic}})
  const result = useCall(api.path`/v1/jobs/${topic}/${id}/result` + whose, {everyMs: 2000, on: {topic}})
  return html`<${Page} title=${id} badge=${job.data && html`<${Badge} state=${job.data.state} />`} crumbs=${[['Jobs', to('jobs')], [topic, to('topics', topic)]]}
    actions=${job.data && may('produce', topic) && html`${mayRetry(topic, retryState(job.data)) && html`<${RetryJob} ...${{topic, id, tenant, refresh: job.refresh}} state=${retryState(job.data)} />`}
      ${!ENDED.includes(job.data.state) && html`<${CancelJob} ...${{topic, id, tenant}} refresh=${job.refresh} />`}`}>
    ${job.error && !job.data && html`<${Failure} error=${job.error} />`}
    ${job.data && !ENDED.includes(job.data.state) && html`<${Gates} topic=${topic} partition=${job.data.partition} offset=${job.data.offset} />`}
    ${job.data && html`<${Attempts} ...${{topic, job}} />`}
    ${result.data?.done && html`<${Section} title="Result">
      ${result.data.result === null && !result.data.error && html`<p>It returned nothing.</p>`}
      ${(result.data.result ?? null) !== null && html`<${Payload} label="returned" text=${JSON.stringify(result.data.result)} />`}
      ${result.data.error && html`<${Payload} label="error" text=${result.data.error} />`}
      ${result.data.traceback && html`<${Payload} label="traceback" text=${result.data.traceback} />`}
      ${result.data.expired && html`<p class="faint">It ended so long ago that its result is forgotten.</p>`}
      ${result.data.ended_at && html`<p class="faint">ended <${Time} at=${result.data.ended_at} /></p>`}<//>`}
    ${job.data && html`<${JobContent} topic=${topic} data=${job.data} />`}
  <//>`
}

// What was asked for: the message of a job.
const JobContent = ({topic, data: {partition, offset}}) => {
  const {data} = useCall(api.path`/v1/topics/${topic}/partitions/${partition}/messages` + api.query({offset, limit: 1}))
  const message = data?.messages.find((row) => row.offset === offset)
  return message ? html`<${Content} topic=${topic} message=${message} place=${html`<${Link} to=${to('topics', topic, partition, offset)}>${partition}/${offset}<//>`} />` : null
}
