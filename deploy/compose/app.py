"""The worker of compose.yaml: put your own here."""

from __future__ import annotations

import logging

import driftq

logger = logging.getLogger("app")


@driftq.worker("orders", group="billing")
def bill(message: driftq.Message) -> None:
    logger.info("billing order %s", message.value.decode())
