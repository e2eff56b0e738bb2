"""The files of the web console: read once, compressed once, served from memory.

    /console/…                       the page, whatever the path: the script in it draws the view that the path names
    /console/static/DIGEST/…         its scripts and styles

DIGEST is taken from the content of all files. A browser keeps them for a year, and an upgraded broker has another
DIGEST, so a page never mixes files of two versions. The page itself is not kept.

The files contain no data and need no credential: the script asks for a token and sends it with each call of the API.
There is no cookie, so a page of another origin has nothing to abuse. The Content-Security-Policy allows files and
calls of this server only, and no inline script or style.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Vary", "Accept-Encoding"),
)
PAGE = "index.html"
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """A file, as it is and compressed."""

    body: bytes
    compressed: bytes
    content_type: str


class Assets:
    """All files by their path below `static`, and the page with their addresses in it."""

    def __init__(self) -> None:
        sources = dict(sorted(_files(files(__package__) / "static")))
        digest = hashlib.sha256()
        for path, body in sources.items():
            digest.update(f"{path}\n{len(body)}\n".encode())
            digest.update(body)
        self.digest = digest.hexdigest()[:16]
        self._assets = {path: _asset(path, body) for path, body in sources.items() if path != PAGE}
        scripts = (path for path in self._assets if path.endswith((".js", ".mjs")) and path.startswith("js/"))
        preloads = "\n".join(f'<link rel="modulepreload" href="/console/static/DIGEST/{path}">' for path in scripts)
        page = sources[PAGE].decode().replace("<!-- preloads -->", preloads).replace("DIGEST", self.digest)
        self.page = _asset(PAGE, page.encode())

    def find(self, path: str) -> Asset | None:
        """The file with a path such as `DIGEST/js/app.js`."""
        digest, _, name = path.partition("/")
        return self._assets.get(name) if digest == self.digest else None

    def size_bytes(self) -> int:
        """What a browser loads at its first visit."""
        return len(self.page.compressed) + sum(len(asset.compressed) for asset in self._assets.values())


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name[entry.name.rfind(".") :] in _CONTENT_TYPES:
            yield f"{prefix}{entry.name}", entry.read_bytes()


def _asset(path: str, body: bytes) -> Asset:
    return Asset(body, gzip.compress(body, mtime=0), _CONTENT_TYPES[path[path.rfind(".") :]])
