"""FastAPI: background tasks that survive a crash of the web process.

    pip install driftq fastapi uvicorn
    driftq serve --data ./data
    uvicorn fastapi_app:app
    curl -X POST 'localhost:8000/orders?number=7'

The client lives as long as the application (`lifespan`) and is a dependency of the routes. A task is on disk when the
route answers, so a process that is killed in the middle loses nothing: the next one runs the task again. The receipt is
written at the end of the task, under an effect, so it is written once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request

import driftq

RECEIPTS = Path(os.environ.get("RECEIPTS", "receipts.txt"))
RENDER_S = float(os.environ.get("RENDER_S", "0.1"))


@driftq.task("receipt.v1", topic="receipts", group="mail", concurrency=4, lease_ms=2_000)
async def send_receipt(number: int) -> None:
    await asyncio.sleep(RENDER_S)
    async with driftq.current_message().effect() as effect:
        if effect.fresh:
            await asyncio.to_thread(write_receipt, number)


def write_receipt(number: int) -> None:
    with RECEIPTS.open("a", encoding="utf-8") as file:
        file.write(f"receipt {number}\n")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect, and run the workers of this process beside its routes; `driftq worker fastapi_app` runs them alone."""
    async with driftq.connect_async() as broker:
        await broker.topics.create("receipts")
        app.state.broker = broker
        stop = asyncio.Event()
        working = asyncio.create_task(send_receipt.run_async(broker, stop=stop))
        yield
        stop.set()
        await working


app = FastAPI(lifespan=lifespan)


def broker_of(request: Request) -> driftq.AsyncDriftQ:
    broker: driftq.AsyncDriftQ = request.app.state.broker
    return broker


Broker = Annotated[driftq.AsyncDriftQ, Depends(broker_of)]


@app.post("/orders", status_code=202)
async def order(number: int, broker: Broker) -> dict[str, str]:
    """The same order twice is one job: its id is the order's."""
    job = send_receipt.options_for(id=f"order-{number}")
    handle = await job.enqueue(broker, number)
    return {"job": handle.id}


@app.get("/orders/{number}")
async def status(number: int, broker: Broker) -> dict[str, str]:
    job = await broker.jobs.find("receipts", f"order-{number}")
    return {"state": job["state"]}
