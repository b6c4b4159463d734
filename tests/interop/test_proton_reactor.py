"""The broker as python-qpid-proton's reactor sees it: many links and sessions, flow, large and raw bytes."""

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Event, Link, Message
from proton.handlers import Reject, Release
from proton.reactor import AtMostOnce, Copy

from tests.support.amqp.proton_blocking import SettleModes
from tests.support.amqp.proton_messages import assert_equal, messages
from tests.support.amqp.proton_reactor import Client, Passage, RawPassage
from tests.support.broker import Broker


@pytest.fixture(scope="module", params=[1, 2], ids=["one-of-each", "two-of-each"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With one frontend and one shard, then with two of each: queues are spread over the shards."""
    processes = ["--frontends", str(request.param), "--shards", str(request.param)]
    with Broker(tmp_path_factory.mktemp("broker") / "data", *processes) as started:
        yield started


# --- messages --------------------------------------------------------------------------------------------


def test_every_type_arrives_as_it_was_sent(broker: Broker, queue: str) -> None:
    sent = messages()
    client = Passage(broker.amqp, queue, list(sent.values()), prefetch=100)
    client.run()
    for (name, expected), found in zip(sent.items(), client.received, strict=True):
        try:
            assert_equal(found, expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    assert client.accepted == len(sent)


VALUE = b"\x00\x53\x77\xa1\x04body"
RAW = {
    "no-header": VALUE,
    "empty-header": b"\x00\x53\x70\x45" + VALUE,
    "header-list8": b"\x00\x53\x70\xc0\x03\x02\x41\x40" + VALUE,
    "header-list32": b"\x00\x53\x70\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x42\x40" + VALUE,
    "header-descriptor-ulong": b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x70\xc0\x02\x01\x41" + VALUE,
    "header-descriptor-symbol": b"\x00\xa3\x10amqp:header:list\xc0\x02\x01\x41" + VALUE,
    "delivery-annotations": b"\x00\x53\x71\xc1\x08\x02\xa3\x03x-a\x55\x01" + VALUE,
    "annotation-ulong-key": b"\x00\x53\x72\xc1\x05\x02\x53\x07\x55\x01" + VALUE,
    "properties-empty": b"\x00\x53\x73\x45" + VALUE,
    "application-properties": b"\x00\x53\x74\xc1\x06\x02\xa1\x01k\x56\x01" + VALUE,
    "two-data-sections": b"\x00\x53\x75\xa0\x02\x00\x01\x00\x53\x75\xb0\x00\x00\x00\x02\x02\x03",
    "two-sequences": b"\x00\x53\x76\x45\x00\x53\x76\xc0\x03\x01\x55\x05",
    "binary-map-key": b"\x00\x53\x77\xc1\x06\x02\xa0\x01\x00\x55\x01",
    "array-of-true": b"\x00\x53\x77\xe0\x02\x03\x41",
    "described-value": b"\x00\x53\x77\x00\xa3\x01a\x00\xa3\x01b\x40",
    "footer": VALUE + b"\x00\x53\x78\xc1\x08\x02\xa3\x03x-f\x55\x01",
}


def test_every_byte_arrives_as_it_was_sent(broker: Broker, queue: str) -> None:
    """A message is kept to the byte in any encoding (3.2), but for the section that is for the broker."""
    client = RawPassage(broker.amqp, queue, [*RAW.values(), *RAW.values()])
    client.run()
    for name, expected, found in zip([*RAW, *RAW], client.payloads, client.received, strict=True):
        assert found == (VALUE if name == "delivery-annotations" else expected), name


def test_order_over_thousands_of_messages(broker: Broker, queue: str) -> None:
    count = 5_000
    client = Passage(broker.amqp, queue, [Message(body=number) for number in range(count)], prefetch=500)
    client.run()
    assert [message.body for message in client.received] == list(range(count))
    assert client.accepted == count


@pytest.mark.parametrize("durable", [False, True])
def test_large_messages_and_small_ones_on_other_links(broker: Broker, queue: str, durable: bool) -> None:
    """Frames of a 20 MB message leave room for other links of the session (2.6.14)."""
    body = bytes(range(256)) * (20 * 1024 * 1024 // 256)

    class Both(Passage):
        def begin(self) -> None:
            super().begin()
            small = f"{queue}/small"
            self.small_sender = self.container.create_sender(self.connection, small, name="small-sender")
            self.container.create_receiver(self.connection, small, name="small-receiver")
            self.small: list[Any] = []

        def on_sendable(self, event: Event) -> None:
            if event.link == self.sender:
                super().on_sendable(event)
            elif not self.small:
                self.small.append(event.sender.send(Message(body="small")))

        def on_settled(self, event: Event) -> None:
            if event.link == self.sender:
                super().on_settled(event)

        def on_message(self, event: Event) -> None:
            if event.link.source.address == queue:
                super().on_message(event)
            else:
                self.small.append(event.message.body)

        def check(self) -> None:
            if len(self.small) == 2:
                super().check()

    sent = [Message(body=body, inferred=True, durable=durable) for _ in range(2)]
    client = Both(broker.amqp, queue, [*sent, Message(body="after")])
    client.run()
    assert [bytes(message.body) for message in client.received[:2]] == [body, body]
    assert client.received[2].body == "after"
    assert client.small[1] == "small"


def test_aborted_deliveries_vanish(broker: Broker, queue: str) -> None:
    class Aborting(Passage):
        half: Any = None

        def on_sendable(self, event: Event) -> None:
            if self.half is None:
                self.half = event.sender.delivery("half")
                event.sender.stream(b"\x00\x53\x75\xb0\x00\x10\x00\x00" + bytes(500_000))
                self.abort_when_written()

        def abort_when_written(self) -> None:
            if self.half.pending:
                self.after(0.001, self.abort_when_written)
                return
            self.half.abort()
            while self.to_send:
                self.sender.send(self.to_send.pop(0))

    client = Aborting(broker.amqp, queue, [Message(body=number) for number in range(3)])
    client.run()
    assert [message.body for message in client.received] == [0, 1, 2]


# --- outcomes --------------------------------------------------------------------------------------------


def test_outcomes_of_the_handler(broker: Broker, queue: str) -> None:
    """Reject and Release as a MessagingHandler raises them; accept for what returns."""

    class Choosy(Client):
        def begin(self) -> None:
            self.sender = self.container.create_sender(self.connection, queue)
            self.seen: list[Any] = []
            self.dead: list[Any] = []

        def on_sendable(self, event: Event) -> None:
            if not self.seen:
                self.seen.append("sent")
                for body in ("accept", "reject", "release"):
                    event.sender.send(Message(body=body))
                self.container.create_receiver(self.connection, queue)
                self.container.create_receiver(self.connection, f"{queue}/$dlq")

        def on_message(self, event: Event) -> None:
            body = event.message.body
            if event.link.source.address != queue:
                self.dead.append(body)
            else:
                self.seen.append(body)
                if body == "reject":
                    raise Reject
                if body == "release" and self.seen.count(body) == 1:
                    raise Release
            if self.dead and self.seen.count("release") == 2:
                self.done()

    client = Choosy(broker.amqp)
    client.run()
    assert client.seen == ["sent", "accept", "reject", "release", "release"]
    assert client.dead == ["reject"]


def test_presettled_both_ways(broker: Broker, queue: str) -> None:
    count = 1_000
    client = Passage(
        broker.amqp,
        queue,
        [Message(body=number) for number in range(count)],
        prefetch=50,
        sender_options=AtMostOnce(),
        receiver_options=AtMostOnce(),
    )
    client.run()
    assert [message.body for message in client.received] == list(range(count))
    assert client.accepted == 0


def test_receiver_settle_mode_second(broker: Broker, queue: str) -> None:
    """As sender the broker settles after our outcome is on disk; as receiver it answers with mode first.

    A sender gains nothing by second, and some that ask for it by habit never settle.
    """
    second = SettleModes(Link.SND_UNSETTLED, Link.RCV_SECOND)

    class Second(Passage):
        settled = 0

        def on_delivery(self, event: Event) -> None:
            delivery = event.delivery
            if delivery.link.is_sender and delivery.updated:
                assert delivery.remote_state == Delivery.ACCEPTED
                assert delivery.link.remote_rcv_settle_mode == Link.RCV_FIRST
                assert delivery.settled
            elif delivery.link.is_receiver and delivery.updated:
                assert delivery.settled
                delivery.settle()
                self.settled += 1
                self.check()

        def on_message(self, event: Event) -> None:
            event.delivery.update(Delivery.ACCEPTED)
            super().on_message(event)

        def check(self) -> None:
            if self.settled == self.count:
                super().check()

    client = Second(
        broker.amqp,
        queue,
        [Message(body=number) for number in range(50)],
        auto_accept=False,
        sender_options=second,
        receiver_options=second,
    )
    client.run()
    assert [message.body for message in client.received] == list(range(50))


# --- flow ------------------------------------------------------------------------------------------------


def test_credit_is_never_exceeded_and_drain_gives_the_rest_back(broker: Broker, queue: str) -> None:
    class Draining(Client):
        def begin(self) -> None:
            self.received: list[Any] = []
            self.drained: list[int] = []
            self.accepted = 0
            self.sender = self.container.create_sender(self.connection, queue)

        def on_sendable(self, event: Event) -> None:
            if not self.accepted:
                self.on_sendable = lambda event: None  # type: ignore[method-assign]
                for number in range(8):
                    event.sender.send(Message(body=number))

        def on_accepted(self, event: Event) -> None:
            self.accepted += 1
            if self.accepted == 8:
                self.receiver = self.container.create_receiver(self.connection, queue)
                self.receiver.flow(5)

        def on_message(self, event: Event) -> None:
            self.received.append(event.message.body)
            if len(self.received) == 5:
                assert event.receiver.credit == 0
                event.receiver.drain(100)

        def on_link_flow(self, event: Event) -> None:
            if event.link.is_receiver and (gone := event.link.drained()):
                self.drained.append(gone)
                self.done()

    client = Draining(broker.amqp, prefetch=0)
    client.run()
    assert client.received == list(range(8))
    assert client.drained == [97]


def test_browsers_see_all_in_order_and_take_nothing(broker: Broker, queue: str) -> None:
    sent = [Message(body=number) for number in range(20)]

    class Browsing(Passage):
        """Two browsers first; the receiver that takes comes when both have seen everything."""

        def begin(self) -> None:
            self.seen: dict[str, list[Any]] = {"browser-1": [], "browser-2": []}
            self.sender = self.container.create_sender(self.connection, queue, name="sender")
            for name in self.seen:
                self.container.create_receiver(self.connection, queue, name=name, options=Copy())

        def on_message(self, event: Event) -> None:
            if event.link.name == "receiver":
                super().on_message(event)
                return
            self.seen[event.link.name].append(event.message.body)
            if all(len(bodies) == 20 for bodies in self.seen.values()):
                self.container.create_receiver(self.connection, queue, name="receiver")

    client = Browsing(broker.amqp, queue, sent)
    client.run()
    assert client.seen == {"browser-1": list(range(20)), "browser-2": list(range(20))}
    assert [message.body for message in client.received] == list(range(20))


# --- many of everything ----------------------------------------------------------------------------------


class Many(Client):
    """Pairs of links, each with its own queue; every pair passes a few messages."""

    def __init__(self, address: str, queue: str, pairs: int, sessions: int = 0) -> None:
        super().__init__(address, prefetch=10)
        self.queue = queue
        self.pairs = pairs
        self.sessions = sessions
        self.received: dict[str, list[int]] = {}
        self.started: set[str] = set()

    def begin(self) -> None:
        made = [self.connection.session() for _ in range(self.sessions)]
        for session in made:
            session.open()
        for number in range(self.pairs):
            name = f"{self.queue}/{number}"
            self.received[name] = []
            if made:
                session = made[number % len(made)]
                sender, receiver = session.sender(f"s{number}"), session.receiver(f"r{number}")
                sender.target.address = receiver.source.address = name
                sender.open()
                receiver.open()
            else:
                self.container.create_sender(self.connection, name, name=f"s{number}")
                self.container.create_receiver(self.connection, name, name=f"r{number}")

    def on_sendable(self, event: Event) -> None:
        if event.link.name not in self.started:
            self.started.add(event.link.name)
            for body in range(4):
                event.sender.send(Message(body=body))

    def on_message(self, event: Event) -> None:
        self.received[event.link.source.address].append(event.message.body)
        if all(len(bodies) == 4 for bodies in self.received.values()):
            self.done()


def test_five_hundred_links_on_a_connection(broker: Broker, queue: str) -> None:
    client = Many(broker.amqp, queue, pairs=250)
    client.run()
    assert list(client.received.values()) == [[0, 1, 2, 3]] * 250


def test_many_sessions_on_a_connection(broker: Broker, queue: str) -> None:
    client = Many(broker.amqp, queue, pairs=200, sessions=200)
    client.run()
    assert list(client.received.values()) == [[0, 1, 2, 3]] * 200


def test_five_hundred_receivers_on_one_queue_share(broker: Broker, queue: str) -> None:
    """Everybody with credit gets something, and together they get everything once."""
    receivers, count = 500, 2_000

    class Sharing(Passage):
        def begin(self) -> None:
            self.by_link: dict[str, list[int]] = {}
            for number in range(receivers):
                link = self.container.create_receiver(self.connection, queue, name=f"r{number}")
                self.by_link[link.name] = []
                link.flow(count // receivers)
            self.open = 0

        def on_link_opened(self, event: Event) -> None:
            self.open += 1
            if self.open == receivers:
                self.sender = self.container.create_sender(self.connection, queue, name="sender")

        def on_message(self, event: Event) -> None:
            self.by_link[event.link.name].append(event.message.body)
            super().on_message(event)

    client = Sharing(broker.amqp, queue, [Message(body=number) for number in range(count)], prefetch=0)
    client.run()
    assert [len(bodies) for bodies in client.by_link.values()] == [count // receivers] * receivers
    assert all(bodies == sorted(bodies) for bodies in client.by_link.values())
    assert sorted(message.body for message in client.received) == list(range(count))


def test_order_per_sending_link(broker: Broker, queue: str) -> None:
    """Two senders on two sessions to one queue: each one's messages stay in order."""
    count = 1_000

    class Two(Client):
        def begin(self) -> None:
            self.left = {"a": list(range(count)), "b": list(range(count))}
            self.received: dict[str, list[int]] = {"a": [], "b": []}
            for name in self.left:
                session = self.connection.session()
                session.open()
                sender = session.sender(name)
                sender.target.address = queue
                sender.open()
            self.container.create_receiver(self.connection, queue, name="receiver")

        def on_sendable(self, event: Event) -> None:
            left = self.left[event.link.name]
            while left and event.sender.credit:
                event.sender.send(Message(id=event.link.name, body=left.pop(0)))

        def on_message(self, event: Event) -> None:
            self.received[str(event.message.id)].append(event.message.body)
            if sum(map(len, self.received.values())) == 2 * count:
                self.done()

    client = Two(broker.amqp, prefetch=200)
    client.run()
    assert client.received == {"a": list(range(count)), "b": list(range(count))}
