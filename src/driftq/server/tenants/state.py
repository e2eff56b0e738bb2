"""The broker's state as a tenant sees it: what is in its namespace, under its own names.

    State                                  TenantState("acme")
    topics   acme~orders, other~orders     orders
    logs     of both                       of acme~orders
    streams  acme~runs/1, runs/1           runs/1
    tokens   of all tenants                of acme

Handlers of a tenant get this instead of the state. It has only what is listed here: a handler that asks for anything
else fails, so what is new must be given a namespace before a tenant can see it. Objects are wrapped, so that they show
their own names; a wrapped object is the same one as long as a caller holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

if TYPE_CHECKING:
    from driftq.core.model.commands import EffectKey, ProduceKey
    from driftq.core.state.effects import EffectRecord
    from driftq.core.state.idempotency_keys import ProducedKey
    from driftq.core.state.job_batches import JobBatch
    from driftq.core.state.state import State
    from driftq.server.tenants.names import TenantNames

K = TypeVar("K")


class OwnNamed:
    """Something of the broker, with its names as the tenant sees them."""

    __slots__ = ("__weakref__", "_names", "_thing")

    def __init__(self, thing: Any, names: dict[str, Any]) -> None:
        self._thing = thing
        self._names = names

    def __getattr__(self, attribute: str) -> Any:
        names: dict[str, Any] = object.__getattribute__(self, "_names")
        if attribute in names:
            return names[attribute]
        return getattr(object.__getattribute__(self, "_thing"), attribute)


class View(Mapping[K, Any], Generic[K]):
    """A table of the broker, as far as a tenant sees it."""

    __slots__ = ("_find", "_keys")

    def __init__(self, find: Callable[[K], Any], keys: Callable[[], Iterator[K]]) -> None:
        self._find = find  # None: there is no such thing in the namespace
        self._keys = keys

    def __getitem__(self, key: K) -> Any:
        value = self._find(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        return self._keys()

    def __len__(self) -> int:
        return sum(1 for _ in self._keys())


class TenantState:
    """The state of one tenant."""

    def __init__(self, state: State, names: TenantNames) -> None:
        self._state = state
        self._names = names
        self._space = names.space
        self._wrapped: WeakValueDictionary[int, OwnNamed] = WeakValueDictionary()  # by the id of what is wrapped
        self.topics = View(self._topic, self._topic_names)
        self.logs = View(self._log, self._log_ids)
        self.groups = View(self._group, self._group_ids)
        self.streams = TenantStreams(self)
        self.subscriptions = TenantSubscriptions(state, names)
        self.stages = TenantStages(state, names)
        self.keys = TenantKeys(state, names)
        self.effects = TenantEffects(state, names)
        self.access_tokens = TenantTokens(state, self._space.tenant)
        self.job_batches = TenantJobBatches(state, self)
        self.schedules = TenantSchedules(state, names)
        # By log and by group, both of which come from the tables above.
        self.job_attempts = state.job_attempts
        self.results = state.results
        self.reports = state.reports
        self.is_forgettable_at = state.is_forgettable_at
        self.tenure = state.tenure

    def wrap(self, thing: Any, **names: Any) -> OwnNamed:
        known = self._wrapped.get(id(thing))
        if known is None or known._thing is not thing:
            known = self._wrapped[id(thing)] = OwnNamed(thing, names)
        return known

    def job_batch(self, batch: JobBatch | None) -> OwnNamed | None:
        if batch is None or not self._space.holds(batch.batch_id):
            return None
        topics = dict.fromkeys(map(self._space.own, batch.topics))  # they may become more
        return OwnNamed(batch, {"batch_id": self._space.own(batch.batch_id), "topics": topics})

    def job_batch_named(self, batch_id: str) -> OwnNamed | None:
        return self.job_batch(self._state.job_batches.find(self._space.name(batch_id)))

    def _topic(self, name: str) -> OwnNamed | None:
        topic = self._state.topics.get(self._space.topic(name))
        if topic is None:
            return None
        known = self._wrapped.get(id(topic))
        if known is not None and known._thing is topic:
            return known
        groups = View[str](lambda group: self._wrapped_group(topic.groups.get(group)), lambda: iter(topic.groups))
        return self.wrap(topic, name=name, dead_of=self._space.own(topic.dead_of), groups=groups)

    def _topic_names(self) -> Iterator[str]:
        return (self._space.own(name) for name in list(self._state.topics) if self._space.holds(name))

    def _log(self, log_id: int) -> OwnNamed | None:
        log = self._state.logs.get(log_id)
        if log is None:
            return None
        if log.topic:
            return self.wrap(log, topic=self._space.own(log.topic)) if self._space.holds(log.topic) else None
        stream = self._state.streams.by_log.get(log_id)
        return self.wrap(log) if stream is not None and self._space.holds(stream.path) else None

    def _log_ids(self) -> Iterator[int]:
        """Those of topics. A tenant may have a million streams; they are looked up by their paths."""
        return (log_id for topic in self.topics.values() for log_id in topic.log_ids)

    def _wrapped_group(self, group: Any) -> OwnNamed | None:
        return self.wrap(group, topic=self._space.own(group.topic)) if group is not None else None

    def _group(self, group_id: int) -> OwnNamed | None:
        group = self._state.groups.get(group_id)
        return self._wrapped_group(group) if group is not None and self._space.holds(group.topic) else None

    def _group_ids(self) -> Iterator[int]:
        groups = list(self._state.groups.values())
        return (group.group_id for group in groups if self._space.holds(group.topic))

    def stream(self, path: str) -> OwnNamed | None:
        stream = self._state.streams.by_path.get(self._space.name(path))
        return self.wrap(stream, path=path) if stream is not None else None

    def stream_of_log(self, log_id: int) -> OwnNamed | None:
        stream = self._state.streams.by_log.get(log_id)
        if stream is None or not self._space.holds(stream.path):
            return None
        return self.wrap(stream, path=self._space.own(stream.path))


class TenantStreams:
    """Streams of a tenant. They are listed by a query, page by page."""

    def __init__(self, state: TenantState) -> None:
        self.by_path = View(state.stream, lambda: iter(()))
        self.by_log = View(state.stream_of_log, lambda: iter(()))


class TenantSubscriptions:
    """Subscriptions of a tenant, and the key that signs the wakes of all."""

    def __init__(self, state: State, names: TenantNames) -> None:
        self._state = state
        self._names = names
        self.by_name = View(self._find, self._own_names)

    @property
    def seed(self) -> bytes:
        return self._state.subscriptions.seed

    def _find(self, name: str) -> OwnNamed | None:
        subscription = self._state.subscriptions.by_name.get(self._names.space.name(name))
        if subscription is None:
            return None
        own = self._names.space.own
        config = self._names.outward(subscription.config)
        links = {own(path): replace(link, path=own(path)) for path, link in subscription.links.items()}
        created = replace(subscription.created, subscription=name, config=config, links=())
        return OwnNamed(subscription, {"config": config, "links": links, "created": created, "tails": ()})

    def _own_names(self) -> Iterator[str]:
        space = self._names.space
        return (space.own(name) for name in list(self._state.subscriptions.by_name) if space.holds(name))


class TenantSchedules:
    """Schedules of a tenant."""

    def __init__(self, state: State, names: TenantNames) -> None:
        self._schedules = state.schedules
        self._names = names
        self.by_name = View(self._find, lambda: self.names_from("", ""))

    def names_from(self, prefix: str, after: str) -> Iterator[str]:
        space = self._names.space
        return map(space.own, self._schedules.names_from(space.prefix + prefix, space.prefix + after))

    def _find(self, name: str) -> OwnNamed | None:
        schedule = self._schedules.by_name.get(self._names.space.name(name))
        if schedule is None:
            return None
        message = schedule.spec.message
        message = replace(message, topic=self._names.space.own(message.topic))
        return OwnNamed(schedule, {"name": name, "spec": replace(schedule.spec, message=message)})


class TenantStages:
    """Staged batches and writers of a tenant."""

    def __init__(self, state: State, names: TenantNames) -> None:
        stages, name = state.stages, names.space.name
        self.by_handle = View(lambda handle: stages.by_handle.get(name(handle)), lambda: iter(()))
        self.writers = View(lambda writer: stages.writers.get(name(writer)), lambda: iter(()))


class TenantJobBatches:
    """Job batches of a tenant."""

    def __init__(self, state: State, tenant_state: TenantState) -> None:
        batches = state.job_batches.by_number
        self.find = tenant_state.job_batch_named
        self.first_of_many = state.job_batches.first_of_many  # by log, which comes from the tenant's topics
        self.by_number = View[int](
            lambda number: tenant_state.job_batch(batches.get(number)),
            lambda: (number for number in list(batches) if tenant_state.job_batch(batches.get(number)) is not None),
        )


class TenantKeys:
    """Idempotency keys and job ids of a tenant."""

    def __init__(self, state: State, names: TenantNames) -> None:
        self._keys = state.keys
        self._names = names

    def of(self, key: ProduceKey, now_ms: int) -> ProducedKey | None:
        return self._keys.of(self._names.inward(key), now_ms)

    def job_of(self, key: ProduceKey, now_ms: int) -> ProducedKey | None:
        return self._keys.job_of(self._names.inward(key), now_ms)


class TenantEffects:
    """Effects of a tenant."""

    def __init__(self, state: State, names: TenantNames) -> None:
        self._effects = state.effects
        self._names = names

    def of(self, key: EffectKey) -> EffectRecord | None:
        return self._effects.of(self._names.inward(key))


class TenantTokens:
    """Access tokens of a tenant."""

    def __init__(self, state: State, tenant: str) -> None:
        tokens = state.access_tokens.by_id

        def find(token_id: str) -> Any:
            token = tokens.get(token_id)
            return token if token is not None and token.tenant == tenant else None

        self.by_id = View(
            find, lambda: (token_id for token_id, token in list(tokens.items()) if token.tenant == tenant)
        )
