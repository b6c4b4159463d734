"""Replicas over HTTP: shown, changed in numbers, members removed; and what would lose messages is refused."""

from dataclasses import replace
from typing import Any

import pytest

from lightrail.cluster.map import SHARD_SETS, SHARDS, Member
from lightrail.cluster.replica_sets import ReplicaSet, SetMember, follower_key, key_of
from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources import replicas, shards
from lightrail.model.endpoint import Endpoint
from lightrail.model.settings import Settings
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.shard_client.peers.shards import ConnectionState
from tests.support.shard.move_scene import MoveScene, with_scene

SET = ReplicaSet(
    0,
    5,
    "a",
    frozenset({"a", "b"}),
    {"a": SetMember("h1"), "b": SetMember("h2"), "c": SetMember("h3")},
    3,
    2,
)


async def with_replicas(scene: MoveScene, found: ReplicaSet = SET, *running: str) -> None:
    scene.services.settings = Settings(etcd=(Endpoint("e", 2379),))
    await scene.put(key_of(0), found.encode())
    for member in running:
        await scene.put(follower_key(0, member), Member(0, 1, host="h").encode())


def test_who_may_not_manage_everything_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        for handler in (replicas.show, replicas.change, replicas.remove_member):
            with pytest.raises(ForbiddenError):
                await scene.ask(handler, "/", None, "0", "replicas", "a", caller=Caller("bob"))

    with_scene(check, 1)


def test_members_are_shown_with_their_hosts_in_sync_or_not_and_running_or_not() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "a", "c")
        found = (await scene.ask(replicas.show, "/", None, "0"))["replicas"]
        assert (found["epoch"], found["replicas"], found["min_in_sync"], found["in_sync"]) == (5, 3, 2, 2)
        assert [tuple(each.values()) for each in found["members"]] == [
            ("a", "h1", True, True, True),
            ("b", "h2", False, True, False),
            ("c", "h3", False, False, True),
        ]
        rows = (await scene.ask(shards.list_all))["shards"]
        assert [each["replicas"] for each in rows] == [found, None]

    with_scene(check, 2)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"replicas": 2}, 409, "expected at most 2 members of shard 0, found 3"),
        ({"replicas": 0}, 422, "expected a whole number from 1 to 7"),
        ({"replicas": True}, 422, "expected a whole number from 1 to 7"),
        ({"replicas": 8}, 422, "expected a whole number from 1 to 7"),
        ({"min_in_sync": 4}, 422, "min_in_sync 4 and replicas 3"),
        ({"min_in_sync": 3}, 409, "expected at least 3 members of shard 0 in sync, found 2"),
        ({"members": 3}, 422, "'members' is no member"),
    ],
)
def test_numbers_that_would_stop_a_shard_or_make_no_sense_are_refused(
    body: Any, status: int, words: str
) -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        problem = await scene.refused(replicas.change, "/", body, "0")
        assert (problem.status, words in problem.detail) == (status, True), problem.detail

    with_scene(check, 1)


def test_a_change_of_numbers_changes_neither_owner_nor_set() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        await scene.ask(replicas.change, "/", {"replicas": 5, "min_in_sync": 1}, "0")
        assert scene.map.replica_sets[0] == replace(SET, replicas=5, min_in_sync=1)

    with_scene(check, 1)


def test_a_shard_without_replicas_gets_its_entry_with_its_disk_as_the_only_member() -> None:
    async def check(scene: MoveScene) -> None:
        scene.services.settings = Settings()
        problem = await scene.refused(replicas.change, "/", {"replicas": 3}, "0")
        assert "found no etcd and the store journal" in problem.detail
        scene.services.settings = Settings(etcd=(Endpoint("e", 2379),))
        problem = await scene.refused(replicas.change, "/", {"replicas": 3, "min_in_sync": 2}, "0")
        assert "found 1: nothing more would be accepted" in problem.detail
        found = (await scene.ask(replicas.change, "/", {"replicas": 3}, "0"))["replicas"]
        assert (found["owner"], found["replicas"], found["min_in_sync"], found["in_sync"]) == ("d", 3, 1, 1)
        assert (await scene.refused(replicas.change, "/", {"replicas": 3}, "9")).status == 404

    with_scene(check, 1)


def test_a_member_leaves_that_is_out_of_sync_and_stopped() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "a", "c")
        for member, status, words in (
            ("x", 404, "has no member"),
            ("b", 409, "in sync: stop its process"),
            ("c", 409, "running on h, which would join again: stop it first"),
        ):
            problem = await scene.refused(replicas.remove_member, "/", None, "0", "replicas", member)
            assert (problem.status, words in problem.detail) == (status, True), problem.detail
        await scene.put(follower_key(0, "c"), None)
        await scene.ask(replicas.remove_member, "/", None, "0", "replicas", "c")
        assert sorted(scene.map.replica_sets[0].members) == ["a", "b"]

    with_scene(check, 1)


def test_messages_are_not_given_up_while_another_member_has_them() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "c")
        await scene.place(0, "q")
        await scene.put(f"{SHARDS}0", None)
        scene.peers[0].state = ConnectionState.GREETING
        forget = {"disk": ""}
        assert (
            "member c of shard 0 still runs" in (await scene.refused(shards.change, "/", forget, "0")).detail
        )
        await scene.put(follower_key(0, "c"), None)
        problem = await scene.refused(shards.change, "/", forget, "0")
        assert "2 members of shard 0 have all of its messages: a on h1, b on h2" in problem.detail
        await with_replicas(scene, SET.sized(3, 1).removed(["b"]))
        await scene.ask(shards.change, "/", forget, "0")
        assert 0 not in scene.map.replica_sets
        assert scene.map.shard_records[0].disk == ""
        assert await scene.coordinator.entry(f"{SHARD_SETS}0") is not None

    with_scene(check, 2)


def test_a_drained_shard_is_removed_with_its_members_once_they_have_ended() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene, SET, "c")
        await scene.put(f"{SHARDS}0", None)
        scene.peers[0].state = ConnectionState.GREETING
        problem = await scene.refused(shards.remove, "/", None, "0")
        assert "member c of shard 0 still runs" in problem.detail
        await scene.put(follower_key(0, "c"), None)
        assert await scene.ask(shards.remove, "/", None, "0") is None
        assert 0 not in scene.map.replica_sets
        assert 0 not in scene.map.shard_records

    with_scene(check, 2)


def test_a_number_that_no_shard_can_have_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        await with_replicas(scene)
        for number in (str(replicas.SHARD_MAX + 1), "-1", "x"):
            with pytest.raises(ProblemError) as refused:
                await scene.ask(replicas.show, "/", None, number)
            assert refused.value.status == 400

    with_scene(check, 1)
