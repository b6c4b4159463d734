"""A broker that ends a connection, session or link in order: whatever the application has handed in when the
end arrives is sent on the next connection, or has an outcome; nothing is handed to what has ended."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Declare, Declared, Discharge, Source
from lightrail.amqp.transactions import read_coordinator_request
from lightrail.client import (
    ClientError,
    Event,
    LostError,
    Message,
    Outcome,
    OutcomeKind,
    ReconnectPolicy,
    Sender,
    TransactionError,
    connect,
)
from lightrail.client import wire as wires
from tests.support.amqp.engine_broker import EngineBroker
from tests.support.amqp.scripted_broker import ScriptedBroker
from tests.support.certificates import Authority

pytestmark = pytest.mark.usefixtures("closes_soon")

DEADLINE_S = 20.0
SOON = ReconnectPolicy(first=0.005, longest=0.05, connect=5.0)
FORCED = "amqp:connection:forced"

End = Callable[[ScriptedBroker, Link], None]


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.001)


def by_close(broker: ScriptedBroker, link: Link) -> None:
    broker.connections[-1].engine.close(FORCED, "the broker is shutting down")


def by_end(broker: ScriptedBroker, link: Link) -> None:
    link.session.end("amqp:internal-error", "the session is over")


def by_detach(broker: ScriptedBroker, link: Link) -> None:
    link.detach("amqp:link:detach-forced", "the link is over")


ENDS = (by_close, by_end, by_detach)


async def attach_all(broker: ScriptedBroker) -> None:
    while True:
        await broker.attach()


async def accepts_all(broker: ScriptedBroker, count: int) -> list[bytes]:
    """The messages of so many deliveries, which the broker accepts."""
    payloads: list[bytes] = []
    while len(payloads) < count:
        event = await broker.next(events.Transfers)
        payloads += event.payloads
        event.link.settle(event.first_delivery_id, event.first_delivery_id + len(event.payloads) - 1)
        broker.write()
    return payloads


@pytest.mark.parametrize("resume", [None, 60])
@pytest.mark.parametrize("end", ENDS)
def test_messages_that_wait_for_credit_when_the_end_arrives_are_sent_after_it(
    end: End, resume: int | None
) -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=resume)
            link, _ = await broker.attach(credit=0)
            await sender.opened()
            answers = [sender.send_nowait(number) for number in range(3)]
            # Credit and end are read at once: the engine is past the end when the sender hears of its credit.
            link.grant(1)
            end(broker, link)
            broker.write()
            await broker.attach()
            payloads = await accepts_all(broker, 3)
            assert len(payloads) == len(set(payloads)) == 3
            assert [(await answer).kind for answer in answers] == [OutcomeKind.ACCEPTED] * 3

    play(test())


@pytest.mark.parametrize("end", ENDS)
def test_a_link_that_is_opened_while_the_end_is_handled_is_attached_after_it(end: End) -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            first = connection.sender("q")
            link, _ = await broker.attach()
            await first.opened()
            receiver = connection.receiver("q")
            received, _ = await broker.attach()
            await receiver.opened()
            opened: list[Sender] = []
            refused: list[ClientError] = []

            def on_lost() -> None:
                try:
                    opened.append(connection.sender("q"))
                except ClientError as error:
                    refused.append(error)

            receiver.on_lost = on_lost
            received.detach("amqp:link:detach-forced", "first its link, and in the same moment:")
            end(broker, link)
            broker.write()
            await until(lambda: bool(opened or refused))
            assert refused == []
            attaching = asyncio.create_task(attach_all(broker))
            await opened[0].opened()
            attaching.cancel()

    play(test())


def test_what_waits_for_the_coordinator_is_answered_after_the_end() -> None:
    async def test() -> None:
        async with (
            ScriptedBroker(transactions=True) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            begun = [asyncio.create_task(connection.transaction().begin()) for _ in range(3)]
            link = await coordinator(broker, credit=0)
            await until(lambda: connection.healthy)
            link.grant(1)
            by_close(broker, link)
            broker.write()
            await coordinator(broker, credit=10)
            await declares(broker, b"1", b"2", b"3")
            await asyncio.gather(*begun)

    play(test())


def test_a_discharge_that_was_not_sent_before_the_loss_ends_no_transaction_of_the_next_connection() -> None:
    async def test() -> None:
        async with (
            ScriptedBroker(transactions=True) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            former = connection.transaction()
            beginning = asyncio.create_task(former.begin())
            link = await coordinator(broker, credit=1)
            await declares(broker, b"1")
            await beginning
            later = connection.transaction()
            beginning = asyncio.create_task(later.begin())
            committing = asyncio.create_task(former.commit())
            await asyncio.sleep(0)
            by_close(broker, link)
            broker.write()
            with pytest.raises(TransactionError, match="rolled back") as found:
                await committing
            assert not found.value.is_unknown
            await coordinator(broker, credit=10)
            # Ids are those of a connection: the next one begins with the same.
            await declares(broker, b"1")
            await beginning
            rolling_back = asyncio.create_task(later.roll_back())
            event = await broker.next(events.Transfers)
            assert discharged(event).fail, "the first discharge of this connection is that of its transaction"
            event.link.settle(event.first_delivery_id, event.first_delivery_id)
            broker.write()
            await rolling_back

    play(test())


async def coordinator(broker: ScriptedBroker, credit: int) -> Link:
    link = (await broker.next(events.Attached)).link
    link.accept(source=Source())
    if credit:
        link.grant(credit)
    broker.write()
    return link


async def declares(broker: ScriptedBroker, *txn_ids: bytes) -> None:
    event = await broker.next(events.Transfers)
    found = [type(read_coordinator_request(payload)) for payload in event.payloads]
    assert found == [Declare] * len(txn_ids)
    for number, txn_id in enumerate(txn_ids, event.first_delivery_id):
        event.link.settle(number, number, Declared(txn_id=txn_id))
    broker.write()


def discharged(event: events.Transfers) -> Discharge:
    found = read_coordinator_request(event.payloads[0])
    assert isinstance(found, Discharge)
    return found


def test_a_message_beyond_the_brokers_largest_is_rejected_and_its_neighbours_are_sent() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q")
            await broker.attach(max_message_size=100)
            await sender.opened()
            answers = [sender.send_nowait(body) for body in ("a", "x" * 200, "b")]
            await accepts_all(broker, 2)
            kinds = [(await answer).kind for answer in answers]
            assert kinds == [OutcomeKind.ACCEPTED, OutcomeKind.REJECTED, OutcomeKind.ACCEPTED]
            assert sender.healthy

    play(test())


def test_over_tls_the_next_connection_does_not_wait_for_the_end_of_the_former_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "END_S", 0.01)
    certificate = Authority(tmp_path).sign("localhost", "DNS:localhost")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate.certificate, certificate.key)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))

    async def test() -> None:
        said: list[Event] = []
        async with ScriptedBroker(tls=served, keeps_sockets=True) as broker:
            url = f"amqps://localhost:{broker.port}"
            async with connect(url, tls=trusted, reconnect=SOON, on_event=said.append) as connection:
                sender = connection.sender("q")
                link, _ = await broker.attach()
                await sender.opened()
                by_close(broker, link)
                broker.write()
                assert len(broker.connections) == 1
                await broker.attach()
                await until(lambda: sender.healthy)
                assert "shutting down" in next(event.reason for event in said if event.kind == "lost")
                # In bounded time the former socket is closed, although the broker leaves its end open.
                await until(lambda: len(broker.connections) == 1)

    play(test())


def test_of_a_connection_that_is_closed_as_too_silent_only_what_was_sent_is_unknown() -> None:
    async def test() -> None:
        async with (
            ScriptedBroker() as broker,
            connect(broker.url, reconnect=SOON, heartbeat=0.1) as connection,
        ):
            sender = connection.sender("q", window=100_000)
            await broker.attach(credit=100_000)
            await sender.opened()
            answers: list[asyncio.Future[Outcome]] = []
            while sender.healthy:
                answers.append(sender.send_nowait(len(answers)))
                await asyncio.sleep(0)
            answers.append(sender.send_nowait(len(answers)))
            await until(lambda: not broker.connections)
            received = 0
            while broker.has(events.Transfers):
                received += len((await broker.next(events.Transfers)).payloads)
            unknown = [answer for answer in answers if answer.done()]
            assert [answer.result().kind for answer in unknown] == [OutcomeKind.UNKNOWN] * received
            await sender.close()

    play(test())


def test_a_request_that_was_not_sent_before_the_loss_is_not_sent_for_a_node_that_has_ended() -> None:
    async def test() -> None:
        async with EngineBroker(credit=0) as broker, connect(broker.url, reconnect=SOON) as connection:
            requester = connection.requester("service")
            await requester.opened()
            request = asyncio.create_task(requester.request("?"))
            await until(lambda: bool(requester._sender._waiting))
            broker.connections[0].transport.abort()
            with pytest.raises(LostError):
                await request
            broker.give_credit(10)
            await connection.sender("another").send("behind whatever was sent")
            assert not broker.of("service")

    play(test())


def test_a_request_that_is_made_while_the_connection_is_lost_names_the_next_node_for_its_answer() -> None:
    async def test() -> None:
        async with EngineBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            requester = connection.requester("service")
            await requester.opened()
            former = requester._receiver.address
            broker.connections[0].transport.abort()
            await until(lambda: not requester._receiver.healthy)
            request = asyncio.create_task(requester.request("?"))
            await until(lambda: bool(broker.of("service")))
            asked = Message.decode(broker.of("service")[0])
            assert asked.reply_to == requester._receiver.address != former
            request.cancel()

    play(test())
