"""Requests to a transaction coordinator: the values of its messages (transactions 4.5)."""

from lightrail.amqp.composite import SHAPES, read_descriptor, read_fields
from lightrail.amqp.decoder import Buffer, read_value
from lightrail.amqp.performatives import Declare, Discharge
from lightrail.amqp.sections import scan
from lightrail.amqp.values import DecodeError, Symbol, ULong

_VALUE_SECTION = (ULong(0x77), Symbol("amqp:amqp-value:*"))


def read_coordinator_request(payload: Buffer) -> Declare | Discharge:
    """The declare or discharge in the amqp-value section of a message. Raises DecodeError."""
    area = scan(payload).body
    if area is None:
        raise DecodeError("expected a message with an amqp-value section, found one without a body")
    start, end = area
    section, value_at = read_value(payload, start + 1, end, 1)
    if section not in _VALUE_SECTION:
        raise DecodeError(f"expected an amqp-value section, found section {section!r}")
    if value_at < end and payload[value_at] == 0x00:
        _, shape, position = read_descriptor(payload, value_at + 1, end, 1)
        if shape is not None and shape in (SHAPES[ULong(0x31)], SHAPES[ULong(0x32)]):
            request: Declare | Discharge
            request, position = read_fields(shape, payload, position, end, 1)
            if position != end:
                raise DecodeError(f"expected one value, found {end - position} bytes behind it")
            return request
    raise DecodeError("expected a declare or a discharge as the value of the message, found another value")
