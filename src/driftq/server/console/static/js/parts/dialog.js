// Actions: a button, a dialog that says what will be touched, and the result or the error.

import {html, useCallback, useEffect, useLayoutEffect, useRef, useState} from '../../vendor/htm-preact.mjs'
import {Failure} from './text.js'

export const Dialog = ({title, children, onClose, onSubmit, submit, danger, disabled, wide}) => {
  const element = useRef(null)
  const [state, setState] = useState({busy: false, error: null})
  useLayoutEffect(() => {
    element.current.showModal()
  }, [])
  const send = async (event) => {
    event.preventDefault()
    setState({busy: true, error: null})
    try {
      const stays = await onSubmit(new FormData(event.target))
      if (stays !== 'stay') onClose()
      else setState({busy: false, error: null})
    } catch (error) {
      setState({busy: false, error})
    }
  }
  return html`<dialog ref=${element} onClose=${onClose} aria-labelledby="dialog-title" class=${wide ? 'wide' : ''}>
    <form onSubmit=${send}>
      <h2 id="dialog-title">${title}</h2>
      <div class="dialogbody">${children}${state.error && html`<${Failure} error=${state.error} />`}</div>
      <div class="dialogactions">
        <button type="button" onClick=${() => element.current.close()}>${submit ? 'Back' : 'Close'}</button>
        ${submit && html`<button class=${danger ? 'danger' : 'primary'} disabled=${state.busy || disabled}>${
          state.busy ? 'Working…' : submit}</button>`}
      </div>
    </form></dialog>`
}

// A button that opens a dialog: <Action label="Pause" …>${(close) => dialog}<//>
export const Action = ({label, danger, primary, quiet, disabled, title, children}) => {
  const [open, setOpen] = useState(false)
  const button = useRef(null)
  const close = useCallback(() => {
    setOpen(false)
    button.current?.focus()
  }, [])
  return html`<button type="button" ref=${button} title=${title || ''} disabled=${disabled}
    class=${[danger && 'danger', primary && 'primary', quiet && 'quiet'].filter(Boolean).join(' ')} onClick=${() => setOpen(true)}>${label}</button>
    ${open && children(close)}`
}

// Work that ends between two calls when its part of the page goes, or when `abort` is called.
export function useAbort() {
  const work = useRef(null)
  work.current ??= new AbortController()
  useEffect(() => () => work.current.abort(), [])
  return work.current
}

// An action that only needs to be confirmed. `preview` is a call whose reply `explain` turns into what will happen. `run`
// gets that reply, so that it touches no more than was shown. A signal says to both of them that the dialog was closed.
export const Confirm = ({label, title, text, danger, primary, quiet, disabled, run, done, preview, explain}) => html`
  <${Action} label=${label} danger=${danger} primary=${primary} quiet=${quiet} disabled=${disabled}>${(close) => html`
    <${ConfirmDialog} ...${{label, title, text, danger, run, done, preview, explain, close}} />`}<//>`

const ConfirmDialog = ({label, title, text, danger, run, done, preview, explain, close}) => {
  const [shown, setShown] = useState(preview ? null : {text: ''})
  const {signal} = useAbort()
  useEffect(() => {
    if (preview) preview(signal).then((reply) => setShown({text: explain(reply), reply}), (error) => setShown({error}))
  }, [])
  return html`<${Dialog} title=${title || `${label}?`} submit=${label} danger=${danger} onClose=${close}
    disabled=${!shown || shown.error} onSubmit=${async () => {
      const reply = await run(shown.reply, signal)
      done?.(reply)
    }}>
    ${text && html`<p>${text}</p>`}
    ${!shown && html`<p class="faint">Looking at what this would touch…</p>`}
    ${shown?.text && html`<p class="preview">${shown.text}</p>`}
    ${shown?.error && html`<${Failure} error=${shown.error} />`}
  <//>`
}

// A value without a handler is only where a field begins: a view that is drawn again must not undo what was typed.
function beginning({value, checked, ...rest}) {
  if (rest.onInput || rest.onChange) return {value, checked, ...rest}
  return {...rest, ...(value === undefined ? {} : {defaultValue: value}), ...(checked === undefined ? {} : {defaultChecked: checked})}
}

export const Input = ({label, hint, area, ...rest}) => html`<label class="input"><span>${label}</span>
  ${area ? html`<textarea rows="6" aria-label=${label} spellcheck="false" ...${beginning(rest)}></textarea>` : html`<input aria-label=${label} ...${beginning(rest)} />`}
  ${hint && html`<small>${hint}</small>`}</label>`

export const Select = ({label, options, hint, value: chosen, ...rest}) => html`<label class="input">${label && html`<span>${label}</span>`}
  <select aria-label=${label} ...${rest} ...${rest.onChange ? {value: chosen} : {}}>${options.map((option) => {
    const [value, text] = Array.isArray(option) ? option : [option, option || 'any']
    return html`<option value=${value} selected=${chosen === value}>${text}</option>`
  })}</select>${hint && html`<small>${hint}</small>`}</label>`

export const Check = ({label, ...rest}) => html`<label class="checkbox"><input type="checkbox" ...${beginning(rest)} /> ${label}</label>`
