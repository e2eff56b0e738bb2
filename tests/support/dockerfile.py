"""Reads a Dockerfile as far as tests need it: its stages and their instructions, with continued lines joined."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    word: str
    text: str

    def array(self) -> list[str]:
        """The parts of an instruction in the JSON form."""
        return list(json.loads(self.text[self.text.index("[") :]))


def stages(path: Path) -> list[list[Instruction]]:
    """The instructions of each stage, each beginning with its FROM."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    parsed: list[list[Instruction]] = []
    for line in filter(str.strip, joined.splitlines()):
        word, _, text = line.strip().partition(" ")
        if word == "FROM":
            parsed.append([])
        parsed[-1].append(Instruction(word, " ".join(text.split())))
    return parsed


def replay(stage: list[Instruction], context: Path, source: Path, environ: dict[str, str]) -> None:
    """Do what the COPY and RUN instructions of a stage do, in the folder `source`. `environ` wins over its ENV."""
    for instruction in stage:
        if instruction.word == "COPY":
            *names, target = instruction.text.split()
            for name in names:
                place = source / target / name if target.endswith("/") else source / target
                if (context / name).is_dir():
                    shutil.copytree(context / name, place, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
                else:
                    shutil.copy(context / name, place)
        elif instruction.word == "RUN":
            ended = subprocess.run(
                ["sh", "-euc", instruction.text], cwd=source, env=environ, capture_output=True, text=True, check=False
            )
            assert ended.returncode == 0, f"RUN {instruction.text}\n{ended.stdout}\n{ended.stderr}"
