"""Standing by: a member reads its journal ahead: all but a lag, and wholly when it is to take over."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.journal.record import Queue, QueueEvent
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import Append
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.replication import standing_by
from lightrail.shard.replication.standing_by import AT_ONCE, LAG_RECORDS, StandingBy
from tests.support import wait

RECORDS = 60


def written(directory: Path) -> tuple[SimpleNamespace, int]:
    """A directory with a journal of some RECORDS, and the number of the last one."""
    journal = Journal(RealFiles(str(directory)), "c", 0, segment_bytes=20_000)
    journal.recover(1 << 20)
    journal.append(Queue(QueueEvent.DECLARED, 1, "q"), 5)
    for sequence in range(RECORDS):
        journal.append(Append([(1, sequence)], 0, 0, batch_of([b"x" * 9], durable=True), 0, 1), 6)
    journal.flush()
    last = journal.position.lsn
    found = SimpleNamespace(directory=str(directory), journal=(journal.incarnation.disk, journal.salt))
    journal.close()
    return found, last


async def eventually(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait.until, condition, what)


def run(story: Callable[[StandingBy, Any, list[None]], Any], directory: Path) -> None:
    """Runs a story with a standby, its member, and one item for each PREPARED that this has sent."""

    async def check() -> None:
        found, last = written(directory)
        prepared: list[None] = []
        following = SimpleNamespace(
            mirror=SimpleNamespace(accepted_lsn=last), prepared=lambda: prepared.append(None)
        )
        loop = asyncio.get_running_loop()
        standing = StandingBy(loop, found, following)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(30):
                await story(standing, following, prepared)
        finally:
            await standing.close()

    asyncio.run(check())


def test_a_take_over_is_left_less_than_the_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_by, "LAG_RECORDS", LAG_RECORDS * 20 // LAG_RECORDS)
    monkeypatch.setattr(standing_by, "AT_ONCE", AT_ONCE * 5 // AT_ONCE)
    monkeypatch.setattr(standing_by, "LOOK_S", 0.01)

    async def story(standing: StandingBy, following: Any, prepared: list[None]) -> None:
        last = following.mirror.accepted_lsn
        # Not worth it yet.
        following.mirror.accepted_lsn = 25
        await eventually(lambda: standing.standby is not None, "it looks")
        assert standing.standby is not None
        assert standing.standby.lsn == 0
        following.mirror.accepted_lsn = last
        await eventually(lambda: standing.standby.lsn >= last - 20, "it reads on")  # type: ignore[union-attr]
        assert standing.standby.lsn == last - 20
        assert not prepared

    run(story, tmp_path)


def test_a_member_that_is_to_take_over_reads_everything_and_says_so(tmp_path: Path) -> None:
    async def story(standing: StandingBy, following: Any, prepared: list[None]) -> None:
        standing.prepare()
        await eventually(lambda: prepared, "it has read everything")
        assert standing.standby is not None
        assert standing.standby.lsn == following.mirror.accepted_lsn

    run(story, tmp_path)


def test_damage_ends_the_reading_ahead_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standing_by, "LOOK_S", 0.01)

    async def story(standing: StandingBy, following: Any, prepared: list[None]) -> None:
        # Accepted records that are not there.
        following.mirror.accepted_lsn += 5
        standing.prepare()
        await standing._task
        assert "can't be read ahead of a take-over" in caplog.text
        assert not prepared

    run(story, tmp_path)
