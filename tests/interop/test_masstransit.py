"""Messages between Python's bus and MassTransit's own serializers, in both directions."""

import asyncio
import json
import uuid
from typing import Any

import pytest

from lightrail.bus import Bus, Context, MassTransit, RequestFailedError
from lightrail.bus.context import FAULT_ADDRESS
from lightrail.bus.testing import TestBus
from lightrail.transport import Envelope
from tests.bus.conftest import play
from tests.bus.dotnet_messages import FULL, ID, NAMES, Answer, Ask, Everything, XmlAnswer
from tests.bus.test_masstransit import RECORDED, envelope_of, recorded
from tests.interop.azure_scene import connection_string
from tests.interop.programs import in_csharp
from tests.interop.test_proton_security import admin
from tests.support.broker import Broker

# A program may have to wait for csrun to unpack itself.
pytestmark = pytest.mark.timeout(240)

ZERO = "00000000-0000-0000-0000-000000000000"


def stable(found: Any) -> Any:
    """A written message without what differs from run to run."""
    if "body" not in found:
        return found
    body = json.loads(found["body"])
    for each in (body, body.get("message")):
        if isinstance(each, dict):
            for name in ("sentTime", "expirationTime", "host"):
                each.pop(name, None)
    headers = {name: value for name, value in found["headers"].items() if name != "MT-Host-Info"}
    return {**found, "body": body, "headers": headers}


def test_the_recorded_messages_are_those_that_masstransit_writes() -> None:
    found = in_csharp("MassTransitMessages", "write").scenarios
    assert {name: stable(each) for name, each in found.items()} == {
        name: stable(each) for name, each in recorded().items()
    }, f"expected what MassTransit writes in {RECORDED}"


class Messages:
    """Messages of the bus as lines for the program in C#."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, type: str, envelope: Envelope) -> None:
        headers = {key: value for key, value in envelope.headers.items() if value is not None}
        line = {
            "name": name,
            "type": type,
            "body": envelope.body.decode(),
            "contentType": envelope.content_type,
            "headers": headers,
        }
        self.lines.append(json.dumps(line))

    def add_sent(self, bus: Bus, kind: str) -> None:
        """Events, a request and a command."""
        out = bus.outgoing
        id = str(ID)
        self.add(f"{kind} everything", "Everything", out.event(FULL, id=id).envelope)
        headers = {"tenant": "north", "number": 7, FAULT_ADDRESS: "python-faults"}
        request = out.request(Ask(7), "$temporary/x", 60.0, id=id, headers=headers)
        self.add(f"{kind} request", "Ask", request.envelope)
        command = out.command(Ask(1), id="order-1", correlation_id=id)
        self.add(f"{kind} correlated", "Ask", command.envelope)
        self.add(f"{kind} interface", "IAnswer", out.event(XmlAnswer("<a/>"), id=id).envelope)

    async def add_answers(self, bus: Bus, kind: str) -> None:
        """An answer and a fault, to requests that MassTransit wrote."""

        @bus.responder
        async def answer(ask: Ask) -> Answer:
            if ask.number == 0:
                raise ValueError("no such number")
            return Answer(f"number {ask.number}")

        asked = envelope_of("raw-request" if kind == "raw" else "request")
        refused = asked.replace(body=asked.body.replace(b'"number": 7', b'"number": 0'), id="2" * 32)
        async with TestBus(bus) as test:
            test.broker.send("commands/dotnet.ask", asked)
            test.broker.send("commands/dotnet.ask", refused)
            await test.idle()
            for queue, name, type in (
                ("vm_dotnet_bus_abc", "answer", "Answer"),
                ("dotnet-faults", "fault", "Fault"),
            ):
                [found] = test.broker.queue(queue).envelopes()
                self.add(f"{kind} {name}", type, found)


KINDS = {"envelope": False, "raw": True}
"""How MassTransit writes a message: whether it is raw JSON."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What MassTransit reads of all messages of the bus, in one process: by the kind and the name of each."""
    messages = Messages()
    for kind, raw in KINDS.items():
        messages.add_sent(Bus("amqp://nobody", name="billing", format=MassTransit(NAMES, raw=raw)), kind)
        bus = Bus("amqp://nobody", name="billing", format=MassTransit(NAMES, raw=raw))
        play(messages.add_answers(bus, kind))
    path = tmp_path_factory.mktemp("masstransit") / "messages.jsonl"
    path.write_text("\n".join(messages.lines))
    return dict(in_csharp("MassTransitMessages", "read", str(path)).scenarios)


@pytest.mark.parametrize("kind", KINDS)
def test_masstransit_reads_what_the_bus_writes(found: dict[str, Any], kind: str) -> None:
    id = str(ID)
    plain: dict[str, Any] = {
        "MessageId": id,
        "RequestId": None,
        "CorrelationId": None,
        "ConversationId": id,
        "InitiatorId": None,
        "source": "queue:billing",
        "response": None,
        "fault": None,
        "expires": False,
        "headers": {},
    }
    assert found[f"{kind} everything"] == plain | {"message": []}
    assert found[f"{kind} interface"] == plain | {"message": "<a/>"}
    assert found[f"{kind} request"] == plain | {
        "message": 7,
        "RequestId": id,
        "response": "queue:$temporary/x",
        "fault": "queue:python-faults",
        # Raw JSON has the time to live in the transport's message alone.
        "expires": not KINDS[kind],
        "headers": {"tenant": "north", "number": "7"},
    }
    correlated = str(uuid.uuid5(uuid.NAMESPACE_OID, "order-1"))
    assert found[f"{kind} correlated"] == plain | {
        "message": 1,
        "MessageId": correlated,
        "ConversationId": correlated,
        "CorrelationId": id,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_masstransit_reads_the_answer_and_the_fault_of_its_request(found: dict[str, Any], kind: str) -> None:
    # Ids of the request that RawSerializerOptions and the envelope have: recorded by MassTransitMessages.cs.
    context = {
        "RequestId": "30000000-0000-0000-0000-000000000003",
        "ConversationId": "20000000-0000-0000-0000-000000000002",
        "InitiatorId": "40000000-0000-0000-0000-000000000004",
    }
    for name in ("answer", "fault"):
        assert {key: found[f"{kind} {name}"][key] for key in context} == context, name
    assert found[f"{kind} answer"]["message"] == "number 7"
    fault = found[f"{kind} fault"]["message"]
    assert (fault["Number"], fault["FaultMessageTypes"]) == (0, ["urn:message:Shop.Contracts:Ask"])
    [exception] = fault["Exceptions"]
    assert (exception["ExceptionType"], exception["Message"]) == ("builtins.ValueError", "no such number")
    assert fault["Timestamp"].endswith("Z")


@pytest.mark.parametrize("raw", [False, True])
def test_services_of_both_sides_share_events_and_answer_each_other(
    guarded: Broker, key: str, raw: bool
) -> None:
    format = MassTransit(NAMES, raw=raw)
    url = f"amqp://billing-{raw}:secret@{guarded.amqp}"
    admin(guarded.data, "user", "add", f"billing-{raw}", "--rights", "all", password="secret")
    bus = Bus(url, name="billing", format=format, conventions=format.conventions(f"{raw}/"))
    seen: list[Everything] = []

    @bus.handler
    async def handle(everything: Everything, context: Context) -> None:
        seen.append(everything)
        if context.headers["MT-Source-Address"] != "queue:billing":
            await context.publish(everything)

    @bus.responder
    async def answer(ask: Ask) -> Answer:
        if ask.number == 0:
            raise ValueError("no such number")
        return Answer(f"number {ask.number}")

    async def test() -> None:
        connection = connection_string(guarded, key)
        administration = connection.replace(guarded.amqp, guarded.http)
        arguments = ("MassTransitService", connection, administration, str(raw), f"{raw}/")
        async with bus:
            program = asyncio.ensure_future(
                asyncio.to_thread(in_csharp, *arguments, beside=["MassTransitMessages"])
            )
            options: dict[str, Any] = {"to": f"{raw}/dotnet-ask", "timeout": 120.0}
            asked = [bus.request(Ask(number), Answer, **options) for number in (9, 0)]
            answered, error = await asyncio.gather(*asked, return_exceptions=True)
            assert answered == Answer("number 9")
            assert isinstance(error, RequestFailedError)
            assert (error.exception, error.text) == ("System.InvalidOperationException", "no such number")
            assert (await program).scenarios == {
                "topic": True,
                "event-0": [],
                "event-1": [],
                "answer": {"has": True, "Text": "number 7"},
                "fault": {"has": True, "Number": 0, "Message": "no such number"},
                "exists-9": True,
                "exists-0": True,
            }
        assert seen == [FULL, FULL]

    play(test(), 200.0)
