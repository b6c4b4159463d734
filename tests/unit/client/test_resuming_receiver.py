"""Receivers with `resume`, against a broker that answers each attach as the test says (transport 2.6.13)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Accepted, Modified, Received, Rejected, Released
from lightrail.client import (
    ClientError,
    Delivery,
    Event,
    LostError,
    Message,
    Receiver,
    ReconnectPolicy,
    connect,
)
from tests.support.amqp.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.usefixtures("closes_soon")

DEADLINE_S = 20.0
SOON = ReconnectPolicy(first=0.005, longest=0.05, connect=5.0)
SMALL_FRAME = 512
PREFIX = b"terminus"
BEGINNING = Received(section_number=0, section_offset=0)


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.001)


def encoded(number: int) -> bytes:
    return Message(number).encode()


def tag(number: int) -> bytes:
    return PREFIX + number.to_bytes(4, "big")


async def attach(broker: ScriptedBroker, first: int, **answer: Any) -> tuple[Link, dict[bytes, Any] | None]:
    """Accepts the next attach, of a link whose next new delivery has the number `first`."""
    event = await broker.next(events.Attached)
    event.link.number_tags(PREFIX, first)
    broker.put(event)
    link, theirs = await broker.attach(**answer)
    await broker.next(events.Credit)
    return link, theirs


async def received(broker: ScriptedBroker, receiver: Receiver, count: int) -> tuple[Link, list[Delivery]]:
    """A first attach, and deliveries 0 and so on that the application has."""
    link, theirs = await attach(broker, 0)
    assert theirs is None, "the broker begins anew for a process that has no state of the link"
    for number in range(count):
        link.send_one(encoded(number))
    broker.write()
    found: list[Delivery] = []
    while len(found) < count:
        found += await receiver.receive(count)
    assert [delivery.body for delivery in found] == [*range(count)]
    return link, found


async def lose(broker: ScriptedBroker, receiver: Receiver) -> None:
    broker.lose()
    await until(lambda: not receiver.healthy)


async def nothing(receiver: Receiver) -> None:
    """The receiver hands nothing out."""
    assert await receiver.receive(1, timeout=0.05) == []


async def outcome(broker: ScriptedBroker, number: int, kind: type = Accepted) -> None:
    """The client's outcome of a delivery, which waits for the broker to settle it."""
    found = await broker.next(events.Outcome)
    assert (found.first, found.last, type(found.state), found.settled) == (number, number, kind, False)


def test_an_outcome_is_in_the_map_until_the_broker_has_settled() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            link, deliveries = await received(broker, receiver, 3)
            for number in (0, 1):
                await deliveries[number].accept()
            found = await broker.next(events.Outcome)
            assert (found.first, found.last, found.settled) == (0, 1, False)
            link.settle_sent(0, 0, found.state)
            broker.write()
            await until(lambda: len(receiver._unsettled) == 2)  # type: ignore[attr-defined]
            await lose(broker, receiver)
            _, theirs = await attach(broker, 3, unsettled={})
            assert theirs == {tag(1): Accepted(), tag(2): None}

    play(test())


def test_the_broker_is_asked_for_the_time_and_for_durable_state() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            for durable in (True, False):
                receiver = connection.receiver("q", resume=60, durable=durable)
                link = (await broker.next(events.Attached)).link
                assert (link.source.timeout, link.source.durable) == (60, 2 if durable else 0)
                assert link.rcv_settle_mode == 1
                link.accept()
                broker.write()
                await receiver.opened()
                assert receiver.resumes
            plain = connection.receiver("q")
            link = (await broker.next(events.Attached)).link
            assert (link.source.timeout, link.rcv_settle_mode) == (0, 0)
            link.accept()
            broker.write()
            await plain.opened()
            assert not plain.resumes

    play(test())


def test_a_resumed_delivery_is_not_received_again_and_can_be_settled() -> None:
    """Tags 2 and 6 of the table in messaging 3.4.6, the broker being the sender."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            _, deliveries = await received(broker, receiver, 3)
            await lose(broker, receiver)
            link, theirs = await attach(broker, 3, unsettled=dict.fromkeys(map(tag, range(3))))
            assert theirs == dict.fromkeys(map(tag, range(3)))
            for number in range(3):
                link.send_again(number, encoded(number), resume=True, state=BEGINNING)
            link.send_one(encoded(3))
            broker.write()
            assert [delivery.body for delivery in await receiver.receive(5)] == [3]
            await deliveries[1].accept()
            await outcome(broker, 1)
            await deliveries[2].reject("no", "reason")
            await outcome(broker, 2, Rejected)
            await deliveries[0].fail()
            await outcome(broker, 0, Modified)

    play(test())


def test_an_outcome_that_the_broker_did_not_get_is_in_the_map_and_concluded_without_a_message() -> None:
    """Tags 3 and 8."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            _, deliveries = await received(broker, receiver, 2)
            await deliveries[0].accept()
            await broker.next(events.Outcome)
            await lose(broker, receiver)
            # While there is no connection.
            await deliveries[1].release()
            link, theirs = await attach(broker, 2, unsettled=dict.fromkeys(map(tag, range(2))))
            assert theirs == {tag(0): Accepted(), tag(1): Released()}
            link.send_again(0, resume=True, settled=True, state=Accepted())
            broker.write()
            await until(lambda: len(receiver._unsettled) == 1)  # type: ignore[attr-defined]
            await lose(broker, receiver)
            _, theirs = await attach(broker, 2, unsettled={})
            assert theirs == {tag(1): Released()}
            await nothing(receiver)

    play(test())


def test_an_outcome_between_the_attach_and_the_resumed_transfer_is_sent_with_that() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            _, deliveries = await received(broker, receiver, 2)
            await lose(broker, receiver)
            link, _ = await attach(broker, 2, unsettled=dict.fromkeys(map(tag, range(2))))
            await deliveries[1].accept()
            for number in range(2):
                link.send_again(number, encoded(number), resume=True, state=BEGINNING)
            broker.write()
            await outcome(broker, 1)

    play(test())


def test_what_the_broker_does_not_have_is_stored_or_lost() -> None:
    """Tags 1, 5 and 9: it settled the delivery, or the lock has expired."""

    async def test() -> None:
        said: list[Event] = []
        async with (
            ScriptedBroker() as broker,
            connect(broker.url, reconnect=SOON, on_event=said.append) as connection,
        ):
            receiver = connection.receiver("q", resume=60)
            link, deliveries = await received(broker, receiver, 2)
            link.send_one(encoded(2))
            broker.write()
            await until(lambda: len(receiver._unsettled) == 3)  # type: ignore[attr-defined]
            await deliveries[0].accept()
            await lose(broker, receiver)
            link, theirs = await attach(broker, 3, unsettled={})
            assert theirs == {tag(0): Accepted(), tag(1): None, tag(2): None}
            await until(lambda: receiver.healthy)
            assert not deliveries[0].lost
            assert deliveries[1].lost
            with pytest.raises(LostError, match="delivered again"):
                await deliveries[1].accept()
            # The third was not received: it arrives as another delivery.
            link.send_one(encoded(2))
            broker.write()
            (again,) = await receiver.receive(5)
            assert (again.body, again.lost) == (2, False)
            await again.accept()
            await outcome(broker, 3)
            assert not [event for event in said if event.kind == "lock-lost"]

    play(test())


def test_what_only_the_broker_has_is_received() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            _, (first,) = await received(broker, receiver, 1)
            await lose(broker, receiver)
            link, theirs = await attach(broker, 2, unsettled=dict.fromkeys(map(tag, range(2))))
            assert theirs == {tag(0): None}
            link.send_again(0, encoded(0), resume=True, state=BEGINNING)
            link.send_again(1, encoded(1), resume=False)
            broker.write()
            (second,) = await receiver.receive(5)
            assert second.body == 1
            await second.accept()
            await outcome(broker, 1)
            await first.accept()
            await outcome(broker, 0)

    play(test())


def test_an_aborted_delivery_is_lost() -> None:
    """The lock has expired between map and transfer."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            _, deliveries = await received(broker, receiver, 2)
            await lose(broker, receiver)
            link, _ = await attach(broker, 2, unsettled=dict.fromkeys(map(tag, range(2))))
            link.send_again(0, resume=True, aborted=True)
            link.send_again(1, encoded(1), resume=True, state=BEGINNING)
            broker.write()
            await until(lambda: deliveries[0].lost)
            with pytest.raises(LostError):
                await deliveries[0].accept()
            await deliveries[1].accept()
            await outcome(broker, 1)

    play(test())


def test_a_delivery_that_the_broker_settles_by_itself_is_lost() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            link, deliveries = await received(broker, receiver, 2)
            link.settle_sent(0, 0, Released())
            broker.write()
            await until(lambda: deliveries[0].lost)
            with pytest.raises(LostError):
                await deliveries[0].accept()
            await deliveries[1].accept()
            await outcome(broker, 1)

    play(test())


def test_messages_that_wait_for_the_application_stay_and_new_credit_is_for_new_ones() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", credit=10, resume=60)
            link, _ = await attach(broker, 0)
            for number in range(8):
                link.send_one(encoded(number))
            broker.write()
            await until(lambda: len(receiver._unsettled) == 8)  # type: ignore[attr-defined]
            (first,) = await receiver.receive(1)
            await lose(broker, receiver)
            link, _ = await attach(broker, 8, unsettled=dict.fromkeys(map(tag, range(8))))
            # Resumed ones use credit, too: 8 of them, and 3 for an empty place each in the window of 10.
            assert link.credit == 11
            for number in range(8):
                link.send_again(number, encoded(number), resume=True, state=BEGINNING)
            for number in range(8, 11):
                link.send_one(encoded(number))
            broker.write()
            await until(lambda: len(receiver._unsettled) == 11)  # type: ignore[attr-defined]
            assert [delivery.body for delivery in await receiver.receive(20)] == [*range(1, 11)]
            await first.accept()
            await outcome(broker, 0)

    play(test())


def test_a_receiver_that_asks_for_single_messages_has_its_unused_credit_again() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", credit=0, resume=60)
            link, _ = await attach(broker, 0)
            await receiver.opened()
            await receiver.grant(3)
            assert (await broker.next(events.Credit)).limit == 3
            link.send_one(encoded(0))
            broker.write()
            assert len(await receiver.receive(1)) == 1
            await lose(broker, receiver)
            link, _ = await attach(broker, 1, unsettled={tag(0): None})
            assert link.credit == 1 + 2

    play(test())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kept_s": 0}, {"kept_s": 0}),
        ({"mode": 0}, {"mode": 0}),
        ({}, {}),
        ({}, {"kept_s": 0, "unsettled": {}}),
    ],
    ids=["no time", "settles first", "no map", "another broker"],
)
def test_where_the_broker_does_not_resume_deliveries_are_lost_with_the_connection(
    first: Any, second: Any
) -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", credit=10, resume=60)
            link, _ = await attach(broker, 0, **first)
            for number in range(3):
                link.send_one(encoded(number))
            broker.write()
            deliveries = await receiver.receive(1)
            await until(lambda: link.credit == 7)
            await lose(broker, receiver)
            link, _ = await attach(broker, 0, **second)
            await until(lambda: receiver.healthy)
            with pytest.raises(LostError):
                await deliveries[0].accept()
            link.send_one(encoded(0))
            broker.write()
            (again,) = await receiver.receive(5)
            await again.accept()
            found = await broker.next(events.Outcome)
            assert (found.first, type(found.state)) == (0, Accepted)

    play(test())


def test_many_outcomes_at_a_broker_that_confirms_none_use_no_room() -> None:
    async def test() -> None:
        async with (
            ScriptedBroker(max_frame_size=SMALL_FRAME) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            receiver = connection.receiver("q", credit=4, resume=60)
            link, _ = await attach(broker, 0, mode=0, kept_s=0)
            for number in range(100):
                await until(lambda: link.credit > 0)
                link.send_one(encoded(number))
                broker.write()
                (delivery,) = await receiver.receive(1)
                await delivery.accept()

    play(test())


def test_deliveries_are_lost_when_the_time_has_passed_and_outcomes_without_an_answer_are_reported() -> None:
    async def test() -> None:
        said: list[Event] = []
        broker = ScriptedBroker()
        async with broker:
            connection = await connect(broker.url, reconnect=SOON, on_event=said.append)
            receiver = connection.receiver("q", resume=1)
            event = await broker.next(events.Attached)
            event.link.number_tags(PREFIX, 0)
            broker.put(event)
            link, _ = await broker.attach(1)
            await broker.next(events.Credit)
            for number in range(3):
                link.send_one(encoded(number))
            broker.write()
            await until(lambda: len(receiver._unsettled) == 3)  # type: ignore[attr-defined]
            first, second = await receiver.receive(2)
            await first.accept()
            await broker.next(events.Outcome)
            await broker.close()
            await until(lambda: second.lost)
            with pytest.raises(LostError):
                await second.accept()
            assert [event.reason for event in said if event.kind == "lock-lost"] == [
                "the broker has stored 1 outcomes or not: those messages are delivered again"
            ]
            await nothing(receiver)
            connection._give_up(ClientError("the test ends"))

    play(test())


def test_outcomes_that_exceed_a_frame_are_concluded_part_by_part() -> None:
    """An incomplete map gets resumed deliveries only; then the link is attached with the rest (2.7.3)."""

    async def test() -> None:
        count = 8
        async with (
            ScriptedBroker(max_frame_size=SMALL_FRAME) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            receiver = connection.receiver("q", credit=count, resume=60)
            _, deliveries = await received(broker, receiver, count)
            with pytest.raises(ValueError, match="at most 112 encoded bytes"):
                await deliveries[0].reject("no", "x" * 200)
            await lose(broker, receiver)
            for delivery in deliveries[1:]:
                await delivery.reject("no", "x" * 80)
            left = {tag(number) for number in range(count)}
            rounds = 0
            while len(left) > 1:
                event = await broker.next(events.Attached)
                assert event.link.attach is not None
                is_incomplete = event.link.attach.incomplete_unsettled
                broker.put(event)
                link, theirs = await attach(broker, count, unsettled=dict.fromkeys(left))
                rounds += 1
                assert theirs is not None
                assert is_incomplete is (theirs.keys() != left)
                assert theirs[tag(0)] is None, "what the application has comes first"
                assert len(theirs) > 1
                link.send_again(0, encoded(0), resume=True, state=BEGINNING)
                for number in range(1, count):
                    if tag(number) in theirs:
                        link.send_again(number, resume=True, settled=True, state=theirs[tag(number)])
                        broker.write()
                        left.discard(tag(number))
                        await until(lambda: len(receiver._unsettled) == len(left))  # type: ignore[attr-defined]
                if is_incomplete:
                    assert not (await broker.next(events.Detached)).closed
            # A map has room for three outcomes.
            assert rounds == 3
            assert len(broker.connections) == 1
            await deliveries[0].accept()
            await outcome(broker, 0)
            link.send_one(encoded(count))
            broker.write()
            assert [delivery.body for delivery in await receiver.receive(5)] == [count]

    play(test())


def test_no_more_deliveries_are_unsettled_than_a_frame_has_room_for() -> None:
    async def test() -> None:
        most = SMALL_FRAME // 36
        async with (
            ScriptedBroker(max_frame_size=SMALL_FRAME) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            receiver = connection.receiver("q", credit=100, resume=60)
            link, _ = await attach(broker, 0)
            assert link.credit == most
            number = 0
            for _ in range(4):
                first = number
                while link.credit:
                    link.send_one(encoded(number))
                    number += 1
                assert number - first == most
                broker.write()
                found: list[Delivery] = []
                while len(found) < most:
                    found += await receiver.receive(most)
                assert link.credit == 0
                for delivery in found:
                    await delivery.accept()
                while (await broker.next(events.Outcome)).last < number - 1:
                    pass
                link.settle_sent(first, number - 1, Accepted())
                broker.write()
                await until(lambda: link.credit == most)

    play(test())


def test_a_link_that_the_broker_detaches_is_resumed_on_the_same_connection() -> None:
    """As after the restart of a shard that has the link's state on disk."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            link, deliveries = await received(broker, receiver, 2)
            await deliveries[1].accept()
            await outcome(broker, 1)
            link.detach("amqp:link:detach-forced", "restarted")
            broker.write()
            link, theirs = await attach(broker, 2, unsettled={tag(0): None})
            assert theirs == {tag(0): None, tag(1): Accepted()}
            link.send_again(0, encoded(0), resume=True, state=BEGINNING)
            broker.write()
            await deliveries[0].accept()
            await outcome(broker, 0)
            assert len(broker.connections) == 1

    play(test())


def test_a_link_that_is_ended_with_an_error_is_not_resumed() -> None:
    """An outcome that the broker refuses with the link would end each resumed link."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            link, deliveries = await received(broker, receiver, 2)
            await deliveries[1].accept()
            await outcome(broker, 1)
            link.detach("amqp:decode-error", "refused")
            broker.write()
            _, theirs = await attach(broker, 2, unsettled={})
            assert theirs == {}
            with pytest.raises(LostError):
                await deliveries[0].accept()

    play(test())


def test_a_receiver_that_closes_waits_for_its_outcomes_and_releases_the_rest() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", credit=2, resume=60)
            link, deliveries = await received(broker, receiver, 2)
            await deliveries[0].accept()
            closing = asyncio.create_task(receiver.close())
            await outcome(broker, 0)
            assert not broker.has(events.Detached)
            link.settle_sent(0, 0, Accepted())
            broker.write()
            found = await broker.next(events.Outcome)
            assert (found.first, found.last, type(found.state)) == (1, 1, Released)
            while (event := await broker.next(events.Credit)).drain is False:
                pass
            event.link.drained()
            broker.write()
            assert (await broker.next(events.Detached)).closed
            await closing
            with pytest.raises(LostError):
                await deliveries[1].accept()

    play(test())


def test_a_delivery_with_an_outcome_that_is_not_confirmed_is_not_released_by_closing() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", credit=2, resume=60)
            _, deliveries = await received(broker, receiver, 2)
            await deliveries[0].accept()
            closing = asyncio.create_task(receiver.close())
            await outcome(broker, 0)
            await outcome(broker, 1, Released)
            assert (await broker.next(events.Detached)).closed
            await closing
            assert not broker.has(events.Outcome)

    play(test())


def test_a_receiver_with_resume_is_not_for_transactions() -> None:
    async def test() -> None:
        from lightrail.amqp.performatives import TransactionalState

        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            receiver = connection.receiver("q", resume=60)
            _, (delivery,) = await received(broker, receiver, 1)
            with pytest.raises(ClientError, match="without `resume` in a transaction"):
                delivery.settle(TransactionalState(txn_id=b"1"))
            await delivery.accept()
            await outcome(broker, 0)

    play(test())
