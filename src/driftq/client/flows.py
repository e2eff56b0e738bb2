"""The old name of `driftq.RetryOptions`, for programs that import it."""

from driftq.client.transport.sansio import RetryOptions as Patience

__all__ = ["Patience"]
