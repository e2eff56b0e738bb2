"""Loads settings: a tree of frozen structs, filled from a TOML file, the environment and assignments.

A settings tree is a msgspec struct of sections, and each section is a struct of values:

    class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
        level: Annotated[Literal["debug", "info"], about("What is logged.")] = "info"

    class Settings(Struct, frozen=True, forbid_unknown_fields=True):
        log: LogSettings = LogSettings()

`SettingsLoader` collects values source by source; a later source wins. It remembers where each value came from, so that
an error names the source:

    loader = SettingsLoader(Settings)
    loader.add_file("driftq.toml")
    loader.add_environment(os.environ, "DRIFTQ_")       # DRIFTQ_LOG__LEVEL=debug
    loader.add_assignments(["log.level=debug"])         # --set
    settings = loader.load()

The server's settings and the configuration of a pipeline are both loaded here. What a single value cannot be checked
for (two settings that exclude each other) is up to the caller.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from driftq.settings.suggestions import did_you_mean

Tree = TypeVar("Tree", bound=Struct)


class SettingsError(ValueError):
    """A setting is unknown, wrong or missing. The message names it, and where it came from."""


class Setting(NamedTuple):
    """One setting of a loaded tree."""

    section: str
    key: str
    value: Any
    description: str


def about(text: str) -> Meta:
    """The sentence about a setting, for its type annotation."""
    return Meta(description=text)


class SettingsLoader(Generic[Tree]):
    """Collects the values of one settings tree. `removed` names settings of earlier versions, with a remedy each."""

    def __init__(self, tree: type[Tree], removed: Mapping[str, str] | None = None) -> None:
        self._tree = tree
        self._removed = removed or {}
        self._sections: dict[str, Any] = get_type_hints(tree)
        self.values: dict[str, dict[str, Any]] = {}
        self.origins: dict[str, str] = {}  # by section.key

    def add_file(self, file: str) -> None:
        for section, entries in _read_toml(file).items():
            self._check_section(section, file)
            if not isinstance(entries, dict):
                raise SettingsError(f"{file}: {section} is not a section ([{section}] with keys below it)")
            self.values.setdefault(section, {})  # a section may be empty
            for key, value in entries.items():
                self._add(section, key, value, file)

    def add_environment(self, environment: Mapping[str, str], prefix: str) -> None:
        """Variables named PREFIX, section, two underscores, key. Others may have the prefix and mean something else."""
        for name, text in sorted(environment.items()):
            if name.startswith(prefix) and "__" in name:
                section, _, key = name.removeprefix(prefix).lower().partition("__")
                self._add_text(section, key, text, f"environment {name}")

    def add_assignments(self, assignments: Sequence[str]) -> None:
        """`section.key=value`, as `--set` takes it."""
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            section, dot, key = name.strip().partition(".")
            if not (equals and dot):
                raise SettingsError(f"--set takes section.key=value, not {assignment!r}")
            self._add_text(section, key, text.strip(), f"--set {name.strip()}")

    def add(self, name: str, value: Any, origin: str) -> None:
        """A value by its dotted name."""
        section, _, key = name.partition(".")
        self._add(section, key, value, origin)

    def add_default(self, name: str, value: Any, origin: str) -> None:
        """A value for a setting that no other source has set."""
        if name not in self.origins:
            self.add(name, value, origin)

    def load(self) -> Tree:
        try:
            return msgspec.convert(self.values, self._tree)
        except msgspec.ValidationError as error:
            raise SettingsError(self._explained(str(error))) from None

    def _add(self, section: str, key: str, value: Any, origin: str) -> None:
        self._field_type(section, key, origin)
        self.values.setdefault(section, {})[key] = value
        self.origins[f"{section}.{key}"] = origin

    def _add_text(self, section: str, key: str, text: str, origin: str) -> None:
        self._add(section, key, _parse(self._field_type(section, key, origin), text), origin)

    def _check_section(self, section: str, origin: str) -> None:
        if section not in self._sections:
            hint = did_you_mean(section, self._sections, f"the sections are {', '.join(self._sections)}")
            raise SettingsError(f"{origin}: there is no section {section!r}; {hint}")

    def _field_type(self, section: str, key: str, origin: str) -> Any:
        self._check_section(section, origin)
        name = f"{section}.{key}"
        if name in self._removed:
            raise SettingsError(f"{origin}: {name} was removed: {self._removed[name]}")
        keys = get_type_hints(self._sections[section])
        if key not in keys:
            hint = did_you_mean(key, keys, f"[{section}] has {', '.join(keys)}", f"{section}.")
            raise SettingsError(f"{origin}: {name} is not a setting; {hint}")
        return keys[key]

    def _explained(self, message: str) -> str:
        """msgspec ends with the path, `$.source.topics`. Readers want the setting and its source first."""
        text, _, path = message.partition(" - at `$.")
        name = ".".join(path.rstrip("`").partition("[")[0].split(".")[:2])
        origin = self.origins.get(name, "")
        if "matching regex" in text and (examples := self._examples(name)):
            text = f"expected a value such as {examples[0]!r}"
        return f"{origin}: {name}: {text}" if origin else message

    def _examples(self, name: str) -> Sequence[Any]:
        section, _, key = name.partition(".")
        kind = get_type_hints(self._sections[section], include_extras=True)[key]
        return next((meta.examples for meta in _metas(kind) if meta.examples), ())


def settings_of(tree: Struct) -> Iterator[Setting]:
    """Every setting of a tree, in the order of its definition."""
    for section in tree.__struct_fields__:
        part = getattr(tree, section)
        for key, kind in get_type_hints(type(part), include_extras=True).items():
            yield Setting(section, key, getattr(part, key), _description(kind))


def _description(kind: Any) -> str:
    return next((meta.description for meta in _metas(kind) if meta.description), "")


def _metas(kind: Any) -> list[Meta]:
    """The annotations of a field's type, the outermost first."""
    metas = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return [meta for meta in reversed(metas) if isinstance(meta, Meta)]


def _read_toml(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from None


def _parse(kind: Any, text: str) -> Any:
    """Text as a value of the field's type: TOML where it is TOML, lists also as `a,b`. What does not fit is returned
    as it is, and refused by `load` with the reason."""
    literal = _toml_value(text)
    if kind == tuple[str, ...]:
        return literal if isinstance(literal, list) else [part.strip() for part in text.split(",") if part.strip()]
    if kind in (int, float, bool):
        try:
            return msgspec.convert(literal if type(literal) is kind else text, kind, strict=False)
        except msgspec.ValidationError:
            return text
    if get_origin(kind) in (dict, tuple):
        return text if literal is None else literal
    return literal if isinstance(literal, str) else text


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
