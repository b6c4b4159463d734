"""Messages of python-qpid-proton with every AMQP type everywhere; an equality that tells types apart."""

import math
import struct
from typing import Any
from uuid import UUID

from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Described,
    Message,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

SCALARS: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte-0": ubyte(0),
    "ubyte-255": ubyte(255),
    "ushort-65535": ushort(65_535),
    "uint-0": uint(0),
    "uint-255": uint(255),
    "uint-max": uint(2**32 - 1),
    "ulong-0": ulong(0),
    "ulong-255": ulong(255),
    "ulong-max": ulong(2**64 - 1),
    "byte-min": byte(-128),
    "short-min": short(-(2**15)),
    "int-small": int32(-1),
    "int-min": int32(-(2**31)),
    "long-small": 127,
    "long-min": -(2**63),
    "long-max": 2**63 - 1,
    "float": float32(0.5),
    "float-infinity": float32(math.inf),
    "double": math.pi,
    "double-negative-zero": -0.0,
    "double-nan": math.nan,
    "decimal32": decimal32(0x32800001),
    "decimal64": decimal64(0x31C0000000000001),
    "decimal128": decimal128(bytes(range(16))),
    "char-ascii": char("A"),
    "char-astral": char("\U0001f682"),
    "timestamp": timestamp(1_700_000_000_123),
    "timestamp-before-1970": timestamp(-1),
    "uuid": UUID("01234567-89ab-cdef-0123-456789abcdef"),
    "binary-empty": b"",
    "binary-0-255": bytes(range(256)),
    "string-empty": "",
    "string-unicode": "Zug \U0001f682 \u00e4\u4e2d\u0000.",
    "string-long": "x" * 300,
    "symbol": symbol("amqp:accepted:list"),
    "symbol-long": symbol("s" * 300),
}

_ARRAYS: dict[str, Any] = {
    "null": Array(UNDESCRIBED, Data.NULL, None, None),
    "bool": Array(UNDESCRIBED, Data.BOOL, True, False, True),
    "ubyte": Array(UNDESCRIBED, Data.UBYTE, ubyte(1), ubyte(255)),
    "ushort": Array(UNDESCRIBED, Data.USHORT, ushort(1)),
    "uint": Array(UNDESCRIBED, Data.UINT, uint(0), uint(2**32 - 1)),
    "ulong": Array(UNDESCRIBED, Data.ULONG, ulong(0), ulong(2**64 - 1)),
    "byte": Array(UNDESCRIBED, Data.BYTE, byte(-1), byte(1)),
    "short": Array(UNDESCRIBED, Data.SHORT, short(-1)),
    "int": Array(UNDESCRIBED, Data.INT, int32(-1), int32(2**31 - 1)),
    "long": Array(UNDESCRIBED, Data.LONG, -1, 2**40),
    "float": Array(UNDESCRIBED, Data.FLOAT, float32(1.5)),
    "double": Array(UNDESCRIBED, Data.DOUBLE, 1.5, -2.5),
    "decimal32": Array(UNDESCRIBED, Data.DECIMAL32, decimal32(1)),
    "decimal64": Array(UNDESCRIBED, Data.DECIMAL64, decimal64(1)),
    "decimal128": Array(UNDESCRIBED, Data.DECIMAL128, decimal128(bytes(16))),
    "char": Array(UNDESCRIBED, Data.CHAR, char("a"), char("\u20ac")),
    "timestamp": Array(UNDESCRIBED, Data.TIMESTAMP, timestamp(0)),
    "uuid": Array(UNDESCRIBED, Data.UUID, UUID(int=1), UUID(int=2)),
    "binary": Array(UNDESCRIBED, Data.BINARY, b"", b"\x00\xff"),
    "string": Array(UNDESCRIBED, Data.STRING, "", "two"),
    "symbol": Array(UNDESCRIBED, Data.SYMBOL, symbol("a"), symbol("b")),
    "list": Array(UNDESCRIBED, Data.LIST, [], [1, "x"]),
    "map": Array(UNDESCRIBED, Data.MAP, {}, {"k": ulong(1)}),
    "array": Array(UNDESCRIBED, Data.ARRAY, Array(UNDESCRIBED, Data.INT, int32(1), int32(2))),
    "described": Array(symbol("described"), Data.LONG, 1, 2),
    "empty": Array(UNDESCRIBED, Data.STRING),
}

COMPOUND: dict[str, Any] = {
    "list-empty": [],
    "list-long": list(range(300)),
    "list-of-all": list(SCALARS.values()),
    "map-empty": {},
    "map-of-all": dict(SCALARS),
    "map-keys": {1: "long", ulong(2): "ulong", symbol("s"): "symbol", "t": "string"},
    "described-symbol": Described(symbol("example:point:list"), [1, 2]),
    "described-ulong": Described(ulong(0x0000468C00000004), "selector"),
    "described-twice": [Described(symbol("outer"), Described(symbol("inner"), 1))],
    "nested": {"a": [1, {"b": [[], {}, [Described(ulong(7), char("x"))]]}]},
} | {f"array-{name}": array for name, array in _ARRAYS.items()}

VALUES: dict[str, Any] = SCALARS | COMPOUND

COMMON_VALUES: dict[str, Any] = {
    "true": True,
    "false": False,
    "ubyte": ubyte(255),
    "ushort": ushort(65_535),
    "uint-0": uint(0),
    "uint-small": uint(200),
    "uint-max": uint(2**32 - 1),
    "ulong-0": ulong(0),
    "ulong-small": ulong(200),
    "ulong": ulong(2**40),
    "byte": byte(-128),
    "short": short(-(2**15)),
    "int-small": int32(-1),
    "int": int32(-(2**31)),
    "long-small": -1,
    "long": -(2**40),
    "float": float32(0.5),
    "double": 3.25,
    "timestamp": timestamp(1_700_000_000_123),
    "uuid": UUID("01234567-89ab-cdef-0123-456789abcdef"),
    "binary": memoryview(b"\x00\x01\xff"),
    "string": "Zug \U0001f682",
    "string-long": "x" * 300,
    "symbol": symbol("amqp:accepted:list"),
    "list": [ubyte(1), "two", None, [symbol("three")]],
    "map": {"a": 1, "b": {"c": symbol("d")}},
    "array-of-int": Array(UNDESCRIBED, Data.INT, int32(1), int32(-2), int32(3)),
    "array-of-symbol": Array(UNDESCRIBED, Data.SYMBOL, symbol("a"), symbol("b")),
}
"""What programs in Go and JavaScript (types.go, messages.js) send, as python-qpid-proton has to see it."""

PROPERTY_MESSAGES: dict[str, Message] = {
    "header": Message(durable=True, priority=9, first_acquirer=True, delivery_count=3, body="header"),
    "every-property": Message(
        id="id-1",
        user_id=b"\x00user\xff",
        address="to/here",
        subject="a subject",
        reply_to="reply/here",
        correlation_id="correlation-1",
        content_type=symbol("text/plain"),
        content_encoding=symbol("gzip"),
        expiry_time=4_102_444_800.25,
        creation_time=1_700_000_000.125,
        group_id="group",
        group_sequence=2**32 - 1,
        reply_to_group_id="reply-group",
        body="every property",
    ),
    "ids-ulong": Message(id=ulong(2**64 - 1), correlation_id=ulong(1), body=None),
    "ids-uuid": Message(id=UUID(int=1), correlation_id=UUID(int=2), body=None),
    "ids-binary": Message(id=b"\x00\x01", correlation_id=b"", body=None),
    "every-section": Message(
        durable=True,
        instructions={"x-opt-for-the-broker": 1},
        annotations={"x-opt-note": "kept"},
        id="id-2",
        properties={"colour": "red"},
        body={"k": [1, 2]},
    ),
}

BODY_MESSAGES: dict[str, Message] = {
    "data": Message(body=bytes(range(256)), inferred=True),
    "data-empty": Message(body=b"", inferred=True),
    "sequence": Message(body=[1, "two", None], inferred=True),
}


def messages() -> dict[str, Message]:
    """Every value as body, application property and annotation, every property and header field, by name."""
    made = {f"body-{name}": Message(body=value) for name, value in VALUES.items()}
    for name, value in SCALARS.items():
        made[f"application-property-{name}"] = Message(properties={name: value}, body=name)
    for name, value in VALUES.items():
        made[f"annotation-{name}"] = Message(annotations={f"x-opt-{name}": value}, body=name)
    for name, value in VALUES.items():
        made[f"instruction-{name}"] = Message(instructions={f"x-opt-{name}": value}, body=name)
    return made | PROPERTY_MESSAGES | BODY_MESSAGES


FIELDS = (
    "durable",
    "priority",
    "ttl",
    "first_acquirer",
    "delivery_count",
    "id",
    "user_id",
    "address",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
    "inferred",
    "instructions",
    "annotations",
    "properties",
    "body",
)


def passed_on(sent: Message) -> Message:
    """A message as any receiver gets it: without delivery-annotations, which are for the broker (3.2.2)."""
    made = Message()
    made.decode(bytes(sent.encode()))  # binary becomes a memoryview, for one
    made.instructions = None
    return made


def assert_equal(received: Message, sent: Message) -> None:
    """Equal field by field, type by type, and in what both encode to."""
    expected_message = passed_on(sent)
    for name in FIELDS:
        expected, found = getattr(expected_message, name), getattr(received, name)
        assert same(found, expected), f"{name}: expected {expected!r}, found {found!r}"
    assert bytes(received.encode()) == bytes(expected_message.encode())


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type, through and through; a NaN is the same as a NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    if isinstance(left, Array):
        return (left.descriptor, left.type) == (right.descriptor, right.type) and same(
            list(left.elements), list(right.elements)
        )
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    return bool(left == right)
