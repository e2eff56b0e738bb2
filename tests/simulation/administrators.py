"""Clients that make, narrow, rotate and revoke access tokens, that make and change tenants, that try to change the
audit, and that make schedules. Most of their commands are audited. Each draws from a generator of its own, and acts in
some seeds only, so that the others stay as they were."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from driftq.core.broker import SWEEP_AGAIN_MS
from driftq.core.model import access as a
from driftq.core.model import commands as c
from driftq.core.model import schedules as d
from driftq.core.model import tenants as t
from driftq.core.model.facts import RecordSchedule, TopicConfig
from driftq.core.model.schedule_facts import CatchUp, ScheduledMessage, ScheduleSpec, ScheduleTimes
from driftq.core.model.tenant_facts import TenantQuotas
from driftq.engine.schedule_planner import next_plans
from driftq.engine.schedule_times import next_plan
from driftq.wire.audit import AUDIT_TOPIC, AuditRecord
from driftq.wire.records import pack_one
from tests.simulation.actors import Actor
from tests.simulation.checks.schedules import VALUE
from tests.simulation.world import World

GRANTS = ("produce:*", "produce:a.*", "produce:a.b", "read:*", "read:a*", "manage:a.b*", "observe", "admin")


def acts_in(seed: int) -> bool:
    return seed % 8 == 6


class Administrator(Actor):
    """Says who asks, most of the time."""

    def _audited(self, command: c.Command, chance: Random) -> c.Command:
        if isinstance(command, c.CreateStream) or chance.random() < 0.2:  # a stream is work, and is not audited
            return command
        note = AuditRecord(
            action=type(command).__name__, name="name", who=str(self), request_id=f"{self.kind} {self.sent}"
        )
        return replace(command, audit=note)


class TokenAdministrator(Administrator):
    """Makes tokens and takes rights away from them; sometimes tries to give one more than it had."""

    kind = "tokens"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._own_random = Random(f"tokens {world.swarm.seed}")

    def act(self) -> None:
        chance = self._own_random
        if chance.random() < 0.06:
            self.ask(self._audited(self._command(chance), chance))

    def _command(self, chance: Random) -> c.Command:
        self.sent += 1
        token_id = f"token{chance.randrange(6)}"
        digest = f"secret {self.sent}".encode()
        grants = tuple(chance.sample(GRANTS, chance.randrange(1, 4)))
        expires_ms = self.world.now_ms + chance.choice((-10, 500, 5_000, 60_000))
        kind = chance.random()
        if kind < 0.3:
            return a.CreateAccessToken(
                token_id, "name", grants, digest, expires_ms=chance.choice((0, expires_ms)), first=chance.random() < 0.1
            )
        if kind < 0.6:
            return a.NarrowAccessToken(token_id, chance.choice((None, grants)), chance.choice((None, None, expires_ms)))
        if kind < 0.8:
            return a.RotateAccessToken(token_id, digest, chance.choice((0, 1_000, 20_000)))
        if kind < 0.9:
            return a.NoteAccessTokens((token_id, "token1"))
        return a.RevokeAccessToken(token_id)


TENANTS = ("a", "b-2")


class TenantAdministrator(Administrator):
    """Makes two tenants, changes their quotas, and makes and deletes what they may have, often more than that."""

    kind = "tenants"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._own_random = Random(f"tenants {world.swarm.seed}")

    def act(self) -> None:
        chance = self._own_random
        if chance.random() < 0.1:
            self.ask(self._audited(self._command(chance), chance))

    def _command(self, chance: Random) -> c.Command:
        self.sent += 1
        tenant = chance.choice(TENANTS)
        topic, path = f"{tenant}~t{chance.randrange(4)}", f"{tenant}~s/{chance.randrange(5)}"
        kind = chance.random()
        if kind < 0.1:
            return t.CreateTenant(tenant, TenantQuotas(topics=chance.randrange(4), streams=chance.randrange(4)))
        if kind < 0.2:
            return t.ChangeTenant(tenant, {chance.choice(("topics", "streams", "groups")): chance.randrange(4)})
        if kind < 0.25:
            return t.DeleteTenant(tenant)
        if kind < 0.45:
            return c.CreateTopic(topic, 1)
        if kind < 0.6:
            return c.CreateStream(path, "text/plain")
        if kind < 0.75:
            return c.CreateGroup(topic, f"g{chance.randrange(3)}")
        return chance.choice((c.DeleteTopic(topic), c.DeleteStream(path), c.DeleteGroup(topic, "g1")))


class AuditAdministrator(Actor):
    """Opens the audit, notes refusals, reads as a group; and tries to write to it, and to remove what is in it."""

    kind = "auditor"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._own_random = Random(f"audit {world.swarm.seed}")

    def act(self) -> None:
        chance = self._own_random
        if chance.random() < 0.03:
            self.ask(self._command(chance))

    def _command(self, chance: Random) -> c.Command:
        self.sent += 1
        kind = chance.random()
        if kind < 0.4:
            return a.OpenAudit(TopicConfig(retention_bytes=chance.choice((0, 20_000))))
        if kind < 0.6:
            notes = (
                AuditRecord(action="access", address=f"10.0.0.{n}", result="refused", count=n) for n in (1, self.sent)
            )
            return a.NoteAudit(tuple(notes))
        if kind < 0.7:
            return c.CreateGroup(AUDIT_TOPIC, "g")
        value = f"forged {self.sent}".encode()
        forbidden = (
            c.Produce(AUDIT_TOPIC, pack_one(value, b""), 1, len(value)),
            c.CreateTopic(AUDIT_TOPIC, 1),
            c.ConfigureTopic(AUDIT_TOPIC, TopicConfig(retention_ms=1)),
            c.DeleteTopic(AUDIT_TOPIC),
            c.TrimTopic(AUDIT_TOPIC, 0, self.sent),
            c.Cancel(AUDIT_TOPIC, 0, 0),
        )
        return chance.choice(forbidden)


class ScheduleAdministrator(Actor):
    """Makes, changes, pauses, runs and deletes four schedules, and is their planner: often late, sometimes with a plan
    of a while ago."""

    kind = "schedules"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._own_random = Random(f"schedules {world.swarm.seed}")
        self._old: tuple[d.NextPlan, ...] = ()  # a plan that was not submitted

    @staticmethod
    def acts_in(seed: int) -> bool:
        return seed % 4 == 2

    def act(self) -> None:
        chance = self._own_random
        if chance.random() < 0.05:
            self.ask(self._command(chance))
        if chance.random() < 0.3:
            self.plan(late=chance.random() < 0.3)

    def plan(self, *, late: bool = False) -> None:
        plans = next_plans(self.world.opened.broker.state.schedules, self.world.now_ms)
        if late and plans:
            plans, self._old = self._old, plans
        if plans:
            self.ask(d.PlanSchedules(plans))

    def _command(self, chance: Random) -> c.Command:
        self.sent += 1
        name = f"s{chance.randrange(4)}"
        kind = chance.random()
        if kind < 0.5:
            return self._create(chance, name)
        if kind < 0.65:
            return d.PauseSchedule(name)
        if kind < 0.85:
            return d.PauseSchedule(name, paused=False)
        if kind < 0.95:
            return d.RunSchedule(name, f"r{chance.randrange(20)}")
        return d.DeleteSchedule(name)

    def _create(self, chance: Random, name: str) -> c.Command:
        now_ms = self.world.now_ms
        every_ms = chance.choice((0, 1_000, 2_500, 20_000))
        times = ScheduleTimes(
            "" if every_ms else chance.choice(("*/2 * * * * *", "* * * * *")),
            every_ms,
            "" if every_ms else "Europe/Paris",
            anchor_ms=now_ms if every_ms else 0,
            start_ms=chance.choice((0, 0, now_ms + 3_000)),
            end_ms=chance.choice((0, 0, now_ms + 30_000)),
            jitter_ms=chance.choice((0, 0, 900)),
        )
        catch_up: CatchUp = chance.choice(("none", "last", "all"))
        # A clock may jump by a day, and what is fired at once has to fit into the small journals here.
        long_ms = 366 * 86_400_000 if catch_up != "all" else 20_000
        window_ms = chance.choice((1_000, 60_000, long_ms))
        topic = chance.choice((self.topic_of(chance), "gone"))
        message = ScheduledMessage(topic, VALUE, b"", b"", RecordSchedule(0, tracked=True))
        spec = ScheduleSpec(message, times, catch_up, window_ms)
        return d.CreateSchedule(name, spec, next_plan(spec, now_ms, now_ms), replace=chance.random() < 0.7)

    def topic_of(self, chance: Random) -> str:
        return f"t{chance.randrange(self.world.swarm.topics)}"

    def finish(self) -> None:
        """Without faults, everything that is due fires. Then the schedules are paused: messages come to an end."""
        world, now_ms = self.world, 0
        for _ in range(300):
            world.now_ms += 1_000
            now_ms = self._fire_due()
        world.audit.schedules.all_fired(world.opened.broker.state, now_ms)
        for name in list(world.opened.broker.state.schedules.by_name):
            world.submit(d.PauseSchedule(name), self)
        world.commit_all()

    def _fire_due(self) -> int:
        """Plan and fire what is due. Returns the time at which nothing was left; a slow commit ends later."""
        world = self.world
        for _ in range(20):
            self.plan()
            now_ms = world.now_ms
            while (command := world.opened.broker.due(now_ms)) is not None:
                world.submit(command, self)
            world.commit_all()
            schedules = world.opened.broker.state.schedules
            first = schedules.first_timer()
            if not schedules.unplanned and (first is None or first[0] > now_ms):
                break
            world.now_ms += SWEEP_AGAIN_MS  # a schedule that could not fire is tried again then
        return now_ms
