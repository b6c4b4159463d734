"""What every transport does, and what each declares that it offers."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from lightrail.transport import (
    Envelope,
    Handler,
    QueueRules,
    Received,
    SendRefusedError,
    Topology,
    Transport,
    TransportClosedError,
    TransportError,
)
from tests.transport.conftest import Hub, gathering

Law = Callable[[Hub], Coroutine[Any, Any, None]]
Run = Callable[[Law], None]

NOTHING_S = 0.1
"""How long a receiver waits where nothing comes."""


async def listening(transport: Transport) -> None:
    """A datagram reaches those alone that listen when it is sent."""
    await transport.listen()


async def one(transport: Transport) -> Envelope:
    found: list[Envelope] = []
    assert await transport.receive(gathering(found), timeout=10.0)
    return found[0]


async def nothing(transport: Transport) -> bool:
    return not await transport.receive(gathering([]), timeout=NOTHING_S)


def test_what_is_sent_arrives_with_all_its_headers(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        await listening(receiver)
        sent = Envelope(
            body=b"\x00bytes\xff",
            id="m-1",
            subject="orders.created",
            content_type="application/json",
            correlation_id="c-1",
            reply_to="answers",
            group="g",
            priority=7,
            headers={"text": "ä", "number": 7, "real": 1.5, "yes": True, "none": None},
        )
        await sender.send(sent)
        found = await one(receiver)
        for name in (
            "body",
            "id",
            "subject",
            "content_type",
            "correlation_id",
            "reply_to",
            "group",
            "priority",
        ):
            assert getattr(found, name) == getattr(sent, name), name
        assert dict(found.headers) == dict(sent.headers)
        assert found.delivery_count == 0

    run(law)


def test_messages_arrive_in_the_order_of_their_sending(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        await listening(receiver)
        for number in range(100):
            await sender.send(Envelope(body=b"%d" % number))
        assert [int((await one(receiver)).body) for _ in range(100)] == list(range(100))

    run(law)


def test_a_receiver_that_gets_nothing_returns_false_in_time(run: Run) -> None:
    async def law(hub: Hub) -> None:
        _, receiver = await hub.pair()
        assert await nothing(receiver)

    run(law)


def test_the_selector_looks_and_the_handler_that_it_returns_is_called(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        await listening(receiver)
        looked: list[bytes] = []
        handled: list[bytes] = []

        async def handler(received: Received) -> None:
            await asyncio.sleep(0)
            handled.append(received.envelope.body)

        def select(envelope: Envelope) -> Handler | None:
            looked.append(envelope.body)
            return handler if envelope.body == b"b" else None

        for body in (b"a", b"b"):
            await sender.send(Envelope(body=body))
        assert await receiver.receive(select, timeout=10.0)
        assert (looked, handled) == ([b"a", b"b"], [b"b"])

    run(law)


def test_what_a_receiver_has_no_handler_for_stays_for_others(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        await listening(receiver)
        for body in (b"a", b"b", b"c"):
            await sender.send(Envelope(body=body))
        found: list[Envelope] = []
        assert await receiver.receive(lambda envelope: found.append if envelope.body == b"b" else None, 10.0)  # type: ignore[arg-type, return-value]
        if receiver.offers.selective:
            other = await hub.transport(sender.address)
            assert (await one(other)).body == b"a"
            # A receiver may have more at hand than it has looked at; what it has not handled is not its own.
            await receiver.close()
            assert (await one(other)).body == b"c"
        else:
            assert (await one(receiver)).body == b"c"
            assert await nothing(receiver)

    run(law)


def test_several_tasks_receive_at_once_and_each_message_has_one_handler(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        await listening(receiver)
        found: list[Envelope] = []
        working = 0
        most = 0

        async def handler(received: Received) -> None:
            nonlocal working, most
            working += 1
            most = max(most, working)
            await asyncio.sleep(0.001)
            working -= 1
            found.append(received.envelope)

        async def work() -> None:
            while len(found) < 50 and await receiver.receive(lambda envelope: handler, timeout=1.0):
                pass

        tasks = [asyncio.create_task(work()) for _ in range(5)]
        for number in range(50):
            await sender.send(Envelope(body=b"%d" % number))
        await asyncio.gather(*tasks)
        assert sorted(int(envelope.body) for envelope in found) == list(range(50))
        assert most > 1

    run(law)


def test_what_a_handler_raises_reaches_the_caller_and_is_a_failed_delivery(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        await listening(receiver)
        await sender.send(Envelope(body=b"x"))

        def fails(received: Received) -> None:
            raise RuntimeError("of the handler")

        with pytest.raises(RuntimeError, match="of the handler"):
            await receiver.receive(lambda envelope: fails, timeout=10.0)
        if receiver.offers.at_least_once:
            assert (await one(receiver)).delivery_count == 1
        assert await nothing(receiver)

    run(law)


def test_what_a_selector_raises_reaches_the_caller_and_is_a_failed_delivery(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        await listening(receiver)
        await sender.send(Envelope(body=b"x"))

        def fails(envelope: Envelope) -> Handler:
            raise RuntimeError("of the selector")

        with pytest.raises(RuntimeError, match="of the selector"):
            await receiver.receive(fails, timeout=10.0)
        if receiver.offers.at_least_once:
            assert (await one(receiver)).delivery_count == 1
        assert await nothing(receiver)

    run(law)


def test_a_message_that_is_being_handled_is_hidden_and_returns_when_its_receiver_ends(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.locks:
            with pytest.raises(TransportError, match="locks"):
                await at_most_once(sender, receiver)
            return
        await sender.send(Envelope(body=b"x"))
        begun = asyncio.Event()

        async def handler(received: Received) -> None:
            begun.set()
            await asyncio.Event().wait()

        work = asyncio.create_task(receiver.receive(lambda envelope: handler))
        await begun.wait()
        other = await hub.transport(sender.address)
        assert await nothing(other)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await receiver.close()
        found = await one(other)
        assert (found.body, found.delivery_count) == (b"x", 0)

    async def at_most_once(sender: Transport, receiver: Transport) -> None:
        await listening(receiver)
        await sender.send(Envelope())

        async def handler(received: Received) -> None:
            await received.release()

        await receiver.receive(lambda envelope: handler, timeout=10.0)

    run(law)


def test_a_released_message_is_delivered_again_uncounted_and_a_failed_one_counted(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.locks:
            return
        await sender.send(Envelope(body=b"x"))

        async def releases(received: Received) -> None:
            await received.release()

        async def fails(received: Received) -> None:
            await received.fail()
            assert received.settled

        assert await receiver.receive(lambda envelope: releases, timeout=10.0)
        assert await receiver.receive(lambda envelope: fails, timeout=10.0)
        assert (await one(receiver)).delivery_count == 1

    run(law)


def test_a_failed_message_waits_for_its_delay(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.delays:
            return
        await delayed(hub, sender.address)
        await sender.send(Envelope(body=b"x"))

        async def fails(received: Received) -> None:
            await received.fail(0.3)

        began = time.time()
        assert await receiver.receive(lambda envelope: fails, timeout=10.0)
        found = await one(receiver)
        assert time.time() - began >= 0.29
        assert found.delivery_count == 1

    run(law)


async def fails(received: Received) -> None:
    await received.fail()


async def rejects(received: Received) -> None:
    await received.dead_letter("app:bad")


def test_failed_messages_wait_as_the_rules_of_their_queue_say(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.delays:
            return
        await ruled(hub, sender.address, retry_delay=0.1, retry_growth=3, retry_delay_max=0.2)
        await sender.send(Envelope(body=b"bad"))
        times: list[float] = []

        async def handler(received: Received) -> None:
            times.append(time.time())
            await received.fail()

        for _ in range(4):
            assert await receiver.receive(lambda envelope: handler, timeout=10.0)
        assert (await one(receiver)).delivery_count == 4
        times.append(time.time())
        for wait, (before, after) in zip((0.1, 0.2, 0.2, 0.2), pairwise(times), strict=True):
            assert after - before >= wait - 0.01

    run(law)


def test_later_messages_pass_a_failed_one_and_its_group_waits(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not (receiver.offers.delays and receiver.offers.groups):
            return
        await ruled(hub, sender.address, groups=True, retry_delay=3600)
        await sender.send(Envelope(body=b"1", group="a"))
        assert await receiver.receive(lambda envelope: fails, timeout=10.0)
        for body, group in ((b"2", "a"), (b"3", "b"), (b"4", None)):
            await sender.send(Envelope(body=body, group=group))
        assert [(await one(receiver)).body for _ in range(2)] == [b"3", b"4"]
        assert await nothing(receiver)

    run(law)


def test_a_group_goes_on_in_order_after_the_wait(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not (receiver.offers.delays and receiver.offers.groups):
            return
        await ruled(hub, sender.address, groups=True, retry_delay=0.1)
        await sender.send(Envelope(body=b"1", group="a"))
        assert await receiver.receive(lambda envelope: fails, timeout=10.0)
        await sender.send(Envelope(body=b"2", group="a"))
        assert [(await one(receiver)).body for _ in range(2)] == [b"1", b"2"]

    run(law)


def test_a_dead_letter_that_fails_or_is_rejected_stays_and_waits_as_its_queue_says(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not (receiver.offers.delays and receiver.offers.dead_letters):
            return
        await ruled(hub, sender.address, retry_delay=3600, max_delivery_count=1)
        for body in (b"a", b"b"):
            await sender.send(Envelope(body=body))
            assert await receiver.receive(lambda envelope: fails, timeout=10.0)
        letters, others = [await hub.transport(f"{sender.address}/$dlq") for _ in range(2)]
        assert await letters.receive(lambda envelope: fails, timeout=10.0)
        assert await letters.receive(lambda envelope: rejects, timeout=10.0)
        assert await nothing(letters)
        await letters.close()
        assert (await one(others)).body == b"b"
        assert await nothing(others)

    run(law)


def test_dead_letters_of_a_queue_without_retries_fail_at_a_bounded_pace(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not (receiver.offers.delays and receiver.offers.dead_letters):
            return
        await ruled(hub, sender.address, max_delivery_count=1)
        await sender.send(Envelope(body=b"a"))
        assert await receiver.receive(lambda envelope: fails, timeout=10.0)
        letters = await hub.transport(f"{sender.address}/$dlq")
        began = time.time()
        for _ in range(5):
            assert await letters.receive(lambda envelope: fails, timeout=10.0)
        assert (await one(letters)).delivery_count == 5
        assert time.time() - began >= 0.3 - 0.01  # 10, 20, 40, 80 and 160 ms

    run(law)


def test_a_message_is_not_delivered_before_its_time(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.delays:
            return
        await delayed(hub, sender.address)
        due = time.time() + 0.3
        await sender.send(Envelope(body=b"later", deliver_at=due))
        await sender.send(Envelope(body=b"now"))
        assert (await one(receiver)).body == b"now"
        assert (await one(receiver)).body == b"later"
        assert time.time() >= due - 0.01

    run(law)


def test_a_dead_letter_is_kept_with_its_reason(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.dead_letters:
            return
        letters = await hub.transport(f"{sender.address}/$dlq")
        await sender.send(Envelope(body=b"x", headers={"a": 1}))

        async def handler(received: Received) -> None:
            await received.dead_letter("app:no-customer", "customer 7", {"x-opt-host": "h1"})

        assert await receiver.receive(lambda envelope: handler, timeout=10.0)
        assert await nothing(receiver)
        found = await one(letters)
        assert (found.body, dict(found.headers)) == (b"x", {"a": 1})
        assert found.annotations["x-opt-dead-letter-condition"] == "app:no-customer"
        assert found.annotations["x-opt-dead-letter-description"] == "customer 7"
        assert found.annotations["x-opt-host"] == "h1"

    run(law)


def test_a_message_expires_after_its_ttl(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.expiry:
            return
        await sender.send(Envelope(body=b"short", ttl=0.05))
        await sender.send(Envelope(body=b"long", ttl=60.0))
        if hub.kind.startswith("store-forward"):
            await sender.drained()  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)  # The time is the subject here.
        assert (await one(receiver)).body == b"long"

    run(law)


def test_messages_of_a_group_are_handled_one_after_the_other_and_in_order(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        if not receiver.offers.groups:
            return
        await delayed(hub, sender.address, groups=True)
        handled: list[tuple[str, int]] = []
        busy: set[str] = set()

        async def handler(received: Received) -> None:
            group = received.envelope.group
            assert group is not None
            assert group not in busy
            busy.add(group)
            await asyncio.sleep(0.002)
            busy.remove(group)
            handled.append((group, int(received.envelope.body)))

        async def work(transport: Transport) -> None:
            while len(handled) < 40 and await transport.receive(lambda envelope: handler, timeout=1.0):
                pass

        for number in range(20):
            for group in ("a", "b"):
                await sender.send(Envelope(body=b"%d" % number, group=group))
        other = await hub.transport(sender.address)
        await asyncio.gather(*(work(transport) for transport in (receiver, other) for _ in range(4)))
        for group in ("a", "b"):
            assert [number for name, number in handled if name == group] == list(range(20))

    run(law)


def test_a_transport_that_is_closed_raises_an_error_that_names_its_address(run: Run) -> None:
    async def law(hub: Hub) -> None:
        sender, receiver = await hub.pair()
        waiting = asyncio.create_task(receiver.receive(gathering([])))
        await asyncio.sleep(0)
        await receiver.close()
        await sender.close()
        with pytest.raises(TransportClosedError):
            await waiting
        with pytest.raises(TransportClosedError, match="239.255" if hub.kind == "udp" else "contract-"):
            await sender.send(Envelope())
        await sender.close()

    run(law)


def test_a_header_that_can_t_be_sent_is_refused(run: Run) -> None:
    async def law(hub: Hub) -> None:
        if hub.kind != "amqp":
            return
        sender, _ = await hub.pair()
        with pytest.raises(SendRefusedError, match="object"):
            await sender.send(Envelope(headers={"x": object()}))  # type: ignore[dict-item]

    run(law)


async def delayed(hub: Hub, address: str, *, groups: bool = False) -> None:
    """Makes the queue of an address with the rules that a law needs."""
    await ruled(hub, address, groups=groups)


async def ruled(hub: Hub, address: str, **rules: Any) -> None:
    """Makes the queue of an address with these rules."""
    assert hub.broker is not None
    await hub.broker.declare(Topology(queues={address: QueueRules(delay=True, **rules)}))
