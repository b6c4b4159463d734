"""A settled disposition without a state, from either side: which outcome it has (2.6.12, 3.4, 3.5.3).

The delivery state at the receiver decides, and where that is not terminal the default-outcome of the source.
test_messaging_3.py has each default-outcome for deliveries whose receiver never named a state.
"""

from typing import Any

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    Detach,
    Disposition,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Transfer,
)
from tests.conformance.test_messaging_3 import DEFAULTS, fetched, rest
from tests.conformance.test_transport_2_7_transfers import contents, settled
from tests.support.amqp.frame_peer import Peer, frame, transfers, value

STARTED = Received(section_number=0, section_offset=0)


def settle(peer: Peer, first: int = 0, last: int | None = None) -> None:
    peer.write(Disposition(role=True, first=first, last=last, settled=True))


def ended(peer: Peer) -> None:
    """The receiver on handle 0 has ended, so that what it settled has been applied."""
    peer.write(Detach(handle=0, closed=True))
    while type(peer.read().body) is not Detach:
        pass


def outcome(peer: Peer, queue: str) -> tuple[list[tuple[int, bytes]], int]:
    """What the queue has, and how many dead letters there are."""
    left = rest(peer, queue, 5)
    return left, len(rest(peer, f"{queue}/$dlq", 6))


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("state", [None, STARTED], ids=["nothing", "received"])
def test_3_5_3_without_a_terminal_state_the_default_outcome_counts(
    begun: Peer, queue: str, default: str, state: Any
) -> None:
    asked, left, dead = DEFAULTS[default]
    fetched(begun, queue, source=Source(address=queue, default_outcome=asked))
    if state is not None:
        begun.write(Disposition(role=True, first=0, settled=False, state=state))
    settle(begun)
    ended(begun)
    assert outcome(begun, queue) == (left, dead)


@pytest.mark.parametrize(
    ("state", "left", "dead"),
    [
        (Accepted(), [], 0),
        (Rejected(), [], 1),
        (Released(), [(0, value(0))], 0),
        (Modified(delivery_failed=True), [(1, value(0))], 0),
    ],
    ids=["accepted", "rejected", "released", "modified"],
)
def test_2_6_12_the_terminal_state_that_was_sent_before_counts(
    begun: Peer, queue: str, state: Any, left: list[tuple[int, bytes]], dead: int
) -> None:
    """It was sent unsettled; the settlement need not repeat it, and the default-outcome is of no effect."""
    default = Accepted() if left else Released()
    fetched(begun, queue, source=Source(address=queue, default_outcome=default), rcv_settle_mode=1)
    begun.write(Disposition(role=True, first=0, settled=False, state=state))
    settle(begun)
    ended(begun)
    assert outcome(begun, queue) == (left, dead)


def test_2_6_12_a_range_may_be_settled_without_a_state(begun: Peer, queue: str) -> None:
    """Of three deliveries the second has a state of its own."""
    fetched(begun, queue, 3, source=Source(address=queue, default_outcome=Released()))
    begun.write(Disposition(role=True, first=1, settled=False, state=Accepted()))
    settle(begun, 0, 2)
    ended(begun)
    assert rest(begun, queue) == [(0, value(0)), (0, value(2))]


def test_3_5_3_modified_as_default_keeps_its_fields(begun: Peer, queue: str) -> None:
    """With undeliverable-here, the link does not get the message again."""
    default = Modified(delivery_failed=True, undeliverable_here=True)
    fetched(begun, queue, source=Source(address=queue, default_outcome=default))
    settle(begun)
    begun.flow(1, 1, drain=True)
    assert begun.expect(Flow).link_credit == 0
    assert rest(begun, queue) == [(1, value(0))]


def test_2_6_12_a_sender_that_settles_first_gets_no_outcome(begun: Peer, queue: str) -> None:
    """Its settlement without a state: it has forgotten the delivery, which is stored all the same."""
    begun.attach_sender(queue)
    begun.send(
        transfers(0, [value(0)]),
        frame(Disposition(role=False, first=0, settled=True)),
        transfers(0, [value(1)], 1),
    )
    assert settled(begun, 1) == [1]
    assert contents(begun, queue, 2) == [value(0), value(1)]


def test_2_6_12_a_sender_may_settle_what_is_settled_already(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), value(0))
    assert settled(begun, 1) == [0]
    begun.write(Disposition(role=False, first=0, last=7, settled=True))
    begun.nothing_before_echo(next_outgoing_id=1)
    assert contents(begun, queue, 1) == [value(0)]
