"""A queue moves under full traffic while, at every step of the move, each party of it dies or stands still.

The moves stand at a step because a proxy holds the very message of it (tests/cluster/holding_proxy.py), so
that a fault hits where it is meant to. After each fault the move ends, done or called off; every queue is
served by exactly the shard where it is placed; traffic goes on. In the end nothing that was accepted is lost,
nothing came twice but what clients held at a process that was killed, the order is kept, and a further move
goes through.
"""

import time
from collections import Counter
from pathlib import Path

import pytest

from lightrail.model import limits
from tests.chaos.scene import hold
from tests.cluster.chaos_cluster import (
    CATCH_UP,
    COPY,
    DEADLINE_S,
    FREEZE,
    FREEZING,
    FROZEN,
    QUEUE,
    RETIRE,
    STEPS,
    SWITCH,
    SWITCHED,
    WAITING,
    ClusterScene,
    Step,
)
from tests.cluster.island import Island, island
from tests.cluster.letters import make
from tests.cluster.usage import usage

STOP_S = 1.5
"""A pause after which nobody has given up on anybody."""
LONG_STOP_S = 12.0
"""Longer than a peer may be silent, a lease lasts, and a source waits before it wants its queue back."""
BUSY = 25_000.0
"""Messages per second that keep two processors busy; a test without a rate sends as fast as it can."""
CALM_S = 3.0
"""How long processes are watched before something happens."""
AWAY_S = 8.0
LOSS = 0.2
"""Of all packets."""
LOSSY_S = 5.0
AWAY_THREADS = limits.ETCD_THREADS + limits.ETCD_STREAM_THREADS
"""How many more a process may have while etcd is away: writes that wait, and a refresh of its lease."""
LONG_AWAY_S = 60.0
PARTIES = ("source", "destination", "frontend", "gateway", "etcd")

pytestmark = pytest.mark.timeout(300)


def kill(scene: ClusterScene, party: str, step: Step) -> None:
    """kill -9 of a party of a move at this step; it is started again when the others have gone on."""
    with scene.moving(step):
        if party in ("source", "destination", "frontend"):
            # A destination holds nothing for clients until the queue is its own, which it may be by the
            # transaction that is on its way.
            scene.disturb(holds_moved=party != "destination" or step in (SWITCH, SWITCHED, RETIRE))
        scene.victim(party).kill()
    began = time.monotonic()
    scene.back(party)
    scene.notes.append(f"kill {party} at {step}: {time.monotonic() - began:.2f} s until it was back")
    scene.recovered()


def stop(scene: ClusterScene, party: str, step: Step, seconds: float) -> None:
    """SIGSTOP of a party of a move at this step, and SIGCONT after a while; the others go on meanwhile."""
    if seconds > STOP_S:
        scene.disturb(holds_moved=True)
    with scene.moving(step):
        scene.victim(party).stop()
    hold(seconds)
    scene.victim(party).proceed()
    scene.notes.append(f"stop {party} at {step}")
    scene.recovered()


# --- parties of a move ------------------------------------------------------------------------------------

KILLS = {
    "source": (COPY, FREEZING, FROZEN, RETIRE),
    "destination": (CATCH_UP, FROZEN, SWITCH, SWITCHED),
    "frontend": (FROZEN,),
    "gateway": (WAITING,),
    "etcd": (FREEZE, SWITCH, SWITCHED),
}
STOPS = {
    "source": (COPY, FREEZING),
    "destination": (FROZEN, SWITCHED),
    "frontend": (FROZEN,),
    "gateway": (),
    "etcd": (SWITCH,),
}


def storm(
    scene: ClusterScene, party: str, kills: tuple[Step, ...], stops: tuple[Step, ...], seconds: float
) -> None:
    """One fault after the other, each in a move of its own."""
    scene.warm()
    for step in kills:
        kill(scene, party, step)
    for step in stops:
        stop(scene, party, step, seconds)
    scene.finish()
    spared = scene.workers if party != "frontend" else [scene.senders[1], scene.receivers[1]]
    scene.undisturbed(*spared)


@pytest.mark.parametrize("party", PARTIES)
def test_a_party_of_a_move_dies_or_stands_still(tmp_path: Path, party: str) -> None:
    with ClusterScene(tmp_path, strict=party != "frontend", rate=BUSY) as scene:
        storm(scene, party, KILLS[party], STOPS[party], STOP_S)


@pytest.mark.soak
@pytest.mark.parametrize("party", PARTIES)
def test_a_party_of_a_move_dies_or_stands_still_for_long_at_every_step(tmp_path: Path, party: str) -> None:
    with ClusterScene(tmp_path, strict=False, rate=10_000) as scene:
        storm(scene, party, STEPS, STEPS, LONG_STOP_S)


def test_a_few_queues_cross_each_other_while_their_shards_die(tmp_path: Path) -> None:
    """Each shard is the source of some of them and the destination of others."""
    with ClusterScene(tmp_path, rate=5_000, companions=6) as scene:
        scene.warm()
        scene.begin()
        scene.recovered()
        for party, step in (("source", FROZEN), ("destination", SWITCH)):
            kill(scene, party, step)
        scene.finish()
        scene.undisturbed(*scene.workers)


# --- a shard that is started again ------------------------------------------------------------------------


def killed_shards(tmp_path: Path) -> float:
    """The longest time in seconds from a shard being ready again to its messages coming."""
    slowest = 0.0
    with ClusterScene(tmp_path) as scene:
        scene.warm()
        for machine in scene.machines:
            scene.disturb(holds_moved=True)
            machine.node.kill()
            machine.node.start()
            began = time.monotonic()
            machine.node.until_ready(DEADLINE_S)
            ready = time.monotonic()
            scene.warm(more=10)
            served = time.monotonic()
            scene.notes.append(
                f"shard ready after {ready - began:.2f} s, served {served - ready:.2f} s later"
            )
            slowest = max(slowest, served - ready)
            scene.verified()
            scene.settled()
        scene.finish()
        scene.undisturbed(*scene.workers)
    return slowest


def test_a_shard_that_was_killed_serves_again_and_no_sender_loses_its_link(tmp_path: Path) -> None:
    killed_shards(tmp_path)


@pytest.mark.soak
def test_a_shard_that_was_killed_serves_again_within_three_seconds(tmp_path: Path) -> None:
    assert killed_shards(tmp_path) < 3.0


# --- etcd is away -----------------------------------------------------------------------------------------


def away(scene: ClusterScene, seconds: float, *, stopped: bool) -> None:
    """etcd is dead, or stands still, for so long; what processes use meanwhile, and what they can't do."""
    (etcd,) = scene.cluster.etcd.servers
    nodes = scene.cluster.nodes
    scene.warm()
    begun = {node.name: usage(node.pid) for node in nodes}
    hold(CALM_S)
    calm = {node.name: usage(node.pid) for node in nodes}
    to = 1 - scene.placement()["shard"]
    began = time.monotonic()
    (etcd.stop if stopped else etcd.kill)()
    threads = Counter(dict.fromkeys(calm, 0))
    while time.monotonic() - began < seconds:
        # Changes are refused, and may be asked for again and again.
        status, answer = scene.http("POST", "/!moves", {"moves": [{"queue": QUEUE, "to": to}]})
        assert status == 503, (status, answer)
        for node in nodes:
            threads[node.name] = max(threads[node.name], usage(node.pid).threads)
        hold(0.1)
    scene.warm()
    took = time.monotonic() - began
    for node in nodes:
        now, before = usage(node.pid), calm[node.name]
        share = (now.cpu_s - before.cpu_s) / took
        share_before = (before.cpu_s - begun[node.name].cpu_s) / CALM_S
        scene.notes.append(
            f"{node.name}: {share:.3f} of a processor, {share_before:.3f} before; "
            f"{threads[node.name]} threads, {before.threads} before"
        )
        assert share < 1.5 * share_before + 0.1, scene.report()
        assert threads[node.name] <= before.threads + AWAY_THREADS, scene.report()
    if stopped:
        etcd.proceed()
    else:
        scene.cluster.etcd.start()
    make(scene.frontends[0].amqp, "new")
    # What etcd had taken in before it stood still, it does now, though everybody was told that it is away.
    scene.over()
    scene.finish()
    assert not any(ledger.again for ledger in scene.ledgers)
    scene.undisturbed(*scene.workers)
    for node in nodes:
        assert usage(node.pid).threads <= calm[node.name].threads + AWAY_THREADS, node.name


@pytest.mark.parametrize("stopped", [False, True], ids=["dead", "stands still"])
def test_nobody_notices_that_etcd_is_away_and_changes_go_through_when_it_is_back(
    tmp_path: Path, stopped: bool
) -> None:
    with ClusterScene(tmp_path, rate=2_000) as scene:
        away(scene, AWAY_S, stopped=stopped)


@pytest.mark.soak
@pytest.mark.parametrize("stopped", [False, True], ids=["dead", "stands still"])
def test_nobody_notices_that_etcd_is_away_for_a_minute(tmp_path: Path, stopped: bool) -> None:
    with ClusterScene(tmp_path, rate=5_000) as scene:
        away(scene, LONG_AWAY_S, stopped=stopped)


# --- a shard that is cut off ------------------------------------------------------------------------------


def cut_off(scene: ClusterScene, net: Island) -> float:
    """The cable of the second shard is out from now on, which is returned (monotonic)."""
    scene.disturb(holds_moved=True)
    net.pull()
    return time.monotonic()


def still_at_work(scene: ClusterScene, result: str, began: float) -> None:
    """Without the shard that is cut off the move ends and the queue goes on; returns after long enough."""
    assert scene.ended() == result
    scene.senders[0].until_accepted(1_000, DEADLINE_S)
    scene.receivers[0].until_received(1_000, DEADLINE_S)
    took = time.monotonic() - began
    scene.notes.append(f"{result}, and in traffic, {took:.2f} s after the cable was out")
    hold(max(0.0, began + LONG_STOP_S - time.monotonic()))


def test_a_shard_is_cut_off_from_everybody_in_the_middle_of_a_move(tmp_path: Path) -> None:
    """For longer than its lease, than a peer may be silent, and than a source leaves a queue frozen.

    First as the source: the queue goes on at the destination while its former owner knows nothing of it. Then
    as the destination: the source wins its queue back, and the transaction that comes late is refused.
    """
    with island() as net, ClusterScene(tmp_path, strict=False, rate=5_000, island=net) as scene:
        scene.warm()
        if scene.placement()["shard"] == 0:
            scene.begin()
            scene.recovered()
        with scene.moving(SWITCH):
            began = cut_off(scene, net)
        still_at_work(scene, "done", began)
        net.plug()
        scene.recovered()
        with scene.moving(SWITCH):
            began = cut_off(scene, net)
            still_at_work(scene, "cancelled", began)
        net.plug()
        scene.recovered()
        assert scene.placement()["shard"] == 0
        scene.finish()
        scene.undisturbed(*scene.workers)


def test_a_network_that_loses_packets_loses_no_message(tmp_path: Path) -> None:
    """One packet of five, each way, between a shard and all others, etcd too, while its queue moves."""
    with island() as net, ClusterScene(tmp_path, strict=False, rate=2_000, island=net) as scene:
        scene.warm()
        scene.disturb(holds_moved=True)
        net.lose(LOSS)
        for _ in range(2):
            scene.begin()
            scene.over()
        hold(LOSSY_S)
        net.lose(0)
        # The kernel waits longer and longer before it sends a lost packet again. That others give up who is
        # silent meanwhile is a consequence of the losses: only after that time is there calm.
        hold(2 * limits.PEER_SILENCE_MS / 1000)
        scene.recovered()
        scene.finish()
        scene.undisturbed(*scene.workers)
