#!/usr/bin/env python3
"""Measures every target and writes docs/benchmarks.md and docs/benchmarks.json; `make bench` calls it."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.benchmarks import (
    archives,
    before,
    buses,
    captures,
    clients,
    clusters,
    copies,
    gateways,
    holdings,
    lakes,
    machine,
    names,
    policies,
    rates,
    replicas,
    routers,
    service_bus,
    steps,
    suite,
    take_overs,
    transactions,
)
from tests.benchmarks.row import Row

ROWS: tuple[Row, ...] = (
    *rates.ROWS,
    *steps.ROWS,
    *copies.ROWS,
    *holdings.ROWS,
    *before.ROWS,
    *routers.ROWS,
    *gateways.ROWS,
    *names.ROWS,
    *policies.ROWS,
    *captures.ROWS,
    *clients.ROWS,
    *buses.ROWS,
    *clusters.ROWS,
    *replicas.ROWS,
    *take_overs.ROWS,
    *transactions.ROWS,
    *service_bus.ROWS,
    *archives.ROWS,
    *lakes.ROWS,
)


def main() -> int:
    """The exit status: 0 when all targets were met, 1 when one was missed."""
    rows = {row.name: row for row in ROWS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(rows), help="a row; may be given again")
    parser.add_argument("--runs", type=int, default=5, help="of each row (default 5)")
    parser.add_argument(
        "--scratch", default=machine.default_scratch(), help="where data directories are made; on a real disk"
    )
    given = parser.parse_args()
    chosen = [rows[name] for name in (given.only or rows)]
    return 0 if suite.run(chosen, given.runs, given.scratch, list(rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
