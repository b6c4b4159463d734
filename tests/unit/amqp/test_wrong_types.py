"""Fields of performatives, termini, states and errors, with a value of each type: allowed ones are read,
and any other is refused with amqp:decode-error (types 1.4, transport 2.8.15).

The frames go through the whole engine, so that its quick readers of common encodings are asked as well.
"""

from typing import Any, Final

import pytest

from lightrail.amqp import frames
from lightrail.amqp.composite import SHAPE_OF
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declared,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from tests.unit.amqp.peer import Peer, conditions_of, opened

VALUES: Final[dict[str, list[bytes]]] = {
    "boolean": [b"\x41", b"\x42", b"\x56\x01"],
    "ubyte": [b"\x50\x01"],
    "ushort": [b"\x60\x00\x01"],
    "uint": [b"\x43", b"\x52\x01", b"\x70\x00\x00\x00\x01"],
    "ulong": [b"\x44", b"\x53\x01", b"\x80" + bytes(7) + b"\x01"],
    "byte": [b"\x51\x01"],
    "short": [b"\x61\x00\x01"],
    "int": [b"\x54\x01", b"\x71\x00\x00\x00\x01"],
    "long": [b"\x55\x01", b"\x81" + bytes(7) + b"\x01"],
    "float": [b"\x72" + bytes(4)],
    "double": [b"\x82" + bytes(8)],
    "decimal32": [b"\x74" + bytes(4)],
    "decimal64": [b"\x84" + bytes(8)],
    "decimal128": [b"\x94" + bytes(16)],
    "char": [b"\x73\x00\x00\x00a"],
    "timestamp": [b"\x83" + bytes(8)],
    "uuid": [b"\x98" + bytes(16)],
    "binary": [b"\xa0\x01a", b"\xb0\x00\x00\x00\x01a"],
    "string": [b"\xa1\x01a", b"\xb1\x00\x00\x00\x01a"],
    "symbol": [b"\xa3\x05never", b"\xb3\x00\x00\x00\x05never"],
    "list": [b"\x45", b"\xc0\x01\x00", b"\xd0\x00\x00\x00\x04\x00\x00\x00\x00"],
    "map": [b"\xc1\x01\x00", b"\xd1\x00\x00\x00\x04\x00\x00\x00\x00"],
    "symbols": [b"\xe0\x04\x01\xa3\x01a", b"\xf0\x00\x00\x00\x07\x00\x00\x00\x01\xa3\x01a"],
    "uints": [b"\xe0\x03\x01\x52\x01", b"\xf0\x00\x00\x00\x06\x00\x00\x00\x01\x52\x01"],
    "unknown": [b"\x00\xa3\x01a\x40", b"\x00\x80\x00\x00\x12\x34\x00\x00\x00\x01\x45"],
    "error": [b"\x00\x53\x1d\xc0\x04\x01\xa3\x01a"],
    "received": [b"\x00\x53\x23\xc0\x03\x02\x43\x44"],
    "accepted": [b"\x00\x53\x24\x45"],
    "source": [b"\x00\x53\x28\x45"],
    "target": [b"\x00\x53\x29\x45"],
    "open": [b"\x00\x53\x10\xc0\x04\x01\xa1\x01a"],
}
"""Encodings by type; the last ones are described values."""

ALLOWED: Final[dict[str, set[str]]] = {
    "boolean": {"boolean"},
    "ushort": {"ushort"},
    "uint": {"uint"},
    "ulong": {"ulong"},
    "string": {"string"},
    # Several clients send strings where symbols stand: ADR 51.
    "symbol": {"symbol", "string"},
    "symbol multiple": {"symbol", "symbols", "string"},
    "delivery-tag": {"binary"},
    "sender-settle-mode": {"ubyte"},
    "receiver-settle-mode": {"ubyte"},
    "terminus-durability": {"uint"},
    "terminus-expiry-policy": {"symbol"},
    "fields": {"map"},
    "node-properties": {"map"},
    "filter-set": {"map"},
    "map": {"map"},
    # Addresses and ids of transactions may be described types that nobody has defined yet.
    "*:address": {"string"} | {"unknown", "error", "received", "accepted", "source", "target", "open"},
    "*:txn-id": {"binary"} | {"unknown", "error", "received", "accepted", "source", "target", "open"},
    "error": {"error", "unknown"},
    "*:delivery-state": {"received", "accepted", "unknown"},
    "*:outcome": {"accepted", "unknown"},
    "*:source": {"source", "unknown"},
    "*:target": {"target", "unknown"},
}
"""By the type of a field: of which types its value may be."""

FRAMES: Final = {
    "open": Open(container_id="c"),
    "begin": Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9),
    "attach as sender": Attach(name="a", handle=7, role=False, initial_delivery_count=0),
    "attach as receiver": Attach(name="a", handle=7, role=True),
    "flow": Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9),
    "transfer": Transfer(handle=0, delivery_id=0, delivery_tag=b"t"),
    "disposition": Disposition(role=True, first=0),
    "detach": Detach(handle=0),
    "end": End(),
    "close": Close(),
}
INNER: Final[dict[str, tuple[Any, str, str]]] = {
    "source": (Source(), "attach as receiver", "source"),
    "target": (Target(), "attach as sender", "target"),
    "coordinator": (Coordinator(), "attach as sender", "target"),
    "error": (AmqpError(condition="a"), "detach", "error"),  # type: ignore[arg-type]
    "received": (Received(section_number=0, section_offset=0), "disposition", "state"),
    "rejected": (Rejected(), "disposition", "state"),
    "modified": (Modified(), "disposition", "state"),
    "declared": (Declared(txn_id=b"t"), "disposition", "state"),
    "transactional-state": (TransactionalState(txn_id=b"t"), "disposition", "state"),
}
"""Composites within a frame: where they stand."""


def fields_of(body: Any) -> list[bytes]:
    """Encoded fields, nulls for those that are not set."""
    shape = SHAPE_OF[type(body)]
    values = zip(shape.get(body), shape.writers, strict=True)
    return [b"\x40" if value is None else write(value) for value, write in values]


def composite(body: Any, fields: list[bytes]) -> bytes:
    """As clients encode it: a list8 where it fits, without nulls at its end."""
    while fields and fields[-1] == b"\x40":
        fields = fields[:-1]
    items = b"".join(fields)
    shape = SHAPE_OF[type(body)]
    if not fields:
        return shape.prefix + b"\x45"
    if len(items) < 255:
        return shape.prefix + bytes([0xC0, len(items) + 1, len(fields)]) + items
    return shape.prefix + b"\xd0" + (len(items) + 4).to_bytes(4) + len(fields).to_bytes(4) + items


def with_field(body: Any, index: int, encoded: bytes) -> bytes:
    fields = fields_of(body)
    fields[index] = encoded
    return composite(body, fields)


def found_with(name: str, body: bytes) -> list[tuple[str, str]]:
    """Errors in the engine's answer to a frame, or to one with this composite; a crash fails the test."""
    frame = name
    if name in INNER:
        _, frame, field = INNER[name]
        outer = FRAMES[frame]
        body = with_field(outer, SHAPE_OF[type(outer)].names.index(field), body)
    if frame == "open":
        peer = Peer()
        peer.feed(frames.AMQP_HEADER)
    else:
        peer = opened()
        peer.sender()
        peer.receiver("out", 1)
    peer.hear()
    peer.feed(frames.frame(1 if frame == "begin" else 0, body))
    return conditions_of(peer.hear())


BODIES: Final = FRAMES | {name: inner[0] for name, inner in INNER.items()}
CASES: Final = [
    pytest.param(name, index, id=f"{name}.{field}")
    for name, body in BODIES.items()
    for index, field in enumerate(SHAPE_OF[type(body)].names)
]


@pytest.mark.parametrize(("name", "index"), CASES)
def test_a_field_has_its_type(name: str, index: int) -> None:
    body = BODIES[name]
    declared = SHAPE_OF[type(body)].declarations[index].type.name
    for kind, encodings in VALUES.items():
        for encoding in encodings:
            errors = found_with(name, with_field(body, index, encoding))
            if kind in ALLOWED[declared]:
                assert ("close", "amqp:decode-error") not in errors, (kind, encoding)
            else:
                assert errors == [("close", "amqp:decode-error")], (kind, encoding)


def test_every_type_of_a_field_is_in_the_table() -> None:
    shapes = [SHAPE_OF[type(body)] for body in BODIES.values()]
    assert ALLOWED.keys() == {each.type.name for shape in shapes for each in shape.declarations}


MAPS: Final = {"open": "properties", "source": "filter", "target": "dynamic-node-properties"}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("kind", VALUES)
def test_keys_of_maps_have_their_type(name: str, kind: str) -> None:
    """Symbols; strings are read as symbols, as some clients send them."""
    body = BODIES[name]
    for encoding in VALUES[kind]:
        items = encoding + b"\x40"
        encoded = bytes([0xC1, len(items) + 1, 2]) + items
        errors = found_with(name, with_field(body, SHAPE_OF[type(body)].names.index(MAPS[name]), encoded))
        assert (errors == [("close", "amqp:decode-error")]) is (kind not in ("symbol", "string")), errors
