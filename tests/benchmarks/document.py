"""docs/benchmarks.json, and docs/benchmarks.md which is written from it alone.

What stands between the two ``notes`` marks of the page is written by hand and is kept: there belongs the
profile of what missed its target.
"""

import json
import statistics
import time
from typing import Any

from tests.benchmarks.machine import ROOT
from tests.benchmarks.row import Result

PAGE = ROOT / "docs" / "benchmarks.md"
VALUES = ROOT / "docs" / "benchmarks.json"
NOTES = ("<!-- notes -->", "<!-- end of notes -->")
INTRODUCTION = """\
# Benchmarks

Written by `make bench` and `make bench-peers`; the numbers of every single run are in `benchmarks.json`.
Every run starts a fresh broker with an empty data directory. The load generator runs on the same machine and
checks that nothing is lost, doubled or out of order. CPU is that of all processes of the broker together,
supervisor and gateway included. A target is met when the median of the runs meets it.

Five runs of every row take about three quarters of an hour; `make bench ARGS="--only policies --runs 1"`
measures one row once. `unchanged` compares with an earlier commit: it is left out where git or that commit is
missing.

Rows that lose the owner of a shard with replicas wait after each round until all members are in sync, and
take six minutes a run: `make bench ARGS="--only take-over-few --runs 1"`. Their members, and the three nodes
of RabbitMQ, share one machine and one disk: they show how much work replicas are, and how long a take-over
takes, not what three machines reach.
"""


def save(results: list[Result], order: list[str], machine: dict[str, str], part: str = "rows") -> None:
    """Put results in place of those of the same name, keep the others, and write both files."""
    values = load()
    rows = values.setdefault(part, {})
    for result in results:
        rows[result.row.name] = result.as_value() | {"machine": machine, "day": time.strftime("%Y-%m-%d")}
    values[part] = {name: rows[name] for name in [*order, *(set(rows) - set(order))] if name in rows}
    VALUES.parent.mkdir(exist_ok=True)
    VALUES.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(values, _notes()))


def load() -> dict[str, Any]:
    """What is in docs/benchmarks.json."""
    if not VALUES.exists():
        return {}
    values: dict[str, Any] = json.loads(VALUES.read_text())
    return values


def page(values: dict[str, Any], notes: str) -> str:
    """The page."""
    rows: dict[str, Any] = values.get("rows", {})
    peers: dict[str, Any] = values.get("peers", {})
    parts = [INTRODUCTION, "## Targets\n", _table(rows | peers), _machines(rows | peers)]
    parts += [f"## Notes\n\n{NOTES[0]}\n{notes}\n{NOTES[1]}\n", "## Rows\n"]
    parts += [_section(name, row) for name, row in rows.items()]
    if peers:
        parts.append("## Other brokers\n")
        parts += [_section(name, row) for name, row in peers.items()]
    return "\n".join(parts)


def number(value: float) -> str:
    """As many digits as one can use."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _table(rows: dict[str, Any]) -> str:
    lines = ["| | target | median | min to max | runs | |", "|---|---|---|---|---|---|"]
    for row in rows.values():
        title = row["title"]
        for figure in row["figures"]:
            verdict = "met" if figure["met"] else "**missed**"
            if row["failures"]:
                verdict = f"**{len(row['failures'])} runs failed**"
            if figure["values"]:
                unit = figure["unit"]
                median = f"{number(figure['median'])} {unit}"
                spread = f"{number(figure['min'])} to {number(figure['max'])}"
            else:
                median = spread = "-"
            count = len(figure["values"])
            lines.append(f"| {title} | {figure['target']} | {median} | {spread} | {count} | {verdict} |")
            title = ""
    return "\n".join(lines) + "\n"


def _machines(rows: dict[str, Any]) -> str:
    """Once when it is the same for all, else per row in its section."""
    kinds = {json.dumps(_hardware(row)) for row in rows.values()}
    if len(kinds) != 1:
        return "The rows were measured on different machines; see each.\n"
    (kind,) = kinds
    return "Machine: " + ", ".join(json.loads(kind).values()) + ".\n"


def _hardware(row: dict[str, Any]) -> dict[str, str]:
    return {key: text for key, text in row["machine"].items() if key not in ("commit", "load")}


def _section(name: str, row: dict[str, Any]) -> str:
    machine = row["machine"]
    lines = [f"### {name}\n", f"{row['title'][0].upper()}{row['title'][1:]}.\n", "```"]
    lines += list(row["commands"])
    lines.append("```\n")
    lines += [f"A run failed: {text}\n" for text in row["failures"]]
    lines += _parts(row["runs"])
    keys = [key for key, value in (row["runs"] or [{}])[0].items() if isinstance(value, int | float)]
    if keys:
        lines.append("| run | " + " | ".join(keys) + " |")
        lines.append("|---" * (len(keys) + 1) + "|")
        for i, run in enumerate(row["runs"], 1):
            lines.append(
                f"| {i} | " + " | ".join(number(run[key]) if key in run else "-" for key in keys) + " |"
            )
        lines.append("")
    processes = _processes(row["runs"])
    if processes:
        lines.append(f"CPU per message by process, median: {processes}.\n")
    before = ", ".join(f"{key} {machine[key]}" for key in ("commit", "load") if key in machine)
    lines.append(f"Measured on {row['day']}, {before}; {_hardware_text(row)}.\n")
    return "\n".join(lines)


def _parts(runs: list[dict[str, Any]]) -> list[str]:
    """What a row measured of many things alike, as the medians of their figures."""
    names: dict[str, dict[str, Any]] = (runs or [{}])[0].get("parts", {})
    if not names:
        return []
    keys = list(next(iter(names.values())))
    lines = ["| | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|"]
    for name in names:
        found = [run["parts"][name] for run in runs if name in run.get("parts", {})]
        lines.append(f"| {name} | " + " | ".join(_median(found, key) for key in keys) + " |")
    return [*lines, ""]


def _median(found: list[dict[str, Any]], key: str) -> str:
    if isinstance(found[0][key], str):
        return f"`{found[0][key]}`" if found[0][key] else ""
    return number(statistics.median(each[key] for each in found))


def _hardware_text(row: dict[str, Any]) -> str:
    return ", ".join(_hardware(row).values())


def _processes(runs: list[dict[str, Any]]) -> str:
    """Medians by name of process."""
    spent: dict[str, list[float]] = {}
    for run in runs:
        by_name: dict[str, float] = {}
        for process in run.get("server_processes", ()):
            by_name[process["name"]] = by_name.get(process["name"], 0.0) + process["cpu_us"]
        for name, value in by_name.items():
            spent.setdefault(name, []).append(value)
    medians = {name: sorted(values)[len(values) // 2] for name, values in spent.items()}
    shown = [(name, value) for name, value in medians.items() if value >= 0.005]
    return ", ".join(f"{name} {value:.2f} µs" for name, value in sorted(shown, key=lambda item: -item[1]))


def _notes() -> str:
    """What was written by hand."""
    text = PAGE.read_text() if PAGE.exists() else ""
    start, end = text.find(NOTES[0]), text.find(NOTES[1])
    return text[start + len(NOTES[0]) : end].strip() if 0 <= start < end else ""
