"""`/v1/metrics`: the numbers of the server in the text format of Prometheus."""

from __future__ import annotations

from driftq.server.context import Context
from driftq.server.http import Request, Response
from driftq.server.metrics import CONTENT_TYPE, Metrics


class MetricsFace:
    """One page."""

    def __init__(self, context: Context) -> None:
        self._metrics = context.metrics or Metrics(context.engine)

    async def page(self, request: Request) -> Response:
        return Response(200, await self._metrics.page(), CONTENT_TYPE)
