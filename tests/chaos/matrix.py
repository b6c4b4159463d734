"""The fault matrix: what is hit, and how, under every load of `loads.py`; a cell runs, or gives its reason.

A cell is a function that brings the fault about and ends it, the tests that are about just that (`Covered`),
or a reason why there is no such fault (`Never`). `test_matrix.py` runs the functions, and looks that the
named tests are there.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.chaos.loads import Loads
from tests.chaos.scene import hold
from tests.support import wait

MOMENT_S: Final = 1.0
"""A pause after which nobody has given up on anybody."""
LONG_S: Final = 8.0
"""Longer than a peer may be silent."""
END_S: Final = 10.0
"""An orderly end takes no longer."""

Fault = Callable[[Loads], None]


@dataclass(frozen=True)
class Covered:
    """The cell is the subject of other tests: ``path::function`` each, from the project's folder."""

    tests: tuple[str, ...]


@dataclass(frozen=True)
class Never:
    """There is no such fault, and why."""

    reason: str


Cell = Fault | Covered | Never


def covered(*tests: str) -> Covered:
    return Covered(tests)


# --- faults -----------------------------------------------------------------------------------------------


def kill(role: str) -> Fault:
    """kill -9; its supervisor starts it again."""
    return lambda loads: loads.service.kill(role)


def kill_everything(loads: Loads) -> None:
    loads.service.kill_everything()


def stop(role: str, seconds: float) -> Fault:
    """SIGSTOP, and SIGCONT after a while: for the others a process, or a network, that falls silent."""

    def fault(loads: Loads) -> None:
        with loads.service.frozen(role):
            hold(seconds)

    return fault


def stop_everything(seconds: float) -> Fault:
    """The whole machine stands still, as when it is suspended."""

    def fault(loads: Loads) -> None:
        pids = loads.service.everyone()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        hold(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    return fault


def kill_stopped(role: str) -> Fault:
    """A process that has fallen silent, and for which others wait, dies."""

    def fault(loads: Loads) -> None:
        with loads.service.frozen(role):
            hold(MOMENT_S)
            loads.service.kill(role)

    return fault


def terminate(role: str) -> Fault:
    """SIGTERM to one process, whose supervisor starts it again."""

    def fault(loads: Loads) -> None:
        loads.orderly = True
        pid = loads.service.find(role)
        os.kill(pid, signal.SIGTERM)
        wait.until(lambda: wait.gone(pid), f"{role} ends in order", END_S)

    return fault


def terminate_everything(loads: Loads) -> None:
    """SIGTERM to the supervisor: an orderly stop; the service manager starts it again."""
    loads.orderly = True
    ended = len(loads.service.exits)
    os.kill(loads.service.supervisor, signal.SIGTERM)
    wait.until(lambda: len(loads.service.exits) > ended, "the broker ends", END_S)
    assert loads.service.exits[-1] == 0


# --- the matrix -------------------------------------------------------------------------------------------

_NO_DISK = Never("it has nothing on a disk but its log")
_CHAOS = "tests/cluster/test_chaos.py::"
_DISK = "tests/chaos/test_full_disk.py::"
_SEEN_AS_KILLED = Never("its clients see a connection that ends, as in `killed`")

MATRIX: Final[dict[tuple[str, str], Cell]] = {
    # A shard.
    ("shard", "killed"): kill("shard"),
    ("shard", "stopped for a moment"): stop("shard", MOMENT_S),
    ("shard", "stopped for long"): stop("shard", LONG_S),
    ("shard", "killed while stopped"): kill_stopped("shard"),
    ("shard", "ended in order"): terminate("shard"),
    ("shard", "cut off"): covered(
        _CHAOS + "test_a_shard_is_cut_off_from_everybody_in_the_middle_of_a_move",
    ),
    ("shard", "disk full"): covered(
        _DISK + "test_disk_filled_by_others",
        _DISK + "test_kill_shard_on_full_disk",
        _DISK + "test_disk_filled_by_messages",
    ),
    # A frontend.
    ("frontend", "killed"): kill("frontend"),
    ("frontend", "stopped for a moment"): stop("frontend", MOMENT_S),
    ("frontend", "stopped for long"): stop("frontend", LONG_S),
    ("frontend", "killed while stopped"): kill_stopped("frontend"),
    ("frontend", "ended in order"): terminate("frontend"),
    ("frontend", "cut off"): Never(
        "to its shards it is a frontend that is stopped for long, to its clients a network of their own"
    ),
    ("frontend", "disk full"): _NO_DISK,
    # The gateway.
    ("gateway", "killed"): kill("gateway"),
    ("gateway", "stopped for a moment"): stop("gateway", MOMENT_S),
    ("gateway", "stopped for long"): stop("gateway", LONG_S),
    ("gateway", "killed while stopped"): kill_stopped("gateway"),
    ("gateway", "ended in order"): terminate("gateway"),
    ("gateway", "cut off"): Never("to its shards it is a gateway that is stopped for long"),
    ("gateway", "disk full"): _NO_DISK,
    # The supervisor, and all processes of a machine.
    ("everything", "killed"): kill_everything,
    ("everything", "stopped for a moment"): stop_everything(MOMENT_S),
    ("everything", "stopped for long"): stop_everything(LONG_S),
    ("everything", "killed while stopped"): Never("everybody is killed while stopped in `killed`, too"),
    ("everything", "ended in order"): terminate_everything,
    ("everything", "cut off"): Never("on one machine there is no network between processes"),
    ("everything", "disk full"): covered(_DISK + "test_kill_everything_on_full_disk"),
    ("supervisor", "killed"): kill("supervisor"),
    ("supervisor", "stopped for a moment"): stop_everything(MOMENT_S),
    ("supervisor", "stopped for long"): Never("nobody waits for it while its processes live"),
    ("supervisor", "killed while stopped"): Never("nobody waits for it while its processes live"),
    ("supervisor", "ended in order"): Never("it ends all processes of the machine, as in `everything`"),
    ("supervisor", "cut off"): Never("it talks to no other machine"),
    ("supervisor", "disk full"): _NO_DISK,
    # etcd.
    ("etcd", "killed"): covered(
        _CHAOS + "test_nobody_notices_that_etcd_is_away_and_changes_go_through_when_it_is_back",
        _CHAOS + "test_a_party_of_a_move_dies_or_stands_still",
    ),
    ("etcd", "stopped for a moment"): covered(_CHAOS + "test_a_party_of_a_move_dies_or_stands_still"),
    ("etcd", "stopped for long"): covered(
        _CHAOS + "test_nobody_notices_that_etcd_is_away_and_changes_go_through_when_it_is_back"
    ),
    ("etcd", "killed while stopped"): _SEEN_AS_KILLED,
    ("etcd", "ended in order"): _SEEN_AS_KILLED,
    ("etcd", "disk full"): Never("replace me when the test of etcd without space is there"),
    ("etcd", "cut off"): covered(_CHAOS + "test_a_shard_is_cut_off_from_everybody_in_the_middle_of_a_move"),
}
VICTIMS: Final = tuple(dict.fromkeys(victim for victim, _ in MATRIX))
KINDS: Final = tuple(dict.fromkeys(kind for _, kind in MATRIX))
