"""Shards over HTTP: draining, reviving, giving up a disk, removing; and when each is refused."""

from typing import Any

import pytest

from lightrail.cluster.coordinator import WRITES_MAX
from lightrail.cluster.map import MOVES, PLACEMENT, SHARDS
from lightrail.cluster.replica_sets import first
from lightrail.gateway.resources import shards
from lightrail.model.policy import Policy
from lightrail.namespace.records import NAMES, Name
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.shard_client.peers.shards import ConnectionState
from tests.support.shard.move_scene import MoveScene, with_scene


def test_who_may_not_manage_everything_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        for handler in (shards.list_all, shards.show, shards.change, shards.remove):
            with pytest.raises(ForbiddenError):
                await scene.ask(handler, "/", None, "0", caller=Caller("bob"))

    with_scene(check)


def test_shards_are_shown_alive_or_not_with_what_they_have() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "b", "a")
        await scene.move("a", 0, 1)
        await scene.put(f"{SHARDS}2", None)
        del scene.peers[2]
        rows = (await scene.ask(shards.list_all))["shards"]
        assert [(each["id"], each["queues"], each["serving"], each["registered"]) for each in rows] == [
            (0, 2, True, True),
            (1, 0, True, True),
            (2, 0, False, False),
        ]
        assert [(each["moving_in"], each["moving_out"]) for each in rows] == [(0, 1), (1, 0), (0, 0)]
        assert (await scene.ask(shards.show, "/", None, "0"))["queue_names"] == ["a", "b"]

    with_scene(check)


@pytest.mark.parametrize(
    ("id", "body", "status", "words"),
    [
        ("7", {"state": "draining"}, 404, "there is no shard 7; there are 0, 1"),
        ("x", {"state": "draining"}, 400, "expected a whole number"),
        ("0", {"state": "gone"}, 422, "expected active or draining"),
        ("0", {}, 422, "expected active or draining"),
        ("0", {"disk": "mine"}, 422, "shards write their disks down"),
        ("0", {"disk": "", "state": "active"}, 422, "alone"),
        ("0", {"disk": ""}, 409, "shard 0 still runs, at tcp://0: stop it first"),
        ("0", {"weight": 1}, 422, "'weight' is no member"),
    ],
)
def test_changes_that_make_no_sense_are_refused(id: str, body: Any, status: int, words: str) -> None:
    async def check(scene: MoveScene) -> None:
        problem = await scene.refused(shards.change, "/", body, id)
        assert (problem.status, words in problem.detail) == (status, True), problem.detail

    with_scene(check, 2)


def test_a_shard_drains_unless_it_is_the_last_and_is_revived() -> None:
    async def check(scene: MoveScene) -> None:
        drain = {"state": "draining"}
        assert (await scene.ask(shards.change, "/", drain, "0"))["state"] == "draining"
        assert (await scene.ask(shards.change, "/", drain, "0"))["state"] == "draining"
        problem = await scene.refused(shards.change, "/", drain, "1")
        assert "the only one that accepts queues" in problem.detail
        assert (await scene.ask(shards.change, "/", {"state": "active"}, "0"))["state"] == "active"
        assert (await scene.ask(shards.change, "/", drain, "1"))["state"] == "draining"

    with_scene(check, 2)


def test_a_shard_with_queues_moves_to_it_or_a_process_is_not_removed() -> None:
    async def check(scene: MoveScene) -> None:
        assert "still runs" in (await scene.refused(shards.remove, "/", None, "1")).detail
        await scene.put(f"{SHARDS}1", None)
        said = (await scene.refused(shards.remove, "/", None, "1")).detail
        assert "not registered and answers all the same, at tcp://there:1" in said
        scene.peers[1].state = ConnectionState.GREETING
        await scene.place(1, "q")
        problem = await scene.refused(shards.remove, "/", None, "1")
        assert (problem.status, "1 queues, such as q" in problem.detail) == (409, True)
        await scene.put(PLACEMENT + "q", None)
        await scene.place(0, "r")
        await scene.move("r", 0, 1)
        assert "rebalance --cancel" in (await scene.refused(shards.remove, "/", None, "1")).detail
        await scene.put(MOVES + "r", None)
        assert await scene.ask(shards.remove, "/", None, "1") is None
        assert (await scene.refused(shards.remove, "/", None, "1")).status == 404

    with_scene(check, 2)


def test_a_lost_shard_is_given_up_with_its_queues_and_moves_to_it() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "stays", "frozen")
        await scene.place(1, "lost", "leaving")
        await scene.move("leaving", 1, 0)
        await scene.move("stays", 0, 1)
        await scene.move("frozen", 0, 1, "frozen")
        lose = "/?lose_queues=true"
        assert "still runs" in (await scene.refused(shards.remove, lose, None, "1")).detail
        scene.map.refresh()
        assert len(scene.map.moves) == 3
        await scene.put(f"{SHARDS}1", None)
        assert "answers all the same" in (await scene.refused(shards.remove, lose, None, "1")).detail
        scene.peers[1].state = ConnectionState.GREETING
        before = {queue: each.epoch for queue, each in scene.map.placements().items()}
        await scene.ask(shards.remove, lose, None, "1")
        assert scene.map.moves == {}
        after = scene.map.placements()
        assert {queue: each.shard for queue, each in after.items()} == dict.fromkeys(before, 0)
        # What was given up is in a later epoch, which says so; what was to be frozen may have been.
        raised = {queue: each.epoch - before[queue] for queue, each in after.items()}
        assert raised == {"stays": 0, "frozen": 2, "lost": 1, "leaving": 1}
        assert {queue: each.lost for queue, each in after.items() if each.lost} == {
            queue: before[queue] + 1 for queue in ("lost", "leaving")
        }
        assert list(scene.map.shard_records) == [0]

    with_scene(check, 2)


def test_a_disk_that_is_forgotten_takes_every_queue_to_a_later_epoch() -> None:
    async def check(scene: MoveScene) -> None:
        queues = [f"q{number}" for number in range(WRITES_MAX + 5)]
        await scene.place(1, *queues)
        await scene.place(0, "coming")
        await scene.move("coming", 0, 1, "frozen")
        await scene.put(f"{SHARDS}1", None)
        forget = {"disk": ""}
        assert "answers all the same" in (await scene.refused(shards.change, "/", forget, "1")).detail
        scene.peers[1].state = ConnectionState.GREETING
        before = dict(scene.map.placements())
        for times in (1, 2):
            await scene.ask(shards.change, "/", forget, "1")
            # A commit that the shard has sent with the copy on its former disk can't succeed any more.
            assert scene.map.moves == {}
            coming = scene.map.placements()["coming"]
            assert (coming.shard, coming.epoch) == (0, before["coming"].epoch + 2)
            for queue in queues:
                each = scene.map.placements()[queue]
                epoch = before[queue].epoch + times
                assert (each.shard, each.epoch, each.lost) == (1, epoch, epoch)
        assert scene.map.shard_records[1].disk == ""

    with_scene(check, 2)


def test_the_queues_of_the_only_shard_can_not_be_given_up() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "q")
        await scene.put(f"{SHARDS}0", None)
        scene.peers[0].state = ConnectionState.GREETING
        problem = await scene.refused(shards.remove, "/?lose_queues=true", None, "0")
        assert (problem.status, "no other shard can have the 1 queues" in problem.detail) == (409, True)

    with_scene(check, 1)


def test_queues_that_demand_replicas_are_named_and_given_to_no_shard_without_them() -> None:
    async def check(scene: MoveScene) -> None:
        await scene.place(0, "q", "plain")
        policy = Policy.parse({"role": "queue", "replicas": 2})
        await scene.put(NAMES + "q", Name("q", policy, 0, 0, 0, 0).to_value())
        assert (await scene.ask(shards.show, "/", None, "0"))["queue_replicas"] == {"q": 2}
        await scene.put(f"{SHARDS}0", None)
        scene.peers[0].state = ConnectionState.GREETING
        lose = "/?lose_queues=true"
        problem = await scene.refused(shards.remove, lose, None, "0")
        assert (problem.status, problem.detail) == (
            409,
            "the policy of q demands 2 replicas, and no other shard is to have so many members: lower it, or "
            "give another shard more with `lightrail-admin shard replicas N --replicas 2`",
        )
        found = first(2, "d", "h", replicas=2, min_in_sync=1)
        await scene.put(found.key, found.encode())
        await scene.ask(shards.remove, lose, None, "0")
        placed = {queue: each.shard for queue, each in scene.map.placements().items()}
        assert placed["q"] == 2
        assert placed["plain"] in (1, 2)

    with_scene(check)
