"""What retention keeps of an archive: all that leads from the newest generation back to the oldest point."""

from __future__ import annotations

from driftq.storage.archive.manifest import Base, Generation, Manifest
from driftq.storage.archive.retention import retained

DAY_MS = 86_400_000


def test_generations_that_wrote_nothing_are_kept_while_what_came_before_is_reached_through_them():
    """Quiet restarts: "2" and "3" have no chunk and no base, and "4" continues what "1" wrote."""
    generations = (
        Generation("1", 1),
        Generation("2", 11, "1", 10, 1),
        Generation("3", 11, "2", 10, 2),
        Generation("4", 11, "3", 10, 3),
    )
    archive = Manifest("store", "4", generations, (Base("1", 5, 6, 0, "inventory", 0),))
    kept = retained(archive, DAY_MS)
    assert [generation.name for generation in kept.generations] == ["1", "2", "3", "4"]
    assert kept.bases == archive.bases


def test_a_generation_that_no_point_needs_is_removed():
    generations = (Generation("1", 1), Generation("2", 11, "1", 10, 1))
    bases = (Base("1", 5, 6, 0, "old", 0), Base("2", 20, 21, 2, "new", 0))
    kept = retained(Manifest("store", "2", generations, bases), DAY_MS)
    assert [generation.name for generation in kept.generations] == ["2"]
    assert (kept.bases, kept.first_lsn) == (bases[1:], 21)


def test_the_generation_of_a_base_is_kept_if_all_later_ones_begin_right_after_it():
    """A base was the last that "1" wrote. Without "2", which wrote nothing, the base could not be reached."""
    generations = (Generation("1", 1), Generation("2", 11, "1", 10, 1), Generation("3", 11, "2", 10, 2))
    archive = Manifest("store", "3", generations, (Base("1", 10, 10, 0, "inventory", 0),))
    kept = retained(archive, DAY_MS)
    assert [generation.name for generation in kept.generations] == ["1", "2", "3"]
    assert (kept.bases, kept.first_lsn) == (archive.bases, 11)
    assert retained(kept, DAY_MS).bases == archive.bases


def test_the_history_between_a_base_and_the_beginning_of_its_generation_is_kept():
    """A base can be made of a snapshot that an earlier process has left."""
    generations = (Generation("1", 1), Generation("2", 11, "1", 10, 1), Generation("3", 21, "2", 20, 2))
    archive = Manifest("store", "3", generations, (Base("3", 15, 25, 3, "inventory", 0),))
    kept = retained(archive, DAY_MS)
    assert [generation.name for generation in kept.generations] == ["2", "3"]
