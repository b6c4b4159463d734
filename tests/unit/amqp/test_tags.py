"""Delivery-tags: with each reader, one that is in use is refused, and no other is (transport 2.6.12)."""

import random
from collections.abc import Callable, Iterator

import pytest

from lightrail import amqp as interpreted
from lightrail.amqp import compiled, events
from lightrail.amqp import tags as tags_module
from lightrail.amqp.performatives import Accepted, Detach, Disposition, Transfer
from lightrail.amqp.tags import PRUNE_AT, form_of, tag_of
from tests.unit.amqp.peer import Peer, amqp, conditions_of, data, opened, session_of, transfer
from tests.unit.amqp.test_scanner import read_with

READERS = {
    "scanner": (compiled, {"scans": True, "learn_shapes": False}),
    "interpreted": (interpreted, {"scans": True, "learn_shapes": False}),
    "shapes": (interpreted, {"scans": False, "learn_shapes": True}),
    "complete": (interpreted, {"scans": False, "learn_shapes": False}),
}
Make = Callable[[], Peer]


@pytest.fixture(params=READERS)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    scanner, settings = READERS[request.param]
    read_with(scanner, monkeypatch)
    return lambda: opened(**settings)


def numbered(form: Callable[[int], bytes], first: int = 0) -> Iterator[bytes]:
    while True:
        yield form(first)
        first += 1


def wrapping(width: int, first: int) -> Iterator[bytes]:
    return numbered(lambda number: (number % 256**width).to_bytes(width, "big"), first)


def pooled(size: int) -> Iterator[bytes]:
    """Tags of a pool, as clients for JMS have: each comes again once all others were used."""
    while True:
        yield from (b"%d" % number for number in range(size))


def drawn(chance: random.Random, width: int) -> Iterator[bytes]:
    while True:
        yield chance.randbytes(width)


SCHEMES: dict[str, Callable[[random.Random], Iterator[bytes]]] = {
    "4 bytes": lambda chance: wrapping(4, chance.choice([0, 2**32 - 30])),
    "8 bytes": lambda chance: wrapping(8, chance.choice([0, 2**62 - 30, 2**63 - 30])),
    "2 bytes": lambda chance: wrapping(2, 250),
    "a byte": lambda chance: wrapping(1, 0),
    "little-endian": lambda chance: numbered(lambda number: number.to_bytes(8, "little"), 250),
    "digits": lambda chance: numbered(lambda number: b"%d" % number),
    "shortest": lambda chance: numbered(lambda number: number.to_bytes(1 + (number >= 256), "big"), 200),
    "pool": lambda chance: pooled(chance.choice([1, 3, 40])),
    "16 random bytes": lambda chance: drawn(chance, 16),
    "random bytes": lambda chance: drawn(chance, 1),
    "empty": lambda chance: numbered(lambda number: b"" if number % 2 else b"x"),
}


def test_what_is_a_number() -> None:
    forms = {b"\x00": 1, b"0": 16, b"10": 16, b"01": 2, b"\x00\x00\x01": 3, b"\x80" * 8: 0, b"": 0}
    assert {tag: form_of(tag) for tag in forms} == forms
    assert (form_of(b"9" * 18), form_of(b"9" * 19)) == (16, 0)
    assert (tag_of(4, 258), tag_of(16, 258)) == (b"\x00\x00\x01\x02", b"258")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_exactly_tags_in_use_are_refused(make: Make, scheme: str) -> None:
    """Against a set of the unsettled tags: batches, settlements in any order, two links in one session."""
    for seed in range(25):
        chance = random.Random(f"{scheme} {seed}")
        peer = make()
        links = [peer.sender(f"l{index}", index, credit=10_000) for index in range(2)]
        tags = [SCHEMES[scheme](random.Random(f"{scheme} {seed} {index}")) for index in range(2)]
        used: list[dict[bytes, int]] = [{}, {}]
        number = 0
        refused = False
        for _ in range(30):
            frames: list[bytes] = []
            arrived = 0
            while not refused and len(frames) < chance.choice([1, 1, 2, 20, 60]):
                index = chance.randrange(2) if chance.random() < 0.1 else 0
                again = used[index] and chance.random() < 0.002
                tag = chance.choice(list(used[index])) if again else next(tags[index])
                settled = chance.random() < 0.02
                refused = tag in used[index]
                sent = transfer(number, index, delivery_tag=tag, settled=settled)
                frames.append(amqp(sent, data(b"x" * 20)))
                if not refused:
                    arrived += 1
                    if not settled:
                        used[index][tag] = number
                number += 1
            found = peer.feed(b"".join(frames))
            got = sum(len(event.payloads) for event in found if isinstance(event, events.Transfers))
            assert got == arrived, (seed, number)
            assert any(isinstance(event, events.Detached) for event in found) is refused, (seed, number)
            if refused:
                assert conditions_of(peer.hear()) == [("detach", "amqp:not-allowed")]
                break
            for index, link in enumerate(links):
                part = chance.choice([0.0, 0.5, 1.0])
                for tag, delivery in list(used[index].items()):
                    if chance.random() < part:
                        link.settle(delivery, delivery)
                        del used[index][tag]
            peer.hear()


def test_counted_tags_are_not_stored(make: Make) -> None:
    peer = make()
    link = peer.sender(credit=10_000)
    peer.feed(b"".join(amqp(transfer(number), data(b"x")) for number in range(2_000)))
    assert link.tags is not None
    assert link.tags.form == 4
    assert len(session_of(link).incoming.ranges) == 1
    assert not link.tags._known


def test_a_tag_of_any_kind_is_free_once_its_delivery_is_settled(make: Make) -> None:
    peer = make()
    link = peer.sender(credit=10_000)
    for number in range(50):
        (event,) = peer.say(transfer(number, delivery_tag=b"same"), data(b"x"))
        assert isinstance(event, events.Transfers)
        link.settle(number, number)


def test_an_aborted_delivery_frees_its_tag(make: Make) -> None:
    peer = make()
    peer.sender()
    peer.say(transfer(0, delivery_tag=b"t", more=True), b"half")
    peer.say(Transfer(handle=0, aborted=True))
    (event,) = peer.say(transfer(1, delivery_tag=b"t"), data(b"x"))
    assert isinstance(event, events.Transfers)


def test_a_settled_delivery_may_not_have_the_tag_of_an_unsettled_one(make: Make) -> None:
    peer = make()
    peer.sender()
    peer.say(transfer(0, delivery_tag=b"t"), data(b"x"))
    peer.say(transfer(1, delivery_tag=b"t", settled=True), data(b"y"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:not-allowed")]


def test_entries_of_settled_deliveries_are_removed(make: Make) -> None:
    peer = make()
    link = peer.sender(credit=100_000)
    peer.say(transfer(0, delivery_tag=b"oldest"), data(b"x"))
    for number in range(1, 3 * PRUNE_AT, 64):
        peer.feed(
            b"".join(
                amqp(transfer(index, delivery_tag=b"%16d" % (index * 7)), data(b"x"))
                for index in range(number, number + 64)
            )
        )
        link.settle(number, number + 63)
        peer.hear()
    assert link.tags is not None
    assert len(link.tags._known) <= PRUNE_AT + 64
    peer.say(transfer(number + 64, delivery_tag=b"oldest"), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:not-allowed")]


def feed_unsettled(peer: Peer, tags: Iterator[bytes], count: int) -> list[tuple[str, str]]:
    for first in range(0, count, 1_000):
        peer.feed(
            b"".join(
                amqp(transfer(number, delivery_tag=next(tags)), data(b"x"))
                for number in range(first, min(count, first + 1_000))
            )
        )
    return conditions_of(peer.hear())


def test_unsettled_tags_in_no_order_are_bounded(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """LINK_TAGS_MAX of them; numbers in order need no room, until they end."""
    monkeypatch.setattr(tags_module, "LINK_TAGS_MAX", 3_000)
    most = tags_module.LINK_TAGS_MAX
    peer = make()
    peer.sender(credit=100_000)
    assert feed_unsettled(peer, drawn(random.Random(1), 16), most) == []
    peer = make()
    peer.sender(credit=100_000)
    found = feed_unsettled(peer, drawn(random.Random(1), 16), 2 * most)
    assert found[:1] == [("detach", "amqp:resource-limit-exceeded")]
    peer = make()
    peer.sender(credit=100_000)
    assert feed_unsettled(peer, numbered(lambda number: number.to_bytes(4, "big")), 2 * most) == []
    peer.say(transfer(2 * most, delivery_tag=b"other"), data(b"x"))
    assert conditions_of(peer.hear()) == [("detach", "amqp:resource-limit-exceeded")]


def test_a_sender_that_settles_second_frees_the_tag_when_it_settles(make: Make) -> None:
    peer = make()
    link = peer.sender(rcv_settle_mode=1)
    peer.say(transfer(0, delivery_tag=b"t"), data(b"x"))
    link.settle(0, 0)
    assert [type(body) for body in peer.hear()] == [Disposition]
    peer.say(Disposition(role=False, first=0, settled=True))
    (event,) = peer.say(transfer(1, delivery_tag=b"t"), data(b"x"))
    assert isinstance(event, events.Transfers)
    peer.say(transfer(2, delivery_tag=b"t"), data(b"x"))
    assert [type(body) for body in peer.hear()] == [Detach]


def test_a_link_of_requests_takes_every_delivery_whatever_its_id_and_tag(make: Make) -> None:
    """Threads of Azure's client for Python number deliveries of one link without a lock."""
    peer = make()
    link = peer.sender(snd_settle_mode=0)
    link.allow_repeats()
    arrived: list[bytes] = []
    for delivery_id, tag in [(0, b"a"), (1, b"b"), (1, b"b"), (1, b"c"), (2, b"b"), (0, b"a"), (5, b"d")]:
        body = data(b"%d" % len(arrived))
        (event,) = peer.say(transfer(delivery_id, delivery_tag=tag), body)
        assert isinstance(event, events.Transfers)
        assert event.payloads == [body]
        arrived += event.payloads
        if not event.settled:
            link.settle(delivery_id, delivery_id)
        (answer,) = peer.hear()
        assert isinstance(answer, Disposition)
        assert (answer.first, answer.settled, type(answer.state)) == (delivery_id, True, Accepted)
    peer.say(transfer(6, delivery_tag=b"e"), data(b"x"))
    peer.say(transfer(6, delivery_tag=b"e"), data(b"y"))
    assert [each.first for each in peer.hear()] == [6]
    link.settle(6, 6)
    assert [each.first for each in peer.hear()] == [6]
    assert link.credit == 100 - len(arrived) - 2


def test_a_repeated_delivery_of_several_frames_arrives_whole(make: Make) -> None:
    peer = make()
    peer.sender().allow_repeats()
    peer.say(transfer(0), data(b"x"))
    body = data(b"in two frames")
    assert peer.say(transfer(0, more=True), body[:5]) == []
    (event,) = peer.say(Transfer(handle=0, more=False), body[5:])
    assert isinstance(event, events.Transfers)
    assert event.payloads == [body]
