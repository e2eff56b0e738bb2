// What views show comes from here: a call that stays fresh, pages of a list, series.

import {useCallback, useEffect, useRef, useState} from '../../vendor/htm-preact.mjs'
import * as api from '../api.js'
import * as live from '../live.js'

const BETWEEN_MS = 1000 // two reads because of changes
const REST = 10 // a call that took a second is repeated after so many, at the earliest
const REST_MS = 60000 // and at the latest
const SLOWER = 15 // times longer between two reads while the feed reports what changes

// Calls `run` at once; after changes that `on` covers; every `everyMs`, less often while the feed is live; when the broker
// is back; less often if the call takes long; and never while the tab is hidden. Returns how to end that.
function keepFresh(run, {everyMs, on}) {
  let timer = 0
  let last = 0
  let late = false
  let rest = 0
  let over = false
  const again = async () => {
    clearTimeout(timer)
    if (document.hidden) {
      late = true
      return
    }
    late = false
    last = Date.now()
    await run()
    rest = (Date.now() - last) * REST
    if (over) return
    clearTimeout(timer)
    if (everyMs) timer = setTimeout(again, Math.max(Math.min(rest, REST_MS), on && live.isLive() ? everyMs * SLOWER : everyMs))
  }
  const soon = () => {
    if (document.hidden) {
      late = true
      return
    }
    clearTimeout(timer)
    timer = setTimeout(again, Math.max(50, Math.max(BETWEEN_MS, Math.min(rest, REST_MS)) - (Date.now() - last)))
  }
  const shown = () => !document.hidden && (late || everyMs) && soon()
  again()
  document.addEventListener('visibilitychange', shown)
  const ends = [api.onConnection((event) => (event === 'online' || event === 'again') && soon())]
  if (on) ends.push(live.follow(on, soon), live.onLive((now) => !now && everyMs && soon()))
  return () => {
    over = true
    clearTimeout(timer)
    document.removeEventListener('visibilitychange', shown)
    for (const end of ends) end()
  }
}

// The reply of a call. The last reply stays while a new one is on its way, so nothing jumps.
export function useCall(path, {everyMs = 0, on = null, load = api.get} = {}) {
  const [state, setState] = useState({path: null, data: null, error: null})
  const [round, setRound] = useState(0)
  const refresh = useCallback(() => setRound((number) => number + 1), [])
  useEffect(() => {
    if (!path) return undefined
    const controller = new AbortController()
    const run = async () => {
      try {
        const data = await load(path, {signal: controller.signal})
        setState({path, data, error: null})
      } catch (error) {
        if (error.name === 'AbortError') return
        setState((before) => ({path, data: before.path === path ? before.data : null, error}))
      }
    }
    const end = keepFresh(run, {everyMs, on})
    return () => {
      controller.abort()
      end()
    }
  }, [path, everyMs, round, JSON.stringify(on)])
  return state.path === path ? {...state, refresh} : {data: null, error: null, refresh}
}

// Pages of a list that is followed by `after`. The first page stays fresh until a further one is loaded.
export function usePages(path, field, {everyMs = 0, on = null} = {}) {
  const [state, setState] = useState({path: null, items: [], after: null, error: null, done: false, pages: 0})
  const latest = useRef({path, pages: 0})
  latest.current.path = path
  const load = useCallback(async (after, items, pages) => {
    try {
      const separator = path.includes('?') ? '&' : '?'
      const reply = await api.get(after ? `${path}${separator}after=${encodeURIComponent(after)}` : path)
      if (latest.current.path !== path) return // a late reply to an older filter
      latest.current.pages = pages
      setState({path, items: [...items, ...reply[field]], after: reply.after ?? null, error: null, done: true, reply})
    } catch (error) {
      if (latest.current.path !== path) return
      setState((before) => ({...(before.path === path ? before : {items: [], after: null}), path, error, done: true}))
    }
  }, [path, field])
  useEffect(() => {
    latest.current.pages = 0
    return keepFresh(() => (latest.current.pages <= 1 ? load(null, [], 1) : undefined), {everyMs, on})
  }, [load, everyMs, JSON.stringify(on)])
  const current = state.path === path ? state : {items: [], after: null, error: null, done: false}
  const more = () => load(current.after, current.items, latest.current.pages + 1)
  return {...current, more, refresh: () => load(null, [], 1)}
}

// The series of a topic or a group. Only some have them: the busiest, and those that were busy.
export function useSeries(values, windowMs = 3600000) {
  const names = useCall('/v1/series/names', {everyMs: 60000})
  const known = values.group === undefined ? names.data?.topics.includes(values.topic)
    : names.data?.groups.some((known) => known.topic === values.topic && known.group === values.group)
  const {data} = useCall(known ? `/v1/series${api.query({...values, window_ms: windowMs, points: 240})}` : null, {everyMs: 30000})
  return data && Object.values(data.series).some((series) => series.length) ? data : null
}
