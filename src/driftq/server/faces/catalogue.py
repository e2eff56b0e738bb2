"""Which streams there are, and forgetting the beginning of one: what the protocol of streams does not have.

In the manners of the rest of the API: JSON bodies, and errors with a code and a message.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from driftq.core import commands as c
from driftq.core.replies import Done, StreamsListed
from driftq.server.bodies import page_limit, read_json
from driftq.server.context import Context, json_response
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.wire import streams as w
from driftq.wire.times import to_rfc3339


class TrimRequest(Struct, frozen=True, forbid_unknown_fields=True):
    stream: Annotated[str, Meta(min_length=1)]
    before: str


class ListedStream(Struct, frozen=True):
    stream: str
    content_type: str
    next_offset: str
    closed: bool
    created_at: str


class StreamsReply(Struct, frozen=True):
    """`after` is where the next page begins; it is missing on the last."""

    streams: list[ListedStream]
    after: str | None = None


class CatalogueFace:
    """Handlers of `/v1/streams`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def list(self, request: Request) -> Answer:
        query = request.query
        command = c.ListStreams(query.get("prefix", ""), query.get("after", ""), page_limit(request))
        return self._context.ask(command, _listed)

    def trim(self, request: Request) -> Answer:
        body = read_json(request.body, TrimRequest)
        before = w.offset_of(body.before)
        if before is None:
            raise BadRequest("invalid before: it is the offset that becomes the first")

        def respond(done: Done) -> Response:
            return json_response({"stream": body.stream, "earliest_offset": body.before, "trimmed": done.changed})

        return self._context.ask(c.TrimStream(body.stream.strip("/"), before), respond)


def _listed(reply: StreamsListed) -> Response:
    shown = [
        ListedStream(each.path, each.content_type, w.token(each.end_offset), each.closed, to_rfc3339(each.created_ms))
        for each in reply.streams
    ]
    return json_response(StreamsReply(shown, reply.streams[-1].path if reply.more else None))
