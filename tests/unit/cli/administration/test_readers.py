"""lightrail-admin journal list and reader: what is asked of the gateway, and what people are shown."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.cli import admin
from tests.support.fake_gateway import FakeGateway

Output = pytest.CaptureFixture[str]

SEGMENTS = [
    {
        "segment": number,
        "first_lsn": 10 * number,
        "next_lsn": 10 * number + 10,
        "end": 1_000,
        "messages": 20,
        "last_ms": 1_000_000 * number,
        "sealed": number == 1,
    }
    for number in (1, 2)
]
JOURNALS = [
    {"journal": "3f2a", "shard": 0, "cluster": "c", "segments": SEGMENTS},
    {"journal": "77", "shard": 1, "cluster": "c", "segments": []},
]
AWAY = {"journal": "9b", "shard": 2, "cluster": "c", "away": True, "segments": []}
READER: dict[str, Any] = {
    "name": "analytics/capture",
    "positions": {"3f2a": 12, "dead": 4},
    "hold_hours": 168.0,
    "hold_bytes": 100_000_000_000,
    "moved_ms": 1_700_000_000_000,
    "behind": {"lsns": 18, "messages": 36, "bytes": 1_800},
    "journals": [
        {
            "journal": "3f2a",
            "shard": 0,
            "position": 12,
            "lsns": 18,
            "messages": 36,
            "bytes": 1_800,
            "missed": 0,
            "oldest_ms": 1_000_000,
        },
        {"journal": "9b", "shard": 2, "position": None, "away": True},
    ],
    "gone": ["dead"],
}
PATH = "/!readers/analytics%2Fcapture"


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        running.answers["GET", "/!journals"] = (200, {}, {"journals": [*JOURNALS, AWAY]})
        running.answers["GET", "/!readers"] = (200, {}, {"readers": [READER]})
        running.answers["GET", PATH] = (200, {}, READER)
        running.answers["PUT", PATH] = (200, {}, READER)
        running.answers["DELETE", PATH] = (204, {}, b"")
        yield running


def run(gateway: FakeGateway, *arguments: str) -> int:
    return admin.main(["--url", gateway.url, *arguments])


def said(gateway: FakeGateway) -> Any:
    return json.loads(gateway.asked[-1][2])


def test_journals_are_listed_with_what_they_hold(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "journal", "list") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == [
        "0",
        "3f2a",
        "2",
        "10",
        "30",
        "40",
        "2,000",
        "1970-01-01T00:33:20Z",
    ]
    assert out.splitlines()[3].split()[:3] == ["2", "9b", "away"]
    assert run(gateway, "journal", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [*JOURNALS, AWAY]


def test_the_segments_of_one_journal_are_listed(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["GET", "/!journals"] = (200, {}, {"journals": JOURNALS[:1]})
    assert run(gateway, "journal", "list", "3f2a") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[-1] == "yes"
    assert len(lines) == 3
    gateway.answers["GET", "/!journals"] = (200, {}, {"journals": []})
    assert run(gateway, "journal", "list", "ab") == 1
    assert "not known" in capsys.readouterr().out


def test_readers_are_listed_with_how_far_they_are_behind(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "reader", "list") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["analytics/capture", "2", "36", "1,800"]
    assert run(gateway, "reader", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [READER]


def test_a_reader_is_shown_with_its_position_in_each_journal(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "reader", "show", "analytics/capture") == 0
    out = capsys.readouterr().out
    assert "100,000,000,000" in out
    (away,) = [line.split() for line in out.splitlines() if "9b" in line]
    assert away[:4] == ["2", "9b", "earliest", "away"]
    (gone,) = [line.split() for line in out.splitlines() if "dead" in line]
    assert gone[:4] == ["-", "dead", "4", "gone"]
    assert run(gateway, "reader", "show", "analytics/capture", "--json") == 0
    assert json.loads(capsys.readouterr().out) == READER


def test_positions_and_bounds_are_set(gateway: FakeGateway, capsys: Output) -> None:
    positions = ("--position", "3f2a=12", "--position", "77=5", "--forget", "dead")
    bounds = ("--hold-hours", "2.5", "--hold-bytes", "20GB")
    assert run(gateway, "reader", "set", "analytics/capture", *positions, *bounds) == 0
    assert said(gateway) == {
        "positions": {"3f2a": 12, "77": 5, "dead": None},
        "hold_hours": 2.5,
        "hold_bytes": 20_000_000_000,
    }
    assert "is changed: 2 positions, holds 168 h and 100GB" in capsys.readouterr().out
    gateway.answers["PUT", PATH] = (201, {}, READER)
    assert run(gateway, "reader", "set", "analytics/capture") == 0
    assert said(gateway) == {"positions": {}}
    assert "is created now" in capsys.readouterr().out


def test_a_reader_may_begin_with_what_comes_from_now_on(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "reader", "set", "analytics/capture", "--latest") == 2
    assert "while shard 2 is away" in capsys.readouterr().err
    gateway.answers["GET", "/!journals"] = (200, {}, {"journals": JOURNALS})
    assert run(gateway, "reader", "set", "analytics/capture", "--latest") == 0
    assert said(gateway) == {"positions": {"3f2a": 30}}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--position", "3f2a"), "JOURNAL=LSN"),
        (("--position", "3f2a=-1"), "JOURNAL=LSN"),
        (("--hold-bytes", "much"), "a size from"),
    ],
)
def test_wrong_use_is_said(
    gateway: FakeGateway, capsys: Output, arguments: tuple[str, ...], word: str
) -> None:
    assert run(gateway, "reader", "set", "analytics/capture", *arguments) == 2
    assert word in capsys.readouterr().err
    assert gateway.asked == []


def test_a_position_that_goes_back_is_refused_and_said(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["PUT", PATH] = (409, {}, {"detail": "the reader is at 12 already"})
    assert run(gateway, "reader", "set", "analytics/capture", "--position", "3f2a=1") == 1
    assert capsys.readouterr().err == "lightrail-admin: the reader is at 12 already\n"


def test_a_reader_is_removed(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "reader", "remove", "analytics/capture") == 0
    assert gateway.asked[-1][:2] == ("DELETE", PATH)
    assert "is deleted" in capsys.readouterr().out
