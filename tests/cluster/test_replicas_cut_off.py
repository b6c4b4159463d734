"""Members of a shard with replicas are cut off: from each other, from etcd, from all; nothing is lost."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightrail.model import limits
from tests.cluster.island import Island, island
from tests.cluster.replicated import ReplicaScene, hold
from tests.support import wait

pytestmark = pytest.mark.timeout(240)
AWAY_S = 6.0
"""Longer than a take-over needs."""


@pytest.fixture
def net() -> Iterator[Island]:
    with island() as place:
        yield place


def block(net: Island, chain: str, *match: str) -> None:
    subprocess.run([*net.inside, "iptables", "-A", chain, *match, "-j", "DROP"], check=True)


def unblock(net: Island) -> None:
    subprocess.run([*net.inside, "iptables", "-F"], check=True)


def make_owner(scene: ReplicaScene) -> None:
    """Lets the member on the island own."""
    islander = scene.members.nodes[0]
    for _ in range(10):
        scene.members.until_in_sync()
        owner = scene.members.owner()
        if owner is islander:
            return
        with scene.fault("another owner"):
            scene.members.kill(owner)
            scene.members.until_taken_over(owner)
        scene.members.start(owner)
    raise AssertionError("the member on the island never owns")


def test_an_owner_whose_machine_is_cut_off_is_replaced(tmp_path: Path, net: Island) -> None:
    with ReplicaScene(tmp_path, island=net) as scene:
        make_owner(scene)
        islander = scene.members.nodes[0]
        with scene.fault("the owner's cable is out"):
            net.pull()
            scene.members.until_taken_over(islander)
            scene.warm()
            hold(AWAY_S)
            net.plug()
        scene.members.until_in_sync()
        assert scene.members.restarts >= 1
        scene.finish()


@pytest.mark.soak
@pytest.mark.parametrize("chain", ["INPUT", "OUTPUT"])
def test_an_owner_that_hears_nobody_or_is_not_heard_is_replaced(
    tmp_path: Path, net: Island, chain: str
) -> None:
    with ReplicaScene(tmp_path, island=net) as scene:
        make_owner(scene)
        islander = scene.members.nodes[0]
        with scene.fault(f"{chain} of the owner is blocked"):
            block(net, chain)
            scene.members.until_taken_over(islander)
            scene.warm()
            hold(AWAY_S)
            unblock(net)
        scene.members.until_in_sync()
        scene.finish()


@pytest.mark.soak
def test_a_follower_whose_machine_is_cut_off_is_removed(tmp_path: Path, net: Island) -> None:
    with ReplicaScene(tmp_path, island=net) as scene:
        islander = scene.members.nodes[0]
        if scene.members.owner() is islander:
            with scene.fault("another owner"):
                scene.members.kill(islander)
                scene.members.until_taken_over(islander)
            scene.members.start(islander)
            scene.members.until_in_sync()
        epoch = scene.members.epoch()
        with scene.fault("a follower's cable is out"):
            net.pull()
            scene.members.until_out(islander)
            hold(AWAY_S)
            scene.warm()
            net.plug()
        scene.members.until_in_sync()
        assert scene.members.epoch() == epoch
        scene.finish()


@pytest.mark.soak
def test_an_owner_that_is_cut_off_from_etcd_alone_goes_on(tmp_path: Path, net: Island) -> None:
    with ReplicaScene(tmp_path, island=net) as scene:
        make_owner(scene)
        epoch = scene.members.epoch()
        assert scene.members.etcd is not None
        port = scene.members.etcd.address.rpartition(":")[2]
        block(net, "OUTPUT", "-p", "tcp", "--dport", port)
        began = time.monotonic()
        scene.warm()
        # Its registration ends with its lease; those who have its address keep it.
        hold(max(0.0, began + limits.ETCD_LEASE_MS / 1000 + 5 - time.monotonic()))
        scene.warm()
        unblock(net)
        wait.until(lambda: "shards/0" in scene.members.cluster.keys("shards/"), "it is registered again")
        assert scene.members.epoch() == epoch
        scene.members.until_in_sync()
        scene.finish()


@pytest.mark.soak
def test_an_owner_that_is_cut_off_from_its_followers_alone_is_replaced(tmp_path: Path, net: Island) -> None:
    """It reaches etcd and clients: it can neither accept anything nor remove all others."""
    with ReplicaScene(tmp_path, island=net) as scene:
        make_owner(scene)
        islander = scene.members.nodes[0]
        with scene.fault("the owner and its followers don't reach each other"):
            for port in ports_of_members(scene):
                for chain, way in (("INPUT", "--sport"), ("OUTPUT", "--dport")):
                    block(net, chain, "-p", "tcp", way, port)
                    other = {"--sport": "--dport", "--dport": "--sport"}[way]
                    block(net, chain, "-p", "tcp", other, port)
            scene.members.until_taken_over(islander)
            scene.warm()
            hold(AWAY_S)
            unblock(net)
        scene.members.until_in_sync()
        scene.finish()


def ports_of_members(scene: ReplicaScene) -> list[str]:
    """Ports at which members listen for each other."""
    return [
        value.partition('"address":"')[2].partition('"')[0].rpartition(":")[2]
        for value in scene.members.cluster.keys("followers/").values()
    ]
