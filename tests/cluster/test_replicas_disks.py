"""Disks of members are full, hang, fail, are set back, and copied: nothing is lost."""

import errno
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.chaos.disk import mounted
from tests.chaos.failing_calls import built
from tests.cluster.replicated import MEMBERS, ReplicaScene, hold
from tests.support import wait

pytestmark = pytest.mark.timeout(240)


@pytest.mark.soak
def test_a_follower_with_a_full_disk_is_removed_and_comes_back(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", 32) as disk:
        where = [disk.path / "data", tmp_path / "b", tmp_path / "c"]
        with ReplicaScene(tmp_path, "--segment-bytes", "1MiB", data=where) as scene:
            victim = scene.members.nodes[0]
            if scene.members.owner() is victim:
                with scene.fault("another owner"):
                    scene.members.kill(victim)
                    scene.members.until_taken_over(victim)
                scene.members.start(victim)
                scene.members.until_in_sync()
            with scene.fault("a follower's disk is full"):
                wait.until(lambda: disk.fill() or victim not in scene.members.in_sync(), "it is out", 60)
                scene.members.until_out(victim)
                scene.warm()
                hold(2)
                disk.free()
            scene.members.until_in_sync()
            scene.finish()


@pytest.mark.parametrize("of", ["owner", pytest.param("follower", marks=pytest.mark.soak)])
def test_a_disk_that_hangs(tmp_path: Path, of: str) -> None:
    faulty = built(tmp_path, tmp_path / "member-0-0")
    with ReplicaScene(tmp_path, environs=[faulty.environ()]) as scene:
        victim = scene.members.nodes[0]
        is_owner = scene.members.owner() is victim
        if is_owner != (of == "owner"):
            with scene.fault("another owner"):
                other = scene.members.owner()
                scene.members.kill(other)
                scene.members.until_taken_over(other)
            scene.members.start(other)
            scene.members.until_in_sync()
        with scene.fault(f"the disk of the {of} hangs"):
            faulty.hang()
            try:
                if of == "follower":
                    scene.members.until_out(victim)
                else:
                    scene.members.until_taken_over(victim)
                scene.warm()
                hold(3)
            finally:
                faulty.go_on()
        scene.members.until_in_sync()
        scene.finish()


@pytest.mark.soak
def test_a_disk_that_fails_again_and_again(tmp_path: Path) -> None:
    """One call in each life of a member fails, whether it owns or follows then."""
    faulty = built(tmp_path, tmp_path / "member-0-0")
    with ReplicaScene(tmp_path, environs=[faulty.environ(1_500, errno.EIO)]) as scene:
        victim = scene.members.nodes[0]
        with scene.fault("calls fail"):
            for _ in range(2):
                restarts = scene.members.restarts
                wait.until(lambda: scene.members.restarts > restarts, "the member ends", 60)  # noqa: B023
                scene.warm()
        with scene.fault("the disk works again"):
            scene.members.kill(victim)
            victim._environ = {}
            scene.members.start(victim)
        scene.members.until_in_sync()
        scene.finish()


@pytest.mark.soak
def test_a_directory_that_is_set_back_loses_nothing(tmp_path: Path) -> None:
    """Each member in turn gets the files that it had before, in the same directory."""
    with ReplicaScene(tmp_path, "--segment-bytes", "1MiB", rate=400) as scene:
        for node in scene.members.nodes:
            scene.members.until_in_sync()
            copy = tmp_path / f"{node.name}-before"
            scene.warm(500)
            with scene.fault("set back"):
                scene.members.until_in_sync()
                scene.members.kill(node)
                subprocess.run(["cp", "-a", str(node.data), str(copy)], check=True)
                scene.members.until_out(node)
                scene.members.revive(node)
                scene.members.until_in_sync()
                scene.warm(500)
                scene.members.until_in_sync()
                scene.members.kill(*scene.members.nodes)
                here = node.data / "shard-0"
                for path in here.iterdir():
                    path.unlink()
                for path in (copy / "shard-0").iterdir():
                    shutil.copy2(path, here / path.name)
                # It withdraws, alone. The other two are compared with each other before one of them serves.
                others = [each for each in scene.members.nodes if each is not node]
                scene.members.revive(node)
                scene.members.until_out(node)
                for other in others:
                    scene.members.revive(other)
                scene.warm()
        scene.members.until_in_sync()
        scene.finish()


@pytest.mark.soak
def test_two_processes_on_copies_of_one_directory(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        for node in (scene.members.followers()[0], scene.members.owner()):
            scene.members.until_in_sync()
            copy = scene.cluster.shard(*node.flags, data=tmp_path / f"{node.name}-copy")
            with scene.fault("copied"):
                subprocess.run(["cp", "-a", str(node.data), str(copy.data)], check=True)
                copy.start()
                assert copy.ended(60) == 1, copy.said()
                assert "Traceback" not in copy.said(), copy.said()
                assert node.running
                # The copy starts first after a crash, and the original follows.
                scene.members.until_in_sync()
                scene.members.kill(node)
                copy.start()
                scene.warm()
                hold(3)
                scene.members.revive(node)
                hold(8)
                print("copy:", copy.running, copy.said()[-600:])
                copy.kill()
        wait.until(lambda: len(scene.members.in_sync()) == MEMBERS, "all are in sync", 60)
        scene.finish()
