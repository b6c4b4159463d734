"""RouterLink: batches taken apart, one answer for all parts, and what waits."""

from typing import Any

import pytest
from proton import Message

from lightrail.amqp.events import ACCEPTED, Transfers
from lightrail.frontend.links.incoming import REFUSED_PAUSE_MS
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.namespace import spreading
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import DURABLE, Kind
from tests.support.amqp.router_links import FULL, Rig, expiries, fan_out, head, message, run, source


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


def test_the_lanes_of_a_link_have_numbers_of_their_own() -> None:
    async def check(rig: Rig) -> None:
        await fan_out(rig, "a", "far")
        await rig.send(b"1")
        numbers = [next(iter(shard.opened)) for shard in rig.frontend.shards]
        assert len({*numbers, rig.router.number}) == 3

    run(check)


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
