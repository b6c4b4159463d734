"""Endings: which deliveries of a consumer that has ended count as failed, and what becomes of the others."""

import pytest

from lightrail.model.ending import Ending
from lightrail.shard.queue.changes.endings import fails_oldest, outcome_of_rest
from lightrail.shard.queue.values.commands import ACCEPTED, FAILED, RELEASED, Outcome, OutcomeKind

LOOKS = Outcome(OutcomeKind.MODIFIED)
"""The default-outcome of a program that only looks."""


@pytest.mark.parametrize("default", [ACCEPTED, RELEASED, FAILED, LOOKS])
@pytest.mark.parametrize("ending", Ending)
def test_only_a_failure_counts_and_only_where_the_source_lets_it(default: Outcome, ending: Ending) -> None:
    assert fails_oldest(default, ending) == (ending is Ending.FAILED and default in (ACCEPTED, FAILED))


@pytest.mark.parametrize("default", [ACCEPTED, RELEASED, FAILED, LOOKS])
@pytest.mark.parametrize("ending", Ending)
def test_the_rest_is_released_unless_the_client_has_decided(default: Outcome, ending: Ending) -> None:
    decided = default is ACCEPTED and ending is Ending.BY_CLIENT
    assert outcome_of_rest(default, ending) == (ACCEPTED if decided else RELEASED)
