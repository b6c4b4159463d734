"""Shards with members under faults as a seed decides: nothing accepted is lost, and one owner accepts.

The processes are real but for threads, sockets, clocks and disks (tests/support/sim/member.py). The laws
are those of tests/support/sim/history.py, and those of all shards (cluster.py). A seed that breaks a law is
printed; `PYTHONHASHSEED=0 python -m tests.simulation.run_members SCRIPT SEED 1` runs it again, with what
happened. Once its cause is known it gets a unit test: a seed is another run after a change of the product.
"""

import os
import subprocess
import sys

import pytest

from tests.simulation.broken_laws import BROKEN
from tests.support.broker import ROOT
from tests.support.sim.member_scripts import KINDS

TOGETHER = 6
"""Kinds of faults of one test, each alone."""
PAIRS = 4
"""Seeds for pairs of faults at the same time."""
SEEN = ("acknowledged before the sync (1)", "accepted before all have it (1)")
"""Broken laws that the first seeds see; the others belong to the long run."""


def run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.form", f"tests.simulation.{module}", *arguments],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.parametrize("first", range(0, len(KINDS), TOGETHER))
def test_no_law_breaks_under_faults_of_one_kind(first: int) -> None:
    kinds = KINDS[first : first + TOGETHER]
    done = run("run_members", ",".join(kinds), "1", "1")
    assert int(done.split(" acceptances,")[0].split()[-1]) > 100 * len(kinds)


def test_no_law_breaks_under_pairs_of_faults() -> None:
    done = run("run_members", "pairs", "1", str(PAIRS))
    assert int(done.split(" take-overs,")[0].split()[-1]) > 0


def test_a_seed_with_members_is_one_run() -> None:
    assert run("run_members", "kill", "7", "1") == run("run_members", "kill", "7", "1")


@pytest.mark.parametrize("law", SEEN)
def test_a_broken_law_is_seen(law: str) -> None:
    assert not run("broken_laws", law, "1", "4").endswith("None\n")


@pytest.mark.soak
@pytest.mark.parametrize("law", BROKEN)
def test_every_broken_law_is_seen(law: str) -> None:
    assert not run("broken_laws", law, "1", "200").endswith("None\n")


@pytest.mark.soak
def test_no_law_breaks_under_many_faults_of_members() -> None:
    seconds = float(os.environ.get("LIGHTRAIL_SOAK_SECONDS", "3600"))
    for script in ("single", "pairs"):
        run("run_members", script, "100000", str(max(1, int(seconds / 4))))
