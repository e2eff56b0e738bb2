"""A copy of the broker's data as a tar archive, made while it runs. Which files, and how much of each, is in
`storage.backup`; reading them is left to threads."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from driftq.server.handlers.codec import encoded, refused
from driftq.server.http import Answer, Request, Streaming
from driftq.server.http.response import JSON
from driftq.storage.backup import BackupFailed, FrozenFolder, freeze
from driftq.storage.backup_stream import CONTENT_TYPE, archive
from driftq.wire.errors import CODES, Code, error_fields

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context
    from driftq.server.http import ResponseStream

logger = logging.getLogger("driftq.backup")


class BackupHandlers:
    """The handler of `/v1/backup`. One copy at a time: its files stay on the disk until it is done."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._is_busy = False

    def download(self, request: Request) -> Answer:
        folder = self._engine.folder
        if folder is None:
            return refused(Code.CONFLICT, "this broker keeps its data in memory: there is nothing to copy")
        if self._is_busy:
            return refused(Code.BUSY, "another backup is under way; try again when it is done")
        return self._context.noted(request, "", lambda: Streaming(lambda stream: self._send(folder, stream)))

    async def _send(self, folder: str, stream: ResponseStream) -> None:
        if self._is_busy:
            raise BackupFailed("another backup was started first")
        self._is_busy = True
        try:
            frozen = await _freeze(folder)
        except BackupFailed as error:
            self._is_busy = False
            spec = CODES[Code.UNAVAILABLE]
            await stream.start(spec.status, content_type=JSON)
            stream.write(encoded(error_fields(spec.error, str(error))))
            return
        except BaseException:
            self._is_busy = False
            raise
        loop = asyncio.get_running_loop()
        try:
            await stream.start(200, [("Driftq-Lsn", str(frozen.lsn))], CONTENT_TYPE)
            pieces = archive(frozen, time.time())
            while piece := await loop.run_in_executor(None, next, pieces, b""):
                if self._engine.sequencer.is_full():
                    raise BackupFailed("the disk is full, and files that the backup holds may be what fills it")
                stream.write(piece)
                if not await stream.drain() or stream.over:
                    return  # the archive has no end, and the client knows it
            logger.info("a backup up to lsn %d was sent", frozen.lsn)
        finally:
            self._is_busy = False
            await loop.run_in_executor(None, frozen.close)


async def _freeze(folder: str) -> FrozenFolder:
    """Freeze in a thread. If the caller is cancelled, what the thread made is released."""
    freezing = asyncio.get_running_loop().run_in_executor(None, freeze, folder)
    try:
        return await asyncio.shield(freezing)
    except asyncio.CancelledError:
        freezing.add_done_callback(_release)
        raise


def _release(freezing: asyncio.Future[FrozenFolder]) -> None:
    if not freezing.cancelled() and freezing.exception() is None:
        freezing.result().close()
