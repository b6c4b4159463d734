"""A plain queue as it is and as it was before names had policies: both trees in turns, on one machine.

The tree of the commit before is checked out by git for the run; without git or without that commit (a copy of
the sources alone, a shallow clone) the row is left out.
"""

import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.benchmarks.load import bench
from tests.benchmarks.machine import ROOT
from tests.benchmarks.rates import SERVE
from tests.benchmarks.row import Figures, Limit, Row, Workplace
from tests.support.broker import Broker

COMMIT: Final = "084adbe93138327d2221857706a56340acac218a"
"""The last one at which every name was a plain queue."""
TURNS: Final = 4
"""Of each tree and kind in one run."""
KINDS: Final = {
    "transient": "--duration 4s --backlog 20000",
    "durable": "--durable --duration 4s --backlog 20000",
}


def missing() -> str | None:
    """What this machine lacks."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "cat-file", "-e", f"{COMMIT}^{{commit}}"], capture_output=True
        )
    except OSError:
        return "expected git, found none"
    return f"expected commit {COMMIT[:7]} in the repository, found none" if done.returncode else None


@contextmanager
def tree_before(directory: Path) -> Iterator[Path]:
    """The tree of the commit before, in a worktree that is gone afterwards."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(directory), COMMIT], capture_output=True, check=True)
    try:
        yield directory
    finally:
        subprocess.run([*git, "remove", "--force", str(directory)], capture_output=True, check=True)


def measure(workplace: Workplace) -> Figures:
    """Medians of CPU per message of both trees, which take turns, and their ratios."""
    spent: dict[tuple[str, str], list[float]] = {}
    with tree_before(Path(workplace.scratch) / "before") as before:
        trees = {"now": ROOT, "before": before}
        for turn in range(TURNS):
            # Who is first in one turn is second in the next: neither always has the warmer machine.
            for name in list(trees)[:: 1 if turn % 2 else -1]:
                data = Path(workplace.scratch) / f"{name}-{turn}"
                environ = {"PYTHONPATH": str(trees[name])}
                flags = ("--frontends", "1", "--shards", "1")
                with Broker(data, *flags, environ=environ, root=trees[name]) as broker:
                    for kind, load in KINDS.items():
                        value = bench(f"amqp://{broker.amqp}/{kind}", load, (broker.process.pid,))
                        spent.setdefault((kind, name), []).append(value["server_cpu_us"])
    medians = {key: statistics.median(values) for key, values in spent.items()}
    figures: Figures = {f"{kind}_ratio": medians[kind, "now"] / medians[kind, "before"] for kind in KINDS}
    figures |= {f"{kind}_{name}_cpu_us": value for (kind, name), value in medians.items()}
    return figures


ROWS = (
    Row(
        "unchanged",
        "a plain queue, transient and durable: CPU per message to that before names had policies",
        (
            f"git worktree add --detach … {COMMIT[:7]}",
            f"{SERVE}    (in turns: of this tree, of the one before)",
            *(f"lightrail bench {flags} --pids …" for flags in KINDS.values()),
        ),
        tuple(Limit(f"{kind}_ratio", 1.05, "times") for kind in KINDS),
        measure,
        missing,
    ),
)
