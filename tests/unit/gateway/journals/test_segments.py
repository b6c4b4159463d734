"""Archived segments on the gateway's machine: read without the shard, passed over where they don't fit."""

import os
from pathlib import Path

import pytest

from lightrail.journal.archive import IDENTITY, Incarnation, index_name, segment_name
from lightrail.journal.index import SegmentIndex, decode_index
from tests.support.shard.journal_scene import JournalScene, with_journals

MIB = 1024 * 1024


def archive(scene: JournalScene, number: int, data: bytes, *, cluster: str, end: int | None = None) -> None:
    """A segment of d0 in the archive, which its shard knows nothing of."""
    incarnation = Incarnation(cluster, 0, "d0")
    folder = scene.directory / "archive" / incarnation.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / IDENTITY).write_text(incarnation.encode())
    (folder / segment_name(number)).write_bytes(data)
    index = SegmentIndex(number, 1, 2, len(data) if end is None else end, sealed=True)
    (folder / index_name(number)).write_text(index.encode())


def test_what_is_in_an_archive_on_this_machine_is_read_without_asking_the_shard(tmp_path: Path) -> None:
    async def check(scene: JournalScene) -> None:
        data = os.urandom(9 * MIB)
        archive(scene, 5, data, cluster=await scene.coordinator.cluster_id())
        for _ in range(2):
            assert (await scene.get("/!journals/d0/5")).body == data
            assert (await scene.get(f"/!journals/d0/5?from=7&to={5 * MIB}")).body == data[7 : 5 * MIB]
            assert (await scene.get(f"/!journals/d0/5?to={9 * MIB + 1}")).status == 416
            index = decode_index((await scene.get("/!journals/d0/5/index")).body.decode())
            assert (index.segment, index.end) == (5, 9 * MIB)
            # It is there as well while the shard is not.
            if scene.servers:
                await scene.stop(0)
        assert scene.journals[0].reads == []

    with_journals(check, tmp_path)


@pytest.mark.parametrize("what", ["cluster", "short", "index", "gone"])
def test_an_archive_that_is_another_or_not_whole_is_passed_over(tmp_path: Path, what: str) -> None:
    async def check(scene: JournalScene) -> None:
        cluster = await scene.coordinator.cluster_id()
        archive(
            scene,
            5,
            b"something else",
            cluster="another" if what == "cluster" else cluster,
            end=100 if what == "short" else None,
        )
        folder = scene.directory / "archive" / Incarnation(cluster, 0, "d0").folder
        if what == "index":
            (folder / index_name(5)).write_text("{")
        if what == "gone":
            (folder / segment_name(5)).unlink()
        scene.journals[0].add("d0", 5, b"the shard's own")
        assert (await scene.get("/!journals/d0/5")).body == b"the shard's own"

    with_journals(check, tmp_path)
