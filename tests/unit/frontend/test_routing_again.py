"""Messages that a router's link sends anew: to where their queues are then, once, in order and age."""

from types import SimpleNamespace

import pytest

from lightrail.amqp.events import RELEASED
from lightrail.amqp.performatives import Modified
from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.namespace.rights import ANYBODY
from lightrail.wire.bodies import Refusal
from lightrail.wire.frames import Kind
from tests.support.amqp.router_links import FULL, Rig, expiries, fan_out, head, message, run, source

AWAY = Refusal(conditions.NOT_FOUND, "no such queue")


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


@pytest.mark.parametrize("sql", ["SET sys.TimeToLive = '00:00:05'", "SET x = 1 / zero"])
def test_the_life_of_a_copy_is_the_same_where_it_is_sent_again_after_its_rule_was_removed(sql: str) -> None:
    async def check(rig: Rig) -> None:
        await rig.graph.queue("a")
        rules = {"it": {"filter": None, "action": {"rule": {"sql": sql}}}}
        former = await rig.graph.subscribe("r", "a", rules=rules)
        await rig.send(message("x", properties={"zero": 0}), head=head(60_000))
        ((queue, first),) = expiries(rig).items()
        assert first in (0, rig.graph.now_ms + 5_000)
        await rig.graph.unsubscribe(former)
        await fan_out(rig, "b")
        await rig.send(message("y"))
        expiries(rig)
        rig.frontend.shard_connections.placements[queue] = (1, 2)
        rig.lane().refused(1, MOVED)
        await rig.refuse(2, MOVED)
        assert expiries(rig, 1)[queue] == first

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
