"""Readers over HTTP: positions go forward, whoever writes at the same time, and how far behind is told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lightrail.cluster.readers import READERS, Reader
from lightrail.gateway.resources import journals, readers
from lightrail.model import limits
from lightrail.namespace.rights import Caller, ForbiddenError
from tests.support.shard.journal_scene import JournalScene, with_journals
from tests.support.shard.move_scene import MoveScene, with_scene


def problem(came: Any, status: int) -> Any:
    assert came.status == status, came.body
    return came.json()


def test_who_may_not_manage_everything_is_refused() -> None:
    async def check(scene: MoveScene) -> None:
        for handler in (
            journals.list_all,
            journals.index,
            journals.read,
            readers.list_all,
            readers.show,
            readers.put,
            readers.remove,
        ):
            with pytest.raises(ForbiddenError):
                await scene.ask(handler, "/", None, "d0", "1", "index", caller=Caller("bob"))

    with_scene(check)


def test_a_reader_comes_goes_on_and_goes(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        path = "/!readers/analytics%2Fcapture"
        problem(await scene.get(path), 404)
        came = await scene.ask("PUT", path, {"positions": {"d0": 5}})
        assert came.status == 201
        assert came.json() | {"moved_ms": 0} == {
            "name": "analytics/capture",
            "positions": {"d0": 5},
            "hold_hours": limits.READER_HOLD_HOURS,
            "hold_bytes": limits.READER_HOLD_BYTES,
            "moved_ms": 0,
        }
        assert came.json()["moved_ms"] > 0
        came = await scene.ask("PUT", path, {"positions": {"d1": 7}, "hold_hours": 1.5, "hold_bytes": 10})
        assert (came.status, came.json()["positions"]) == (200, {"d0": 5, "d1": 7})
        found = (await scene.get(path)).json()
        assert (found["hold_hours"], found["hold_bytes"]) == (1.5, 10)
        (row,) = (await scene.get("/!readers")).json()["readers"]
        assert row == found
        assert (await scene.ask("DELETE", path)).status == 204
        problem(await scene.ask("DELETE", path), 404)
        assert (await scene.get("/!readers")).json() == {"readers": []}

    with_journals(check, tmp_path)


def test_a_new_reader_without_positions_begins_everywhere_at_the_earliest_record(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[0].add("d0", 1, bytes(100))
        assert (await scene.ask("PUT", "/!readers/r", {})).json()["positions"] == {}
        found = (await scene.get("/!readers/r")).json()
        assert found["behind"] == {"lsns": 10, "messages": 20, "bytes": 100}
        # Bounds alone move no position.
        before = scene.services.map.readers["r"]
        await scene.ask("PUT", "/!readers/r", {"hold_hours": 2})
        assert scene.services.map.readers["r"].moved_ms == before.moved_ms

    with_journals(check, tmp_path)


def test_positions_that_go_back_are_refused_unless_that_is_meant(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        await scene.ask("PUT", "/!readers/r", {"positions": {"d0": 5, "ff": 9}})
        said = problem(await scene.ask("PUT", "/!readers/r", {"positions": {"ff": 10, "d0": 4}}), 409)
        assert (said["journal"], said["position"], said["found"]) == ("d0", 5, 4)
        assert "?reset=true" in said["detail"]
        assert (await scene.get("/!readers/r")).json()["positions"] == {"d0": 5, "ff": 9}
        problem(await scene.ask("PUT", "/!readers/r", {"positions": {"d0": None}}), 409)
        # The journal of no shard that there is may be forgotten: nobody reads it any more.
        came = await scene.ask("PUT", "/!readers/r", {"positions": {"ff": None, "d0": 6}})
        assert came.json()["positions"] == {"d0": 6}
        came = await scene.ask("PUT", "/!readers/r?reset=true", {"positions": {"d0": 4}})
        assert came.json()["positions"] == {"d0": 4}
        came = await scene.ask("PUT", "/!readers/r?reset=true", {"positions": {"d0": None}})
        assert came.json()["positions"] == {}

    with_journals(check, tmp_path)


def test_readers_that_many_move_at_once_lose_no_position(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        await asyncio.gather(
            *(scene.ask("PUT", "/!readers/r", {"positions": {f"{disk:x}": 1}}) for disk in range(5))
        )
        assert len((await scene.get("/!readers/r")).json()["positions"]) == 5

    with_journals(check, tmp_path)


def test_a_change_of_what_was_read_before_is_guarded(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        tag = (await scene.ask("PUT", "/!readers/r", {"positions": {"d0": 1}})).headers["ETag"]
        came = await scene.ask("PUT", "/!readers/r", {"positions": {"d0": 2}}, If_Match=tag)
        assert came.status == 200
        problem(await scene.ask("PUT", "/!readers/r", {"positions": {"d0": 3}}, If_Match=tag), 412)
        problem(await scene.ask("PUT", "/!readers/new", {}, If_Match=tag), 412)
        tag = (await scene.get("/!readers/r")).headers["ETag"]
        came = await scene.ask("PUT", "/!readers/r", {"positions": {"d0": 3}}, If_Match=tag)
        assert came.status == 200

    with_journals(check, tmp_path)


def test_how_far_behind_is_what_the_segments_hold_from_the_position_on(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        for number in (1, 2, 3):
            scene.journals[0].add("d0", number, bytes(100))
        scene.journals[0].indexes["d0"].pop(0)
        await scene.ask("PUT", "/!readers/r", {"positions": {"d0": 16, "eeee": 3}})
        found = (await scene.get("/!readers/r")).json()
        assert found["behind"] == {"lsns": 15, "messages": 30, "bytes": 150}
        row = next(row for row in found["journals"] if row["journal"] == "d0")
        assert (row["position"], row["lsns"], row["missed"], row["oldest_ms"]) == (16, 15, 0, 2_000)
        assert found["gone"] == ["eeee"]
        await scene.ask("PUT", "/!readers/r?reset=true", {"positions": {"d0": 4}})
        (row,) = (await scene.get("/!readers/r")).json()["journals"]
        assert (row["missed"], row["lsns"]) == (7, 20)
        await scene.ask("PUT", "/!readers/r", {"positions": {"d0": 31}})
        (row,) = (await scene.get("/!readers/r")).json()["journals"]
        assert (row["lsns"], row["oldest_ms"]) == (0, None)

    with_journals(check, tmp_path)


def test_of_a_journal_that_is_away_nothing_is_known(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        scene.journals[1].add("d1", 1, bytes(100))
        await scene.ask("PUT", "/!readers/r", {"positions": {"d1": 2}})
        await scene.stop(1)
        found = (await scene.get("/!readers/r")).json()
        assert found["journals"][1] == {"journal": "d1", "shard": 1, "position": 2, "away": True}
        assert found["gone"] == []

    with_journals(check, tmp_path, 2)


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/!readers/r", [], 422, "expected a JSON object"),
        ("/!readers/r", {"position": {}}, 422, "no member"),
        ("/!readers/r", {"positions": []}, 422, "expected an object"),
        ("/!readers/r", {"positions": {"X": 1}}, 422, "no journal"),
        ("/!readers/r", {"positions": {"d0": -1}}, 422, "next lsn"),
        ("/!readers/r", {"positions": {"d0": 1.5}}, 422, "next lsn"),
        ("/!readers/r", {"positions": {"d0": True}}, 422, "next lsn"),
        ("/!readers/r", {"hold_hours": -1}, 422, "a number from 0"),
        ("/!readers/r", {"hold_hours": "1"}, 422, "a number from 0"),
        ("/!readers/r", {"hold_bytes": 1.5}, 422, "a whole number from 0"),
        ("/!readers/r?reset=perhaps", {}, 400, "true or false"),
        ("/!readers/%21x", {}, 400, "the system's"),
        ("/!readers/a%2F%2Fb", {}, 400, "empty segment"),
    ],
)
def test_what_can_not_be_is_refused_with_a_reason(
    tmp_path: Path, path: str, body: Any, status: int, word: str
) -> None:
    async def check(scene: JournalScene) -> None:
        assert word in problem(await scene.ask("PUT", path, body), status)["detail"]
        assert scene.services.map.readers == {}

    with_journals(check, tmp_path)


def test_readers_and_their_journals_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READERS_MAX", 2)
    monkeypatch.setattr(limits, "READER_POSITIONS_MAX", 3)

    async def check(scene: JournalScene) -> None:
        await scene.put(READERS + "a", Reader().encode())
        positions = {"d0": 1, "d1": 1, "d2": 1}
        assert (await scene.ask("PUT", "/!readers/b", {"positions": positions})).status == 201
        assert "remove one" in problem(await scene.ask("PUT", "/!readers/c", {}), 409)["detail"]
        said = problem(await scene.ask("PUT", "/!readers/b", {"positions": {"d3": 1}}), 422)
        assert "forget those" in said["detail"]

    with_journals(check, tmp_path)
