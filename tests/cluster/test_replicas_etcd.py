"""etcd is away, or was set back, while a shard with replicas is under load: nothing is lost."""

from pathlib import Path

import pytest

from tests.cluster.replicated import MEMBERS, ReplicaScene, hold
from tests.cluster.test_rebalance import admin
from tests.support import wait

pytestmark = pytest.mark.timeout(240)


@pytest.mark.soak
def test_etcd_is_away_for_twenty_seconds_and_an_owner_is_killed_meanwhile(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        (etcd,) = scene.cluster.etcd.servers
        owner = scene.members.owner()
        etcd.kill()
        # Nobody notices: no message of the shard needs etcd.
        scene.warm()
        hold(20)
        scene.warm()
        assert not any(node.said().count("another member owns") for node in scene.members.nodes)
        with scene.fault("the owner is killed while etcd is away"):
            scene.members.kill(owner)
            hold(4)
            accepted = [sender.page.accepted for sender in scene.senders]
            hold(1)
            assert accepted == [sender.page.accepted for sender in scene.senders]
            etcd.start()
            scene.cluster.etcd.ready()
            scene.members.until_taken_over(owner)
            scene.warm()
            scene.members.revive(owner)
        scene.members.until_in_sync()
        scene.finish()


@pytest.mark.soak
def test_etcd_is_set_back_by_two_epochs_and_put_back(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        gateway = scene.cluster.gateway()
        scene.cluster.start(gateway)
        (etcd,) = scene.cluster.etcd.servers
        etcd.save(tmp_path / "snapshot")
        epoch = scene.members.epoch()
        for _ in range(2):
            scene.members.until_in_sync()
            owner = scene.members.owner()
            with scene.fault("another owner"):
                scene.members.kill(owner)
                scene.members.until_taken_over(owner)
            scene.members.start(owner)
        scene.members.until_in_sync()
        etcd.restore(tmp_path / "snapshot")
        scene.cluster.etcd.start()
        scene.cluster.etcd.ready()
        assert scene.members.epoch() == epoch
        # Members that run go on without it; none takes over by an entry that is older than the journals.
        scene.warm()
        hold(6)
        scene.warm()
        assert not scene.members.restarts
        done = admin(gateway, "coordinator", "put-back")
        assert done.returncode == 0, done.stderr
        assert "replicas/0" in done.stdout
        wait.until(lambda: scene.members.epoch() == epoch + 2, "the entry is there again")
        owner = scene.members.owner()
        with scene.fault("the owner is killed"):
            scene.members.kill(owner)
            scene.members.until_taken_over(owner)
        scene.members.start(owner)
        scene.members.until_in_sync()
        assert scene.members.epoch() > epoch + 2
        scene.finish()


@pytest.mark.soak
@pytest.mark.parametrize("is_first", [True, False])
def test_all_start_with_an_etcd_that_was_set_back(tmp_path: Path, is_first: bool) -> None:
    """Its entry has the owner of then, which starts before the others or after them; the journals of these
    know a later one. Nothing accepted since is lost."""
    with ReplicaScene(tmp_path) as scene:
        (etcd,) = scene.cluster.etcd.servers
        last = scene.members.owner()
        others = [node for node in scene.members.nodes if node is not last]
        with scene.fault("an owner later"):
            scene.members.until_in_sync()
            etcd.save(tmp_path / "snapshot")
            scene.members.kill(last)
            scene.members.until_taken_over(last)
            scene.warm()
        with scene.fault("all are killed, and etcd is set back"):
            scene.members.kill(*scene.members.nodes)
            # A frontend that runs does not follow an etcd that was set back.
            scene.frontend.kill()
            etcd.restore(tmp_path / "snapshot")
            scene.cluster.etcd.start()
            scene.cluster.etcd.ready()
            scene.members.revive(*([last] if is_first else others))
            hold(4 if is_first else 8)
            scene.members.revive(*(others if is_first else [last]))
            scene.cluster.start(scene.frontend)
            scene.warm()
        scene.members.until_in_sync(MEMBERS)
        scene.finish()
