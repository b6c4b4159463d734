"""Resuming links on which the client sends (transport 2.6.13, messaging 3.4.6): nothing is stored twice.

In the tables of the specification the client is the sender and the broker the receiver: what the broker has
stored is accepted, and of what it has not stored it knows nothing.
"""

import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    End,
    Flow,
    Received,
    Released,
    Target,
    Transfer,
)
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.terminus import TERMINUS_TIMEOUT_S_MAX
from lightrail.model import conditions
from tests.support import wait
from tests.support.amqp.frame_peer import Peer, sender, value
from tests.support.broker import Broker

SECOND = 1
DURABLE_HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With two frontends: a link is resumed at either of them."""
    with Broker(tmp_path_factory.mktemp("broker") / "data", "--frontends", "2", "--shards", "2") as started:
        yield started


def connected(broker: Broker, **fields: Any) -> Peer:
    """A peer with a session on a connection of its own."""
    peer = Peer(broker.amqp)
    peer.open(**{"container_id": "resuming"} | fields)
    peer.begin()
    return peer


def asked(queue: str, timeout: int = 60, **fields: Any) -> Attach:
    """The attach of a link that may be resumed for a minute."""
    target = Target(address=queue, timeout=timeout, expiry_policy=Symbol("connection-close"))
    given: dict[str, Any] = {"name": "link", "target": target, "rcv_settle_mode": SECOND}
    return sender(queue, **given | fields)


def attach(peer: Peer, queue: str, **fields: Any) -> Attach:
    """Attaches it; the credit is there when this returns."""
    peer.write(asked(queue, **fields))
    answer = peer.expect(Attach)
    peer.expect(Flow)
    return answer


def lose(broker: Broker, queue: str, *tags: bytes, **fields: Any) -> Peer:
    """A client that sent messages under these tags, and whose outcomes are on their way."""
    peer = connected(broker)
    attach(peer, queue, **fields)
    for number, tag in enumerate(tags):
        peer.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag), value(tag.decode()))
    seen = 0
    while seen < len(tags):
        found = peer.expect(Disposition)
        assert type(found.state) is Accepted
        seen = (found.first if found.last is None else found.last) + 1
    return peer


def durable_value(tag: bytes) -> bytes:
    """A durable message with the tag as its body."""
    return DURABLE_HEADER + value(tag.decode())


def stored(broker: Broker, queue: str) -> list[bytes]:
    """Everything in the queue."""
    with connected(broker, container_id=f"reader {next(_numbers)}") as peer:
        peer.attach_receiver(queue)
        peer.flow(1_000, drain=True)
        found: list[bytes] = []
        while True:
            frame = peer.read()
            if type(frame.body) is Flow:
                return found
            found.append(frame.payload)


def test_the_answer_has_the_timeout_and_mode_that_hold(broker: Broker, queue: str) -> None:
    with connected(broker) as peer:
        answer = attach(peer, queue)
        assert isinstance(answer.target, Target)
        assert (answer.target.timeout, str(answer.target.expiry_policy)) == (60, "link-detach")
        assert answer.target.durable == 0
        assert answer.rcv_settle_mode == SECOND
        assert answer.unsettled is None


@pytest.mark.parametrize("durable", [0, 1, 2], ids=["none", "configuration", "unsettled state"])
def test_the_answer_has_the_durability_that_holds(broker: Broker, queue: str, durable: int) -> None:
    """Messaging 3.5.5."""
    with connected(broker) as peer:
        answer = attach(peer, queue, target=Target(address=queue, timeout=60, durable=durable))
        assert isinstance(answer.target, Target)
        assert answer.target.durable == durable


def test_a_link_that_is_not_suspended_is_not_durable(broker: Broker, queue: str) -> None:
    with connected(broker) as peer:
        answer = attach(peer, queue, target=Target(address=queue, durable=2))
        assert isinstance(answer.target, Target)
        assert (answer.target.timeout, answer.target.durable) == (0, 0)


@pytest.mark.parametrize(
    "target", [{"timeout": 100_000}, {"expiry_policy": Symbol("never")}], ids=["long", "for ever"]
)
def test_no_link_is_suspended_for_longer_than_the_bound(
    broker: Broker, queue: str, target: dict[str, Any]
) -> None:
    with connected(broker) as peer:
        answer = attach(peer, queue, target=Target(address=queue, **target))
        assert isinstance(answer.target, Target)
        assert answer.target.timeout == TERMINUS_TIMEOUT_S_MAX


def test_a_link_that_does_not_ask_is_not_resumable(broker: Broker, queue: str) -> None:
    with connected(broker) as peer:
        answer = attach(peer, queue, target=Target(address=queue))
        assert isinstance(answer.target, Target)
        assert (answer.target.timeout, answer.rcv_settle_mode, answer.unsettled) == (0, 0, None)


def test_a_container_without_an_id_can_not_resume(broker: Broker, queue: str) -> None:
    with connected(broker, container_id="") as peer:
        answer = attach(peer, queue)
        assert isinstance(answer.target, Target)
        assert answer.target.timeout == 0


@pytest.mark.parametrize(
    ("mine", "settles"),
    [(None, False), (Received(section_number=0, section_offset=0), False), (Accepted(), True)],
    ids=["null", "received", "accepted"],
)
def test_what_both_have_is_resumed_and_not_stored_again(
    broker: Broker, queue: str, mine: Any, settles: bool
) -> None:
    """Tags 2, 3, 6, 8 and 12 of the table in messaging 3.4.6."""
    former = lose(broker, queue, b"a", b"b")
    former.socket.close()
    with connected(broker) as peer:
        answer = attach(peer, queue, unsettled={b"a": mine, b"b": mine})
        assert answer.unsettled == {b"a": Accepted(), b"b": Accepted()}
        assert not answer.incomplete_unsettled
        for number, tag in enumerate((b"a", b"b")):
            resumed = Transfer(
                handle=0, delivery_id=number, delivery_tag=tag, resume=True, settled=settles, state=mine
            )
            peer.write(resumed, value(tag.decode()))
        if not settles:
            for number in range(2):
                found = peer.expect(Disposition)
                assert (found.first, type(found.state), found.settled) == (number, Accepted, False)
            peer.write(Disposition(role=False, first=0, last=1, settled=True))
        # New deliveries follow.
        peer.write(Transfer(handle=0, delivery_id=2, delivery_tag=b"c"), value("c"))
        assert peer.expect(Disposition).first == 2
        assert stored(broker, queue) == [value("a"), value("b"), value("c")]


def test_what_only_the_sender_has_is_sent_anew_and_ignored_where_it_is_resumed(
    broker: Broker, queue: str
) -> None:
    """Tags 1 and 5: the broker has no record of them."""
    lose(broker, queue).socket.close()
    with connected(broker) as peer:
        answer = attach(peer, queue, unsettled={b"a": None})
        assert answer.unsettled == {}
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", resume=True), value("ignored"))
        peer.write(Transfer(handle=0, delivery_id=1, delivery_tag=b"a"), value("a"))
        assert peer.expect(Disposition).first == 1
        assert stored(broker, queue) == [value("a")]


def test_what_only_the_broker_has_is_settled_and_forgotten(broker: Broker, queue: str) -> None:
    lose(broker, queue, b"a", b"b").socket.close()
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled={b"b": None}).unsettled == {b"b": Accepted()}
    with connected(broker) as peer:
        answer = attach(peer, queue, unsettled={b"a": None, b"b": None})
        assert answer.unsettled == {b"b": Accepted()}


def test_a_sender_without_a_map_begins_anew(broker: Broker, queue: str) -> None:
    """2.7.3: it has no unsettled deliveries, and its tags may be those of the process before it."""
    lose(broker, queue, b"a", b"b").socket.close()
    with connected(broker) as peer:
        assert attach(peer, queue).unsettled is None
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a"), value("new a"))
        peer.expect(Disposition)
    # Its next message, under tag b, is lost with the connection.
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled={b"b": None}).unsettled == {}


@pytest.mark.parametrize("durable", [0, 2], ids=["not durable", "durable"])
def test_in_mode_first_a_tag_is_free_when_its_outcome_is_sent(
    broker: Broker, queue: str, durable: int
) -> None:
    """2.6.12: both ends have settled. At worst a message is stored twice; none that was lost is accepted."""
    target = Target(address=queue, timeout=60, durable=durable)
    with connected(broker) as peer:
        answer = attach(peer, queue, target=target, rcv_settle_mode=0)
        assert isinstance(answer.target, Target)
        assert (answer.target.timeout, answer.target.durable) == (60, min(durable, 1))
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a"), value("first"))
        assert peer.expect(Disposition).settled
    # The second message under this tag is lost with the connection.
    with connected(broker) as peer:
        answer = attach(peer, queue, target=target, rcv_settle_mode=0, unsettled={b"a": None})
        assert answer.unsettled == {}
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a"), value("second"))
        assert peer.expect(Disposition).settled
    assert stored(broker, queue) == [value("first"), value("second")]


def test_where_both_have_an_outcome_the_sender_s_counts(broker: Broker, queue: str) -> None:
    """Tag 13."""
    lose(broker, queue, b"a").socket.close()
    with connected(broker) as peer:
        attach(peer, queue, unsettled={b"a": Released()})
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", resume=True, state=Released()), b"")
        found = peer.expect(Disposition)
        assert (type(found.state), found.settled) == (Released, False)


def test_an_aborted_resumption_forgets_the_delivery(broker: Broker, queue: str) -> None:
    """Tags 7, 9, 11 and 14."""
    lose(broker, queue, b"a").socket.close()
    with connected(broker) as peer:
        attach(peer, queue, unsettled={b"a": None})
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", resume=True, aborted=True))
        peer.nothing_before_echo(next_outgoing_id=1)
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled={b"a": None}).unsettled == {}


def test_what_the_client_settled_is_not_in_the_map(broker: Broker, queue: str) -> None:
    with lose(broker, queue, b"a", b"b") as peer:
        peer.write(Disposition(role=False, first=0, settled=True))
        peer.nothing_before_echo(next_outgoing_id=2)
    with connected(broker) as peer:
        answer = attach(peer, queue, unsettled={b"a": None, b"b": None})
        assert answer.unsettled == {b"b": Accepted()}


def test_a_delivery_that_was_sent_in_part_is_sent_anew(broker: Broker, queue: str) -> None:
    with connected(broker) as peer:
        attach(peer, queue)
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True), value("a")[:2])
        peer.nothing_before_echo(next_outgoing_id=1)
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled={b"a": None}).unsettled == {}
        peer.write(Transfer(handle=0, delivery_id=0, delivery_tag=b"a"), value("a"))
        peer.expect(Disposition)
        assert stored(broker, queue) == [value("a")]


def test_a_resumed_delivery_of_several_frames_is_one(broker: Broker, queue: str) -> None:
    lose(broker, queue, b"a").socket.close()
    with connected(broker) as peer:
        attach(peer, queue, unsettled={b"a": None})
        peer.write(
            Transfer(handle=0, delivery_id=0, delivery_tag=b"a", resume=True, more=True), value("a")[:2]
        )
        peer.write(Transfer(handle=0), value("a")[2:])
        assert peer.expect(Disposition).first == 0
        assert stored(broker, queue) == [value("a")]


def test_a_closed_link_is_forgotten_and_a_detached_one_is_not(broker: Broker, queue: str) -> None:
    for closed, kept in ((False, {b"a": Accepted()}), (True, {})):
        with lose(broker, queue, b"a") as peer:
            peer.write(Detach(handle=0, closed=closed))
            peer.expect(Detach)
        with connected(broker) as peer:
            assert attach(peer, queue, unsettled={b"a": None}).unsettled == kept


def test_an_ended_session_suspends_its_links(broker: Broker, queue: str) -> None:
    with lose(broker, queue, b"a") as peer:
        peer.write(End())
        peer.expect(End)
        peer.begin()
        assert attach(peer, queue, unsettled={b"a": None}).unsettled == {b"a": Accepted()}


def test_a_stolen_link_is_resumed(broker: Broker, queue: str) -> None:
    with lose(broker, queue, b"a") as former, connected(broker) as peer:
        assert attach(peer, queue, unsettled={b"a": None}).unsettled == {b"a": Accepted()}
        assert str(former.error_of(Detach, conditions.STOLEN).condition) == conditions.STOLEN


def test_a_map_that_exceeds_the_frame_is_incomplete_and_takes_resumed_deliveries_alone(
    broker: Broker, queue: str
) -> None:
    tags = [b"%032d" % number for number in range(40)]
    lose(broker, queue, *tags).socket.close()
    with connected(broker, max_frame_size=512) as peer:
        # The client's own map is incomplete as well: nothing is settled by what it lacks.
        answer = attach(peer, queue, unsettled={tags[0]: None}, incomplete_unsettled=True)
        assert answer.incomplete_unsettled
        assert answer.unsettled is not None
        assert 5 < len(answer.unsettled) < 40
        for number, tag in enumerate(answer.unsettled):
            peer.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag, resume=True, settled=True))
        count = len(answer.unsettled)
        peer.write(Transfer(handle=0, delivery_id=count, delivery_tag=b"new"), value("new"))
        peer.error_of(Detach, conditions.NOT_ALLOWED)
    with connected(broker) as peer:
        assert len(attach(peer, queue, unsettled=dict.fromkeys(tags)).unsettled or ()) == 40 - count


def test_a_frontend_that_is_killed_loses_nothing(tmp_path: Any, queue: str) -> None:
    """kill -9 of all frontends with outcomes under way: the link is resumed at their successors."""
    with Broker(tmp_path / "data", "--frontends", "2", "--shards", "1") as broker:
        tags = [b"%d" % number for number in range(100)]
        former = lose(broker, queue, *tags)
        for number in range(2):
            os.kill(broker.pid("frontend", number), signal.SIGKILL)
        former.socket.close()

        def resumed() -> Peer | None:
            try:
                peer = Peer(broker.amqp)
            except OSError:
                return None
            try:
                peer.open(container_id="resuming")
            except (OSError, AssertionError):
                # It reached the socket of a process that had ended.
                peer.socket.close()
                return None
            peer.begin()
            return peer

        found_peer = wait.until(resumed, "a frontend is there again")
        assert found_peer is not None
        with found_peer as peer:
            answer = attach(peer, queue, unsettled=dict.fromkeys(tags))
            assert answer.unsettled == {tag: Accepted() for tag in tags}
            for number, tag in enumerate(tags):
                peer.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag, resume=True))
            seen = 0
            while seen < len(tags):
                found = peer.expect(Disposition)
                seen = (found.first if found.last is None else found.last) + 1
        assert len(stored(broker, queue)) == len(tags)


@pytest.mark.parametrize("store", ["journal", "sqlite"])
def test_a_durable_link_is_resumed_after_all_processes_were_killed(
    tmp_path: Any, queue: str, store: str
) -> None:
    """kill -9 of everything, with unsettled deliveries: what was stored is in the map, and stored once."""
    target = Target(address=queue, timeout=60, durable=2)
    count = 200
    tags = [b"%d" % number for number in range(count)]
    with Broker(tmp_path / "data", "--shards", "1", "--store", store) as broker:
        former = connected(broker)
        attach(former, queue, target=target)
        for number, tag in enumerate(tags):
            former.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag), durable_value(tag))
        first = former.expect(Disposition)
        # Some of them have an outcome, and the fate of the others is not known.
        broker.kill_everything()
        former.socket.close()
        known = (first.first if first.last is None else first.last) + 1
    with Broker(tmp_path / "data", "--shards", "1", "--store", store) as broker:
        with connected(broker) as peer:
            answer = attach(peer, queue, target=target, unsettled=dict.fromkeys(tags))
            assert isinstance(answer.target, Target)
            assert answer.target.durable == 2
            theirs = answer.unsettled or {}
            assert {*tags[:known]} <= {*theirs}
            for number, tag in enumerate(tags):
                again = Transfer(handle=0, delivery_id=number, delivery_tag=tag, resume=tag in theirs)
                peer.write(again, durable_value(tag))
            seen: set[int] = set()
            while len(seen) < count:
                found = peer.expect(Disposition)
                assert type(found.state) is Accepted
                seen |= {*range(found.first, (found.first if found.last is None else found.last) + 1)}
        assert sorted(stored(broker, queue)) == sorted(map(durable_value, tags))


def test_a_durable_link_outlives_its_shard_without_a_new_attach(tmp_path: Any, queue: str) -> None:
    """kill -9 of the shard alone: the frontend repeats unanswered deliveries, and the map has all of them."""
    target = Target(address=queue, timeout=60, durable=2)
    tags = [b"%d" % number for number in range(200)]
    with Broker(tmp_path / "data", "--shards", "1") as broker:
        former = connected(broker)
        attach(former, queue, target=target)
        for number, tag in enumerate(tags):
            former.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag), durable_value(tag))
            if number == 100:
                os.kill(broker.pid("shard"), signal.SIGKILL)
        seen: set[int] = set()
        while len(seen) < len(tags):
            found = former.expect(Disposition)
            assert type(found.state) is Accepted
            seen |= {*range(found.first, (found.first if found.last is None else found.last) + 1)}
        former.socket.close()
        with connected(broker) as peer:
            answer = attach(peer, queue, target=target, unsettled=dict.fromkeys(tags))
            assert answer.unsettled == {tag: Accepted() for tag in tags}
        assert stored(broker, queue) == [*map(durable_value, tags)]
