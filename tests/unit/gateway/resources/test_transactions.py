"""Prepared transactions over HTTP: listed by shard, decided by hand only in place of a shard that is away."""

from typing import Any

import pytest

from lightrail.gateway.resources import transactions
from lightrail.namespace.rights import Caller, ForbiddenError
from lightrail.shard_client.peers.shards import ConnectionState
from tests.support.shard.move_scene import MoveScene, with_scene

ID = "0f" * 16


def row(id: str = ID, decides: int = 2, age_ms: int = 5_000) -> dict[str, Any]:
    return {
        "id": id,
        "decides": decides,
        "age_ms": age_ms,
        "queues": ["a"],
        "queue_count": 1,
        "messages": 2,
        "deliveries": 1,
    }


async def lose(scene: MoveScene, shard: int) -> None:
    """The shard neither answers nor is registered."""
    scene.peers[shard].state = ConnectionState.GREETING
    await scene.shard(shard, registered=False)


def test_who_may_not_manage_everything_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        for handler in (transactions.list_all, transactions.decide):
            with pytest.raises(ForbiddenError):
                await scene.ask(handler, "/", {}, ID, caller=Caller("bob"))

    with_scene(check)


def test_all_are_listed_with_the_shards_that_are_silent() -> None:
    async def check(scene: MoveScene) -> None:
        scene.peers[0].prepared = [row()]
        scene.peers[1].prepared = [row(), row("aa" * 16)]
        await lose(scene, 2)
        found = await scene.ask(transactions.list_all)
        assert [(each["shard"], each["id"]) for each in found["transactions"]] == [
            (0, ID),
            (1, ID),
            (1, "aa" * 16),
        ]
        assert (found["count"], found["silent"]) == (3, [2])

    with_scene(check)


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_it_is_decided_alike_at_all_shards_that_wait(decision: str) -> None:
    async def check(scene: MoveScene) -> None:
        for shard in (0, 1):
            scene.peers[shard].prepared = [row(), row("aa" * 16)]
        await lose(scene, 2)
        found = await scene.ask(transactions.decide, "/", {"decision": decision}, ID)
        assert found == {"id": ID, "decision": decision, "shards": [0, 1]}
        for shard in (0, 1):
            assert scene.peers[shard].concluded == [{"id": ID, "commit": decision == "commit"}]

    with_scene(check)


@pytest.mark.parametrize("registered", [True, False])
def test_a_shard_that_runs_decides_by_itself(registered: bool) -> None:
    async def check(scene: MoveScene) -> None:
        scene.peers[0].prepared = [row()]
        if registered:
            # It has perhaps only lost its connection to this gateway.
            scene.peers[2].state = ConnectionState.GREETING
        else:
            await scene.shard(2, registered=False)
        problem = await scene.refused(transactions.decide, "/", {"decision": "abort"}, ID)
        assert (problem.status, "shard 2 decides this transaction" in problem.detail) == (409, True)
        assert scene.peers[0].concluded == []

    with_scene(check)


@pytest.mark.parametrize(
    ("id", "body", "status", "words"),
    [
        ("xyz", {"decision": "abort"}, 404, "found none with id 'xyz'"),
        (ID, {"decision": "maybe"}, 422, "expected commit or abort"),
        (ID, {}, 422, "expected commit or abort"),
        (ID, {"outcome": "commit"}, 422, "'outcome' is no member"),
    ],
)
def test_what_makes_no_sense_is_refused(id: str, body: Any, status: int, words: str) -> None:
    async def check(scene: MoveScene) -> None:
        scene.peers[0].prepared = [row()]
        await lose(scene, 2)
        problem = await scene.refused(transactions.decide, "/", body, id)
        assert (problem.status, words in problem.detail) == (status, True), problem.detail

    with_scene(check)


def test_a_shard_without_room_is_named_and_the_request_can_be_repeated() -> None:
    async def check(scene: MoveScene) -> None:
        for shard in (0, 1):
            scene.peers[shard].prepared = [row()]
        await lose(scene, 2)
        scene.peers[1].is_full = True
        problem = await scene.refused(transactions.decide, "/", {"decision": "abort"}, ID)
        assert problem.status == 503
        assert "shard 1: " in problem.detail
        assert "the disk is full" in problem.detail
        scene.peers[1].is_full = False
        found = await scene.ask(transactions.decide, "/", {"decision": "abort"}, ID)
        assert found["shards"] == [1]

    with_scene(check)
