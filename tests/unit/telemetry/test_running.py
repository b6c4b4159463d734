"""Running: what each process says about itself, and the labels that all of its series carry."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lightrail import native
from lightrail.model.settings import Settings
from lightrail.model.tls import not_after
from lightrail.telemetry.metrics import gauge, registry
from lightrail.telemetry.running import LAG_PERIOD_S, Running
from tests.support.certificates import Authority


class Seats:
    """Counts of a test."""

    free = 4


FAMILIES = (gauge("seats", "Seats that are free.", "free"),)


def test_every_series_carries_role_and_number() -> None:
    running = Running("shard", lambda: 7)
    running.show(FAMILIES, Seats())
    families = {
        family.name: family
        for family in text_string_to_metric_families(
            running.text(registry((gauge("rows", "Rows.", "free"),), Seats()))
        )
    }
    samples = [sample for family in families.values() for sample in family.samples]
    assert all(sample.labels["role"] == "shard" and sample.labels["id"] == "7" for sample in samples)
    expected = {"lightrail_build_info", "process_cpu_seconds", "process_open_fds", "seats", "rows"}
    assert expected <= families.keys()
    assert "python_gc_collections" in families
    (build,) = families["lightrail_build_info"].samples
    assert build.value == 1
    assert build.labels.keys() == {"version", "python", "role", "id"}


def test_ready_is_what_readyz_says() -> None:
    running = Running("shard", lambda: 0)
    assert 'lightrail_ready{role="shard",id="0"} 0.0' in running.text()
    running.ready = lambda: None
    assert 'lightrail_ready{role="shard",id="0"} 1.0' in running.text()


@pytest.mark.parametrize("used", [False, True])
def test_processes_that_messages_pass_say_whether_they_do_so_by_machine_code(
    monkeypatch: pytest.MonkeyPatch, used: bool
) -> None:
    monkeypatch.setattr(native, "is_used", lambda: used)
    for role in ("frontend", "shard"):
        sample = f'lightrail_modules_compiled{{role="{role}",id="0"}} {float(used)}'
        assert sample in Running(role, lambda: 0).text()
    assert "\nlightrail_modules_compiled{" not in Running("gateway", lambda: 0).text()


def test_the_end_of_the_certificate_is_shown_where_tls_is_served(tmp_path: Path) -> None:
    running = Running("frontend", lambda: 0)
    assert "lightrail_tls_certificate_expiry_seconds" not in running.text()
    signed = Authority(tmp_path).sign("localhost")
    loop = asyncio.new_event_loop()
    running.serve_tls(Settings(tls_certificate=signed.certificate, tls_key=signed.key), loop)
    loop.close()
    assert running.certificate_ends_s == not_after(signed.certificate)
    assert "lightrail_tls_certificate_expiry_seconds{" in running.text()


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time the test sets."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_lag_is_how_late_the_timer_rang() -> None:
    loop = Clock()
    running = Running("shard", lambda: 0)
    try:
        running.watch(loop)
        for late_s in (0.0, 0.2):
            loop.now += LAG_PERIOD_S + late_s
            loop.call_soon(loop.stop)
            loop.run_forever()
        running.unwatch()
        assert running.lag_seconds.count == 2
        assert round(running.lag_seconds.sum, 6) == 0.2
    finally:
        loop.close()
