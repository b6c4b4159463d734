"""RouterLink: batches taken apart, one answer for all parts, what waits, and what is sent anew."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from proton import Message

from lightrail.amqp.events import ACCEPTED, RELEASED, Transfers
from lightrail.amqp.performatives import Modified, Rejected
from lightrail.amqp.sections import Header, encode_header
from lightrail.frontend.links.incoming import REFUSED_PAUSE_MS
from lightrail.frontend.links.routing import RouterLink
from lightrail.model import conditions, limits
from lightrail.model.placement import Placement
from lightrail.model.policy import Policy
from lightrail.namespace import spreading
from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.routers import Routers
from lightrail.wire.bodies import Refusal, Targets
from lightrail.wire.frames import DURABLE, ENQUEUE_COLUMNS, ENQUEUE_ENDS, HEADER_SIZE, Kind
from tests.support.amqp.frontend_fakes import FakeConnection, FakeFrontend, FakeLink, FakeShard, Said
from tests.support.routers import Graph

FULL = Refusal(conditions.RESOURCE_LIMIT_EXCEEDED, "full")
AWAY = Refusal(conditions.NOT_FOUND, "no such queue")


class RouterFrontend(FakeFrontend):
    """A frontend with a namespace and two shards: queues whose names begin with `far` are on the second."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.shards = [FakeShard(0), FakeShard(1)]
        self.directory = graph.directory
        self.routers = Routers(graph.directory, self.later, self.now_ms)
        self.shard_connections.placed = self.placed  # type: ignore[attr-defined]
        self.broken = False
        self.unregistered: set[int] = set()
        """Shards whose addresses are not known."""

    def now_ms(self) -> int:
        return self.graph.now_ms

    def poll(self) -> None:
        self.graph.directory.refresh()

    def placed(self, queue: str) -> FakeShard | None:
        placement = self.shard_connections.placement(queue)
        if placement is None or placement.shard in self.unregistered:
            return None
        return self.shards[placement.shard]

    async def find(self, queue: str) -> Placement:
        await asyncio.sleep(0)
        if self.broken:
            raise OSError("no disk")
        return Placement(
            *self.shard_connections.placements.setdefault(queue, (int(queue.startswith("far")), 1))
        )

    def forget_route(self, queue: str) -> None:
        self.shard_connections.placements.pop(queue, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    tasks: list[asyncio.Task[None]]


class Rig:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.frontend = RouterFrontend(graph)
        self.frontend.tasks = []
        self.connection = FakeConnection(self.frontend)
        self.link = FakeLink()
        self.router = RouterLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            number=5,
            router="r",
            label="me",
        )
        self.next_id = 0
        self.router.start()
        self.meaning: list[dict[int, list[str]]] = [{}, {}]

    async def settle(self) -> None:
        """Everything that was begun ends."""
        for _ in range(10):
            await asyncio.sleep(0)
            calls, self.frontend.calls = self.frontend.calls, []
            for wait_ms, call in calls:
                if wait_ms:
                    self.frontend.calls.append((wait_ms, call))
                else:
                    call()

    async def send(self, *payloads: bytes, settled: bool = False, head: bytes = b"") -> int:
        first = self.next_id
        self.next_id += len(payloads)
        self.link.credit -= len(payloads)
        event = Transfers(self.link, first, list(payloads), settled, 0, head)  # type: ignore[arg-type]
        self.router.transfers(event, self.graph.now_ms)
        await self.settle()
        return first

    def said(self, shard: int = 0) -> list[tuple[list[str], list[bytes]]]:
        """The queues and the messages of the frames that left."""
        found = []
        for said in self.frontend.shards[shard].take():
            if said.kind == Kind.TARGETS:
                self.meaning[shard][said.number] = Targets.decode(said.body).queues
            elif said.kind == Kind.ROUTE:
                found.append((self.meaning[shard][said.epoch], messages(said)))
        return found

    def answer(self, number: int, count: int = 1, shard: int = 0) -> None:
        self.lane(shard).answered(number, count)

    async def refuse(self, number: int, refusal: Refusal, shard: int = 0) -> None:
        self.lane(shard).refused(number, refusal)
        await self.settle()

    def lane(self, shard: int = 0) -> Any:
        """The only one to a shard."""
        (lane,) = self.frontend.shards[shard].opened.values()
        return lane

    def outcomes(self) -> list[str]:
        """Of each message: its condition, or accepted."""
        found: dict[int, str] = {}
        for first, last, state in self.link.settled:
            for id in range(first, last + 1):
                assert id not in found
                found[id] = "accepted"
                if isinstance(state, Rejected):
                    assert state.error is not None
                    found[id] = str(state.error.condition)
                else:
                    assert state is ACCEPTED
        assert sorted(found) == list(range(len(found)))
        return [found[id] for id in sorted(found)]


def messages(said: Said) -> list[bytes]:
    ends = memoryview(said.part)[ENQUEUE_ENDS : ENQUEUE_ENDS + 4 * said.count].cast("I")
    blob = said.part[ENQUEUE_ENDS + 4 * said.count :]
    starts = [0, *ends[:-1]]
    return [blob[start:end] for start, end in zip(starts, ends, strict=True)]


def message(subject: str, **fields: Any) -> bytes:
    encoded: bytes = Message(subject=subject, body="x", **fields).encode()
    return encoded


def run(check: Callable[[Rig], Awaitable[None]], **policy: Any) -> None:
    async def checked() -> None:
        graph = Graph()
        await graph.coordinator.set_shards(2)
        await graph.router("r", **policy)
        await check(Rig(graph))

    asyncio.run(checked())


async def fan_out(rig: Rig, *queues: str) -> None:
    await rig.graph.queue(*queues)
    for queue in queues:
        await rig.graph.subscribe("r", queue)


def test_the_attach_is_answered_at_once() -> None:
    async def check(rig: Rig) -> None:
        assert rig.connection.accepted == [rig.link]
        assert rig.link.granted == [limits.LINK_CREDIT_MAX]

    run(check)


def test_a_batch_is_one_frame_for_all_queues_of_a_shard() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "b", "far")
        await rig.send(b"1", b"2")
        assert rig.said() == [(["a", "b"], [b"1", b"2"])]
        assert rig.said(1) == [(["far"], [b"1", b"2"])]
        rig.answer(1)
        assert rig.link.settled == []
        rig.answer(1, shard=1)
        assert rig.link.settled == [(0, 1, ACCEPTED)]
        counts = rig.frontend.counts
        assert (counts.messages_received, counts.messages_accepted, counts.messages_routed) == (2, 2, 6)
        assert counts.unanswered_bytes == 0
        assert rig.router.unanswered == 0

    run(check)


def test_a_batch_is_cut_where_queues_look_into_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no frame makes a shard look more often than it may in one go."""
    monkeypatch.setattr(spreading, "ROUTED_LOOKS_AT_ONCE", 5)

    async def check(rig: Rig) -> None:
        looking = Policy.parse({"role": "queue", "groups": True})
        for queue in ("a", "b", "far"):
            await rig.graph.service.give(ANYBODY, queue, looking)
            await rig.graph.subscribe("r", queue)
        await fan_out(rig, "c")
        payloads = [b"1", b"2", b"3", b"4", b"5"]
        await rig.send(*payloads)
        near = ["a", "b", "c"]
        assert rig.said() == [(near, [b"1", b"2"]), (near, [b"3", b"4"]), (near, [b"5"])]
        assert rig.said(1) == [(["far"], payloads)]
        rig.answer(1, 2)
        rig.answer(1, shard=1)
        assert rig.link.settled == []
        await rig.refuse(3, FULL)
        assert rig.outcomes() == ["accepted"] * 4 + [FULL.condition]

    run(check)


def test_the_header_says_how_the_frames_are_kept() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        payload = Message(durable=True, priority=7, body="x").encode()
        await rig.send(payload, head=payload[: payload.index(b"\x00Sw")])
        (said,) = rig.frontend.shards[0].take(Kind.ROUTE)
        assert said.flags & DURABLE

    run(check)


def test_neighbours_are_answered_in_one() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        for payload in (b"1", b"2", b"3"):
            await rig.send(payload)
        rig.answer(1, 3)
        assert rig.link.settled == [(0, 2, ACCEPTED)]

    run(check)


def test_messages_are_answered_apart_where_their_ends_differ() -> None:
    async def check(rig: Rig) -> None:
        await rig.graph.queue("a", "b")
        for queue in "ab":
            await rig.graph.subscribe("r", queue, filter={"properties": {"subject": queue}})
        await rig.send(*map(message, ["a", "b", "c", "a"]))
        assert rig.said() == [
            (["a"], [message("a"), message("a")]),
            (["b"], [message("b")]),
        ]
        rig.answer(1)
        assert rig.link.settled == []
        await rig.refuse(2, FULL)
        assert rig.outcomes() == ["accepted", FULL.condition, conditions.NOT_FOUND, "accepted"]
        counts = rig.frontend.counts
        assert (counts.messages_accepted, counts.messages_refused, counts.messages_unroutable) == (2, 2, 1)

    run(check)


def test_a_message_is_accepted_only_if_every_frame_is() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "far")
        await rig.send(b"1", b"2", b"3")
        rig.answer(1)
        await rig.refuse(1, Refusal(FULL.condition, "full", accepted=2), shard=1)
        assert rig.outcomes() == ["accepted", "accepted", FULL.condition]
        # A sender that overruns is slowed down.
        assert [wait_ms for wait_ms, _ in rig.frontend.calls] == [REFUSED_PAUSE_MS]

    run(check)


def test_settled_transfers_get_no_disposition() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1", settled=True)
        await rig.send(b"2")
        rig.answer(1, 2)
        assert rig.link.settled == [(1, 1, ACCEPTED)]

    run(check)


@pytest.mark.parametrize(("policy", "outcome"), [("reject", conditions.NOT_FOUND), ("drop", "accepted")])
def test_what_nobody_gets_is_rejected_or_dropped(policy: str, outcome: str) -> None:
    async def check(rig: Rig) -> None:
        await rig.send(b"1", b"2")
        assert rig.outcomes() == [outcome, outcome]
        assert rig.frontend.counts.messages_unroutable == 2
        assert rig.frontend.counts.unanswered_bytes == 0
        if policy == "reject":
            assert "nobody subscribes to r" in rig.link.settled[0][2].error.description

    run(check, unroutable=policy)


def test_a_sender_waits_for_a_first_subscriber_in_order() -> None:
    async def check(rig: Rig) -> None:
        await rig.send(b"1")
        await rig.send(b"2")
        assert rig.outcomes() == []
        await fan_out(rig, "a")
        await rig.settle()
        assert rig.said() == [(["a"], [b"1"]), (["a"], [b"2"])]
        rig.answer(1, 2)
        assert rig.outcomes() == ["accepted", "accepted"]

    run(check, buffer_timeout=5)


def test_a_sender_waits_no_longer_than_the_policy_says() -> None:
    async def check(rig: Rig) -> None:
        await rig.send(b"1")
        rig.graph.now_ms += 3_000
        await rig.send(b"2")
        ((wait_ms, ring),) = rig.frontend.calls
        assert wait_ms == 5_000
        rig.frontend.calls.clear()
        rig.graph.now_ms += 2_000
        ring()
        assert rig.outcomes() == [conditions.NOT_FOUND]
        ((wait_ms, ring),) = rig.frontend.calls
        assert wait_ms == 3_000
        rig.graph.now_ms += 3_000
        ring()
        assert rig.outcomes() == [conditions.NOT_FOUND] * 2

    run(check, buffer_timeout=5)


def test_batches_wait_in_order_while_a_queue_is_looked_up() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        for id, payload in enumerate((b"1", b"2")):
            event = Transfers(rig.link, id, [payload], False)  # type: ignore[arg-type]
            rig.router.transfers(event, 0)
        assert rig.said() == []
        await rig.settle()
        assert rig.said() == [(["a"], [b"1"]), (["a"], [b"2"])]

    run(check)


def test_a_placement_that_can_not_be_known_is_said() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        rig.frontend.broken = True
        await rig.send(b"1")
        assert rig.outcomes() == [conditions.INTERNAL_ERROR]

    run(check)


def test_where_a_queue_went_away_what_is_there_now_gets_the_messages_once() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "b", "far")
        await rig.send(b"1")
        assert rig.said() == [(["a", "b"], [b"1"])]
        await rig.graph.drop("b")
        await rig.refuse(1, AWAY)
        assert rig.said() == [(["a"], [b"1"])]
        assert rig.said(1) == [(["far"], [b"1"])]
        rig.answer(1, shard=1)
        assert rig.outcomes() == []
        rig.answer(2)
        assert rig.outcomes() == ["accepted"]

    run(check)


def test_what_is_sent_after_a_queue_was_made_again_is_declared_for_the_new_one() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1")
        await rig.graph.drop("a")
        await fan_out(rig, "a")
        rig.frontend.shards[0].take()
        await rig.send(b"2")
        declared, routed = rig.frontend.shards[0].take()
        assert (declared.kind, routed.kind) == (Kind.TARGETS, Kind.ROUTE)
        assert declared.number == routed.epoch

    run(check)


def test_a_message_that_is_resolved_anew_may_be_for_nobody() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1")
        await rig.graph.drop("a")
        await rig.refuse(1, AWAY)
        assert rig.outcomes() == [conditions.NOT_FOUND]

    run(check)


def test_messages_are_resolved_anew_once() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1")
        await rig.refuse(1, AWAY)
        assert rig.outcomes() == []
        await rig.refuse(2, AWAY)
        assert rig.outcomes() == [AWAY.condition]

    run(check)


def test_what_is_resolved_anew_waits_for_a_shard_that_is_not_registered() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1")
        rig.said()
        await rig.graph.drop("a")
        await fan_out(rig, "b", "far")
        rig.frontend.unregistered.add(1)
        await rig.refuse(1, AWAY)
        rig.answer(2)
        assert rig.outcomes() == []
        rig.frontend.unregistered.clear()
        await rig.settle()
        assert (rig.said(), rig.said(1)) == ([(["b"], [b"1"])], [(["far"], [b"1"])])
        rig.answer(2)
        rig.answer(1, shard=1)
        assert rig.outcomes() == ["accepted"]

    run(check)


def test_what_is_resolved_anew_stays_away_from_subscriptions_of_its_own_container() -> None:
    async def check(rig: Rig) -> None:
        rig.link.session.connection.peer_open = SimpleNamespace(container_id="me")
        await fan_out(rig, "a")
        await rig.graph.queue("own")
        await rig.graph.subscribe("r", "own", no_local="me")
        await rig.send(b"1")
        assert rig.said() == [(["a"], [b"1"])]
        await rig.graph.drop("a")
        await fan_out(rig, "b")
        await rig.refuse(1, AWAY)
        assert rig.said() == [(["b"], [b"1"])]

    run(check)


def test_a_router_that_is_none_any_more_ends_the_link() -> None:
    async def check(rig: Rig) -> None:
        await rig.graph.drop("r")
        await rig.send(b"1")
        assert rig.outcomes() == [conditions.RESOURCE_DELETED]
        ((link, attached, refusal),) = rig.connection.refused
        assert (link, attached, refusal.condition) == (rig.link, True, conditions.RESOURCE_DELETED)

    run(check)


def test_lanes_are_closed_when_the_last_answer_has_come() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "far")
        await rig.send(b"1")
        rig.answer(1)
        rig.router.close()
        assert rig.frontend.shards[0].closed == []
        rig.answer(1, shard=1)
        assert rig.link.settled == []
        for shard in rig.frontend.shards:
            assert [kind for kind, _ in shard.closed] == ["producer"]

    run(check)


def test_what_waits_for_a_placement_when_the_link_ends_is_sent_and_waits_for_no_room() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "far")
        rig.frontend.spawn, held = lambda work: waiting.append(work), rig.frontend.spawn  # type: ignore[method-assign]
        waiting: list[Any] = []
        await rig.send(b"1", settled=True)
        rig.router.close()
        assert rig.said() == []
        rig.frontend.spawn = held  # type: ignore[method-assign]
        rig.frontend.spawn(waiting.pop())
        await rig.settle()
        for shard in rig.frontend.shards:
            kinds = [each.kind for each in shard.take()]
            assert kinds == [Kind.PRODUCER_OPEN, Kind.TARGETS, Kind.ROUTE, Kind.PRODUCER_ABANDON]

    run(check)


# --- queues that forward -----------------------------------------------------------------------------------


async def source(rig: Rig) -> None:
    """A queue `source` behind the router, which forwards to `end`."""
    await rig.graph.queue("end")
    forwards = Policy.parse({"role": "queue", "forward_to": "end"})
    await rig.graph.service.give(ANYBODY, "source", forwards)
    await rig.graph.subscribe("r", "source")


def test_what_is_in_the_source_of_a_full_queue_does_not_come_into_that_queue_when_routed_anew() -> None:
    async def check(rig: Rig) -> None:
        await source(rig)
        await fan_out(rig, "far")
        await rig.send(b"1")
        assert rig.said() == [(["end"], [b"1"])]
        await rig.refuse(1, FULL)
        assert rig.said() == [(["source"], [b"1"])]
        rig.answer(2)
        await rig.graph.drop("far")
        await rig.refuse(1, AWAY, shard=1)
        assert rig.said() == []
        assert rig.outcomes() == ["accepted"]

    run(check)


def test_what_comes_into_a_source_after_the_end_of_the_link_waits_for_no_room() -> None:
    async def check(rig: Rig) -> None:
        await source(rig)
        await rig.send(b"1")
        rig.router.close()
        rig.frontend.shards[0].take()
        await rig.refuse(1, FULL)
        kinds = [each.kind for each in rig.frontend.shards[0].take()]
        assert kinds == [Kind.TARGETS, Kind.ROUTE, Kind.PRODUCER_ABANDON]

    run(check)


# --- queues that move ------------------------------------------------------------------------------------

MOVED = Refusal(conditions.MOVED, "look again")


def test_what_a_shard_gives_back_is_sent_where_the_queues_are_then_in_order() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "b")
        await rig.send(b"1")
        await rig.send(b"2", b"3")
        assert rig.said() == [(["a", "b"], [b"1"]), (["a", "b"], [b"2", b"3"])]
        rig.frontend.shard_connections.placements["a"] = (1, 2)
        rig.lane().refused(1, MOVED)
        await rig.send(b"4")
        assert rig.said() == []
        await rig.refuse(2, MOVED)
        assert rig.said() == [(["b"], [b"1"]), (["b"], [b"2", b"3"]), (["b"], [b"4"])]
        assert rig.said(1) == [(["a"], [b"1"]), (["a"], [b"2", b"3"]), (["a"], [b"4"])]
        rig.answer(3, 3)
        assert rig.link.settled == []
        rig.answer(1, 3, shard=1)
        assert rig.outcomes() == ["accepted"] * 4

    run(check)


def test_messages_that_find_their_queue_nowhere_are_sent_as_often_as_it_takes() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1")
        number = 1
        for _ in range(5):
            assert rig.said() == [(["a"], [b"1"])]
            await rig.refuse(number, MOVED)
            number += 1
        assert rig.frontend.shard_connections.waits == [10, 20, 40, 80, 160]
        assert rig.outcomes() == []
        rig.answer(number)
        assert rig.outcomes() == ["accepted"]

    run(check)


def test_an_answer_during_a_pause_makes_the_next_one_short_again() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1")
        for number in (1, 2, 3):
            await rig.refuse(number, MOVED)
        connections = rig.frontend.shard_connections
        assert connections.waits == [10, 20, 40]

        async def change(wait_ms: int) -> int:
            connections.waits.append(wait_ms)
            rig.router._answered([])
            return 2 * wait_ms

        connections.change = change  # type: ignore[method-assign]
        await rig.refuse(4, MOVED)
        await rig.refuse(5, MOVED)
        assert connections.waits == [10, 20, 40, 80, 20]

    run(check)


def test_what_is_stored_of_messages_that_are_given_back_is_not_sent_again() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1", b"2", b"3")
        assert rig.said() == [(["a"], [b"1", b"2", b"3"])]
        rig.frontend.shard_connections.placements["a"] = (1, 2)
        await rig.refuse(1, Refusal(conditions.MOVED, "look again", accepted=2))
        assert rig.said(1) == [(["a"], [b"3"])]
        rig.answer(1, shard=1)
        assert rig.outcomes() == ["accepted"] * 3

    run(check)


def test_what_an_action_has_changed_is_sent_changed_to_where_the_queue_is_then() -> None:
    async def check(rig: Rig) -> None:
        await rig.graph.queue("a")
        await rig.graph.subscribe("r", "a", action={"set": {"subject": "new"}})
        await rig.send(message("old"))
        ((queues, changed),) = rig.said()
        assert message("old") not in changed
        rig.frontend.shard_connections.placements["a"] = (1, 2)
        await rig.refuse(1, MOVED)
        assert rig.said(1) == [(queues, changed)]

    run(check)


def test_a_queue_gets_each_content_though_another_queue_of_one_of_them_is_deleted() -> None:
    async def check(rig: Rig) -> None:
        await rig.graph.queue("a", "b")
        await rig.graph.subscribe("r", "a")
        await rig.graph.subscribe("r", "a", action={"set": {"subject": "new"}})
        gone = await rig.graph.subscribe("r", "b", action={"set": {"subject": "new"}})
        await rig.send(message("old"))
        sent = {tuple(queues): payloads for queues, payloads in rig.said()}
        assert sent.keys() == {("a",), ("a", "b")}
        await rig.graph.unsubscribe(gone)
        await rig.graph.drop("b")
        await rig.refuse(1 if list(sent) == [("a", "b"), ("a",)] else 2, AWAY)
        rig.answer(1, 2)
        assert rig.said() == [(["a"], sent["a", "b"])]
        rig.answer(3)
        assert rig.outcomes() == ["accepted"]

    run(check)


def test_nothing_overtakes_what_is_on_its_way_to_the_shard_that_a_queue_has_left() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "b")
        await rig.send(b"1")
        assert rig.said() == [(["a", "b"], [b"1"])]
        rig.frontend.shard_connections.placements["a"] = (1, 2)
        rig.frontend.shard_connections.moved += 1
        await rig.send(b"2")
        assert (rig.said(), rig.said(1)) == ([], [])
        rig.answer(1)
        await rig.settle()
        assert (rig.said(), rig.said(1)) == ([(["b"], [b"2"])], [(["a"], [b"2"])])

    run(check)


def test_a_move_that_does_not_concern_what_is_on_its_way_holds_nothing_up() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "far")
        await rig.send(b"1")
        rig.said()
        rig.frontend.shard_connections.moved += 1
        await rig.send(b"2")
        assert rig.said() == [(["a"], [b"2"])]

    run(check)


def test_the_lanes_of_a_link_have_numbers_of_their_own() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "far")
        await rig.send(b"1")
        numbers = [next(iter(shard.opened)) for shard in rig.frontend.shards]
        assert len({*numbers, rig.router.number}) == 3

    run(check)


def test_messages_of_a_shard_that_is_away_for_too_long_are_given_back() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a")
        await rig.send(b"1")
        rig.lane().disconnected()
        rig.frontend.shards[0].serving = False
        await rig.send(b"2")
        rig.lane().timed_out()
        states = {first: state for first, _, state in rig.link.settled}
        assert isinstance(states[0], Modified)
        assert states[0].delivery_failed
        assert states[1] is RELEASED
        assert rig.link.credit == 0
        rig.lane().reconnected()
        assert rig.link.credit > 0
        rig.frontend.shards[0].serving = True
        rig.said()
        rig.lane().reopen()
        assert Kind.ROUTE not in [said.kind for said in rig.frontend.shards[0].said]

    run(check)


def expiries(rig: Rig, shard: int = 0) -> dict[str, int]:
    """The expiry of the frames that left, by queue."""
    found = {}
    for said in rig.frontend.shards[shard].take():
        if said.kind == Kind.TARGETS:
            rig.meaning[shard][said.number] = Targets.decode(said.body).queues
        elif said.kind == Kind.ROUTE:
            for queue in rig.meaning[shard][said.epoch]:
                found[queue] = ENQUEUE_COLUMNS.unpack_from(said.part, HEADER_SIZE)[0]
    return found


def head(ttl_ms: int) -> bytes:
    return encode_header(Header(ttl=ttl_ms))


def test_messages_expire_at_the_age_of_a_router_unless_their_own_ttl_is_shorter() -> None:
    async def check(rig: Rig) -> None:
        now_ms = rig.graph.now_ms
        await fan_out(rig, "a", "far")
        await rig.graph.router("short", max_age=2)
        await rig.graph.queue("b")
        await rig.graph.subscribe("r", "short")
        await rig.graph.subscribe("short", "b")
        await rig.send(b"1")
        assert expiries(rig) == {"a": now_ms + 5_000, "b": now_ms + 2_000}
        assert expiries(rig, 1) == {"far": now_ms + 5_000}
        await rig.send(head(3_000) + b"2", head=head(3_000))
        assert expiries(rig) == {"a": now_ms + 3_000, "b": now_ms + 2_000}
        await rig.send(head(9_000) + b"3", head=head(9_000))
        assert expiries(rig) == {"a": now_ms + 5_000, "b": now_ms + 2_000}
        await rig.graph.service.change(ANYBODY, "r", Policy.parse({"role": "router"}))
        await rig.send(b"4")
        assert expiries(rig) == {"a": 0, "b": now_ms + 2_000}

    run(check, max_age=5)


def test_what_is_sent_again_after_a_move_keeps_its_age() -> None:
    async def check(rig: Rig) -> None:
        now_ms = rig.graph.now_ms
        await fan_out(rig, "a")
        await rig.send(b"1")
        assert expiries(rig) == {"a": now_ms + 5_000}
        rig.frontend.shard_connections.placements["a"] = (1, 2)
        rig.graph.now_ms += 1_000
        await rig.refuse(1, Refusal(conditions.MOVED))
        for _ in range(3):
            await rig.settle()
        assert expiries(rig, 1) == {"a": now_ms + 5_000}

    run(check, max_age=5)


def test_what_is_sent_again_keeps_the_time_to_live_that_a_rule_has_set() -> None:
    async def check(rig: Rig) -> None:
        now_ms = rig.graph.now_ms
        await rig.graph.queue("a", "end", "plain")
        forwards = Policy.parse({"role": "queue", "forward_to": "end"})
        await rig.graph.service.give(ANYBODY, "source", forwards)
        rules = {"it": {"filter": None, "action": {"rule": {"sql": "SET sys.TimeToLive = '00:00:03'"}}}}
        for queue in ("a", "source"):
            await rig.graph.subscribe("r", queue, rules=rules)
        await rig.graph.subscribe("r", "plain")
        await rig.send(head(9_000) + b"\x00\x53\x75\xa0\x00", head=head(9_000))
        assert expiries(rig) == {"plain": now_ms + 9_000, "a": now_ms + 3_000, "end": now_ms + 3_000}
        rig.frontend.shard_connections.placements["a"] = (1, 2)
        rig.graph.now_ms += 1_000
        for number in (1, 2):
            await rig.refuse(number, Refusal(conditions.MOVED))
        for _ in range(3):
            await rig.settle()
        assert expiries(rig, 1) == {"a": now_ms + 3_000}
        assert expiries(rig) == {"end": now_ms + 3_000, "plain": now_ms + 9_000}
        for number in (3, 4):
            await rig.refuse(number, FULL)
        assert expiries(rig) == {"source": now_ms + 3_000, "plain": now_ms + 9_000}

    run(check)
