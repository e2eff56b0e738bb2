"""Old names of `driftq.RouteDecision` and `driftq.RouteInput`, for routers that import them."""

from driftq.wire.router import RouteDecision as Decision
from driftq.wire.router import RouteInput as Message

__all__ = ["Decision", "Message"]
