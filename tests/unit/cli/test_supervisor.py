"""The supervisor with real processes: order, restarts, and ends of every kind."""

import os
import signal
import struct
from pathlib import Path

import pytest

from lightrail.shard.queues.delivery_marks import FILE as MARKS_FILE
from lightrail.shard.startup import data_directory as residences
from tests.support import wait
from tests.support.broker import Broker

COMMAND = ("-m", "tests.unit.cli.serve_roles")
FLAGS = ("--shards", "2", "--frontends", "2")
EVERYBODY = ["shard-0", "shard-1", "frontend-0", "frontend-1", "gateway-0"]


def broker(data: Path, *flags: str) -> Broker:
    return Broker(data, *FLAGS, *flags, command=COMMAND)


def events(data: Path, event: str) -> list[str]:
    """Names of the processes to which it happened, in order."""
    path = data / "events"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [name for name, what, _ in rows if what == event]


def started(data: Path, name: str) -> list[int]:
    """Process numbers of all starts of one child, in order."""
    rows = [line.split() for line in (data / "events").read_text().splitlines()]
    return [int(pid) for one, what, pid in rows if (one, what) == (name, "ready")]


def test_shards_start_before_all_others_and_stop_after_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(data) as running:
        roles = [(one["role"], one["id"]) for one in running.ready["processes"]]
        assert [f"{role}-{id}" for role, id in roles] == EVERYBODY
        assert all(one["ready"] and one["metrics"] for one in running.ready["processes"])
        assert running.ready["pid"] == running.process.pid
        assert running.terminate() == 0
        starts, ends = events(data, "start"), events(data, "stop")
        assert sorted(starts[:2]) == EVERYBODY[:2]
        assert sorted(starts[2:]) == EVERYBODY[2:]
        assert sorted(ends[:3]) == EVERYBODY[2:]
        assert sorted(ends[3:]) == EVERYBODY[:2]


@pytest.mark.parametrize("name", ["shard-1", "frontend-0", "gateway-0"])
def test_a_killed_child_comes_back(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    with broker(data) as running:
        for times in range(1, 4):
            (*_, pid) = started(data, name)
            os.kill(pid, signal.SIGKILL)
            wait.until_with(times, lambda n: len(started(data, name)) > n, f"{name} comes back")
        others = [other for other in EVERYBODY if other != name]
        assert all(len(started(data, other)) == 1 for other in others), "the others went on"
        assert running.terminate() == 0
        assert f"{name} (pid {pid}) was ended by SIGKILL; starting it again" in running.said()


def test_the_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(data) as running:
        running.kill()
        for one in running.ready["processes"]:
            wait.until_with(one["pid"], lambda pid: wait.gone(pid), f"{one['role']}-{one['id']} ends")
        assert sorted(events(data, "stop")) == sorted(EVERYBODY)
        assert events(data, "start").count("shard-0") == 1


def test_a_new_instance_waits_for_the_children_of_one_that_was_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "shard-0.deaf").touch()
    with broker(data) as first:
        deaf = started(data, "shard-0")[0]
        first.kill()
        second = broker(data)
        try:
            wait.until(lambda: "instance that ended" in second.said(), "the second instance waits")
            (data / "shard-0.deaf").unlink()
            os.kill(deaf, signal.SIGKILL)
            second.until_ready()
            assert len(started(data, "shard-0")) == 2
        finally:
            second.stop()


def test_a_second_instance_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(data) as first:
        second = broker(data)
        try:
            assert second.process.wait(wait.DEADLINE_S) == 1
            assert f"in use by another instance (pid {first.process.pid})" in second.said()
        finally:
            second.stop()
        assert all(not wait.gone(one["pid"]) for one in first.ready["processes"])


def test_a_child_that_never_gets_ready_is_killed_and_started_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(data, "--ready", "5") as running:
        (data / "frontend-1.hang").touch()
        (pid,) = started(data, "frontend-1")
        os.kill(pid, signal.SIGKILL)
        wait.until(lambda: "frontend-1 was not ready in 5 s and is killed" in running.said(), "its time")
        (data / "frontend-1.hang").unlink()
        wait.until(lambda: len(started(data, "frontend-1")) == 2, "frontend-1 comes back")


def test_a_child_that_says_what_it_waits_for_is_given_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(data, "--ready", "3") as running:
        (data / "frontend-1.wait").touch()
        (pid,) = started(data, "frontend-1")
        os.kill(pid, signal.SIGKILL)
        wait.until(lambda: len(events(data, "start")) == 6, "frontend-1 is started again")
        # Twenty of them take a second.
        wait.until(lambda: len(events(data, "wait")) > 80, "more than its time has passed")
        assert "was not ready" not in running.said()
        (data / "frontend-1.wait").unlink()
        wait.until(lambda: len(started(data, "frontend-1")) == 2, "it serves")
        assert events(data, "start").count("frontend-1") == 2


def test_a_child_that_can_not_start_ends_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "shard-1.fail").touch()
    running = broker(data)
    try:
        assert running.process.wait(wait.DEADLINE_S) == 1
        assert "shard-1 (pid" in running.said()
        assert "started 5 times in vain" in running.said()
        assert "RuntimeError: asked to fail" in running.said()
        assert events(data, "stop") in ([], ["shard-0"])
        assert events(data, "start").count("frontend-0") == 0
    finally:
        running.stop()


def test_a_child_that_no_other_start_helps_is_started_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "shard-1.unhealed").touch()
    running = broker(data)
    try:
        assert running.process.wait(wait.DEADLINE_S) == os.EX_CONFIG
        assert events(data, "start").count("shard-1") == 1
        assert "shard-1 can't serve: asked to fail for good" in running.said()
        assert "ended with status 78: its last line has the reason" in running.said()
        assert events(data, "start").count("frontend-0") == 0
    finally:
        running.stop()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("identity.json", b'{"format": 99}'),
        (MARKS_FILE, struct.pack("<8sHH16s", b"LRDMARKS", 99, 0, b"").ljust(64, b"\0")),
    ],
    ids=["journal", "delivery-marks"],
)
def test_a_store_of_a_newer_format_ends_the_start_at_once(tmp_path: Path, name: str, content: bytes) -> None:
    """A downgrade: the directory of a shard was written by a newer program."""
    data = tmp_path / "data"
    (data / "shard-0").mkdir(parents=True, mode=0o700)
    data.chmod(0o700)
    (data / "shard-0" / name).write_bytes(content)
    running = Broker(data, "--shards", "1", "--frontends", "1")
    try:
        assert running.process.wait(wait.DEADLINE_S) == os.EX_CONFIG
        assert running.said().count("shard-0 can't serve") == 1
        assert "version 99" in running.said()
        assert "starting it again" not in running.said()
    finally:
        running.stop()


def test_a_store_that_another_process_has_is_tried_again(tmp_path: Path) -> None:
    """Its process may end: that heals."""
    data = tmp_path / "data"
    (data / "shard-0").mkdir(parents=True, mode=0o700)
    data.chmod(0o700)
    other = residences.hold(str(data), 0)
    assert other is not None
    running = Broker(data, "--shards", "1", "--frontends", "1")
    try:
        wait.until(lambda: "starting it again" in running.said(), "it is tried again")
        other.leave()
        running.until_ready()
        assert running.terminate() == 0
    finally:
        running.stop()


def test_once_everything_served_it_is_tried_for_ever(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with broker(data) as running:
        (data / "shard-0.fail").touch()
        os.kill(started(data, "shard-0")[0], signal.SIGKILL)
        wait.until(lambda: events(data, "start").count("shard-0") > 7, "it is started again and again")
        assert running.process.poll() is None
        (data / "shard-0.fail").unlink()
        wait.until(lambda: len(started(data, "shard-0")) == 2, "it serves when it can")


def test_a_child_that_does_not_obey_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "frontend-0.deaf").touch()
    with broker(data, "--stop", "0.5") as running:
        assert running.terminate() == 0
        assert "frontend-0 did not end in 0 s and is killed" in running.said()
        assert sorted(events(data, "stop")) == sorted(set(EVERYBODY) - {"frontend-0"})


def test_asked_twice_it_does_not_wait(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "shard-0.deaf").touch()
    with broker(data) as running:
        running.process.send_signal(signal.SIGINT)
        wait.until(lambda: "shard-1" in events(data, "stop"), "shards are told")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(wait.DEADLINE_S) == 0


def test_stopped_while_it_starts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "shard-0.hang").touch()
    running = broker(data)
    try:
        wait.until(lambda: len(events(data, "start")) == 2, "the shards are started")
        assert running.terminate() == 0
        assert sorted(events(data, "stop")) == ["shard-0", "shard-1"]
    finally:
        running.stop()
