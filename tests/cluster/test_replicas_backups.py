"""Backups of members, and volumes that are put back to an earlier state: nothing accepted is lost."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.letters import make, receive, send
from tests.cluster.replicated import DEADLINE_S, Members, ReplicaScene, hold
from tests.cluster.test_rebalance import admin
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

BACK_S = 4.0


def copied(node: Node, to: Path) -> Path:
    subprocess.run(["cp", "-a", str(node.data), str(to)], check=True)
    return to


def snapshot(node: Node, to: Path) -> Path:
    """A snapshot of its volume while it runs: the state of one instant."""
    node.stop()
    try:
        return copied(node, to)
    finally:
        node.proceed()


def put_back(node: Node, copy: Path) -> None:
    """The files of then in the same directory, as on a volume that is set back."""
    here = node.data / "shard-0"
    for path in here.iterdir():
        path.unlink()
    for path in (copy / "shard-0").iterdir():
        shutil.copy2(path, here / path.name)


def test_a_backup_of_a_follower_is_restored_and_gets_what_it_lacks(tmp_path: Path) -> None:
    """In a new directory; also one that has owned since."""
    with ReplicaScene(tmp_path, "--segment-bytes", "1MiB") as scene:
        for _ in range(3):
            scene.members.until_in_sync()
            node, owner = scene.members.followers()[0], scene.members.owner()
            with scene.fault(f"backup of {node.name}"):
                scene.members.terminate(node)
                backup = copied(node, tmp_path / f"{node.name}-backup")
                scene.members.start(node)
            scene.warm(500)
            scene.members.until_in_sync()
            with scene.fault(f"{node.name} is restored"):
                scene.members.kill(node)
                shutil.rmtree(node.data)
                shutil.copytree(backup, node.data)
                scene.members.revive(node)
                scene.warm()
            scene.members.until_in_sync()
            # The owner is lost next: the one that was restored has everything.
            with scene.fault("the owner is killed"):
                others = [each for each in scene.members.nodes if each is not node]
                scene.members.kill(*others)
                scene.members.until_taken_over(owner)
                scene.members.revive(*others)
                scene.warm()
            scene.members.until_in_sync()
            with scene.fault(f"{node.name} is restored again"):
                scene.members.kill(node)
                shutil.rmtree(node.data)
                shutil.move(backup, node.data)
                scene.members.revive(node)
                scene.warm()
                assert "an outdated copy or a restored backup" in node.log.read_text()
        scene.members.until_in_sync()
        scene.finish()


def test_a_volume_of_a_follower_is_put_back_by_seconds_under_load(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path, "--segment-bytes", "1MiB", rate=400) as scene:
        for round in range(6):
            scene.members.until_in_sync()
            owner, (victim, other) = scene.members.owner(), scene.members.followers()
            copy = snapshot(victim, tmp_path / f"copy-{round}")
            hold(BACK_S)
            with scene.fault(f"{round}: the volume of a follower is put back"):
                if round % 3 == 0:
                    # While the owner goes on.
                    scene.members.kill(victim)
                    put_back(victim, copy)
                    scene.members.revive(victim)
                elif round % 3 == 1:
                    # With the owner, so that it is a candidate.
                    scene.members.kill(victim, owner)
                    put_back(victim, copy)
                    scene.members.revive(victim, owner)
                else:
                    # It is up first, while everybody in sync was killed.
                    scene.members.kill(*scene.members.nodes)
                    put_back(victim, copy)
                    scene.members.revive(victim)
                    hold(1)
                    scene.members.revive(other, owner)
                scene.warm()
            print(scene.notes[-1], flush=True)
        scene.members.until_in_sync()
        scene.finish()


def test_the_only_member_starts_on_its_backup_by_an_operators_word(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        members = Members(cluster)
        frontend, gateway = cluster.frontend(), cluster.gateway()
        try:
            members.start()
            cluster.start(frontend, gateway)
            members.until_in_sync()
            make(frontend.amqp, "queue")
            send(frontend.amqp, "queue", "kept", "kept too")
            node = members.owner()
            members.terminate(node)
            backup = copied(node, tmp_path / "backup")
            members.start(node)
            members.until_in_sync()
            send(frontend.amqp, "queue", "later")

            # Members are left that have everything: a backup is not accepted in their place.
            members.kill(*members.nodes)
            refused = cluster.admin("shard", "accept-disk", "0")
            assert refused.returncode == 1
            assert "have all of its messages" in refused.stderr
            members.revive()
            members.until_in_sync()

            # The others are given up.
            done = admin(gateway, "shard", "replicas", "0", "--min-in-sync", "1")
            assert done.returncode == 0, done.stderr
            for each in members.nodes:
                if each is not node:
                    members.kill(each)
                    shutil.rmtree(each.data)
            wait.until(lambda: members.in_sync() == {node}, "one member is in sync", DEADLINE_S)

            members.kill(node)
            shutil.rmtree(node.data)
            shutil.copytree(backup, node.data)
            node.start()
            assert node.ended(DEADLINE_S) == 1
            assert "lightrail-admin shard accept-disk 0" in node.said()
            done = cluster.admin("shard", "accept-disk", "0")
            assert done.returncode == 0, done.stderr
            members.start(node)
            for each in members.nodes:
                if each is not node:
                    members.start(each)
            members.until_in_sync()
            assert receive(frontend.amqp, "queue", 2) == ["kept", "kept too"]
            send(frontend.amqp, "queue", "new")
            members.kill(node)
            assert receive(frontend.amqp, "queue", 1) == ["new"]
        finally:
            members.close()
