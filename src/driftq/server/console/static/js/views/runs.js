// Runs: what happened in a run, as a tree of its steps on a common line of time.

import {html, useEffect, useState} from '../../vendor/htm-preact.mjs'
import {may} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {go, to, toStream} from '../location.js'
import {
  Badge, Command, Confirm, Empty, Exact, Failure, Figures, Filters, Link, Loading, More, Page, Section, Table, Time, useCall, usePages,
} from '../ui.js'

const STATES = ['', 'running', 'waiting', 'done', 'failed', 'cancelled']

export const Runs = ({query}) => {
  const pages = usePages(`/v1/runs${api.query({limit: 100, state: query.state})}`, 'runs', {everyMs: 5000, on: {topic: true}})
  return html`<${Page} title="Runs" subtitle="messages and streams that share a run id, of the last day">
    <${Filters} values=${query} onChange=${({run, ...values}) => go(run ? to('runs', run.trim()) : to('runs', values))} fields=${[
      {name: 'run', label: 'run id', type: 'search', placeholder: 'opens a run'}, {name: 'state', label: 'state', options: STATES}]} />
    ${pages.reply && !pages.reply.complete && html`<p class="faint">The index is being built after a start; runs may be missing.</p>`}
    ${pages.error && html`<${Failure} error=${pages.error} />`}
    ${!pages.done && html`<${Section}><${Loading} lines=${8} /><//>`}
    ${pages.items.length > 0 && html`<${Section}><${Table} label="Runs" rows=${pages.items} keyOf=${(row) => row.run_id} columns=${[
      {label: 'run', cell: (row) => html`<${Link} to=${to('runs', row.run_id)}>${row.run_id}<//>`, sort: (row) => row.run_id},
      {label: 'state', cell: (row) => html`<${Badge} state=${row.state} />`, sort: (row) => row.state},
      {label: 'steps', cell: (row) => f.count(row.steps), sort: (row) => row.steps, end: true},
      {label: 'states of steps', cell: (row) => Object.entries(row.states).map(([state, number]) => `${f.count(number)} ${state}`).join(', ')},
      {label: 'streams', cell: (row) => f.count(row.streams), sort: (row) => row.streams, end: true},
      {label: 'began', cell: (row) => html`<${Time} at=${row.began_at} />`, sort: (row) => row.began_at},
      {label: 'changed', cell: (row) => html`<${Time} at=${row.changed_at} />`, sort: (row) => row.changed_at}]} />
      <${More} pages=${pages} noun="runs" /><//>`}
    ${pages.done && !pages.items.length && !pages.error && html`<${Empty} title=${query.state ? 'No run is in this state' : 'There is no run yet'}>
      Messages with the same run id make one, and so do streams below <code>runs/ID</code>:
      <${Command}>driftq produce orders '{"id": 1}' --run-id 42 --step-id plan<//><//>`}
  <//>`
}

const ENDED = ['succeeded', 'dead', 'cancelled', 'finished', 'skipped']

export const Run = ({run}) => {
  const {data, error, refresh} = useCall(api.path`/v1/runs/${run}`, {everyMs: 2000, on: {topic: true, stream: true}})
  const open = data ? data.steps.filter((step) => !ENDED.includes(step.state)) : []
  const failed = data ? data.steps.filter((step) => step.state === 'dead') : []
  const mayCancel = open.some((step) => may('produce', step.topic))
  return html`<${Page} title=${run} badge=${data && html`<${Badge} state=${data.state} />`} crumbs=${[['Runs', to('runs')]]}
    actions=${data && mayCancel && html`<${Confirm} label="Cancel" danger title=${`Cancel run ${run}?`}
      text=${`${f.plural(open.length, 'step')} of this run did not end yet: ${open.slice(0, 8).map((step) => step.step_id || step.task || step.topic).join(', ')}${open.length > 8 ? ', …' : ''}. They will not be delivered any more.`}
      run=${() => api.post(api.path`/v1/runs/${run}/cancel`, {})} done=${refresh} />`}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${!data && !error && html`<${Section}><${Loading} lines=${6} /><//>`}
    ${data && html`<${Section}><${Figures} items=${[['steps', f.count(data.steps.length)],
      ['open', f.count(open.length), 'steps that have not ended'], ['failed', f.count(failed.length), 'dead letters', '', failed.length > 0 && 'bad'],
      ['attempts', f.count(data.steps.reduce((sum, step) => sum + (step.attempts || 0), 0))],
      data.omitted && ['not shown', f.count(data.omitted)],
      ['took', f.duration((open.length ? Date.now() : f.instant(data.changed_at)) - f.instant(data.began_at)), 'from the first message to the last change'],
      ['began', html`<${Time} at=${data.began_at} />`], ['changed', html`<${Time} at=${data.changed_at} />`]]} /><//>
    ${data.steps.length > 0 && html`<${Timeline} data=${data} />`}
    ${data.streams?.length > 0 && html`<${Section} title="Streams"><${Table} label="Streams" rows=${data.streams.map((stream) => ({stream}))} keyOf=${(row) => row.stream} columns=${[
      {label: 'stream', cell: (row) => html`<a href=${toStream(row.stream)}>${row.stream}</a>`}]} /><//>`}`}
  <//>`
}

const TONES = {dead: 'bad', running: 'busy', retrying: 'warn', scheduled: 'wait', ready: 'wait', unclaimed: 'wait', cancelled: 'wait'}

function useNow(isOpen) {
  const [now, setNow] = useState(Date.now())
  useEffect(() => {
    if (!isOpen) return undefined
    const timer = setInterval(() => !document.hidden && setNow(Date.now()), 500)
    return () => clearInterval(timer)
  }, [isOpen])
  return isOpen ? Math.max(now, Date.now() - 500) : now
}

// Each step is a line from its message to its end, or to now, and each attempt a bar on it. An SVG, because the page's
// policy allows no inline styles.
const Timeline = ({data}) => {
  const at = (time) => f.instant(time).getTime()
  const isOpen = data.steps.some((step) => ['running', 'ready', 'retrying'].includes(step.state))
  const now = useNow(isOpen)
  const begin = Math.min(...data.steps.map((step) => at(step.created_at)))
  const end = Math.max(begin + 1, ...data.steps.map((step) => at(step.ended_at || step.created_at)), isOpen ? now : 0)
  const place = (time) => ((time - begin) / (end - begin)) * 100
  const ruler = html`<span class="ruler"><span>0</span><span>${f.duration((end - begin) / 2)}</span><span>${f.duration(end - begin)}</span></span>`
  return html`<${Section} title="Steps"><${Table} label="Steps" rows=${data.steps} keyOf=${(row) => `${row.topic}/${row.partition}/${row.offset}`} columns=${[
    {label: 'step', cell: (row) => html`<span class=${`tree depth${Math.min(row.depth, 6)}`}><${Link} to=${to('topics', row.topic, row.partition, row.offset)}>${row.step_id || row.task || row.topic}<//></span>`},
    {label: 'state', cell: (row) => html`<${Badge} state=${row.state} />`},
    {label: 'attempts', cell: (row) => row.attempts || '', end: true},
    {label: 'took', cell: (row) => f.duration((row.ended_at ? at(row.ended_at) : ENDED.includes(row.state) ? at(row.created_at) : Math.max(now, at(row.created_at))) - at(row.created_at)), end: true},
    {label: ruler, wide: true, cell: (row) => html`<${Span} ...${{row, at, place, now, end}} />`},
    {label: 'worker', cell: (row) => row.owner || row.history?.at(-1)?.owner || ''},
    {label: 'topic', cell: (row) => html`<${Link} to=${to('topics', row.topic)}>${row.topic}<//>`},
    {label: 'error', cell: (row) => (row.error ? html`<span class="clip short" title=${row.error}>${row.error.trim().split('\n').at(-1)}</span>` : row.due_at && row.state !== 'succeeded' ? html`due <${Time} at=${row.due_at} />` : '')}]} /><//>`
}

const Span = ({row, at, place, now, end}) => {
  const from = place(at(row.created_at))
  const ended = row.ended_at ? at(row.ended_at) : ENDED.includes(row.state) ? at(row.created_at) : Math.min(end, Math.max(now, at(row.created_at)))
  const bars = (row.history || []).map((attempt) => {
    const left = place(at(attempt.began_at))
    const right = place(attempt.ended_at ? at(attempt.ended_at) : ended)
    return {left, width: Math.max(0.7, right - left), tone: attempt.end === 'succeeded' ? '' : attempt.ended_at ? 'bad' : 'busy'}
  })
  return html`<svg class="span" viewBox="0 0 100 10" preserveAspectRatio="none" role="img"
    aria-label=${`from ${f.local(row.created_at)} to ${row.ended_at ? f.local(row.ended_at) : 'now'}, ${f.plural(bars.length, 'attempt')}`}>
    <rect class="ground" x="0" y="0" width="100" height="10"></rect>
    <rect class=${bars.length ? 'wait' : TONES[row.state] || ''} x=${from} y=${bars.length ? 4.3 : 2} height=${bars.length ? 1.4 : 6} width=${Math.max(0.7, place(ended) - from)}></rect>
    ${bars.map((bar) => html`<rect class=${bar.tone} x=${bar.left} y="1.5" height="7" width=${bar.width}></rect>`)}</svg>`
}
