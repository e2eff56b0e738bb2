// The published conformance suite, all of it, against the server named in the environment.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.DRIFTQ_URL, subscriptions: true })
