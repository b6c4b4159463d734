"""What a service shows of itself: metrics, spans through services, health over HTTP."""

import asyncio
import http.client
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from lightrail.bus import Bus, Context, Retry
from lightrail.bus.health import CONNECTIONS_MAX, Health
from lightrail.bus.metrics import Metrics
from lightrail.bus.testing import TestBus
from lightrail.bus.tracing import Tracing
from lightrail.cli import main as cli
from tests.bus.conftest import numbers, play
from tests.bus.shop import Invoice, OrderPlaced
from tests.bus.test_commands import SERVICE
from tests.support import wait
from tests.support.broker import ROOT, Broker
from tests.support.ports import free_ports


def new_bus() -> Bus:
    bus = Bus("amqp://nobody", name="service")

    @bus.handler(retry=Retry(immediate=1))
    async def bill(order: OrderPlaced, context: Context) -> None:
        await context.publish(Invoice(order.order))
        if order.order == 2:
            raise RuntimeError("no money")

    @bus.handler
    async def invoiced(invoice: Invoice) -> None: ...

    return bus


def test_metrics_count_what_is_handled_and_sent() -> None:
    async def test() -> None:
        bus = new_bus()
        metrics = Metrics(bus, CollectorRegistry())
        async with TestBus(bus) as test:
            for number in (1, 2, 3):
                await test.publish(OrderPlaced(number))
            await test.idle()
        samples = {
            (sample.name, sample.labels.get("type"), sample.labels.get("outcome")): sample.value
            for family in text_string_to_metric_families(metrics.text().decode())
            for sample in family.samples
            if sample.name.endswith("_total")
        }
        assert samples == {
            ("lightrail_bus_handled_total", "shop.order-placed", "handled"): 2,
            ("lightrail_bus_handled_total", "shop.order-placed", "failed"): 1,
            ("lightrail_bus_handled_total", "shop.invoice", "handled"): 2,
            ("lightrail_bus_sent_total", "shop.order-placed", None): 3,
            ("lightrail_bus_sent_total", "shop.invoice", None): 2,
            ("lightrail_bus_sent_total", "fault.shop.order-placed", None): 1,
        }
        assert (
            b'lightrail_bus_handler_seconds_count{bus="service",queue="subscriptions/service'
            in metrics.text()
        )

    play(test())


def test_a_trace_goes_through_handlers_and_says_what_failed() -> None:
    async def test() -> None:
        bus = new_bus()
        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        Tracing(bus, provider)
        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(1), id="m-1")
            await test.consumed(Invoice)
            await test.publish(OrderPlaced(2))
            await test.failed(OrderPlaced)
            assert "traceparent" in test.sendings[0].envelope.headers
        spans = exporter.get_finished_spans()
        first = [span for span in spans if span.context.trace_id == spans[0].context.trace_id]
        parents = {span.context.span_id: span.name for span in first}
        chain = [(span.name, parents.get(span.parent.span_id) if span.parent else None) for span in first]
        queue = "process subscriptions/service/shop."
        assert set(chain) == {
            ("create shop.order-placed", None),
            (f"{queue}order-placed", "create shop.order-placed"),
            ("create shop.invoice", f"{queue}order-placed"),
            (f"{queue}invoice", "create shop.invoice"),
        }
        [handled] = [span for span in first if span.name == f"{queue}order-placed"]
        assert handled.attributes is not None
        assert handled.attributes["messaging.message.id"] == "m-1"
        failed = [span for span in spans if span.status.status_code is StatusCode.ERROR]
        assert [span.attributes["lightrail.attempt"] for span in failed if span.attributes] == [1, 2]
        assert all(span.status.description == "no money" for span in failed)

    play(test())


def test_health_answers_what_it_knows_and_bounds_what_strangers_send() -> None:
    async def asked(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def test() -> None:
        ready = True
        health = Health(lambda: ready, lambda: b"metrics\n")
        port = await health.open("127.0.0.1", 0)
        end = b" HTTP/1.1\r\nHost: x\r\n\r\n"
        assert b"200 OK" in await asked(port, b"GET /healthz" + end)
        assert b"200 OK" in await asked(port, b"GET /readyz" + end)
        ready = False
        assert b"503 " in await asked(port, b"GET /readyz" + end)
        assert (await asked(port, b"GET /metrics" + end)).endswith(b"metrics\n")
        assert b"404 " in await asked(port, b"GET /other" + end)
        assert b"405 " in await asked(port, b"POST /healthz" + end)
        assert not (await asked(port, b"HEAD /metrics" + end)).endswith(b"metrics\n")
        assert await asked(port, b"GET /" + b"x" * 20_000 + end) == b""
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        assert await asked(port, b"GET /healthz" + end) == b""
        for _, writer in silent:
            writer.close()
        await health.close()

    play(test())


def test_a_service_serves_health_and_metrics(shared_broker: Broker, tmp_path: Path) -> None:
    url, prefix = f"amqp://{shared_broker.amqp}", f"health-{next(numbers)}/"
    (tmp_path / "service.py").write_text(SERVICE.format(url=url, prefix=prefix, answer=""))
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lightrail.cli.main",
            "bus",
            "run",
            "service:bus",
            "--health",
            f"127.0.0.1:{port}",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    def status(path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    try:
        wait.until(lambda: status("/readyz") == 200, "the service is ready", 20)
        assert status("/metrics") == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_wrong_addresses_for_health_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tests.bus.services:bus"
    with pytest.raises(SystemExit):
        cli.main(["bus", "run", name, "--health", "8081"])
    assert "expected HOST:PORT" in capsys.readouterr().err
    assert cli.main(["bus", "run", name, "--workers", "2", "--health", "127.0.0.1:1"]) == 2
    assert "each needs its own port" in capsys.readouterr().err
