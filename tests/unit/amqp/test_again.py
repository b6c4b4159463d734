"""Sending links that are resumed (2.6.13): tags by number, and deliveries of a former attach sent again."""

from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.again import AgainSender
from lightrail.amqp.errors import EndedError
from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Disposition,
    Flow,
    Received,
    Source,
    Target,
    Transfer,
)
from lightrail.amqp.sender import SendingLink
from tests.unit.amqp.peer import Peer, opened

PREFIX = b"terminus"
FIRST = (1 << 32) - 2
"""Of the new deliveries: their numbers pass what a tag has room for."""

SEVEN, EIGHT, NINE, ELEVEN = (FIRST - 100 + number for number in (7, 8, 9, 11))


def tag(number: int) -> bytes:
    return PREFIX + (number & 0xFFFFFFFF).to_bytes(4, "big")


def resumed(peer: Peer, credit: int = 100, window: int = 1_000) -> SendingLink:
    """A link whose numbers go on from a former attach."""
    attach = Attach(name="out", handle=1, role=True, source=Source(address="queue"), target=Target())
    (attached,) = peer.say(attach)
    assert isinstance(attached, events.Attached)
    link = attached.link
    assert isinstance(link, SendingLink)
    link.number_tags(PREFIX, FIRST)
    link.accept()
    if credit:
        peer.credit(link, credit, incoming_window=window)
    peer.hear()
    return link


def transfers(peer: Peer) -> list[Transfer]:
    return [body for body in bodies(peer) if type(body) is Transfer]


def bodies(peer: Peer) -> list[Any]:
    """What came, without the payloads."""
    return [each[0] if type(each) is tuple else each for each in peer.hear()]


def test_new_deliveries_are_numbered_on_whatever_their_ids() -> None:
    peer = opened()
    other = peer.receiver("other", 2)
    link = resumed(peer)
    assert link.limit == FIRST + 100
    other.send_one(b"x")
    link.send(2, (1, 2), b"ab")
    other.send_one(b"y")
    link.send(2, (1, 2), b"cd")
    found = [each for each in transfers(peer) if each.handle == link.output_handle]
    assert [each.delivery_tag for each in found] == [tag(FIRST + number) for number in range(4)]
    assert [each.delivery_id for each in found] == [1, 2, 4, 5]
    assert [link.unsettled_number(tag(FIRST + number)) for number in range(-1, 5)] == [
        None,
        *range(FIRST, FIRST + 4),
        None,
    ]
    assert link.unsettled_number(b"terminu-" + tag(FIRST)[8:]) is None
    (event,) = peer.say(Disposition(role=True, first=2, last=4, settled=True, state=Accepted()))[:1]
    assert isinstance(event, events.Outcome)
    assert (event.first, event.last) == (FIRST + 1, FIRST + 1)
    link.settle_sent(FIRST + 3, FIRST + 3)
    (settled,) = peer.hear()
    assert (settled.first, settled.settled) == (5, True)


def test_a_large_delivery_has_its_number_in_the_first_frame() -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin()
    link = resumed(peer)
    link.send_one(bytes(1_000))
    first, *rest = transfers(peer)
    assert first.delivery_tag == tag(FIRST)
    assert len(rest) == 1 or all(each.delivery_tag is None for each in rest)


def test_deliveries_are_sent_again_under_their_numbers_ahead_of_new_ones() -> None:
    peer = opened()
    link = resumed(peer, credit=2)
    state = Received(section_number=0, section_offset=0)
    link.send_again(SEVEN, b"seven", resume=True, state=state)
    link.send_again(NINE, b"nine", resume=False)
    link.send_again(ELEVEN, b"eleven", 5, resume=True)
    assert link.waiting_again == 1
    assert link.limit == FIRST
    found = transfers(peer)
    assert [(each.delivery_tag, each.resume, each.state, each.settled) for each in found] == [
        (tag(SEVEN), True, state, False),
        (tag(NINE), False, None, False),
    ]
    numbers = [link.unsettled_number(tag(number)) for number in (SEVEN, EIGHT, NINE, ELEVEN)]
    assert numbers == [SEVEN, None, NINE, None]
    (event,) = peer.credit(link, 3)
    assert isinstance(event, events.Credit)
    assert event.limit == FIRST + 2
    (eleven,) = transfers(peer)
    assert (eleven.delivery_tag, eleven.message_format, eleven.delivery_id) == (tag(ELEVEN), 5, 2)
    link.send_one(b"new")
    assert [each.delivery_tag for each in transfers(peer)] == [tag(FIRST)]
    outcome = peer.say(Disposition(role=True, first=0, last=2, settled=True, state=Accepted()))
    assert [(each.first, each.last) for each in outcome] == [(each, each) for each in (SEVEN, NINE, ELEVEN)]


@pytest.mark.parametrize("fields", [{"settled": True, "state": Accepted()}, {"aborted": True}])
def test_what_is_settled_or_aborted_is_not_unsettled(fields: dict[str, Any]) -> None:
    peer = opened()
    link = resumed(peer)
    link.send_again(SEVEN, resume=True, **fields)
    (found,) = transfers(peer)
    assert (found.settled, found.aborted) == (fields.get("settled", False), fields.get("aborted", False))
    assert link.unsettled_number(tag(SEVEN)) is None
    assert link.waiting_again == 0


def test_new_deliveries_wait_behind_those_that_wait_for_the_session_window() -> None:
    peer = Peer()
    peer.open()
    peer.begin(incoming_window=1)
    link = resumed(peer, window=1)
    link.send_again(SEVEN, b"seven", resume=True)
    link.send_again(EIGHT, b"eight", resume=True)
    link.send_one(b"new")
    assert [each.delivery_tag for each in transfers(peer)] == [tag(SEVEN)]
    peer.window(link.session, 10)
    assert [each.delivery_tag for each in transfers(peer)] == [tag(EIGHT), tag(FIRST)]


def test_a_large_one_takes_several_frames_and_one_credit() -> None:
    peer = Peer()
    peer.open(max_frame_size=512)
    peer.begin(incoming_window=2)
    link = resumed(peer, credit=2, window=2)
    payload = bytes(range(250)) * 5
    link.send_again(SEVEN, payload, resume=True)
    assert link.limit == FIRST + 1
    assert link.waiting_again == 1
    peer.window(link.session, 10)
    assert link.waiting_again == 0
    assert [each.more for each in transfers(peer)] == [True, True, False]
    assert link.credit == 1


def test_a_drain_is_answered_where_they_wait_for_credit_and_waits_where_they_wait_for_the_window() -> None:
    peer = opened()
    link = resumed(peer, credit=0)
    link.send_again(SEVEN, b"seven", resume=True)
    link.send_again(EIGHT, b"eight", resume=True)
    peer.credit(link, 1, drain=True)
    link.drained()
    heard = bodies(peer)
    assert [type(each) for each in heard] == [Transfer, Flow]
    assert (heard[-1].link_credit, heard[-1].delivery_count) == (0, 1)
    peer.credit(link, 1, incoming_window=0, drain=True)
    link.drained()
    assert bodies(peer) == []
    peer.window(link.session, 10)
    assert [type(each) for each in bodies(peer)] == [Transfer, Flow]


def test_a_link_that_has_ended_sends_nothing_again() -> None:
    peer = opened()
    link = resumed(peer, credit=0)
    link.send_again(SEVEN, b"seven", resume=True)
    link.detach()
    assert link.waiting_again == 0
    with pytest.raises(EndedError):
        link.send_again(EIGHT, b"eight", resume=True)
    assert transfers(peer) == []
    assert isinstance(link, AgainSender)
