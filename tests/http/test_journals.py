"""Journals over HTTP against files: bytes as on disk, whole records, never more than is committed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.journal.archive import Incarnation, index_name, segment_name
from lightrail.journal.index import decode_index, read_index
from lightrail.journal.segment_header import decode_segment_header
from tests.support import wait
from tests.support.broker import ROOT, Broker
from tests.support.http_client import Http, Response

MIB = 1024 * 1024
QUEUES = [f"captured/{number}" for number in range(6)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data: Path = tmp_path_factory.mktemp("journals")
    with Broker(data / "data", "--shards", "2", "--segment-bytes", "1MiB") as running:
        with Http(running.http) as http:
            for name in QUEUES:
                http("POST", f"/{name}", {"role": "queue", "capture": True})
        yield running


class Bytes:
    """A segment that was read whole."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


def send(http: Http, name: str, count: int, size: int = 20_000) -> list[bytes]:
    """Durable messages whose bodies nobody else sends; stored when this returns."""
    bodies = [os.urandom(size // 2).hex().encode() for _ in range(count)]
    for body in bodies:
        assert http("POST", f"/{name}", body).status == 201
    return bodies


def journals(http: Http) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http("GET", "/!journals").json()["journals"]
    return found


def read(http: Http, disk: str, segment: int, start: int, end: int) -> Response:
    return http("GET", f"/!journals/{disk}/{segment}?from={start}&to={end}")


def whole(http: Http, disk: str, row: dict[str, Any]) -> bytes:
    """The committed part of a segment, which ends with a whole record."""
    got = read(http, disk, row["segment"], 0, row["end"])
    assert got.status == 200
    assert len(got.body) == row["end"]
    header = decode_segment_header(got.body[:64])
    assert header is not None
    index, _ = read_index(header, Bytes(got.body), row["end"])
    assert (index.first_lsn, index.next_lsn, index.end) == (row["first_lsn"], row["next_lsn"], row["end"])
    assert index.messages == row["messages"]
    return got.body


def on_disk(broker: Broker, journal: dict[str, Any], segment: int) -> Path:
    """The file of a segment: of the journal, or of the archive where it has gone from there."""
    file = broker.data / f"shard-{journal['shard']}" / segment_name(segment)
    return file if file.exists() else archived(broker, journal, segment)


def archived(broker: Broker, journal: dict[str, Any], segment: int) -> Path:
    folder = Incarnation(journal["cluster"], journal["shard"], journal["journal"]).folder
    return broker.data / "archive" / folder / segment_name(segment)


def test_all_that_was_stored_is_in_the_bytes_and_they_are_those_on_disk(broker: Broker, http: Http) -> None:
    bodies = [body for name in QUEUES for body in send(http, name, 30)]
    everything = b""
    found = journals(http)
    assert {journal["shard"] for journal in found} == {0, 1}
    for journal in found:
        identity = json.loads((broker.data / f"shard-{journal['shard']}" / "identity.json").read_text())
        assert (journal["journal"], journal["cluster"]) == (identity["disk"], identity["cluster"])
        assert [each["sealed"] for each in journal["segments"]][:-1] == [True] * (
            len(journal["segments"]) - 1
        )
        for row in journal["segments"]:
            data = whole(http, journal["journal"], row)
            with open(on_disk(broker, journal, row["segment"]), "rb") as file:
                assert file.read(row["end"]) == data
            index = http("GET", f"/!journals/{journal['journal']}/{row['segment']}/index")
            said = decode_index(index.body.decode())
            assert (said.segment, said.first_lsn) == (row["segment"], row["first_lsn"])
            assert said.end >= row["end"]
            middle = read(http, journal["journal"], row["segment"], 100, row["end"] - 100)
            assert middle.body == data[100:-100]
            everything += data
    assert len([each for each in found if len(each["segments"]) > 1]) == 2
    assert all(body in everything for body in bodies)


def test_what_is_shown_while_messages_come_is_whole_and_nothing_beyond_it_leaves(
    broker: Broker, http: Http
) -> None:
    stop = threading.Event()
    sent: list[bytes] = []

    def sending() -> None:
        with Http(broker.http) as other:
            while not stop.is_set():
                sent.extend(send(other, QUEUES[0], 5, 2_000))

    thread = threading.Thread(target=sending)
    thread.start()
    try:
        seen: dict[tuple[str, int], bytes] = {}
        for _ in range(20):
            stored = list(sent)
            for journal in journals(http):
                disk, row = journal["journal"], journal["segments"][-1]
                data = whole(http, disk, row)
                before = seen.get((disk, row["segment"]), b"")
                assert data.startswith(before), "what was read once changed"
                seen[disk, row["segment"]] = data
                beyond = read(http, disk, row["segment"], 0, 1 << 40)
                assert beyond.status == 416
                assert beyond.json()["committed"] >= row["end"]
            recent = b"".join(
                whole(http, journal["journal"], row)
                for journal in journals(http)
                for row in journal["segments"][-3:]
            )
            assert all(body in recent for body in stored[-20:]), "stored, and not shown"
    finally:
        stop.set()
        thread.join()


def test_a_segment_that_only_the_archive_has_is_read_all_the_same(broker: Broker, http: Http) -> None:
    name = QUEUES[1]
    (first,) = send(http, name, 1)
    journal, segment = next(
        (journal, row["segment"])
        for journal in journals(http)
        for row in journal["segments"]
        if first in whole(http, journal["journal"], row)
    )
    file = broker.data / f"shard-{journal['shard']}" / segment_name(segment)

    def gone() -> bool:
        send(http, name, 30)
        assert http("DELETE", f"/{name}/!messages").status == 200
        return not file.exists()

    for other in QUEUES:
        http("DELETE", f"/{other}/!messages")
    wait.until(gone, "the journal has let go of the segment")
    kept = archived(broker, journal, segment)
    (found,) = http("GET", f"/!journals?journal={journal['journal']}").json()["journals"]
    (row,) = [each for each in found["segments"] if each["segment"] == segment]
    assert row["sealed"]
    data = whole(http, journal["journal"], row)
    assert first in data
    assert kept.read_bytes()[: row["end"]] == data
    index = http("GET", f"/!journals/{journal['journal']}/{segment}/index")
    assert index.body == kept.with_name(index_name(segment)).read_bytes()


def test_a_reader_is_told_how_far_it_is_behind(broker: Broker, http: Http) -> None:
    assert http("PUT", "/!readers/test%2Fbehind", {}).status == 201
    send(http, QUEUES[2], 10)
    found = journals(http)
    behind = http("GET", "/!readers/test%2Fbehind").json()["behind"]
    rows = [row for journal in found for row in journal["segments"]]
    assert behind["lsns"] >= sum(row["next_lsn"] - row["first_lsn"] for row in rows)
    positions = {journal["journal"]: journal["segments"][-1]["next_lsn"] for journal in found}
    moved = http("PUT", "/!readers/test%2Fbehind", {"positions": positions}).json()
    assert moved["positions"] == positions
    (shown,) = http("GET", "/!readers").json()["readers"]
    assert shown["behind"]["messages"] == 0
    assert shown["gone"] == []
    back = {disk: lsn - 1 for disk, lsn in positions.items()}
    assert http("PUT", "/!readers/test%2Fbehind", {"positions": back}).status == 409
    assert http("DELETE", "/!readers/test%2Fbehind").status == 204


def test_the_same_bytes_come_after_a_shard_was_killed(broker: Broker, http: Http) -> None:
    send(http, QUEUES[3], 5)
    send(http, QUEUES[4], 5)
    before = {
        (journal["journal"], row["segment"], row["end"]): whole(http, journal["journal"], row)
        for journal in journals(http)
        for row in journal["segments"]
    }
    os.kill(broker.pid("shard", 0), signal.SIGKILL)
    for (disk, segment, end), data in before.items():
        got = wait.until_with(
            (disk, segment, end),
            lambda of: answered(read(http, of[0], of[1], 0, of[2])),
            "the shard is back",
        )
        assert got is not None
        assert got.body == data


def answered(got: Response) -> Response | None:
    """None while the shard is away, and says so."""
    if got.status != 503:
        return got
    assert got.headers["retry-after"]
    return None


def test_people_see_journals_and_readers_by_lightrail_admin(broker: Broker, http: Http) -> None:
    def admin(*words: str) -> str:
        command = [sys.executable, "-m", "lightrail.cli.admin", "--url", f"http://{broker.http}", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    rows = json.loads(admin("journal", "list", "--json"))
    assert {row["journal"] for row in rows} == {journal["journal"] for journal in journals(http)}
    assert rows[0]["journal"] in admin("journal", "list")
    assert "is created now" in admin("reader", "set", "test/admin", "--latest", "--hold-hours", "2")
    shown = json.loads(admin("reader", "show", "test/admin", "--json"))
    assert (shown["hold_hours"], set(shown["positions"])) == (2.0, {row["journal"] for row in rows})
    assert "test/admin" in admin("reader", "list")
    assert "is deleted" in admin("reader", "remove", "test/admin")
