"""The end of a time to live that begins later than a message was sent."""

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.lifetime import TTL_MAX, expiry_from
from lightrail.amqp.sections import Header, Properties
from lightrail.amqp.values import DecodeError
from tests.unit.amqp.peer import data

DAY = 86_400_000
END = (1 << 63) - 1


@pytest.mark.parametrize(
    ("ttl", "created", "expiry", "found"),
    [
        (None, None, None, None),
        (1_000, None, None, 101_000),
        (1_000, 5_000, 6_000, 101_000),
        (None, None, 7_000, 7_000),
        (None, None, -1, 1),
        # A client of Azure Service Bus has a time to live of 60 days.
        (TTL_MAX, 5_000, 5_000 + 60 * DAY, 100_000 + 60 * DAY),
        (TTL_MAX, None, 60 * DAY, 100_000 + TTL_MAX),
        (TTL_MAX, 5_000, 6_000, 100_000 + TTL_MAX),
        (TTL_MAX, -(1 << 63), END, END),
    ],
)
def test_a_time_to_live_begins_when_it_is_said(
    ttl: int | None, created: int | None, expiry: int | None, found: int | None
) -> None:
    properties = Properties(creation_time=created, absolute_expiry_time=expiry)
    message = write_composite(Header(ttl=ttl)) + write_composite(properties) + data(b"x")
    assert expiry_from(message, 100_000) == found


def test_a_message_that_can_not_be_read_has_no_end() -> None:
    with pytest.raises(DecodeError):
        expiry_from(write_composite(Header(ttl=1))[:-1], 0)
