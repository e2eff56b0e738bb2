"""An agent pipeline: a planner sends steps, a router decides who works on them, and each step knows where it came from.

    driftq serve --memory --set router.kind=rules --set router.target=examples/rules.toml
    python examples/agent_pipeline.py

Each worker acks its step and sends the next ones in one write, so a run never loses a step and never has one twice. The
last step writes the lineage of the run, which the program prints as a tree.
"""

from __future__ import annotations

import uuid

import driftq
from driftq.client.transport.sansio import RetryOptions

STEPS = "agent.steps"  # no worker reads it: the router's rules send each step on by its label


def next_step(outcome, message: driftq.AsyncMessage, kind: str, value: object, name: str) -> None:
    """A step that follows from a message, with its lineage."""
    outcome.send(
        STEPS, value, run_id=message.envelope.run_id, step_id=name, parent_step_id=message.envelope.step_id,
        labels={"kind": kind},
    )  # fmt: skip


@driftq.worker("agent.plans", group="planner")
async def plan(message: driftq.AsyncMessage) -> None:
    question = message.json()["question"]
    async with message.outcome() as outcome:
        for number, topic in enumerate(question.split(" and "), 1):
            next_step(outcome, message, "research", {"topic": topic}, f"research-{number}")


@driftq.worker("agent.research", group="researchers", concurrency=4)
async def research(message: driftq.AsyncMessage) -> None:
    topic = message.json()["topic"]
    async with message.outcome() as outcome:
        facts = f"what is known about {topic}"
        next_step(outcome, message, "write", {"found": facts}, message.envelope.step_id.replace("research", "write"))


@driftq.worker("agent.writing", group="writers", concurrency=4)
async def write(message: driftq.AsyncMessage) -> None:
    envelope = message.envelope
    line = {"step": envelope.step_id, "parent": envelope.parent_step_id, "label": message.routing.label}
    async with message.outcome() as outcome:
        outcome.append(f"runs/{envelope.run_id}", line, content_type="application/json")


def ask(broker: driftq.DriftQ, question: str) -> str:
    """Begin a run; returns its id."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    broker.stream(f"runs/{run_id}", "application/json").create()
    broker.send("agent.plans", {"question": question}, run_id=run_id, step_id="plan", idempotency_key=run_id)
    return run_id


def main() -> None:
    with driftq.connect(retry=RetryOptions(deadline_ms=10_000)) as broker:
        for topic in (STEPS, "agent.plans", "agent.research", "agent.writing"):
            broker.topics.create(topic)
        run_id = ask(broker, "queues and streams and leases")
        for _ in range(3):  # plan, research, write: in real life each runs permanently in a process of its own
            driftq.run(plan, research, write, broker=broker, drain=True)
        print(f"{run_id}: plan")
        for line in broker.stream(f"runs/{run_id}").read_all().json():
            print(f"  {line['parent']} -> {line['step']} (routed as {line['label']})")


if __name__ == "__main__":
    main()
