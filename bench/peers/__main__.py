"""Runs the rounds, prints the medians and ratios, and saves a named run: see the package."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from bench.commit import bare_sync_ms
from bench.named_run import load, place, save_part
from bench.peers.cases import CASES
from bench.peers.catalog import PEERS
from bench.peers.installation import ROOT, MissingError, python_packages
from bench.peers.peer import Peer
from bench.peers.server_process import StartError
from bench.report import emit, median

CASE_S = 180.0  # more than a case can take

Results = dict[tuple[str, str], list[dict[str, float]]]  # by case and peer


class CaseError(Exception):
    """A client process failed."""


class Bench:
    """The peers that can run, and why the others cannot."""

    def __init__(self, folder: str | None, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.peers: list[Peer] = []
        self.missing: dict[str, str] = {}
        self.failed: dict[str, str] = {}  # cases that ended with an error, by case and peer
        self.packages: Path | None = None
        self.results: Results = {}

    def install(self, names: list[str], *, download: bool) -> None:
        try:
            self.packages = python_packages(download=download)
            sys.path.append(str(self.packages))
        except MissingError as error:
            self.missing |= {name: str(error) for name in names if not _is_importable(PEERS[name][0])}
        for name in names:
            if name not in self.missing:
                peer = PEERS[name][0]()
                try:
                    peer.install(download=download)
                except MissingError as error:
                    self.missing[name] = str(error)
                else:
                    self.peers.append(peer)

    def round(self, number: int, cases: list[str]) -> None:
        """Every peer once, alone, each round beginning with another one."""
        shift = number % max(1, len(self.peers))
        for peer in self.peers[shift:] + self.peers[:shift]:
            if peer.name not in self.missing:
                data = Path(tempfile.mkdtemp(prefix="bench-peers-", dir=self.folder))
                try:
                    self._measure(peer, data, cases)
                except StartError as error:
                    self.missing[peer.name] = f"did not start: {error}"
                finally:
                    peer.stop()
                    shutil.rmtree(data)

    def _measure(self, peer: Peer, data: Path, cases: list[str]) -> None:
        address = peer.start(data)
        for case in cases:
            if case in peer.lacks:
                continue
            os.sync()  # what the case before it left in the page cache does not delay this one
            try:
                result = self._run_case(peer, case, address)
            except CaseError as error:
                self.failed[f"{CASES[case].title}: {peer.name}"] = str(error)
            else:
                self.results.setdefault((case, peer.name), []).append(result)

    def _run_case(self, peer: Peer, case: str, address: str) -> dict[str, float]:
        command = [sys.executable, "-m", "bench.peers.cases", peer.name, case, address, str(self.seconds)]
        paths = [str(ROOT), *([str(self.packages)] if self.packages else []), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": ":".join(path for path in paths if path)}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, cwd=ROOT) as client:
            assert client.stdout is not None
            assert client.stderr is not None
            deadline = threading.Timer(CASE_S, client.kill)
            deadline.start()
            first = client.stdout.readline()
            before_s = peer.cpu_s()
            line = client.stdout.readline()
            server_cpu_s = peer.cpu_s() - before_s
            errors = client.stderr.read()
            client.wait()
            deadline.cancel()
        if first != "ready\n" or client.returncode:
            last = (errors.strip().splitlines() or [f"not done after {CASE_S:.0f} s"])[-1]
            raise CaseError(f"exit code {client.returncode}: {last}")
        result: dict[str, float] = json.loads(line)
        return {**result, "server_cpu_s": server_cpu_s}


def _is_importable(peer: type[Peer]) -> bool:
    try:
        version(peer.client_package)
    except PackageNotFoundError:
        return False
    return True


def client_version(package: str, packages: Path | None) -> str:
    for distribution in distributions(path=[*([str(packages)] if packages else []), *sys.path]):
        if distribution.metadata["Name"].lower() == package:
            return distribution.version
    return "unknown"


def summary(results: Results) -> list[dict[str, Any]]:
    """The median of the rounds of each case and peer, with its ratio to DriftQ."""
    rows = []
    for case, info in CASES.items():
        own = median([run["value"] for run in results.get((case, "DriftQ"), [])])
        for name in PEERS:
            runs = results.get((case, name))
            if not runs:
                continue
            values = [run["value"] for run in runs]
            row: dict[str, Any] = {"case": case, "peer": name, "value": median(values), "unit": info.unit}
            row |= {"rounds": values, "runs": runs}
            for field, spent in (("cpu_us_per_op", "cpu_s"), ("server_cpu_us_per_op", "server_cpu_s")):
                row[field] = median([1e6 * run[spent] / run["operations"] for run in runs])
            if "p99_ms" in runs[0]:
                row["p99_ms"] = median([run["p99_ms"] for run in runs])
            if own:
                row["ratio_to_driftq"] = row["value"] / own
            rows.append(row)
    return rows


def report(bench: Bench, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("case", "peer", "value", "unit", "runs")}
        emit("peers", f"{CASES[row['case']].title}: {row['peer']}", row["value"], row["unit"], **fields)
    for name, reason in bench.missing.items():
        emit("peers", f"missing: {name}", 0, "missing", reason=reason, cpu_us_per_op=0.0)
    for case, reason in bench.failed.items():
        emit("peers", f"failed: {case}", 0, "failed", reason=reason, cpu_us_per_op=0.0)


def document(bench: Bench, rows: list[dict[str, Any]], header: dict[str, Any], **fields: float) -> dict[str, Any]:
    """What a named run keeps."""
    described = {
        peer.name: {
            "version": peer.version(),
            "client": f"{peer.client_package} {client_version(peer.client_package, bench.packages)}",
            "durability": peer.durability,
            "notes": peer.notes,
            "lacks": dict(peer.lacks),
        }
        for peer in bench.peers
        if peer.name not in bench.missing
    }
    return {**header, **fields, "peers": described, "missing": bench.missing, "failed": bench.failed, "results": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each case")
    parser.add_argument("--only", default=",".join(PEERS), help="peers, by comma; DriftQ is always measured")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--folder", help="where the data goes; the disk under it is what is measured")
    parser.add_argument("--no-install", action="store_true", help="measure only the peers that are already here")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json")
    parser.add_argument("--more", action="store_true", help="add the rounds to those that --save NAME has already")
    options = parser.parse_args()
    header = place()
    chosen = {"DriftQ", *options.only.split(",")}
    unknown = (chosen - {*PEERS, ""}) | ({*options.cases.split(",")} - {*CASES})
    if unknown:
        known = f"the peers are {', '.join(PEERS)}; the cases are {', '.join(CASES)}"
        parser.error(f"unknown: {', '.join(sorted(unknown))}; {known}")
    bench = Bench(options.folder, options.seconds)
    bench.install([name for name in PEERS if name in chosen], download=not options.no_install)
    cases = [case for case in CASES if case in options.cases.split(",")]
    with tempfile.TemporaryDirectory(prefix="bench-peers-", dir=options.folder) as folder:
        sync_ms = median(bare_sync_ms(folder))
    first = 0
    if options.more:
        saved = load(options.save)["peers"]
        first, sync_ms = saved["rounds"], saved["bare_sync_ms"]
        header = {name: saved[name] for name in header}
        bench.results = {(row["case"], row["peer"]): row["runs"] for row in saved["results"]}
    for number in range(first, first + options.rounds):
        bench.round(number, cases)
    rows = summary(bench.results)
    report(bench, rows)
    if options.save:
        fields = {"rounds": first + options.rounds, "seconds": options.seconds, "bare_sync_ms": sync_ms}
        save_part(options.save, "peers", document(bench, rows, header, **fields))
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
