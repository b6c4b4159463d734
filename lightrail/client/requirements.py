"""Requirements of a receiver: filters, renewal of locks, and a broker that keeps messages it passes over."""

from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.performatives import Source
from lightrail.client.errors import ClientError
from lightrail.client.keeper import CAPABILITY

if TYPE_CHECKING:
    from lightrail.client.connection import Connection

LOSES_PASSED_OVER: Final = frozenset({"RabbitMQ"})
"""Brokers, by the `product` of their open, that drop messages which a receiver passes over (3.4.5)."""


def unmet(connection: "Connection", asked: Source, answered: Any, *, renews: bool) -> str:
    """An error text for the unmet requirement of an attached receiver; empty if all are met.

    Args:
        asked: the source of our attach.
        answered: the source of the broker's attach, without filters that it does not support (3.5.3).
        renews: whether the receiver renews locks.
    """
    applied = (answered.filter or {}) if isinstance(answered, Source) else {}
    missing = [str(name) for name in asked.filter or () if name not in applied]
    if missing:
        return (
            f"expected a broker that filters by {', '.join(missing)}, and this one does not: "
            "choose among received messages with `select`, or leave the filter out"
        )
    if renews and not connection.offers(CAPABILITY):
        return (
            f"expected a broker that renews locks ({CAPABILITY}), and "
            f"{connection.product or 'this one'} does not: leave renew_for out"
        )
    return ""


def check_keeps_passed_over(connection: "Connection", address: str | None) -> None:
    """Raises ClientError if the broker drops messages that a receiver passes over."""
    product = connection.product
    if product in LOSES_PASSED_OVER:
        raise ClientError(
            f"{address}: expected a broker that keeps messages which a receiver passes over, and "
            f"{product} drops them: use a queue for each kind of message"
        )


def check_has_no_window(address: str | None, window: int) -> None:
    """Raises ValueError for a receiver whose credit refills itself."""
    if window:
        raise ValueError(
            f"{address}: expected a receiver that was opened with credit=0, found one whose window of "
            f"{window} refills itself"
        )
