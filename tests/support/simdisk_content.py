"""The content of a simulated disk: bytes of files and names in folders, as cached and as durable, and pending changes.

Knows neither faults nor paths; `simdisk` decides what is lost.
"""

from __future__ import annotations

from collections.abc import Iterator

SECTOR_BYTES = 512


class Bytes:
    """The content of a file in the page cache (`shown`) and on the device (`durable`)."""

    __slots__ = ("apart", "durable", "pending", "shown")

    def __init__(self) -> None:
        self.shown = bytearray()
        self.durable = bytearray()
        # (position, bytes) for a write, (size, None) for a new size.
        self.pending: list[tuple[int, bytes | None]] = []
        self.apart = False  # cache and device may differ although nothing is pending: a sync failed

    def copy(self) -> Bytes:
        twin = Bytes()
        twin.shown, twin.durable = self.shown[:], self.durable[:]
        twin.pending, twin.apart = self.pending[:], self.apart
        return twin


class Folder:
    """The names in a folder, cached and durable, and the pending moves: (old name, new name, file or folder)."""

    __slots__ = ("durable", "moves", "shown")

    def __init__(self) -> None:
        self.shown: dict[str, Bytes | Folder] = {}
        self.durable: dict[str, Bytes | Folder] = {}
        self.moves: list[tuple[str, str, Bytes | Folder]] = []

    def move(self, source: str, target: str, node: Bytes | Folder) -> None:
        move = (source, target, node)
        apply_move(self.shown, move)
        self.moves.append(move)

    def copy(self, known: dict[int, Bytes | Folder]) -> Folder:
        """A deep copy. A file with several names is one file in the copy too: `known` maps the id of an original to its
        copy."""
        twin = Folder()
        for names, copied in ((self.shown, twin.shown), (self.durable, twin.durable)):
            for name, node in names.items():
                copied[name] = _copied(node, known)
        twin.moves = [(source, target, _copied(node, known)) for source, target, node in self.moves]
        return twin


def _copied(node: Bytes | Folder, known: dict[int, Bytes | Folder]) -> Bytes | Folder:
    twin = known.get(id(node))
    if twin is None:
        twin = known[id(node)] = node.copy(known) if isinstance(node, Folder) else node.copy()
    return twin


def apply_move(names: dict[str, Bytes | Folder], move: tuple[str, str, Bytes | Folder]) -> None:
    source, target, node = move
    if source and names.get(source) is node:
        del names[source]
    if target:
        names[target] = node


def settle(content: Bytes) -> None:
    for position, data in content.pending:
        put(content.durable, position, data)
    content.pending.clear()


def put(durable: bytearray, position: int, data: bytes | None) -> None:
    if data is None or position > len(durable):
        resize(durable, position)
    if data is not None:
        durable[position : position + len(data)] = data


def resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def sectors(position: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut a write at the sector boundaries of the file."""
    done = 0
    while done < len(data):
        size = SECTOR_BYTES - (position + done) % SECTOR_BYTES
        yield position + done, data[done : done + size]
        done += size
