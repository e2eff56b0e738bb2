// The views, in the order of the navigation, and how an address names one.

import {isOperator, may, maySome} from './access.js'
import {to} from './location.js'
import {Audit} from './views/audit.js'
import {DeadLetters, TopicDeadLetters} from './views/dead_letters.js'
import {Group, Groups} from './views/groups.js'
import {Job, Jobs} from './views/jobs.js'
import {JobBatch, JobBatches} from './views/job_batches.js'
import {Message} from './views/message.js'
import {Overview} from './views/overview.js'
import {Producers} from './views/producers.js'
import {Run, Runs} from './views/runs.js'
import {Schedule, Schedules} from './views/schedules.js'
import {Pipelines, Settings} from './views/settings.js'
import {Storage} from './views/storage.js'
import {Stream, Streams} from './views/streams.js'
import {Subscriptions} from './views/subscriptions.js'
import {Tenant, Tenants} from './views/tenants.js'
import {Tokens} from './views/tokens.js'
import {Topic, Topics} from './views/topics.js'
import {Workers} from './views/workers.js'

const everyone = () => true
const reader = () => maySome('read')
const observer = () => isOperator() && may('observe')
const operator = () => isOperator() && may('admin')
const auditor = () => may('read', '_audit')
const administrator = () => may('admin')

// `:name` takes one part of the path, `*name` the rest. `key` goes there after `g`. `isShown`: to whom.
export const ROUTES = [
  {path: '', view: Overview, label: 'Overview', section: '', key: 'o', isShown: observer},
  {path: 'topics', view: Topics, label: 'Topics', section: 'Queue', key: 't', isShown: everyone},
  {path: 'topics/:topic', view: Topic},
  {path: 'topics/:topic/:partition/:offset', view: Message},
  {path: 'groups', view: Groups, label: 'Groups', section: 'Queue', key: 'g', isShown: everyone},
  {path: 'groups/:topic/:group', view: Group},
  {path: 'dead-letters', view: DeadLetters, label: 'Dead letters', section: 'Queue', key: 'd', isShown: reader},
  {path: 'dead-letters/:topic', view: TopicDeadLetters},
  {path: 'jobs', view: Jobs, label: 'Jobs', section: 'Work', key: 'j', isShown: reader},
  {path: 'jobs/:topic/:id', view: Job},
  {path: 'job-batches', view: JobBatches, label: 'Job batches', section: 'Work', key: 'a', isShown: reader},
  {path: 'job-batches/:id', view: JobBatch},
  {path: 'schedules', view: Schedules, label: 'Schedules', section: 'Work', key: 'e', isShown: everyone},
  {path: 'schedules/:name', view: Schedule},
  {path: 'runs', view: Runs, label: 'Runs', section: 'Work', key: 'r', isShown: observer},
  {path: 'runs/:run', view: Run},
  {path: 'workers', view: Workers, label: 'Workers', section: 'Work', key: 'w', isShown: everyone},
  {path: 'streams', view: Streams, label: 'Streams', section: 'Streams', key: 's', isShown: everyone},
  {path: 'streams/*stream', view: Stream},
  {path: 'subscriptions', view: Subscriptions, label: 'Subscriptions', section: 'Streams', key: 'u', isShown: everyone},
  {path: 'producers', view: Producers, label: 'Producers', section: 'Streams', key: 'i', isShown: everyone},
  {path: 'pipelines', view: Pipelines, label: 'Pipelines', section: 'Broker', key: 'p', isShown: observer},
  {path: 'storage', view: Storage, label: 'Storage', section: 'Broker', key: 'b', isShown: observer},
  {path: 'tenants', view: Tenants, label: 'Tenants', section: 'Broker', key: 'n', isShown: operator},
  {path: 'tenants/:tenant', view: Tenant},
  {path: 'tokens', view: Tokens, label: 'Tokens', section: 'Broker', key: 'k', isShown: administrator},
  {path: 'audit', view: Audit, label: 'Audit', section: 'Broker', key: 'y', isShown: auditor},
  {path: 'settings', view: Settings, label: 'Settings', section: 'Broker', key: 'c', isShown: observer},
]

export const place = (route) => (route.path ? to(route.path) : '/console/')

// The view of a path, with the values of its names. Who may not see the overview begins with the topics.
export function match(path) {
  const parts = path.replace(/^\/console\/?/, '').split('/').map(decodeURIComponent)
  if (parts.join('') === '' && !observer()) parts[0] = 'topics'
  for (const route of ROUTES) {
    const names = route.path.split('/')
    const rest = names.at(-1).startsWith('*')
    if (rest ? parts.length < names.length : parts.length !== names.length) continue
    const values = {}
    const fits = names.every((name, index) => {
      if (name.startsWith('*')) values[name.slice(1)] = parts.slice(index).join('/')
      else if (name.startsWith(':')) values[name.slice(1)] = parts[index]
      else return name === parts[index]
      return true
    })
    if (fits) return {route, values}
  }
  return null
}
