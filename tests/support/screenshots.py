"""Pictures of the console for the documentation: each view of a showcase, light and dark.

    make screenshots        writes docs/images/console/NAME-light.png and NAME-dark.png

The PNG files have a palette of few colours, which a page of flat colours needs no more of: that makes them about
a quarter as large, and they can stand in the repository.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import binary
from tests.support.console import browser
from tests.support.showcase import Life, showcase

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images" / "console"
VIEWS = {
    "overview": "",
    "topics": "topics",
    "topic": "topics/orders",
    "message": "topics/orders/3/125",
    "groups": "groups",
    "group": "groups/orders/billing",
    "dead-letters": "dead-letters/orders",
    "jobs": "jobs",
    "schedules": "schedules",
    "runs": "runs",
    "run": "runs/order-4123",
    "workers": "workers",
    "streams": "streams",
    "stream": "streams/runs/order-4123/tokens",
    "pipelines": "pipelines",
    "storage": "storage",
    "tenants": "tenants/acme",
    "audit": "audit",
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
VIEWPORT = {"width": 1080, "height": 640}
SETTLE_MS = 25_000  # until the rates are those of the showcase and not of its making
COLOURS = 40


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        showcase(data, "audit.mode=on") as server,
        browser(binary("release")) as chromium,
    ):
        life = Life(server)
        try:
            for scheme in SCHEMES:
                _pictures(chromium, f"{server.url}/console/", scheme, SETTLE_MS if scheme == SCHEMES[0] else 0)
        finally:
            life.end()
    total = sum(path.stat().st_size for path in FOLDER.glob("*.png"))
    print(f"{len(VIEWS) * len(SCHEMES)} pictures in {FOLDER}, {total / 1024:.0f} KiB", file=sys.stderr)


def _pictures(chromium: Browser, url: str, scheme: Literal["light", "dark"], settle_ms: int) -> None:
    context = chromium.new_context(viewport=VIEWPORT, color_scheme=scheme, timezone_id="Europe/Amsterdam")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(settle_ms)
    for name, path in VIEWS.items():
        _open(page, url + path)
        (FOLDER / f"{name}-{scheme}.png").write_bytes(reduced(page.screenshot()))
    context.close()


def _open(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)
    page.wait_for_timeout(1_200)  # live figures, and what a stream has


# --- PNG ---


def reduced(png: bytes) -> bytes:
    """The same picture with a palette. The most frequent colours are kept, others become the nearest of them."""
    pixels = _decoded(png)
    packed = pixels[..., 0].astype(np.uint32) << 16 | pixels[..., 1].astype(np.uint32) << 8 | pixels[..., 2]
    colours, index, counts = np.unique(packed, return_inverse=True, return_counts=True)
    rgb = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1).astype(np.int32)
    palette = _palette(rgb, counts)
    nearest = np.array([np.argmin(((palette - colour) ** 2).sum(axis=1)) for colour in rgb], np.uint8)
    return _encoded(nearest[index].reshape(packed.shape), palette.astype(np.uint8))


def _palette(rgb: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Colours that stand for all: one by one, that which is far from those before and has many pixels."""
    chosen = [int(np.argmax(counts))]
    distance = ((rgb - rgb[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(COLOURS, len(rgb)):
        chosen.append(int(np.argmax(distance * np.sqrt(counts))))
        distance = np.minimum(distance, ((rgb - rgb[chosen[-1]]) ** 2).sum(axis=1))
    return rgb[chosen]


def _decoded(png: bytes) -> np.ndarray:
    """The pixels of a PNG with 8 bits for each of three or four channels, as Chromium makes it."""
    at, data, width, height, channels = 8, b"", 0, 0, 3
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert (depth, colour) in ((8, 2), (8, 6)), "a PNG of another form"
            channels = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            data += body
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for y in range(height):
        above = pixels[y] = _unfiltered(int(rows[y, 0]), rows[y, 1:], above, channels)
    return pixels.reshape(height, width, channels)[..., :3]


def _unfiltered(kind: int, row: np.ndarray, above: np.ndarray, step: int) -> np.ndarray:
    """A row of pixels, from the differences that a PNG has."""
    if kind == 0:
        return row.copy()
    if kind == 2:
        return row + above
    line, up = row.tolist(), above.tolist()
    for x in range(len(line)):
        left = line[x - step] if x >= step else 0
        if kind == 1:
            line[x] = (line[x] + left) & 255
        elif kind == 3:
            line[x] = (line[x] + (left + up[x]) // 2) & 255
        else:
            corner = up[x - step] if x >= step else 0
            line[x] = (line[x] + _paeth(left, up[x], corner)) & 255
    return np.array(line, np.uint8)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    by_left, by_up, by_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    if by_left <= by_up and by_left <= by_corner:
        return left
    return up if by_up <= by_corner else corner


def _encoded(indexes: np.ndarray, palette: np.ndarray) -> bytes:
    height, width = indexes.shape
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = indexes
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", header),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


if __name__ == "__main__":
    main()
