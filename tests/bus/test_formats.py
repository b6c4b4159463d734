"""Formats on the wire, against golden files: JSON, CloudEvents 1.0, MassTransit."""

import json
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lightrail.bus import Bus, CloudEvents, ConfigurationError, MassTransit, NotReadableError, message
from lightrail.bus.dotnet import camel, snake
from lightrail.bus.formats import Formats, Json, dumps
from lightrail.bus.testing import TestBus
from lightrail.transport import Envelope
from tests.bus.conftest import play

GOLDEN = Path(__file__).parents[1] / "golden" / "bus"


@message("billing.line")
@dataclass
class Line:
    item_code: str
    unit_price: Decimal


@message("billing.invoice-sent")
@dataclass
class InvoiceSent:
    order_id: int
    sent_to: str
    lines: list[Line] = field(default_factory=list)
    extra_fields: dict[str, int] = field(default_factory=dict)
    main_line: Line | None = None


NAMES = {InvoiceSent: "Shop.Contracts:InvoiceSent"}
SENT = InvoiceSent(
    7, "a@b", [Line("t_1", Decimal("9.50"))], {"keep_this": 1, "andThis": 2}, Line("m", Decimal(1))
)


def received(name: str) -> Envelope:
    """A message as a .NET service or a CloudEvents SDK writes it."""
    found = json.loads((GOLDEN / f"{name}.json").read_text())
    return Envelope(
        body=json.dumps(found["body"]).encode(),
        content_type=found["content_type"],
        headers=found["headers"],
    )


@pytest.mark.parametrize("name", ["masstransit", "cloudevents-structured", "cloudevents-binary", "json"])
def test_messages_of_others_are_handled(name: str) -> None:
    async def test() -> None:
        bus = Bus("amqp://nobody", name="billing", format=MassTransit(NAMES))

        @bus.handler
        async def handle(invoice: InvoiceSent) -> None: ...

        async with TestBus(bus) as test:
            test.broker.send("events/billing.invoice-sent", received(name))
            assert await test.consumed(InvoiceSent) == SENT

    play(test())


def written(format: Any) -> dict[str, Any]:
    bus = Bus("amqp://nobody", name="billing", format=format)
    envelope = bus.outgoing.event(SENT, id=str(uuid.UUID(int=7))).envelope
    body = json.loads(envelope.body)
    # What differs from one time or machine to the next, each of its kind.
    for key in ("time", "sentTime"):
        if key in body:
            assert body[key].endswith("Z")
            body[key] = "TIME"
    if "host" in body:
        assert body["host"].keys() >= {"machineName", "processId", "massTransitVersion"}
        body["host"] = "HOST"
    return {"body": body, "content_type": envelope.content_type, "headers": dict(envelope.headers)}


@pytest.mark.parametrize(
    ("name", "format"),
    [("json", Json()), ("cloudevents", CloudEvents("/shop")), ("masstransit", MassTransit(NAMES))],
)
def test_what_is_written_is_that_of_the_golden_file(name: str, format: Any) -> None:
    golden = GOLDEN / f"written-{name}.json"
    found = written(format)
    if not golden.exists():
        golden.write_text(json.dumps(found, indent=2) + "\n")
        pytest.fail(f"{golden.name} was written: read it, and run the test again")
    assert found == json.loads(golden.read_text())


def test_each_format_reads_what_it_has_written_and_a_bus_reads_all() -> None:
    for format in (Json(), CloudEvents(), MassTransit(NAMES)):
        bus = Bus("amqp://nobody", name="billing", format=format)
        envelope = bus.outgoing.event(SENT).envelope
        read = Formats(MassTransit(NAMES)).read(envelope)
        assert read.types[0] == "billing.invoice-sent"
        assert read.data["lines"] == [{"item_code": "t_1", "unit_price": "9.50"}]
        assert read.data["extra_fields"] == {"keep_this": 1, "andThis": 2}
        assert read.data["main_line"]["item_code"] == "m"


@pytest.mark.parametrize(
    ("python", "dotnet"), [("order_id", "orderId"), ("a", "a"), ("line2_total", "line2Total")]
)
def test_names_of_fields_are_translated_both_ways(python: str, dotnet: str) -> None:
    assert camel(python) == dotnet
    assert snake(dotnet) == python


def test_text_that_utf_8_cannot_encode_is_written_as_it_was_read() -> None:
    """So the fault of a message that has such text is published, and the message becomes a dead letter."""
    assert dumps({"a": "\ud800", "b": "\u00e9"}) == b'{"a":"\\ud800","b":"\xc3\xa9"}'


def test_what_is_no_message_of_a_format_is_refused() -> None:
    formats = Formats(MassTransit(NAMES))
    for body, content_type, text in (
        (b"{", "application/vnd.masstransit+json", "expected MassTransit's JSON"),
        (b"[]", "application/vnd.masstransit+json", "envelope with a message"),
        (b"[]", "application/cloudevents+json", "a JSON object of CloudEvents"),
        (b'{"specversion":"0.3","type":"x"}', "application/cloudevents+json", "specversion '0.3'"),
        (b'{"specversion":"1.0"}', "application/cloudevents+json", "expected a type"),
        (b"\xff", "application/json", "expected JSON"),
        (b"[" * 100_000, "application/json", "expected JSON"),
        (b"[" * 100_000, "application/vnd.masstransit+json", "expected MassTransit's JSON"),
    ):
        with pytest.raises(NotReadableError, match=text):
            formats.read(Envelope(body=body, content_type=content_type))
    with pytest.raises(ConfigurationError, match=r"name in \.NET for billing\.line"):
        Bus("amqp://nobody", name="b", format=MassTransit(NAMES)).outgoing.event(Line("x", Decimal(1)))
    with pytest.raises(ConfigurationError, match=r"Shop\.Contracts:OrderPlaced"):
        MassTransit({InvoiceSent: "InvoiceSent"})
