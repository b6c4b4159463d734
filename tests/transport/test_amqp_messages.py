"""Envelopes of AMQP messages of other clients."""

from lightrail.amqp.values import Described, Symbol
from lightrail.client import Message
from lightrail.transport.amqp_messages import envelope_of


def test_a_header_that_a_client_of_service_bus_describes_is_its_value() -> None:
    # As Azure.Messaging.ServiceBus writes a Uri.
    uri = Described(Symbol("com.microsoft:uri"), "sb://shop/orders")
    envelope = envelope_of(Message(b"", properties={"MT-Response-Address": uri, "number": 7}))
    assert envelope.headers == {"MT-Response-Address": "sb://shop/orders", "number": 7}


def test_other_headers_are_not_copied() -> None:
    message = Message(b"", properties={"number": 7, "text": "x"})
    assert envelope_of(message).headers is message.properties
