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
            wait.freeze(pid)
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
        pid = loads.service.find(role)
        os.kill(pid, signal.SIGTERM)
        wait.until(lambda: wait.gone(pid), f"{role} ends in order", END_S)

    return fault


def terminate_everything(loads: Loads) -> None:
    """SIGTERM to the supervisor: an orderly stop; the service manager starts it again."""
    ended = len(loads.service.exits)
    os.kill(loads.service.supervisor, signal.SIGTERM)
    wait.until(lambda: len(loads.service.exits) > ended, "the broker ends", END_S)
    assert loads.service.exits[-1] == 0


# --- the matrix -------------------------------------------------------------------------------------------

KINDS: Final = (
    "killed",
    "stopped for a moment",
    "stopped for long",
    "killed while stopped",
    "ended in order",
    "cut off",
    "packets lost",
    "disk full",
    "disk fails",
    "disk hangs",
    "set back or copied",
    "clock set",
)
_NO_DISK = Never("it has nothing on a disk but its log")
_NO_STATE = Never("it keeps nothing that a copy could be behind of")
_ONE_MACHINE = Never("on one machine there is no network between processes")
_SEEN_AS_KILLED = Never("its clients see a connection that ends, as in `killed`")
_SUPERVISED = Never("it has no part in messages: what its processes do is in their own rows")
_CHAOS = "tests/cluster/test_chaos.py::"
_DISK = "tests/chaos/test_full_disk.py::"
_CLOCK = covered(
    "tests/unit/model/test_clock.py::test_everything_that_has_locks_and_times_to_live_goes_by_it",
    "tests/unit/model/test_clock.py::test_a_jump_moves_no_difference_by_more_than_the_slew",
)

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
    ("shard", "packets lost"): covered(_CHAOS + "test_a_network_that_loses_packets_loses_no_message"),
    ("shard", "disk full"): covered(
        _DISK + "test_disk_filled_by_others",
        _DISK + "test_kill_shard_on_full_disk",
        _DISK + "test_disk_filled_by_messages",
    ),
    ("shard", "disk fails"): covered(
        "tests/chaos/test_failing_calls.py::test_some_calls_fail",
        "tests/model/test_journal_errors.py::test_any_call_may_fail_once",
        "tests/unit/shard/journal/test_failed_syncs.py::test_a_header_that_only_memory_has_begins_no_segment",
    ),
    ("shard", "disk hangs"): covered(
        "tests/chaos/test_hanging_disk.py::test_while_the_disk_hangs_senders_get_their_messages_back"
    ),
    ("shard", "set back or copied"): covered(
        "tests/cluster/test_copies.py::test_a_copy_neither_takes_the_place_of_its_original_nor_serves_after_it",
        "tests/cluster/test_copies.py::test_a_shard_whose_newest_segment_was_deleted_does_not_start",
    ),
    ("shard", "clock set"): _CLOCK,
    # A frontend.
    ("frontend", "killed"): kill("frontend"),
    ("frontend", "stopped for a moment"): stop("frontend", MOMENT_S),
    ("frontend", "stopped for long"): stop("frontend", LONG_S),
    ("frontend", "killed while stopped"): kill_stopped("frontend"),
    ("frontend", "ended in order"): terminate("frontend"),
    ("frontend", "cut off"): Never(
        "to its shards it is a frontend that is stopped for long, to its clients a network of their own"
    ),
    ("frontend", "packets lost"): Never("its connections to shards are the ones of the shard's row"),
    ("frontend", "disk full"): _NO_DISK,
    ("frontend", "disk fails"): _NO_DISK,
    ("frontend", "disk hangs"): _NO_DISK,
    ("frontend", "set back or copied"): _NO_STATE,
    ("frontend", "clock set"): _CLOCK,
    # The gateway.
    ("gateway", "killed"): kill("gateway"),
    ("gateway", "stopped for a moment"): stop("gateway", MOMENT_S),
    ("gateway", "stopped for long"): stop("gateway", LONG_S),
    ("gateway", "killed while stopped"): kill_stopped("gateway"),
    ("gateway", "ended in order"): terminate("gateway"),
    ("gateway", "cut off"): Never("to its shards it is a gateway that is stopped for long"),
    ("gateway", "packets lost"): Never("its connections to shards are the ones of the shard's row"),
    ("gateway", "disk full"): _NO_DISK,
    ("gateway", "disk fails"): _NO_DISK,
    ("gateway", "disk hangs"): _NO_DISK,
    ("gateway", "set back or copied"): _NO_STATE,
    ("gateway", "clock set"): _CLOCK,
    # All processes of a machine, and what starts them.
    ("everything", "killed"): kill_everything,
    ("everything", "stopped for a moment"): stop_everything(MOMENT_S),
    ("everything", "stopped for long"): stop_everything(LONG_S),
    ("everything", "killed while stopped"): Never("everybody is killed while stopped in `killed`, too"),
    ("everything", "ended in order"): terminate_everything,
    ("everything", "cut off"): _ONE_MACHINE,
    ("everything", "packets lost"): _ONE_MACHINE,
    ("everything", "disk full"): covered(_DISK + "test_kill_everything_on_full_disk"),
    ("everything", "disk fails"): Never("the disk is the shard's: see its row"),
    ("everything", "disk hangs"): Never("the disk is the shard's: see its row"),
    ("everything", "set back or copied"): covered(
        "tests/cluster/test_copies.py::test_a_data_directory_of_one_machine_is_copied_as_a_whole_and_not_in_parts"
    ),
    ("everything", "clock set"): _CLOCK,
    ("supervisor", "killed"): kill("supervisor"),
    **{("supervisor", kind): _SUPERVISED for kind in KINDS if kind != "killed"},
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
    ("etcd", "cut off"): covered(_CHAOS + "test_a_shard_is_cut_off_from_everybody_in_the_middle_of_a_move"),
    ("etcd", "packets lost"): covered(_CHAOS + "test_a_network_that_loses_packets_loses_no_message"),
    ("etcd", "disk full"): covered(
        "tests/cluster/test_etcd_away.py::test_processes_wait_for_an_etcd_without_space_and_say_so"
    ),
    ("etcd", "disk fails"): _SEEN_AS_KILLED,
    ("etcd", "disk hangs"): Never("its clients see an etcd that does not answer, as in `stopped for long`"),
    ("etcd", "set back or copied"): covered(
        "tests/cluster/test_set_back.py::test_what_was_accepted_stays_and_etcd_is_given_back_what_it_lost",
        "tests/cluster/test_set_back.py::test_a_shard_that_starts_with_an_etcd_that_was_set_back_deletes_nothing",
    ),
    ("etcd", "clock set"): Never("leases of etcd go by its monotonic clock"),
}
VICTIMS: Final = tuple(dict.fromkeys(victim for victim, _ in MATRIX))
