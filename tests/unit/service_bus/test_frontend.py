"""How links of Azure Service Bus's clients are recognised, and that what they send is durable."""

import pytest

from lightrail.amqp.events import RELEASED, Transfers
from lightrail.amqp.performatives import Attach, Open
from lightrail.amqp.sections import Header, encode_header
from lightrail.amqp.values import Symbol
from lightrail.frontend.hooks import FrontendHooks
from lightrail.frontend.links.outcomes import FAILED
from lightrail.frontend.links.routed import RoutedBatch, settle
from lightrail.frontend.nodes.posting import TRANSIENT
from lightrail.service_bus.frontend import HOOKS, LOST, is_bus_link, reads_info, settles_itself
from lightrail.shard_client.sending.window import NOT_STORED
from lightrail.wire.frames import DURABLE
from tests.support.amqp.frontend_fakes import FakeLink
from tests.support.broker import ROOT
from tests.unit.frontend.test_transfers import Rig

WORDS = (
    "com.microsoft:",
    "azsdk",
    "MSGolang",
    "AMQPWSB",
    "MSSBCBS",
    "sastoken",
    "SharedAccessSignature",
    "ServiceBus",
)
"""What these clients write, and no other client."""


def test_what_these_clients_write_is_read_in_their_package_alone() -> None:
    package = ROOT / "lightrail"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "service_bus" not in path.parts and any(word in path.read_text() for word in WORDS)
    }
    # Conditions of locks and sessions, which shards send, too; types of .NET, which filters compare.
    assert found == {"filters/terms.py", "model/conditions.py"}


def test_a_link_is_the_bus_by_a_property_of_its_attach() -> None:
    link = FakeLink()
    link.attach = None
    assert not is_bus_link(link)  # type: ignore[arg-type]
    for properties, expected in (
        (None, False),
        ({}, False),
        ({Symbol("product"): "x"}, False),
        ({Symbol("com.microsoft:receiver-name"): "x"}, True),
    ):
        link.attach = Attach(name="x", handle=0, role=True, properties=properties)
        assert is_bus_link(link) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (None, False),
        ({"product": "MSGolangClient"}, True),
        ({"product": "other"}, False),
        ({"user-agent": "azsdk-python-servicebus/7.15.0 Python/3.11.7"}, True),
        ({"user-agent": "mine azsdk-net-Messaging.ServiceBus/7.17.5"}, True),
        ({"user-agent": "azsdk-python-eventhub/5.11.0"}, False),
    ],
)
def test_a_link_is_the_bus_by_the_open_of_its_connection(
    properties: dict[Symbol, str] | None, expected: bool
) -> None:
    link = FakeLink()
    link.attach = Attach(name="x", handle=0, role=True)
    link.session.connection.peer_open = Open(container_id="x", properties=properties)
    assert is_bus_link(link) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "head", [b"", encode_header(Header(priority=7)), encode_header(Header(durable=True))]
)
def test_what_a_client_of_service_bus_sends_is_durable(head: bytes) -> None:
    properties = {Symbol("com.microsoft:timeout"): 1}
    rig = Rig(attach=Attach(name="x", handle=0, role=False, properties=properties), hooks=HOOKS)
    rig.transfers(1, head=head)
    assert rig.columns()[0] == DURABLE


def test_messages_of_a_shard_that_is_away_are_rejected_with_a_condition_for_trying_again() -> None:
    properties = {Symbol("com.microsoft:timeout"): 1}
    attach = Attach(name="x", handle=0, role=False, properties=properties)
    for hooks, expected in ((HOOKS, (LOST, LOST)), (FrontendHooks(), (RELEASED, FAILED))):
        rig = Rig(attach=attach, hooks=hooks)
        rig.transfers(1)
        rig.producer.timed_out()
        rig.transfers(1)
        rig.producer.disconnected()
        rig.producer.timed_out()
        assert [state for _, _, state in rig.link.settled] == list(expected)
        batch = RoutedBatch(Transfers(rig.link, 7, [b""], False), 1, TRANSIENT, 0)  # type: ignore[arg-type]
        batch.loads = [object()]  # type: ignore[list-item]
        batch.refuse([0], NOT_STORED)
        settle(rig.link, [batch], *expected)  # type: ignore[arg-type]
        assert rig.link.settled[-1] == (7, 7, expected[0])


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("azsdk-net-Messaging.ServiceBus/7.21.0 (.NET 8.0)", True),
        ("azsdk-python-servicebus/7.15.0 Python/3.11.7", False),
        ("azsdk-net-Messaging.EventHubs/5.11.0", False),
        ("", False),
    ],
)
def test_the_client_for_net_settles_what_it_sent(agent: str, expected: bool) -> None:
    link = FakeLink()
    link.session.connection.peer_open = Open(container_id="x", properties={Symbol("user-agent"): agent})
    assert settles_itself(link) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("azsdk-python-servicebus/7.15.0 Python/3.11.7", True),
        ("azsdk-net-Messaging.ServiceBus/7.21.0 (.NET 8.0)", False),
        ("azsdk-python-eventhub/5.15.0 Python/3.11.7", False),
        ("", False),
    ],
)
def test_the_client_for_python_reads_the_info_of_each_error(agent: str, expected: bool) -> None:
    link = FakeLink()
    link.session.connection.peer_open = Open(container_id="x", properties={Symbol("user-agent"): agent})
    assert reads_info(link) is expected  # type: ignore[arg-type]
