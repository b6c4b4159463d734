"""Transfers: what moves, what stays, how they end; nothing is lost, whatever happens in between."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.forwarding import transfer as transfer_module
from lightrail.gateway.forwarding import transfers
from lightrail.gateway.forwarding.counts import ForwardingCounts
from lightrail.gateway.forwarding.sink import NotSentError
from lightrail.gateway.forwarding.transfer import Transfer, TransferState
from lightrail.gateway.forwarding.transfers import TooManyTransfersError, Transfers
from lightrail.model.names import InvalidNameError
from lightrail.model.policy import Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY, Caller, ForbiddenError
from lightrail.namespace.service import Service
from lightrail.namespace.statuses import MissingError, ServiceError
from lightrail.wire.frames import OutcomeCode
from tests.support.amqp.letters import dead_letter, message
from tests.support.now import now
from tests.support.shard.engine_links import EngineLinks
from tests.support.turns import until
from tests.unit.gateway.forwarding.fake_sink import FakeSink

FULL = NotSentError("amqp:resource-limit-exceeded", "it is full")


class Scene:
    """Queues a, b and c, a router, and transfers between them."""

    def __init__(self) -> None:
        coordinator = MemoryCoordinator()
        self.directory = Directory(coordinator)
        self.service = Service(coordinator, self.directory)
        self.coordinator = coordinator
        self.links = EngineLinks()
        self.sink = FakeSink()
        self.counts = ForwardingCounts()
        self.transfers = Transfers(self.directory, cast(Any, self.links), cast(Any, self.sink), self.counts)

    async def set_up(self) -> None:
        await self.coordinator.set_shards(1)
        for name in ("a", "b", "c"):
            await self.service.give(ANYBODY, name, Policy.parse({"role": "queue"}))
            self.links.peer.queue(name)
        await self.service.give(ANYBODY, "r", Policy.parse({"role": "router"}))
        self.dlq = self.links.peer.queue("a/$dlq")
        self.a = self.links.peer.queue("a")

    def start(self, caller: Caller = ANYBODY, /, **asked: Any) -> Transfer:
        return self.transfers.start(caller, asked)

    async def run(self, **asked: Any) -> Transfer:
        transfer = self.start(**asked)
        await asyncio.wait_for(transfer.done, 10)
        return transfer


def run(check: Callable[[Scene], Awaitable[None]]) -> None:
    async def checked() -> None:
        scene = Scene()
        await scene.set_up()
        await check(scene)
        scene.transfers.close()

    asyncio.run(checked())


def test_a_move_brings_everything_over_in_order_and_leaves_nothing() -> None:
    async def check(scene: Scene) -> None:
        messages = [message(b"%d" % number) for number in range(2_500)]
        scene.a.add(*messages)
        transfer = await scene.run(**{"from": "a", "to": "b"})
        assert scene.sink.messages("b") == messages
        assert scene.a.ready == 0
        assert {code for code, _ in scene.a.outcomes.values()} == {OutcomeCode.ACCEPTED}
        assert (transfer.state, transfer.moved, transfer.total, transfer.error) == (
            "done",
            2_500,
            2_500,
            None,
        )
        assert scene.links.peer.consumers == {}
        assert scene.counts.transferred["move"] == 2_500

    run(check)


def test_a_message_is_settled_only_after_the_sink_has_it() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(message(b"1"))
        scene.sink.gate = asyncio.Event()
        transfer = scene.start(replace(ANYBODY, user="ann"), **{"from": "a", "to": "b"})
        await until(lambda: scene.sink.waiting == 1)
        assert scene.a.outcomes == {}
        # The receiver counts for the user who began the transfer.
        assert scene.links.peer.users == ["ann"]
        scene.sink.gate.set()
        await transfer.done
        assert scene.a.outcomes[0][0] is OutcomeCode.ACCEPTED

    run(check)


def test_an_empty_queue_is_done_at_once() -> None:
    async def check(scene: Scene) -> None:
        transfer = await scene.run(**{"from": "a", "to": "b"})
        assert (transfer.state, transfer.moved, transfer.total) == ("done", 0, 0)

    run(check)


def test_count_is_the_most_that_moves() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"%d" % number) for number in range(50)))
        transfer = await scene.run(**{"from": "a", "to": "b", "count": 20})
        assert (transfer.moved, transfer.total, scene.a.ready) == (20, 20, 30)
        assert sum(scene.a.delivered.values()) == 20

    run(check)


def test_what_does_not_match_the_filter_is_not_touched() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"%d" % number, subject="ab"[number % 2]) for number in range(40)))
        transfer = await scene.run(**{"from": "a", "to": "b", "filter": {"properties": {"subject": "a"}}})
        assert (transfer.state, transfer.moved, transfer.total) == ("done", 20, None)
        assert sorted(scene.a.delivered) == list(range(0, 40, 2))

    run(check)


def test_a_copy_leaves_the_queue_as_it_was() -> None:
    async def check(scene: Scene) -> None:
        messages = [message(b"%d" % number) for number in range(100)]
        scene.a.add(*messages)
        transfer = await scene.run(**{"from": "a", "to": "b", "mode": "copy"})
        assert scene.sink.messages("b") == messages == scene.a.bodies()
        assert scene.a.outcomes == {}
        assert transfer.moved == 100

    run(check)


def test_what_comes_after_the_start_stays() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"%d" % number) for number in range(40)))

        def feed(_name: str, letter: Any) -> None:
            scene.a.add(letter.message)

        scene.sink.refuse = feed
        for mode in ("move", "copy"):
            transfer = await scene.run(**{"from": "a", "to": "b", "mode": mode})
            assert (transfer.state, transfer.moved) == ("done", 40)
            assert scene.a.ready == (40 if mode == "move" else 80)

    run(check)


def test_what_the_target_does_not_take_stays_and_the_reason_is_told() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"%d" % number) for number in range(10)))
        scene.sink.refuse = lambda _name, letter: FULL if letter.message[-1:] in b"37" else None
        transfer = await scene.run(**{"from": "a", "to": "b"})
        assert (transfer.state, transfer.moved) == (TransferState.FAILED, 8)
        assert [body[-1:] for body in scene.a.bodies()] == [b"3", b"7"]
        assert transfer.error == (
            "2 messages could not be sent and stay in a: 2 x amqp:resource-limit-exceeded: it is full"
        )
        assert scene.a.delivered[3] == 1, "it is not delivered to us again and again"

    run(check)


def test_a_target_that_takes_nothing_ends_the_transfer_before_all_was_tried() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"%d" % number) for number in range(5_000)))
        scene.sink.refuse = lambda _name, _letter: FULL
        transfer = await scene.run(**{"from": "a", "to": "b"})
        assert transfer.state is TransferState.FAILED
        assert scene.a.ready == 5_000
        assert len(scene.a.delivered) < 2 * transfer_module.TRANSFER_HELD + transfer_module.TRANSFER_WINDOW

    run(check)


def test_large_messages_make_the_window_of_a_transfer_small(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(message(b"x" * 1_000))
    monkeypatch.setattr(transfer_module, "TRANSFER_WINDOW_BYTES", 3 * size)

    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"x" * 1_000) for _ in range(100)))
        transfer = scene.start(**{"from": "a", "to": "b"})
        # The size is known after the first ones.
        await until(lambda: transfer.moved >= transfer_module.TRANSFER_WINDOW_FIRST)
        scene.sink.gate = asyncio.Event()
        scene.sink.waiting = 0
        await until(lambda: scene.sink.waiting == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert scene.sink.waiting == 3
        scene.sink.gate.set()
        await transfer.done
        assert transfer.moved == 100

    run(check)


def test_a_restart_of_the_shard_loses_nothing_and_repeats_what_was_in_flight() -> None:
    async def check(scene: Scene) -> None:
        messages = [message(b"%d" % number) for number in range(100)]
        for mode in ("move", "copy"):
            scene.a.add(*messages)
            scene.sink.letters.clear()
            scene.sink.gate = asyncio.Event()
            transfer = scene.start(**{"from": "a", "to": "b", "mode": mode})
            await until(lambda: scene.sink.waiting >= transfer_module.TRANSFER_WINDOW_FIRST)
            in_flight = sum(scene.a.delivered.values())
            scene.links.peer.reconnect()
            scene.sink.gate.set()
            await transfer.done
            assert (transfer.state, transfer.moved) == ("done", 100)
            assert set(scene.sink.messages("b")) == set(messages)
            assert len(scene.sink.messages("b")) == 100 + in_flight
            assert scene.a.ready == (0 if mode == "move" else 100)
            scene.sink.waiting = 0
            scene.a.delivered.clear()

    run(check)


def test_a_copy_that_goes_on_after_a_restart_leaves_out_what_it_has() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"%d" % number) for number in range(100)))
        transfer = scene.start(**{"from": "a", "to": "b", "mode": "copy"})
        await until(lambda: transfer.moved >= 16)
        scene.links.peer.reconnect()
        await transfer.done
        assert transfer.moved == 100
        assert len(set(scene.sink.messages("b"))) == 100

    run(check)


def test_a_redrive_brings_each_message_back_to_where_it_died() -> None:
    async def check(scene: Scene) -> None:
        scene.dlq.add(
            *(dead_letter(b"%d" % number, "abc"[number % 3]) for number in range(9)),
            dead_letter(b"9", "nowhere"),
            dead_letter(b"10", "a/$dlq"),
            dead_letter(b"11", "bad//name"),
            message(b"12"),
        )
        transfer = await scene.run(**{"from": "a/$dlq", "mode": "redrive"})
        assert {name: len(found) for name, found in scene.sink.letters.items()} == {"a": 3, "b": 3, "c": 3}
        assert (transfer.state, transfer.moved, scene.dlq.ready) == ("failed", 9, 4)
        assert transfer.error is not None
        assert transfer.error.startswith("4 messages could not be sent and stay in a/$dlq: 1 x ")
        transfer = await scene.run(**{"from": "a/$dlq", "to": "b", "mode": "redrive"})
        assert (transfer.state, transfer.moved, scene.dlq.ready) == ("done", 4, 0)

    run(check)


def test_a_redrive_sends_only_where_its_caller_may_send() -> None:
    async def check(scene: Scene) -> None:
        for prefix, right in (("a/$dlq", Right.LISTEN), ("b", Right.SEND)):
            await scene.service.permit(ANYBODY, "ann", prefix, frozenset({right}))
        scene.dlq.add(dead_letter(b"1", "a"), dead_letter(b"2", "b"))
        transfer = scene.start(Caller("ann"), **{"from": "a/$dlq", "mode": "redrive"})
        await transfer.done
        assert list(scene.sink.letters) == ["b"]
        assert transfer.error is not None
        assert "user ann has no right to send to a" in transfer.error

    run(check)


def test_the_rights_to_listen_and_to_send_are_asked_for() -> None:
    async def check(scene: Scene) -> None:
        ann = Caller("ann")
        asked = {"from": "a", "to": "b"}
        with pytest.raises(ForbiddenError, match="listen at a"):
            scene.start(ann, **asked)
        await scene.service.permit(ANYBODY, "ann", "a", frozenset({Right.LISTEN}))
        with pytest.raises(ForbiddenError, match="send to b"):
            scene.start(ann, **asked)
        await scene.service.permit(ANYBODY, "ann", "b", frozenset({Right.SEND}))
        transfer = scene.start(ann, **asked)
        await transfer.done
        assert scene.transfers.find(ann, transfer.id) is transfer
        with pytest.raises(MissingError):
            scene.transfers.find(Caller("bob"), transfer.id)
        assert scene.transfers.list(Caller("bob")) == []
        assert scene.transfers.list(ANYBODY) == [transfer]

    run(check)


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({}, ServiceError, "from is 'None'"),
        ({"from": "a"}, ServiceError, "to is missing"),
        ({"from": "a", "to": "a"}, ServiceError, "both a"),
        ({"from": "a", "to": "b", "mode": "steal"}, ServiceError, "one of move, copy, redrive"),
        ({"from": "a", "to": "b", "count": 0}, ServiceError, "count is '0'"),
        ({"from": "a", "to": "b", "count": True}, ServiceError, "count is 'True'"),
        ({"from": "a", "to": "b", "filter": {"sql": "("}}, ServiceError, "sql"),
        ({"from": "a", "to": "b", "filter": 5}, ServiceError, "JSON object"),
        ({"from": "a", "to": "b", "what": 1}, ServiceError, "'what' is no member"),
        ({"from": "a", "to": "x"}, MissingError, "x has role none"),
        ({"from": "r", "to": "a"}, MissingError, "r has role router"),
        ({"from": "a//b", "to": "a"}, InvalidNameError, "empty segment"),
    ],
)
def test_what_can_not_be_done_is_refused(asked: dict[str, Any], error: type[Exception], says: str) -> None:
    async def check(scene: Scene) -> None:
        with pytest.raises(error, match=says):
            scene.start(**asked)

    run(check)


def test_a_queue_that_is_deleted_ends_its_transfer() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(message(b"1"))
        scene.sink.gate = asyncio.Event()
        transfer = scene.start(**{"from": "a", "to": "b"})
        await until(lambda: scene.sink.waiting == 1)
        scene.links.peer.delete("a")
        await transfer.done
        assert (transfer.state, transfer.error) == (TransferState.FAILED, "a: a was deleted")
        transfer = await scene.run(**{"from": "a", "to": "b"})
        assert transfer.error is not None
        assert transfer.error.startswith("a can't be read now: amqp:not-found")

    run(check)


def test_a_cancelled_transfer_ends_when_what_is_on_its_way_has_arrived() -> None:
    async def check(scene: Scene) -> None:
        scene.a.add(*(message(b"%d" % number) for number in range(100)))
        scene.sink.gate = asyncio.Event()
        transfer = scene.start(**{"from": "a", "to": "b"})
        await until(lambda: scene.sink.waiting > 0)
        cancelling = asyncio.create_task(scene.transfers.cancel(ANYBODY, transfer.id))
        await until(lambda: transfer._is_cancelled)
        assert now(transfer.state) is TransferState.RUNNING
        scene.sink.gate.set()
        await cancelling
        assert transfer.state is TransferState.CANCELLED
        assert transfer.moved == len(scene.sink.letters["b"])
        assert scene.a.ready == 100 - transfer.moved
        assert (await scene.transfers.cancel(ANYBODY, transfer.id)).state is TransferState.CANCELLED

    run(check)


def test_transfers_are_bounded_and_the_oldest_that_ended_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfers, "TRANSFERS_RUNNING", 2)
    monkeypatch.setattr(transfers, "TRANSFERS_KEPT", 3)

    async def check(scene: Scene) -> None:
        ended = [await scene.run(**{"from": "a", "to": "b"}) for _ in range(5)]
        assert scene.transfers.list(ANYBODY) == ended[2:]
        scene.a.add(message(b"1"), message(b"2"))
        scene.sink.gate = asyncio.Event()
        for _ in range(2):
            scene.start(**{"from": "a", "to": "b", "count": 1})
        with pytest.raises(TooManyTransfersError, match="2 transfers run"):
            scene.start(**{"from": "a", "to": "b"})

    run(check)
