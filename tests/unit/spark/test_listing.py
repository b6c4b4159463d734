"""Listings of archives and gateways together: what both have, what only one has, and what is not there."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightrail.journal.archive import Incarnation
from lightrail.spark.http import Access
from lightrail.spark.journals import gateways
from lightrail.spark.journals.archives import ArchiveSource
from lightrail.spark.journals.gateways import GatewaySource, Listed
from lightrail.spark.journals.journal import SourceError
from lightrail.spark.journals.listing import Listing
from tests.support.fake_gateway import FakeGateway
from tests.support.spark.archives import JournalOf

ACCESS = Access(("http://gateway:8080",))


@pytest.fixture
def written(tmp_path: Path) -> JournalOf:
    journal = JournalOf(tmp_path / "journal", segment_bytes=16 * 1024)
    journal.declare("orders")
    for _ in range(100):
        journal.send("orders", [bytes(100)] * 5)
    journal.archive(tmp_path / "archive")
    return journal


Answer = list[tuple[Incarnation, list[Listed], bool]]


def answers(monkeypatch: pytest.MonkeyPatch, *found: Answer) -> None:
    """What the gateway lists, one after another; the last one for ever."""
    left = list(found)
    monkeypatch.setattr(gateways, "find", lambda access: left.pop(0) if len(left) > 1 else left[0])


def test_what_both_have_is_read_from_the_archive_and_the_rest_live(
    written: JournalOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = (str(tmp_path / "archive"),)
    alone = Listing(paths, None).journals()[written.disk]
    last, end = alone.segments[-1].number, alone.latest or 0
    first = alone.index(alone.segments[-1]).first_lsn
    live = [Listed(last, first, end), Listed(last + 1, end, end + 7)]
    answers(monkeypatch, [(written.incarnation, live, False)])
    journal = Listing(paths, ACCESS).journals()[written.disk]
    kinds = {held.number: [type(source) for source in held.sources] for held in journal.segments}
    assert kinds[last - 1] == [ArchiveSource]
    assert kinds[last] == [ArchiveSource, GatewaySource]
    assert kinds[last + 1] == [GatewaySource]
    assert (journal.earliest, journal.latest) == (1, end + 7)


def test_a_shard_that_is_away_is_waited_for_and_is_no_loss(
    written: JournalOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = (str(tmp_path / "archive"),)
    end = Listing(paths, None).journals()[written.disk].latest or 0
    number = len(list((tmp_path / "archive").rglob("*.segment"))) + 1
    away: Answer = [(written.incarnation, [], True)]
    back: Answer = [(written.incarnation, [Listed(number, end, end + 5)], False)]
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def listing() -> Listing:
        return Listing(paths, ACCESS, monotonic=lambda: clock[0], sleep=sleep)

    answers(monkeypatch, away, away, back)
    found = listing().journals_with({written.disk: end + 5})
    assert found[written.disk].latest == end + 5
    assert clock[0] > 0
    answers(monkeypatch, away)
    # What the archive has is there without the shard.
    assert listing().journals_with({written.disk: end})[written.disk].latest == end
    with pytest.raises(SourceError, match="does not answer its gateway"):
        listing().journals_with({written.disk: end + 5})


class Client:
    """A client of gateways with one answer."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __call__(self, access: Access) -> "Client":
        return self

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, *_: object, **__: object) -> "Client":
        return self

    @property
    def body(self) -> bytes:
        return json.dumps(self._answer).encode()


def test_of_segments_that_are_as_they_were_nothing_is_made_anew(
    written: JournalOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = (str(tmp_path / "archive"),)
    last = Listing(paths, None).journals()[written.disk].segments[-1].number
    grows = [[Listed(last, 83, 106), Listed(last + 1, 106, end)] for end in (110, 120)]
    answers(monkeypatch, *([(written.incarnation, live, False)] for live in grows))
    listing = Listing(paths, ACCESS)
    before, after = (listing.journals()[written.disk].segments for _ in range(2))
    same = [one is other for one, other in zip(before, after, strict=True)]
    assert same == [True] * (len(same) - 1) + [False]
    assert after[-1].next_lsn == 120
    # One that has gone from the archive is asked for where it still is.
    (tmp_path / "archive" / written.incarnation.folder / f"{last:012d}.segment").unlink()
    found = {held.number: held for held in listing.journals()[written.disk].segments}
    assert [type(source) for source in found[last].sources] == [GatewaySource]


def test_the_list_of_a_gateway_is_understood_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = {"segment": 3, "first_lsn": 10, "next_lsn": 20, "end": 900, "messages": 9, "last_ms": 1}
    rows = [
        {"journal": "ab", "shard": 1, "cluster": "c", "segments": [segment]},
        {"journal": "cd", "shard": 2, "cluster": "c", "segments": [], "away": True},
    ]
    monkeypatch.setattr(gateways, "GatewayClient", Client({"journals": rows}))
    assert gateways.find(ACCESS) == [
        (Incarnation("c", 1, "ab"), [Listed(3, 10, 20)], False),
        (Incarnation("c", 2, "cd"), [], True),
    ]
    monkeypatch.setattr(gateways, "GatewayClient", Client({"queues": []}))
    with pytest.raises(SourceError, match="expected a list of journals"):
        gateways.find(ACCESS)


def test_an_archive_that_no_shard_has_made_yet_is_empty_beside_a_gateway_and_an_error_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "archive")
    with FakeGateway() as gateway:
        gateway.answers["GET", "/!journals"] = (200, {}, {"journals": []})
        assert Listing((path,), Access((gateway.url,))).journals() == {}
    assert "found no such folder" in caplog.text
    with pytest.raises(SourceError, match="found no such folder"):
        Listing((path,), None).journals()
