"""Messages for tests of filters: built from sections, drawn by Hypothesis, and mutated."""

from typing import Any

from hypothesis import strategies as st

from lightrail.amqp.composite import SHAPE_OF
from lightrail.amqp.encoder import encode, write_map_data, write_value
from lightrail.amqp.sections import Header, Properties
from lightrail.amqp.values import Described, Symbol, ULong
from lightrail.filters.message import MessageView
from tests.support.amqp.strategies import composites, scalars, symbols, text, values


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


def message(
    application: dict[str, Any] | None = None,
    *,
    header: Header | None = None,
    properties: Properties | None = None,
    annotations: dict[Any, Any] | None = None,
    body: bytes = b"body",
) -> bytes:
    """An encoded message with the sections that are given, and a body."""
    pieces = [
        b"" if header is None else encode(header),
        b"" if annotations is None else section(0x72, annotations),
        b"" if properties is None else encode(properties),
        b"" if application is None else section(0x74, application),
        section(0x75, body),
    ]
    return b"".join(pieces)


def view(application: dict[str, Any] | None = None, **sections: Any) -> MessageView:
    return MessageView(message(application, **sections))


# --- drawn ----------------------------------------------------------------------------------------------

_DESCRIPTORS = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
}

names = st.sampled_from(["a", "b", "colour", "a" * 300, ""]) | text
simple = scalars
"""Values that application properties may have."""


def _wide_string(value: str) -> bytes:
    octets = value.encode()
    return b"\xb1" + len(octets).to_bytes(4) + octets


@st.composite
def _wide_map(draw: st.DrawFn, items: dict[str, Any]) -> bytes:
    """A map whose keys are encoded in the wide form, or some of them."""
    data = b"".join(
        (_wide_string(key) if draw(st.booleans()) else write_value(key)) + write_value(value)
        for key, value in items.items()
    )
    if draw(st.booleans()):
        return b"\xd1" + (len(data) + 4).to_bytes(4) + (2 * len(items)).to_bytes(4) + data
    return write_map_data(2 * len(items), data)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Well-formed messages; descriptors are small ulongs, wide ulongs or symbols."""

    def described(code: int, value: bytes) -> bytes:
        forms = [
            bytes((0, 0x53, code)),
            b"\x00\x80" + code.to_bytes(8),
            b"\x00" + encode(Symbol(_DESCRIPTORS[code])),
        ]
        return draw(st.sampled_from(forms)) + value

    pieces: list[bytes] = []
    if draw(st.booleans()):
        pieces.append(described(0x70, encode(draw(composites(SHAPE_OF[Header])))[3:]))
    if draw(st.booleans()):
        pieces.append(described(0x71, encode(draw(st.dictionaries(symbols, values, max_size=2)))))
    if draw(st.booleans()):
        pieces.append(described(0x72, encode(draw(st.dictionaries(symbols, values, max_size=4)))))
    if draw(st.booleans()):
        pieces.append(described(0x73, encode(draw(composites(SHAPE_OF[Properties])))[3:]))
    if draw(st.booleans()):
        items = draw(st.dictionaries(names, simple, max_size=4))
        pieces.append(described(0x74, draw(_wide_map(items))))
    pieces.append(section(0x75, draw(st.binary(max_size=20))) if draw(st.booleans()) else b"")
    return b"".join(pieces)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Messages with some octets changed, cut or put in, and plain octets."""
    octets = bytearray(draw(messages() | st.binary(max_size=40)))
    for _ in range(draw(st.integers(1, 4))):
        offset = draw(st.integers(0, len(octets)))
        change = draw(st.sampled_from(("set", "cut", "insert", "delete")))
        if change == "cut":
            del octets[offset:]
        elif change == "insert":
            octets[offset:offset] = draw(st.binary(min_size=1, max_size=3))
        elif change == "delete":
            del octets[offset : offset + draw(st.integers(1, 4))]
        elif offset < len(octets):
            octets[offset] = draw(st.integers(0, 255))
    return bytes(octets)
