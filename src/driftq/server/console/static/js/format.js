// Numbers, sizes and times as people read them.

const number = new Intl.NumberFormat('en')
const short = new Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 1})
const moment = new Intl.DateTimeFormat(undefined, {dateStyle: 'medium', timeStyle: 'medium'})
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']

export const count = (value) => (value === null || value === undefined ? '–' : number.format(value))

export const compact = (value) =>
  value === null || value === undefined ? '–' : Math.abs(value) < 10000 ? number.format(Math.abs(value) < 100 ? Math.round(value * 10) / 10 : Math.round(value))
    : short.format(value)

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`

export function bytes(value) {
  if (value === null || value === undefined) return '–'
  let unit = 0
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024
    unit += 1
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`
}

export const rate = (value) => (value === null || value === undefined ? '–' : `${compact(value)}/s`)

export const percent = (value) => (value === null || value === undefined ? '–' : `${Math.round(value * 100)} %`)

export function duration(ms) {
  if (ms === null || ms === undefined) return '–'
  const sign = ms < 0 ? '-' : ''
  ms = Math.abs(ms)
  if (ms === 0) return '0'
  if (ms < 1) return `${sign}${Math.round(ms * 1000)} µs`
  if (ms < 1000) return `${sign}${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`
  const seconds = ms / 1000
  if (seconds < 59.5) return `${sign}${seconds < 9.95 && seconds % 1 ? seconds.toFixed(1) : Math.round(seconds)} s`
  const whole = Math.round(seconds)
  if (whole < 3600) return sign + both(Math.floor(whole / 60), 'min', whole % 60, 's')
  const minutes = Math.floor(whole / 60)
  if (minutes < 2880) return sign + both(Math.floor(minutes / 60), 'h', minutes % 60, 'min')
  return sign + both(Math.floor(minutes / 1440), 'd', Math.floor(minutes / 60) % 24, 'h')
}

const both = (large, unit, small, smaller) => `${large} ${unit}${small ? ` ${small} ${smaller}` : ''}`

export const seconds = (value) => (value === null || value === undefined ? '–' : duration(value * 1000))

export const bytesPerS = (value) => `${bytes(value)}/s`

// Where the lines of a plot's axis may be: sizes at powers of two, times at whole seconds, minutes and hours.
bytes.steps = bytesPerS.steps = Array.from({length: 50}, (_, power) => 2 ** power)
seconds.steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, ...[1, 2, 5, 10, 20, 50, 100].map((days) => days * 86400)]
duration.steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, ...seconds.steps.map((step) => step * 1000)]

export const instant = (value) => new Date(value)

// A time in the reader's zone.
export function local(value) {
  const date = instant(value)
  return Number.isNaN(date.getTime()) ? String(value) : moment.format(date)
}

export function iso(value) {
  const date = instant(value)
  return Number.isNaN(date.getTime()) ? '' : date.toISOString()
}

// The exact time, in the reader's zone and as the broker has it.
export function exact(value) {
  const date = instant(value)
  return Number.isNaN(date.getTime()) ? String(value) : `${moment.format(date)} · ${date.toISOString()}`
}

export function ago(value, nowMs = Date.now()) {
  const ms = nowMs - instant(value).getTime()
  if (Number.isNaN(ms)) return String(value)
  if (Math.abs(ms) < 1500) return 'now'
  return ms > 0 ? `${roughly(ms)} ago` : `in ${roughly(-ms)}`
}

function roughly(ms) {
  const seconds = ms / 1000
  if (seconds < 90) return `${Math.round(seconds)} s`
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`
  return `${Math.round(seconds / 86400)} d`
}

export function isJson(text) {
  if (!/^\s*[[{]/.test(text ?? '')) return false
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

// JSON that is indented, other text as it is.
export function pretty(text) {
  if (/^\s*[[{]/.test(text)) {
    try {
      return JSON.stringify(JSON.parse(text), null, 2)
    } catch {
      return text
    }
  }
  return text
}

export function hexDump(base64, limit = 2048) {
  const data = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0))
  const lines = []
  for (let start = 0; start < Math.min(data.length, limit); start += 16) {
    const row = [...data.slice(start, start + 16)]
    const hex = row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ')
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '·')).join('')
    lines.push(`${start.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${text}`)
  }
  if (data.length > limit) lines.push(`… ${count(data.length - limit)} bytes more`)
  return lines.join('\n')
}

// A call as a command for the shell. Text from users is quoted.
export function curl(method, path, body, hasToken) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`
  const parts = ['curl', '-sS', ...(method === 'GET' ? [] : ['-X', method]), quote(location.origin + path)]
  if (hasToken) parts.push('-H', '"Authorization: Bearer $DRIFTQ_TOKEN"')
  if (body !== undefined) parts.push('-H', quote('Content-Type: application/json'), '-d', quote(JSON.stringify(body)))
  return parts.join(' ')
}
