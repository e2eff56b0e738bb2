// Storage: will the disk fill, is fsync slow, how old is the archive?

import {html} from '../../vendor/htm-preact.mjs'
import {may} from '../access.js'
import * as api from '../api.js'
import * as f from '../format.js'
import {Badge, Bar, Command, Confirm, Empty, Exact, Failure, Fields, Figures, Page, Plot, Section, Table, useCall} from '../ui.js'

export const Storage = () => {
  const {data, error} = useCall('/v1/overview', {everyMs: 5000})
  const series = useCall('/v1/series?window_ms=21600000&names=disk_free_bytes,fsync_p99_ms,commit_p99_ms', {everyMs: 30000})
  const clock = useCall('/v1/clock', {everyMs: 10000})
  return html`<${Page} title="Storage" subtitle=${data && `durability ${data.durability}`}>
    ${error && !data && html`<${Failure} error=${error} />`}
    ${data && !data.disk && html`<${Empty}>This broker keeps everything in memory: nothing survives it.<//>`}
    ${data?.disk && html`<${Disk} disk=${data.disk} latency=${data.latency} full=${fullIn(series.data)} />`}
    ${data?.archive && html`<${Archive} archive=${data.archive} />`}
    ${data && !data.archive && data.disk && html`<${Section} title="Archive"><p>There is none: if this disk is lost, so is its data.</p>
      <${Command}>driftq serve --archive s3://bucket/prefix<//><//>`}
    ${clock.data && html`<${Clock} clock=${clock.data} refresh=${clock.refresh} />`}
    ${series.data && html`<div class="grid"><${Section}>
      <${Plot} title="Free disk space, six hours" start=${series.data.start} stepMs=${series.data.step_ms} format=${f.bytes} lines=${[{label: 'free', values: series.data.series.disk_free_bytes || []}]} />
<//><${Section}>
      <${Plot} title="Latency, 99th percentile" start=${series.data.start} stepMs=${series.data.step_ms} format=${f.duration} lines=${[
        {label: 'commit', values: series.data.series.commit_p99_ms || []}, {label: 'fsync', values: series.data.series.fsync_p99_ms || []}]} /><//></div>`}
  <//>`
}

// When the disk is full, at the rate of the last hours.
function fullIn(series) {
  const free = (series?.series.disk_free_bytes || []).map((value, index) => [index * series.step_ms, value]).filter(([, value]) => value !== null)
  if (free.length < 2) return null
  const [[firstMs, first], [lastMs, last]] = [free[0], free.at(-1)]
  return last < first && lastMs > firstMs ? (last / (first - last)) * (lastMs - firstMs) : null
}

const Disk = ({disk, latency, full}) => html`<${Section} title="Disk"><${Figures} items=${[
  ['free', f.bytes(disk.free_bytes)], ['of', f.bytes(disk.size_bytes)], ['full in', full ? f.duration(full) : '–', 'at the rate of the last hours'],
  ['used', html`<${Bar} share=${1 - disk.free_bytes / Math.max(1, disk.size_bytes)} tone=${disk.free_bytes < 0.1 * disk.size_bytes ? 'bad' : 'ok'} />`], ['waits for a sync', f.bytes(disk.unsynced_bytes)],
  ['journal room', f.bytes(disk.journal_room_bytes)], ['fsync p50', f.duration(latency.fsync_p50_ms)], ['fsync p99', f.duration(latency.fsync_p99_ms)]]} />
  <${Table} label="Files" rows=${Object.entries(disk.used_bytes)} keyOf=${([part]) => part} columns=${[
    {label: 'part', cell: ([part]) => part}, {label: 'size', cell: ([, size]) => f.bytes(size), sort: ([, size]) => size, end: true}]} /><//>`

const Archive = ({archive}) => html`<${Section} title="Archive" actions=${html`<${Badge} state=${archive.state} />`}>
  ${archive.error && html`<${Failure} error=${{message: archive.error}} />`}
  <${Figures} items=${[['lag', f.duration(archive.lag_ms), 'what would be lost with this machine'], ['lag', f.bytes(archive.lag_bytes)]]} />
  <${Fields} items=${[['url', archive.url], ['mode', archive.mode], ['generation', archive.generation], ['shipped up to', f.count(archive.shipped_lsn)], ['last base', f.count(archive.base_lsn)]]} /><//>`

const Clock = ({clock, refresh}) => html`<${Section} title="Clock" actions=${clock.held && may('admin') && html`<${Confirm} label="Accept the machine's clock" danger
  title="Accept the machine's clock?" text=${`The broker's time moves by ${f.duration(-clock.ahead_ms)}.`} run=${() => api.post('/v1/clock/accept')} done=${refresh} />`}>
  <${Fields} items=${[['broker', html`<${Exact} at=${clock.broker_at} />`], ['machine', html`<${Exact} at=${clock.machine_at} />`], ['ahead', f.duration(clock.ahead_ms)]]} />
  ${clock.advice && html`<p><${Badge} state="warning">held<//> ${clock.advice}</p>`}<//>`
