"""The type codec: every type there and back, every cut, garbage, hostile sizes, qpid-proton as a witness."""

import contextlib
import uuid
from functools import partial
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp import decoder
from lightrail.amqp.decoder import decode, skip
from lightrail.amqp.encoder import encode
from lightrail.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from lightrail.model import limits
from tests.support import work
from tests.support.amqp.proton_values import plain, to_proton
from tests.support.amqp.strategies import BY_TYPE, keys, same, scalar_arrays, scalars, values

SOME_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

# The smallest encoding of each, written by hand from the tables of types 1.6.
SMALLEST: list[tuple[Any, str]] = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(0), "5000"),
    (UByte(255), "50ff"),
    (UShort(258), "600102"),
    (UInt(0), "43"),
    (UInt(255), "52ff"),
    (UInt(256), "7000000100"),
    (UInt(2**32 - 1), "70ffffffff"),
    (ULong(0), "44"),
    (ULong(16), "5310"),
    (ULong(2**64 - 1), "80ffffffffffffffff"),
    (Byte(-1), "51ff"),
    (Short(-2), "61fffe"),
    (Int(-128), "5480"),
    (Int(128), "7100000080"),
    (Long(-1), "55ff"),
    (Long(-129), "81ffffffffffffff7f"),
    (Float(1.5), "723fc00000"),
    (1.5, "823ff8000000000000"),
    (Decimal32(b"\1\2\3\4"), "7401020304"),
    (Decimal64(b"\1\2\3\4\5\6\7\x08"), "840102030405060708"),
    (Decimal128(bytes(range(16))), "94000102030405060708090a0b0c0d0e0f"),
    (Char("é"), "73000000e9"),
    (Char("\U0001f600"), "730001f600"),
    (Timestamp(1311704463521), "830000013167adb8a1"),
    (Timestamp(-1), "83ffffffffffffffff"),
    (SOME_UUID, "9800112233445566778899aabbccddeeff"),
    (b"", "a000"),
    (b"ab", "a0026162"),
    (b"x" * 256, "b000000100" + "78" * 256),
    ("é", "a102c3a9"),
    ("x" * 255, "a1ff" + "78" * 255),
    ("x" * 256, "b100000100" + "78" * 256),
    (Symbol("amqp"), "a304616d7170"),
    (Symbol("x" * 256), "b300000100" + "78" * 256),
    ([], "45"),
    ([None], "c0020140"),
    ([b"x" * 250], "c0fd01a0fa" + "78" * 250),
    ([b"x" * 252], "c0ff01a0fc" + "78" * 252),
    ([b"x" * 253], "d000000103" + "00000001" + "a0fd" + "78" * 253),
    ([None] * 254, "c0fffe" + "40" * 254),
    ([None] * 255, "d000000103" + "000000ff" + "40" * 255),
    ({}, "c10100"),
    ({Symbol("a"): True}, "c10502a3016141"),
    (Array([], 0x40), "e0020040"),
    (Array([UInt(1), UInt(2)], 0x70), "e00a02700000000100000002"),
    (Array([Symbol("a"), Symbol("b")], 0xA3), "e00602a301610162"),
    (Array([True, True], 0x41), "e0020241"),
    (Array(["a"], 0xA1, Symbol("d")), "e0080100a30164a10161"),
    (Array([[UInt(1)], []], 0xC0), "e00802c00301520101" + "00"),
    (Described(ULong(0x24), []), "00532445"),
    (Described(Symbol("x"), Described(Symbol("y"), None)), "00a3017800a3017940"),
]

# Encodings that are valid and not the smallest.
LARGER: list[tuple[Any, str]] = [
    (True, "5601"),
    (False, "5600"),
    (UInt(0), "5200"),
    (UInt(5), "7000000005"),
    (ULong(0), "5300"),
    (ULong(5), "800000000000000005"),
    (Int(5), "7100000005"),
    (Long(5), "810000000000000005"),
    (b"a", "b00000000161"),
    ("a", "b10000000161"),
    (Symbol("a"), "b30000000161"),
    ([], "c00100"),
    ([], "d00000000400000000"),
    ([True], "d0000000050000000141"),
    ({}, "d10000000400000000"),
    (Array([UInt(1)], 0x52), "f000000006000000015201"),
]

REFUSED: list[tuple[str, str]] = [
    ("unknown constructor", "3f"),
    ("unknown constructor of a known width", "57"),
    ("extension constructor", "4f00"),
    ("boolean of 2", "5602"),
    ("char above Unicode", "7300110000"),
    ("char that is a surrogate", "730000d800"),
    ("string that is no UTF-8", "a101ff"),
    ("string with an encoded surrogate", "a103eda080"),
    ("symbol that is no ASCII", "a301e9"),
    ("binary longer than its buffer", "a00561"),
    ("binary of 4 GiB", "b0ffffffff61"),
    ("list of a size below its count field", "c00000"),
    ("list32 of a size below its count field", "d00000000300000000"),
    ("list with more items than octets", "c0020240"),
    ("list32 with 4 G items", "d000000004ffffffff"),
    ("list with octets left over", "c003014040"),
    ("list whose item runs over its end", "c00301a00161"),
    ("map with an odd count", "c1020140"),
    ("map with the same key twice", "c10702a301614140" + "40"),
    ("map with equal keys of two types", "c10904a3016141a1016141"),
    ("map with a list as a key", "c103024541"),
    ("map with an array as a key", "c10602e002004041"),
    ("map with a described list as a key", "c1060200532445" + "40"),
    ("array without constructor", "e00100"),
    ("array of 4 G nulls", "f000000005ffffffff40"),
    ("array of more nulls than the bound", "f0000000050000010040"),
    ("array with more items than octets", "e00302700000"),
    ("array of an unknown constructor", "e002003f"),
    ("array with octets left over", "e003014100"),
    ("array of doubly described items", "e0080000a3016400a30164"),
    ("array whose descriptor is cut", "e0020100"),
    ("described without value", "0044"),
]


def whole(hexadecimal: str) -> Any:
    octets = bytes.fromhex(hexadecimal)
    value, after = decode(octets, 0, len(octets))
    assert after == len(octets)
    return value


@pytest.mark.parametrize(("value", "hexadecimal"), SMALLEST, ids=lambda item: repr(item)[:24])
def test_smallest_encoding(value: Any, hexadecimal: str) -> None:
    assert encode(value).hex() == hexadecimal
    assert same(whole(hexadecimal), value)


@pytest.mark.parametrize(("value", "hexadecimal"), LARGER)
def test_larger_encodings_are_read(value: Any, hexadecimal: str) -> None:
    assert same(whole(hexadecimal), value)


@pytest.mark.parametrize(("why", "hexadecimal"), REFUSED)
def test_refused(why: str, hexadecimal: str) -> None:
    octets = bytes.fromhex(hexadecimal)
    with pytest.raises(DecodeError, match=r"expected .*, found .*, at offset"):
        decode(octets, 0, len(octets))


def test_every_constructor_has_a_case() -> None:
    seen = {bytes.fromhex(encoding)[0] for _, encoding in SMALLEST + LARGER}
    assert seen | {0xC1} >= set(decoder.NAMES)


def test_plain_values_have_a_type() -> None:
    assert encode(5) == encode(Long(5))
    assert encode((1, 2)) == encode([1, 2])
    assert encode(bytearray(b"a")) == encode(memoryview(b"a")) == encode(b"a")
    assert same(decode(encode(5), 0, 99)[0], Long(5))


def test_subclasses_are_encoded_as_their_base() -> None:
    class Name(str):
        pass

    class Count(UInt):
        pass

    assert encode(Name("a")) == encode("a")
    assert encode(Count(7)) == encode(UInt(7))


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UShort(-1),
        UInt(2**32),
        UInt(-1),
        ULong(2**64),
        Byte(128),
        Int(2**31),
        2**63,
        Float(1e300),
        Symbol("é"),
        "\ud800",
        Char("ab"),
        Decimal32(b"123"),
        object(),
        {1, 2},
        [object()],
        Array([1], 0x3F),
        Array([256], 0x52),
        Array([False], 0x41),
        Array(["x" * 256], 0xA1),
        Array([["x" * 256]], 0xC0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_encoding_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError):
        encode(value)


@given(values)
def test_round_trip(value: Any) -> None:
    octets = encode(value)
    decoded, after = decode(octets, 0, len(octets))
    assert after == len(octets) == skip(octets, 0, len(octets))
    assert same(decoded, value)
    assert encode(decoded) == octets


@given(values, st.binary(max_size=5), st.binary(max_size=5))
def test_position_and_end_are_respected(value: Any, before: bytes, behind: bytes) -> None:
    octets = encode(value)
    inside = before + octets + behind
    end = len(before) + len(octets)
    for buffer in (inside, bytearray(inside), memoryview(inside)):
        decoded, after = decode(buffer, len(before), end)
        assert after == end
        assert same(decoded, value)


@given(values)
def test_every_cut_is_a_decode_error(value: Any) -> None:
    octets = encode(value)
    for cut in range(len(octets)):
        with pytest.raises(DecodeError):
            decode(octets[:cut], 0, len(octets))
        with pytest.raises(DecodeError):
            decode(octets, 0, cut)
        with pytest.raises(DecodeError):
            skip(octets, 0, cut)


def decode_or_error(octets: bytes) -> None:
    try:
        value, after = decode(octets, 0, len(octets))
    except DecodeError:
        pass
    else:
        assert 0 < after <= len(octets)
        assert skip(octets, 0, len(octets)) == after
        encode(value)
    with contextlib.suppress(DecodeError):
        assert skip(octets, 0, len(octets)) <= len(octets)


@given(st.binary(max_size=200))
def test_garbage(octets: bytes) -> None:
    decode_or_error(octets)


@given(st.lists(st.sampled_from(sorted(decoder.NAMES)) | st.integers(0, 8), max_size=60).map(bytes))
def test_garbage_of_valid_constructors(octets: bytes) -> None:
    decode_or_error(octets)


@given(values, st.data())
def test_one_wrong_octet(value: Any, data: st.DataObject) -> None:
    octets = bytearray(encode(value))
    octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    decode_or_error(bytes(octets))


def nested(levels: int) -> bytes:
    value = b"\x40"
    for _ in range(levels):
        value = b"\xd0" + (len(value) + 4).to_bytes(4) + b"\0\0\0\1" + value
    return value


def test_nesting_has_a_bound() -> None:
    deepest = nested(limits.NESTING_DEPTH_MAX)
    assert decode(deepest, 0, len(deepest))[1] == len(deepest)
    for octets in (
        nested(limits.NESTING_DEPTH_MAX + 1),
        nested(5_000),
        b"\x00" * 65_536,
        b"\x00\xa3\x01d" * 16_384,
        b"\xe0\xff\x01" * 20_000,
        b"\xc1\xff\x02\x40" * 16_000,
    ):
        with pytest.raises(DecodeError):
            decode(octets, 0, len(octets))
    with pytest.raises(DecodeError):
        skip(b"\x00" * 65_536, 0, 65_536)


def test_a_frame_of_hostile_octets_takes_bounded_time_and_memory() -> None:
    """The most items that 64 KiB can hold: lists of empty arrays of nulls, empty lists, one-octet values."""
    array = encode(Array([None] * decoder.ZERO_WIDTH_COUNT_MAX, 0x40))
    items = 65_000 // len(array)
    data = array * items
    bombs = [
        b"\xd0" + (len(data) + 4).to_bytes(4) + items.to_bytes(4) + data,
        encode([[]] * 65_000),
        encode([True] * 65_000),
        encode(Array([True] * 65_000, 0x56)),
        encode({ULong(number): None for number in range(8_000)}),
    ]
    for bomb in bombs:
        # An array of four octets has 255 items without any: the most work per octet.
        most = 2 * decoder.ZERO_WIDTH_COUNT_MAX * len(bomb)
        assert work.lines(partial(decode, bomb, 0, len(bomb))) < most


def test_symbols_are_cached_within_bounds() -> None:
    for number in range(limits.SYMBOL_CACHE_MAX + 10):
        octets = encode(Symbol(f"bounded-{number}"))
        assert same(decode(octets, 0, len(octets))[0], Symbol(f"bounded-{number}"))
    octets = encode(Symbol("long" * 30))
    decode(octets, 0, len(octets))
    assert len(decoder._symbols) <= limits.SYMBOL_CACHE_MAX
    assert max(map(len, decoder._symbols)) <= decoder.SYMBOL_CACHED_LENGTH_MAX


def test_wrappers_serve_as_plain_values() -> None:
    assert Symbol("a") == "a"
    assert dict[str, int]({Symbol("a"): 1})["a"] == 1
    assert UInt(5) == 5
    assert f"{UInt(5)} {Symbol('a')}" == "5 a"
    assert Array([1], 0x55) == [1]
    assert repr(Array([1], 0x55, Symbol("d"))) == "Array([1], code=0x55, descriptor='d')"


# --- qpid-proton as a witness -------------------------------------------------------------------------

# No described value inside another: proton's decoder counts the items of the list around those wrongly.
proton_values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(
            Described,
            BY_TYPE["ulong"] | BY_TYPE["symbol"],
            inner.filter(lambda value: not isinstance(value, Described)),
        ),
        scalar_arrays(),
    ),
    max_leaves=8,
)


@given(proton_values)
def test_proton_and_we_read_each_other(value: Any) -> None:
    theirs = proton.Data()
    theirs.put_object(to_proton(value))
    encoded = theirs.encode()
    decoded, after = decode(encoded, 0, len(encoded))
    assert after == len(encoded)
    assert plain(decoded) == plain(value)

    ours = encode(value)
    read = proton.Data()
    assert read.decode(ours) == len(ours)
    assert read.encode() == encoded
