"""The source of a receiver's link (messaging 3.5.3): filters, subscription, and what its broker must do.

Selecting: receivers whose application chooses among messages by looking at them.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from lightrail.amqp.performatives import Modified, Source
from lightrail.amqp.values import Described, Symbol, ULong
from lightrail.client.delivery import Delivery
from lightrail.client.errors import ClientError, LostError
from lightrail.client.keeper import CAPABILITY
from lightrail.client.message import Message

if TYPE_CHECKING:
    from lightrail.client.connection import Connection

PASSED_OVER: Final = Modified(undeliverable_here=True)

Handler = Callable[[Delivery], Any]


class Receiving(Protocol):
    """A receiver."""

    async def receive(self) -> list[Delivery]:
        """The next delivery."""


async def select(
    receiver: Receiving,
    choose: Callable[[Message], Handler | None],
    timeout: float | None,  # noqa: ASYNC109 - exceeding it is not an error
) -> bool:
    """See Receiver.select."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                [delivery] = await receiver.receive()
                try:
                    handler = choose(delivery.message)
                except BaseException:
                    await _fail(delivery)
                    raise
                if handler is not None:
                    break
                if not delivery.settled:
                    with suppress(LostError):
                        delivery.settle(PASSED_OVER)
    except TimeoutError:
        return False
    try:
        found = handler(delivery)
        if inspect.isawaitable(found):
            await found
    except BaseException:
        await _fail(delivery)
        raise
    if not delivery.settled:
        await delivery.accept()
    return True


async def _fail(delivery: Delivery) -> None:
    """Fails a delivery whose handler raised; after the loss of its link the broker does so by itself."""
    if not delivery.settled:
        with suppress(LostError):
            await delivery.fail()


LOSES_PASSED_OVER: Final = frozenset({"RabbitMQ"})
"""Brokers, by the `product` of their open, that drop messages which a receiver passes over (3.4.5)."""
SELECTOR: Final = "apache.org:selector-filter:string"
SQL: Final = "amqp:sql-filter"
PROPERTIES: Final = "amqp:properties-filter"
APPLICATION_PROPERTIES: Final = "amqp:application-properties-filter"
TOPIC: Final = "apache.org:legacy-amqp-topic-binding:string"
CODES: Final = {
    SELECTOR: 0x0000_468C_0000_0004,
    SQL: 0x120,
    PROPERTIES: 0x173,
    APPLICATION_PROPERTIES: 0x174,
    TOPIC: 0x0000_468C_0000_0001,
}
"""Descriptors of filters, of Apache's registry and of AMQP Filter Expressions 1.0."""
NEVER: Final = Symbol("never")
"""Expiry-policy of a terminus that outlives its links (3.5.6)."""
UNSETTLED_STATE: Final = 2
"""Terminus-durability: unsettled messages are durable, too (3.5.5)."""
SHARED: Final = (Symbol("shared"), Symbol("global"))


def check_options(
    credit: int, presettled: bool, renew_for: float, subscription: str | None, shared: bool, is_named: bool
) -> None:
    """Raises ValueError for arguments of `Connection.receiver` that are out of range or exclude each other.

    `is_named`: the application named the connection.
    """
    if credit < 0:
        raise ValueError(f"expected a credit of 0 or more, found {credit}")
    if renew_for < 0:
        raise ValueError(f"expected renew_for to be 0 seconds or more, found {renew_for}")
    if renew_for and presettled:
        raise ValueError("expected renew_for or presettled, found both: settled messages have no lock")
    if shared and subscription is None:
        raise ValueError("expected the name of a subscription to be shared, found none")
    if subscription is not None and not shared and not is_named:
        raise ValueError(
            "expected a connection with a `name`, by which the broker identifies the subscription after a "
            "restart; or `shared`, which belongs to no connection"
        )


def source_of(
    address: str | None,
    *,
    browse: bool = False,
    dynamic: bool = False,
    selector: str | None = None,
    sql: str | None = None,
    subject: str | None = None,
    group: str | None = None,
    properties: Mapping[str, Any] | None = None,
    filters: Mapping[str, Any] | None = None,
    durable: bool = False,
    shared: bool = False,
) -> Source:
    """The source for the arguments of `Connection.receiver`."""
    found: dict[Symbol, Any] = {Symbol(key): value for key, value in (filters or {}).items()}
    for name, value in (
        (SELECTOR, selector),
        (SQL, sql),
        (TOPIC, subject),
        (PROPERTIES, None if group is None else {Symbol("group-id"): group}),
        (APPLICATION_PROPERTIES, dict(properties) if properties else None),
    ):
        if value is not None:
            found[Symbol(name)] = Described(ULong(CODES[name]), value)
    source = Source(
        address=address,
        dynamic=dynamic,
        distribution_mode=Symbol("copy") if browse else None,
        filter=found or None,
        capabilities=list(SHARED) if shared else None,
    )
    if durable:
        source.durable = UNSETTLED_STATE
        source.expiry_policy = NEVER
    return source


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
