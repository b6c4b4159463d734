"""lightrail-admin transactions: they are listed, and decided by hand only with --yes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.cli import admin
from tests.support.fake_gateway import FakeGateway

Output = pytest.CaptureFixture[str]
ONE, TWO, THREE = "0f" * 16, "aa" * 16, "bb" * 16


def row(id: str, shard: int, decides: int = 3) -> dict[str, Any]:
    return {
        "id": id,
        "shard": shard,
        "decides": decides,
        "age_ms": 61_500,
        "queues": ["a", "b"],
        "queue_count": 22,
        "messages": 7,
        "deliveries": 5,
    }


ROWS = [row(ONE, 0), row(ONE, 1), row(TWO, 0), row(THREE, 0, 4)]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        found = {"transactions": ROWS, "count": 9, "silent": [3, 4]}
        running.answers["GET", "/!transactions"] = (200, {}, found)
        for id in (ONE, TWO, THREE):
            done = {"id": id, "decision": "abort", "shards": [0, 1]}
            running.answers["POST", f"/!transactions/{id}"] = (200, {}, done)
        yield running


def run(gateway: FakeGateway, *arguments: str) -> int:
    return admin.main(["--url", gateway.url, "transactions", *arguments])


def decided(gateway: FakeGateway) -> list[tuple[str, str]]:
    return [
        (path, json.loads(body)["decision"]) for method, path, body, _ in gateway.asked if method == "POST"
    ]


def test_all_are_listed(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "list") == 0
    out = capsys.readouterr().out
    for words in (ONE, "61", "a, b and 20 more", "and 5 more", "no answer of the shards 3, 4"):
        assert words in out
    assert run(gateway, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["transactions"] == ROWS


def test_without_yes_nothing_is_decided_and_what_would_be_is_shown(
    gateway: FakeGateway, capsys: Output
) -> None:
    assert run(gateway, "decide", "abort", "shard-3") == 1
    shown = capsys.readouterr()
    assert ONE in shown.out
    assert THREE not in shown.out
    assert "2 transactions would be decided by hand (abort)" in shown.err
    assert "may contradict the decision of shard 3" in shown.err
    assert run(gateway, "decide", "abort", ONE, "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"would_decide": ROWS[:2]}
    assert decided(gateway) == []


def test_all_of_a_lost_shard_are_decided_once(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "decide", "abort", "shard-3", "--yes") == 0
    assert decided(gateway) == [(f"/!transactions/{id}", "abort") for id in (ONE, TWO)]
    assert f"transaction {ONE}: abort, applied at shard 0, 1" in capsys.readouterr().out


def test_one_is_decided(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "decide", "--yes", "--json", "commit", THREE) == 0
    assert decided(gateway) == [(f"/!transactions/{THREE}", "commit")]
    assert json.loads(capsys.readouterr().out)[0]["shards"] == [0, 1]


@pytest.mark.parametrize("which", ["shard-7", "cc" * 16, "nonsense"])
def test_what_is_not_there_is_named(gateway: FakeGateway, capsys: Output, which: str) -> None:
    assert run(gateway, "decide", "abort", ONE, which, "--yes") == 1
    assert f"{which}: no such transaction waits" in capsys.readouterr().err
    assert decided(gateway) == []


def test_a_refusal_of_the_gateway_is_status_1(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["POST", f"/!transactions/{THREE}"] = (409, {}, {"detail": "shard 4 is running"})
    assert run(gateway, "decide", "abort", THREE, "--yes") == 1
    assert "shard 4 is running" in capsys.readouterr().err


def test_an_unknown_decision_is_a_mistake_of_the_command_line(gateway: FakeGateway) -> None:
    with pytest.raises(SystemExit) as ended:
        run(gateway, "decide", "maybe", ONE)
    assert ended.value.code == 2
