"""Nodes of the frontend itself: where answers go, what waits for credit, what is refused, what is bounded."""

import asyncio
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.messages import Message, read_message, write_message
from lightrail.amqp.performatives import Accepted, Rejected, Source, Target
from lightrail.amqp.sections import Properties
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.nodes import links, posting, replies
from lightrail.frontend.nodes.nodes import Nodes
from lightrail.model import conditions
from lightrail.shard_client.deadlines import left_ms
from lightrail.wire.bodies import Refusal as ShardRefusal
from lightrail.wire.frames import ENQUEUE_ENDS, Kind
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.amqp.requests import Requester


class Echo:
    """Answers with the body that came, as often as it is asked."""

    large = (b"large",)

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.time_ms: int | None = None

    def silent(self, payload: bytes) -> bool:
        return bool(read_message(payload).body == "silent")

    def wait_ms(self, payload: bytes) -> int | None:
        return self.time_ms

    async def answer(self, connection: Any, payload: bytes) -> Message | None:
        body = read_message(payload).body
        self.asked.append(body)
        if body == "refuse":
            raise ConditionError(conditions.NOT_ALLOWED, "not this one")
        if body == "fail":
            raise RuntimeError("a mistake")
        return None if body == "silent" else Message(body=body)


class Gated(Echo):
    """Makes large answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def answer(self, connection: Any, payload: bytes) -> Message | None:
        found = await super().answer(connection, payload)
        if b"large" in payload:
            await self.gate.wait()
        return found


def echo(scene: Scene) -> Echo:
    node = Echo()
    scene.frontend.nodes = Nodes({"$echo": node, "$other": Echo()})
    return node


@pytest.mark.parametrize("address", ["$echo", "/$echo", "amqp://host:5672/$echo", "amqps://host/$echo"])
def test_a_request_is_answered_and_accepted(address: str) -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), address)
        answer = await requester.ask("hello")
        assert (answer.body, answer.properties.to) == ("hello", "me")
        assert requester.outcomes() == [Accepted()]

    play(test)


def test_a_correlation_id_of_the_request_goes_before_its_message_id() -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        both = Properties(message_id="m", correlation_id="c", reply_to="me")
        await requester.send(Message(both, {}, 1))
        await requester.send(Message(Properties(reply_to="me"), {}, 2))
        assert [each.properties.correlation_id for each in await requester.answers()] == ["c", None]

    play(test)


def test_a_settled_request_is_answered_without_an_outcome() -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        await requester.send(Message(Properties(reply_to="me"), {}, "x"), settled=True)
        assert [each.body for each in await requester.answers()] == ["x"]
        assert requester.outcomes() == []

    play(test)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_answers_come_as_the_receiver_wants_them_settled(mode: int) -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        client = scene.client()
        session = await client.open()
        sender = await client.sender(session, "requests", "$echo")
        receiver = session.attach(
            "r", False, source=Source(address="$echo"), target=Target(address="me"), snd_settle_mode=mode
        )
        await client.turn()
        receiver.grant(5)
        requester = Requester(client, "$echo", session, sender, receiver)
        await requester.send(Message(Properties(reply_to="me"), {}, "x"))
        (event,) = client.take(events.Transfers)
        assert event.settled is (mode == 1)
        if not event.settled:
            receiver.settle(event.first_delivery_id, event.first_delivery_id)
            await client.turn()
            (connection,) = scene.connections
            assert connection.amqp is not None
            (ours,) = connection.amqp.sessions.values()
            assert ours.outgoing.count() == 0

    play(test)


def test_answers_wait_for_credit_and_requests_stop_when_too_many_wait(monkeypatch: Any) -> None:
    monkeypatch.setattr(replies, "NODE_REPLY_BYTES", 1_000)

    async def test(scene: Scene) -> None:
        node = echo(scene)
        requester = await Requester.attach(scene.client(), "$echo", credit=0)
        sent = 0
        while requester.sender.credit and sent < 1_000:
            await requester.send(Message(Properties(reply_to="me"), {}, "x" * 100))
            sent += 1
        assert sent < 2 * links.NODE_REQUESTS_MAX
        assert 1_000 // 200 <= len(node.asked) <= 1_000 // 100 + 1
        requester.receiver.grant(1_000)
        assert len(await requester.answers()) == sent
        assert len(node.asked) == sent
        assert requester.sender.credit >= links.NODE_REQUESTS_MAX >> 1

    play(test)


def test_a_socket_that_is_not_read_holds_answers_back() -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        (connection,) = scene.connections
        connection.pause_writing()
        await requester.send(Message(Properties(reply_to="me"), {}, "x"))
        assert await requester.answers() == []
        connection.resume_writing()
        assert [each.body for each in await requester.answers()] == ["x"]

    play(test)


def test_drain_is_answered_when_nothing_waits() -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        requester.receiver.grant(10, drain=True)
        await requester.client.turn()
        assert requester.receiver.credit == 0

    play(test)


@pytest.mark.parametrize("reply_to", [None, "$me", "$echo", "/$echo"])
def test_without_an_address_answers_go_to_the_receiver_of_the_same_name_or_the_only_one(
    reply_to: str | None,
) -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        client = scene.client()
        session = await client.open()
        only = await answers_to(client, session, "only")
        sender = await client.sender(session, "pair", "$echo")
        requester = Requester(client, "$echo", session, sender, only)
        await requester.send(Message(Properties(reply_to=reply_to), {}, 1))
        assert [each.body for each in await requester.answers()] == [1]
        requester.receiver = await answers_to(client, session, "pair")
        await requester.send(Message(Properties(reply_to=reply_to), {}, 2))
        assert [each.body for each in await requester.answers()] == [2]

    play(test)


async def answers_to(client: Client, session: Any, name: str) -> Any:
    receiver = session.attach(name, False, source=Source(address="$echo"), target=Target())
    await client.turn()
    receiver.grant(10)
    await client.turn()
    return receiver


def test_a_request_that_can_be_answered_nowhere_is_not_carried_out() -> None:
    async def test(scene: Scene) -> None:
        node = echo(scene)
        client = scene.client()
        session = await client.open()
        sender = await client.sender(session, "s", "$echo")
        requester = Requester(client, "$echo", session, sender, sender)
        await requester.send(Message(Properties(), {}, "x"))
        (state,) = requester.outcomes()
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert "expected the target address of a receiver" in str(state.error.description)
        assert node.asked == []

    play(test)


def test_receivers_of_other_nodes_and_connections_get_no_answers() -> None:
    async def test(scene: Scene) -> None:
        node = echo(scene)
        await Requester.attach(scene.client(), "$echo")
        client = scene.client()
        session = await client.open()
        sender = await client.sender(session, "s", "$echo")
        other = session.attach("o", False, source=Source(address="$other"), target=Target(address="you"))
        await client.turn()
        requester = Requester(client, "$echo", session, sender, other)
        await requester.send(Message(Properties(), {}, "x"))
        assert isinstance(requester.outcomes()[0], Rejected)
        assert node.asked == []

    play(test)


def test_what_a_node_refuses_is_rejected_and_a_mistake_ends_nothing() -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        found = []
        for body in ("refuse", "fail", "fine"):
            await requester.send(Message(Properties(reply_to="me"), {}, body))
            found += requester.outcomes()
        assert [each.error.condition for each in found[:2]] == [
            conditions.NOT_ALLOWED,
            conditions.INTERNAL_ERROR,
        ]
        assert found[2] == Accepted()

    play(test)


def test_a_request_with_only_an_outcome_needs_no_reply_to() -> None:
    async def test(scene: Scene) -> None:
        node = echo(scene)
        client = scene.client()
        session = await client.open()
        sender = await client.sender(session, "s", "$echo")
        requester = Requester(client, "$echo", session, sender, sender)
        await requester.send(Message(Properties(), {}, "silent"))
        assert requester.outcomes() == [Accepted()]
        assert node.asked == ["silent"]

    play(test)


def test_properties_that_can_not_be_read_are_rejected() -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        # properties with a boolean as reply-to
        requester.sender.send_one(b"\x00\x53\x73\xc0\x06\x05\x40\x40\x40\x40\x41\x00\x53\x77\x40")
        await requester.client.turn()
        (state,) = requester.outcomes()
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == conditions.DECODE_ERROR

    play(test)


@pytest.mark.parametrize("wait_ms", [None, 0])
def test_an_answer_can_go_to_a_queue_also_when_the_time_of_its_request_is_over(wait_ms: int | None) -> None:
    async def test(scene: Scene) -> None:
        echo(scene).time_ms = wait_ms
        requester = await Requester.attach(scene.client(), "$echo")
        for number in (1, 2):
            await requester.send(Message(Properties(reply_to="replies", message_id="m"), {}, number))
            (producer,) = scene.shard.producers.values()
            (part,) = scene.shard.take(Kind.ENQUEUE)
            assert requester.outcomes() == []
            message = read_message(part.part[ENQUEUE_ENDS + 4 :])
            assert (message.body, message.properties.correlation_id) == (number, "m")
            producer.answered(part.number, 1)
            await requester.client.turn()
            assert requester.outcomes() == [Accepted()]
        await requester.send(Message(Properties(reply_to="replies", message_id="m"), {}, 3))
        producer.ended(ShardRefusal(conditions.RESOURCE_DELETED, "gone"))
        await requester.client.turn()
        assert requester.outcomes() == [Accepted()]
        requester.sender.detach()
        await requester.client.turn()
        assert scene.links_attached() == 1

    play(test)


def test_a_request_link_keeps_only_so_many_queues_open_for_its_answers(monkeypatch: Any) -> None:
    monkeypatch.setattr(links, "NODE_ADDRESSES_MAX", 2)

    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        opened = []
        for number in range(3):
            asked = Properties(reply_to=f"replies/{number}", message_id="m")
            await requester.send(Message(asked, {}, number))
            (part,) = scene.shard.take(Kind.ENQUEUE)
            opened.append(part.link)
            scene.shard.producers[part.link].answered(part.number, 1)
            await requester.client.turn()
        # The longest unused goes.
        assert scene.shard.closed == [("producer", opened[0])]

    play(test)


def test_an_answer_that_no_shard_takes_in_time_is_given_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(posting, "NODE_POST_MS", 1)

    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        await requester.send(Message(Properties(reply_to="replies", message_id="m"), {}, 1))
        while not scene.shard.closed:
            await scene.settle()
        await requester.client.turn()
        # It was carried out: that is its outcome, whatever became of the answer.
        assert requester.outcomes() == [Accepted()]

    play(test)


def test_a_queue_that_answers_went_to_is_closed_with_the_link() -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        await requester.send(Message(Properties(reply_to="replies"), {}, 1))
        (producer,) = scene.shard.producers.values()
        producer.answered(1, 1)
        await requester.client.turn()
        requester.sender.detach()
        await requester.client.turn()
        assert scene.shard.closed == [("producer", producer.number)]

    play(test)


@pytest.mark.parametrize("reply_to", ["$nothing/x", "a//b"])
def test_a_reply_to_that_is_no_name_is_rejected(reply_to: str) -> None:
    async def test(scene: Scene) -> None:
        node = echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        await requester.send(Message(Properties(reply_to=reply_to), {}, 1))
        (state,) = requester.outcomes()
        assert isinstance(state, Rejected)
        assert node.asked == []

    play(test)


def test_requests_that_came_before_the_detach_of_their_link_are_carried_out() -> None:
    async def test(scene: Scene) -> None:
        node = echo(scene)
        requester = await Requester.attach(scene.client(), "$echo")
        for number in range(3):
            requester.sender.send_one(write_message(Message(Properties(reply_to="me"), {}, number)), 0, True)
        requester.sender.detach()
        await requester.client.turn()
        assert node.asked == [0, 1, 2]
        assert [each.body for each in await requester.answers()] == [0, 1, 2]

    play(test)


@pytest.mark.parametrize("end", ["detach", "end", "close", "lost"])
def test_nothing_is_left_when_a_client_goes(end: str) -> None:
    async def test(scene: Scene) -> None:
        echo(scene)
        requester = await Requester.attach(scene.client(), "$echo", credit=0)
        await requester.send(Message(Properties(reply_to="me"), {}, "waits"))
        (connection,) = scene.connections
        inside = connection.node_links
        assert inside is not None
        assert inside.waiting_bytes > 0
        if end == "detach":
            requester.receiver.detach()
            requester.sender.detach()
        elif end == "end":
            requester.session.end()
        elif end == "close":
            requester.client.amqp.close()
        else:
            requester.client.transport.abort()
        await requester.client.turn()
        await scene.settle()
        assert (inside.by_path, inside.request_bytes, inside.waiting_bytes) == ({}, 0, 0)
        assert scene.links_attached() == 0

    play(test)


def test_the_links_of_a_connection_keep_only_so_many_queues_open_for_their_answers(monkeypatch: Any) -> None:
    monkeypatch.setattr(links, "NODE_POSTINGS_MAX", 2)

    async def test(scene: Scene) -> None:
        node = echo(scene)
        client = scene.client()
        session = await client.open()
        requesters = [
            await Requester.attach(client, name, session=session) for name in ("$echo", "$other", "/$echo")
        ]
        for number, requester in enumerate(requesters):
            asked = Properties(reply_to=f"replies/{number}", message_id="m")
            await requester.send(Message(asked, {}, number))
            for part in scene.shard.take(Kind.ENQUEUE):
                scene.shard.producers[part.link].answered(part.number, 1)
            await client.turn()
        assert node.asked == [0]
        (refused,) = [each for each in requesters[0].outcomes() if isinstance(each, Rejected)]
        assert refused.error is not None
        assert refused.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED
        (connection,) = scene.connections
        assert connection.node_links is not None
        assert connection.node_links.postings == 2
        requesters[1].sender.detach()
        await client.turn()
        assert connection.node_links.postings == 1

    play(test)


def test_requests_that_wait_are_not_begun_by_another_task_when_the_process_ends() -> None:
    async def test(scene: Scene) -> None:
        node = Gated()
        scene.frontend.nodes = Nodes({"$echo": node})
        requester = await Requester.attach(scene.client(), "$echo")
        for number in range(2):
            await requester.send(Message(Properties(reply_to="me"), {}, f"large {number}"))
        assert node.asked == ["large 0"]
        for task in list(scene.frontend._tasks):
            task.cancel()
        await scene.settle()
        assert node.asked == ["large 0"]
        assert not scene.frontend._tasks

    play(test)


def test_requests_of_all_links_wait_within_one_bound_and_more_are_rejected(monkeypatch: Any) -> None:
    monkeypatch.setattr(links, "NODE_REQUEST_BYTES_MAX", 1_000)
    monkeypatch.setattr(replies, "NODE_REPLY_BYTES", 0)

    async def test(scene: Scene) -> None:
        scene.frontend.nodes = Nodes({"$one": (one := Echo()), "$two": (two := Echo())})
        client = scene.client()
        first = await Requester.attach(client, "$one", credit=0)
        second = await Requester.attach(client, "$two", session=first.session, credit=0)
        await first.send(Message(Properties(reply_to="me"), {}, "answered, and not received"))
        for requester in (first, second):
            for number in range(6):
                await requester.send(Message(Properties(reply_to="me"), {}, f"{number}" * 100))
        assert (len(one.asked), len(two.asked)) == (1, 0)
        for requester in (first, second):
            requester.receiver.grant(1_000)
        for _ in range(20):
            await client.turn()
        answered = len(one.asked) + len(two.asked) - 1
        assert 1_000 // 200 <= answered <= 1_000 // 100
        rejected = [each for each in first.outcomes() if isinstance(each, Rejected)]
        assert len(rejected) == 12 - answered
        for each in rejected:
            assert each.error is not None
            assert each.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED

    play(test)


def test_so_many_large_answers_of_a_connection_are_made_at_a_time_and_others_do_not_wait(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(replies, "LARGE_ANSWERS_MAX", 2)

    async def test(scene: Scene) -> None:
        node = Gated()
        scene.frontend.nodes = Nodes({f"${number}": node for number in range(4)})
        client = scene.client()
        session = await client.open()
        requesters = [await Requester.attach(client, f"${number}", session=session) for number in range(4)]
        for requester in requesters[:3]:
            await requester.send(Message(Properties(reply_to="me"), {}, "large"))
        assert node.asked == ["large", "large"]
        await requesters[3].send(Message(Properties(reply_to="me"), {}, "small"))
        assert [each.body for each in await requesters[3].answers()] == ["small"]
        node.gate.set()
        for _ in range(20):
            await client.turn()
        assert node.asked == ["large", "large", "small", "large"]

    play(test)


def test_the_time_of_a_request_begins_when_it_comes_and_counts_for_all_that_follows_from_it() -> None:
    class Timed(Gated):
        """The client waits for 50 s."""

        left: list[int]

        def wait_ms(self, payload: bytes) -> int | None:
            return None if read_message(payload).body == "patient" else 50_000

        async def answer(self, connection: Any, payload: bytes) -> Message | None:
            self.left.append(left_ms(100_000))
            return await super().answer(connection, payload)

    async def test(scene: Scene) -> None:
        node = Timed()
        node.left = []
        scene.frontend.nodes = Nodes({"$echo": node})
        client = scene.client()
        requester = await Requester.attach(client, "$echo")
        loop = asyncio.get_running_loop()
        for body in ("large", "small", "patient"):
            await requester.send(Message(Properties(reply_to="me"), {}, body))
        # The first one waits; meanwhile time passes for those behind it.
        time_of = loop.time
        loop.time = lambda: time_of() + 30  # type: ignore[method-assign]
        try:
            node.gate.set()
            for _ in range(20):
                await client.turn()
        finally:
            loop.time = time_of  # type: ignore[method-assign]
        first, second, third = node.left
        assert 49_000 < first <= 50_000
        assert 19_000 < second <= 20_000
        assert third == 100_000

    play(test)


def test_a_client_of_a_thousand_entities_has_two_links_to_the_node_of_each() -> None:
    async def test(scene: Scene) -> None:
        node = Echo()
        scene.frontend.nodes = Nodes({f"$echo{number}": node for number in range(1_000)})
        client = scene.client()
        session = await client.open()
        for number in range(1_000):
            await client.sender(session, f"s{number}", f"$echo{number}")
            await client.receiver(session, f"r{number}", f"$echo{number}")
        assert client.take(events.Detached) == []
        (connection,) = scene.connections
        assert connection.node_links is not None
        assert len(connection.node_links.by_path) == 1_000

    play(test)


def test_other_names_of_the_system_are_no_nodes() -> None:
    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        await client.sender(session, "s", "$unknown")
        (detached,) = client.take(events.Detached)
        assert detached.error is not None

    play(test)


def test_a_receiver_without_a_target_address_is_named_by_its_link() -> None:
    """Azure's clients for JavaScript write the name of their receiving link as reply-to."""

    async def test(scene: Scene) -> None:
        echo(scene)
        client = scene.client()
        session = await client.open()
        sender = await client.sender(session, "requests", "$echo")
        found = {}
        for name in ("one", "two"):
            found[name] = await client.receiver(session, name, "$echo")
            found[name].grant(10)
        await client.turn()
        sender.send_one(write_message(Message(Properties(message_id="m", reply_to="two"), {}, "x")), 0, False)
        for _ in range(5):
            await client.turn()
        assert [event.link for event in client.take(events.Transfers)] == [found["two"]]

    play(test)
