"""`GET /v1/explain`: why a message is not being delivered, and until when."""

from __future__ import annotations

from collections.abc import Mapping

from driftq.core.choosing import Wanted
from driftq.core.rules.topics import bad_partition, no_such_group, no_such_topic
from driftq.engine.queries import StateView
from driftq.server.bodies import number
from driftq.server.context import Context, json_response
from driftq.server.explaining import Explainer
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.problems import refusal


class ExplainFace:
    """One question."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def explain(self, request: Request) -> Answer:
        """`?topic=&partition=&offset=`, for one `&group=` or all; `&task=` and `&label=` as a claim would ask."""
        query = request.query
        if not query.get("topic"):
            raise BadRequest("topic, partition and offset are required")
        partition, offset = (number(name, query.get(name, "")) for name in ("partition", "offset"))
        return self._context.query(lambda view: self._explain(view, query, partition, offset))

    def _explain(self, view: StateView, query: Mapping[str, str], partition: int, offset: int) -> Response:
        topic = view.state.topics.get(query["topic"])
        if topic is None:
            return refusal(no_such_topic(query["topic"]))
        if partition >= len(topic.log_ids):
            return refusal(bad_partition(partition, topic))
        groups = list(topic.groups.values())
        if "group" in query:
            if query["group"] not in topic.groups:
                return refusal(no_such_group(topic.name, query["group"]))
            groups = [topic.groups[query["group"]]]
        wanted = Wanted(query.get("task"), query.get("label"))
        return json_response(Explainer(view, self._engine, topic, partition, offset, wanted).explain(groups))
