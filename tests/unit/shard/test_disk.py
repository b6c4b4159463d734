"""What is reported of the disk: once when it begins, once when it ends."""

import pytest

from lightrail.shard.startup.storage import DISK_ROOM_MS, DISK_SILENCE_MS, DiskWatch
from tests.support.now import now

SILENCE_S = DISK_SILENCE_MS / 1000
ROOM_S = DISK_ROOM_MS / 1000


@pytest.fixture(autouse=True)
def every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_a_commit_that_is_slow_is_no_silence(caplog: pytest.LogCaptureFixture) -> None:
    watch = DiskWatch()
    assert (watch.age_s(50), watch.is_silent(50)) == (0, False)
    watch.commit_begun(50)
    watch.watch("", 50 + SILENCE_S)
    assert (watch.age_s(50 + SILENCE_S), watch.silence(50 + SILENCE_S)) == (SILENCE_S, None)
    watch.commit_ended(50 + SILENCE_S)
    assert watch.age_s(90) == 0
    assert not caplog.records


def test_a_disk_that_hangs_is_reported_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = DiskWatch()
    watch.commit_begun(0)
    for now_s in (6, 7, 60):
        watch.watch("", now_s)
    assert watch.silence(60) == "the disk has not answered for 60 s"
    watch.commit_ended(134)
    watch.watch("", 135)
    assert [(each.levelname, each.getMessage().partition(":")[0]) for each in caplog.records] == [
        ("ERROR", "the disk has not answered for 6 s"),
        ("WARNING", "the disk answers again; a commit took 134.0 s"),
    ]
    assert watch.silence(135) is None


def test_a_disk_without_room_is_reported_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = DiskWatch()
    watch.watch("", 0)
    for now_s in range(1, 5):
        watch.watch("free space on the disk", now_s)
    assert now(watch.is_full)
    assert watch.notice() == "refuses messages: free space on the disk"
    # Some room comes and goes, as the cleaner frees segments.
    for now_s in range(5, 30):
        watch.watch("" if now_s % 2 else "free space on the disk", now_s)
    assert now(watch.is_full)
    watch.watch("", 30)
    watch.watch("", 30 + ROOM_S)
    assert not watch.is_full
    assert watch.notice() is None
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", "no room for messages: free space on the disk"),
        ("WARNING", "there is room for messages again"),
    ]
