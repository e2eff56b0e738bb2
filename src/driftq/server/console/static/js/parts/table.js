// Tables, their filters and pages.

import {html, useState} from '../../vendor/htm-preact.mjs'
import {Input, Select} from './dialog.js'
import {Link} from './text.js'

// `columns`: {label, cell(row), sort(row)?, end?: right-aligned, acts?: buttons, always in sight, hint?}. Sorting is of
// the rows that are loaded.
export const Table = ({columns, rows, keyOf, onSelect, selected, label, sorted, onSort}) => {
  const [order, setOrder] = useState(sorted || null)
  const shownColumns = columns.filter(Boolean)
  const column = order && shownColumns.find((candidate) => candidate.label === order.label)
  const shown = column?.sort && !onSort ? [...rows].sort((a, b) => compare(column.sort(a), column.sort(b)) * (order.down ? -1 : 1)) : rows
  const turn = (chosen) => {
    const next = {label: chosen.label, down: order?.label === chosen.label ? !order.down : !!chosen.end}
    setOrder(next)
    onSort?.(chosen, next.down)
  }
  const all = onSelect && rows.length > 0 && rows.every((row) => selected.has(keyOf(row)))
  const ordering = (head) => (order?.label === head.label ? (order.down ? 'descending' : 'ascending') : undefined)
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>
      ${onSelect && html`<th class="check"><input type="checkbox" aria-label="Select all" checked=${all}
        onChange=${() => onSelect(all ? new Set() : new Set(rows.map(keyOf)))} /></th>`}
      ${shownColumns.map((head) => html`<th class=${head.acts ? 'acts' : head.end ? 'end' : ''} title=${head.hint || ''} aria-sort=${ordering(head)}>
        ${head.sort && (!onSort || head.by) ? html`<button type="button" class="sort" onClick=${() => turn(head)}>${head.label}<i aria-hidden="true">${
          ordering(head) ? (order.down ? '↓' : '↑') : ''}</i></button>` : head.label}</th>`)}
    </tr></thead>
    <tbody>${shown.map((row) => html`<tr key=${keyOf(row)} class=${selected?.has(keyOf(row)) ? 'chosen' : ''}>
      ${onSelect && html`<td class="check"><input type="checkbox" aria-label=${`Select ${keyOf(row)}`}
        checked=${selected.has(keyOf(row))} onChange=${() => onSelect(toggled(selected, keyOf(row)))} /></td>`}
      ${shownColumns.map((head) => html`<td class=${head.acts ? 'acts' : head.end ? 'end' : head.wide ? 'wide' : ''}>${head.cell(row)}</td>`)}
    </tr>`)}</tbody></table></div>`
}

function toggled(set, key) {
  const next = new Set(set)
  if (!next.delete(key)) next.add(key)
  return next
}

function compare(a, b) {
  if (a === b) return 0
  if (a === null || a === undefined) return -1
  if (b === null || b === undefined) return 1
  return a < b ? -1 : 1
}

export const More = ({pages, noun}) => pages.after
  ? html`<p class="more"><button type="button" onClick=${pages.more}>Load more ${noun}</button></p>` : null

// Filters that live in the address, so that a filtered list can be linked.
export const Filters = ({fields, values, onChange, children}) => html`<form class="filters" role="search" onSubmit=${(event) => {
  event.preventDefault()
  onChange({...values, ...Object.fromEntries(new FormData(event.target))})
}}>${fields.map((field) => (field.options
    ? html`<${Select} ...${field} value=${values[field.name] || ''} onChange=${(event) => event.target.form.requestSubmit()} />`
    : html`<${Input} key=${`${field.name}=${values[field.name] || ''}`} ...${field} value=${values[field.name] || ''} />`))}
  <button>Filter</button>${children}</form>`

export const Tabs = ({tabs, current}) => html`<nav class="tabs" aria-label="Parts of this page">${tabs.filter(Boolean).map(([label, to, key]) =>
  html`<${Link} to=${to} aria-current=${current === key ? 'page' : undefined}>${label}<//>`)}</nav>`
