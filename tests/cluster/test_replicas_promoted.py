"""All members in sync are lost, and an operator lets another one own the shard with what it has."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from lightrail.cli import admin
from lightrail.client.sync import connect
from lightrail.journal.record import RANGE_RECORDS
from tests.cluster.replicated import DEADLINE_S, Members
from tests.support import wait
from tests.support.deploy.cluster import Cluster, Node

pytestmark = pytest.mark.timeout(240)


def send(frontend: Node, numbers: Sequence[int]) -> None:
    with connect(frontend.amqp) as connection, connection.sender("q", resume=int(DEADLINE_S)) as sender:
        for number in numbers:
            sender.send(number)


def received(frontend: Node, count: int) -> list[int]:
    found: list[int] = []
    with connect(frontend.amqp) as connection, connection.receiver("q", resume=int(DEADLINE_S)) as receiver:
        while len(found) < count:
            for delivery in receiver.receive(count, timeout=DEADLINE_S):
                found.append(delivery.message.body)
                delivery.accept()
    return found


def segments(node: Node) -> dict[str, bytes]:
    """The bytes of all segments that were begun."""
    found = {path.name: path.read_bytes().rstrip(b"\0") for path in node.data.rglob("*.segment")}
    return {name: data for name, data in found.items() if data}


@pytest.mark.soak
def test_a_member_out_of_sync_is_promoted_and_a_lost_one_that_is_back_keeps_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path) as cluster:
        members = Members(cluster)
        frontend, gateway = cluster.frontend(), cluster.gateway()

        def run(*words: str) -> int:
            return admin.main(["--url", gateway.http, "shard", *words])

        try:
            members.start()
            cluster.start(frontend, gateway)
            members.until_in_sync()
            send(frontend, range(20))
            behind = members.followers()[0]
            members.kill(behind)
            members.until_out(behind)
            send(frontend, range(20, 30))
            back, emptied = [node for node in members.nodes if node is not behind]
            members.kill(back, emptied)
            shutil.rmtree(emptied.data)
            kept = segments(back)
            members.revive(behind)
            hosts = {node: f"host-{members.nodes.index(node)}" for node in members.nodes}
            words = ("promote", "0", "--member", hosts[behind])
            lost = ("--lost", hosts[back], "--lost", hosts[emptied])
            assert run(*words, *lost) == 1
            assert "two sides may accept" in capsys.readouterr().err
            # Until the registrations of the killed processes have expired it is refused.
            wait.until(lambda: run(*words, *lost, "--yes") == 0, "the member is promoted", DEADLINE_S)
            assert "nothing is accepted or delivered before 2 members are in sync" in capsys.readouterr().out
            assert run("replicas", "0", "--min-in-sync", "1") == 0
            send(frontend, range(100, 105))
            assert received(frontend, 25) == [*range(20), *range(100, 105)]
            # What the lost members alone have stays where it is.
            members.revive(back)
            wait.until(
                lambda: "nothing was cut, and this member does not follow" in back.said(), "it refuses"
            )
            capsys.readouterr()
            assert run("replicas", "0") == 0
            assert f"{hosts[back]}: it has records up to" in capsys.readouterr().out
            members.revive(emptied)
            members.until_in_sync(2)
            assert members.in_sync() == {behind, emptied}
            assert back.running
            assert segments(back) == kept
            # An owner that starts again does not jump again, and its successor serves the same range.
            epoch = members.entry()["promoted"]
            members.kill(behind)
            members.until_taken_over(behind)
            send(frontend, range(200, 205))
            assert received(frontend, 5) == [*range(200, 205)]
            assert "were given up when another member was promoted" in emptied.said()
            assert f"to {epoch * RANGE_RECORDS - 1} are lost" in emptied.said()
        finally:
            members.close()
