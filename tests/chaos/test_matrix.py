"""The fault matrix under load: nothing accepted is lost, nothing comes twice in calm, and order holds.

Here the faults of a victim strike in turn in the same broker, and the first one once more at the end.
In `make soak` each strikes alone, LIGHTRAIL_MATRIX_ROUNDS times: fifty, if that is not set.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.loads import LOADS, Loads
from tests.chaos.matrix import KINDS, MATRIX, VICTIMS, Covered, Fault, Never
from tests.support.broker import ROOT

SOAK_ROUNDS = int(os.environ.get("LIGHTRAIL_MATRIX_ROUNDS", "50"))
RUN = {f"{victim} {kind}": cell for (victim, kind), cell in MATRIX.items() if callable(cell)}
STRUCK = tuple(dict.fromkeys(victim for (victim, _), cell in MATRIX.items() if callable(cell)))

pytestmark = pytest.mark.timeout(150)


def strike(tmp_path: Path, faults: Sequence[Fault]) -> None:
    with Loads(tmp_path / "data") as loads:
        loads.warm()
        for fault in faults:
            loads.calm.disturb()
            fault(loads)
            loads.recovered()
        loads.finish()
        assert [load.name for load in loads.all] == list(LOADS)
        assert all(sender.page.accepted for load in loads.all for sender in load.senders)


@pytest.mark.parametrize("victim", STRUCK)
def test_no_load_loses_what_was_accepted(tmp_path: Path, victim: str) -> None:
    faults = [cell for (each, _), cell in MATRIX.items() if each == victim and callable(cell)]
    strike(tmp_path, [*faults, faults[0]])


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("fault", RUN.values(), ids=RUN)
def test_no_load_loses_what_was_accepted_over_many_rounds(tmp_path: Path, fault: Fault) -> None:
    strike(tmp_path, [fault] * SOAK_ROUNDS)


def test_every_cell_runs_or_gives_its_reason() -> None:
    missing = [(victim, kind) for victim in VICTIMS for kind in KINDS if (victim, kind) not in MATRIX]
    assert not missing
    for key, cell in MATRIX.items():
        assert callable(cell) or isinstance(cell, Covered | Never), key
        if isinstance(cell, Never):
            assert len(cell.reason.split()) > 4, f"{key}: {cell.reason!r} is no reason"


def test_the_tests_that_cells_name_are_there() -> None:
    named = [test for cell in MATRIX.values() if isinstance(cell, Covered) for test in cell.tests]
    assert named
    for test in named:
        path, _, function = test.partition("::")
        assert f"\ndef {function}(" in (ROOT / path).read_text(), f"{test} is not there"
