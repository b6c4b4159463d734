"""Plans and moves over HTTP: what a plan is made of, which plans are refused, and why."""

import asyncio
from functools import partial
from typing import Any

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.map import MOVES, PLACEMENT, SHARDS, Placed
from lightrail.cluster.replica_sets import first
from lightrail.gateway.processes import loads
from lightrail.gateway.resources import moves, verification
from lightrail.model.policy import Policy
from lightrail.namespace.records import NAMES, Name
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.shard_client.peers.shards import ConnectionState
from tests.support.shard.move_scene import MoveScene, with_scene

MANY = tuple(f"q{i:02}" for i in range(20))


async def proposed(scene: MoveScene, query: str = "sample=0") -> Any:
    return await scene.ask(moves.propose, f"/!plan?{query}")


def test_who_may_not_manage_everything_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        for handler in (moves.propose, moves.begin, moves.list_all, moves.cancel, verification.verify):
            with pytest.raises(ForbiddenError):
                await scene.ask(handler, caller=Caller("bob"))

    with_scene(check)


def test_a_plan_evens_out_queues_and_says_what_it_was_made_for() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, *MANY)
        plan = await proposed(scene)
        assert [row["queues_after"] for row in plan["shards"]] == [7, 7, 6]
        assert len(plan["moves"]) == 13
        assert {move["from"] for move in plan["moves"]} == {0}
        assert plan["cluster"] == await scene.coordinator.cluster_id()
        assert plan["placement_revision"] == max(each.revision for each in scene.map.placements().values())
        assert plan["silent"] == []
        assert len((await proposed(scene, "sample=0&max_moves=4"))["moves"]) == 4
        assert not scene.map.moves

    with_scene(check)


def test_a_busy_queue_weighs_as_its_messages_in_the_time_that_really_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two looks may be further apart than was asked for.
    monkeypatch.setattr(loads, "measure", partial(loads.measure, clock=iter((7.0, 7.02)).__next__))

    async def check(scene: MoveScene) -> None:
        await scene.place(0, "busy", "idle")
        await scene.place(1, *MANY[:9])
        scene.peers[0].has("busy", rate=80)
        plan = await proposed(scene, "sample=0.01")
        before = {row["id"]: row["load_before"] for row in plan["shards"]}
        assert before == {0: 4002.0, 1: 9.0}
        assert [move["queue"] for move in plan["moves"]] == ["idle"]

    with_scene(check, 2)


def test_queues_under_way_count_where_they_go_and_are_not_moved_once_more() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, *MANY)
        plan = await proposed(scene)
        for move in plan["moves"]:
            await scene.move(move["queue"], 0, move["to"])
        again = await proposed(scene)
        assert again["moves"] == []
        assert [row["queues_before"] for row in again["shards"]] == [7, 7, 6]

    with_scene(check)


@pytest.mark.parametrize("how", ["unregistered", "dead", "removed"])
def test_nothing_moves_from_or_to_a_shard_that_is_not_there(how: str) -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, *MANY[:10])
        await scene.place(2, *MANY[10:])
        peer = scene.peers[2]
        if how == "dead":
            peer.state = ConnectionState.GREETING
        else:
            await scene.put(f"{SHARDS}2", None)
            del scene.peers[2]
        if how == "removed":
            await scene.put("shardsets/2", None)
        plan = await proposed(scene)
        assert {(move["from"], move["to"]) for move in plan["moves"]} == {(0, 1)}
        assert [row["id"] for row in plan["shards"]] == [0, 1]
        assert plan["silent"] == [2]

    with_scene(check)


def test_a_shard_that_drains_loses_everything_and_gets_nothing() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, *MANY[:10])
        await scene.place(1, *MANY[10:], "connection-point", there=False)
        await scene.shard(1, state="draining")
        plan = await proposed(scene)
        assert {move["queue"] for move in plan["moves"] if move["from"] == 1} == {
            *MANY[10:],
            "connection-point",
        }
        assert 1 not in {move["to"] for move in plan["moves"]}
        scene.peers[1].state = ConnectionState.GREETING
        plan = await proposed(scene)
        assert {move["from"] for move in plan["moves"]} == {0}
        assert plan["silent"] == [1]

    with_scene(check)


def test_a_placement_without_a_name_is_not_moved() -> None:
    async def check(scene: MoveScene) -> None:
        for queue in MANY:
            await scene.put(PLACEMENT + queue, Placed.encode(0, 1))
        assert (await proposed(scene))["moves"] == []

    with_scene(check)


def test_with_no_shard_that_takes_queues_there_is_no_plan() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "q")
        await scene.shard(0, state="draining")
        problem = await scene.refused(moves.propose, "/!plan?sample=0")
        assert (problem.status, "no shard is active" in problem.detail) == (409, True)

    with_scene(check, 1)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/", [], 422, "expected a JSON object"),
        ("/", {}, 422, "moves is expected to be a list"),
        ("/", {"moves": [], "format": 2}, 422, "format is '2'; expected 1"),
        ("/", {"moves": [], "kind": "x"}, 422, "kind is 'x'"),
        ("/", {"moves": [], "cluster": "other"}, 422, "cluster is 'other'"),
        ("/", {"moves": [], "more": 1}, 422, "'more' is no member of this object"),
        ("/", {"moves": [], "placement_revision": "x"}, 422, "expected a whole number or null"),
        ("/", {"moves": [], "placement_revision": 1}, 409, "make a new plan"),
        ("/", {"moves": [7]}, 422, "moves[0] is '7'; expected an object"),
        ("/", {"moves": [{"queue": "none", "to": 1}]}, 422, "expected a queue that is placed"),
        ("/", {"moves": [{"queue": ["q"], "to": 1}]}, 422, "expected a queue that is placed"),
        ("/", {"moves": [{"queue": "q/$dlq", "to": 1}]}, 422, "expected a queue that is placed"),
        ("/", {"moves": [{"queue": "q", "to": 7}]}, 422, "expected one of the shards 0, 1"),
        ("/", {"moves": [{"queue": "q", "to": 2}]}, 422, "expected one of the shards 0, 1"),
        ("/", {"moves": [{"queue": "q", "to": True}]}, 422, "expected one of the shards"),
        ("/", {"moves": [{"queue": "q", "from": 1, "to": 1}]}, 409, "q is on shard 0, not on '1'"),
        ("/", {"moves": [{"queue": "q", "to": 1}, {"queue": "q", "to": 0}]}, 422, "expected it once"),
        ("/?throttle=-1", {"moves": []}, 400, "throttle is '-1'"),
        ("/?skip=perhaps", {"moves": []}, 400, "expected true or false"),
    ],
)
def test_a_plan_that_does_not_hold_is_refused_as_a_whole(
    path: str, body: Any, status: int, words: str
) -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "q")
        scene.peers[2].state = ConnectionState.GREETING
        problem = await scene.refused(moves.begin, path, body)
        assert (problem.status, problem.detail if words not in problem.detail else words) == (status, words)
        scene.map.refresh()
        assert not scene.map.moves

    with_scene(check)


def test_a_plan_begins_in_its_order_with_its_throttle_and_not_twice() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "a", "b", "c")
        wanted = {"moves": [{"queue": each, "from": 0, "to": 1} for each in ("c", "a")]}
        assert (await scene.ask(moves.begin, "/?throttle=5000", wanted))["begun"] == wanted["moves"]
        scene.map.refresh()
        begun = scene.map.moves
        assert {queue: (each.order, each.throttle) for queue, each in begun.items()} == {
            "c": (0, 5000),
            "a": (1, 5000),
        }
        again = await scene.ask(
            moves.begin, "/", {"moves": [{"queue": "a", "to": 2}, {"queue": "b", "to": 0}]}
        )
        assert again == {"begun": [], "left_out": ["a", "b"]}

    with_scene(check)


def test_a_plan_is_refused_when_the_placement_moved_on_and_skip_does_what_is_left() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, *MANY)
        plan = await proposed(scene)
        gone, elsewhere = plan["moves"][0]["queue"], plan["moves"][1]["queue"]
        await scene.put(PLACEMENT + gone, None)
        await scene.put(PLACEMENT + elsewhere, Placed.encode(2, 2))
        problem = await scene.refused(moves.begin, "/", plan)
        assert (problem.status, problem.members["found"]) == (409, plan["placement_revision"])
        answer = await scene.ask(moves.begin, "/?skip=true", plan)
        assert sorted(answer["left_out"]) == sorted([gone, elsewhere])
        assert len(answer["begun"]) == 11

    with_scene(check)


def test_moves_are_shown_with_what_their_shard_says_of_them_and_without_it() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "a", "b")
        await scene.move("a", 0, 1)
        await scene.move("b", 0, 2, "frozen")
        scene.peers[1].moves = [
            {"queue": "a", "source": 0, "to": 1, "phase": "copy", "bytes": 7, "ended_ms": None},
            {"queue": "z", "source": 0, "to": 1, "phase": "switch", "ended_ms": 5, "result": "done"},
            {"queue": "y", "source": 0, "to": 1, "phase": "switch", "ended_ms": 4, "result": "done"},
        ]
        scene.peers[2].state = ConnectionState.GREETING
        found = await scene.ask(moves.list_all)
        shown = {
            each["queue"]: (each["from"], each["to"], each["phase"], each["bytes"]) for each in found["moves"]
        }
        assert shown == {"a": (0, 1, "copy", 7), "b": (0, 2, "freeze", 0)}
        assert [each["queue"] for each in found["ended"]] == ["y", "z"]

    with_scene(check)


def test_cancelling_takes_one_or_all_that_are_not_frozen() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "a", "b", "c")
        await scene.move("a", 0, 1)
        await scene.move("b", 0, 1, "frozen")
        await scene.move("c", 0, 1)
        assert (await scene.refused(moves.cancel, "/?queue=none")).status == 404
        assert await scene.ask(moves.cancel, "/?queue=c") == {"cancelled": ["c"], "too_late": []}
        assert await scene.ask(moves.cancel) == {"cancelled": ["a"], "too_late": ["b"]}
        assert await scene.ask(moves.cancel) == {"cancelled": [], "too_late": ["b"]}

    with_scene(check)


def test_verify_says_what_does_not_fit_and_nothing_where_all_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "AGAIN_S", 0.0)

    async def check(scene: MoveScene) -> None:
        await scene.place(0, "a")
        await scene.place(1, "b")
        scene.peers[1].has("b/$dlq")
        assert await scene.ask(verification.verify) == {"queues": 2, "served": 3, "problems": []}
        scene.peers[2].has("a", "stray")
        await scene.put(PLACEMENT + "lost", Placed.encode(9, 1))
        await scene.put(PLACEMENT + "nameless", Placed.encode(0, 1))
        await scene.move("b", 1, 0)
        found = (await scene.ask(verification.verify))["problems"]
        assert found == [
            "a is placed on shard 0 and served by 0 and 2",
            "stray is served by shard 2 and placed nowhere",
            "lost is placed on shard 9, which is no part of this cluster",
            "nameless is placed on shard 0 and has no role: with "
            "`lightrail-admin names set nameless role=queue` it is a queue again, and can be inspected and "
            "deleted",
            "the move of b from shard 1 to 0 has not ended",
        ]
        scene.peers[1].state = ConnectionState.GREETING
        assert "shard 1 does not answer: its queues could not be checked; 1 queues" in " ".join(
            (await scene.ask(verification.verify))["problems"]
        )

    with_scene(check)


def test_a_queue_that_moves_between_two_answers_is_no_problem() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "a")
        scene.peers[1].has("a")
        looking = asyncio.create_task(scene.ask(verification.verify))
        await asyncio.sleep(0)
        await scene.coordinator.write([Write(PLACEMENT + "a", Placed.encode(1, 2))])
        del scene.peers[0].queues["a"]
        assert (await looking)["problems"] == []

    with_scene(check)


# --- queues that demand replicas -----------------------------------------------------------------------


async def demanding(scene: MoveScene, shard: int, *queues: str, replicas: int = 3) -> None:
    """Shard 1 is to have 3 members; these queues demand replicas."""
    found = first(1, "d", "h", replicas=3, min_in_sync=1)
    await scene.put(found.key, found.encode())
    await scene.place(shard, *queues)
    for queue in queues:
        policy = Policy.parse({"role": "queue", "replicas": replicas})
        await scene.put(NAMES + queue, Name(queue, policy, 0, 0, 0, 0).to_value())


def test_a_plan_moves_queues_to_shards_with_the_members_that_they_demand_and_never_from_them() -> None:
    async def check(scene: MoveScene) -> None:
        await demanding(scene, 1, *(f"r{number}" for number in range(10)))
        assert (await proposed(scene))["moves"] == []
        await demanding(scene, 0, "elsewhere")
        (move,) = (await proposed(scene))["moves"]
        assert (move["queue"], move["from"], move["to"]) == ("elsewhere", 0, 1)

    with_scene(check)


def test_a_move_to_a_shard_with_fewer_members_than_demanded_is_refused_or_left_out() -> None:
    async def check(scene: MoveScene) -> None:
        await demanding(scene, 1, "q")
        wanted = {"moves": [{"queue": "q", "to": 0}]}
        problem = await scene.refused(moves.begin, "/", wanted)
        assert (problem.status, problem.detail) == (
            422,
            "moves[0].to is 0, which is to have 1 member; expected a shard with at least 3, which the policy "
            "of q demands",
        )
        assert await scene.ask(moves.begin, "/?skip=true", wanted) == {"begun": [], "left_out": ["q"]}
        assert not scene.map.moves

    with_scene(check)


def test_verify_names_queues_that_lack_replicas_or_can_not_leave_a_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification, "AGAIN_S", 0.0)

    async def check(scene: MoveScene) -> None:
        await demanding(scene, 1, "there")
        await demanding(scene, 0, "q")
        await demanding(scene, 0, "none", replicas=4)
        assert (await scene.ask(verification.verify))["problems"] == [
            "none is on shard 0, which is to have 1 member, and its policy demands 4 replicas: of the shards "
            "that take queues none is to have more; `lightrail-admin shard replicas N --replicas 4` gives "
            "one more members",
            "q is on shard 0, which is to have 1 member, and its policy demands 3 replicas: `lightrail-admin "
            "rebalance` moves it",
        ]
        await scene.move("q", 0, 1)
        await scene.put(NAMES + "none", None)
        await scene.put(PLACEMENT + "none", None)
        del scene.peers[0].queues["none"]
        assert (await scene.ask(verification.verify))["problems"] == [
            "the move of q from shard 0 to 1 has not ended"
        ]
        await scene.put(MOVES + "q", None)
        await scene.shard(1, state="draining")
        q, there = (await scene.ask(verification.verify))["problems"]
        assert q.startswith("q is on shard 0, which is to have 1 member")
        assert there.startswith(
            "there can't leave shard 1, which drains: its policy demands 3 replicas, and of the shards that "
            "take queues none is to have more"
        )

    with_scene(check)
