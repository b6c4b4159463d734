"""Between the end of a link and the event that its caller learns it from, no command fails in silence."""

from collections.abc import Callable

import pytest

from lightrail.amqp.errors import EndedError
from lightrail.amqp.events import RELEASED
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Close, Detach, End
from tests.unit.amqp.peer import Peer, data, opened, session_of, transfer

End_ = Callable[[Peer, Link], object]


def peer_detaches(peer: Peer, link: Link) -> None:
    peer.say(Detach(handle=session_of(link).outputs[link.output_handle].handle, closed=True))


ENDS: list[End_] = [
    peer_detaches,
    lambda peer, link: peer.say(End()),
    lambda peer, link: peer.say(Close()),
    lambda peer, link: link.detach(),
    lambda peer, link: link.session.end(),
    lambda peer, link: peer.engine.close(),
]


@pytest.mark.parametrize("end", ENDS)
def test_a_link_that_has_ended_raises_for_messages_and_counts_no_outcome(end: End_) -> None:
    peer = opened()
    link = peer.receiver(credit=10)
    link.send_one(data(b"before"))
    end(peer, link)
    peer.hear()
    with pytest.raises(EndedError):
        link.send(2, [5, 10], b"x" * 10)
    with pytest.raises(EndedError):
        link.send_one(data(b"after"))
    with pytest.raises(EndedError):
        link.send_again(0, data(b"before"), resume=True)
    assert link.settle_sent(0, 0) == 0
    link.drained()
    assert peer.hear() == []
    assert link.sent == 1, "a message that was not sent has no number"


@pytest.mark.parametrize("end", ENDS)
def test_a_link_that_has_ended_settles_nothing_and_grants_nothing(end: End_) -> None:
    peer = opened()
    link = peer.sender()
    for number in range(3):
        peer.say(transfer(number), data(b"x"))
    assert link.settle(0, 0) == 1
    assert link.grant(5)
    end(peer, link)
    peer.hear()
    assert link.settle(1, 1) == 0
    assert link.release_unsettled() == 0
    assert not link.grant(10)
    assert peer.hear() == []


def test_settling_counts_the_deliveries_whose_outcome_is_sent() -> None:
    peer = opened()
    link = peer.sender()
    for number in range(5):
        peer.say(transfer(number), data(b"x"))
    assert link.settle(1, 2) == 2
    assert link.settle(0, 3, RELEASED) == 2
    assert link.settle(0, 3) == 0
    assert link.release_unsettled() == 1


def test_what_has_ended_begins_nothing() -> None:
    peer = opened()
    link = peer.receiver()
    session = session_of(link)
    session.end()
    with pytest.raises(EndedError):
        session.attach("another", True)
    peer.engine.close()
    with pytest.raises(EndedError):
        peer.engine.begin()
