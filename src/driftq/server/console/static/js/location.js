// The address of the page: plain paths, and filters in the query. Links are ordinary links.

import {useEffect, useState} from '../vendor/htm-preact.mjs'

const changed = new EventTarget()

export function go(to, {replace = false} = {}) {
  history[replace ? 'replaceState' : 'pushState'](null, '', to)
  changed.dispatchEvent(new Event('change'))
  if (!replace) window.scrollTo(0, 0)
}

export function useLocation() {
  const read = () => ({path: location.pathname, query: Object.fromEntries(new URLSearchParams(location.search))})
  const [state, setState] = useState(read)
  useEffect(() => {
    const update = () => setState(read())
    changed.addEventListener('change', update)
    window.addEventListener('popstate', update)
    return () => {
      changed.removeEventListener('change', update)
      window.removeEventListener('popstate', update)
    }
  }, [])
  return state
}

// Follow links inside of the console without loading the page again.
export function followLinks(event) {
  const link = event.target.closest?.('a[href]')
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return
  if (link.origin !== location.origin || !link.pathname.startsWith('/console/') || link.target || link.download) return
  event.preventDefault()
  go(link.pathname + link.search)
}

// The address of a stream, whose path has segments.
export const toStream = (path) => `/console/streams/${path.split('/').map(encodeURIComponent).join('/')}`

// The address of a view: to('topics', name, {tab: 'groups'}).
export function to(...parts) {
  const query = typeof parts.at(-1) === 'object' ? parts.pop() : {}
  const given = Object.entries(query).filter(([, value]) => value !== '' && value !== undefined && value !== null)
  const search = new URLSearchParams(given).toString()
  return `/console/${parts.map((part) => encodeURIComponent(String(part))).join('/')}${search ? `?${search}` : ''}`
}
