"""Routers as python-qpid-proton sees them: who gets what, what senders are told, receivers at routers."""

import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from proton import UNDESCRIBED, Array, Data, Delivery, Link, Message, Terminus, symbol
from proton.reactor import Container, DurableSubscription, LinkOption, Selector
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached, SendException

from lightrail.namespace.statuses import ServiceError
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, drain, received
from tests.support.broker import Broker
from tests.support.namespace import change, drop, give, named, subscribe, unsubscribe

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two frontends and two shards, so that names are apart."""
    with Broker(tmp_path_factory.mktemp("routers") / "data", "--frontends", "2", "--shards", "2") as started:
        yield started


@pytest.fixture
def connection(broker: Broker) -> Iterator[BlockingConnection]:
    with connected(broker.amqp) as made:
        yield made


class Graph:
    """Names of a test below one of its own."""

    def __init__(self, broker: Broker) -> None:
        self.data = broker.data
        self.prefix = f"routed{next(_numbers)}"

    def name(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def router(self, name: str, **policy: Any) -> str:
        give(self.data, self.name(name), role="router", **policy)
        return self.name(name)

    def queue(self, name: str, **policy: Any) -> str:
        give(self.data, self.name(name), role="queue", **policy)
        return self.name(name)

    def feed(self, router: str, *queues: str, **fields: Any) -> list[str]:
        """Queues that a router feeds."""
        for queue in queues:
            self.queue(queue)
            subscribe(self.data, self.name(router), self.name(queue), **fields)
        return [self.name(queue) for queue in queues]


@pytest.fixture
def graph(broker: Broker) -> Graph:
    return Graph(broker)


def content(connection: BlockingConnection, queue: str) -> list[Any]:
    """The bodies of everything that is in a queue now."""
    receiver = connection.create_receiver(queue)
    found = [message.body for message in drain(connection, receiver)]
    receiver.close()
    return found


def outcome(connection: BlockingConnection, name: str, message: Message) -> tuple[int, str]:
    """What a sender is told: its outcome, and the condition of a rejection."""
    sender = connection.create_sender(name)
    try:
        delivery = sender.link.send(message)
        connection.wait(lambda: delivery.settled, timeout=30)
        state = delivery.remote_state
        remote = delivery.remote.condition
        delivery.settle()
        return state, "" if remote is None else remote.name
    finally:
        sender.close()


# --- who gets what ---------------------------------------------------------------------------------------


def test_all_queues_get_every_message_in_order(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r")
    queues = graph.feed("r", *(f"q{number}" for number in range(6)))
    sender = connection.create_sender(router)
    for number in range(50):
        sender.send(Message(body=number, durable=number % 2 == 0))
    for queue in queues:
        assert content(connection, queue) == list(range(50))


def test_one_queue_gets_each_message_and_all_get_some(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r", distribution="one")
    queues = graph.feed("r", "a", "b", "c")
    sender = connection.create_sender(router)
    for number in range(300):
        sender.send(Message(body=number))
    found = [content(connection, queue) for queue in queues]
    assert sorted(itertools.chain(*found)) == list(range(300))
    for each in found:
        assert each == sorted(each)
        # A fair choice stays within these with all but one in ten million runs.
        assert 60 <= len(each) <= 145


def test_audit_beside_load_balancing(graph: Graph, connection: BlockingConnection) -> None:
    jobs = graph.router("jobs")
    graph.router("workers", distribution="one")
    (audit,) = graph.feed("jobs", "audit")
    subscribe(graph.data, jobs, graph.name("workers"))
    processors = graph.feed("workers", "p1", "p2")
    sender = connection.create_sender(jobs)
    for number in range(40):
        sender.send(Message(body=number))
    assert content(connection, audit) == list(range(40))
    found = [content(connection, queue) for queue in processors]
    assert sorted(itertools.chain(*found)) == list(range(40))
    assert all(found)


@pytest.mark.parametrize(
    "filter",
    [
        {"subject": "orders.*"},
        {"properties": {"application-properties.colour": "red"}},
        {"properties": {"priority": 7, "subject": "orders.new"}},
        {"sql": "colour = 'red' AND size > 10"},
        {"selector": "JMSType LIKE 'orders%'"},
        {"any": [{"subject": "nothing"}, {"sql": "size = 11"}]},
        {"not": {"subject": "#.old"}},
    ],
)
def test_a_filter_says_what_passes(
    graph: Graph, connection: BlockingConnection, filter: dict[str, Any]
) -> None:
    router = graph.router("r")
    matching, every = graph.feed("r", "matching", filter=filter) + graph.feed("r", "every")
    sender = connection.create_sender(router)
    sender.send(Message(subject="things.old", properties={"colour": "blue", "size": 3}, body="no"))
    sender.send(
        Message(subject="orders.new", priority=7, properties={"colour": "red", "size": 11}, body="yes")
    )
    assert content(connection, every) == ["no", "yes"]
    assert content(connection, matching) == ["yes"]


def test_an_action_rewrites_what_lies_behind_it(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r")
    (plain,) = graph.feed("r", "plain")
    (changed,) = graph.feed(
        "r", "changed", action={"set": {"subject": "new", "application-properties.hops": 1}}
    )
    connection.create_sender(router).send(Message(subject="old", properties={"kept": True}, body="x"))
    (one,) = received(connection.create_receiver(plain), 1)
    (two,) = received(connection.create_receiver(changed), 1)
    assert (one.subject, one.properties) == ("old", {"kept": True})
    assert (two.subject, two.properties, two.body) == ("new", {"kept": True, "hops": 1}, "x")


def test_a_change_holds_for_what_is_sent_after_it(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r", unroutable="drop")
    sender = connection.create_sender(router)
    sender.send(Message(body=1))
    a, b = graph.queue("a"), graph.queue("b")
    first = subscribe(graph.data, router, a)
    sender.send(Message(body=2))
    subscribe(graph.data, router, b)
    sender.send(Message(body=3))
    unsubscribe(graph.data, first)
    sender.send(Message(body=4))
    assert content(connection, a) == [2, 3]
    assert content(connection, b) == [3, 4]


def test_a_queue_that_is_made_again_gets_messages_again(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r")
    a, b = graph.feed("r", "a", "b")
    sender = connection.create_sender(router)
    sender.send(Message(body=1))
    drop(graph.data, b)
    sender.send(Message(body=2))
    graph.feed("r", "b")
    sender.send(Message(body=3))
    assert content(connection, a) == [1, 2, 3]
    assert content(connection, b) == [3]


def test_cycles_are_refused(graph: Graph) -> None:
    for name in "abc":
        graph.router(name)
    for router, target in ("ab", "bc"):
        subscribe(graph.data, graph.name(router), graph.name(target))
    with pytest.raises(ServiceError, match="would return in a cycle"):
        subscribe(graph.data, graph.name("c"), graph.name("a"))


# --- what a sender is told -------------------------------------------------------------------------------


def test_what_nobody_gets_is_rejected_or_dropped(graph: Graph, connection: BlockingConnection) -> None:
    strict, lax = graph.router("strict"), graph.router("lax", unroutable="drop")
    assert outcome(connection, strict, Message()) == (Delivery.REJECTED, "amqp:not-found")
    assert outcome(connection, lax, Message()) == (Delivery.ACCEPTED, "")
    graph.feed("strict", "q", filter={"subject": "x"})
    assert outcome(connection, strict, Message(subject="y")) == (Delivery.REJECTED, "amqp:not-found")
    assert outcome(connection, strict, Message(subject="x")) == (Delivery.ACCEPTED, "")


def test_a_message_is_rejected_when_one_of_its_queues_is_full(
    graph: Graph, connection: BlockingConnection
) -> None:
    router = graph.router("r")
    subscribe(graph.data, router, graph.queue("full", max_length=5))
    (free,) = graph.feed("r", "free")
    found = [outcome(connection, router, Message(body=number)) for number in range(8)]
    assert found == [(Delivery.ACCEPTED, "")] * 5 + [(Delivery.REJECTED, "amqp:resource-limit-exceeded")] * 3
    assert content(connection, graph.name("full")) == list(range(5))
    # Where both are on one shard, what was refused is in neither.
    assert content(connection, free) in (list(range(5)), list(range(8)))


def test_a_full_queue_is_no_matter_to_messages_for_others(
    graph: Graph, connection: BlockingConnection
) -> None:
    router = graph.router("r")
    full = graph.queue("full", max_length=5)
    subscribe(graph.data, router, full, filter={"subject": "full"})
    free = graph.feed("r", "free1", "free2", filter={"subject": "free"})
    sender = connection.create_sender(router)
    subjects = ["free" if number % 3 else "full" for number in range(300)]
    deliveries = [
        sender.link.send(Message(subject=subject, body=number)) for number, subject in enumerate(subjects)
    ]
    connection.wait(lambda: all(each.settled for each in deliveries), timeout=30)
    accepted = [number for number, each in enumerate(deliveries) if each.remote_state == Delivery.ACCEPTED]
    wanted = [number for number, subject in enumerate(subjects) if subject == "free"]
    for queue in free:
        assert content(connection, queue) == wanted
    stored = content(connection, full)
    assert len(stored) <= 5
    assert accepted == sorted(wanted + stored)


def test_a_sender_may_wait_for_a_first_subscriber(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r", buffer_timeout=0.2)
    assert outcome(connection, router, Message(body=0))[0] == Delivery.REJECTED
    change(graph.data, router, role="router", buffer_timeout=60)
    sender = connection.create_sender(router)
    deliveries = [sender.link.send(Message(body=number)) for number in (1, 2)]
    (queue,) = graph.feed("r", "q")
    connection.wait(lambda: all(each.settled for each in deliveries), timeout=30)
    assert [each.remote_state for each in deliveries] == [Delivery.ACCEPTED] * 2
    assert content(connection, queue) == [1, 2]


def test_a_router_that_is_deleted_ends_its_links(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r")
    connection.create_sender(router)
    drop(graph.data, router)
    with pytest.raises(LinkDetached) as found:
        connection.wait(lambda: False, timeout=30)
    assert found.value.link.remote_condition.name == "amqp:resource-deleted"


def test_a_message_for_many_queues_is_on_disk_once_per_shard(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Broker(tmp_path_factory.mktemp("once") / "data", "--shards", "2") as broker:
        give(broker.data, "r", role="router")
        for number in range(10):
            give(broker.data, f"q{number}", role="queue")
            subscribe(broker.data, "r", f"q{number}")
        with connected(broker.amqp) as connection:
            sender = connection.create_sender("r")
            for _ in range(20):
                sender.send(Message(body=os.urandom(100_000), durable=True))
            used = [used_bytes(broker, shard) for shard in (0, 1)]
            for number in range(10):
                assert len(content(connection, f"q{number}")) == 20
    for each in used:
        assert 2_000_000 <= each < 2_100_000


def used_bytes(broker: Broker, shard: int) -> int:
    """What the records in a shard's journal take."""
    files = (broker.data / f"shard-{shard}").rglob("*")
    return sum(len(file.read_bytes().rstrip(b"\0")) for file in files if file.is_file())


# --- receivers at routers --------------------------------------------------------------------------------


class Capabilities(LinkOption):
    """Of the source: shared, global."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def apply(self, link: Link) -> None:
        array = Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, self.names))
        link.source.capabilities.put_py_array(array)

    def test(self, link: Link) -> bool:
        return bool(link.is_receiver)


class NoSource(LinkOption):
    """A receiver that only asks whether its durable subscription is there."""

    def apply(self, link: Link) -> None:
        link.source.type = Terminus.UNSPECIFIED

    def test(self, link: Link) -> bool:
        return bool(link.is_receiver)


def container(name: str) -> Container:
    made = Container()
    made.container_id = name
    return made


def subscriptions(graph: Graph, router: str) -> list[str]:
    """The queues of the subscriptions that receivers have at a router."""
    return named(graph.data, f"{router}/$subscriptions")


def suspend(connection: BlockingConnection, receiver: BlockingReceiver) -> None:
    """Detach without closing, as Qpid JMS does with the consumer of a durable subscription."""
    receiver.link.detach()
    # Proton says nothing of the answer; what is asked after it is answered after it.
    connection.create_sender("suspended").close()


def test_a_receiver_gets_what_is_sent_after_its_attach(graph: Graph, broker: Broker) -> None:
    router = graph.router("r")
    with connected(broker.amqp) as sending:
        sender = sending.create_sender(router)
        with pytest.raises(SendException):
            sender.send(Message(body=0))
        # Each connection may be at another frontend.
        with connected(broker.amqp) as one, connected(broker.amqp) as two:
            receivers = [each.create_receiver(router) for each in (one, two)]
            for number in range(1, 4):
                sender.send(Message(body=number))
            for receiver in receivers:
                assert [message.body for message in received(receiver, 3)] == [1, 2, 3]
            assert len(subscriptions(graph, router)) == 2
            receivers[0].close()
            wait.until(lambda: len(subscriptions(graph, router)) == 1, "the first subscription goes")
            sender.send(Message(body=4))
            assert [message.body for message in received(receivers[1], 1)] == [4]
        wait.until(lambda: not subscriptions(graph, router), "the second subscription goes")
        with pytest.raises(SendException):
            sender.send(Message(body=5))


def test_a_selector_of_a_receiver_is_the_filter_of_its_subscription(
    graph: Graph, connection: BlockingConnection
) -> None:
    router = graph.router("r", unroutable="drop")
    receiver = connection.create_receiver(router, options=[Selector("colour = 'red'")])
    applied = receiver.link.remote_source.filter
    applied.rewind()
    applied.next()
    assert list(applied.get_object()) == ["selector"]
    sender = connection.create_sender(router)
    for colour in ("blue", "red", "green", "red"):
        sender.send(Message(properties={"colour": colour}, body=colour))
    assert [message.body for message in received(receiver, 2)] == ["red", "red"]
    assert drain(connection, receiver) == []


def test_a_selector_that_is_none_is_refused(graph: Graph, connection: BlockingConnection) -> None:
    router = graph.router("r")
    with pytest.raises(LinkDetached) as found:
        connection.create_receiver(router, options=[Selector("colour =")])
    assert found.value.link.remote_condition.name == "amqp:invalid-field"
    assert subscriptions(graph, router) == []


def test_receivers_compete_at_a_router_that_chooses(graph: Graph, broker: Broker) -> None:
    router = graph.router("r", distribution="one")
    with connected(broker.amqp) as connection:
        receivers = [connection.create_receiver(router, name=name, credit=200) for name in "ab"]
        sender = connection.create_sender(router)
        for number in range(60):
            sender.send(Message(body=number))
        bodies: list[list[int]] = [[], []]
        for index, receiver in enumerate(receivers):
            bodies[index] = [message.body for message in drain(connection, receiver)]
        assert sorted(bodies[0] + bodies[1]) == list(range(60))
        assert all(bodies)


def test_the_subscription_of_a_frontend_that_was_killed_goes(
    graph: Graph, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Broker(tmp_path_factory.mktemp("killed") / "data") as broker:
        give(broker.data, "r", role="router")
        with connected(broker.amqp) as connection:
            connection.create_receiver("r")
            assert len(named(broker.data, "r/$subscriptions")) == 1
            os.kill(broker.pid("frontend"), signal.SIGKILL)
            wait.until(lambda: not named(broker.data, "r/$subscriptions"), "the subscription goes")


def test_a_durable_subscription_survives_its_client(graph: Graph, broker: Broker) -> None:
    router = graph.router("r")
    (other,) = graph.feed("r", "other")
    durable: dict[str, Any] = {"name": "news", "options": [DurableSubscription()]}
    with connected(broker.amqp, container=container("me")) as connection:
        receiver = connection.create_receiver(router, **durable)
        assert receiver.link.remote_source.durability == Terminus.DELIVERIES
        assert receiver.link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
        (queue,) = subscriptions(graph, router)
        suspend(connection, receiver)
    with connected(broker.amqp) as connection:
        sender = connection.create_sender(router)
        for number in range(3):
            sender.send(Message(body=number, durable=True))
        assert content(connection, other) == [0, 1, 2]
    with connected(broker.amqp, container=container("you")) as connection:
        connection.create_receiver(router, **durable)
        assert len(subscriptions(graph, router)) == 2
    with connected(broker.amqp, container=container("me")) as connection:
        receiver = connection.create_receiver(router, **durable)
        assert [message.body for message in received(receiver, 3)] == [0, 1, 2]
        receiver.close()
        wait.until(lambda: queue not in subscriptions(graph, router), "the subscription goes")


def test_a_durable_subscription_is_found_again_by_its_name_and_ended(graph: Graph, broker: Broker) -> None:
    router = graph.router("r")
    with connected(broker.amqp, container=container("me")) as connection:
        suspend(connection, connection.create_receiver(router, name="news", options=[DurableSubscription()]))
        found = connection.create_receiver(None, name="news", options=[NoSource()])
        assert found.link.remote_source.address == router
        found.close()
        wait.until(lambda: not subscriptions(graph, router), "the subscription goes")
        with pytest.raises(LinkDetached) as refused:
            connection.create_receiver(None, name="news", options=[NoSource()])
        assert refused.value.link.remote_condition.name == "amqp:not-found"


def test_another_selector_is_another_subscription(graph: Graph, broker: Broker) -> None:
    router = graph.router("r", unroutable="drop")
    with connected(broker.amqp, container=container("me")) as connection:
        sender = connection.create_sender(router)
        for colour in ("red", "blue"):
            options = [DurableSubscription(), Selector(f"colour = '{colour}'")]
            receiver = connection.create_receiver(router, name="news", options=options)
            for each in ("red", "blue"):
                sender.send(Message(properties={"colour": each}, body=each))
            assert len(subscriptions(graph, router)) == 1
            if colour == "blue":
                assert [message.body for message in received(receiver, 1)] == ["blue"]
            suspend(connection, receiver)


def test_links_share_a_subscription(graph: Graph, broker: Broker) -> None:
    router = graph.router("r")
    shared = [Capabilities("shared")]
    with connected(broker.amqp, container=container("me")) as connection:
        receivers = [
            connection.create_receiver(router, name=name, credit=5, options=shared)
            for name in ("news|volatile1", "news|volatile2")
        ]
        assert len(subscriptions(graph, router)) == 1
        with connected(broker.amqp, container=container("you")) as other:
            other.create_receiver(router, name="news|volatile1", options=shared)
            assert len(subscriptions(graph, router)) == 2
        wait.until(lambda: len(subscriptions(graph, router)) == 1, "the other one goes with its last link")
        sender = connection.create_sender(router)
        for number in range(10):
            sender.send(Message(body=number))
        bodies = [[message.body for message in received(receiver, 5)] for receiver in receivers]
        assert sorted(bodies[0] + bodies[1]) == list(range(10))
        receivers[0].close()
        sender.send(Message(body=10))
        assert receivers[1].receive().body == 10
        receivers[1].accept()
    wait.until(lambda: not subscriptions(graph, router), "the subscription goes with its last link")


def test_a_durable_shared_subscription_of_all_containers(graph: Graph, broker: Broker) -> None:
    router = graph.router("r")
    options = [DurableSubscription(), Capabilities("shared", "global")]
    with (
        connected(broker.amqp, container=container("me")) as one,
        connected(broker.amqp, container=container("you")) as two,
    ):
        first = one.create_receiver(router, name="news|global", options=options)
        second = two.create_receiver(router, name="news|global", options=options)
        (queue,) = subscriptions(graph, router)
        first.close()
        sender = one.create_sender(router)
        sender.send(Message(body=1))
        assert second.receive().body == 1
        second.accept()
        suspend(two, second)
        sender.send(Message(body=2))
        again = one.create_receiver(router, name="news|global", options=options)
        assert subscriptions(graph, router) == [queue]
        assert again.receive().body == 2
        again.accept()
        again.close()
        wait.until(lambda: not subscriptions(graph, router), "the subscription goes with its last link")
