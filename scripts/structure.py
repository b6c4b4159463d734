#!/usr/bin/env python3
"""Counts how the product is built: rooms, imports, joints, doors; `make imports` calls it.

Prints a table: value now, target, ratchet. The ratchet is the best value so far (scripts/structure.json);
the exit status is 1 when a row is worse than its ratchet by more than its slack, or has no ratchet. The
modules of scripts/counts/ define each count.

  scripts/structure.py                      what the text of the code decides
  scripts/structure.py --traced             and files that three operations pass in a running broker
  scripts/structure.py --write              lower the ratchets to the present values where these are better
  scripts/structure.py --parts small_files  what a row consists of
  scripts/structure.py --root ../other      another checkout, without ratchets
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.counts.rows import ROOT, ROWS, TRACED, Checkout, Found

ALL: Final = (*ROWS, *TRACED)
RATCHETS: Final = Path(__file__).with_suffix(".json")


def counted(root: Path) -> dict[str, Found]:
    """The rows that the text of a checkout decides, by key."""
    checkout = Checkout.read(root)
    return {row.key: row.count(checkout) for row in ROWS}


def traced(root: Path) -> dict[str, Found]:
    """The traced rows of a checkout, by key."""
    from scripts.counts import traces  # loads the client, which the other rows need not wait for

    found = traces.traces(root)
    return {key: Found.each(found[key].files) for key in found}


def judge(found: Mapping[str, Found], ratchets: Mapping[str, float]) -> list[str]:
    """What is wrong, a line for each row that is worse than its ratchet or has none."""
    wrong = []
    for row in ALL:
        if row.key not in found:
            continue
        value = found[row.key].value
        if row.key not in ratchets:
            wrong.append(f"{row.key}: expected a ratchet in {RATCHETS.name}, found none; run --write")
        elif row.is_worse(value, ratchets[row.key]):
            allowed = f"{ratchets[row.key]:g}" + (f" (slack {row.slack:g})" if row.slack else "")
            wrong.append(
                f"{row.key}: expected {'at least' if row.rises else 'at most'} {allowed}, found {value:g}: "
                f"{row.text}; --parts {row.key} lists them"
            )
    return wrong


def tightened(found: Mapping[str, Found], ratchets: Mapping[str, float]) -> dict[str, float]:
    """The ratchets after `--write`: rows that were not counted keep theirs."""
    kept = {row.key: ratchets[row.key] for row in ALL if row.key in ratchets}
    present = {
        row.key: row.better(found[row.key].value, ratchets.get(row.key, found[row.key].value))
        for row in ALL
        if row.key in found
    }
    return kept | present


def table(found: Mapping[str, Found], ratchets: Mapping[str, float]) -> str:
    """One line for each row that was counted."""
    lines = [f"{'row':20}{'now':>8}{'target':>8}{'ratchet':>9}"]
    for row in ALL:
        if row.key in found:
            figures = (found[row.key].value, row.target, ratchets.get(row.key))
            now, target, ratchet = ("-" if figure is None else f"{figure:g}" for figure in figures)
            lines.append(f"{row.key:20}{now:>8}{target:>8}{ratchet:>9}  {row.text}")
    return "\n".join(lines)


def as_json(found: Mapping[str, Found], ratchets: Mapping[str, float]) -> str:
    """By key: the same figures."""
    rows: dict[str, dict[str, float | None]] = {
        row.key: {"now": found[row.key].value, "target": row.target, "ratchet": ratchets.get(row.key)}
        for row in ALL
        if row.key in found
    }
    return json.dumps(rows, indent=2)


def main(arguments: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Counts how the product is built.")
    parser.add_argument("--traced", action="store_true", help="also what a running broker decides")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help="lower the ratchets where the values are better")
    parser.add_argument(
        "--parts", metavar="ROW", choices=[row.key for row in ALL], help="list the parts of a row"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout; it has no ratchets")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    found = counted(root)
    if options.traced or options.parts in {row.key for row in TRACED}:
        found |= traced(root)
    if options.parts:
        print(*found[options.parts].parts, sep="\n")
        return 0
    if root != ROOT:
        print(as_json(found, {}) if options.json else table(found, {}))
        return 0
    ratchets: dict[str, float] = json.loads(RATCHETS.read_text()) if RATCHETS.exists() else {}
    if options.write:
        ratchets = tightened(found, ratchets)
        RATCHETS.write_text(json.dumps(ratchets, indent=2) + "\n")
    print(as_json(found, ratchets) if options.json else table(found, ratchets))
    wrong = judge(found, ratchets)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
