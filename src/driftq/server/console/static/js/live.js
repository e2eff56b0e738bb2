// The broker's feed of changes: one connection for the whole page, and none while the tab is hidden or no view needs it.
//
//    views ── follow({topic: 'orders'}, refresh) ──▶ one GET /v1/events ──▶ those whose topic, group or stream changed
//
// After a gap (a restart, a hidden tab, a `resync`) every listener is called: it reads again what it shows. Callers that
// may not follow the feed, or come when it is full, are not live: `isLive()` is false, and their views ask at intervals.

import * as api from './api.js'

const RETRY_MS = 1000
const REFUSED_MS = 60000
const listeners = new Set()
const watchers = new Set()
let controller = null
let live = false

export const isLive = () => live

// Calls `changed` after changes that `wanted` covers: {topic: name or true, group: name, stream: name or true}.
export function follow(wanted, changed) {
  const listener = {wanted, changed}
  listeners.add(listener)
  start()
  return () => {
    listeners.delete(listener)
    if (!listeners.size) stop()
  }
}

// Calls `watcher` when the feed begins or ends.
export function onLive(watcher) {
  watchers.add(watcher)
  return () => watchers.delete(watcher)
}

function setLive(now) {
  if (now === live) return
  live = now
  for (const watcher of watchers) watcher(now)
}

function stop() {
  controller?.abort()
  controller = null
  setLive(false)
}

function start() {
  if (controller || document.hidden || !listeners.size) return
  controller = new AbortController()
  run(controller.signal)
}

async function run(signal) {
  let pause = RETRY_MS
  while (!signal.aborted) {
    try {
      for await (const {event, data} of api.events('/v1/events', signal)) {
        setLive(true)
        if (event === 'ready' || event === 'resync') for (const listener of [...listeners]) listener.changed()
        else tell(event, JSON.parse(data))
      }
      pause = RETRY_MS
    } catch (error) {
      if (signal.aborted) return
      pause = error.status === 403 || error.status === 429 || error.status === 404 ? REFUSED_MS : RETRY_MS
    }
    if (signal.aborted) return
    setLive(false)
    await new Promise((resolve) => setTimeout(resolve, pause))
  }
}

const covers = (wanted, value) => wanted === true || wanted === value

function tell(kind, change) {
  for (const {wanted, changed} of [...listeners]) {
    if (kind === 'stream') {
      if (covers(wanted.stream, change.stream)) changed()
    } else if (covers(wanted.topic, change.topic) && (kind === 'topic' || wanted.group === undefined || covers(wanted.group, change.group))) {
      changed()
    }
  }
}

document.addEventListener('visibilitychange', () => (document.hidden ? stop() : start()))
