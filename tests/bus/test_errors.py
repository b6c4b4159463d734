"""Retries, dead letters, faults, what is skipped, and limits, on a clock that the test moves."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from lightrail.bus import (
    Batch,
    Bus,
    ConfigurationError,
    Context,
    Depends,
    Fault,
    Handlers,
    KillSwitch,
    MassTransit,
    MiddlewareError,
    Outcome,
    RateLimit,
    Retry,
    SqliteStore,
)
from lightrail.bus.testing import TestBus
from lightrail.transport import Envelope
from lightrail.transport.endpoint import TEXT_MAX
from tests.bus.conftest import play
from tests.bus.shop import Bill, Invoice, OrderPlaced


def new_bus() -> Bus:
    return Bus("amqp://nobody", name="service")


def test_attempts_are_made_at_once_then_after_each_pause_then_the_message_is_a_dead_letter() -> None:
    async def test() -> None:
        bus = new_bus()
        calls: list[tuple[float, int, int]] = []
        faults: list[Fault[OrderPlaced]] = []

        @bus.handler(retry=Retry(immediate=1, delayed=[5, 60]))
        async def fails(order: OrderPlaced, context: Context) -> None:
            calls.append((test.clock.time() - began, context.delivery_count, context.attempt))
            await context.publish(Invoice(order.order))
            raise RuntimeError("no database")

        @bus.handler
        async def failed(fault: Fault[OrderPlaced]) -> None:
            faults.append(fault)

        async with TestBus(bus) as test:
            began = test.clock.time()
            await test.publish(OrderPlaced(7))
            await test.advance(4.9)
            assert calls == [(0, 0, 1), (0, 0, 2)]
            await test.advance(0.1)
            await test.advance(60)
            assert calls[2:] == [(5, 1, 1), (5, 1, 2), (65, 2, 1), (65, 2, 2)]
            [letter] = test.dead_letters(OrderPlaced)
            notes = letter.annotations
            assert notes["x-opt-dead-letter-condition"] == "lightrail:handler-failed"
            assert notes["x-opt-dead-letter-description"] == "RuntimeError: no database"
            assert notes["x-opt-exception-type"] == "builtins.RuntimeError"
            assert notes["x-opt-attempts"] == 6
            assert "test_errors" in str(notes["x-opt-handler"])
            assert notes["x-opt-host"]
            [fault] = faults
            assert (fault.message, fault.text, fault.attempts) == (OrderPlaced(7), "no database", 6)
            assert not [each for each in test.sendings if isinstance(each.value, Invoice)]
            assert (await test.failed(OrderPlaced)).outcome is Outcome.FAILED

    play(test())


def test_what_can_t_succeed_is_not_tried_again() -> None:
    async def test() -> None:
        bus = new_bus()
        calls = 0

        @bus.handler(retry=Retry(immediate=3, delayed=[5], never=(ValueError,)))
        async def fails(order: OrderPlaced) -> None:
            nonlocal calls
            calls += 1
            raise ValueError("of the order")

        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(7))
            await test.failed(OrderPlaced)
            assert calls == 1

    play(test())


def test_a_failed_message_with_text_that_utf_8_cannot_encode_is_a_dead_letter_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pytest-xdist sends what a test logs in UTF-8, and here the text of the exception is logged.
    monkeypatch.setattr(logging.getLogger("lightrail.bus"), "propagate", False)

    async def test() -> None:
        bus = new_bus()

        @bus.handler
        async def fails(order: OrderPlaced) -> None:
            raise ValueError(order.lines[0])

        async with TestBus(bus) as test:
            body = b'{"order": 1, "lines": ["\\ud800"]}'
            envelope = Envelope(body=body, headers={"lightrail-type": "shop.order-placed"})
            test.broker.send("events/shop.order-placed", envelope)
            await test.idle()
            (letter,) = test.dead_letters(OrderPlaced)
            assert letter.body == body
            assert letter.annotations["x-opt-dead-letter-description"] == "ValueError: \\ud800"

    play(test())


def test_what_is_not_readable_or_of_another_type_is_a_dead_letter_of_its_own_kind() -> None:
    async def test() -> None:
        bus = new_bus()

        @bus.handler
        async def handle(bill: Bill) -> None:
            pytest.fail("no message is for it")

        async with TestBus(bus) as test:
            for body, types in (
                (b"{", "shop.bill"),
                (b'{"order": "x"}', "shop.bill"),
                (b"{}", "shop.bill"),
                (b"[]", "shop.bill"),
                (b'{"order": 1}', "shop.other shop.another"),
                (b"{}", "shop.\ud800 " + "x" * 10 * TEXT_MAX),
            ):
                test.broker.send("commands/shop.bill", Envelope(body=body, headers={"lightrail-type": types}))
            await test.idle()
            letters = test.dead_letters(Bill)
            assert [letter.annotations["x-opt-dead-letter-condition"] for letter in letters] == [
                "lightrail:not-readable"
            ] * 4 + ["lightrail:skipped"] * 2
            texts = [str(letter.annotations["x-opt-dead-letter-description"]) for letter in letters]
            assert "expected JSON" in texts[0]
            assert ".order: expected a whole number, found 'x'" in texts[1]
            assert ".order: expected a value, found none" in texts[2]
            assert "expected an object for Bill" in texts[3]
            assert "shop.another" in texts[4]
            assert "shop.\\ud800" in texts[5]
            assert len(texts[5].encode()) < 2 * TEXT_MAX
            assert {each.outcome for each in test.handled} == {Outcome.NOT_READABLE, Outcome.SKIPPED}

    play(test())


def test_a_message_without_a_type_is_read_as_that_of_its_queue() -> None:
    async def test() -> None:
        bus = new_bus()

        @bus.handler
        async def handle(bill: Bill) -> None: ...

        async with TestBus(bus) as test:
            test.broker.send("commands/shop.bill", Envelope(body=b'{"order": 7, "more": 1}'))
            assert await test.consumed(Bill) == Bill(7)

    play(test())


def test_a_deferred_message_comes_again_and_sends_nothing() -> None:
    async def test() -> None:
        bus = new_bus()

        @bus.handler
        async def handle(order: OrderPlaced, context: Context) -> None:
            await context.publish(Invoice(order.order))
            if not context.delivery_count:
                await context.defer(10)

        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(7))
            await test.idle()
            assert [each.outcome for each in test.handled] == [Outcome.DEFERRED]
            assert len(test.sendings) == 1
            await test.advance(10)
            assert await test.published(Invoice) == Invoice(7)

    play(test())


def test_a_handler_is_called_with_a_batch_and_its_failure_fails_all_of_it() -> None:
    async def test() -> None:
        bus = new_bus()
        batches: list[list[int]] = []

        @bus.handler(batch=Batch(size=3, wait=1.0), retry=Retry(delayed=[5]))
        async def handle(orders: list[OrderPlaced], context: Context) -> None:
            batches.append([order.order for order in orders])
            if len(batches) == 1:
                raise RuntimeError("once")

        async with TestBus(bus) as test:
            for number in range(4):
                await test.publish(OrderPlaced(number))
            while not batches:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert batches == [[0, 1, 2]]
            test.clock.advance(1)
            while len(batches) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert batches[1] == [3]
            await test.idle()
            test.clock.advance(5)
            while len(batches) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert sorted(batches[2]) == [0, 1, 2]
            await test.idle()
            assert sum(each.outcome is Outcome.HANDLED for each in test.handled) == 4

    play(test())


def is_number(number: int, order: OrderPlaced) -> bool:
    return order.order == number


def test_middlewares_are_called_around_handlers_and_have_to_call_the_next_one_once() -> None:
    async def test() -> None:
        bus = new_bus()
        trace: list[str] = []
        group = Handlers()

        @bus.middleware
        async def outer(context, call_next):  # type: ignore[no-untyped-def]
            trace.append(f"outer {context.message.order}")
            context.state["user"] = "u"
            await call_next()
            trace.append("outer ends")

        @group.middleware
        async def inner(context, call_next):  # type: ignore[no-untyped-def]
            trace.append(f"inner {context.state['user']}")
            if context.message.order == 2:
                return None
            if context.message.order == 3:
                await call_next()
            return await call_next()

        @group.handler
        async def handle(order: OrderPlaced) -> None:
            trace.append("handler")

        bus.include(group)
        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(1))
            await test.consumed(OrderPlaced)
            assert trace == ["outer 1", "inner u", "handler", "outer ends"]
            for number in (2, 3):
                await test.publish(OrderPlaced(number))
                found = await test.failed(OrderPlaced, where=partial(is_number, number))
                assert isinstance(found.error, MiddlewareError)

    play(test())


def test_dependencies_are_made_once_per_message_and_closed_behind_its_handler() -> None:
    async def test() -> None:
        bus = new_bus()
        trace: list[str] = []

        async def session(context: Context) -> AsyncIterator[str]:
            trace.append("open")
            try:
                yield f"session of {context.message.order}"
            except RuntimeError:
                trace.append("roll back")
                raise
            trace.append("commit")

        def repository(session: str = Depends(session)) -> str:
            return f"repository on {session}"

        @bus.handler
        async def handle(
            order: OrderPlaced,
            found: Annotated[str, Depends(repository)],
            again: str = Depends(session),
        ) -> None:
            trace.append(f"{found}, {again}")
            if order.order == 2:
                raise RuntimeError("no")

        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(1))
            await test.consumed(OrderPlaced)
            assert trace == ["open", "repository on session of 1, session of 1", "commit"]
            await test.publish(OrderPlaced(2))
            await test.failed(OrderPlaced)
            assert trace[-1] == "roll back"

    play(test())


@pytest.mark.parametrize(("concurrency", "waited"), [(1, 0), (5, 100)])
def test_a_rate_limit_lets_so_many_calls_begin_in_a_time_however_long_tasks_have_waited(
    concurrency: int, waited: float
) -> None:
    async def test() -> None:
        bus = new_bus()
        calls: list[float] = []

        @bus.handler(rate_limit=RateLimit(2, seconds=10), concurrency=concurrency)
        async def handle(order: OrderPlaced) -> None:
            calls.append(test.clock.time() - began)

        async with TestBus(bus) as test:
            await test.advance(waited)
            began = test.clock.time()
            for number in range(5):
                await test.publish(OrderPlaced(number))
            for _ in range(3):
                for _ in range(50):
                    await asyncio.sleep(0)
                test.clock.advance(10)
            for _ in range(50):
                await asyncio.sleep(0)
            assert calls == [0, 0, 10, 10, 20]

    play(test())


def test_a_kill_switch_pauses_a_handler_that_fails_too_often() -> None:
    async def test() -> None:
        bus = new_bus()
        calls: list[float] = []

        @bus.handler(kill_switch=KillSwitch(failures=0.5, calls=4, pause=60), concurrency=1)
        async def handle(order: OrderPlaced) -> None:
            calls.append(test.clock.time() - began)
            if order.order % 2:
                raise RuntimeError("no")

        async with TestBus(bus) as test:
            began = test.clock.time()
            for number in range(6):
                await test.publish(OrderPlaced(number))
            for _ in range(200):
                await asyncio.sleep(0)
            assert calls == [0] * 4
            test.clock.advance(60)
            for _ in range(200):
                await asyncio.sleep(0)
            assert calls == [0] * 4 + [60] * 2

    play(test())


def test_middlewares_are_around_batches_and_batches_have_no_transactions(tmp_path: Path) -> None:
    async def test() -> None:
        bus = new_bus()
        trace: list[str] = []

        @bus.middleware
        async def around(context, call_next):  # type: ignore[no-untyped-def]
            trace.append("before")
            await call_next()
            trace.append("after")

        @bus.handler(batch=Batch(size=2))
        async def handle(orders: list[OrderPlaced]) -> None:
            trace.append(f"{len(orders)} orders")

        store = SqliteStore(tmp_path / "x.db")
        with pytest.raises(ConfigurationError, match="handler of single messages"):

            @bus.handler(batch=Batch(), subscription="other")
            async def pay(orders: list[OrderPlaced], database: Any = Depends(store.transaction)) -> None: ...

        async with TestBus(bus) as test:
            for number in range(2):
                await test.publish(OrderPlaced(number))
            await test.idle()
            assert trace == ["before", "2 orders", "after"]

    play(test())


def test_a_kill_switch_pauses_all_tasks_of_a_handler() -> None:
    async def test() -> None:
        bus = new_bus()
        calls: list[float] = []

        @bus.handler(kill_switch=KillSwitch(failures=1.0, calls=3, pause=60), concurrency=3)
        async def handle(order: OrderPlaced) -> None:
            calls.append(test.clock.time() - began)
            raise RuntimeError("no")

        async with TestBus(bus) as test:
            began = test.clock.time()
            for number in range(3):
                await test.publish(OrderPlaced(number))
            for _ in range(200):
                await asyncio.sleep(0)
            for number in range(3):
                await test.publish(OrderPlaced(number))
            for _ in range(200):
                await asyncio.sleep(0)
            assert calls == [0] * 3
            test.clock.advance(60)
            for _ in range(200):
                await asyncio.sleep(0)
            assert calls == [0] * 3 + [60] * 3

    play(test())


def test_a_failure_is_a_dead_letter_where_the_format_has_no_name_for_its_fault() -> None:
    async def test() -> None:
        bus = Bus("amqp://nobody", name="service", format=MassTransit({OrderPlaced: "Shop:OrderPlaced"}))

        @bus.handler
        async def handle(order: OrderPlaced) -> None:
            raise RuntimeError("no")

        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(1))
            assert (await test.failed(OrderPlaced)).outcome is Outcome.FAILED
            assert len(test.dead_letters(OrderPlaced)) == 1

    play(test())


def test_nesting_without_end_is_not_readable_at_once() -> None:
    async def test() -> None:
        bus = new_bus()

        @bus.handler
        async def handle(bill: Bill) -> None: ...

        async with TestBus(bus) as test:
            test.broker.send("commands/shop.bill", Envelope(body=b"[" * 100_000))
            assert (await test.failed(Bill)).outcome is Outcome.NOT_READABLE

    play(test())
