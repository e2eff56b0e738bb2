// The login: an access token, kept until the tab closes. Over a page that was open already it is a dialog, so the place
// and what was typed there are kept.

import {html, useLayoutEffect, useRef, useState} from '../vendor/htm-preact.mjs'
import * as api from './api.js'
import {Failure} from './ui.js'

export const Login = ({message, onDone, over}) => {
  const [error, setError] = useState(null)
  const dialog = useRef(null)
  useLayoutEffect(() => {
    dialog.current?.showModal()
  }, [])
  const submit = async (event) => {
    event.preventDefault()
    api.token.set(new FormData(event.target).get('token').trim())
    try {
      await api.get('/v1/identity')
      await onDone()
    } catch (failure) {
      api.token.clear()
      setError(failure)
    }
  }
  const form = html`<form onSubmit=${submit}>
      <h1>Log in to DriftQ</h1>
      <p class="subtitle">${message || 'This broker asks for an access token.'}</p>
      <label class="input"><span>Access token</span>
        <input name="token" type="password" autocomplete="off" required autofocus placeholder="dq_…" /></label>
      ${error && html`<${Failure} error=${error} />`}
      <button class="primary">Log in</button>
      <p class="faint">It is kept until this tab closes. <code>driftq tokens create console --grant observe --grant 'read:*'</code>
        makes one that can look and change nothing.</p>
    </form>`
  if (!over) return html`<main class="login"><div class="card">${form}</div></main>`
  return html`<dialog ref=${dialog} class="login" onCancel=${(event) => event.preventDefault()}>${form}</dialog>`
}
