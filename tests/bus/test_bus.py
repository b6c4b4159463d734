"""Publishing, sending, requests, schedules and topology, through a broker and through memory."""

import asyncio
import time
from dataclasses import dataclass
from decimal import Decimal

import pytest

from lightrail.bus import (
    Batch,
    Bus,
    BusError,
    ConfigurationError,
    Context,
    Fault,
    RequestFailedError,
    RequestTimeoutError,
    Retry,
    UnexpectedAnswerError,
    command,
    message,
)
from lightrail.bus.outgoing import FAULT
from lightrail.transport import Envelope, TopologyError
from tests.bus.conftest import Buses, Run, Seen
from tests.bus.shop import Bill, Event, GetQuote, Invoice, NoSuchItem, Noted, OrderPlaced, OrderPlaced2, Quote


def test_an_event_reaches_every_subscription_and_one_process_of_each(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen: dict[str, Seen] = {name: Seen() for name in ("billing", "shipping")}
        services = []
        for name in ("billing", "billing", "shipping"):
            bus = buses.bus(name)

            @bus.handler
            async def handle(order: OrderPlaced, name: str = name) -> None:
                seen[name].add(order.order)

            await bus.start()
            services.append(bus)
        async with buses.bus("shop") as shop:
            for number in range(20):
                await shop.publish(OrderPlaced(number))
            for name in ("billing", "shipping"):
                assert sorted(await seen[name].count(20)) == list(range(20))
        for bus in services:
            await bus.stop()
        assert [len(each.items) for each in seen.values()] == [20, 20]

    run(law)


def test_an_event_that_nobody_subscribes_to_is_published_all_the_same(run: Run) -> None:
    async def law(buses: Buses) -> None:
        async with buses.bus("shop") as shop:
            await shop.publish(OrderPlaced(1))
            # The next one finds the subscriptions that were made since.
            seen = Seen()
            late = buses.bus("late")
            late.handler(handles(seen))
            async with late:
                await shop.publish(OrderPlaced(2))
                assert await seen.count(1) == [2]

    run(law)


def handles(seen: Seen):  # type: ignore[no-untyped-def]
    async def handle(order: OrderPlaced) -> None:
        seen.add(order.order)

    return handle


def test_a_command_has_one_queue_and_waits_for_its_handler(run: Run) -> None:
    async def law(buses: Buses) -> None:
        async with buses.bus("shop") as shop:
            await shop.send(Bill(7))
            seen = Seen()
            billing = buses.bus("billing")

            @billing.handler
            def handle(bill: Bill) -> None:
                seen.items.append(bill)

            async with billing:
                await shop.send(Bill(8))
                while len(seen.items) < 2:  # noqa: ASYNC110 - a thread adds them
                    await asyncio.sleep(0.01)
            assert sorted(bill.order for bill in seen.items) == [7, 8]

    run(law)


def test_handlers_of_a_base_class_and_of_what_was_superseded_get_the_message_too(run: Run) -> None:
    async def law(buses: Buses) -> None:
        bases, older, newer = Seen(), Seen(), Seen()
        bus = buses.bus("watching")

        @bus.handler
        async def every(event: Event) -> None:
            bases.add(event)

        @bus.handler
        async def old(order: OrderPlaced) -> None:
            older.add(order)

        @bus.handler
        async def new(order: OrderPlaced2) -> None:
            newer.add(order)

        async with bus:
            await bus.publish(OrderPlaced(1, ["a"], Decimal("1.50")))
            await bus.publish(OrderPlaced2(2, "c", ["b"]))
            found = sorted(await older.count(2), key=lambda each: each.order)
            assert found == [OrderPlaced(1, ["a"], Decimal("1.50")), OrderPlaced(2, ["b"])]
            assert await newer.count(1) == [OrderPlaced2(2, "c", ["b"])]
            found = sorted(await bases.count(2), key=lambda each: each.order)
            assert found[0] == OrderPlaced(1, ["a"], Decimal("1.50"))
            assert found[1].order == 2

    run(law)


def test_a_topic_selects_events(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        bus = buses.bus("eu")

        @bus.handler(topic="eu.*.express")
        async def handle(order: OrderPlaced) -> None:
            seen.add(order.order)

        async with bus:
            for number, topic in enumerate(
                ("us.7.express", "eu.7.slow", "eu.7.express", None, "eu.8.express")
            ):
                await bus.publish(OrderPlaced(number), topic=topic)
            assert await seen.count(2) == [2, 4]

    run(law)


def test_a_typed_dict_is_published_with_its_class(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        bus = buses.bus()

        @bus.handler
        async def handle(noted: Noted) -> None:
            seen.add(noted)

        async with bus:
            await bus.publish({"order": 7, "text": "x", "more": 1}, type=Noted)
            assert await seen.count(1) == [{"order": 7, "text": "x"}]

    run(law)


def test_a_request_has_an_answer_of_one_of_its_types_or_an_error(run: Run) -> None:
    async def law(buses: Buses) -> None:
        prices = buses.bus("prices")

        @prices.responder
        async def quote(asked: GetQuote) -> Quote | NoSuchItem:
            if asked.item == "bad":
                raise ValueError("a bad item")
            return Quote(asked.item, Decimal("9.99")) if asked.item == "tea" else NoSuchItem(asked.item)

        async with buses.bus("shop") as shop:
            with pytest.raises(RequestTimeoutError, match="is a responder running"):
                await shop.request(GetQuote("tea"), Quote, timeout=0.05)
            async with prices:
                assert await shop.request(GetQuote("tea"), Quote, NoSuchItem) == Quote("tea", Decimal("9.99"))
                assert await shop.request(GetQuote("salt"), Quote, NoSuchItem) == NoSuchItem("salt")
                with pytest.raises(RequestFailedError, match="ValueError: a bad item") as failed:
                    await shop.request(GetQuote("bad"), Quote)
                assert failed.value.exception == "builtins.ValueError"
                with pytest.raises(
                    UnexpectedAnswerError, match=r"shop\.quote, found one of shop\.no-such-item"
                ):
                    await shop.request(GetQuote("salt"), Quote)
                answers = await asyncio.gather(*(shop.request(GetQuote("tea"), Quote) for _ in range(50)))
                assert len(answers) == 50

    run(law)


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({FAULT: True}, b"no JSON", "an error without a description"),
        ({FAULT: True}, b'"a text"', "an error without a description"),
        ({FAULT: True}, b'{"exception": "ValueError"}', "an error without a description"),
        ({}, b"no JSON", "the answer is not readable"),
        ({}, b'{"item": 1}', "the answer is not readable"),
    ],
)
def test_an_answer_that_can_t_be_read_is_an_error_of_its_request_alone(
    run: Run, headers: dict[str, bool], body: bytes, reason: str
) -> None:
    async def law(buses: Buses) -> None:
        asked: asyncio.Queue[Envelope] = asyncio.Queue()
        service = buses.bus("prices")

        @service.responder
        async def quote(wanted: GetQuote, context: Context) -> Quote | None:
            if wanted.item == "tea":
                return Quote("tea", Decimal("9.99"))
            asked.put_nowait(context.envelope)
            return None

        async with service, buses.bus("shop") as shop:
            request = asyncio.create_task(shop.request(GetQuote("salt"), Quote))
            envelope = await asked.get()
            assert envelope.reply_to is not None
            broker = buses.broker()
            await broker.open()
            answers = broker.transport(envelope.reply_to)
            await answers.open()
            answer = Envelope(body=body, correlation_id=envelope.correlation_id, headers=headers)
            answer.content_type = "application/json"
            await answers.send(answer)
            with pytest.raises(UnexpectedAnswerError, match=reason):
                await request
            assert await shop.request(GetQuote("tea"), Quote) == Quote("tea", Decimal("9.99"))
            await answers.close()
            if broker is not service.broker:
                await broker.close()

    run(law)


def test_what_a_handler_sends_leaves_when_it_has_succeeded(run: Run) -> None:
    async def law(buses: Buses) -> None:
        invoices = Seen()
        calls: list[int] = []
        bus = buses.bus()

        @bus.handler(retry=Retry(immediate=2))
        async def bill(order: OrderPlaced, context: Context) -> None:
            await context.publish(Invoice(order.order))
            calls.append(context.attempt)
            if context.attempt < 3:
                raise RuntimeError("not yet")

        @bus.handler
        async def invoiced(invoice: Invoice, context: Context) -> None:
            invoices.add(
                (invoice.order, context.id, context.conversation, context.headers["lightrail-cause"])
            )

        async with bus:
            await bus.publish(OrderPlaced(7), id="m-7")
            [(order, id, conversation, cause)] = await invoices.count(1)
            assert (order, conversation, cause) == (7, "m-7", "m-7")
            assert str(id).startswith("m-7/")
            assert calls == [1, 2, 3]

    run(law)


def test_a_scheduled_message_is_sent_at_its_time_unless_it_is_cancelled(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        bus = buses.bus()

        @bus.handler
        async def billed(bill: Bill) -> None:
            seen.add(("command", bill.order, time.time()))

        @bus.handler
        async def placed(order: OrderPlaced) -> None:
            seen.add(("event", order.order, time.time()))

        async with bus:
            due = time.time() + 0.4
            for number in (1, 2):
                command = await bus.schedule(Bill(number), at=due)
                event = await bus.schedule(OrderPlaced(number), at=due)
                if number == 2:
                    assert await bus.cancel(command)
                    assert await bus.cancel(event)
                    assert not await bus.cancel(event)
            found = await seen.count(2)
            assert sorted(each[:2] for each in found) == [("command", 1), ("event", 1)]
            assert all(at >= due - 0.01 for _, _, at in found)
            await bus.publish(OrderPlaced(3))
            assert (await seen.count(3))[2][:2] == ("event", 3)

    run(law)


def test_an_event_may_be_scheduled_before_anybody_subscribes(run: Run) -> None:
    async def law(buses: Buses) -> None:
        async with buses.bus("shop") as shop:
            # On a slow machine the event may be due before the subscription is there: then a longer delay.
            for delay in (0.2, 2.0, 20.0):
                due = time.monotonic() + delay
                scheduled = await shop.schedule(OrderPlaced(1), delay=delay)
                seen = Seen()
                late = buses.bus(f"late-{delay}")
                late.handler(handles(seen))
                async with late:
                    if time.monotonic() < due:
                        assert await seen.count(1) == [1]
                        assert not await shop.cancel(scheduled)
                        return
            raise AssertionError("a service took 20 seconds to subscribe")

    run(law)


def test_messages_of_one_key_are_handled_in_order(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        services = []
        for _ in range(2):
            bus = buses.bus("ordered")

            @bus.handler(ordered=True)
            async def handle(order: OrderPlaced) -> None:
                await asyncio.sleep(0.001)
                seen.add((order.order, order.lines[0]))

            await bus.start()
            services.append(bus)
        async with buses.bus("shop") as shop:
            for number in range(20):
                for order in range(3):
                    await shop.publish(OrderPlaced(order, [str(number)]))
            found = await seen.count(60)
        for order in range(3):
            assert [int(text) for key, text in found if key == order] == list(range(20))
        for bus in services:
            await bus.stop()

    run(law)


def test_contradictions_are_refused_at_the_start_with_both_handlers(run: Run) -> None:
    async def law(buses: Buses) -> None:
        bus = buses.bus()
        for _ in range(2):

            @bus.handler
            async def handle(order: OrderPlaced) -> None: ...

        with pytest.raises(
            ConfigurationError, match=r"test_bus.py:\d+.*test_bus.py:\d+.*subscription of its own"
        ):
            await bus.start()
        bus = buses.bus()
        for _ in range(2):

            @bus.handler
            async def bill(command: Bill) -> None: ...

        with pytest.raises(ConfigurationError, match="a command has one handler"):
            await bus.start()

    run(law)


def test_names_that_the_broker_has_with_another_role_are_refused(run: Run) -> None:
    async def law(buses: Buses) -> None:
        broker = buses.broker()
        await broker.open()
        sender = broker.transport(f"{buses.prefix}events/shop.order-placed")
        await sender.send(Envelope(body=b"a queue at its first use"))
        bus = buses.bus()

        @bus.handler
        async def handle(order: OrderPlaced) -> None: ...

        with pytest.raises(TopologyError, match="expected a router, found a queue"):
            await bus.start()
        await broker.close()

    run(law)


def test_a_second_start_changes_nothing_and_a_changed_option_is_set(run: Run) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        for topic in ("a.*", "b.*"):
            bus = buses.bus()

            @bus.handler(topic=topic)
            async def handle(order: OrderPlaced) -> None:
                seen.add(order.order)

            await bus.start()
            await bus.publish(OrderPlaced(1), topic="a.x")
            await bus.publish(OrderPlaced(2), topic="b.x")
            await seen.count(1 if topic == "a.*" else 2)
            await bus.stop()
        assert seen.items == [1, 2]

    run(law)


def test_a_bus_that_is_not_started_says_so(run: Run) -> None:
    async def law(buses: Buses) -> None:
        bus = buses.bus()
        with pytest.raises(BusError, match="is not started"):
            await bus.publish(OrderPlaced(1))
        with pytest.raises(BusError, match="is not started"):
            await bus.request(GetQuote("x"), Quote)

    run(law)


def test_what_is_no_message_is_refused_with_what_to_do() -> None:
    bus = Bus("memory://nowhere", name="x")
    with pytest.raises(ConfigurationError, match="declare it with @message"):

        @bus.handler
        async def handle(value: int) -> None: ...

    with pytest.raises(ConfigurationError, match="annotated with the class"):

        @bus.handler
        async def untyped(value) -> None:  # type: ignore[no-untyped-def]
            ...

    with pytest.raises(ConfigurationError, match="expected a Context, a default or Depends"):

        @bus.handler
        async def needs(order: OrderPlaced, other: int) -> None: ...

    with pytest.raises(ConfigurationError, match="expected a responder for a command"):

        @bus.responder
        async def responds(order: OrderPlaced) -> Quote:
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="one queue"):

        @bus.handler(topic="a.b")
        async def topical(bill: Bill) -> None: ...

    with pytest.raises(ConfigurationError, match="key for the order"):

        @bus.handler(ordered=True)
        async def ordered(invoice: Invoice) -> None: ...

    with pytest.raises(ConfigurationError, match="is a command"):
        bus.outgoing.event(Bill(1))
    with pytest.raises(ConfigurationError, match="is an event"):
        bus.outgoing.command(Invoice(1))
    with pytest.raises(ConfigurationError, match="small letters"):
        message("Shop.Order")
    with pytest.raises(ConfigurationError, match="expected a key that"):

        @command("x.y", key="missing")
        @dataclass
        class Keyless: ...

    with pytest.raises(ConfigurationError, match="a name of letters"):
        Bus("memory://x", name="a b")
    with pytest.raises(ConfigurationError, match="expected the URL of a broker"):
        Bus(name="a")


def test_retries_and_dead_letters_are_those_of_the_broker(run: Run) -> None:
    async def law(buses: Buses) -> None:
        calls, faults = Seen(), Seen()
        bus = buses.bus()

        @bus.handler(retry=Retry(immediate=1, delayed=[0.1, 0.2]))
        async def fails(bill: Bill, context: Context) -> None:
            calls.add((context.delivery_count, context.attempt, time.time()))
            raise RuntimeError("no money")

        @bus.handler
        async def failed(fault: Fault[Bill]) -> None:
            faults.add(fault)

        async with bus:
            await bus.send(Bill(7), id="bill-7")
            [fault] = await faults.count(1)
            assert (fault.message, fault.id, fault.attempts) == (Bill(7), "bill-7", 6)
            assert [call[:2] for call in calls.items] == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)]
            assert calls.items[2][2] - calls.items[1][2] >= 0.09
            assert calls.items[4][2] - calls.items[3][2] >= 0.19
            letters = bus.broker.transport(f"{buses.prefix}commands/shop.bill/$dlq")
            found = Seen()
            assert await letters.receive(lambda envelope: lambda received: found.add(envelope), timeout=10)
            notes = found.items[0].annotations
            assert notes["x-opt-dead-letter-condition"] == "lightrail:handler-failed"
            assert (notes["x-opt-exception-text"], notes["x-opt-attempts"]) == ("no money", 6)

    run(law)


def test_a_batch_is_one_call_and_a_lock_is_renewed_beside_a_slow_handler(run: Run) -> None:
    async def law(buses: Buses) -> None:
        batches, slow = Seen(), Seen()
        bus = buses.bus()

        @bus.handler(batch=Batch(size=5, wait=0.3))
        async def batch(orders: list[OrderPlaced]) -> None:
            batches.add([order.order for order in orders])

        @bus.handler(lock_duration=0.3)
        async def takes_long(bill: Bill, context: Context) -> None:
            await asyncio.sleep(1.0)  # Longer than three locks.
            slow.add(context.delivery_count)

        async with bus:
            await bus.send(Bill(1))
            for number in range(7):
                await bus.publish(OrderPlaced(number))
            assert [len(each) for each in await batches.count(2)] == [5, 2]
            assert await slow.count(1) == [0]
            await bus.send(Bill(2))
            assert await slow.count(2) == [0, 0]

    run(law)
