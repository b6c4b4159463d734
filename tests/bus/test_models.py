"""Messages that are models of pydantic and msgspec, validated by those."""

import json

import jsonschema
import msgspec
import pydantic
import pytest

from lightrail.bus import Bus, NotReadableError, Outcome, command, message
from lightrail.bus.asyncapi import describe
from lightrail.bus.testing import TestBus
from lightrail.bus.typed import converter
from lightrail.transport import Envelope
from tests.bus.conftest import play
from tests.bus.test_asyncapi import SCHEMA


class Customer(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


@message("models.registered", key="customer_id")
class Registered(pydantic.BaseModel):
    customer_id: int
    customer: Customer


@command("models.charge")
class Charge(msgspec.Struct):
    order: int
    lines: list[str] = []


def test_models_are_published_and_handled_as_they_are() -> None:
    async def test() -> None:
        bus = Bus("amqp://nobody", name="service")

        @bus.handler(ordered=True)
        async def registered(event: Registered) -> None: ...

        @bus.handler
        async def charge(command: Charge) -> None: ...

        async with TestBus(bus) as test:
            sent = Registered(customer_id=7, customer=Customer(name="a", age=3))
            await test.publish(sent)
            assert await test.consumed(Registered) == sent
            assert test.sendings[0].envelope.group == "7"
            await test.send(Charge(7, ["x"]))
            assert await test.consumed(Charge) == Charge(7, ["x"])
            test.broker.send("commands/models.charge", Envelope(body=b'{"order": "x"}'))
            assert (await test.failed(Charge)).outcome is Outcome.NOT_READABLE

    play(test())


def test_what_their_libraries_refuse_is_not_readable() -> None:
    with pytest.raises(NotReadableError, match="greater than or equal to 0"):
        converter(Registered).load({"customer_id": 1, "customer": {"name": "a", "age": -1}})
    with pytest.raises(NotReadableError, match="Expected `int`"):
        converter(Charge).load({"order": "x"})


def test_their_schemas_are_in_the_description() -> None:
    bus = Bus("amqp://nobody", name="service")
    bus.sends(Registered, Charge)
    document = describe(bus)
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(document)
    schemas = document["components"]["schemas"]
    assert schemas["Registered"]["properties"]["customer"] == {"$ref": "#/components/schemas/Customer"}
    assert schemas["Customer"]["properties"]["age"]["minimum"] == 0
    assert schemas["Charge"]["required"] == ["order"]
