"""The settings loader: sources, their order, and errors that name the setting and its source."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from driftq.settings.loader import SettingsError, SettingsLoader, about, settings_of


class Pool(Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1), about("How many.")] = 4
    ratio: float = 0.5
    names: tuple[str, ...] = ()
    options: dict[str, str] = {}
    is_open: bool = False
    kind: Literal["fast", "slow"] = "fast"
    title: str = ""
    pause: Annotated[str, Meta(pattern="^[0-9]+ seconds$", examples=["10 seconds"])] = "1 seconds"


class Tree(Struct, frozen=True, forbid_unknown_fields=True):
    pool: Pool = Pool()
    other: Pool = Pool()


def assigned(*assignments: str) -> Pool:
    loader = SettingsLoader(Tree)
    loader.add_assignments(assignments)
    return loader.load().pool


def refusal(*assignments: str) -> str:
    with pytest.raises(SettingsError) as error:
        assigned(*assignments)
    return str(error.value)


def test_a_later_source_wins_and_is_remembered(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('[pool]\nsize = 1\ntitle = "file"\nnames = ["a"]\n')
    loader = SettingsLoader(Tree)
    loader.add_file(str(file))
    loader.add_environment({"X_POOL__SIZE": "2", "X_POOL__TITLE": "environment", "X_OTHER": "no", "Y__Z": "no"}, "X_")
    loader.add_assignments(["pool.size=3"])
    loader.add_default("pool.title", "default", "nowhere")
    loader.add_default("pool.kind", "slow", "default")

    assert loader.load().pool == Pool(size=3, title="environment", names=("a",), kind="slow")
    assert loader.origins == {
        "pool.size": "--set pool.size",
        "pool.title": "environment X_POOL__TITLE",
        "pool.names": str(file),
        "pool.kind": "default",
    }


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("pool.size=1_000", Pool(size=1_000)),
        ("pool.ratio=1", Pool(ratio=1.0)),
        ("pool.names=a, b", Pool(names=("a", "b"))),
        ('pool.names=["a,b"]', Pool(names=("a,b",))),
        ("pool.names=", Pool(names=())),
        ('pool.options={a = "b"}', Pool(options={"a": "b"})),
        ("pool.is_open=true", Pool(is_open=True)),
        ("pool.is_open=1", Pool(is_open=True)),
        ("pool.title=12", Pool(title="12")),
        ('pool.title="two words"', Pool(title="two words")),
        ("pool.title=a=b", Pool(title="a=b")),
        ("pool.kind=slow", Pool(kind="slow")),
    ],
)
def test_text_is_read_as_the_type_of_its_setting(assignment, expected):
    assert assigned(assignment) == expected


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("pol.size=1", "--set pol.size: there is no section 'pol'; did you mean pool?"),
        ("x.size=1", "--set x.size: there is no section 'x'; the sections are pool, other"),
        ("pool.sise=1", "--set pool.sise: pool.sise is not a setting; did you mean pool.size?"),
        ("pool.x=1", "pool.x is not a setting; [pool] has size, ratio"),
        ("size=1", "--set takes section.key=value, not 'size=1'"),
        ("pool.size", "--set takes section.key=value, not 'pool.size'"),
        ("pool.size=0", "--set pool.size: pool.size: Expected `int` >= 1"),
        ("pool.size=many", "--set pool.size: pool.size: Expected `int`, got `str`"),
        ("pool.kind=odd", "--set pool.kind: pool.kind: Invalid enum value 'odd'"),
        ("pool.pause=soon", "--set pool.pause: pool.pause: expected a value such as '10 seconds'"),
        ("pool.options={a = 1}", "--set pool.options: pool.options: Expected `str`, got `int`"),
    ],
)
def test_what_is_wrong_is_named_with_its_source(assignment, message):
    assert refusal(assignment).startswith(message) or message in refusal(assignment)


def test_a_removed_setting_is_refused_with_its_remedy():
    loader = SettingsLoader(Tree, {"pool.depth": "use size"})

    with pytest.raises(SettingsError, match=r"pool\.depth was removed: use size"):
        loader.add_assignments(["pool.depth=1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool = 1", "pool is not a section"),
        ("[pool", "a.toml: "),
        ("[pool]\nsize = 'x'", "a.toml: pool.size: Expected"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, message):
    file = tmp_path / "a.toml"
    file.write_text(text)

    def load() -> None:
        loader = SettingsLoader(Tree)
        loader.add_file(str(file))
        loader.load()

    with pytest.raises(SettingsError, match=r"a\.toml") as error:
        load()
    assert message in str(error.value)


def test_a_missing_file_is_named():
    with pytest.raises(SettingsError, match=r"nowhere.toml: No such file"):
        SettingsLoader(Tree).add_file("nowhere.toml")


def test_every_setting_is_listed_with_its_description():
    settings = list(settings_of(Tree()))

    assert settings[0] == ("pool", "size", 4, "How many.")
    assert len(settings) == 16
