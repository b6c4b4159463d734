"""Shards get replicas, and queues move between shards with replicas whose owners are killed."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.chaos.ledger import Calm, Ledger
from tests.chaos.traffic import Receiver, Sender
from tests.cluster.replicated import DEADLINE_S, Members, ReplicaScene, hold
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

pytestmark = pytest.mark.timeout(300)


@pytest.mark.soak
def test_a_shard_with_messages_gets_replicas(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        alone = cluster.shard("--id", "0", data=tmp_path / "founder")
        frontend = cluster.frontend()
        cluster.start()
        ledger = Ledger(Calm(), strict=False)
        sender = Sender(lambda: frontend.served, "q", ledger, rate=500.0)
        receiver = Receiver(lambda: frontend.served, "q", ledger)
        with sender:
            sender.until_accepted(2_000, DEADLINE_S)
            ledger.calm.disturb()
            assert alone.terminate() == 0
            members = Members(cluster, data=[tmp_path / "founder"])
            try:
                members.start()
                members.until_in_sync()
                sender.until_accepted(500, DEADLINE_S)
                owner = members.owner()
                members.kill(owner)
                members.until_taken_over(owner)
                sender.until_accepted(500, DEADLINE_S)
                members.revive(owner)
                members.until_in_sync()
                with receiver:
                    sender.finish()
                    wait.until(lambda: not ledger.lost, "everything arrives", DEADLINE_S)
                ledger.verdict()
            finally:
                members.close()


def begin_moves(gateway: Node, queues: tuple[str, ...], source: int) -> None:
    """Asks for queues to be moved to the other shard."""
    moves = [{"queue": queue, "from": source, "to": 1 - source} for queue in queues]

    def asked() -> bool:
        request = urllib.request.Request(
            f"{gateway.http}/!moves", json.dumps({"moves": moves}).encode(), method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                return len(json.load(response)["begun"]) == len(moves)
        except urllib.error.HTTPError as error:
            # Nobody knows the shards yet, or a former move is about to end.
            if error.code not in (409, 422, 503):
                raise
            return False

    wait.until(asked, "the moves begin", DEADLINE_S)


@pytest.mark.soak
def test_queues_move_between_shards_with_replicas_while_owners_are_killed(tmp_path: Path) -> None:
    queues = ("q0", "q1")
    with ReplicaScene(tmp_path) as scene:
        second = Members(scene.cluster, 1)
        try:
            second.start()
            second.until_in_sync()
            gateway = scene.cluster.gateway()
            scene.cluster.start(gateway)
            for round in range(4):
                scene.members.until_in_sync()
                second.until_in_sync()
                source = round % 2
                of = (scene.members, second)[round // 2]
                with scene.fault(f"moves from {source}, the owner of {of.id} is killed"):
                    owner = of.owner()
                    begin_moves(gateway, queues, source)
                    hold(0.1 * round)
                    of.kill(owner)
                    of.until_taken_over(owner)
                    wait.until(lambda: not scene.cluster.keys("moves/"), "the moves end", DEADLINE_S)
                    of.revive(owner)
                    scene.warm()
                for queue in queues:
                    # A move that was cancelled is asked for again.
                    if scene.cluster.placed(queue).shard == source:
                        begin_moves(gateway, (queue,), source)
                wait.until(lambda: not scene.cluster.keys("moves/"), "the moves end", DEADLINE_S)
            scene.finish()
        finally:
            second.close()
