"""States of a receiving link: every state with every event."""

from itertools import product
from typing import Any

import pytest

from lightrail.model.links import Ending
from lightrail.shard.effects.receiving_link import (
    TRANSITIONS,
    LinkEvent,
    LinkStateError,
    Origin,
    ReceivingLink,
    ReceivingState,
)
from lightrail.wire.bodies import ConsumerOpen
from tests.support.transitions import rows

# Every state with every event: the state that follows, or a dash where the event is refused.
TABLE = """
            attach    suspend    freeze  serve    end
attached    -         suspended  away    -        ended
away        -         -          -       awaited  ended
awaited     attached  suspended  away    -        ended
suspended   attached  -          away    -        ended
ended       -         -          -       -        -
"""
ROWS = rows(TABLE, ReceivingState, LinkEvent)


def test_the_table_has_every_state_with_every_event() -> None:
    assert {(state, event) for state, event, _ in ROWS} == set(product(ReceivingState, LinkEvent))
    assert len(TRANSITIONS) == sum(after is not None for _, _, after in ROWS)


@pytest.mark.parametrize(("before", "event", "after"), ROWS)
def test_an_event_leads_to_the_state_of_the_table_or_is_refused(
    before: ReceivingState, event: LinkEvent, after: ReceivingState | None
) -> None:
    link = made()
    link.state = before
    if after is not None:
        link.apply(event)
        assert link.state is after
        return
    with pytest.raises(LinkStateError, match=f"expected an event that {before.value} allows") as raised:
        link.apply(event)
    assert event.value in str(raised.value)
    assert link.state is before


def test_a_link_of_a_queue_that_is_not_served_yet_is_away_and_one_that_a_frontend_opens_is_attached() -> None:
    consumer: Any = object()
    assert (made().state, made(consumer).state) == (ReceivingState.AWAY, ReceivingState.ATTACHED)
    assert made().ending is Ending.BY_BROKER


@pytest.mark.parametrize("state", ReceivingState)
def test_a_frontend_may_take_over_what_is_awaited_or_suspended(state: ReceivingState) -> None:
    link = made()
    link.state = state
    assert link.is_waiting == ((state, LinkEvent.ATTACH) in TRANSITIONS)


def made(consumer: Any = None) -> ReceivingLink:
    queue: Any = None
    return ReceivingLink(queue, 1, Origin((7, 3), ConsumerOpen("q")), consumer)
