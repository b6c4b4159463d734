"""Owners and followers of a shard with replicas are killed, stopped and ended under load: nothing is lost."""

import random
import shutil
import time
from pathlib import Path

import pytest

from tests.cluster.replicated import MEMBERS, ReplicaScene, hold
from tests.cluster.test_rebalance import admin

pytestmark = pytest.mark.timeout(240)


def test_owners_are_killed_with_their_disks_and_nothing_is_lost(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        for _ in range(MEMBERS):
            owner = scene.members.owner()
            with scene.fault("owner killed, and its directory removed"):
                scene.members.kill(owner)
                shutil.rmtree(owner.data)
            scene.members.start(owner)
            scene.members.until_in_sync()
        scene.finish()


def test_a_shard_is_handed_over_by_an_operator_under_load(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        gateway = scene.cluster.gateway()
        scene.cluster.start(gateway)
        for round in range(2):
            scene.members.until_in_sync()
            owner = scene.members.owner()
            with scene.fault(f"hand-over {round}"):
                done = admin(gateway, "shard", "handover", "0")
                assert done.returncode == 0, done.stderr
                assert scene.members.owner() is not owner
        scene.members.until_in_sync()
        # Those that have handed over follow.
        assert scene.members.restarts == 2
        scene.finish()


@pytest.mark.soak
def test_the_pauses_of_kill_and_orderly_end(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        for round in range(3):
            for way in ("kill", "terminate"):
                scene.members.until_in_sync()
                owner = scene.members.owner()
                with scene.fault(f"{way} {round}"):
                    if way == "kill":
                        scene.members.kill(owner)
                    else:
                        scene.members.terminate(owner)
                scene.members.start(owner)
        scene.finish()


@pytest.mark.soak
def test_an_owner_stands_still_for_ten_seconds_under_load(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        owner = scene.members.owner()
        with scene.fault("SIGSTOP of the owner"):
            owner.stop()
            began = time.monotonic()
            scene.members.until_taken_over(owner)
            scene.warm()
            hold(began + 10 - time.monotonic())
            owner.proceed()
        scene.members.until_in_sync()
        assert scene.members.restarts == 1
        scene.finish()


@pytest.mark.soak
def test_a_follower_stands_still_under_load_and_is_removed(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        follower = scene.members.followers()[0]
        with scene.fault("SIGSTOP of a follower"):
            follower.stop()
            scene.members.until_out(follower)
        with scene.fault("SIGCONT of a follower"):
            follower.proceed()
            scene.members.until_in_sync()
        assert scene.pause_s() < 1.5
        scene.finish()


@pytest.mark.soak
def test_two_of_three_are_killed_and_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        for lost_disk in (False, True):
            scene.members.until_in_sync()
            owner, follower = scene.members.owner(), scene.members.followers()[0]
            with scene.fault("owner and a follower killed"):
                scene.members.kill(owner, follower)
                if lost_disk:
                    shutil.rmtree(owner.data)
                hold(3)
                scene.members.revive(owner, follower)
                scene.members.until_in_sync()
        scene.finish()


def test_all_are_killed_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        for _ in range(2):
            with scene.fault("all killed"):
                scene.members.kill(*scene.members.nodes)
                scene.members.revive()
                scene.members.until_in_sync()
        scene.finish()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_owners_are_killed_again_and_again(tmp_path: Path) -> None:
    dice = random.Random(time.time_ns())
    with ReplicaScene(tmp_path, pairs=4) as scene:
        for round in range(30):
            with scene.fault(f"round {round}"):
                victims = {scene.members.owner()}
                if dice.random() < 0.3:
                    victims.add(dice.choice(scene.members.nodes))
                scene.members.kill(*victims)
                hold(dice.uniform(0, 3))
                scene.members.revive(*victims)
            hold(dice.uniform(0, 2))
        scene.finish()
