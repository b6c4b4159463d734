"""Endpoints: objects in and out, and where messages go that can't be handled."""

import asyncio
import json
from typing import Any

import pytest

from lightrail.transport import Endpoint, Envelope, Loopback, MemoryBroker
from lightrail.transport.endpoint import TEXT_MAX, description_of, notes_of, sendable
from tests.transport.conftest import play


class Json:
    """A codec for what JSON has."""

    def encode(self, message: Any) -> Envelope:
        return Envelope(body=json.dumps(message).encode(), content_type="application/json")

    def decode(self, envelope: Envelope) -> Any:
        return json.loads(envelope.body)


def failing(*_: Any) -> None:
    raise RuntimeError("of the application")


def test_objects_are_sent_and_received() -> None:
    async def test() -> None:
        broker = MemoryBroker()
        endpoint = Endpoint(broker.transport("orders"), Json())
        found: list[Any] = []
        await endpoint.send({"id": 7})
        assert await endpoint.receive(lambda message: found.append, timeout=5)
        assert found == [{"id": 7}]
        assert not await endpoint.receive(lambda message: found.append, timeout=0)
        await endpoint.close()

    play(test())


def test_an_object_without_a_handler_stays_for_other_endpoints() -> None:
    async def test() -> None:
        broker = MemoryBroker()
        endpoint, other = (Endpoint(broker.transport("orders"), Json()) for _ in range(2))
        found: list[Any] = []
        for number in range(3):
            await endpoint.send(number)
        assert await endpoint.receive(lambda message: found.append if message == 1 else None, timeout=5)
        assert not await endpoint.receive(lambda message: None, timeout=0)
        for _ in range(2):
            assert await other.receive(lambda message: found.append, timeout=5)
        assert found == [1, 0, 2]

    play(test())


@pytest.mark.parametrize(
    ("reason", "body", "select"),
    [
        ("lightrail:not-readable", b"{", lambda message: failing),
        ("lightrail:selector-failed", b"{}", failing),
        ("lightrail:handler-failed", b"{}", lambda message: failing),
    ],
)
def test_what_can_t_be_handled_is_a_dead_letter_with_its_reason(
    reason: str, body: bytes, select: Any
) -> None:
    async def test() -> None:
        broker = MemoryBroker()
        endpoint = Endpoint(broker.transport("orders"), Json())
        await endpoint.transport.send(Envelope(body=body))
        assert await endpoint.receive(select, timeout=5)
        [letter] = broker.queue("orders/$dlq").envelopes()
        assert letter.body == body
        assert letter.annotations["x-opt-dead-letter-condition"] == reason
        found = letter.annotations["x-opt-exception-type"]
        assert found == ("json.decoder.JSONDecodeError" if body == b"{" else "builtins.RuntimeError")
        assert str(letter.annotations["x-opt-exception-text"]) in str(
            letter.annotations["x-opt-dead-letter-description"]
        )
        assert len(broker.queue("orders")) == 0

    play(test())


@pytest.mark.parametrize("select", [failing, lambda message: failing], ids=["selector", "handler"])
def test_where_there_are_no_dead_letters_messages_go_to_the_error_transport(select: Any) -> None:
    async def test() -> None:
        loopback = Loopback()
        with pytest.raises(ValueError, match="expected an error transport"):
            Endpoint(loopback.transport("orders"), Json())
        endpoint = Endpoint(loopback.transport("orders"), Json(), errors=loopback.transport("errors"))
        await endpoint.send({"id": 7})
        assert await endpoint.receive(select, timeout=5)
        [failed] = loopback.messages("errors")
        assert json.loads(failed.body) == {"id": 7}
        assert failed.headers["error-source"] == "orders"
        assert failed.headers["error-description"] == "RuntimeError: of the application"
        assert str(failed.headers["error-reason"]).startswith("lightrail:")

    play(test())


def test_a_message_whose_handler_is_cancelled_is_released() -> None:
    async def test() -> None:
        broker = MemoryBroker()
        endpoint = Endpoint(broker.transport("orders"), Json())
        await endpoint.send({})
        begun = asyncio.Event()

        async def waits(message: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        work = asyncio.create_task(endpoint.receive(lambda message: waits))
        await begun.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        [envelope] = broker.queue("orders").envelopes()
        assert envelope.delivery_count == 0

    play(test())


def test_the_description_of_a_dead_letter_is_short_text_that_utf_8_encodes() -> None:
    error = ValueError("of a sender: \ud800")
    assert description_of(error) == "ValueError: of a sender: \\ud800"
    assert notes_of(error)["x-opt-exception-text"] == "of a sender: \\ud800"
    assert str(notes_of(error)["x-opt-exception-trace"]).encode()
    assert len(sendable("x" * 10 * TEXT_MAX)) == TEXT_MAX
