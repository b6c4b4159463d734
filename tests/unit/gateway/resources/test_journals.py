"""Journals over HTTP: bytes as the shard has them, no more than is committed, and what is said otherwise."""

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lightrail.gateway.journals import segments as segments_module
from lightrail.gateway.resources import journals as journals_module
from lightrail.journal.index import decode_index
from lightrail.model import limits
from lightrail.shard.effects.answers import Fields
from lightrail.shard.requests import journal_requests
from lightrail.shard_client import shard_connections
from tests.support.shard.journal_scene import JournalScene, eventually, with_journals

MIB = 1024 * 1024


def problem(came: Any, status: int) -> Any:
    assert came.status == status, came.body
    assert came.headers["Content-Type"].startswith("application/problem+json")
    return came.json()


def test_the_journals_of_all_shards_are_listed_with_what_is_committed(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, bytes(1_000))
        scene.journals[0].add("d0", 2, bytes(1_000), committed=300)
        scene.journals[1].journal("0ff", 1)
        rows = (await scene.get("/!journals")).json()["journals"]
        assert [(row["shard"], row["journal"]) for row in rows] == [(0, "d0"), (1, "0ff"), (1, "d1")]
        assert rows[0]["segments"] == [
            {
                "segment": 1,
                "first_lsn": 1,
                "next_lsn": 11,
                "end": 1_000,
                "messages": 20,
                "last_ms": 1_000,
                "sealed": True,
            },
            {
                "segment": 2,
                "first_lsn": 11,
                "next_lsn": 21,
                "end": 300,
                "messages": 20,
                "last_ms": 2_000,
                "sealed": False,
            },
        ]
        (row,) = (await scene.get("/!journals?journal=d0&from=11")).json()["journals"]
        assert [each["segment"] for each in row["segments"]] == [2]

    with_journals(check, tmp_path, 2)


@pytest.mark.parametrize("page", [1, 2, 3, 5, 100])
def test_a_long_list_comes_in_pages_and_nothing_of_it_is_left_out(
    tmp_path: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_requests, "SEGMENTS_SHOWN_MAX", page)

    async def check(scene: JournalScene) -> None:
        journals = scene.journals[0]
        for disk, segments in (("e1", 3), ("e2", 0), ("e3", 4)):
            journals.journal(disk)
            for number in range(segments):
                journals.add(disk, number, bytes(10))
        rows = (await scene.get("/!journals")).json()["journals"]
        found = {row["journal"]: [each["segment"] for each in row["segments"]] for row in rows}
        assert found == {"d0": [], "e1": [0, 1, 2], "e2": [], "e3": [0, 1, 2, 3]}

    with_journals(check, tmp_path)


def test_a_journal_whose_shard_is_away_is_listed_as_away_and_read_again_later(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[1].journal("0ff", 1)
        scene.journals[1].add("d1", 1, b"abc")
        await scene.get("/!journals")
        await scene.stop(1)
        rows = (await scene.get("/!journals")).json()["journals"]
        assert [(row["journal"], row.get("away", False)) for row in rows] == [
            ("d0", False),
            ("0ff", True),
            ("d1", True),
        ]
        came = await scene.get("/!journals/d1/1")
        assert "not connected" in problem(came, 503)["detail"]
        assert came.headers["Retry-After"] == "1"
        problem(await scene.get("/!journals/d0/1"), 404)

    with_journals(check, tmp_path, 2)


@pytest.mark.parametrize("size", [0, 1, 64, MIB - 1, MIB, 3 * MIB + 7])
def test_bytes_come_as_they_are_in_any_range(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_READ_BYTES", MIB)

    async def check(scene: JournalScene) -> None:
        data = os.urandom(size)
        scene.journals[0].add("d0", 7, data)
        path = "/!journals/d0/7"
        for start, end in ((0, size), (size // 3, size // 2), (size, size)):
            came = await scene.get(f"{path}?from={start}&to={end}")
            assert came.status == 200
            assert came.body == data[start:end]
            assert int(came.headers["Content-Length"]) == end - start
        assert (await scene.get(path)).body == data
        head = await scene.ask("HEAD", path)
        assert (head.status, int(head.headers["Content-Length"]), head.body) == (200, size, b"")
        assert all(end - start <= MIB for _, _, start, end in scene.journals[0].reads)

    with_journals(check, tmp_path)


def test_nothing_that_is_not_committed_leaves(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, b"committed, and not", committed=9)
        assert (await scene.get("/!journals/d0/1")).body == b"committed"
        for query in ("from=0&to=10", "from=10", "to=18"):
            came = await scene.get(f"/!journals/d0/1?{query}")
            said = problem(came, 416)
            assert (said["committed"], said["sealed"]) == (9, False)
            assert "later again" in said["detail"]
            assert came.headers["Content-Range"] == "bytes */9"
        peer = scene.shards.peers[0]
        with pytest.raises(Exception, match="9 are committed, 10 was asked for"):
            await peer.request("journal", {"disk": "d0", "segment": 1, "from": 0, "to": 10})

    with_journals(check, tmp_path)


def test_the_index_of_a_segment_is_that_of_its_shard(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 3, bytes(100))
        came = await scene.get("/!journals/d0/3/index")
        assert decode_index(came.body.decode()) == scene.journals[0].indexes["d0"][0]
        assert came.headers["Cache-Control"].endswith("immutable")
        problem(await scene.get("/!journals/d0/3/other"), 404)
        problem(await scene.get("/!journals/d0/4/index"), 404)

    with_journals(check, tmp_path)


def test_what_can_not_change_may_be_kept_and_is_not_sent_twice(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, bytes(100))
        scene.journals[0].add("d0", 2, bytes(100), committed=50)
        for path, for_ever in (
            ("/!journals/d0/1", True),
            ("/!journals/d0/2", False),
            ("/!journals/d0/2?from=0&to=50", True),
            ("/!journals/d0/1/index", True),
            ("/!journals/d0/2/index", False),
        ):
            came = await scene.get(path)
            assert came.headers["Cache-Control"].endswith("immutable") is for_ever, path
            again = await scene.get(path, If_None_Match=came.headers["ETag"])
            assert (again.status, again.body) == (304, b"")
        tag = (await scene.get("/!journals/d0/2")).headers["ETag"]
        scene.journals[0].indexes["d0"][1].end = 60
        assert len((await scene.get("/!journals/d0/2", If_None_Match=tag)).body) == 60

    with_journals(check, tmp_path)


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/!journals/d0/9", 404, "/!journals"),
        ("/!journals/ee/1", 404, "no segment"),
        ("/!journals/D0/1", 400, "hexadecimal"),
        ("/!journals/..%2Fd0/1", 400, "hexadecimal"),
        ("/!journals/d0/x", 400, "whole number"),
        ("/!journals/d0/1?from=x", 400, "whole number"),
        ("/!journals/d0/1?from=5&to=4", 400, "from is 5 and to is 4"),
        ("/!journals?journal=Q", 400, "hexadecimal"),
        ("/!journals?from=-1", 400, "whole number"),
    ],
)
def test_what_can_not_be_asked_is_refused_with_a_reason(
    tmp_path: Path, path: str, status: int, word: str
) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, bytes(10))
        assert word in problem(await scene.get(path), status)["detail"]

    with_journals(check, tmp_path)


def test_a_shard_answers_only_what_it_can_and_never_more_than_a_piece(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, bytes(10))
        good: Fields = {"disk": "d0", "segment": 1, "from": 0, "to": 10}
        for change, word in (
            ({"disk": ""}, "the id of a journal"),
            ({"disk": 3}, "the id of a journal"),
            ({"segment": -1}, "whole number"),
            ({"segment": True}, "whole number"),
            ({"from": None}, "whole number"),
            ({"from": 8, "to": 7}, "whole number"),
            ({"to": limits.JOURNAL_READ_BYTES + 1}, "whole number"),
        ):
            with pytest.raises(Exception, match=word):
                await scene.shards.peers[0].request("journal", good | change)
        with pytest.raises(Exception, match="expected \\[disk, segment\\]"):
            await scene.shards.peers[0].request("journals", {"after": "d0"})
        assert bytes((await scene.shards.peers[0].request("journal", good)).blob) == bytes(10)

    with_journals(check, tmp_path)


def test_a_disk_that_can_not_be_read_is_said_and_the_shard_goes_on(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, bytes(10))
        scene.journals[0].error = OSError("the disk is broken")
        came = await scene.get("/!journals/d0/1")
        assert "the disk is broken" in problem(came, 500)["detail"]
        scene.journals[0].error = None
        assert (await scene.get("/!journals/d0/1")).status == 200

    with_journals(check, tmp_path)


def test_an_answer_that_ends_early_is_cut_off_and_not_taken_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_READ_BYTES", MIB)

    async def check(scene: JournalScene) -> None:
        journals = scene.journals[0]
        journals.add("d0", 1, bytes(64 * MIB))
        read = journals.read

        def fail(disk: str, segment: int, start: int, end: int) -> bytes:
            if start >= 32 * MIB:
                raise OSError("the disk broke in the middle")
            return read(disk, segment, start, end)

        journals.read = fail  # type: ignore[method-assign]
        with pytest.raises(aiohttp.ClientPayloadError):
            await scene.get("/!journals/d0/1")

    with_journals(check, tmp_path)


def test_a_client_that_takes_nothing_has_no_more_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_READ_BYTES", MIB)
    monkeypatch.setattr(journals_module, "JOURNAL_WRITE_MS", 200)

    async def check(scene: JournalScene) -> None:
        journals = scene.journals[0]
        journals.add("d0", 1, bytes(200 * MIB))
        host, _, port = scene.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET /!journals/d0/1 HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        assert b"200 OK" in await reader.readline()
        # It is cut off when it has taken nothing for so long; until then little was read ahead.
        await eventually(lambda: not scene.services.journals.streams)
        assert len(journals.reads) < 40
        writer.close()

    with_journals(check, tmp_path)


def test_so_many_read_at_a_time_and_others_wait_for_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "JOURNAL_STREAMS_MAX", 2)
    monkeypatch.setattr(segments_module, "JOURNAL_STREAM_WAIT_MS", 100)

    async def check(scene: JournalScene) -> None:
        journals = scene.journals[0]
        journals.add("d0", 1, b"abc")
        journals.gate.clear()
        reading = [asyncio.create_task(scene.get("/!journals/d0/1")) for _ in range(2)]
        await eventually(lambda: scene.services.journals.streams == 2)
        came = await scene.get("/!journals/d0/1")
        assert "another gateway" in problem(came, 503)["detail"]
        assert came.headers["Retry-After"] == "1"
        journals.gate.set()
        assert [each.body for each in await asyncio.gather(*reading)] == [b"abc", b"abc"]
        assert (await scene.get("/!journals/d0/1")).body == b"abc"

    with_journals(check, tmp_path)


def test_the_way_that_large_answers_take_is_there_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_connections, "BULK_IDLE_MS", 1)

    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, os.urandom(MIB))
        for _ in range(2):
            assert (await scene.get("/!journals/d0/1")).body == scene.journals[0].bytes["d0", 1]
            await eventually(lambda: len(scene.shards.bulk) == 0)

    with_journals(check, tmp_path)


def test_a_shard_that_is_busy_with_readers_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_requests, "JOURNAL_READS_MAX", 1)
    monkeypatch.setattr(segments_module, "JOURNAL_AGAIN_MS", 1)
    # As often as it takes: a read of another one may take longer than so few milliseconds.
    monkeypatch.setattr(segments_module, "JOURNAL_AGAIN_MAX", 10_000)

    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, b"abc")
        came = await asyncio.gather(*(scene.get("/!journals/d0/1") for _ in range(8)))
        assert {each.body for each in came} == {b"abc"}

    with_journals(check, tmp_path)


def test_readers_wait_for_an_owner_that_does_not_know_yet_what_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that records that they have seen would be missing to them."""
    monkeypatch.setattr(segments_module, "JOURNAL_AGAIN_MS", 1)

    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, b"abc")
        scene.journals[0].unknown = 3
        rows = (await scene.get("/!journals")).json()["journals"]
        assert [each["segment"] for each in rows[0]["segments"]] == [1]
        scene.journals[0].unknown = 3
        assert (await scene.get("/!journals/d0/1")).body == b"abc"
        scene.journals[0].unknown = segments_module.JOURNAL_AGAIN_MAX
        came = await scene.get("/!journals/d0/1")
        assert came.status == 503
        assert "waits until other members have what it has; try again" in came.json()["detail"]
        scene.journals[0].unknown = segments_module.JOURNAL_AGAIN_MAX
        rows = (await scene.get("/!journals")).json()["journals"]
        assert rows[0]["away"] is True

    with_journals(check, tmp_path)


def test_a_shard_that_stays_busy_is_given_up_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_requests, "JOURNAL_READS_MAX", 0)
    monkeypatch.setattr(segments_module, "JOURNAL_AGAIN_MS", 1)
    monkeypatch.setattr(segments_module, "JOURNAL_AGAIN_MAX", 3)

    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, b"abc")
        came = await scene.get("/!journals/d0/1")
        assert came.status == 503
        assert "requests wait for the shard's journals already; try again" in came.json()["detail"]

    with_journals(check, tmp_path)


def test_a_shard_that_starts_again_elsewhere_is_read_there(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        data = os.urandom(2 * MIB)
        scene.journals[0].add("d0", 1, data)
        assert (await scene.get("/!journals/d0/1")).body == data
        await scene.stop(0)
        scene.directory = scene.directory / "elsewhere"
        scene.directory.mkdir()
        await scene.start(0)
        await eventually(lambda: scene.shards.not_serving() == [])
        assert (await scene.get("/!journals/d0/1")).body == data

    with_journals(check, tmp_path)
