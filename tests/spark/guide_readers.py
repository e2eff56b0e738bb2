"""The lines that the guide of tables prints for other readers, to be run over a real table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "tables.md"
GUIDE_TABLE = "./tables/orders"
READERS = ("Polars", "DuckDB", "pandas", "pyarrow", "Spark")


def guide_lines() -> tuple[str, dict[str, str]]:
    """The imports that the guide prints, and the line of each reader."""
    block = re.search(r"```python\n(import duckdb\n.*?)\n\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert block is not None
    lines = (line.split("  # ") for line in block[2].strip().splitlines())
    return block[1], {comment.split()[0].rstrip(";,"): line for line, comment in lines}


def columns_by_guide(reader: str, table: str = GUIDE_TABLE) -> Any:
    """The columns that the line of a reader yields, over a table of the working folder."""
    imports, lines = guide_lines()
    names: dict[str, Any] = {}
    exec(imports, names)
    assert GUIDE_TABLE in lines[reader]
    rows = eval(lines[reader].replace(GUIDE_TABLE, table), names)
    match reader:
        case "Spark":
            return rows.toArrow().to_pydict()
        case "DuckDB":
            return rows.to_arrow_table().to_pydict()
        case "pyarrow":
            return rows.to_pydict()
    return rows
