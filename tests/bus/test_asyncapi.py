"""Descriptions in AsyncAPI 3.0 are valid by the public schema, and say what the bus does."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lightrail.bus import Bus, Conventions
from lightrail.bus.asyncapi import describe
from lightrail.cli import main as cli
from tests.bus.shop import Bill, GetQuote, Invoice, NoSuchItem, Noted, OrderPlaced, OrderPlaced2, Quote

# From the package @asyncapi/specs (Apache-2.0).
SCHEMA = Path(__file__).parents[1] / "golden" / "bus" / "asyncapi-3.0.0.json"


def described() -> dict[str, Any]:
    bus = Bus("amqp://nobody", name="service", conventions=Conventions("shop/"))

    @bus.handler(subscription="audit")
    async def audit(order: OrderPlaced | OrderPlaced2) -> None:
        """Writes down what was ordered."""

    @bus.handler
    async def noted(noted: Noted) -> None: ...

    @bus.handler
    async def bill(bill: Bill) -> None: ...

    @bus.responder
    async def quote(asked: GetQuote) -> Quote | NoSuchItem:
        raise NotImplementedError

    bus.sends(Invoice)
    return describe(bus, release="1.2.3")


def test_a_description_is_valid_by_the_public_schema() -> None:
    document = json.loads(json.dumps(described()))
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator(schema).validate(document)
    document["operations"]["bill.shop.bill"]["action"] = "neither"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(document)


def test_a_description_has_channels_operations_and_schemas() -> None:
    document = described()
    assert document["info"] == {"title": "service", "version": "1.2.3"}
    assert document["channels"]["event.shop.order-placed.v2"]["address"] == "shop/events/shop.order-placed.v2"
    assert document["channels"]["command.shop.bill"]["address"] == "shop/commands/shop.bill"
    audit = document["operations"]["audit.shop.order-placed"]
    assert (audit["action"], audit["x-subscription"]) == ("receive", "audit")
    assert audit["description"] == "Writes down what was ordered."
    assert document["operations"]["send.shop.invoice"]["action"] == "send"
    reply = document["operations"]["quote.shop.get-quote"]["reply"]
    assert [each["$ref"].rpartition("/")[2] for each in reply["messages"]] == [
        "shop.quote",
        "shop.no-such-item",
    ]
    order = document["components"]["schemas"]["OrderPlaced"]
    assert order["required"] == ["order"]
    assert order["properties"]["lines"] == {"type": "array", "items": {"type": "string"}}
    assert order["properties"]["at"] == {
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]
    }
    assert document["components"]["schemas"]["Noted"]["required"] == ["order"]
    # What the schema allows is what is read, and what is written keeps to it.
    jsonschema.validate({"order": 1, "lines": ["x"], "total": "1.5", "at": None}, order)


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bus", "docs", "tests.bus.services:bus", "--title", "Billing"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["info"]["title"] == "Billing"
    assert list(document["operations"]) == ["bill.shop.bill"]
