"""lightrail-admin shard: shards are listed, drained, revived, removed, and given up only with --yes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.cli import admin
from lightrail.cli.administration import moving
from tests.support.fake_gateway import FakeGateway

Output = pytest.CaptureFixture[str]


def shard(**more: Any) -> dict[str, Any]:
    return {"id": 3, "state": "active", "serving": True, "queues": 0, "host": "h", "zone": "", **more}


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    monkeypatch.setattr(moving, "POLL_S", 0.001)
    with FakeGateway() as running:
        running.answers["GET", "/!moves"] = (200, {}, {"moves": [], "ended": []})
        running.answers["PUT", "/!shards/3"] = (200, {}, shard(state="draining"))
        running.answers["GET", "/!shards"] = (200, {}, {"shards": [shard()]})
        running.answers["GET", "/!shards/3"] = (200, {}, shard(queue_names=["a", "b\x1b[2J"]))
        running.answers["DELETE", "/!shards/3"] = (204, {}, b"")
        yield running


def run(gateway: FakeGateway, *arguments: str) -> int:
    return admin.main(["--url", gateway.url, "shard", *arguments])


def plan(gateway: FakeGateway, *moves: tuple[str, int], silent: tuple[int, ...] = ()) -> None:
    rows = [{"queue": queue, "from": source, "to": 1} for queue, source in moves]
    gateway.answers["GET", "/!plan"] = (200, {}, {"moves": rows, "silent": list(silent)})
    begun = [row for row in rows if row["from"] == 3]
    gateway.answers["POST", "/!moves"] = (202, {}, {"begun": begun, "left_out": []})


def test_all_shards_are_listed(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "list") == 0
    assert "MOVING IN" in capsys.readouterr().out
    assert run(gateway, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [shard()]


def test_a_drain_moves_the_queues_of_this_shard_alone_and_says_what_is_next(
    gateway: FakeGateway, capsys: Output
) -> None:
    plan(gateway, ("a", 3), ("other", 0), ("b", 3))
    assert run(gateway, "drain", "3") == 0
    sent = {method: json.loads(body) for method, _, body, _ in gateway.asked if body}
    assert sent["PUT"] == {"state": "draining"}
    assert [move["queue"] for move in sent["POST"]["moves"]] == ["a", "b"]
    out = capsys.readouterr().out
    assert "shard 3 drains: 2 queues to move" in out
    assert "shard 3 is empty: stop it, then `lightrail-admin shard remove 3`" in out


def test_a_drain_that_leaves_queues_is_status_1(gateway: FakeGateway, capsys: Output) -> None:
    plan(gateway, ("a", 3))
    gateway.answers["GET", "/!shards"] = (200, {}, {"shards": [shard(queues=1)]})
    assert run(gateway, "drain", "3") == 1
    said = capsys.readouterr().err
    assert "shard 3 still has 1 queue: run this again" in said
    # What has no role any more is never moved.
    assert "rebalance --verify` has the reason" in said
    assert run(gateway, "drain", "3", "--no-wait") == 0


def test_a_shard_that_does_not_answer_can_not_be_emptied(gateway: FakeGateway, capsys: Output) -> None:
    plan(gateway, silent=(3,))
    assert run(gateway, "drain", "3") == 1
    assert "it does not answer, so its queues can't be copied" in capsys.readouterr().err
    assert "POST" not in [each[0] for each in gateway.asked]


def test_a_refused_drain_is_said(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["PUT", "/!shards/3"] = (409, {}, {"detail": "shard 3 is the only one"})
    assert run(gateway, "drain", "3") == 1
    assert capsys.readouterr().err == "lightrail-admin: shard 3 is the only one\n"


def test_a_drain_is_taken_back(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["PUT", "/!shards/3"] = (200, {}, shard())
    assert run(gateway, "revive", "3") == 0
    assert json.loads(gateway.asked[-1][2]) == {"state": "active"}
    assert "active" in capsys.readouterr().out


def test_a_disk_is_forgotten(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "forget-disk", "3") == 0
    assert json.loads(gateway.asked[-1][2]) == {"disk": ""}
    assert "start one with --id 3" in capsys.readouterr().out


def test_an_empty_shard_is_removed(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "remove", "3") == 0
    assert [(each[0], each[1]) for each in gateway.asked] == [("DELETE", "/!shards/3")]
    assert "shard 3 is removed" in capsys.readouterr().out


def test_queues_are_lost_only_after_they_were_shown_and_with_yes(
    gateway: FakeGateway, capsys: Output
) -> None:
    assert run(gateway, "remove", "3", "--lose-queues") == 1
    said = capsys.readouterr()
    assert said.out == "a\nb\\x1b[2J\n"
    assert "2 queues of shard 3 would lose all messages, for good; confirm with --yes" in said.err
    assert run(gateway, "remove", "3", "--lose-queues", "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"would_lose": ["a", "b\x1b[2J"]}
    assert "DELETE" not in [each[0] for each in gateway.asked]
    assert run(gateway, "remove", "3", "--lose-queues", "--yes", "--json") == 0
    assert gateway.asked[-1][0] == "DELETE"
    assert json.loads(capsys.readouterr().out)["lost"] == ["a", "b\x1b[2J"]


@pytest.mark.parametrize("words", [("drain",), ("drain", "x"), ("remove",), ("unknown",)])
def test_wrong_words_are_status_2(gateway: FakeGateway, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        run(gateway, *words)
    assert raised.value.code == 2


REPLICAS = {
    "epoch": 5,
    "replicas": 3,
    "min_in_sync": 2,
    "owner": "aa1",
    "in_sync": 2,
    "members": [
        {"member": "aa1", "host": "h1", "owns": True, "in_sync": True, "running": True},
        {"member": "aa2", "host": "h2", "owns": False, "in_sync": True, "running": True},
        {"member": "bb3", "host": "h3", "owns": False, "in_sync": False, "running": False},
    ],
}


def test_shards_with_replicas_are_listed_with_their_epoch_and_members_in_sync(
    gateway: FakeGateway, capsys: Output
) -> None:
    gateway.answers["GET", "/!shards"] = (200, {}, {"shards": [shard(replicas=REPLICAS), shard(id=4)]})
    assert run(gateway, "list") == 0
    out = capsys.readouterr().out
    assert "EPOCH" in out
    assert "2 of 3" in out


def test_the_members_of_a_shard_are_shown_and_their_numbers_changed(
    gateway: FakeGateway, capsys: Output
) -> None:
    gateway.answers["GET", "/!shards/3/replicas"] = (200, {}, {"replicas": REPLICAS})
    gateway.answers["PUT", "/!shards/3/replicas"] = (200, {}, {"replicas": REPLICAS | {"min_in_sync": 1}})
    assert run(gateway, "replicas", "3") == 0
    assert "OWNS" in capsys.readouterr().out
    assert run(gateway, "replicas", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out) == REPLICAS
    assert run(gateway, "replicas", "3", "--min-in-sync", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["min_in_sync"] == 1
    assert [json.loads(body) for method, _, body, _ in gateway.asked if method == "PUT"] == [
        {"min_in_sync": 1}
    ]
    gateway.answers["GET", "/!shards/3/replicas"] = (200, {}, {"replicas": None})
    assert run(gateway, "replicas", "3") == 0
    assert "shard 3 has no replicas" in capsys.readouterr().out


@pytest.mark.parametrize(("member", "id"), [("h3", "bb3"), ("bb", "bb3"), ("aa2", "aa2")])
def test_a_member_is_removed_by_its_host_or_the_beginning_of_its_id(
    gateway: FakeGateway, capsys: Output, member: str, id: str
) -> None:
    gateway.answers["GET", "/!shards/3/replicas"] = (200, {}, {"replicas": REPLICAS})
    gateway.answers["DELETE", f"/!shards/3/replicas/{id}"] = (200, {}, {"replicas": REPLICAS})
    assert run(gateway, "remove-member", "3", member) == 0
    assert [path for method, path, _, _ in gateway.asked if method == "DELETE"] == [
        f"/!shards/3/replicas/{id}"
    ]
    capsys.readouterr()
    assert run(gateway, "remove-member", "3", "aa") == 1
    assert "found 2: its members are aa1 on h1" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "member"), [((), "aa2"), (("--to", "h2"), "aa2"), (("--to", "bb"), "bb3")])
def test_a_hand_over_ends_when_another_member_owns(
    gateway: FakeGateway, capsys: Output, flags: tuple[str, ...], member: str
) -> None:
    gateway.answers["GET", "/!shards/3/replicas"] = (200, {}, {"replicas": REPLICAS})
    gateway.answers["PUT", "/!shards/3/replicas"] = (200, {}, {"replicas": REPLICAS | {"owner": member}})
    assert run(gateway, "handover", "3", *flags, "--json") == 0
    assert json.loads(capsys.readouterr().out)["owner"] == member
    assert [json.loads(body) for method, _, body, _ in gateway.asked if method == "PUT"] == [
        {"owner": member}
    ]


def test_a_hand_over_without_another_member_in_sync_is_an_error(gateway: FakeGateway, capsys: Output) -> None:
    members = [each | {"running": each["owns"]} for each in REPLICAS["members"]]  # type: ignore[attr-defined]
    gateway.answers["GET", "/!shards/3/replicas"] = (200, {}, {"replicas": REPLICAS | {"members": members}})
    assert run(gateway, "handover", "3") == 1
    assert "another member of shard 3 that runs and is in sync, found none" in capsys.readouterr().err
