"""The bytes on disk and on the wire do not change by accident: batches and one frame of every fact are kept as files.

`--rewrite` writes them again. That is right for a fact that is new, and for a field that was added last with a default;
anything else makes folders of older versions unreadable.
"""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from driftq.core.model.facts import TopicCreated
from driftq.core.model.frames import AnyFact, UnknownFact, decode, encode
from driftq.wire.records import Record, check, pack, pack_one, stamp, unpack

FOLDER = Path(__file__).parent / "golden"
FACTS = {fact.__name__: fact for fact in typing.get_args(AnyFact)}

RECORDS = [Record(b"one", b"k1"), Record(b"two", b"", b'{"job":{"task":"mail"}}'), Record("日本".encode(), b"k3")]
BATCHES = {
    "plain": stamp(pack([Record(b"a"), Record(b"bc"), Record(b"")]), 7, 1_700_000_000_000),
    "one": stamp(pack_one(b"value", b"key", b"{}"), 0, 1),
    "columns": stamp(pack(RECORDS, scheduled=True), 2**40, 2**41),
    "producer": stamp(pack(RECORDS, producer="spark-7", epoch=3, seq=9), 1, 2),
}
SQUEEZED = [Record(b"a" * 1_000, b"k"), Record(b"b" * 1_000)]


def same(path: Path, encoded: bytes, rewrite: bool) -> None:
    if rewrite:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded)
    assert path.read_bytes() == encoded, f"{path.name} changed: older folders hold it as it was"


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_packed_as_ever(name, rewrite):
    same(FOLDER / f"batch-{name}.bin", BATCHES[name], rewrite)
    check(BATCHES[name])


def test_a_compressed_batch_is_read_as_ever(rewrite):
    """Another version of the compressor may make other bytes; it must read these."""
    path = FOLDER / "batch-zstd.bin"
    if rewrite:
        path.write_bytes(pack(SQUEEZED, compress=True))
    batch = path.read_bytes()
    assert unpack(batch, check(batch)) == SQUEEZED


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_is_written_as_ever(name, rewrite):
    fact = example(FACTS[name])
    same(FOLDER / f"fact-{FACTS[name].__struct_config__.tag:03}-{name}.bin", encode([fact]), rewrite)
    assert decode(encode([fact])) == [fact]


def test_a_topic_from_before_histories_has_none():
    [fact] = decode((FOLDER / "before-history-TopicCreated.bin").read_bytes())
    assert isinstance(fact, TopicCreated)
    assert not fact.config.history
    assert fact.config.retry is not None


@pytest.mark.parametrize("path", sorted((FOLDER / "first").glob("fact-*.bin")), ids=lambda path: path.stem)
def test_a_fact_of_the_first_format_is_read_and_its_newer_fields_have_their_defaults(path):
    """Written before fields were added. What it says is kept, and what it cannot say is the default."""
    [fact] = decode(path.read_bytes())
    assert fact.__struct_config__.tag == int(path.stem.split("-")[1])
    assert as_written(fact, example(type(fact))), f"{path.stem} is not what it was: {fact}"


def as_written(old: object, new: object) -> bool:
    """Whether every field of `old` is that of `new`, which says something everywhere, or is missing from the end."""
    if not isinstance(old, msgspec.Struct):
        if isinstance(old, tuple) and isinstance(new, tuple):
            return len(old) == len(new) and all(as_written(*pair) for pair in zip(old, new, strict=True))
        return old == new
    fields = inspect.type_info(type(old)).fields  # type: ignore[attr-defined]
    kept = [as_written(getattr(old, field.name), getattr(new, field.name)) for field in fields]
    count = kept.index(False) if False in kept else len(kept)
    return count > 0 and all(is_default(old, field) for field in fields[count:])


def is_default(struct: msgspec.Struct, field: inspect.Field) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(getattr(struct, field.name) == field.default_factory())
    return field.default is not msgspec.NODEFAULT and bool(getattr(struct, field.name) == field.default)


def test_no_two_facts_share_a_tag_and_no_golden_fact_is_gone():
    tags = [fact.__struct_config__.tag for fact in FACTS.values()]
    assert len(set(tags)) == len(tags)
    kept = {path.stem.split("-")[2] for path in FOLDER.glob("fact-*.bin")}
    assert kept == set(FACTS)


def test_a_frame_of_a_newer_version_is_named_as_such():
    for frame in (msgspec.msgpack.encode([[999, "x"]]), b"", b"\xff", msgspec.msgpack.encode([[10]])):
        with pytest.raises(UnknownFact, match="not a frame this version can read"):
            decode(frame)


def example(fact: type[msgspec.Struct]) -> msgspec.Struct:
    """An instance in which every field says something."""
    values = {field.name: filled(field.type, field.name) for field in inspect.type_info(fact).fields}  # type: ignore[union-attr]
    return fact(**values)


def filled(kind: inspect.Type, name: str) -> object:
    match kind:
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 1 + sum(map(ord, name)) * 1_000_003
        case inspect.StrType():
            return f"{name} ü"
        case inspect.BytesType():
            return f"{name} bytes".encode()
        case inspect.LiteralType(values):
            return values[0]
        case inspect.StructType(cls):
            return example(cls)
        case inspect.UnionType(types):
            return filled(next(part for part in types if not isinstance(part, inspect.NoneType)), name)
        case inspect.VarTupleType(item):
            return (filled(item, name), filled(item, name + "2"))
        case inspect.TupleType(items):
            return tuple(filled(item, f"{name}{number}") for number, item in enumerate(items))
        case inspect.DictType(key, value):
            return {filled(key, name): filled(value, name)}
        case _:
            raise AssertionError(f"no example of {kind} yet")
