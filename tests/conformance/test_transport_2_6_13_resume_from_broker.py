"""Resuming links on which the client receives (transport 2.6.13): nothing is lost or repeated.

In the tables of the specification (messaging 3.4.6) the broker is the sender and the client the receiver.
What the broker has sent and the client has not settled is locked for the link; its state here is null.
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
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Transfer,
)
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.terminus import TERMINUS_TIMEOUT_S_MAX
from lightrail.model import conditions
from tests.support import wait
from tests.support.amqp.frame_peer import Peer, receiver, value
from tests.support.broker import Broker
from tests.support.moves import move

SECOND = 1
WINDOW = 100_000
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
    peer.begin(incoming_window=WINDOW)
    return peer


def asked(queue: str, timeout: int = 60, **fields: Any) -> Attach:
    """The attach of a link that may be resumed for a minute."""
    source = Source(address=queue, timeout=timeout, expiry_policy=Symbol("connection-close"))
    given: dict[str, Any] = {"name": "link", "source": source}
    return receiver(queue, **given | fields)


def attach(peer: Peer, queue: str, **fields: Any) -> Attach:
    peer.write(asked(queue, **fields))
    return peer.expect(Attach)


def flow(peer: Peer, credit: int, count: int = 0, **fields: Any) -> None:
    peer.flow(credit, count, incoming_window=WINDOW, **fields)


def receive(peer: Peer, count: int) -> list[tuple[Transfer, bytes]]:
    return [peer.delivery() for _ in range(count)]


def tags_of(found: list[tuple[Transfer, bytes]]) -> list[bytes]:
    tags = [transfer.delivery_tag for transfer, _ in found]
    assert len({*tags}) == len(tags)
    return [tag for tag in tags if tag is not None]


def lose(broker: Broker, queue: str, *messages: str, **fields: Any) -> tuple[Peer, list[bytes]]:
    """A client that has received these messages, and settled none of them: its peer, and their tags."""
    peer = connected(broker)
    peer.put(queue, *map(value, messages))
    attach(peer, queue, **fields)
    flow(peer, len(messages))
    return peer, tags_of(receive(peer, len(messages)))


def stored(broker: Broker, queue: str) -> list[bytes]:
    """Everything that another receiver gets now, with its delivery-count."""
    with connected(broker, container_id=f"reader {next(_numbers)}") as peer:
        peer.attach_receiver(queue)
        flow(peer, 1_000, drain=True)
        found: list[bytes] = []
        while True:
            frame = peer.read()
            if type(frame.body) is Flow:
                return found
            found.append(frame.payload)


def until_stored(broker: Broker, queue: str, *messages: bytes) -> None:
    found: list[bytes] = []

    def all_there() -> bool:
        found.extend(stored(broker, queue))
        return sorted(found) == sorted(messages)

    wait.until(all_there, f"{messages} are ready")


# --- what the answer says --------------------------------------------------------------------------------


def test_the_answer_has_the_timeout_that_holds(broker: Broker, queue: str) -> None:
    with connected(broker) as peer:
        answer = attach(peer, queue, rcv_settle_mode=SECOND)
        assert isinstance(answer.source, Source)
        found = (answer.source.timeout, str(answer.source.expiry_policy), answer.source.durable)
        assert found == (60, "link-detach", 0)
        assert answer.unsettled is None


@pytest.mark.parametrize(("asked_for", "holds"), [(0, 0), (1, 0), (2, 2)])
def test_the_answer_has_the_durability_that_holds(
    broker: Broker, queue: str, asked_for: int, holds: int
) -> None:
    """Messaging 3.5.5; a configuration without unsettled deliveries has nothing to outlive a restart."""
    with connected(broker) as peer:
        answer = attach(peer, queue, source=Source(address=queue, timeout=60, durable=asked_for))
        assert isinstance(answer.source, Source)
        assert answer.source.durable == holds


@pytest.mark.parametrize(
    "source", [{"timeout": 100_000}, {"expiry_policy": Symbol("never")}], ids=["long", "for ever"]
)
def test_no_link_is_suspended_for_longer_than_the_bound(
    broker: Broker, queue: str, source: dict[str, Any]
) -> None:
    with connected(broker) as peer:
        answer = attach(peer, queue, source=Source(address=queue, **source))
        assert isinstance(answer.source, Source)
        assert answer.source.timeout == TERMINUS_TIMEOUT_S_MAX


@pytest.mark.parametrize(
    ("source", "container"),
    [
        ({}, "resuming"),
        ({"timeout": 60}, ""),
        ({"timeout": 60, "distribution_mode": Symbol("copy")}, "resuming"),
    ],
    ids=["not asked for", "no container-id", "copies"],
)
def test_what_can_not_be_resumed_says_so(
    broker: Broker, queue: str, source: dict[str, Any], container: str
) -> None:
    with connected(broker, container_id=container) as peer:
        answer = attach(peer, queue, source=Source(address=queue, **source))
        assert isinstance(answer.source, Source)
        assert answer.source.timeout == 0


def test_a_link_that_does_not_ask_returns_its_deliveries(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "m", timeout=0)
    former.socket.close()
    with connected(broker) as peer:
        source = Source(address=queue)
        assert attach(peer, queue, source=source, unsettled=dict.fromkeys(tags)).unsettled == {}
        flow(peer, 1)
        ((transfer, payload),) = receive(peer, 1)
        assert not transfer.resume
        assert payload.endswith(value("m"))


# --- states of a delivery at both ends -------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0, SECOND], ids=["first", "second"])
@pytest.mark.parametrize(
    "theirs", [None, Received(section_number=0, section_offset=3)], ids=["null", "received"]
)
def test_what_both_have_is_resumed_with_its_message(
    broker: Broker, queue: str, mode: int, theirs: Any
) -> None:
    former, tags = lose(broker, queue, "a", "b", rcv_settle_mode=mode)
    former.socket.close()
    with connected(broker) as peer:
        answer = attach(peer, queue, rcv_settle_mode=mode, unsettled=dict.fromkeys(tags, theirs))
        assert answer.unsettled == dict.fromkeys(tags)
        assert not answer.incomplete_unsettled
        flow(peer, 10)
        found = receive(peer, 2)
        assert tags_of(found) == tags
        for transfer, _ in found:
            assert transfer.resume
            assert not transfer.settled
            assert transfer.state == Received(section_number=0, section_offset=0)
        # As they were: no failed delivery was counted.
        assert [payload for _, payload in found] == [value("a"), value("b")]
        peer.write(Disposition(role=True, first=0, last=1, settled=mode == 0, state=Accepted()))
        if mode == SECOND:
            settled = peer.expect(Disposition)
            assert (settled.first, settled.last, settled.settled) == (0, 1, True)
        peer.put(queue, value("c"))
        ((transfer, payload),) = receive(peer, 1)
        assert (transfer.resume, transfer.delivery_id, payload) == (False, 2, value("c"))
    until_stored(broker, queue) if mode == SECOND else None


def test_deliveries_stay_locked_while_the_link_is_suspended(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a", "b")
    former.socket.close()
    with connected(broker, container_id="another") as other:
        other.attach_receiver(queue)
        flow(other, 10)
        other.put(queue, value("c"))
        assert receive(other, 1)[0][1] == value("c")
        with connected(broker) as peer:
            assert attach(peer, queue, unsettled=dict.fromkeys(tags)).unsettled == dict.fromkeys(tags)


@pytest.mark.parametrize("mode", [0, SECOND], ids=["first", "second"])
@pytest.mark.parametrize(
    ("theirs", "left"),
    [
        (Accepted(), []),
        (Rejected(), []),
        (Released(), [value("a")]),
        (Modified(delivery_failed=False), [value("a")]),
    ],
    ids=["accepted", "rejected", "released", "modified"],
)
def test_an_outcome_of_the_client_is_applied_and_settled(
    broker: Broker, queue: str, mode: int, theirs: Any, left: list[bytes]
) -> None:
    former, tags = lose(broker, queue, "a", rcv_settle_mode=mode)
    former.socket.close()
    with connected(broker) as peer:
        answer = attach(peer, queue, rcv_settle_mode=mode, unsettled={tags[0]: theirs})
        assert answer.unsettled == {tags[0]: None}
        flow(peer, 1)
        ((transfer, payload),) = receive(peer, 1)
        assert (transfer.resume, transfer.settled, transfer.delivery_tag) == (True, True, tags[0])
        assert type(transfer.state) is type(theirs)
        assert payload == b""
        peer.write(Detach(handle=0, closed=True))
        peer.expect(Detach)
    assert stored(broker, queue) == left


def test_what_only_the_broker_has_is_sent_as_a_new_delivery(broker: Broker, queue: str) -> None:
    """The receiver would ignore a resumed one (2.7.5)."""
    former, tags = lose(broker, queue, "a", "b", "c")
    former.socket.close()
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled={tags[1]: None}).unsettled == dict.fromkeys(tags)
        flow(peer, 10)
        found = receive(peer, 3)
        assert tags_of(found) == tags
        assert [transfer.resume for transfer, _ in found] == [False, True, False]
        assert [payload for _, payload in found] == [value("a"), value("b"), value("c")]


def test_what_only_the_client_has_is_not_in_the_map(broker: Broker, queue: str) -> None:
    """It settled the delivery, and our settlement was lost."""
    with lose(broker, queue, "a", "b", rcv_settle_mode=SECOND)[0] as former:
        former.write(Disposition(role=True, first=0, settled=False, state=Accepted()))
        former.expect(Disposition)
        tags = [b"unknown"]
    with connected(broker) as peer:
        answer = attach(peer, queue, rcv_settle_mode=SECOND, unsettled={tags[0]: Accepted()})
        assert answer.unsettled is not None
        assert len(answer.unsettled) == 1
        assert not answer.unsettled.keys() & {*tags}
        flow(peer, 10)
        assert receive(peer, 1)[0][1] == value("b")


def test_what_the_client_settled_is_not_in_the_map(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a", "b", "c")
    former.write(Disposition(role=True, first=1, settled=True, state=Accepted()))
    former.nothing_before_echo()
    former.socket.close()
    with connected(broker) as peer:
        answer = attach(peer, queue, unsettled=dict.fromkeys(tags))
        assert answer.unsettled == dict.fromkeys([tags[0], tags[2]])
        flow(peer, 10)
        assert tags_of(receive(peer, 2)) == [tags[0], tags[2]]


def test_a_lost_disposition_brings_the_message_again(broker: Broker, queue: str) -> None:
    """In mode first the client forgets with its disposition: the broker can't tell that from a lost one."""
    former, tags = lose(broker, queue, "a")
    former.socket.close()
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled={}).unsettled == {tags[0]: None}
        flow(peer, 1)
        ((transfer, payload),) = receive(peer, 1)
        assert (transfer.resume, transfer.delivery_tag, payload) == (False, tags[0], value("a"))


def test_a_client_without_a_map_begins_anew(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a")
    former.socket.close()
    with connected(broker) as peer:
        assert attach(peer, queue).unsettled is None
        flow(peer, 1)
        ((transfer, payload),) = receive(peer, 1)
        assert not transfer.resume
        assert transfer.delivery_tag != tags[0]
        # As after any lost link: a failed delivery.
        assert payload != value("a")
        assert payload.endswith(value("a"))


def test_a_message_that_was_sent_in_part_is_resumed_from_its_beginning(broker: Broker, queue: str) -> None:
    large = "x" * 5_000
    with connected(broker, max_frame_size=512) as former:
        former.put(queue, value(large))
        attach(former, queue)
        flow(former, 1)
        first = former.read().body
        assert type(first) is Transfer
        assert first.more
        tag = first.delivery_tag
        assert tag is not None
    with connected(broker, max_frame_size=512) as peer:
        theirs = Received(section_number=0, section_offset=100)
        attach(peer, queue, unsettled={tag: theirs})
        flow(peer, 1)
        transfer, payload = peer.delivery()
        assert (transfer.resume, transfer.delivery_tag, payload) == (True, tag, value(large))


# --- credit, maps, ends of links -------------------------------------------------------------------------


def test_resumed_deliveries_use_credit_and_come_before_new_ones(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a", "b", "c")
    former.socket.close()
    with connected(broker) as peer:
        peer.put(queue, value("d"))
        attach(peer, queue, unsettled=dict.fromkeys(tags))
        flow(peer, 2)
        assert tags_of(receive(peer, 2)) == tags[:2]
        # Without echo: a drain has one answer, and an echo may have another before it.
        flow(peer, 0, 2, next_incoming_id=2, drain=True)
        assert peer.expect(Flow).link_credit == 0
        flow(peer, 5, 2, next_incoming_id=2)
        found = receive(peer, 2)
        assert [payload for _, payload in found] == [value("c"), value("d")]
        assert found[0][0].delivery_tag == tags[2]
        flow(peer, 10, 4, next_incoming_id=4, drain=True)
        answer = peer.expect(Flow)
        assert (answer.link_credit, answer.delivery_count) == (0, 14)


def test_an_incomplete_map_gets_what_is_in_it_and_nothing_new(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a", "b")
    former.socket.close()
    with connected(broker) as peer:
        peer.put(queue, value("c"))
        attach(peer, queue, unsettled={tags[1]: None}, incomplete_unsettled=True)
        flow(peer, 10)
        assert tags_of(receive(peer, 1)) == tags[1:]
        flow(peer, 9, 1, next_incoming_id=1, drain=True)
        assert peer.expect(Flow).link_credit == 0
        peer.write(Disposition(role=True, first=0, settled=True, state=Accepted()))
        peer.write(Detach(handle=0, closed=False))
        peer.expect(Detach)
        assert attach(peer, queue, unsettled={tags[0]: None}).unsettled == {tags[0]: None}
        flow(peer, 10, next_incoming_id=1)
        assert [payload for _, payload in receive(peer, 2)] == [value("a"), value("c")]


def test_a_map_that_exceeds_the_frame_is_incomplete_and_all_is_resumed(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, *map(str, range(100)))
    former.socket.close()
    with connected(broker, max_frame_size=512) as peer:
        peer.write(asked(queue, unsettled=dict.fromkeys(tags[:20]), incomplete_unsettled=False))
        answer = peer.expect(Attach)
        assert answer.incomplete_unsettled
        assert answer.unsettled is not None
        assert 5 < len(answer.unsettled) < 100
        flow(peer, 100)
        found = receive(peer, 100)
        assert tags_of(found) == tags
        assert [transfer.resume for transfer, _ in found] == [True] * 20 + [False] * 80


def test_a_closed_link_is_forgotten_and_a_detached_one_is_not(broker: Broker, queue: str) -> None:
    for closed in (False, True):
        former, tags = lose(broker, queue, "a")
        with former:
            former.write(Detach(handle=0, closed=closed))
            former.expect(Detach)
        with connected(broker) as peer:
            answer = attach(peer, queue, unsettled={tags[0]: None})
            assert answer.unsettled == ({} if closed else {tags[0]: None})
            flow(peer, 1)
            ((transfer, _),) = receive(peer, 1)
            assert transfer.resume is not closed
            peer.write(Disposition(role=True, first=0, settled=True, state=Accepted()))
            peer.write(Detach(handle=0, closed=True))
            peer.expect(Detach)


def test_an_ended_session_suspends_its_links(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a")
    with former as peer:
        peer.write(End())
        peer.expect(End)
        peer.begin()
        assert attach(peer, queue, unsettled={tags[0]: None}).unsettled == {tags[0]: None}


def test_a_stolen_link_is_resumed(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a", "b")
    with former, connected(broker) as peer:
        assert attach(peer, queue, unsettled={tags[0]: None}).unsettled == dict.fromkeys(tags)
        assert str(former.error_of(Detach, conditions.STOLEN).condition) == conditions.STOLEN
        flow(peer, 10)
        found = receive(peer, 2)
        assert [transfer.resume for transfer, _ in found] == [True, False]


def test_a_link_is_resumed_again_and_again(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a", "b")
    former.socket.close()
    for _ in range(3):
        with connected(broker) as peer:
            assert attach(peer, queue, unsettled=dict.fromkeys(tags)).unsettled == dict.fromkeys(tags)
            flow(peer, 10)
            assert tags_of(receive(peer, 2)) == tags
    with connected(broker) as peer:
        attach(peer, queue, unsettled=dict.fromkeys(tags))
        flow(peer, 10)
        receive(peer, 2)
        peer.put(queue, value("c"))
        tags += tags_of(receive(peer, 1))
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled=dict.fromkeys(tags)).unsettled == dict.fromkeys(tags)
        flow(peer, 10)
        assert tags_of(receive(peer, 3)) == tags


def test_when_the_time_has_passed_the_deliveries_return_as_failed(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a", timeout=1)
    former.socket.close()
    with connected(broker, container_id="another") as other:
        source = Source(address=queue, timeout=1)
        other.attach_receiver(queue)
        flow(other, 1)
        ((_, payload),) = receive(other, 1)
        assert payload != value("a"), "a failed delivery is counted"
        assert payload.endswith(value("a"))
        with connected(broker) as peer:
            assert attach(peer, queue, source=source, unsettled={tags[0]: None}).unsettled == {}


def test_another_source_is_another_link(broker: Broker, queue: str) -> None:
    former, tags = lose(broker, queue, "a")
    former.socket.close()
    with connected(broker) as peer:
        source = Source(address=queue, timeout=60, default_outcome=Released())
        assert attach(peer, queue, source=source, unsettled={tags[0]: None}).unsettled == {}


def test_a_link_is_resumed_where_its_queue_has_moved_to(broker: Broker, queue: str) -> None:
    """While it was suspended, and while it was attached."""
    former, tags = lose(broker, queue, "a", "b", "c")
    former.socket.close()
    move(broker.data, queue)
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled=dict.fromkeys(tags[:2])).unsettled == dict.fromkeys(tags)
        flow(peer, 1)
        assert tags_of(receive(peer, 1)) == tags[:1]
        move(broker.data, queue)
        flow(peer, 10, 1, next_incoming_id=1)
        found = receive(peer, 2)
        assert tags_of(found) == tags[1:]
        assert [transfer.resume for transfer, _ in found] == [True, False]
        peer.write(Disposition(role=True, first=0, last=1, settled=True, state=Accepted()))
        peer.nothing_before_echo()
    with connected(broker) as peer:
        assert attach(peer, queue, unsettled={tags[2]: None}).unsettled == {tags[2]: None}
        flow(peer, 10)
        assert receive(peer, 1)[0][1] == value("c")


def test_a_frontend_that_is_killed_loses_nothing(tmp_path: Any, queue: str) -> None:
    """kill -9 of all frontends with deliveries unsettled: the link is resumed at their successors."""
    with Broker(tmp_path / "data", "--frontends", "2", "--shards", "1") as broker:
        messages = [str(number) for number in range(100)]
        former, tags = lose(broker, queue, *messages, rcv_settle_mode=SECOND)
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
            peer.begin(incoming_window=WINDOW)
            return peer

        found_peer = wait.until(resumed, "a frontend is there again")
        assert found_peer is not None
        with found_peer as peer:
            theirs = dict.fromkeys(tags[:50], Accepted()) | dict.fromkeys(tags[50:])
            answer = attach(peer, queue, rcv_settle_mode=SECOND, unsettled=theirs)
            assert answer.unsettled == dict.fromkeys(tags)
            flow(peer, 200)
            found = receive(peer, 100)
            assert {*tags_of(found)} == {*tags}
            for transfer, payload in found:
                assert transfer.resume
                if transfer.delivery_tag in tags[50:]:
                    assert payload == value(messages[tags.index(transfer.delivery_tag)])
                else:
                    assert transfer.settled
            peer.write(Detach(handle=0, closed=True))
            peer.expect(Detach)
        assert len(stored(broker, queue)) == 50


COUNT = 200
DURABLE_HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"
VALUE = b"\x00\x53\x77"
"""Descriptor of an amqp-value section, with which the bodies begin."""


class Application:
    """A client that handles each message once: its map has what the broker has not settled."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.unsettled: dict[bytes, Any] = {}
        self.handled: list[bytes] = []

    def attach(self, broker: Broker) -> Peer:
        peer = connected(broker)
        source = Source(address=self.queue, timeout=60, durable=2)
        answer = attach(peer, self.queue, source=source, rcv_settle_mode=SECOND, unsettled={**self.unsettled})
        assert isinstance(answer.source, Source)
        assert answer.source.durable == 2
        theirs = answer.unsettled or {}
        for tag, state in [*self.unsettled.items()]:
            if tag not in theirs:
                assert state is not None, "a delivery without an outcome is not locked for the client"
                # Its outcome is stored.
                del self.unsettled[tag]
        flow(peer, COUNT)
        return peer

    def go_on(self, peer: Peer, count: int) -> None:
        """Reads until it has accepted so many messages; half of the outcomes need not be confirmed yet."""
        while len(self.handled) < count:
            frame = peer.read()
            if type(frame.body) is Disposition:
                self.settled(frame.body)
            elif type(frame.body) is Transfer:
                self.came(peer, frame.body, frame.payload)

    def finish(self, broker: Broker) -> None:
        """Attaches again, and accepts everything until its map is empty."""
        self.tags = {}
        with self.attach(broker) as peer:
            while self.unsettled:
                frame = peer.read()
                if type(frame.body) is Disposition:
                    self.settled(frame.body)
                elif type(frame.body) is Transfer:
                    self.came(peer, frame.body, frame.payload)
                    for number in self.tags:
                        peer.write(Disposition(role=True, first=number, state=Accepted()))

    def settled(self, found: Disposition) -> None:
        for number in range(found.first, (found.first if found.last is None else found.last) + 1):
            self.unsettled.pop(self.tags.pop(number), None)

    tags: dict[int, bytes]

    def came(self, peer: Peer, transfer: Transfer, message: bytes) -> None:
        tag, number = transfer.delivery_tag, transfer.delivery_id
        assert tag is not None
        assert number is not None
        if transfer.settled:
            # The broker has stored an outcome of the map.
            self.unsettled.pop(tag)
            return
        # The header counts deliveries that the broker had begun before it was killed.
        message = message[message.index(VALUE) :]
        if tag not in self.unsettled:
            assert message not in self.handled, "the message came twice"
            self.handled.append(message)
        self.unsettled[tag] = Accepted()
        self.tags[number] = tag
        if len(self.handled) % 3:
            peer.write(Disposition(role=True, first=number, state=Accepted()))


@pytest.mark.parametrize("store", ["journal", "sqlite"])
@pytest.mark.parametrize("who", ["everything", "shard"])
def test_a_durable_receiver_gets_each_message_once_over_kills(
    tmp_path: Any, queue: str, store: str, who: str
) -> None:
    """kill -9 of all processes, or of the shard alone, with unsettled deliveries."""
    flags = ("--shards", "1", "--store", store)
    messages = [value(f"{number}") for number in range(COUNT)]
    application = Application(queue)
    broker = Broker(tmp_path / "data", *flags).until_ready()
    try:
        with connected(broker, container_id="sender") as peer:
            peer.put(queue, *(DURABLE_HEADER + message for message in messages))
        for count in (50, 90, COUNT) if who == "everything" else (70, COUNT):
            application.tags = {}
            peer = application.attach(broker)
            application.go_on(peer, count)
            if count < COUNT and who == "everything":
                broker.kill_everything()
                peer.socket.close()
                broker.stop()
                broker = Broker(tmp_path / "data", *flags).until_ready()
            elif count < COUNT:
                os.kill(broker.pid("shard"), signal.SIGKILL)
                # The broker detaches the link, whose deliveries are in the store.
                while type(body := peer.read().body) is not Detach:
                    if type(body) is Disposition:
                        application.settled(body)
                assert body.error is not None
                assert body.error.condition == conditions.DETACH_FORCED
                peer.socket.close()
            else:
                peer.socket.close()
        application.finish(broker)
        assert sorted(application.handled) == sorted(messages)
        assert stored(broker, queue) == []
    finally:
        broker.stop()
