"""Law 12: members on yesterday's backups do not serve while one with everything may be started."""

import shutil
from pathlib import Path

import pytest

from tests.cluster.letters import make, receive, send
from tests.cluster.replicated import DEADLINE_S, Members, hold
from tests.cluster.test_rebalance import admin
from tests.cluster.test_replicas_backups import snapshot
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

WITHDRAWN = "is out of sync until it has everything from the owner"


def restore(node: Node, backup: Path) -> None:
    """In a new directory; the number of an inode that was freed might be that of the new one."""
    node.data.rename(backup.with_name(f"{node.name}-lost"))
    shutil.copytree(backup, node.data)


def until_withdrawn(*nodes: Node) -> None:
    wait.until(lambda: all(WITHDRAWN in each.said() for each in nodes), "members withdraw", DEADLINE_S)


def test_restored_followers_do_not_serve_while_the_owner_with_everything_is_down(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        members = Members(cluster)
        frontend = cluster.frontend()
        try:
            members.start()
            cluster.start(frontend)
            members.until_in_sync()
            make(frontend.amqp, "queue")
            send(frontend.amqp, "queue", "before")
            owner, followers = members.owner(), members.followers()
            backups = [snapshot(node, tmp_path / f"{node.name}-backup") for node in followers]
            members.until_in_sync()
            send(frontend.amqp, "queue", "after")
            members.kill(*members.nodes)
            for node, backup in zip(followers, backups, strict=True):
                restore(node, backup)
            members.revive(*followers)
            until_withdrawn(*followers)
            assert members.in_sync() == {owner}
            hold(3)
            assert "recovered" not in "".join(node.said() for node in followers)
            members.revive(owner)
            members.until_in_sync()
            assert receive(frontend.amqp, "queue", 2) == ["before", "after"]
        finally:
            members.close()


@pytest.mark.parametrize("is_promoted", [False, True])
def test_where_only_old_backups_are_left_an_operator_chooses_one(tmp_path: Path, is_promoted: bool) -> None:
    with Cluster(tmp_path) as cluster:
        members = Members(cluster)
        frontend, gateway = cluster.frontend(), cluster.gateway()
        try:
            members.start()
            cluster.start(frontend, gateway)
            members.until_in_sync()
            make(frontend.amqp, "queue")
            send(frontend.amqp, "queue", "before")
            backups = [snapshot(node, tmp_path / f"{node.name}-backup") for node in members.nodes]
            members.until_in_sync()
            send(frontend.amqp, "queue", "after")
            members.kill(*members.nodes)
            for node, backup in zip(members.nodes, backups, strict=True):
                restore(node, backup)
            last, *others = members.nodes
            members.revive(*others)
            until_withdrawn(*others)
            last.start()
            assert last.ended(DEADLINE_S) == 1
            assert "It is the only member in sync" in last.said()
            if is_promoted:
                names = ("--member", "host-1", "--lost", "host-0", "--yes")
                done = admin(gateway, "shard", "promote", "0", *names)
            else:
                done = cluster.admin("shard", "accept-disk", "0")
            assert done.returncode == 0, done.stderr
            if not is_promoted:
                members.start(last)
            members.until_in_sync(2 if is_promoted else 3)
            assert receive(frontend.amqp, "queue", 1) == ["before"]
        finally:
            members.close()
