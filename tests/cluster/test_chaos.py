"""A queue moves under full traffic while, at every step of the move, each party of it dies or stands still.

The moves stand at a step because a proxy holds the very message of it (tests/support/holding_proxy.py), so
that a fault hits where it is meant to. After each fault the move ends, done or called off; every queue is
served by exactly the shard where it is placed; traffic goes on. In the end nothing that was accepted is lost,
nothing came twice but what clients held at a process that was killed, the order is kept, and a further move
goes through.
"""

import time
from pathlib import Path

import pytest

from tests.chaos.scene import hold
from tests.support.chaos_cluster import (
    CATCH_UP,
    COPY,
    FREEZE,
    RETIRE,
    SEALED,
    SEALING,
    STEPS,
    SWITCH,
    SWITCHED,
    WAITING,
    ClusterScene,
    Step,
)

STOP_S = 1.5
"""A pause after which nobody has given up on anybody."""
LONG_STOP_S = 14.0
"""Longer than a peer may be silent, a lease lasts, and a source waits before it wants its queue back."""
PARTIES = ("source", "destination", "frontend", "gateway", "etcd")

pytestmark = pytest.mark.timeout(300)


def kill(scene: ClusterScene, party: str, step: Step) -> None:
    """kill -9 of a party of a move at this step; it is started again when the others have gone on."""
    with scene.moving(step):
        if party in ("source", "destination", "frontend"):
            # A destination holds nothing for clients until the queue is its own.
            scene.disturb(holds_moved=party != "destination" or step in (SWITCHED, RETIRE))
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


KILLS = {
    "source": (COPY, SEALING, SEALED, SWITCH, RETIRE),
    "destination": (CATCH_UP, FREEZE, SEALED, SWITCH, SWITCHED),
    "frontend": (SEALED,),
    "gateway": (WAITING,),
    "etcd": (FREEZE, SWITCH, SWITCHED),
}
STOPS = {
    "source": (COPY, SEALING),
    "destination": (SEALED, SWITCHED),
    "frontend": (SEALED,),
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
    with ClusterScene(tmp_path, strict=party != "frontend") as scene:
        storm(scene, party, KILLS[party], STOPS[party], STOP_S)


@pytest.mark.soak
@pytest.mark.parametrize("party", PARTIES)
def test_a_party_of_a_move_dies_or_stands_still_for_long_at_every_step(tmp_path: Path, party: str) -> None:
    with ClusterScene(tmp_path, strict=False, rate=10_000) as scene:
        storm(scene, party, STEPS, STEPS, LONG_STOP_S)
