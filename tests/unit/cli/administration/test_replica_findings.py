"""What `doctor` finds about shards with replicas: each finding says what is wrong, why, and what to do."""

from typing import Any

import pytest

from lightrail.cli.administration.findings import Finding
from lightrail.cli.administration.replica_findings import COORDINATORS_MIN, SKEW_S
from lightrail.cli.administration.state import diagnose


def member(number: int, **more: Any) -> dict[str, Any]:
    """Member `number` on a machine of its own, in sync and running; number 1 owns."""
    return {
        "member": f"id-{number}",
        "host": f"h{number}",
        "owns": number == 1,
        "in_sync": True,
        "running": True,
        "machine": f"boot-{number}",
        "file_system": f"boot-{number}:1",
        "acknowledged_age_seconds": None if number == 1 else 0.0,
        "behind_records": None if number == 1 else 0.0,
    } | more


def status(*members: dict[str, Any], coordinators: int | None = 3, **more: Any) -> dict[str, Any]:
    in_sync = sum(each["in_sync"] for each in members)
    replicas = {
        "replicas": 3,
        "min_in_sync": 2,
        "in_sync": in_sync,
        "required": in_sync,
        "members": list(members),
        "waiting": [],
    } | more
    shard = {"id": 4, "serving": True, "placed": 3, "queues": 3, "store_failures": 0, "replicas": replicas}
    without = shard | {"id": 5, "replicas": None}
    return {
        "processes": [],
        "shards": [shard, without],
        "coordinator": {"members": coordinators},
    }


def found(given: dict[str, Any], count: int = 1) -> list[Finding]:
    findings = diagnose(given, [])
    assert len(findings) == count, findings
    return findings


def test_nothing_is_wrong_where_all_members_are_in_sync_on_machines_of_their_own() -> None:
    found(status(member(1), member(2), member(3)), 0)


def test_a_shard_of_a_gateway_of_an_earlier_version_has_no_findings() -> None:
    given = status(member(1))
    del given["shards"][0]["replicas"], given["coordinator"]
    found(given, 0)


def test_a_member_that_does_not_run_is_named_with_its_time_and_what_it_lacks() -> None:
    away = member(3, in_sync=False, running=False, acknowledged_age_seconds=340.2, behind_records=1200.0)
    (one,) = found(status(member(1), member(2), away))
    assert one.severity == "warning"
    assert one.what == (
        "member h3 of shard 4 does not run; it has not acknowledged for 340 s, and lacks 1,200 records. "
        "The loss of one more member stops the shard"
    )
    assert "start its process on h3" in one.do
    assert "lightrail-admin shard remove-member 4 h3" in one.do


def test_a_member_that_runs_and_is_not_in_sync_is_named_with_where_to_look() -> None:
    (one,) = found(status(member(1), member(2), member(3, in_sync=False, behind_records=7.0)))
    assert one.what.startswith("member h3 of shard 4 is not in sync, and lacks 7 records. ")
    assert "its log and the owner's (h1) say why" in one.do


def test_one_copy_alone_is_named_as_such() -> None:
    (one,) = found(status(member(1), member(2, in_sync=False), replicas=2, min_in_sync=1))
    assert one.what.endswith("One disk alone has all of its messages")


def test_a_shard_with_fewer_members_than_it_is_to_have_lacks_some() -> None:
    (one,) = found(status(member(1), member(2)))
    assert one.what.startswith("shard 4 has 2 members, and is to have 3. The loss of one more member")
    assert "start 1 more on other hosts (lightrail shard --id 4)" in one.do
    assert "lightrail-admin shard replicas 4 --replicas 2" in one.do


def test_a_member_more_than_the_minimum_is_no_danger_yet() -> None:
    given = status(*(member(number) for number in range(1, 5)), replicas=5)
    (one,) = found(given)
    assert one.what.endswith("The shard accepts with 2 members fewer")


def test_fewer_running_than_the_minimum_is_an_error_that_names_who_is_away() -> None:
    given = status(member(1), member(2, running=False), member(3, running=False))
    error, *others = found(given, 3)
    assert error.severity == "error"
    assert error.what == (
        "shard 4 accepts and delivers nothing: of its members in sync 1 runs, and its minimum is 2"
    )
    assert "start its processes on h2, h3" in error.do
    assert "lightrail-admin shard replicas 4 --min-in-sync 1" in error.do
    assert all("does not run" in each.what for each in others)


def test_the_minimum_is_not_lowered_to_none() -> None:
    error, *_ = found(status(*(member(number, running=False) for number in (1, 2, 3))), 4)
    assert "in sync 0 run," in error.what
    assert "--min-in-sync" not in error.do


@pytest.mark.parametrize(
    ("minimum", "in_sync", "required", "in_force"),
    [
        (2, 2, 2, True),
        (2, 2, 3, True),  # one more is about to be added
        (3, 2, 3, True),  # known to the owner, which accepts nothing
        (3, 3, 2, False),
        (3, 2, 2, False),
        (2, 1, 1, False),
        (2, 2, None, True),  # the owner does not answer
    ],
)
def test_a_raised_minimum_is_in_force_when_the_owner_demands_it(
    minimum: int, in_sync: int, required: int | None, in_force: bool
) -> None:
    members = [member(number, in_sync=number <= in_sync) for number in (1, 2, 3)]
    findings = diagnose(status(*members, min_in_sync=minimum, required=required), [])
    named = [each for each in findings if "is not in force" in each.what]
    assert bool(named) is not in_force
    for each in named:
        assert (each.severity, f"and its owner demands {required}: " in each.what) == ("error", True)
        assert "the network between h1 and etcd" in each.do


def test_members_on_one_machine_are_named_once_and_those_on_one_disk_before() -> None:
    same = [member(number, machine="b", file_system="b:1") for number in (1, 2, 3)]
    (one,) = found(status(*same))
    assert one.what == (
        "members h1, h2, h3 of shard 4 lie on one file system of one machine, and are lost together"
    )
    disks = [member(number, machine="b", file_system=f"b:{min(number, 2)}") for number in (1, 2, 3)]
    first, second = found(status(*disks), 2)
    assert first.what.startswith("members h2, h3 of shard 4 lie on one file system")
    assert second.what.startswith("members h1, h2, h3 of shard 4 run on one machine")
    assert "to another machine" in second.do


def test_members_of_several_machines_on_one_network_storage_are_named() -> None:
    (one,) = found(status(member(1), *(member(number, storage="nas") for number in (2, 3))))
    assert one.what == (
        "members h2, h3 of shard 4 lie on the network storage of one server, and are lost together"
    )
    assert "to another storage" in one.do


def test_members_whose_machine_is_not_known_are_not_compared() -> None:
    found(status(*(member(number, machine="", file_system="") for number in (1, 2, 3))), 0)


@pytest.mark.parametrize("coordinators", [1, COORDINATORS_MIN - 1])
def test_an_etcd_that_may_lose_no_member_is_a_warning_below_replicas(coordinators: int) -> None:
    given = status(member(1), member(2), member(3), coordinators=coordinators)
    (one,) = found(given)
    assert one.what.startswith(f"etcd has {coordinators} member")
    assert "shards with replicas depend on it (4)" in one.what
    assert "run etcd with 3 members" in one.do
    given["shards"][0]["replicas"] = None
    found(given, 0)
    found(status(member(1), member(2), member(3), coordinators=None), 0)


def test_a_process_that_can_not_join_is_named_with_its_reason() -> None:
    waiting = [{"member": "id-9", "host": "h9", "reason": "expected fewer than 3 members, found 3"}]
    (one,) = found(status(member(1), member(2), member(3), waiting=waiting))
    assert one.what == (
        "a process on h9 can't become a member of shard 4, and waits: expected fewer than 3 members, found 3"
    )


def test_a_shard_with_replicas_that_is_silent_is_not_given_up_but_taken_over() -> None:
    given = status(member(1), member(2), member(3)) | {"reasons": ["shard-4: no answer"]}
    given["shards"][0]["serving"] = False
    (one,) = found(given)
    assert "forget-disk" not in one.do
    assert "lightrail-admin shard replicas 4 shows its members" in one.do


def test_clocks_apart_are_one_warning_that_names_both() -> None:
    def processes(*ahead: float | None) -> dict[str, Any]:
        rows = [
            {"role": "shard", "id": id, "ready": True, "restarts": 0, "clock_ahead_seconds": each}
            for id, each in enumerate(ahead)
        ]
        return status(member(1), member(2), member(3)) | {"processes": rows}

    found(processes(None), 0)
    found(processes(0.0, SKEW_S), 0)
    (one,) = found(processes(0.0, SKEW_S + 0.1, None))
    assert one.what.startswith("the clock of shard-1 is 1.1 s ahead of that of ")
    # Neither differs from the gateway's by more, but they do from each other.
    (one,) = found(processes(-0.6, 0.6))
    assert one.what.startswith("the clock of shard-1 is 1.2 s ahead of that of shard-0: ")
    assert "NTP" in one.do
