"""Bounds that a client of a frontend can reach: at one it is served, beyond it is told why, others go on."""

import asyncio
import socket
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.performatives import Accepted, AmqpError, Begin, Flow, Open
from lightrail.amqp.sections import Properties
from lightrail.amqp.settings import ConnectionSettings
from lightrail.cluster.coordinator import CoordinatorError, CoordinatorFullError, Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend import connections
from lightrail.frontend.connections import operations
from lightrail.frontend.links.terminus import LABEL_CHARACTERS_MAX
from lightrail.frontend.nodes.links import NODE_REQUEST_BYTES
from lightrail.frontend.nodes.nodes import Nodes
from lightrail.frontend.nodes.queries import MANAGEMENT_FIGURES_AT_ONCE, Queries
from lightrail.frontend.outflow import WRITE_ANSWERS_BYTES
from lightrail.model import conditions, limits
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.control import ControlRefusedError
from tests.support.amqp.frame_peer import AMQP, frame
from tests.support.amqp.frontend_scene import Client, Scene, play
from tests.support.amqp.requests import Requester
from tests.support.turns import until
from tests.unit.frontend.test_management import make
from tests.unit.frontend.test_management import play as manage
from tests.unit.frontend.test_nodes import Echo


def error_of(client: Client) -> AmqpError:
    """Why the broker detached the client's last link; the connection goes on."""
    (detached,) = client.take(events.Detached)
    assert detached.error is not None
    assert not client.transport.closing
    return detached.error


# --- requests to the broker itself ---------------------------------------------------------------------


def test_a_request_to_a_node_has_at_most_so_many_bytes() -> None:
    async def test(scene: Scene) -> None:
        scene.frontend.nodes = Nodes({"$echo": Echo()})
        requester = await Requester.attach(scene.client(), "$echo")
        assert requester.sender.peer_max_message_size == NODE_REQUEST_BYTES
        empty = len(write_message(Message(Properties(reply_to="me"), {}, b"x" * 70_000))) - 70_000
        body = b"x" * (NODE_REQUEST_BYTES - empty)
        await requester.send(Message(Properties(reply_to="me"), {}, body))
        (answer,) = await requester.answers()
        assert answer.body == body
        assert requester.outcomes() == [Accepted()]
        # The engine of the test keeps to the bound by itself, so it is told another one.
        requester.sender.peer_max_message_size = 0
        await requester.send(Message(Properties(reply_to="me"), {}, body + b"x"))
        error = error_of(requester.client)
        assert error.condition == conditions.MESSAGE_SIZE_EXCEEDED
        assert str(NODE_REQUEST_BYTES) in (error.description or "")

    play(test)


def test_a_query_gives_at_most_so_many_entities_and_looks_at_some_of_them_at_a_time() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        most = limits.MANAGEMENT_PAGE_MAX
        for number in range(most + 1):
            await make(scene, f"q{number:04}")
        under_way = seen = 0
        real = scene.frontend.ask_shard

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Any:
            nonlocal under_way, seen
            under_way += 1
            seen = max(seen, under_way)
            try:
                return await real(queue, op, fields)
            finally:
                under_way -= 1

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        turns = 0
        waiting = asyncio.ensure_future(
            requester.ask({"attributeNames": ["name", "figures"]}, operation="QUERY", count=most + 1)
        )
        while not waiting.done():
            await asyncio.sleep(0)
            turns += 1
        found = waiting.result()
        assert len(found.body["results"]) == found.application["count"] == most
        assert seen == MANAGEMENT_FIGURES_AT_ONCE
        names = {"attributeNames": ["name"]}
        rest = await requester.ask(names, operation="QUERY", offset=most, count=most)
        assert rest.body["results"] == [[f"q{most:04}"]]

    manage(check)


def test_a_query_gives_others_their_turn_after_so_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that gives nothing, since its caller sees no name."""
    turns = 0
    real = asyncio.sleep

    async def counting(delay: float, result: Any = None) -> Any:
        nonlocal turns
        turns += 1
        return await real(delay, result)

    async def check(scene: Scene, requester: Requester) -> None:
        nonlocal turns
        for number in range(2 * limits.NAMES_AT_ONCE):
            await make(scene, f"q{number:04}")
        queries = Queries(scene.frontend.service, None)  # type: ignore[arg-type]
        request: Any = type("Request", (), {"caller_for": lambda self, name: ANYBODY})()
        monkeypatch.setattr(asyncio, "sleep", counting)
        turns = 0
        assert len([each async for each in queries._records(request, "")]) == 2 * limits.NAMES_AT_ONCE
        assert turns == 2
        monkeypatch.undo()

    manage(check)


def test_a_peek_by_management_gives_at_most_so_many() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "q")
        most = limits.MANAGEMENT_PAGE_MAX
        asked = {"operation": "peek", "type": "lightrail.queue", "name": "q"}
        assert (await requester.ask(**asked, count=most)).application["statusCode"] == 200
        refused = await requester.ask(**asked, count=most + 1)
        assert refused.application["statusCode"] == 400
        assert str(most) in refused.application["statusDescription"]

    manage(check)


# --- what people are shown -----------------------------------------------------------------------------


def test_a_page_of_connections_has_at_most_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONTROL_PAGE_MAX", 3)

    async def test(scene: Scene) -> None:
        ask = operations(scene.frontend)["connections"]
        for number in range(4):
            settings = ConnectionSettings(is_server=False, container_id=f"c{number}", idle_time_out_ms=0)
            await scene.client(settings=settings).open()
        assert len(ask({})["connections"]) == len(ask({"count": 3})["connections"]) == 3
        with pytest.raises(ControlRefusedError, match="from 1 to 3"):
            ask({"count": 4})

    play(test)


def test_of_one_connection_at_most_so_many_links_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONTROL_LINKS_MAX", 3)

    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        for number in range(4):
            await client.sender(session, f"s{number}")
        (entry,) = operations(scene.frontend)["connections"]({})["connections"]
        shown = operations(scene.frontend)["connection"]({"id": entry["id"]})["connection"]
        assert (len(shown["session_list"][0]["links"]), shown["links_left_out"]) == (3, 1)

    play(test)


def test_the_label_of_a_consumer_has_at_most_so_many_letters() -> None:
    async def test(scene: Scene) -> None:
        settings = ConnectionSettings(is_server=False, container_id="c" * 20_000, idle_time_out_ms=0)
        client = scene.client(settings=settings)
        session = await client.open()
        await client.receiver(session, "n" * 20_000)
        ((_, consumer),) = scene.shard.consumers.items()
        label = consumer.options.label
        assert len(label) == LABEL_CHARACTERS_MAX
        assert label.strip("cn") == "/"

    play(test)


# --- names ---------------------------------------------------------------------------------------------


def test_who_uses_one_name_more_than_there_may_be_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMES_MAX", 2)

    async def test(scene: Scene) -> None:
        client = scene.client()
        session = await client.open()
        for name in ("a", "b"):
            await client.sender(session, name, name)
        assert client.take(events.Detached) == []
        await client.sender(session, "c", "c")
        error = error_of(client)
        assert error.condition == conditions.RESOURCE_LIMIT_EXCEEDED
        assert "2 names" in (error.description or "")
        # Those that are there go on.
        await client.receiver(session, "again", "a")
        scene.shard.ready()
        await client.turn()
        assert client.take(events.Detached) == []

    play(test)


@pytest.mark.parametrize(
    ("problem", "condition", "said"),
    [
        (CoordinatorFullError("etcd has no space left"), conditions.RESOURCE_LIMIT_EXCEEDED, "no space left"),
        (CoordinatorError("etcd at 10.0.0.1:2379 does not answer"), conditions.INTERNAL_ERROR, "try again"),
    ],
)
def test_who_uses_a_new_name_that_can_not_be_written_is_told_and_sees_no_address(
    problem: CoordinatorError, condition: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(MemoryCoordinator):
        async def _commit(self, writes: Any) -> int:
            if any(isinstance(each, Write) and each.key.startswith("names/") for each in writes):
                raise problem
            return await super()._commit(writes)

    async def test() -> None:
        scene = await Scene.start(Broken())
        client = scene.client()
        session = await client.open()
        await client.sender(session, "s", "new")
        error = error_of(client)
        assert error.condition == condition
        assert said in (error.description or "")
        assert "10.0.0.1" not in (error.description or "")
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(test())
    assert str(problem) in caplog.text
    assert "Traceback" not in caplog.text


# --- a client that does not read -----------------------------------------------------------------------


class Flooding:
    """A client on a real socket that has the broker answer it; it reads when it is told to."""

    def __init__(self, server: asyncio.Server) -> None:
        self.raw = socket.socket()
        # Few answers disappear in the kernel's buffers.
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self.raw.connect(server.sockets[0].getsockname())
        self.raw.setblocking(False)
        session = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        self.flow = frame(
            Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
        )
        self.pending = AMQP + frame(Open(container_id="c")) + frame(session)
        self.frames = -2
        """Flows that it has sent, once the open and the begin are away."""
        self._heard = b""

    def send(self) -> bool:
        """As much as the kernel takes at once; False for nothing."""
        if not self.pending:
            self.pending = self.flow * 1_000
            self.frames += 1_000
        try:
            count = self.raw.send(self.pending)
        except BlockingIOError:
            return False
        self.pending = self.pending[count:]
        return True

    async def answers(self, count: int) -> None:
        """Reads, and sends the rest, until so many frames have come."""
        loop = asyncio.get_running_loop()
        while count:
            if self.pending:
                self.send()
            self._heard += await loop.sock_recv(self.raw, 1 << 20)
            at = 8 if self._heard.startswith(b"AMQP") else 0
            while at + 4 <= len(self._heard):
                size = int.from_bytes(self._heard[at : at + 4], "big")
                if at + size > len(self._heard):
                    break
                at += size
                count -= 1
            self._heard = self._heard[at:]


def test_who_sends_and_reads_no_answers_is_not_read_until_it_reads() -> None:
    async def test(scene: Scene) -> None:
        server = await asyncio.get_running_loop().create_server(scene.frontend.protocol, "127.0.0.1", 0)
        client = Flooding(server)
        await until(lambda: bool(scene.frontend.connections))
        (connection,) = scene.connections
        transport = connection.transport
        assert transport is not None
        most = in_vain = 0
        while in_vain < 500:
            in_vain = 0 if client.send() else in_vain + 1
            await asyncio.sleep(0)
            most = max(most, transport.get_write_buffer_size())
            assert most < 16 * WRITE_ANSWERS_BYTES, "it is read for ever"
        assert not transport.is_reading()
        # The flows of the last read are answered as well.
        assert most > limits.WRITE_HIGH_WATER + WRITE_ANSWERS_BYTES
        assert most < limits.WRITE_HIGH_WATER + WRITE_ANSWERS_BYTES + 1024 * 1024
        # Others go on, and so does it once it reads: every flow has its answer.
        other = scene.client()
        await other.open()
        assert other.amqp.opened
        async with asyncio.timeout(60):
            await client.answers(client.frames + 4)
        assert transport.is_reading()
        client.raw.close()
        server.close()
        await until(lambda: len(scene.frontend.connections) == 1)

    play(test)
