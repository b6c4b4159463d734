"""Composites: against the specification's table, there and back, every cut, wrong fields, golden octets."""

import json
import re
from pathlib import Path
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp import performatives, sections
from lightrail.amqp.composite import SHAPE_OF, SHAPES, Shape
from lightrail.amqp.decoder import decode
from lightrail.amqp.encoder import encode
from lightrail.amqp.fields import DELIVERY_TAG_BYTES_MAX
from lightrail.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    AmqpError,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    Detach,
    Discharge,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
    decode_performative,
    encode_performative,
)
from lightrail.amqp.values import Array, DecodeError, Described, Symbol, UInt, ULong
from tests.support.amqp.strategies import composites, filled

SPECIFICATION = json.loads((Path(__file__).parent / "specification.json").read_text())
"""Names, types, duties and defaults, derived from the definitions of AMQP 1.0 with restricted types resolved
to their base (choices kept). The defaults of header are those of the OASIS edition, section 3.2.1."""
GOLDEN = Path(__file__).parents[2] / "golden" / "amqp" / "performatives.hex"

shapes = sorted(SHAPE_OF.values(), key=lambda shape: shape.code)
top_shapes = [shape for shape in shapes if "section" not in shape.provides]
any_composite = st.sampled_from(top_shapes).flatmap(composites)


def whole(octets: bytes) -> Any:
    performative, after = decode_performative(octets, 0, len(octets))
    assert after == len(octets)
    return performative


# --- the table of the specification -------------------------------------------------------------------


def test_every_composite_of_the_specification_is_there() -> None:
    assert {shape.name for shape in shapes} == set(SPECIFICATION["composites"])


@pytest.mark.parametrize("shape", shapes, ids=lambda shape: shape.name)
def test_composite_is_as_specified(shape: Shape) -> None:
    specified = SPECIFICATION["composites"][shape.name]
    assert shape.code == specified["code"]
    assert shape.symbol == specified["descriptor"]
    assert SHAPES[shape.code] is SHAPES[shape.symbol] is shape
    # The specification gives error no archetype, its fields name it directly.
    assert shape.provides - {"error"} == set(specified["provides"])
    ours = [
        [name, declaration.type.name, declaration.mandatory, declaration.default]
        for name, declaration in zip(shape.names, shape.declarations, strict=True)
    ]
    # Nobody has defined a type that provides global-tx-id, so any is taken.
    theirs = [
        [name, "*" if kind == "*:global-tx-id" else kind, mandatory, default]
        for name, kind, mandatory, default in specified["fields"]
    ]
    assert ours == theirs
    assert [type(row[3]) for row in ours] == [
        Symbol if row[1] == "terminus-expiry-policy" and row[3] else type(row[3]) for row in theirs
    ]


@pytest.mark.parametrize("name", SPECIFICATION["choices"])
def test_choices_are_as_specified(name: str) -> None:
    choices = SPECIFICATION["choices"][name]
    shape, index = next(
        (shape, index)
        for shape in shapes
        for index, declaration in enumerate(shape.declarations)
        if declaration.type.name == name
    )
    kind = shape.declarations[index].type
    for text in [*choices, "5", "other"]:
        numeric = text.isdigit()
        if numeric != choices[0].isdigit():
            continue
        octets = kind.write(int(text) if numeric else text)
        if text in choices:
            value, after = kind.readers[octets[0]](octets, 1, len(octets), 0)
            assert str(value) == text
            assert after == len(octets)
        else:
            with pytest.raises(DecodeError, match=f"expected {name}"):
                kind.readers[octets[0]](octets, 1, len(octets), 0)


def test_fields_are_none_until_set() -> None:
    for shape in shapes:
        assert all(value is None for value in shape.get(shape.cls()))


def test_performatives_are_slotted_and_say_what_they_are() -> None:
    flow = Flow(incoming_window=1)
    with pytest.raises(AttributeError):
        flow.window = 1  # type: ignore[attr-defined]
    assert flow == Flow(incoming_window=1) != Flow(incoming_window=2)
    assert repr(Detach(handle=1, closed=True)) == "Detach(handle=1, closed=True, error=None)"


# --- there and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", top_shapes, ids=lambda shape: shape.name)
@settings(max_examples=30)
@given(data=st.data())
def test_round_trip(shape: Shape, data: st.DataObject) -> None:
    performative = data.draw(composites(shape))
    octets = encode_performative(performative)
    decoded = whole(octets)
    assert decoded == filled(performative)
    assert whole(encode_performative(decoded)) == decoded
    # As a described list it is a valid value of the type system too, without nulls at its end.
    generic, after = decode(octets, 0, len(octets))
    assert after == len(octets)
    assert generic.descriptor == shape.code
    assert not generic.value or generic.value[-1] is not None


@given(any_composite, st.binary(max_size=4), st.binary(max_size=4))
def test_position_and_end_are_respected(performative: Any, before: bytes, behind: bytes) -> None:
    octets = encode_performative(performative)
    inside = before + octets + behind
    end = len(before) + len(octets)
    for buffer in (inside, bytearray(inside), memoryview(inside)):
        decoded, after = decode_performative(buffer, len(before), end)
        assert after == end
        assert decoded == filled(performative)


@given(any_composite)
def test_symbolic_descriptor_and_list32_mean_the_same(performative: Any) -> None:
    shape = SHAPE_OF[type(performative)]
    octets = encode_performative(performative)
    described, _ = decode(octets, 0, len(octets))
    items = b"".join(map(encode, described.value))
    larger = b"".join(
        (
            b"\x00",
            encode(shape.symbol),
            b"\xd0",
            (len(items) + 4).to_bytes(4),
            len(described.value).to_bytes(4),
            items,
        )
    )
    assert whole(larger) == filled(performative)


@given(any_composite)
def test_every_cut_is_a_decode_error(performative: Any) -> None:
    octets = encode_performative(performative)
    for cut in range(len(octets)):
        with pytest.raises(DecodeError):
            decode_performative(octets[:cut], 0, len(octets))
        with pytest.raises(DecodeError):
            decode_performative(octets, 0, cut)


def decode_or_error(octets: bytes) -> None:
    try:
        performative, after = decode_performative(octets, 0, len(octets))
    except DecodeError:
        return
    assert 0 < after <= len(octets)
    assert type(performative) in SHAPE_OF
    assert encode_performative(performative)


@given(st.sampled_from(top_shapes), st.binary(max_size=100))
def test_garbage_behind_a_descriptor(shape: Shape, octets: bytes) -> None:
    decode_or_error(octets)
    decode_or_error(shape.prefix + octets)
    decode_or_error(shape.prefix + b"\xd0" + len(octets).to_bytes(4) + octets)


@given(any_composite, st.data())
def test_one_wrong_octet(performative: Any, data: st.DataObject) -> None:
    octets = bytearray(encode_performative(performative))
    octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    decode_or_error(bytes(octets))


# --- what is refused, and what is taken ---------------------------------------------------------------


def composite_of(code: int, *items: Any) -> bytes:
    return encode(Described(ULong(code), list(items)))


REFUSED: dict[str, tuple[bytes, str]] = {
    "no described value": (encode([1]), "expected a described list"),
    "unknown descriptor": (composite_of(0x99), "expected the descriptor of a performative"),
    "unknown symbol": (encode(Described(Symbol("x:y"), [])), "expected the descriptor of a performative"),
    "uint for a descriptor": (encode(Described(UInt(0x10), ["a"])), "expected the descriptor"),
    "section for a performative": (composite_of(0x70), "expected the descriptor"),
    "map for a list": (encode(Described(ULong(0x10), {})), "expected the list of open"),
    "mandatory field absent": (composite_of(0x10), "open.container-id, which is mandatory, found null"),
    "mandatory field null": (composite_of(0x10, None, "h"), "open.container-id, which is mandatory"),
    "wrong type": (composite_of(0x10, Symbol("a")), r"open.container-id: expected string, found .*sym8"),
    "wrong width": (composite_of(0x10, "a", None, ULong(5)), "open.max-frame-size: expected uint"),
    "too many fields": (composite_of(0x17, None, None), "expected at most 1 fields of end, found 2"),
    "choice out of range": (
        composite_of(0x12, "n", UInt(0), True, decode(b"\x50\x03", 0, 2)[0]),
        "attach.snd-settle-mode: expected sender-settle-mode",
    ),
    "expiry policy unknown": (
        composite_of(0x28, "q", None, Symbol("sometime")),
        "source.expiry-policy: expected terminus-expiry-policy",
    ),
    "target where a source goes": (
        composite_of(0x12, "n", UInt(0), True, None, None, Described(ULong(0x29), [])),
        r"attach.source: expected \*:source, found target",
    ),
    "error that is no error": (composite_of(0x18, Described(ULong(0x24), [])), "expected error, found accep"),
    "delivery tag too long": (
        composite_of(0x14, UInt(0), UInt(0), b"x" * (DELIVERY_TAG_BYTES_MAX + 1)),
        "transfer.delivery-tag: expected at most 32 octets",
    ),
    "number for a key": (
        composite_of(0x18, Described(ULong(0x1D), [Symbol("c"), None, {1: 2}])),
        "symbol key",
    ),
    "null for a key": (
        composite_of(0x18, Described(ULong(0x1D), [Symbol("c"), None, {None: 2}])),
        "symbol key",
    ),
    "array of strings beyond ASCII for symbols": (
        composite_of(0x40, Array(["PLÄIN"], 0xA1)),
        "expected an array of symbols",
    ),
    "string beyond ASCII for a symbol": (composite_of(0x41, "PLÄIN"), "expected ASCII"),
    "no mechanism": (composite_of(0x40, Array([], 0xA3)), "which is mandatory"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    octets, message = REFUSED[why]
    with pytest.raises(DecodeError, match=message):
        decode_performative(octets, 0, len(octets))


def test_one_symbol_and_an_empty_array_of_symbols() -> None:
    assert whole(composite_of(0x30, Symbol("a"))) == Coordinator(capabilities=[Symbol("a")])
    assert whole(composite_of(0x30, Array([], 0xA3))) == Coordinator()
    assert encode_performative(Coordinator(capabilities=[])) == encode_performative(Coordinator())
    alone: Any = "a"
    assert encode_performative(Coordinator(capabilities=alone)) == composite_of(0x30, Symbol("a"))


def test_an_error_without_a_condition_is_an_internal_error() -> None:
    """Clients reject messages with a description alone."""
    rejected = whole(composite_of(0x25, Described(ULong(0x1D), [None, "bad"])))
    assert rejected == Rejected(error=AmqpError(condition=Symbol("amqp:internal-error"), description="bad"))


def test_strings_are_read_as_symbols() -> None:
    for sent in ("a", Array(["a"], 0xA1), Array(["a"], 0xB1)):
        read = whole(composite_of(0x30, sent))
        assert read == Coordinator(capabilities=[Symbol("a")])
        assert type(read.capabilities[0]) is Symbol
    assert type(whole(composite_of(0x41, "PLAIN")).mechanism) is Symbol


def test_strings_are_taken_for_symbols_as_keys() -> None:
    opened = whole(composite_of(0x10, "c", None, None, None, None, None, None, None, None, {"product": 1}))
    assert opened.properties == {"product": 1}
    assert type(next(iter(opened.properties))) is Symbol


def test_unknown_descriptors_inside_are_kept() -> None:
    unknown = Described(Symbol("other:source"), [UInt(1)])
    attach = Attach(name="n", handle=0, role=SENDER, source=unknown)
    assert whole(encode_performative(attach)).source == unknown
    numbered = Described(ULong(0x99), [])
    decoded = whole(encode_performative(Disposition(role=SENDER, first=0, state=numbered)))
    assert decoded.state == numbered
    assert type(decoded.state.descriptor) is ULong


def test_composites_nest_no_deeper_than_other_values() -> None:
    octets = b"\x40"
    for _ in range(40):
        octets = b"\x00\x53\x25\xc0" + bytes((len(octets) + 1, 1)) + octets
    with pytest.raises(DecodeError):
        decode_performative(octets, 0, len(octets))


@pytest.mark.parametrize(
    ("performative", "message"),
    [
        (Begin(), "begin.next-outgoing-id, which is mandatory"),
        (Open(container_id="c", channel_max=65536), "open.channel-max"),
        (Open(container_id="c", max_frame_size=-1), "open.max-frame-size"),
        (AmqpError(condition=Symbol("é")), "error.condition"),
        (Close(error=AmqpError()), "close.error: expected error.condition"),
    ],
)
def test_what_cannot_be_encoded_is_a_value_error(performative: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_performative(performative)


# --- golden octets ------------------------------------------------------------------------------------

CASES: dict[str, Any] = {
    "open": Open(container_id="c"),
    "open full": Open(
        container_id="container",
        hostname="host",
        max_frame_size=65_536,
        channel_max=255,
        idle_time_out=30_000,
        outgoing_locales=[Symbol("en-US")],
        incoming_locales=[Symbol("de-DE"), Symbol("en-US")],
        offered_capabilities=[Symbol("ANONYMOUS-RELAY")],
        desired_capabilities=[Symbol("sole-connection-for-container")],
        properties={Symbol("product"): "LightRail"},
    ),
    "begin": Begin(next_outgoing_id=0, incoming_window=8192, outgoing_window=8192),
    "begin full": Begin(
        remote_channel=1,
        next_outgoing_id=2,
        incoming_window=3,
        outgoing_window=4,
        handle_max=4095,
        offered_capabilities=[Symbol("a")],
        desired_capabilities=[Symbol("b")],
        properties={},
    ),
    "attach sender": Attach(
        name="to-q",
        handle=0,
        role=SENDER,
        source=Source(),
        target=Target(address="q"),
        initial_delivery_count=0,
    ),
    "attach receiver full": Attach(
        name="from-q",
        handle=1,
        role=RECEIVER,
        snd_settle_mode=0,
        rcv_settle_mode=1,
        source=Source(
            address="q",
            durable=2,
            expiry_policy=Symbol("never"),
            timeout=60,
            dynamic=False,
            dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnClose()},
            distribution_mode=Symbol("copy"),
            filter={Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")},
            default_outcome=Modified(delivery_failed=True),
            outcomes=[Symbol("amqp:accepted:list"), Symbol("amqp:released:list")],
            capabilities=[Symbol("queue")],
        ),
        target=Target(
            address="t",
            durable=1,
            expiry_policy=Symbol("link-detach"),
            timeout=5,
            dynamic=True,
            dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnNoMessages()},
            capabilities=[Symbol("queue")],
        ),
        unsettled={b"tag": Received(section_number=1, section_offset=2), b"none": None},
        incomplete_unsettled=True,
        initial_delivery_count=7,
        max_message_size=1 << 40,
        offered_capabilities=[Symbol("x")],
        desired_capabilities=[Symbol("y")],
        properties={Symbol("z"): True},
    ),
    "flow of a session": Flow(
        next_incoming_id=0, incoming_window=8192, next_outgoing_id=0, outgoing_window=8192
    ),
    "flow full": Flow(
        next_incoming_id=1,
        incoming_window=2,
        next_outgoing_id=3,
        outgoing_window=4,
        handle=5,
        delivery_count=0xFFFFFFFF,
        link_credit=2000,
        available=8,
        drain=True,
        echo=True,
        properties={},
    ),
    "transfer": Transfer(handle=0, delivery_id=1, delivery_tag=b"\1", message_format=0, settled=False),
    "transfer full": Transfer(
        handle=256,
        delivery_id=70_000,
        delivery_tag=b"tag",
        message_format=1,
        settled=True,
        more=True,
        rcv_settle_mode=1,
        state=TransactionalState(txn_id=b"t", outcome=Accepted()),
        resume=True,
        aborted=True,
        batchable=True,
    ),
    "disposition": Disposition(role=RECEIVER, first=0, last=9, settled=True, state=Accepted()),
    "disposition full": Disposition(
        role=SENDER, first=300, last=301, settled=False, state=Released(), batchable=True
    ),
    "detach": Detach(handle=0, closed=True),
    "detach error": Detach(
        handle=0, closed=True, error=AmqpError(condition=Symbol("amqp:not-found"), description="no queue q")
    ),
    "end": End(),
    "end error": End(error=AmqpError(condition=Symbol("amqp:session:window-violation"))),
    "close": Close(),
    "close error": Close(
        error=AmqpError(
            condition=Symbol("amqp:connection:forced"), description="", info={Symbol("port"): UInt(5672)}
        )
    ),
    "error": AmqpError(condition=Symbol("amqp:internal-error")),
    "received": Received(section_number=0, section_offset=300),
    "accepted": Accepted(),
    "rejected": Rejected(error=AmqpError(condition=Symbol("amqp:decode-error"))),
    "released": Released(),
    "modified": Modified(
        delivery_failed=True, undeliverable_here=False, message_annotations={Symbol("x-opt-a"): "b"}
    ),
    "declared": Declared(txn_id=b"\1\2"),
    "transactional-state": TransactionalState(txn_id=b"\1\2"),
    "source": Source(address="q"),
    "target": Target(address="q"),
    "coordinator": Coordinator(capabilities=[Symbol("amqp:local-transactions")]),
    "declare": Declare(),
    "discharge": Discharge(txn_id=b"\1\2", fail=True),
    "delete-on-close": DeleteOnClose(),
    "delete-on-no-links": DeleteOnNoLinks(),
    "delete-on-no-messages": DeleteOnNoMessages(),
    "delete-on-no-links-or-messages": DeleteOnNoLinksOrMessages(),
    "sasl-mechanisms": SaslMechanisms(sasl_server_mechanisms=[Symbol("SCRAM-SHA-256"), Symbol("PLAIN")]),
    "sasl-init": SaslInit(
        mechanism=Symbol("PLAIN"), initial_response=b"\0user\0password", hostname="localhost"
    ),
    "sasl-challenge": SaslChallenge(challenge=b"r=1"),
    "sasl-response": SaslResponse(response=b""),
    "sasl-outcome": SaslOutcome(code=0, additional_data=b"v=1"),
    "header": sections.Header(durable=True, ttl=60_000, delivery_count=1),
    "properties": sections.Properties(
        message_id="id", to="q", content_type=Symbol("text/plain"), creation_time=1_700_000_000_000
    ),
}


def golden() -> dict[str, bytes]:
    lines = [line for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]
    return {name: bytes.fromhex(octets) for name, octets in (re.split(": +", line) for line in lines)}


def test_golden_octets_cover_every_composite() -> None:
    assert set(golden()) == set(CASES)
    assert {type(case) for case in CASES.values()} == set(SHAPE_OF)


@pytest.mark.parametrize("name", CASES)
def test_golden_octets(name: str) -> None:
    octets = golden()[name]
    assert encode_performative(CASES[name]).hex() == octets.hex()
    if "section" not in SHAPE_OF[type(CASES[name])].provides:
        assert whole(octets) == filled(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_proton_reads_the_golden_octets(name: str) -> None:
    octets = golden()[name]
    data = proton.Data()
    assert data.decode(octets) == len(octets)
    data.rewind()
    assert data.next() == proton.Data.DESCRIBED
    data.enter()
    data.next()
    assert data.get_ulong() == SHAPE_OF[type(CASES[name])].code
    assert data.next() == proton.Data.LIST
    assert data.get_list() == len(decode(octets, 0, len(octets))[0].value)


def test_all_performatives_are_public() -> None:
    for shape in top_shapes:
        assert getattr(performatives, shape.cls.__name__) is shape.cls
