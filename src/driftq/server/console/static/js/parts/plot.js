// Lines over time. The legend stands above the plot and shows the last values, or those at the cursor; it has its place
// from the start, so nothing moves. The cursors of all plots of a page move together.

import {html, useEffect, useRef, useState} from '../../vendor/htm-preact.mjs'
import * as f from '../format.js'

const COLOURS = ['--plot1', '--plot2', '--plot3', '--plot4']
const HEIGHT = 132
const clock = new Intl.DateTimeFormat(undefined, {hour: '2-digit', minute: '2-digit', hourCycle: 'h23'})

const latest = (values) => values.findLast?.((value) => value !== null) ?? null

function options(width, lines, format, setCursor) {
  const style = getComputedStyle(document.documentElement)
  const colour = (name) => style.getPropertyValue(name).trim()
  const axis = {stroke: colour('--faint'), grid: {stroke: colour('--grid'), width: 1}, ticks: {show: false}, font: '11px system-ui, sans-serif'}
  return {
    width, height: HEIGHT, padding: [6, 14, 0, 0], legend: {show: false},
    cursor: {y: false, points: {size: 5}, drag: {x: false, y: false}, sync: {key: 'console'}},
    hooks: {setCursor: [(plot) => setCursor(plot.cursor.idx ?? null)]},
    scales: {
      x: {range: (_, low, high) => (high - low < 120 ? [high - 120, high] : [low, high])},
      y: {range: (_, low, high) => [Math.min(0, low || 0), Math.max((high || 0) * 1.12, 1e-3) || 1]},
    },
    series: [{}, ...lines.map((line, index) => ({
      stroke: colour(line.colour || COLOURS[index % COLOURS.length]), width: 1.4, points: {show: false},
      fill: index === 0 && lines.length < 3 ? `${colour(line.colour || COLOURS[0])}1c` : undefined,
    }))],
    axes: [{...axis, size: 22, gap: 4, space: 70, values: (_, times) => times.map((time) => clock.format(time * 1000))},
      {...axis, size: 60, gap: 6, space: 34, ...(format.steps ? {incrs: format.steps} : {}), values: (_, values) => values.map((value) => format(value).replace('.0 ', ' '))}],
  }
}

// `lines`: {label, values, colour?}. Missing values are gaps.
export const Plot = ({title, hint, start, stepMs, lines, format = f.compact}) => {
  const element = useRef(null)
  const plot = useRef(null)
  const [cursor, setCursor] = useState(null)
  const key = lines.map((line) => line.label).join('|')
  const first = f.instant(start).getTime() / 1000
  const data = () => [(lines[0]?.values || []).map((_, index) => first + (index * stepMs) / 1000), ...lines.map((line) => line.values)]
  useEffect(() => {
    const draw = () => {
      plot.current?.destroy()
      plot.current = new window.uPlot(options(element.current.clientWidth, lines, format, setCursor), data(), element.current)
    }
    draw()
    const observer = new ResizeObserver(() => plot.current?.setSize({width: element.current.clientWidth, height: HEIGHT}))
    observer.observe(element.current)
    const scheme = matchMedia('(prefers-color-scheme: dark)')
    scheme.addEventListener('change', draw)
    document.addEventListener('driftq-theme', draw)
    return () => {
      observer.disconnect()
      scheme.removeEventListener('change', draw)
      document.removeEventListener('driftq-theme', draw)
      plot.current.destroy()
      plot.current = null
    }
  }, [key])
  useEffect(() => {
    plot.current?.setData(data())
  }, [lines, start])
  const at = (line) => (cursor === null ? latest(line.values) : line.values[cursor])
  const shown = (line) => (at(line) === null || at(line) === undefined ? '–' : format(at(line)))
  const last = lines.map((line) => `${line.label} ${format(latest(line.values) ?? 0)}`).join(', ')
  return html`<figure class="plot"><figcaption title=${hint || ''}><strong>${title}</strong>
      <span class="at">${cursor === null ? '' : clock.format((first + (cursor * stepMs) / 1000) * 1000)}</span></figcaption>
    <div class="legend" aria-hidden="true">${lines.map((line, index) => html`<span><i class=${`ink${line.colour?.at(-1) || index + 1}`}></i>${line.label} <b>${shown(line)}</b></span>`)}</div>
    <div class="canvas" ref=${element} role="img" aria-label=${`${title}. Latest: ${last}`}></div></figure>`
}
