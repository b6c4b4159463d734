"""The composites of transport, messaging, transactions and security, encoded and decoded.

All fields are None until set. Annotations are for *decoded* composites: there a field that is mandatory or
has a default in the specification is never None.
"""

# ruff: noqa: RUF009 -- mandatory() and optional() are dataclasses.field() with the declaration in it

from dataclasses import dataclass
from typing import Any, Final

from lightrail.amqp.composite import (
    archetype,
    composite,
    mandatory,
    optional,
    read_descriptor,
    read_fields,
    value_or_composite,
    write_composite,
)
from lightrail.amqp.decoder import Buffer
from lightrail.amqp.fields import (
    ADDRESS,
    ANY,
    BINARY,
    BOOLEAN,
    DELIVERY_TAG,
    DELIVERY_TAG_KEY,
    FIELDS,
    FILTER_SET,
    READ_SYMBOL,
    RECEIVER_SETTLE_MODE,
    SASL_CODE,
    SENDER_SETTLE_MODE,
    STRING,
    SYMBOL_KEY,
    SYMBOLS,
    TERMINUS_DURABILITY,
    TERMINUS_EXPIRY_POLICY,
    TRANSACTION_ID,
    UINT,
    ULONG,
    USHORT,
    map_type,
)
from lightrail.amqp.values import Described, Symbol, truncated, unexpected
from lightrail.model import conditions

SENDER: Final = False
RECEIVER: Final = True
"""Values of role (transport 2.8.1)."""

_ERROR: Final = archetype("error", "error")
_SOURCE: Final = archetype("*:source", "source")
_TARGET: Final = archetype("*:target", "target")
_DELIVERY_STATE: Final = archetype("*:delivery-state", "delivery-state")
_OUTCOME: Final = archetype("*:outcome", "outcome")
_UNSETTLED: Final = map_type("map", DELIVERY_TAG_KEY, _DELIVERY_STATE)
_NODE_PROPERTIES: Final = map_type("node-properties", SYMBOL_KEY, value_or_composite("*", "lifetime-policy"))

Fields = dict[Symbol, Any]


def encode_performative(performative: Any) -> bytes:
    """The described list, trailing nulls left out. Raises ValueError for a field that is wrong or missing."""
    return write_composite(performative)


def decode_performative(buffer: Buffer, position: int, end: int) -> tuple[Any, int]:
    """Read one composite from buffer[position:end]; returns it and the position after it.

    Types, mandatory fields and choices are checked, defaults filled in. Raises DecodeError; also for a
    descriptor that is not known. Inside fields a value with an unknown descriptor is decoded as Described.
    """
    end = min(end, len(buffer))
    if position >= end:
        raise truncated("a performative", 1, position, end)
    if buffer[position] != 0:
        raise unexpected("a described list", f"constructor {buffer[position]:#04x}", position)
    descriptor, shape, after = read_descriptor(buffer, position + 1, end, 0)
    if shape is None or "section" in shape.provides:
        raise unexpected("the descriptor of a performative", repr(descriptor)[:80], position + 1)
    return read_fields(shape, buffer, after, end, 0)


# --- errors and delivery states -------------------------------------------------------------------------


@composite(0x1D, "amqp:error:list", "error")
@dataclass(slots=True)
class AmqpError:
    """Transport 2.8.14; the conditions are in lightrail/model/conditions.py."""

    condition: Symbol = mandatory(READ_SYMBOL, assumed=Symbol(conditions.INTERNAL_ERROR))
    description: str | None = optional(STRING)
    info: Fields | None = optional(FIELDS)


def make_error(
    condition: str | None, description: str | None, info: Fields | None = None
) -> AmqpError | None:
    """An error performative, or None without a condition; long descriptions are cut to fit any frame."""
    if condition is None:
        return None
    text = description or None
    if text is not None and len(text.encode("utf-8", "replace")) > 300:
        text = text.encode("utf-8", "replace")[:297].decode("utf-8", "ignore") + "..."
    return AmqpError(condition=Symbol(condition), description=text, info=info)


@composite(0x23, "amqp:received:list", "delivery-state")
@dataclass(slots=True)
class Received:
    section_number: int = mandatory(UINT)
    section_offset: int = mandatory(ULONG)


@composite(0x24, "amqp:accepted:list", "delivery-state", "outcome")
@dataclass(slots=True)
class Accepted:
    pass


@composite(0x25, "amqp:rejected:list", "delivery-state", "outcome")
@dataclass(slots=True)
class Rejected:
    error: AmqpError | None = optional(_ERROR)


@composite(0x26, "amqp:released:list", "delivery-state", "outcome")
@dataclass(slots=True)
class Released:
    pass


@composite(0x27, "amqp:modified:list", "delivery-state", "outcome")
@dataclass(slots=True)
class Modified:
    delivery_failed: bool | None = optional(BOOLEAN)
    undeliverable_here: bool | None = optional(BOOLEAN)
    message_annotations: Fields | None = optional(FIELDS)


@composite(0x33, "amqp:declared:list", "delivery-state", "outcome")
@dataclass(slots=True)
class Declared:
    txn_id: bytes = mandatory(TRANSACTION_ID)


@composite(0x34, "amqp:transactional-state:list", "delivery-state")
@dataclass(slots=True)
class TransactionalState:
    txn_id: bytes = mandatory(TRANSACTION_ID)
    outcome: "Outcome | Described | None" = optional(_OUTCOME)


Outcome = Accepted | Rejected | Released | Modified | Declared
DeliveryState = Outcome | Received | TransactionalState

# --- termini --------------------------------------------------------------------------------------------


@composite(0x2B, "amqp:delete-on-close:list", "lifetime-policy")
@dataclass(slots=True)
class DeleteOnClose:
    pass


@composite(0x2C, "amqp:delete-on-no-links:list", "lifetime-policy")
@dataclass(slots=True)
class DeleteOnNoLinks:
    pass


@composite(0x2D, "amqp:delete-on-no-messages:list", "lifetime-policy")
@dataclass(slots=True)
class DeleteOnNoMessages:
    pass


@composite(0x2E, "amqp:delete-on-no-links-or-messages:list", "lifetime-policy")
@dataclass(slots=True)
class DeleteOnNoLinksOrMessages:
    pass


@composite(0x28, "amqp:source:list", "source")
@dataclass(slots=True)
class Source:
    """Messaging 3.5.3."""

    address: str | Described | None = optional(ADDRESS)
    durable: int = optional(TERMINUS_DURABILITY, 0)
    expiry_policy: Symbol = optional(TERMINUS_EXPIRY_POLICY, Symbol("session-end"))
    timeout: int = optional(UINT, 0)
    dynamic: bool = optional(BOOLEAN, False)
    dynamic_node_properties: Fields | None = optional(_NODE_PROPERTIES)
    distribution_mode: Symbol | None = optional(READ_SYMBOL)
    filter: Fields | None = optional(FILTER_SET)
    default_outcome: Outcome | Described | None = optional(_OUTCOME)
    outcomes: list[Symbol] | None = optional(SYMBOLS)
    capabilities: list[Symbol] | None = optional(SYMBOLS)


@composite(0x29, "amqp:target:list", "target")
@dataclass(slots=True)
class Target:
    """Messaging 3.5.4."""

    address: str | Described | None = optional(ADDRESS)
    durable: int = optional(TERMINUS_DURABILITY, 0)
    expiry_policy: Symbol = optional(TERMINUS_EXPIRY_POLICY, Symbol("session-end"))
    timeout: int = optional(UINT, 0)
    dynamic: bool = optional(BOOLEAN, False)
    dynamic_node_properties: Fields | None = optional(_NODE_PROPERTIES)
    capabilities: list[Symbol] | None = optional(SYMBOLS)


@composite(0x30, "amqp:coordinator:list", "target")
@dataclass(slots=True)
class Coordinator:
    capabilities: list[Symbol] | None = optional(SYMBOLS)


# --- frame bodies of transport 2.7 ----------------------------------------------------------------------


@composite(0x10, "amqp:open:list", "frame")
@dataclass(slots=True)
class Open:
    container_id: str = mandatory(STRING)
    hostname: str | None = optional(STRING)
    max_frame_size: int = optional(UINT, 0xFFFFFFFF)
    channel_max: int = optional(USHORT, 0xFFFF)
    idle_time_out: int | None = optional(UINT)
    outgoing_locales: list[Symbol] | None = optional(SYMBOLS)
    incoming_locales: list[Symbol] | None = optional(SYMBOLS)
    offered_capabilities: list[Symbol] | None = optional(SYMBOLS)
    desired_capabilities: list[Symbol] | None = optional(SYMBOLS)
    properties: Fields | None = optional(FIELDS)


@composite(0x11, "amqp:begin:list", "frame")
@dataclass(slots=True)
class Begin:
    remote_channel: int | None = optional(USHORT)
    next_outgoing_id: int = mandatory(UINT)
    incoming_window: int = mandatory(UINT)
    outgoing_window: int = mandatory(UINT)
    handle_max: int = optional(UINT, 0xFFFFFFFF)
    offered_capabilities: list[Symbol] | None = optional(SYMBOLS)
    desired_capabilities: list[Symbol] | None = optional(SYMBOLS)
    properties: Fields | None = optional(FIELDS)


@composite(0x12, "amqp:attach:list", "frame")
@dataclass(slots=True)
class Attach:
    name: str = mandatory(STRING)
    handle: int = mandatory(UINT)
    role: bool = mandatory(BOOLEAN)
    snd_settle_mode: int = optional(SENDER_SETTLE_MODE, 2)
    rcv_settle_mode: int = optional(RECEIVER_SETTLE_MODE, 0)
    source: Source | Described | None = optional(_SOURCE)
    target: Target | Coordinator | Described | None = optional(_TARGET)
    unsettled: dict[bytes, DeliveryState | Described | None] | None = optional(_UNSETTLED)
    incomplete_unsettled: bool = optional(BOOLEAN, False)
    initial_delivery_count: int | None = optional(UINT)
    max_message_size: int | None = optional(ULONG)
    offered_capabilities: list[Symbol] | None = optional(SYMBOLS)
    desired_capabilities: list[Symbol] | None = optional(SYMBOLS)
    properties: Fields | None = optional(FIELDS)


@composite(0x13, "amqp:flow:list", "frame")
@dataclass(slots=True)
class Flow:
    next_incoming_id: int | None = optional(UINT)
    incoming_window: int = mandatory(UINT)
    next_outgoing_id: int = mandatory(UINT)
    outgoing_window: int = mandatory(UINT)
    handle: int | None = optional(UINT)
    delivery_count: int | None = optional(UINT)
    link_credit: int | None = optional(UINT)
    available: int | None = optional(UINT)
    drain: bool = optional(BOOLEAN, False)
    echo: bool = optional(BOOLEAN, False)
    properties: Fields | None = optional(FIELDS)


@composite(0x14, "amqp:transfer:list", "frame")
@dataclass(slots=True)
class Transfer:
    handle: int = mandatory(UINT)
    delivery_id: int | None = optional(UINT)
    delivery_tag: bytes | None = optional(DELIVERY_TAG)
    message_format: int | None = optional(UINT)
    settled: bool | None = optional(BOOLEAN)
    more: bool = optional(BOOLEAN, False)
    rcv_settle_mode: int | None = optional(RECEIVER_SETTLE_MODE)
    state: DeliveryState | Described | None = optional(_DELIVERY_STATE)
    resume: bool = optional(BOOLEAN, False)
    aborted: bool = optional(BOOLEAN, False)
    batchable: bool = optional(BOOLEAN, False)


@composite(0x15, "amqp:disposition:list", "frame")
@dataclass(slots=True)
class Disposition:
    role: bool = mandatory(BOOLEAN)
    first: int = mandatory(UINT)
    last: int | None = optional(UINT)
    settled: bool = optional(BOOLEAN, False)
    state: DeliveryState | Described | None = optional(_DELIVERY_STATE)
    batchable: bool = optional(BOOLEAN, False)


@composite(0x16, "amqp:detach:list", "frame")
@dataclass(slots=True)
class Detach:
    handle: int = mandatory(UINT)
    closed: bool = optional(BOOLEAN, False)
    error: AmqpError | None = optional(_ERROR)


@composite(0x17, "amqp:end:list", "frame")
@dataclass(slots=True)
class End:
    error: AmqpError | None = optional(_ERROR)


@composite(0x18, "amqp:close:list", "frame")
@dataclass(slots=True)
class Close:
    error: AmqpError | None = optional(_ERROR)


# --- message bodies for a coordinator (transactions 4.5) ------------------------------------------------


@composite(0x31, "amqp:declare:list")
@dataclass(slots=True)
class Declare:
    global_id: Any = optional(ANY)


@composite(0x32, "amqp:discharge:list")
@dataclass(slots=True)
class Discharge:
    txn_id: bytes = mandatory(TRANSACTION_ID)
    fail: bool | None = optional(BOOLEAN)


# --- SASL frame bodies (security 5.3.3) -----------------------------------------------------------------


@composite(0x40, "amqp:sasl-mechanisms:list", "sasl-frame")
@dataclass(slots=True)
class SaslMechanisms:
    sasl_server_mechanisms: list[Symbol] = mandatory(SYMBOLS)


@composite(0x41, "amqp:sasl-init:list", "sasl-frame")
@dataclass(slots=True)
class SaslInit:
    mechanism: Symbol = mandatory(READ_SYMBOL)
    initial_response: bytes | None = optional(BINARY)
    hostname: str | None = optional(STRING)


@composite(0x42, "amqp:sasl-challenge:list", "sasl-frame")
@dataclass(slots=True)
class SaslChallenge:
    challenge: bytes = mandatory(BINARY)


@composite(0x43, "amqp:sasl-response:list", "sasl-frame")
@dataclass(slots=True)
class SaslResponse:
    response: bytes = mandatory(BINARY)


@composite(0x44, "amqp:sasl-outcome:list", "sasl-frame")
@dataclass(slots=True)
class SaslOutcome:
    code: int = mandatory(SASL_CODE)
    additional_data: bytes | None = optional(BINARY)
