// The shell: navigation, the view that the address names, keyboard, login, and whether the broker can be reached.

import {html, render, useEffect, useErrorBoundary, useLayoutEffect, useState} from '../vendor/htm-preact.mjs'
import * as access from './access.js'
import * as api from './api.js'
import * as live from './live.js'
import {followLinks, go, useLocation} from './location.js'
import {Login} from './login.js'
import {Palette} from './palette.js'
import {match, place, ROUTES} from './routes.js'
import {Failure, Page, useCall} from './ui.js'

const MARKS_MS = 20000

const Missing = () => html`<${Page} title="No such page"><p>This address shows nothing.
  <a href="/console/"> Go to the overview.</a></p><//>`

const View = ({path, query}) => {
  const [error, reset] = useErrorBoundary()
  useEffect(reset, [path])
  if (error) return html`<${Page} title="This view failed"><${Failure} error=${error} /><//>`
  const found = match(path)
  return found ? html`<${found.route.view} key=${path} ...${found.values} query=${query} />` : html`<${Missing} />`
}

const THEMES = {auto: 'light', light: 'dark', dark: 'auto'}

function useTheme() {
  const [theme, setTheme] = useState(() => localStorage.getItem('driftq-theme') || 'auto')
  useEffect(() => {
    if (theme === 'auto') delete document.documentElement.dataset.theme
    else document.documentElement.dataset.theme = theme
    localStorage.setItem('driftq-theme', theme)
    document.dispatchEvent(new Event('driftq-theme'))
  }, [theme])
  return [theme, () => setTheme(THEMES[theme])]
}

const Help = ({onClose}) => html`<dialog open class="help" aria-label="Keyboard"><h2>Keyboard</h2>
  <ul>${ROUTES.filter((route) => route.key && route.isShown()).map((route) =>
    html`<li><span><kbd>g</kbd> <kbd>${route.key}</kbd></span>${route.label}</li>`)}
    <li><span><kbd>/</kbd></span>search on this page, or everywhere</li><li><span><kbd>Ctrl</kbd> <kbd>k</kbd></span>search everywhere</li>
    <li><span><kbd>?</kbd></span>this list</li></ul>
  <button type="button" onClick=${onClose}>Close</button></dialog>`

function useKeyboard(showHelp, showPalette) {
  useEffect(() => {
    let waiting = false
    const press = (event) => {
      if (event.key === 'k' && (event.metaKey || event.ctrlKey)) {
        event.preventDefault()
        showPalette(true)
      }
      if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest?.('input, textarea, select, dialog[open]:not(.help)')) return
      if (event.key === '/') {
        event.preventDefault()
        const field = document.querySelector('main .filters input')
        if (field) field.focus()
        else showPalette(true)
      } else if (event.key === '?') showHelp((shown) => !shown)
      else if (event.key === 'Escape') showHelp(false)
      else if (waiting) {
        waiting = false
        const route = ROUTES.find((candidate) => candidate.key === event.key && candidate.isShown())
        if (route) go(place(route))
      } else if (event.key === 'g') waiting = true
    }
    document.addEventListener('keydown', press)
    return () => document.removeEventListener('keydown', press)
  }, [])
}

// What the navigation shows beside a name: how many dead letters there are, how much needs attention.
function useMarks() {
  const {data} = useCall(access.isOperator() && access.may('observe') ? '/v1/overview' : null, {everyMs: MARKS_MS})
  const attention = data?.attention.filter((item) => item.severity !== 'notice').length
  return data ? {'': attention, 'dead-letters': data.counts.dead_letters} : {}
}

const short = (value) => (value > 9999 ? `${Math.floor(value / 1000)}k` : value)

const Navigation = ({path}) => {
  const current = match(path)?.route.path.split('/')[0]
  const marks = useMarks()
  const shown = ROUTES.filter((route) => route.label && route.isShown())
  const sections = [...new Set(shown.map((route) => route.section))]
  return html`<nav aria-label="Views">${sections.map((section) => html`<div key=${section}>${section && html`<h2>${section}</h2>`}${
    shown.filter((route) => route.section === section).map((route) => html`<a href=${place(route)}
      aria-current=${current === route.path ? 'page' : undefined}>${route.label}${marks[route.path] > 0 &&
      html`<span class=${`mark ${route.path === '' ? 'warn' : ''}`}>${short(marks[route.path])}</span>`}</a>`)}</div>`)}</nav>`
}

const Connection = ({online}) => {
  const [isLive, setLive] = useState(live.isLive())
  useEffect(() => live.onLive(setLive), [])
  const [tone, text] = !online ? ['bad', 'not connected'] : isLive ? ['ok', 'live'] : ['ok', 'connected']
  return html`<span class=${`connection ${tone}`} title="How this page learns of changes"><i></i>${text}</span>`
}

const Shell = ({login, onDone, path, query}) => {
  const [online, setOnline] = useState(true)
  const [help, showHelp] = useState(false)
  const [palette, showPalette] = useState(false)
  const [theme, turnTheme] = useTheme()
  const [menu, showMenu] = useState(false)
  useKeyboard(showHelp, showPalette)
  useEffect(() => api.onConnection((event) => (event === 'online' || event === 'offline') && setOnline(event === 'online')), [])
  useEffect(() => {
    if (online) return undefined
    const timer = setInterval(() => api.get('/v1/healthz').catch(() => {}), 1000)
    return () => clearInterval(timer)
  }, [online])
  useLayoutEffect(() => {
    document.querySelector('main h1')?.focus({preventScroll: true})
    showMenu(false)
  }, [path])
  const {name, tenant} = access.who()
  return html`<div class="shell">
    <a class="skip" href="#content">Skip to the content</a>
    <div class=${`side ${menu ? 'shown' : ''}`}>
      <div class="brandline"><a class="brand" href="/console/"><img src=${new URL('../icon.svg', import.meta.url).pathname} alt="" />DriftQ</a>
        <button type="button" class="menu" aria-expanded=${menu} onClick=${() => showMenu(!menu)}>Menu</button></div>
      <button type="button" class="search" onClick=${() => showPalette(true)}><span>Search</span><kbd>Ctrl k</kbd></button>
      <${Navigation} path=${path} />
      <div class="foot">
        <${Connection} online=${online} />
        ${name && html`<span class="faint">${name}${tenant && ` of ${tenant}`}</span>`}
        <button type="button" class="quiet" onClick=${turnTheme}>Colours: ${theme}</button>
        <button type="button" class="quiet" onClick=${() => showHelp(true)}>Keyboard <kbd>?</kbd></button>
        <a href="/v1/docs">API reference</a>
        ${api.token.get() && html`<button type="button" class="quiet" onClick=${() => {
          api.token.clear()
          location.assign('/console/')
        }}>Log out</button>`}
      </div>
    </div>
    <div class="stage">
      ${!online && html`<div class="notice" role="status"><strong>The broker cannot be reached.</strong> What you see may be old; this page
        connects again by itself.</div>`}
      <main id="content"><${View} path=${path} query=${query} /></main>
      ${help && html`<${Help} onClose=${() => showHelp(false)} />`}
      ${palette && html`<${Palette} onClose=${() => showPalette(false)} views=${ROUTES.filter((route) => route.label && route.isShown())
        .map((route) => ({kind: 'view', name: route.label, to: place(route)}))} />`}
      ${login !== null && html`<${Login} message=${login} onDone=${onDone} over />`}
    </div></div>`
}

// Nothing is shown before the broker has said who looks: a caller sees neither views nor actions that are not for them.
const App = () => {
  const {path, query} = useLocation()
  const [known, setKnown] = useState(false)
  const [login, setLogin] = useState(null)
  const [error, setError] = useState(null)
  const learn = () => access.learn().then(() => {
    setKnown(true)
    setError(null)
    setLogin(null)
    api.loggedIn()
  }, (failure) => failure.status !== 401 && setError(failure))
  useEffect(() => {
    const ends = api.onConnection((event) => {
      if (event === 'unauthorized') setLogin(api.token.get() ? 'The token is not valid any more. Log in again.' : '')
      else if (event === 'online') learn()
    })
    learn()
    return ends
  }, [])
  useEffect(() => {
    if (!error || known) return undefined
    const timer = setInterval(learn, 1000)
    return () => clearInterval(timer)
  }, [error, known])
  if (known) return html`<${Shell} ...${{login, path, query}} onDone=${learn} />`
  if (login !== null) return html`<${Login} message=${login} onDone=${learn} />`
  return html`<p class="loading">${error ? 'The broker cannot be reached. This page tries again by itself.' : ''}</p>`
}

document.addEventListener('click', followLinks)
const root = document.getElementById('app')
root.replaceChildren()
render(html`<${App} />`, root)
