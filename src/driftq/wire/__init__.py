"""Everything that travels between client and server: bodies, records, error codes, protocol constants.

Server, client and Spark share these modules; they import nothing else of DriftQ.

    produce, claims, topics, groups, jobs, dead_letters, effects, stages, server_info     bodies of the queue API
    streams, subscriptions                                                                Durable Streams
    message, fields, errors                                                               what the bodies share
    records, partitions                                                                   packed batches
    router                                                                                routers and their rules
"""
