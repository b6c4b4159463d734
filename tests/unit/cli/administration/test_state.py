"""What `doctor` makes of the figures: above all a shard that does not answer."""

from typing import Any

from lightrail.cli.administration.state import UNDECIDED_S, diagnose


def shard(id: int, **more: Any) -> dict[str, Any]:
    return {"id": id, "serving": True, "placed": 3, "queues": 3, "store_failures": 0} | more


def status(*shards: dict[str, Any], reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"reasons": list(reasons), "processes": [], "shards": list(shards)}


def test_nothing_is_wrong_where_all_shards_answer() -> None:
    assert diagnose(status(shard(0), shard(1)), []) == []


def test_a_shard_that_does_not_answer_is_one_error_with_what_to_do() -> None:
    reason = "shard-1: not registered; 3 queues wait for it"
    away = shard(1, serving=False, store_failures=None)
    (found,) = diagnose(status(shard(0), away, reasons=(reason,)), [])
    assert (found.severity, found.what) == ("error", f"not ready: {reason}")
    assert "start it again where its directory is" in found.do
    assert "forget-disk 1" in found.do


def test_another_process_that_is_not_ready_is_not_a_shard_that_is_away() -> None:
    (found,) = diagnose(status(shard(0), reasons=("frontend-0: starting",)), [])
    assert "the supervisor restarts it" in found.do


def test_queues_whose_figures_nobody_knows_are_passed_over() -> None:
    unknown = {"name": "a", "ready": None, "in_flight": None, "bytes": None, "consumers": None}
    backlog = {"name": "b", "ready": 5_000, "in_flight": 0, "bytes": 1, "consumers": 0}
    (found,) = diagnose(status(shard(0)), [unknown, backlog])
    assert found.what.startswith("b has 5,000")


def test_transactions_that_wait_for_a_lost_shard_are_a_warning() -> None:
    waits = shard(0, transactions_prepared=3, transaction_prepared_seconds=UNDECIDED_S)
    (found,) = diagnose(status(waits), [])
    assert found.severity == "warning"
    assert "3 transactions wait at shard 0" in found.what
    assert "lightrail-admin transactions" in found.do
    young = shard(0, transactions_prepared=3, transaction_prepared_seconds=UNDECIDED_S - 1)
    assert diagnose(status(young), []) == []


def test_processes_with_a_python_without_optimisations_are_one_warning() -> None:
    (found,) = diagnose(status(shard(0)) | {"unoptimised": ["frontend-0", "shard-0"]}, [])
    assert found.severity == "warning"
    assert "frontend-0, shard-0" in found.what
    assert "--enable-optimizations" in found.do
    assert diagnose(status(shard(0)) | {"unoptimised": []}, []) == []


def test_processes_that_interpret_what_a_message_passes_beside_others_are_one_warning() -> None:
    shown = [
        {"role": "shard", "id": 0, "member": 2, "ready": True, "restarts": 0, "compiled": False},
        {"role": "frontend", "id": 0, "ready": True, "restarts": 0, "compiled": False},
        {"role": "frontend", "id": 1, "ready": True, "restarts": 0, "compiled": True},
        {"role": "gateway", "id": 0, "ready": True, "restarts": 0, "compiled": None},
        {"role": "shard", "id": 1, "ready": True, "restarts": 0},  # a process of an earlier version
    ]
    (found,) = diagnose(status(shard(0)) | {"processes": shown}, [])
    assert found.severity == "warning"
    assert "in shard-0/2, frontend-0, for" in found.what
    assert "`make compiled`" in found.do
    assert diagnose(status(shard(0)) | {"processes": shown[2:]}, []) == []
    assert diagnose(status(shard(0)) | {"processes": shown[:2]}, []) == []  # nobody asked for it
