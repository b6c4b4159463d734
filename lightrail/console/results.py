"""Results: tables and pairs for people, JSON for scripts; on standard output."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from lightrail.console.text import printable


def show_json(value: Any) -> None:
    """One JSON document; values without a JSON form (a time, a path) become their text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], out: TextIO | None = None) -> None:
    """Rows under headings; numbers to the right. Only the headings where there are no rows."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    heads = [column.replace("_", " ").upper() for column in columns]
    widths = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(columns))]
    right = [
        bool(rows) and all(isinstance(row.get(column), int | float) for row in rows) for column in columns
    ]
    for line in [heads, *cells]:
        text = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print(text.rstrip(), file=out or sys.stdout)


def pairs(values: Mapping[str, Any]) -> None:
    """One `name  value` per line."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        print(f"{name:<{width}}  {_cell(value)}")


def _cell(value: Any) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.2f}"
        case list() | dict():
            return json.dumps(value, ensure_ascii=False)
    return printable(str(value))
