"""The files of the console: complete, safe, small, and those of others unchanged."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from driftq.server.console import assets
from driftq.server.console.assets import Assets

STATIC = Path(assets.__file__).parent / "static"
SCRIPTS = sorted(path for path in STATIC.rglob("*.js") if path.parent.name != "vendor")
IMPORT = re.compile(r"""from '([^']+)'""")
ROW = re.compile(r"^\| `([^`]+)` .*\| ([0-9a-f]{64}) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def console() -> Assets:
    return Assets()


def test_every_address_in_the_page_is_a_file(console: Assets):
    addresses = re.findall(r'(?:href|src)="/console/static/([^"]+)"', console.page.body.decode())
    assert len(addresses) > len(SCRIPTS)
    assert all(console.find(address) is not None for address in addresses)


def test_every_script_is_loaded_early_and_every_import_leads_to_a_file(console: Assets):
    page = console.page.body.decode()
    for script in SCRIPTS:
        assert f"{console.digest}/{script.relative_to(STATIC)}" in page
        for target in IMPORT.findall(script.read_text()):
            assert (script.parent / target).resolve().is_file(), f"{script.name} imports {target}"


def test_a_compressed_file_is_the_same_and_all_of_them_are_small(console: Assets):
    asset = console.find(f"{console.digest}/js/app.js")
    assert asset is not None
    assert gzip.decompress(asset.compressed) == asset.body
    assert console.size_bytes() < 300_000


@pytest.mark.parametrize(
    "path", ["../assets.py", "js/app.js", "0000/js/app.js", "{digest}/../assets.py", "{digest}/none.js"]
)
def test_nothing_but_the_files_of_this_version_is_found(console: Assets, path: str):
    assert console.find(path.format(digest=console.digest)) is None


def test_no_script_inserts_markup_or_loads_from_elsewhere():
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|https?://"
    )
    assert {script.name: forbidden.findall(script.read_text()) for script in SCRIPTS} == {
        script.name: [] for script in SCRIPTS
    }


def test_no_view_takes_an_address_from_data():
    """A link whose address is a value of a message could be a script."""
    for script in SCRIPTS:
        for address in re.findall(r"href=\$\{([^}]*)", script.read_text()):
            assert re.match(r"to\(|toStream\(|place\(route\)|to$", address), f"{script.name}: {address}"


def test_the_files_of_other_projects_are_unchanged():
    sums = dict(ROW.findall((STATIC / "vendor" / "README.md").read_text()))
    vendored = {path.name for path in (STATIC / "vendor").iterdir() if path.suffix in (".js", ".mjs", ".css")}
    assert sums.keys() == vendored
    for name, digest in sums.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest
