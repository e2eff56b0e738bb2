"""Postgres as a queue: COPY in, SELECT … FOR UPDATE SKIP LOCKED and DELETE out, through psycopg."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench.peers.installation import MissingError
from bench.peers.peer import LIVE, QUEUE, Peer, PeerClient, Send
from bench.peers.server_process import ServerProcess, StartError, free_port
from tests.support.postgres import UNPRIVILEGED_UID, USER, installed, programs

SCHEMA = """
CREATE TABLE jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value bytea NOT NULL);
CREATE TABLE live (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, value bytea NOT NULL);
CREATE FUNCTION wake() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NOTIFY live; RETURN NULL; END $$;
CREATE TRIGGER wake AFTER INSERT ON live FOR EACH STATEMENT EXECUTE FUNCTION wake();
"""
CLAIM = "SELECT id, value FROM {} ORDER BY id FOR UPDATE SKIP LOCKED LIMIT {}"
SETTLE = "DELETE FROM {} WHERE id = ANY(%s)"


class PostgresPeer(Peer):
    name = "Postgres"
    client_package = "psycopg"
    durability = "default: fsync on, synchronous_commit on"
    notes = "a table; batches by COPY, one transaction each; claims by SKIP LOCKED and DELETE; LISTEN and NOTIFY"

    def __init__(self) -> None:
        super().__init__()
        self._bin: Path | None = None

    def install(self, *, download: bool) -> None:
        try:
            installed()
        except AssertionError as error:
            raise MissingError(str(error)) from error

    def version(self) -> str:
        program = installed() / "pginstall" / "bin" / "postgres"
        return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]

    def start(self, folder: Path) -> str:
        import psycopg

        credentials: dict[str, Any] = {}
        if os.geteuid() == 0:  # Postgres refuses to run as root
            user = pwd.getpwuid(UNPRIVILEGED_UID)
            credentials = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(folder, user.pw_uid, user.pw_gid)
        bin_ = programs(folder, credentials)
        data, port = folder / "data", free_port()
        make = [bin_ / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale", "C"]
        initialized = subprocess.run(make, check=False, capture_output=True, text=True, cwd=folder, **credentials)
        if initialized.returncode:
            raise StartError(f"initdb failed: {initialized.stderr.strip()[-200:]}")
        serve = [bin_ / "postgres", "-D", data, "-k", folder, "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
        process = ServerProcess(serve, folder, stop_signal=signal.SIGINT, credentials=credentials)
        self.processes.append(process)
        address = f"host=127.0.0.1 port={port} user={USER} dbname=postgres"
        process.wait_until(lambda: answers(address))
        with psycopg.connect(address) as connection:
            connection.execute(SCHEMA)
        return address


def answers(address: str) -> bool:
    import psycopg

    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True


class PostgresClient(PeerClient):
    def __init__(self, address: str) -> None:
        import psycopg

        super().__init__(address)
        self._connection = psycopg.connect(address, autocommit=True)

    def write(self, values: Sequence[bytes]) -> None:
        with self._connection.cursor() as cursor, cursor.copy(f"COPY {QUEUE} (value) FROM STDIN") as copy:
            for value in values:
                copy.write_row((value,))

    def send(self, value: bytes) -> None:
        self._connection.execute(f"INSERT INTO {QUEUE} (value) VALUES (%s)", (value,))

    def claim_and_ack(self, count_max: int) -> int:
        with self._connection.transaction():
            rows = self._connection.execute(CLAIM.format(QUEUE, count_max)).fetchall()
            if rows:
                self._connection.execute(SETTLE.format(QUEUE), ([identifier for identifier, _ in rows],))
        return len(rows)

    @contextlib.asynccontextmanager
    async def callers(self, count: int, queue: str) -> AsyncIterator[list[Send]]:
        import psycopg

        async with contextlib.AsyncExitStack() as stack:
            connections = []
            for _ in range(count):
                connection = await psycopg.AsyncConnection.connect(self.address, autocommit=True)
                connections.append(await stack.enter_async_context(connection))
            insert = f"INSERT INTO {queue} (value) VALUES (%s)"

            def sender(connection: psycopg.AsyncConnection[Any]) -> Send:
                return lambda value: connection.execute(insert, (value,))

            yield [sender(connection) for connection in connections]

    @contextlib.asynccontextmanager
    async def deliveries(self) -> AsyncIterator[AsyncIterator[bytes]]:
        import psycopg

        async with (
            await psycopg.AsyncConnection.connect(self.address, autocommit=True) as listener,
            await psycopg.AsyncConnection.connect(self.address, autocommit=True) as worker,
        ):
            await listener.execute(f"LISTEN {LIVE}")

            async def values() -> AsyncIterator[bytes]:
                async for _ in listener.notifies():
                    rows = [(0, b"")]
                    while rows:
                        async with worker.transaction():
                            rows = await (await worker.execute(CLAIM.format(LIVE, 100))).fetchall()
                            for _, value in rows:
                                yield value
                            if rows:
                                await worker.execute(SETTLE.format(LIVE), ([identifier for identifier, _ in rows],))

            yield values()

    def close(self) -> None:
        self._connection.close()
