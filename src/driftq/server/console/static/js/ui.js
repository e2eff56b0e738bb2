// The parts that views are made of, in one place.

export * from './parts/data.js'
export * from './parts/dialog.js'
export * from './parts/plot.js'
export * from './parts/table.js'
export * from './parts/text.js'
