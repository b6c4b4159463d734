"""Within a scenario's bounds every promise holds with the 13 laws, and none of these can be left out."""

from collections.abc import Iterable

import pytest

from tests.model.replication.__main__ import main
from tests.model.replication.deletions import DELETIONS, Deletion
from tests.model.replication.explorer import explore
from tests.model.replication.scenarios import LONG, SCENARIOS
from tests.model.replication.world import World

ONLY_WITHOUT_ITS_LAW = {"own_again", "answer", "delete_queue"}
"""Steps that no history has in which all laws are kept."""


def has_in_order(kinds: Iterable[str], expected: Iterable[str]) -> bool:
    """Are these kinds of steps among others, in this order?"""
    rest = iter(kinds)
    return all(kind in rest for kind in expected)


@pytest.mark.parametrize("name", SCENARIOS)
def test_with_all_laws_every_promise_holds(name: str) -> None:
    found = explore(World(SCENARIOS[name]))
    assert found.broken is None, str(found)
    # What the laws are for has happened: a history without a law has no step that can't happen with it.
    steps = {kind for deletion in DELETIONS if deletion.scenario == name for kind in deletion.steps}
    assert steps - ONLY_WITHOUT_ITS_LAW <= found.kinds


@pytest.mark.parametrize("deletion", DELETIONS, ids=lambda deletion: deletion.name)
def test_without_a_part_of_a_law_a_promise_breaks(deletion: Deletion) -> None:
    found = explore(World(SCENARIOS[deletion.scenario], deletion.laws))
    assert found.broken == deletion.broken, str(found)
    assert has_in_order([kind for kind, _ in found.history], deletion.steps), str(found)


def test_each_law_is_deleted() -> None:
    assert {deletion.law for deletion in DELETIONS} == set(range(1, 14))


def test_a_history_is_printed_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--law", "7", "--without", "round"]) == 0
    printed = capsys.readouterr().out
    assert "A (epoch 1) answers that r1 is not prepared there" in printed
    assert "an answer about absence is true" in printed


def test_an_unknown_law_is_an_error_that_names_the_laws(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--law", "14"]) == 2
    assert "expected a law from 1 to 13" in capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LONG)
def test_with_all_laws_every_promise_holds_in_larger_worlds(name: str) -> None:
    found = explore(World(LONG[name]))
    assert found.broken is None, str(found)
