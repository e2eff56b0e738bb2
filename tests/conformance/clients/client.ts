// A program of somebody who knows only the OpenAPI document: types are generated from it, calls go through openapi-fetch.
import createClient from "openapi-fetch"
import type { components, paths } from "./schema.js"

declare const process: { env: Record<string, string | undefined> }

const client = createClient<paths>({ baseUrl: process.env.DRIFTQ_URL })

function required<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error))
  return answer.data
}

required(await client.POST("/v1/topics", { body: { name: "letters", partitions: 2 } }))
const sent = required(await client.POST("/v1/produce", { body: { topic: "letters", value: "hello", key: "ann" } }))
const claim: components["schemas"]["ClaimRequest"] = { topic: "letters", group: "post", owner: "ts", max: 1 }
const message = required(await client.POST("/v1/claim", { body: claim })).messages[0]
const ack = { topic: "letters", group: "post", partition: message.partition, offset: message.offset, token: message.token }
const acked = await client.POST("/v1/ack", { body: ack })
const stale = await client.POST("/v1/ack", { body: { ...ack, offset: 99 } })
const group = required(
  await client.GET("/v1/topics/{topic}/groups/{group}", { params: { path: { topic: "letters", group: "post" } } }),
)

const path = { path: "lines" }
await client.PUT("/v1/stream/{path}", { params: { path }, body: [], headers: { "content-type": "application/json" } })
await client.POST("/v1/stream/{path}", { params: { path }, body: [{ n: 1 }, { n: 2 }] })
const read = await client.GET("/v1/stream/{path}", { params: { path, query: { offset: "-1" } }, parseAs: "json" })

const following = { params: { path: { id: "watch" } } }
const body: components["schemas"]["SubscriptionRequest"] = { type: "pull-wake", streams: ["lines"], wake_stream: "wakes" }
const followed = required(await client.PUT("/v1/stream/__ds/subscriptions/{id}", { ...following, body }))

console.log(
  JSON.stringify({
    partition: sent.partition,
    value: message.value,
    acked: acked.response.status,
    stale: [stale.response.status, stale.error?.error],
    lag: group.lag,
    stream: read.data,
    followed: followed.streams.map((each) => each.path),
  }),
)
