"""The HTTP connection layer: bytes to `Request`, `Response` to bytes, with limits, order and backpressure.

A handler gets a complete `Request` and returns a `Response`, a `FileResponse`, a `PieceResponse`, a `LazyReply`, a
`Streaming`, a `Deferred`, a future of one of the first five, or is a coroutine function. These are here;
`listener.serve` runs a server. The layer knows nothing of what is served.
"""

from driftq.server.http.limits import HttpLimits
from driftq.server.http.request import BadRequest, Request, query_pairs
from driftq.server.http.response import (
    Answer,
    Deferred,
    FileResponse,
    Handler,
    LazyReply,
    PieceResponse,
    Reply,
    Response,
    Streaming,
    reply_of,
)
from driftq.server.http.stream import ResponseStream

__all__ = [
    "Answer",
    "BadRequest",
    "Deferred",
    "FileResponse",
    "Handler",
    "HttpLimits",
    "LazyReply",
    "PieceResponse",
    "Reply",
    "Request",
    "Response",
    "ResponseStream",
    "Streaming",
    "query_pairs",
    "reply_of",
]
