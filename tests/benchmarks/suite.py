"""Runs rows one after the other and says how far it is."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

from tests.benchmarks import document, machine
from tests.benchmarks.document import number
from tests.benchmarks.load import LoadError
from tests.benchmarks.row import Result, Row, Workplace


def run(rows: Iterable[Row], runs: int, scratch: str, order: list[str], part: str = "rows") -> bool:
    """Measure every row ``runs`` times and write the documents after each; whether all targets were met."""
    here = machine.describe(scratch)
    say("machine", "; ".join(here.values()))
    if machine.file_system(scratch) in machine.MEMORY_FILE_SYSTEMS:
        say("machine", "the data is on a file system in memory: durable figures say nothing")
    met = True
    for row in rows:
        if missing := row.missing():
            say(row.name, f"left out: {missing}")
            continue
        result = Result(row)
        load, began = machine.load(), time.monotonic()
        for count in range(1, runs + 1):
            _once(result, count, runs, scratch)
        document.save([result], order, here | {"load": f"{load:.1f}"}, part)
        say(row.name, f"{'met' if result.met else 'MISSED'} in {time.monotonic() - began:.0f} s")
        met = met and result.met
    say("written", "docs/benchmarks.md and docs/benchmarks.json")
    return met


def _once(result: Result, count: int, runs: int, scratch: str) -> None:
    row = result.row
    name = f"{row.name} {count}/{runs}"
    directory = tempfile.mkdtemp(prefix="lightrail-bench-", dir=scratch)
    # Gigabytes that an earlier row left for the disk would be written in the time of this one.
    os.sync()
    try:
        figures = row.measure(Workplace(directory, lambda text: say(name, text)))
    except (LoadError, AssertionError, OSError, subprocess.SubprocessError) as error:
        result.failures.append(f"{type(error).__name__}: {error}".splitlines()[0][:300])
        say(name, f"FAILED: {error}")
        for line in _log(directory):
            say(name, f"  broker: {line}")
    else:
        result.runs.append(figures)
        shown = [f"{limit.figure} {number(figures[limit.figure])} ({limit})" for limit in row.limits]
        if "received_per_s" in figures:
            shown.append(f"{figures['received_per_s']:,.0f} messages/s")
        say(name, ", ".join(shown))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _log(directory: str) -> list[str]:
    """The last that the broker said."""
    try:
        with open(f"{directory}/data.log", errors="replace") as file:
            return file.read().splitlines()[-20:]
    except OSError:
        return []


def say(name: str, text: str) -> None:
    """One line of progress."""
    print(f"{name:<18} {text}", file=sys.stderr, flush=True)
