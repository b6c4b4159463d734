"""Every AMQP 1.0 type in every section of a client's message, and as qpid-proton reads the same bytes."""

from dataclasses import asdict
from typing import Any, Final

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp import decoder, sections
from lightrail.amqp.encoder import encode
from lightrail.amqp.values import (
    Array,
    Byte,
    Decimal128,
    DecodeError,
    Described,
    Float,
    Int,
    Long,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from lightrail.client import Message
from tests.support.amqp.proton_values import ReadMessage, plain, read_value, to_proton
from tests.support.amqp.strategies import (
    BY_TYPE,
    keys,
    same,
    scalar_arrays,
    scalars,
    symbols,
    text,
)

SMALL: Final = settings(max_examples=15)
MAPS: Final = ("annotations", "delivery_annotations", "footer")
TYPES: Final = BY_TYPE | {
    "list": st.lists(scalars, max_size=4),
    "map": st.dictionaries(keys, scalars, max_size=4),
    "array": scalar_arrays(),
    "described": st.builds(Described, BY_TYPE["ulong"] | symbols, scalars),
}
# No described value inside another: proton's decoder counts the items of the list around those wrongly.
NESTED: Final = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(
            Described,
            BY_TYPE["ulong"] | symbols,
            inner.filter(lambda value: not isinstance(value, Described)),
        ),
        scalar_arrays(),
    ),
    max_leaves=8,
)
MESSAGES: Final = st.builds(
    Message,
    NESTED,
    id=st.none() | BY_TYPE["ulong"] | BY_TYPE["uuid"] | BY_TYPE["binary"] | text,
    subject=st.none() | text,
    created_at=st.none() | st.integers(0, 1 << 31),
    priority=st.integers(0, 255),
    properties=st.dictionaries(text, scalars, max_size=3),
    annotations=st.dictionaries(symbols | BY_TYPE["ulong"], NESTED, max_size=3),
    delivery_annotations=st.dictionaries(symbols, NESTED, max_size=2),
    footer=st.dictionaries(symbols, NESTED, max_size=2),
)
NAMES: Final = ("body", "properties", *MAPS)
"""The arguments that have values of any type."""


def all_same(left: Message, right: Message, names: tuple[str, ...] = NAMES) -> bool:
    return all(same(section(left, name), section(right, name)) for name in names)


def section(message: Message, name: str) -> Any:
    found = getattr(message, name)
    return found if name == "body" else dict(found)


def footer_of(payload: bytes) -> Any:
    """Proton's reading of the footer, which its messages skip; None without one."""
    area = sections.scan(payload).footer
    return None if area is None else read_value(payload[area[0] + 3 : area[1]])


def as_proton_has_it(values: Any) -> Any:
    return plain(dict(values)) if values else None


# --- type by type ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TYPES)
@SMALL
@given(st.data())
def test_every_type_in_every_section_is_as_proton_reads_it(name: str, data: st.DataObject) -> None:
    value = data.draw(TYPES[name])
    key = Symbol("x-opt-value")
    properties = {"value": value} if name in BY_TYPE else {}
    message = Message(
        value,
        properties=properties,
        annotations={key: value},
        delivery_annotations={key: value},
        footer={key: value},
    )
    payload = message.encode()
    found = Message.decode(payload)
    assert same(found.body, value)
    assert same(dict(found.properties), properties)
    for each in MAPS:
        assert same(dict(getattr(found, each)), {key: value}), each
    theirs = ReadMessage(payload)
    assert theirs.body == plain(value)
    assert theirs.properties == as_proton_has_it(properties)
    assert theirs.annotations == theirs.delivery_annotations == footer_of(payload) == plain({key: value})


@pytest.mark.parametrize("name", TYPES)
@SMALL
@given(st.data())
def test_every_type_that_proton_sends_is_read_with_its_type(name: str, data: st.DataObject) -> None:
    value = data.draw(TYPES[name])
    key = Symbol("x-opt-value")
    theirs = proton.Message(body=to_proton(value))
    theirs.annotations = theirs.instructions = {proton.symbol(key): to_proton(value)}
    theirs.properties = {"value": to_proton(value)} if name in BY_TYPE else None
    found = Message.decode(theirs.encode())
    assert plain(found.body) == plain(value)
    assert plain(dict(found.annotations)) == plain(dict(found.delivery_annotations)) == plain({key: value})
    assert plain(dict(found.properties)) == plain({"value": value} if name in BY_TYPE else {})


# --- nested ---------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(MESSAGES)
def test_nested_values_are_read_again_and_as_proton_reads_and_encodes_them(message: Message) -> None:
    payload = message.encode()
    found = Message.decode(payload)
    assert all_same(found, message)
    assert found.encode() is payload, "reading it changes nothing"
    theirs = ReadMessage(payload)
    assert theirs.body == plain(message.body)
    assert footer_of(payload) == as_proton_has_it(message.footer)
    for name in ("properties", "annotations", "delivery_annotations"):
        assert getattr(theirs, name) == as_proton_has_it(getattr(message, name)), name
    again = Message.decode(theirs.encode(4 * len(payload) + 64))
    for name in NAMES[:-1]:
        assert plain(section(again, name)) == plain(section(message, name)), name


# --- replace --------------------------------------------------------------------------------------------

CHANGES: Final[dict[str, Any]] = {
    "body": "another",
    "id": "another",
    "subject": "another",
    "to": "another",
    "reply_to": "another",
    "correlation_id": "another",
    "content_type": "another",
    "content_encoding": "another",
    "group": "another",
    "group_sequence": 9,
    "reply_to_group": "another",
    "user_id": b"another",
    "expires_at": 9.5,
    "created_at": 9.5,
    "durable": True,
    "priority": 9,
    "ttl": 9.5,
    "properties": {"another": "one"},
    "annotations": {"another": "one"},
    "delivery_annotations": {"another": "one"},
    "footer": {"another": "one"},
}
PROPERTIES: Final = b"\x00\x53\x73"
# A message with every field, encoded by hand where the constructor has no way to say it: times before 1970
# and beyond what a float counts in milliseconds, addresses that are described, a body of binary in an
# amqp-value. The header says durable=false.
FIELDS: Final = [
    ULong(1),
    b"user",
    Described(Symbol("x:address"), "to"),
    "subject",
    Described(ULong(9), ["reply-to"]),
    b"correlation",
    Symbol("text/plain"),
    Symbol("gzip"),
    Timestamp((1 << 63) - 1),
    Timestamp(-62135596800000),
    "group",
    UInt(3),
    "reply-to-group",
]
"""The fields of the section of properties, in their order."""


def came(body: bytes) -> Message:
    """A message as another client sends it; `body` is the encoded body."""
    value = {Symbol("x-opt-a"): [Decimal128(bytes(range(16))), Float(1.5), Int(5), Long(5), Byte(5)]}
    return Message.decode(
        sections.encode_header(sections.Header(False, 5, 6001, False, 0))
        + b"\x00\x53\x71"
        + encode(value)
        + b"\x00\x53\x72"
        + encode(value | {ULong(5): Array([1.5], 0x82)})
        + PROPERTIES
        + encode(FIELDS)
        + b"\x00\x53\x74"
        + encode({"a": UInt(1), "b": Symbol("s")})
        + body
        + b"\x00\x53\x78"
        + encode(value)
    )


BODIES: Final = {
    "none": b"",
    "null": b"\x00\x53\x77\x40",
    "binary": b"\x00\x53\x77\xa0\x01x",
    "data": b"\x00\x53\x75\xa0\x01x",
    "several data": b"\x00\x53\x75\xa0\x01x" * 2,
    "sequence": b"\x00\x53\x76\xc0\x03\x01\x54\x05",
    "several sequences": b"\x00\x53\x76\xc0\x03\x01\x54\x05" * 2,
    "decimal": b"\x00\x53\x77\x74\x01\x02\x03\x04",
    "array": b"\x00\x53\x77" + encode(Array([UInt(5)], 0x70, Symbol("x:each"))),
}


HEADER: Final = ("durable", "priority", "ttl")
SECTION_OF: Final = {"properties": "application_properties", "annotations": "message_annotations"}


def areas(message: Message) -> dict[str, bytes]:
    """The encoded sections by name."""
    payload = message.encode()
    found = sections.scan(payload)
    named = {name: getattr(found, name) for name in found.__slots__}
    return {name: payload[slice(*area)] for name, area in named.items() if area is not None}


def fields(message: Message) -> dict[str, Any]:
    """The fields of header and properties by name."""
    payload = message.encode()
    return asdict(sections.decode_header(payload)) | asdict(sections.decode_properties(payload))


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", CHANGES)
def test_replacing_one_argument_keeps_all_others_of_a_message_that_came(name: str, body: str) -> None:
    message = came(BODIES[body])
    before = message.encode()
    other = message.replace(**{name: CHANGES[name]})
    assert getattr(other, name) == CHANGES[name]
    assert message.encode() is before
    assert areas(message) == areas(came(BODIES[body]))
    if name in NAMES:
        changed = {SECTION_OF.get(name, name)}
        assert fields(other) == fields(message)
    else:
        changed = {"header" if name in HEADER else "properties"}
        assert sum(fields(other)[each] != value for each, value in fields(message).items()) == 1
    kept = {each: octets for each, octets in areas(message).items() if each not in changed}
    assert {each: octets for each, octets in areas(other).items() if each not in changed} == kept


@settings(max_examples=60)
@given(MESSAGES)
def test_replacing_one_argument_keeps_the_types_of_all_others(message: Message) -> None:
    for original in (message, Message.decode(message.encode())):
        assert all_same(original.replace(subject="another"), message)
        for name in NAMES:
            others = tuple(each for each in NAMES if each != name)
            other = original.replace(**{name: CHANGES[name]})
            assert all_same(other, message, others)
            assert all_same(Message.decode(other.encode()), message, others)


def test_what_is_replaced_counts_its_deliveries_from_0() -> None:
    message = Message.decode(sections.encode_header(sections.Header(True, 4, None, True, 3)) + BODIES["data"])
    assert (message.delivery_count, message.first_acquirer) == (3, True)
    other = Message.decode(message.replace(subject="another").encode())
    assert (other.delivery_count, other.first_acquirer) == (0, False)


# --- what is out of range -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [1 << 63, UInt(1 << 32), UInt(-1), Byte(128), Float(1e39), [{"a": 1 << 63}]]
)
@pytest.mark.parametrize("name", NAMES)
def test_values_beyond_the_range_of_their_type_are_refused_in_every_section(name: str, value: Any) -> None:
    fields: dict[str, Any] = {name: value if name == "body" else {"x": value}}
    message = Message(**fields)
    with pytest.raises(ValueError, match="range"):
        message.encode()


# --- malformed payloads ---------------------------------------------------------------------------------

READ: Final = (*CHANGES, "delivery_count", "first_acquirer")


def assert_reads_or_refuses(payload: bytes) -> None:
    """Every attribute gives a value or raises DecodeError, in any order; what can be read can be replaced."""
    message = Message.decode(payload)
    failed = []
    for name in READ:
        try:
            getattr(message, name)
        except DecodeError:
            failed.append(name)
    for name in failed:
        with pytest.raises(DecodeError):
            getattr(message, name)
    assert repr(message).startswith("Message(")
    assert repr(Message.decode(payload)) == repr(message)
    assert message == Message.decode(payload)
    assert message.encode() is payload
    if failed:
        with pytest.raises(DecodeError):
            message.replace(subject="another")
    else:
        other = Message.decode(message.replace(subject="another").encode())
        assert other.subject == "another"
        assert all_same(other, message)


@pytest.mark.parametrize("code", [0x40, 0x45, 0xC0, 0xD0, 0xA0, 0xC1, 0xD1, 0xE0, 0x00, 0x77, 0xFF])
@pytest.mark.parametrize("section", range(0x6F, 0x7A))
@pytest.mark.parametrize("rest", [b"", b"\x00", b"\x02\x01\x40", b"\x00\x00\x00\x04\x00\x00\x00\x00"])
def test_sections_that_are_of_another_type_are_refused(section: int, code: int, rest: bytes) -> None:
    assert_reads_or_refuses(bytes((0, 0x53, section, code)) + rest)


@pytest.mark.parametrize("section", [0x71, 0x72, 0x74, 0x78])
def test_a_list_in_place_of_a_map_is_refused(section: int) -> None:
    names = {0x71: "delivery_annotations", 0x72: "annotations", 0x74: "properties", 0x78: "footer"}
    message = Message.decode(bytes((0, 0x53, section)) + encode([1]))
    with pytest.raises(DecodeError, match="expected the map of"):
        getattr(message, names[section])
    assert "no message" in repr(message)


OCTETS: Final = st.sampled_from(sorted(decoder.NAMES)) | st.integers(0, 255)
EDITS: Final = st.lists(
    st.tuples(st.sampled_from(["change", "insert", "delete", "cut"]), st.integers(0, 1 << 16), OCTETS),
    min_size=1,
    max_size=4,
)


@settings(max_examples=250)
@given(
    MESSAGES.map(Message.encode) | st.sampled_from([came(body).encode() for body in BODIES.values()]), EDITS
)
def test_a_mutated_message_is_read_or_refused(payload: bytes, edits: list[tuple[str, int, int]]) -> None:
    octets = bytearray(payload)
    for kind, where, octet in edits:
        at = where % (len(octets) + 1)
        match kind:
            case "change":
                octets[at : at + 1] = bytes((octet,))
            case "insert":
                octets.insert(at, octet)
            case "delete":
                del octets[at : at + 1]
            case _ if octet < 16:
                del octets[at:]
    assert_reads_or_refuses(bytes(octets))


@settings(max_examples=60)
@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda octets: b"\x00\x53" + octets))
def test_any_octets_are_read_or_refused(payload: bytes) -> None:
    assert_reads_or_refuses(payload)
