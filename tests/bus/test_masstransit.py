"""MassTransit's messages: what version 8.5.12 wrote is read, and what it reads is written.

The recorded messages are compared with those of MassTransit's serializers, and what the bus writes is read by
them, in tests/interop/test_masstransit.py.
"""

import asyncio
import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightrail.bus import (
    Bus,
    ConfigurationError,
    Context,
    Fault,
    MassTransit,
    NotReadableError,
    Outcome,
    RequestFailedError,
)
from lightrail.bus.formats import Formats
from lightrail.bus.masstransit import CONTENT_TYPE, name_of
from lightrail.bus.plan import Plan
from lightrail.bus.testing import TestBus
from lightrail.bus.typed import converter
from lightrail.transport import Envelope, Subscription
from tests.bus.conftest import play
from tests.bus.dotnet_messages import FULL, NAMES, NOTHING, Answer, Ask, Base, Derived, Everything

RECORDED = Path(__file__).parents[1] / "golden" / "bus" / "masstransit-8.5.12.jsonl"
REQUEST_ID = "30000000-0000-0000-0000-000000000003"


def recorded() -> dict[str, Any]:
    """What MassTransit wrote, by scenario."""
    lines = map(json.loads, RECORDED.read_text().splitlines())
    return {line["scenario"]: line["found"] for line in lines}


def envelope_of(name: str) -> Envelope:
    """A recorded message as its transport delivers it."""
    found = recorded()[name]
    return Envelope(
        body=found["body"].encode(), content_type=found["contentType"], headers=found["headers"], id="1" * 32
    )


def bus_of(**options: Any) -> Bus:
    return Bus("amqp://nobody", name="billing", format=MassTransit(NAMES, **options))


def read(envelope: Envelope) -> Any:
    """The message of an envelope as an object."""
    found = Formats(MassTransit(NAMES)).read(envelope)
    return converter(Everything).load(found.data)


def body_of(envelope: Envelope) -> Any:
    return json.loads(envelope.body)


# --- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["everything", "raw"])
def test_every_type_of_net_is_read(name: str) -> None:
    assert read(envelope_of(name)) == FULL


def test_what_system_text_json_writes_as_0_or_null_is_read() -> None:
    assert read(envelope_of("nothing")) == NOTHING


def test_what_newtonsoft_leaves_out_is_the_default_of_its_type() -> None:
    # NewtonsoftJsonMessageSerializer has DefaultValueHandling.Ignore and NullValueHandling.Ignore.
    envelope = envelope_of("nothing")
    body = body_of(envelope)
    body["message"] = {}
    # The enumeration is an optional one, which has no zero.
    offset = dt.datetime.min
    assert read(envelope.replace(body=json.dumps(body).encode())) == replace(
        NOTHING, phase_text=None, offset=offset
    )


@pytest.mark.parametrize("raw", [False, True])
def test_every_type_is_written_as_net_reads_it(raw: bool) -> None:
    written = bus_of(raw=raw).outgoing.event(FULL).envelope
    body = body_of(written)
    message = body if raw else body["message"]
    expected = json.loads(recorded()["raw"]["body"])
    # Names differ in case, which .NET's readers ignore; times in a digit that Python does not have.
    expected["at"] = expected["at"].replace("1234567Z", "123456Z")
    expected["time"] = "12:30:00.500000"
    assert {key.lower(): value for key, value in message.items()} == {
        key.lower(): value for key, value in expected.items()
    }
    assert read(written) == FULL


# --- requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["request", "raw-request"])
def test_a_request_of_net_is_answered_at_its_response_address_with_its_request_id(name: str) -> None:
    async def test() -> None:
        bus = bus_of(raw=name == "raw-request")
        seen: list[Context] = []

        @bus.responder
        async def answer(ask: Ask, context: Context) -> Answer:
            seen.append(context)
            return Answer(f"number {ask.number}")

        async with TestBus(bus) as test:
            test.broker.send("commands/dotnet.ask", envelope_of(name))
            await test.consumed(Ask)
            [answered] = test.broker.queue("vm_dotnet_bus_abc").envelopes()
        [context] = seen
        assert context.envelope.correlation_id == "40000000-0000-0000-0000-000000000004"
        assert context.conversation == "20000000-0000-0000-0000-000000000002"
        assert context.headers["MT-InitiatorId"] == "50000000-0000-0000-0000-000000000005"
        assert (context.headers["tenant"], context.headers["number"]) == ("north", 7)
        written = carried(answered)
        assert written["requestId"] == answered.correlation_id == REQUEST_ID
        assert written["correlationId"] is None
        assert written["conversationId"] == "20000000-0000-0000-0000-000000000002"
        # As MassTransit: the correlation id of the message whose handler sends this one.
        assert written["initiatorId"] == "40000000-0000-0000-0000-000000000004"
        assert written["message"] == {"text": "number 7"}
        assert written["messageType"] == ["urn:message:Shop.Contracts:Answer"]

    play(test())


def carried(envelope: Envelope) -> dict[str, Any]:
    """What a message has in an envelope of MassTransit, or in the headers of raw JSON."""
    if (envelope.content_type or "").startswith(CONTENT_TYPE):
        return dict(body_of(envelope))
    names = {"requestId": "RequestId", "correlationId": "CorrelationId", "conversationId": "ConversationId"}
    names |= {"initiatorId": "MT-InitiatorId", "responseAddress": "MT-Response-Address"}
    found: dict[str, Any] = {field: envelope.headers.get(name) for field, name in names.items()}
    return found | {
        "message": body_of(envelope),
        "messageType": str(envelope.headers["MT-MessageType"]).split(";"),
    }


@pytest.mark.parametrize("raw", [False, True])
def test_the_answer_of_net_ends_the_request_that_has_its_id(raw: bool) -> None:
    async def test() -> None:
        bus = bus_of(raw=raw)
        async with TestBus(bus) as test:
            requests = [
                asyncio.ensure_future(test.request(Ask(number), Answer, id=f"ask-{number}"))
                for number in range(2)
            ]
            await test.sent(Ask, where=lambda ask: ask.number == 0)
            await test.sent(Ask, where=lambda ask: ask.number == 1)
            queue = test.broker.queue("commands/dotnet.ask")
            # As MassTransit's transports answer: the request's id in the envelope, and no correlation id.
            for request in reversed(list(queue.envelopes())):
                asked = carried(request)
                address = asked["responseAddress"]
                assert address == f"queue:{request.reply_to}"
                found = recorded()["request"]
                body = json.loads(found["body"]) | {
                    "requestId": asked["requestId"],
                    "responseAddress": None,
                    "faultAddress": None,
                    "messageType": ["urn:message:Shop.Contracts:Answer"],
                    "message": {"text": f"number {asked['message']['number']}"},
                }
                answer = Envelope(
                    body=json.dumps(body).encode(), content_type=CONTENT_TYPE, correlation_id="4" * 32
                )
                test.broker.send(address.removeprefix("queue:"), answer)
            assert [each.text for each in await asyncio.gather(*requests)] == ["number 0", "number 1"]

    play(test())


def test_the_fault_of_a_consumer_in_net_ends_the_request_with_its_exception() -> None:
    async def test() -> None:
        async with TestBus(bus_of()) as test:
            request = asyncio.ensure_future(test.request(Ask(7), Answer))
            assert await test.sent(Ask) == Ask(7)
            [asked] = test.broker.queue("commands/dotnet.ask").envelopes()
            fault = envelope_of("fault")
            body = body_of(fault) | {"requestId": body_of(asked)["requestId"]}
            assert asked.reply_to is not None
            test.broker.send(asked.reply_to, fault.replace(body=json.dumps(body).encode()))
            with pytest.raises(RequestFailedError, match="no such number") as raised:
                await request
        assert raised.value.exception == "System.InvalidOperationException"
        assert raised.value.host == body["message"]["host"]["machineName"]

    play(test())


def test_requests_and_errors_go_between_two_services_in_python_as_well() -> None:
    async def test() -> None:
        bus = bus_of()

        @bus.responder
        async def answer(ask: Ask) -> Answer:
            if ask.number == 0:
                raise ValueError("no such number")
            return Answer(str(ask.number))

        async with TestBus(bus) as test:
            assert await test.request(Ask(1), Answer) == Answer("1")
            with pytest.raises(RequestFailedError, match=r"ValueError: no such number"):
                await test.request(Ask(0), Answer)

    play(test())


# --- faults --------------------------------------------------------------------------------------------


def test_a_fault_of_net_is_handled_as_that_of_the_bus() -> None:
    async def test() -> None:
        bus = bus_of()
        seen: list[Fault[Ask]] = []

        @bus.handler
        async def failed(fault: Fault[Ask]) -> None:
            seen.append(fault)

        async with TestBus(bus) as test:
            test.broker.send("faults/fault.dotnet.ask", envelope_of("fault"))
            await test.idle()
        host = body_of(envelope_of("fault"))["host"]["machineName"]
        at = dt.datetime(2026, 1, 31, 12, 0, 0, 123456, dt.UTC)
        assert seen == [
            Fault(
                Ask(7),
                "10000000-0000-0000-0000-000000000001",
                "System.InvalidOperationException",
                "no such number",
                "",
                host,
                1,
                at,
            )
        ]

    play(test())


def test_a_failing_handler_publishes_a_fault_of_masstransit_which_the_bus_reads_as_its_own() -> None:
    async def test() -> None:
        bus = bus_of()
        seen: list[Fault[Everything]] = []

        @bus.handler
        async def fails(everything: Everything) -> None:
            raise RuntimeError("no database")

        @bus.handler
        async def failed(fault: Fault[Everything]) -> None:
            seen.append(fault)

        async with TestBus(bus) as test:
            await test.publish(FULL, id="order-1")
            await test.idle()
            [sent] = [each for each in test.sendings if each.address.startswith("faults/")]
        body = body_of(sent.envelope)
        assert body["messageType"] == [
            "urn:message:MassTransit:Fault[[Shop.Contracts:Everything]]",
            "urn:message:MassTransit:Fault",
        ]
        message = body["message"]
        assert message["faultMessageTypes"] == ["urn:message:Shop.Contracts:Everything"]
        assert message["message"]["span"] == "1.02:03:04.5000000"
        assert message["timestamp"].endswith("Z")
        assert message["exceptions"][0]["exceptionType"] == "builtins.RuntimeError"
        assert message.keys() == json.loads(recorded()["fault"]["body"])["message"].keys()
        [fault] = seen
        assert (fault.message, fault.text, fault.attempts) == (FULL, "no database", 1)
        assert fault.handler.endswith("fails")

    play(test())


@pytest.mark.parametrize(
    ("is_responder", "change", "address"),
    [
        (True, {}, "dotnet-faults"),
        (True, {"faultAddress": None}, "vm_dotnet_bus_abc"),
        (False, {}, "dotnet-faults"),
        (False, {"faultAddress": None}, "vm_dotnet_bus_abc"),
        (False, {"faultAddress": None, "responseAddress": None}, "faults/fault.dotnet.ask"),
    ],
)
def test_a_fault_goes_where_the_sender_in_net_wants_it(
    is_responder: bool, change: dict[str, Any], address: str
) -> None:
    async def test() -> None:
        bus = bus_of()

        async def fails(ask: Ask) -> None:
            raise RuntimeError("no")

        (bus.responder if is_responder else bus.handler)(fails)
        envelope = envelope_of("request")
        body = body_of(envelope) | change
        async with TestBus(bus) as test:
            test.broker.send("commands/dotnet.ask", envelope.replace(body=json.dumps(body).encode()))
            assert (await test.failed(Ask)).outcome is Outcome.FAILED
            await test.idle()
            [sent] = test.sendings
        assert sent.address == address
        written = body_of(sent.envelope)
        assert written["messageType"][0] == "urn:message:MassTransit:Fault[[Shop.Contracts:Ask]]"
        assert written["requestId"] == (None if address.startswith("faults/") else REQUEST_ID)

    play(test())


# --- names ---------------------------------------------------------------------------------------------


def test_a_derived_message_is_one_of_its_base() -> None:
    async def test() -> None:
        bus = bus_of()
        seen: list[Base] = []

        @bus.handler
        async def handle(base: Base) -> None:
            seen.append(base)

        async with TestBus(bus) as test:
            test.broker.send("events/dotnet.base", envelope_of("derived"))
            await test.idle()
        assert seen == [Derived(1, "more")]

    play(test())


def test_the_conventions_are_the_topics_of_masstransit_on_service_bus() -> None:
    format = MassTransit({Everything: "Shop.Contracts:Everything", Ask: "Shop.Contracts:Outer+Inner"})
    bus = Bus("amqp://nobody", name="billing", format=format, conventions=format.conventions())

    @bus.handler
    async def handle(everything: Everything) -> None: ...

    @bus.handler
    async def failed(fault: Fault[Ask]) -> None: ...

    @bus.handler
    async def other(base: Base) -> None: ...

    @bus.responder
    async def answer(ask: Ask) -> None: ...

    plan = Plan("billing", bus.conventions)
    topology = plan.topology(plan.handlers(bus.registrations))
    assert sorted(topology.routers) == [
        "MassTransit/Fault--Shop.Contracts/Outer-Inner--",
        "Shop.Contracts/Everything",
        "Shop.Contracts/Outer-Inner",
        "events/dotnet.base",
    ]
    # What MassTransit publishes, such as a request without an address, reaches the queue of the command.
    published = Subscription("Shop.Contracts/Outer-Inner", "dotnet.ask", "commands/dotnet.ask")
    assert published in topology.subscriptions
    # As DefaultMessageNameFormatter of MassTransit writes them.
    names = recorded()["names"]
    assert names["topics"] == [
        "Shop.Contracts/Ask",
        "Shop.Contracts/Outer-Inner",
        "MassTransit/Fault--Shop.Contracts/Ask--",
    ]
    assert (names["fault"], names["nested"]) == (
        "urn:message:MassTransit:Fault[[Shop.Contracts:Ask]]",
        "urn:message:Shop.Contracts:Outer+Inner",
    )


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("sb://shop/vm_bus_abc?autodelete=300", "vm_bus_abc"),
        ("sb://shop.example/scope/vm_bus_abc", "scope/vm_bus_abc"),
        ("queue:orders", "orders"),
        ("queue:$temporary/x", "$temporary/x"),
        ("topic:Shop/Ask", "Shop/Ask"),
        ("loopback://localhost/with%20blank", "with blank"),
        (None, None),
    ],
)
def test_the_name_of_a_queue_is_the_path_of_its_address(address: str | None, name: str | None) -> None:
    assert name_of(address) == name


def test_addresses_have_the_host_where_one_is_given() -> None:
    bus = bus_of(address="sb://shop.example/")
    request = bus.outgoing.request(Ask(1), "$temporary/a b", 1.0).envelope
    body = body_of(request)
    assert body["responseAddress"] == "sb://shop.example/$temporary/a%20b"
    assert name_of(body["responseAddress"]) == request.reply_to
    assert body["sourceAddress"] == "sb://shop.example/billing"


# --- the context of a message --------------------------------------------------------------------------


def test_ids_of_messages_without_a_request_are_written_as_guids_and_stay_the_same() -> None:
    out = bus_of().outgoing
    body = body_of(out.command(Ask(1), id="ask-1", correlation_id="order-1", ttl=60.0).envelope)
    again = body_of(out.command(Ask(1), id="ask-1", correlation_id="order-1").envelope)
    assert body["messageId"] == again["messageId"] == body["conversationId"]
    assert body["correlationId"] == again["correlationId"] != body["messageId"]
    assert body["requestId"] is None
    sent, expires = (dt.datetime.fromisoformat(body[key]) for key in ("sentTime", "expirationTime"))
    assert expires - sent == dt.timedelta(minutes=1)
    assert body["expirationTime"].endswith("Z")


def test_a_conversation_has_one_id_in_all_services() -> None:
    bus = bus_of()
    first = bus.outgoing.command(Ask(1), id="ask-1").envelope
    read = Formats(MassTransit(NAMES)).read(first).envelope
    assert read.headers["lightrail-conversation"] == body_of(first)["conversationId"]


def test_the_context_of_a_trace_is_that_of_net() -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    out = bus_of().outgoing
    out.on_envelope(lambda address, type, headers, id: headers.update(traceparent=trace))
    body = body_of(out.command(Ask(1)).envelope)
    assert body["headers"]["MT-Activity-Id"] == trace
    del body["headers"]["traceparent"]
    found = Envelope(body=json.dumps(body).encode(), content_type=CONTENT_TYPE)
    assert MassTransit(NAMES).read(found).envelope.headers["traceparent"] == trace


def test_a_header_that_is_an_object_is_read_as_its_json() -> None:
    found = MassTransit(NAMES).read(envelope_of("request"))
    assert found.envelope.headers["object"] == '{"a": 1}'


def test_a_type_that_has_no_class_here_keeps_its_urn() -> None:
    envelope = envelope_of("request")
    body = body_of(envelope) | {"messageType": ["urn:message:Shop:Other", "urn:message:Shop.Contracts:Ask"]}
    found = MassTransit(NAMES).read(envelope.replace(body=json.dumps(body).encode()))
    assert found.types == ("urn:message:Shop:Other", "dotnet.ask")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"messageType": "x"}, "expected a list of types"),
        ({"headers": [1]}, "an object of headers"),
        ({"requestId": 7}, "expected a text for requestId, found 7"),
        ({"responseAddress": "sb://host/"}, "with the name of a queue"),
        ({"message": {"nummer": 7}}, "expected fields such as number, found nummer"),
        ({"messageType": ["urn:message:MassTransit:Fault[[Shop.Contracts:Ask]]"]}, "expected a Fault"),
    ],
)
def test_an_envelope_with_something_else_is_not_readable(change: dict[str, Any], text: str) -> None:
    envelope = envelope_of("request")
    body = body_of(envelope) | change
    changed = envelope.replace(body=json.dumps(body).encode())
    with pytest.raises(NotReadableError, match=text):
        MassTransit(NAMES).read(changed)


@pytest.mark.parametrize("name", ["Shop.Contracts.Ask", "urn:message:Shop:Ask"])
def test_a_name_that_is_none_of_net_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"as \"Shop\.Contracts:OrderPlaced\""):
        MassTransit({Ask: name})
