"""The source of a receiver's link (messaging 3.5.3), with filters and subscription."""

from collections.abc import Mapping
from typing import Any, Final

from lightrail.amqp.performatives import Source
from lightrail.amqp.values import Described, Symbol, ULong

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
