"""The members of a shard are replaced one by one, as a StatefulSet does, and it accepts throughout."""

from pathlib import Path

import pytest

from tests.cluster.replicated import DEADLINE_S, MEMBERS, ReplicaScene
from tests.support import wait
from tests.support.deploy.cluster import Node

pytestmark = pytest.mark.timeout(240)


def replace(scene: ReplicaScene, node: Node) -> None:
    """Ends a process and starts it again; returns when its readiness probe succeeds."""
    members = scene.members
    members.terminate(node)
    members.until_out(node)
    members.revive(node)

    def is_ready() -> bool:
        assert len(members.in_sync()) >= MEMBERS - 1, "never below the minimum"
        return node.asked("/readyz")[0] == 200

    wait.until(is_ready, f"{node.name} is ready", DEADLINE_S)


def test_a_rolling_upgrade_waits_for_each_member_to_be_in_sync(tmp_path: Path) -> None:
    with ReplicaScene(tmp_path) as scene:
        for node in reversed(scene.members.nodes):
            # On a busy machine another member may be out of sync for a while: who upgrades looks at all pods.
            scene.members.until_in_sync()
            with scene.fault(f"{node.name} is replaced"):
                replace(scene, node)
                assert node in scene.members.in_sync(), f"{node.name} was ready before it was in sync"
        assert scene.members.restarts == 0
        scene.finish()
