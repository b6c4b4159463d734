"""More of the bus through a broker and through memory: formats, slips, dependencies, limits, claims."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightrail.bus import (
    Activity,
    ClaimCheck,
    CloudEvents,
    Context,
    Depends,
    FolderClaims,
    Format,
    Json,
    KillSwitch,
    MassTransit,
    RateLimit,
    RoutingSlip,
    SlipCompleted,
    SlipContext,
    SlipFaulted,
)
from tests.bus.conftest import Buses, Run, Seen
from tests.bus.shop import Bill, OrderPlaced
from tests.bus.test_formats import NAMES, SENT, InvoiceSent
from tests.bus.test_slips import Log, Work


@pytest.mark.parametrize(
    "written", [Json(), CloudEvents(), MassTransit(NAMES)], ids=lambda each: type(each).__name__
)
def test_a_message_of_each_format_is_handled_by_a_bus_that_writes_another(run: Run, written: Format) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        reader = buses.bus("reader", format=MassTransit(NAMES))

        @reader.handler
        async def handle(invoice: InvoiceSent) -> None:
            seen.add(invoice)

        async with reader, buses.bus("writer", format=written) as writer:
            await writer.publish(SENT)
            assert await seen.count(1) == [SENT]

    run(law)


def test_a_large_body_goes_by_a_claim(run: Run, tmp_path: Path) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        format = ClaimCheck(Json(), FolderClaims(tmp_path / "claims"), size=1_000)
        bus = buses.bus("scans", format=format)

        @bus.handler
        async def handle(order: OrderPlaced, context: Context) -> None:
            seen.add((len(order.lines), len(context.envelope.body)))

        async with bus:
            await bus.publish(OrderPlaced(1, ["x" * 100] * 100))
            assert await seen.count(1) == [(100, 0)]

    run(law)


def test_a_slip_goes_through_services_and_back_where_one_fails(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        services = []
        for name in ("a", "b"):
            bus = buses.bus(name)
            activity = Activity(f"law.{name}", Work)

            @activity.execute()
            async def execute(work: Work, context: SlipContext, name: str = name) -> Log:
                if work.failures:
                    raise RuntimeError("no room")
                seen.add(f"do {name}")
                return Log(work.index)

            @activity.compensate
            async def compensate(log: Log, context: SlipContext, name: str = name) -> None:
                seen.add(f"undo {name}{log.index}")

            bus.include(activity)
            await bus.start()
            services.append(bus)
        watching = buses.bus("watching")

        @watching.handler
        async def completed(event: SlipCompleted) -> None:
            seen.add("completed")

        @watching.handler
        async def faulted(event: SlipFaulted) -> None:
            seen.add(f"{event.activity}: {event.text}")

        async with watching:
            await RoutingSlip().add("law.a", Work(1)).add("law.b", Work(2)).start(watching)
            assert await seen.count(3) == ["do a", "do b", "completed"]
            seen.items.clear()
            await RoutingSlip().add("law.a", Work(1)).add("law.b", Work(2, failures=1)).start(watching)
            assert await seen.count(3) == ["do a", "undo a1", "law.b: no room"]
        for bus in services:
            await bus.stop()

    run(law)


def test_dependencies_middlewares_and_limits_are_around_a_handler(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        times: list[float] = []
        bus = buses.bus()

        async def session() -> AsyncIterator[str]:
            yield "session"
            seen.add("closed")

        @bus.middleware
        async def around(context, call_next):  # type: ignore[no-untyped-def]
            seen.add("before")
            return await call_next()

        @bus.handler(rate_limit=RateLimit(2, seconds=0.3), kill_switch=KillSwitch(), concurrency=1)
        async def handle(bill: Bill, database: str = Depends(session)) -> None:
            times.append(time.monotonic())
            seen.add(database)

        async with bus:
            for number in range(3):
                await bus.send(Bill(number))
            assert (await seen.count(9))[:3] == ["before", "session", "closed"]
            assert times[2] - times[0] >= 0.29

    run(law)
