"""Placement: what a gateway says of shards becomes a plan, in which only queues of known load move."""

import json
from typing import Any

import pytest

from lightrail.spark.http import Response
from lightrail.spark.placement import Load, Placements, UnsettledError, ask, document, propose


class Gateway:
    """Answers as the gateway does; `revisions` are those of one look after another."""

    def __init__(self, *revisions: int) -> None:
        self._revisions = list(revisions)

    def get(self, path: str, query: Any = None) -> Any:
        return Response(200, {}, json.dumps(self._said(path)).encode())

    def _said(self, path: str) -> dict[str, Any]:
        shards = [
            {"id": 0, "state": "active", "serving": True, "replicas": {"replicas": 3}},
            {"id": 1, "state": "draining", "serving": True},
            {"id": 2, "state": "active", "serving": False},
        ]
        if path == "/!plan":
            return {"cluster": "c1", "placement_revision": self._revisions.pop(0)}
        if path == "/!shards":
            return {"shards": shards}
        if path == "/!moves":
            return {"moves": [{"queue": "b", "from": 1, "to": 0}]}
        demands = {"queue_replicas": {"a": 3}} if path == "/!shards/0" else {}
        return demands | {
            "queue_names": {"/!shards/0": ["a"], "/!shards/1": ["b"], "/!shards/2": ["c"]}[path]
        }


def test_shards_are_what_they_say_of_themselves() -> None:
    found = ask(Gateway(7, 7))  # type: ignore[arg-type]
    assert (found.cluster, found.revision) == ("c1", 7)
    assert (found.active, found.draining, found.silent) == ({0}, {1}, {2})
    assert found.queues == {"a": 0, "b": 1, "c": 2}
    assert found.moving == {"b": 0}
    assert (found.members, found.replicas) == ({0: 3, 1: 1, 2: 1}, {"a": 3})


def test_a_look_during_which_queues_were_placed_is_taken_again_a_few_times() -> None:
    assert ask(Gateway(7, 8, 8, 8)).revision == 8  # type: ignore[arg-type]
    with pytest.raises(UnsettledError, match="try again"):
        ask(Gateway(*range(10)))  # type: ignore[arg-type]


def placement(**queues: int) -> Placements:
    return Placements("c1", 5, active={0, 1}, queues=queues)


def test_hot_queues_part_and_those_that_are_not_known_stay() -> None:
    there = placement(a=0, b=0, c=0, d=1)
    hot, cold = Load(1_000.0, 9.0), Load(1.0, 9.0)
    made = propose(there, {"a": hot, "b": hot, "d": cold, "gone": hot})
    assert [(move.source, move.to) for move in made.plan.moves if move.queue in ("a", "b")] == [(0, 1)]
    assert "c" not in {move.queue for move in made.plan.moves}
    assert made.unknown == 1


def test_bytes_may_weigh_in_place_of_messages() -> None:
    there = placement(many=0, more=0, large=1, larger=1)
    small, large = Load(1_000.0, 0.0), Load(0.0, 9e9)
    loads = {"many": small, "more": small, "large": large, "larger": large}
    assert [move.source for move in propose(there, loads).plan.moves if move.load > 100] == [0]
    by_bytes = propose(there, loads, weigh="bytes").plan.moves
    assert [move.source for move in by_bytes if move.load > 100] == [1]


def test_a_draining_shard_is_emptied_and_what_is_on_its_way_counts_where_it_goes() -> None:
    there = Placements("c1", 5, active={0, 1}, draining={2}, queues={"a": 2, "b": 2, "c": 0})
    there.moving = {"b": 0}
    made = propose(there, {"b": Load(50.0, 0.0)})
    assert [(move.queue, move.source, move.to) for move in made.plan.moves] == [("a", 2, 1)]


def test_without_a_shard_that_takes_queues_there_is_no_plan() -> None:
    there = Placements("c1", 5, draining={2}, queues={"a": 2})
    with pytest.raises(ValueError, match="no shard is active"):
        propose(there, {"a": Load(50.0, 0.0)})


def test_the_document_is_a_plan_of_format_1() -> None:
    there = placement(a=0, b=0)
    made = document(there, propose(there, {"a": Load(9.0, 0), "b": Load(9.0, 0)}).plan, 1_790_000_000_000)
    assert (made["format"], made["kind"], made["cluster"]) == (1, "lightrail-plan", "c1")
    assert (made["placement_revision"], made["made_at_ms"], made["silent"]) == (5, 1_790_000_000_000, [])
    assert made["moves"] == [{"queue": "b", "from": 0, "to": 1, "load": 10.0, "bytes": 0}]
    assert [shard["load_after"] for shard in made["shards"]] == [10.0, 10.0]


def test_queues_go_only_where_the_members_are_that_their_policies_demand() -> None:
    there = Placements("c1", 5, active={0, 1, 2}, queues={"a": 0, "b": 0, "c": 1})
    there.members, there.replicas = {0: 3, 2: 2}, {"a": 3, "b": 2, "c": 2}
    hot = Load(1_000.0, 0.0)
    made = propose(there, {"a": hot, "b": hot})
    # Also one without a known load, whose shard has too few, and the only one that shard 2 may have.
    assert {(move.queue, move.to) for move in made.plan.moves} == {("b", 2), ("c", 2)}
