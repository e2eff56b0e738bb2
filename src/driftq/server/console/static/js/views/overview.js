// Is all well, now and in the last hours? What needs attention, in words.

import {html, useState} from '../../vendor/htm-preact.mjs'
import {maySome} from '../access.js'
import * as f from '../format.js'
import {to} from '../location.js'
import {Badge, Command, Empty, Failure, Figures, Loading, Page, Plot, Section, Time, useCall} from '../ui.js'

const SPANS = [['1 h', 3600], ['6 h', 21600], ['24 h', 86400]]

const place = (item) => {
  if (item.kind.startsWith('dead') && item.topic) return ['dead-letters', item.topic]
  if (item.group) return ['groups', item.topic, item.group]
  if (item.topic) return ['topics', item.topic]
  return item.kind === 'loop_stalls' ? null : ['storage']
}
const WORDS = {'dead-letters': 'see the letters', groups: 'see the group', topics: 'see the topic', storage: 'see the storage'}

const Attention = ({items}) => (items.length
  ? html`<ul class="attention">${items.map((item) => html`<li key=${item.text}><span><${Badge} state=${item.severity} /></span><span>${item.text}</span>
      ${place(item) && html`<a href=${to(...place(item))}>${WORDS[place(item)[0]]}</a>`}${item.command && html`<code>${item.command}</code>`}</li>`)}</ul>`
  : html`<p class="well"><${Badge} state="ok">all well<//> Nothing needs attention.</p>`)

const Start = () => html`<${Section} title="Nothing is here yet"><p>Three commands make something appear:</p>
  <${Command}>driftq topics create orders --partitions 4<//>
  <${Command}>driftq produce orders '{"id": 1}' --key customer-1<//>
  <${Command}>driftq consume orders billing --drain<//>
  ${maySome('manage') && html`<p class="faint">Or create a topic and send a message <a href=${to('topics')}>on the page of topics</a>.</p>`}<//>`

export const Overview = () => {
  const {data, error} = useCall('/v1/overview', {everyMs: 4000})
  const [span, setSpan] = useState(SPANS[0][1])
  const picker = html`<div class="pick" role="group" aria-label="Time span">${SPANS.map(([label, seconds]) => html`<button type="button"
    aria-pressed=${span === seconds} onClick=${() => setSpan(seconds)}>${label}</button>`)}</div>`
  return html`<${Page} title="Overview" subtitle=${data && html`DriftQ ${data.version} · durability ${data.durability} · up ${f.duration(data.uptime_ms)}`} actions=${picker}>
    ${error && !data && html`<${Failure} error=${error} />`}
    <${Section} title="What needs attention">${data ? html`<${Attention} items=${data.attention} />` : html`<${Loading} lines=${2} />`}<//>
    ${data?.counts.topics === 0 && data.counts.streams === 0 && html`<${Start} />`}
    <${Section} title="Now" note=${data && html`sampled <${Time} at=${data.sampled_at} />`}>${data ? html`<${Now} data=${data} />` : html`<${Loading} lines=${5} />`}<//>
    <${Series} seconds=${span} />
  <//>`
}

const Now = ({data: {counts, rates, latency, disk, stalls, oldest_lag_ms: oldest}}) => html`<${Figures} items=${[
  ['produced', f.rate(rates.produced)], ['delivered', f.rate(rates.delivered)], ['settled', f.rate(rates.settled)],
  ['failed', f.rate(rates.failed), '', '', rates.failed > 0 && 'warn'],
  ['lag', f.compact(counts.lag), 'messages that some group has not settled', to('groups')],
  ['oldest', f.duration(oldest), 'the age of the oldest message that a group has not settled', to('groups')],
  ['in flight', f.compact(counts.in_flight), 'held by workers'], ['waiting', f.compact(counts.waiting), 'in backoff or delayed'],
  ['dead letters', f.compact(counts.dead_letters), '', to('dead-letters'), counts.dead_letters > 0 && 'bad'],
  ['commit p99', f.duration(latency.commit_p99_ms), 'what a reply waits for'], ['fsync p99', f.duration(latency.fsync_p99_ms)],
  ['stalls', f.count(stalls.count), `turns of the event loop of 20 ms and longer in five minutes; longest ${f.duration(stalls.longest_ms)}`],
  ['topics', f.compact(counts.topics), '', to('topics')], ['streams', f.compact(counts.streams), '', to('streams')],
  ['workers', f.count(counts.workers), '', to('workers')], ['connections', f.compact(counts.connections)],
  disk && ['disk free', f.bytes(disk.free_bytes), `of ${f.bytes(disk.size_bytes)}`, to('storage')],
]} />`

// title, lines as [label, series, colour?], format, hint
const PLOTS = [
  ['Messages per second', [['produced', 'produced'], ['delivered', 'delivered'], ['settled', 'settled']], f.compact],
  ['Failures per second', [['failed attempts', 'failed', '--plot2'], ['dead letters', 'dead', '--plot4']], f.compact],
  ['Oldest unsettled message', [['age', 'lag_seconds']], f.seconds],
  ['Latency, 99th percentile', [['commit', 'commit_p99_ms'], ['fsync', 'fsync_p99_ms', '--plot2']], f.duration, 'one in a hundred takes longer'],
  ['Lag in messages', [['lag', 'lag'], ['in flight', 'in_flight'], ['waiting', 'waiting']], f.compact],
  ['Bytes per second', [['produced', 'produced_bytes']], f.bytesPerS],
  ['Stalls of the event loop', [['stalls', 'stalls', '--plot4']], f.compact, 'turns of 20 ms and longer, in ten seconds'],
  ['Free disk space', [['free', 'disk_free_bytes', '--plot3']], f.bytes],
  ['Dead letters', [['waiting', 'dead_letters', '--plot4']], f.compact],
]
const NAMES = [...new Set(PLOTS.flatMap(([, lines]) => lines.map(([, name]) => name)))].join(',')
const POINTS = 240

const Series = ({seconds: span}) => {
  const {data, error} = useCall(`/v1/series?window_ms=${span * 1000}&points=${POINTS}&names=${NAMES}`, {everyMs: 10000})
  const last = data || Series.last
  if (data) Series.last = data
  if (error && !last) return html`<${Failure} error=${error} />`
  if (last && !Object.values(last.series)[0].length) return html`<${Empty}>The broker measures every ten seconds; the first values come soon.<//>`
  return html`<div class="grid">${PLOTS.map(([title, lines, format, hint]) => html`<${Section} key=${title}>${last
    ? html`<${Plot} ...${{title, format, hint}} start=${last.start} stepMs=${last.step_ms} lines=${lines.map(([label, name, colour]) => ({label, colour, values: last.series[name]}))} />`
    : html`<div class="plot"><figcaption><strong>${title}</strong></figcaption><div class="legend"></div><div class="canvas"></div></div>`}<//>`)}</div>`
}
