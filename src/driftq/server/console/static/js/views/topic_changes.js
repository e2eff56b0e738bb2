// What changes all messages of a topic: a purge, and a move to another topic.

import {html, useState} from '../../vendor/htm-preact.mjs'
import * as api from '../api.js'
import * as f from '../format.js'
import {Action, Bar, Confirm, Dialog, Input, useAbort} from '../ui.js'

const FAILURES_SHOWN = 20

export const PurgeTopic = ({topic, refresh}) => html`<${Confirm} label="Purge" danger title=${`Purge ${topic}?`}
  text="Every message is dropped, for every group. The topic, its settings and its groups stay. It cannot be undone."
  preview=${() => api.post(api.path`/v1/topics/${topic}/purge`, {dry_run: true})}
  explain=${({messages, in_flight: held, waiting}) => `${f.plural(messages, 'message')} will be dropped${[held && `, ${f.count(held)} in flight`, waiting && `, ${f.count(waiting)} waiting for a time`].filter(Boolean).join('')}.`}
  run=${() => api.post(api.path`/v1/topics/${topic}/purge`, {})} done=${refresh} />`

export const MoveMessages = (rest) => html`<${Action} label="Move">${(close) => html`<${MoveDialog} ...${rest} close=${close} />`}<//>`

// First a dry run that counts, then a move in parts, which can be stopped between two of them.
const MoveDialog = ({topic, partitions, refresh, close}) => {
  const [state, setState] = useState({step: 'form'})
  const work = useAbort()
  const leave = () => {
    close()
    if (state.step === 'running' || state.step === 'done') refresh()
  }
  const {step, body, whole, sums} = state
  const submit = async (form) => {
    if (step === 'form') {
      const request = requestOf(form)
      const counted = await move(topic, {...request, dry_run: true}, {limit: Number(form.get('limit')), signal: work.signal})
      setState({step: 'preview', body: request, whole: counted.matched})
    } else {
      const show = (now) => setState((before) => ({...before, step: 'running', sums: now}))
      show({matched: 0, moved: 0, failed: []})
      const end = await move(topic, body, {limit: whole, signal: work.signal, show})
      setState((before) => ({...before, step: 'done', sums: end}))
    }
    return 'stay'
  }
  return html`<${Dialog} title=${`Move messages of ${topic}`} onClose=${leave} onSubmit=${submit} submit=${{form: 'Dry run', preview: 'Move'}[step]} disabled=${step === 'preview' && !whole}>
    ${step === 'form' && html`<p>Messages that no group has finished and no worker holds are stored in the other topic, and settled in this one.</p>
      <${Input} label="To topic" name="to" required maxlength="249" autofocus />
      <${Input} label="Task" name="task" hint="Empty: of every task." />
      <${Input} label="Partition" name="partition" type="number" min="0" max=${partitions - 1} hint="Empty: of all." />
      <${Input} label="Produced after" name="since" type="datetime-local" /><${Input} label="Produced before" name="until" type="datetime-local" />
      <${Input} label="At most" name="limit" type="number" min="1" required value="1000" />`}
    ${step === 'preview' && html`<p class="preview">${`${f.plural(whole, 'message')} will be moved to ${body.to}.`}</p>`}
    ${sums && html`<p class="preview" role="status">${`${f.plural(sums.moved, 'message')} moved to ${body.to}${step === 'running' ? ` of ${f.count(whole)}` : ''}${sums.failed.length ? `; ${f.count(sums.failed.length)} could not be moved:` : '.'}`}</p>
      ${step === 'running' && html`<p><${Bar} share=${sums.matched / Math.max(1, whole)} tone="ok" /> <button type="button" class="danger" onClick=${() => work.abort()}>Stop</button></p>`}
      ${sums.failed.length > 0 && html`<ul>${sums.failed.slice(0, FAILURES_SHOWN).map((row) => html`<li>${row.partition}/${row.offset}: ${row.message}</li>`)}</ul>`}`}
  <//>`
}

function requestOf(form) {
  const body = {to: form.get('to').trim()}
  if (form.get('task')) body.task = form.get('task')
  if (form.get('partition') !== '') body.partition = Number(form.get('partition'))
  for (const name of ['since', 'until']) if (form.get(name)) body[name] = new Date(form.get(name)).toISOString()
  return body
}

async function move(topic, body, {limit, signal, show}) {
  let sums = {matched: 0, moved: 0, failed: []}
  for await (const reply of api.parts(api.path`/v1/topics/${topic}/move`, body, {limit})) {
    sums = {matched: sums.matched + reply.matched, moved: sums.moved + reply.moved, failed: [...sums.failed, ...reply.failed]}
    show?.(sums)
    if (signal.aborted) break
  }
  return sums
}
