"""Sections of messages: found, read and rewritten; built by hand and by qpid-proton."""

import contextlib
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.composite import SHAPE_OF
from lightrail.amqp.decoder import decode
from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import (
    Attributes,
    Header,
    Properties,
    Sections,
    attributes,
    decode_annotations,
    decode_application_properties,
    decode_header,
    decode_properties,
    encode_header,
    scan,
    with_annotations,
    with_header,
)
from lightrail.amqp.values import DecodeError, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort
from tests.support.amqp.strategies import composites, filled, keys, same, symbols, values

headers = composites(SHAPE_OF[Header])
properties = composites(SHAPE_OF[Properties])
annotation_maps = st.dictionaries(symbols | st.integers(0, 1 << 60).map(ULong), values, max_size=4)


def section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


bodies: st.SearchStrategy[list[bytes]] = st.one_of(
    st.just([]),
    st.lists(st.binary(max_size=300).map(lambda data: section(0x75, data)), min_size=1, max_size=3),
    st.lists(st.lists(values, max_size=3).map(lambda data: section(0x76, data)), min_size=1, max_size=2),
    values.map(lambda data: [section(0x77, data)]),
)


@st.composite
def messages(draw: st.DrawFn) -> list[list[bytes]]:
    """The encoded sections of a message by rank, none or one in each but the body."""

    def maybe(strategy: st.SearchStrategy[bytes]) -> list[bytes]:
        return draw(st.just([]) | strategy.map(lambda octets: [octets]))

    def mapping(code: int) -> st.SearchStrategy[bytes]:
        return annotation_maps.map(lambda value: section(code, value))

    return [
        maybe(headers.map(lambda header: encode(header))),
        maybe(mapping(0x71)),
        maybe(mapping(0x72)),
        maybe(properties.map(lambda value: encode(value))),
        maybe(st.dictionaries(st.text(max_size=5), keys, max_size=3).map(lambda m: section(0x74, m))),
        draw(bodies),
        maybe(mapping(0x78)),
    ]


def join(sections: list[list[bytes]]) -> bytes:
    return b"".join(b"".join(parts) for parts in sections)


NAMES = list(Sections.__dataclass_fields__)

# --- finding ------------------------------------------------------------------------------------------


@given(messages(), st.binary(max_size=9))
def test_sections_are_found(message: list[list[bytes]], before: bytes) -> None:
    octets = before + join(message)
    for buffer in (octets, bytearray(octets), memoryview(octets)):
        found = scan(buffer, len(before))
        for name, parts in zip(NAMES, message, strict=True):
            area = getattr(found, name)
            assert (b"" if area is None else octets[slice(*area)]) == b"".join(parts)
            assert (area is None) == (not parts)


@given(messages())
def test_every_cut_is_a_decode_error_or_ends_between_sections(message: list[list[bytes]]) -> None:
    octets = join(message)
    ends = {0}
    for parts in message:
        for part in parts:
            ends.add(max(ends) + len(part))
    for cut in range(len(octets)):
        if cut in ends:
            scan(octets[:cut])
        else:
            with pytest.raises(DecodeError):
                scan(octets[:cut])


ORDER = [
    section(0x70, []),
    section(0x71, {}),
    section(0x72, {}),
    section(0x73, []),
    section(0x74, {}),
    section(0x75, b"a"),
    section(0x76, []),
    section(0x77, None),
    section(0x78, {}),
]


def allowed(first: int, second: int) -> bool:
    """What may follow what (messaging 3.2), written out apart from the code that is tested."""
    if first in (5, 6, 7):
        return second == 8 or (second == first and first != 7)
    return second > first


@pytest.mark.parametrize("first", range(9))
@pytest.mark.parametrize("second", range(9))
def test_order_of_sections(first: int, second: int) -> None:
    octets = ORDER[first] + ORDER[second]
    if allowed(first, second):
        scan(octets)
    else:
        with pytest.raises(DecodeError, match="expected a section that may follow"):
            scan(octets)


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (b"\x40", "expected a section, found constructor 0x40"),
        (section(0x10, ["c"]), "expected the descriptor of a section"),
        (section(0x79, {}), "expected the descriptor of a section"),
        (encode(Described(Symbol("x:y"), {})), "expected the descriptor of a section"),
        (encode(Described(UInt(0x70), [])), "expected the descriptor of a section"),
        (section(0x70, {}), "expected the list of header"),
        (section(0x72, []), "expected the map of message-annotations"),
        (section(0x75, "text"), "expected the binary of data"),
        (section(0x77, None)[:-1], "1 more octets of amqp-value"),
        (section(0x77, None)[:-1] + b"\x3f", "constructor 0x3f"),
        (b"\x00\x53\x75\xb0\xff\xff\xff\xffabc", "4294967299 more octets of vbin32"),
    ],
)
def test_malformed_messages(octets: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        scan(octets)


def test_symbolic_descriptors() -> None:
    octets = b"".join(
        encode(Described(Symbol(f"amqp:{name}"), value))
        for name, value in [
            ("header:list", [True]),
            ("delivery-annotations:map", {}),
            ("message-annotations:map", {Symbol("a"): True}),
            ("properties:list", ["id"]),
            ("application-properties:map", {"k": True}),
            ("amqp-value:*", "body"),
            ("footer:map", {}),
        ]
    )
    assert None not in [getattr(scan(octets), name) for name in NAMES]
    assert decode_header(octets).durable
    assert decode_annotations(octets) == {"a": True}
    assert decode_application_properties(octets) == {"k": True}
    assert decode_properties(octets).message_id == "id"


def test_the_body_is_not_looked_into() -> None:
    """A list that would be malformed when decoded: its size is all that counts."""
    assert scan(b"\x00\x53\x77\xc0\x04\x63\xff\xff\xff").body == (0, 9)


@given(st.binary(max_size=120))
def test_garbage(octets: bytes) -> None:
    for reader in (scan, attributes, decode_header, decode_properties, decode_annotations):
        for message in (
            octets,
            b"\x00\x53\x72" + octets,
            b"\x00\x53\x70\xc0" + octets,
            b"\x00\x53\x73\xc0" + octets,
        ):
            with contextlib.suppress(DecodeError):
                reader(message)


@given(messages(), st.data())
def test_one_wrong_octet(message: list[list[bytes]], data: st.DataObject) -> None:
    octets = bytearray(join(message) or b"\x00")
    octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    for action in (
        scan,
        attributes,
        lambda message: with_header(message, Header(durable=True)),
        lambda message: with_annotations(message, {Symbol("x-opt-a"): True}),
    ):
        with contextlib.suppress(DecodeError):
            action(bytes(octets))


# --- reading ------------------------------------------------------------------------------------------


def test_nothing_there_means_the_defaults() -> None:
    defaults = Header(durable=False, priority=4, ttl=None, first_acquirer=False, delivery_count=0)
    for message in (b"", section(0x70, []), section(0x77, None)):
        assert decode_header(message) == defaults
        assert decode_properties(message) == Properties()
        assert decode_annotations(message) == decode_application_properties(message) == {}
        assert attributes(message) == Attributes(False, 4, None, None)


@given(headers, properties, bodies)
def test_header_properties_and_attributes(header: Header, given: Properties, body: list[bytes]) -> None:
    message = encode(header) + encode(given) + b"".join(body)
    assert decode_header(message) == filled(header)
    assert decode_properties(message) == given
    complete = filled(header)
    assert attributes(message) == Attributes(
        complete.durable, complete.priority, complete.ttl, given.absolute_expiry_time
    )


@given(annotation_maps)
def test_annotations(annotations: dict[Any, Any]) -> None:
    message = section(0x70, []) + section(0x72, annotations) + section(0x77, None)
    assert same(decode_annotations(message), annotations)


@pytest.mark.parametrize(
    "fields", [[None] * 8 + ["soon"], [None] * 8 + [UInt(5)], [None] * 8 + [ULong(5), Timestamp(0)]]
)
def test_expiry_of_another_type(fields: list[Any]) -> None:
    with pytest.raises(DecodeError, match="timestamp"):
        attributes(section(0x73, fields))


def test_what_is_before_the_expiry_is_skipped_unseen() -> None:
    """to and user-id of wrong types are between sender and receiver; a broker does not judge them."""
    assert attributes(section(0x73, [[1], 5, 6, 7, 8, 9, 10, 11, Timestamp(12)])).absolute_expiry_ms == 12


# --- rewriting ----------------------------------------------------------------------------------------


@given(messages(), headers)
def test_with_header_keeps_the_rest(message: list[list[bytes]], header: Header) -> None:
    octets = join(message)
    for buffer in (octets, bytearray(octets), memoryview(octets)):
        rewritten = with_header(buffer, filled(header))
        assert type(rewritten) is bytes
        assert rewritten == encode_header(filled(header)) + join([[], *message[1:]])
        assert decode_header(rewritten) == filled(header)
        assert with_header(rewritten, filled(header)) == rewritten


def test_encode_header_leaves_defaults_out() -> None:
    assert encode_header(decode_header(b"")).hex() == "00537045"
    assert encode_header(Header()).hex() == "00537045"
    assert encode_header(Header(durable=False, delivery_count=3)).hex() == "005370c007" + "05404040405203"
    assert decode(encode_header(Header(durable=True, priority=0)), 0, 99)[0].value == [True, UByte(0)]


@given(messages(), annotation_maps, st.dictionaries(symbols, values, max_size=4))
def test_with_annotations_keeps_the_rest(
    message: list[list[bytes]], before: dict[Any, Any], added: dict[Symbol, Any]
) -> None:
    for present in (True, False):
        message[2] = [section(0x72, before)] if present else []
        octets = join(message)
        rewritten = with_annotations(octets, added)
        others = {key: value for key, value in before.items() if key not in added} if present else {}
        assert rewritten == join([*message[:2], [section(0x72, {**others, **added})], *message[3:]])
        assert with_annotations(memoryview(bytearray(octets)), added) == rewritten
        assert scan(rewritten).message_annotations is not None


def test_with_annotations_keeps_other_encodings_to_the_byte() -> None:
    """A map32 with a sym32 key and a wide ulong: no re-encoding of what is not touched."""
    pair = bytes.fromhex("b30000000161" + "800000000000000001")
    message = b"\x00\x53\x72\xd1" + (len(pair) + 4).to_bytes(4) + (2).to_bytes(4) + pair
    assert pair in with_annotations(message, {Symbol("b"): UShort(1)})
    assert pair not in with_annotations(message, {Symbol("a"): UShort(1)})


def test_with_annotations_refuses_what_it_cannot_read_or_write() -> None:
    with pytest.raises(ValueError):
        with_annotations(b"", {Symbol("a"): object()})
    with pytest.raises(DecodeError, match="even count"):
        with_annotations(b"\x00\x53\x72\xc1\x02\x01\x40", {})
    with pytest.raises(DecodeError, match="left over"):
        with_annotations(b"\x00\x53\x72\xc1\x04\x02\x40\x40\x40", {})


# --- qpid-proton as a witness -------------------------------------------------------------------------


def test_messages_of_proton() -> None:
    message = proton.Message(
        body={"a": [1, "b"]},
        durable=True,
        priority=9,
        ttl=1.5,
        delivery_count=2,
        first_acquirer=True,
        id=proton.ulong(5),
        user_id=b"me",
        address="to-q",
        subject="s",
        reply_to="r",
        correlation_id="c",
        content_type=proton.symbol("t/x"),
        content_encoding=proton.symbol("gzip"),
        expiry_time=1_700_000_000,
        creation_time=1_600_000_000,
        group_id="g",
        group_sequence=7,
        reply_to_group_id="rg",
        annotations={"x-opt-a": 1},
        instructions={"x-opt-d": 2},
        properties={"k": "v"},
    )
    octets = bytes(message.encode())
    assert None not in [getattr(scan(octets), name) for name in NAMES[:-1]]
    assert decode_header(octets) == Header(
        durable=True, priority=9, ttl=1500, first_acquirer=True, delivery_count=2
    )
    assert decode_properties(octets) == Properties(
        message_id=5,
        user_id=b"me",
        to="to-q",
        subject="s",
        reply_to="r",
        correlation_id="c",
        content_type=Symbol("t/x"),
        content_encoding=Symbol("gzip"),
        absolute_expiry_time=1_700_000_000_000,
        creation_time=1_600_000_000_000,
        group_id="g",
        group_sequence=7,
        reply_to_group_id="rg",
    )
    assert attributes(octets) == (True, 9, 1500, 1_700_000_000_000)
    assert decode_annotations(octets) == {"x-opt-a": 1}
    assert decode_application_properties(octets) == {"k": "v"}

    header = decode_header(octets)
    header.delivery_count, header.first_acquirer = 3, False
    rewritten = proton.Message()
    rewritten.decode(with_annotations(with_header(octets, header), {Symbol("x-opt-why"): "rejected"}))
    assert (rewritten.delivery_count, rewritten.first_acquirer, rewritten.priority) == (3, False, 9)
    assert rewritten.annotations == {"x-opt-a": 1, "x-opt-why": "rejected"}
    assert rewritten.instructions == {"x-opt-d": 2}
    assert rewritten.body == message.body
    assert rewritten.id == 5
    assert rewritten.properties == {"k": "v"}


@given(values)
def test_bodies_written_by_us_pass_through_proton(value: Any) -> None:
    message = section(0x70, [True]) + section(0x75, encode(value))
    received = proton.Message(inferred=True)
    received.decode(message)
    assert received.durable
    body: Any = received.body
    assert same(decode(bytes(body), 0, len(body))[0], value)
    again = bytes(received.encode())
    area = scan(again).body
    assert area is not None
    assert again[slice(*area)] == section(0x75, encode(value))
