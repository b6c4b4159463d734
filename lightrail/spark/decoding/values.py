"""Values: many encoded values of one buffer as a column of texts, with the results of sections.py.

Strings are not handled one by one: an Arrow array whose offsets are the start and end of each value in turn
has the values at its even indexes and the bytes between them at the odd ones; taking the even ones copies the
values.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightrail.amqp.decoder import NAMES, READERS
from lightrail.filters.sections import MALFORMED, WIDTHS
from lightrail.spark.decoding.sections import TIME_MAX_MS, TIME_MIN_MS, text_of
from lightrail.spark.decoding.windows import Numbers

PADDING: Final = bytes(32)
"""Bytes behind the last message of a blob, so that numbers can be read at any offset before."""

NULL: Final = 0x40

_KIND: Final = np.zeros(256, np.int8)
"""Conversion of a value to text, by its constructor."""
_NONE, _TEXT, _NUMBER, _BIG, _TIME, _UUID, _OTHER = range(7)
_KIND[:] = _OTHER
_KIND[NULL] = _NONE
_KIND[[0xA1, 0xB1, 0xA3, 0xB3]] = _TEXT
_KIND[[0x43, 0x44, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x60, 0x61, 0x70, 0x71, 0x81]] = _NUMBER
_KIND[0x80] = _BIG
_KIND[0x83] = _TIME
_KIND[0x98] = _UUID

FIXED: Final = np.array([max(0, width - 1) for width in WIDTHS], np.int64)
"""Number of octets after the constructor of a value of fixed width."""
SIZED: Final = np.array([{-1: 1, -2: 4}.get(width, 0) for width in WIDTHS], np.int64)
"""Number of octets of the size field of other values."""
KNOWN: Final = np.array([code in NAMES and code != 0 for code in range(256)])
"""Constructors of values without a descriptor."""

_HEX: Final = np.frombuffer(b"".join(b"%02x" % octet for octet in range(256)), np.uint8).reshape(256, 2)
_UUID_DIGITS: Final = np.array([at for at in range(36) if at not in (8, 13, 18, 23)])


class Blob:
    """Messages one after another with PADDING behind them."""

    __slots__ = ("buffer", "data", "i64", "octets", "u16", "u32")

    def __init__(self, data: bytes | pa.Buffer) -> None:
        self.data = memoryview(data)
        self.buffer = pa.py_buffer(data)
        self.octets = np.frombuffer(data, np.uint8)
        self.u16 = self._overlapping(">u2")
        self.u32 = self._overlapping(">u4")
        self.i64 = self._overlapping(">i8")

    def _overlapping(self, kind: str) -> Numbers:
        width = np.dtype(kind).itemsize
        return np.ndarray((len(self.data) - width + 1,), kind, self.data, strides=(1,))


@dataclass(slots=True)
class Values:
    """Columns: the constructor, the offset of the octets after it and its size field, and their number.

    Offsets rise from value to value; those of null values have no meaning.
    """

    codes: Numbers
    at: Numbers
    sizes: Numbers

    def take(self, which: Numbers) -> "Values":
        """The values of a mask or of indexes."""
        return Values(self.codes[which], self.at[which], self.sizes[which])

    def put(self, which: Numbers, codes: Numbers, at: Numbers, sizes: Numbers) -> None:
        """Sets the values at indexes."""
        self.codes[which], self.at[which], self.sizes[which] = codes, at, sizes

    def __len__(self) -> int:
        return len(self.codes)


def step(blob: Blob, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """For values at offsets: the constructor, and begin and end of the octets after it and its size field.

    The end is arbitrary for malformed values, and has no meaning for described ones.
    """
    octets = blob.octets
    codes = octets[at]
    sized = SIZED[codes]
    begin = at + 1 + sized
    sizes = FIXED[codes]
    one = np.flatnonzero(sized == 1)
    if len(one) == len(at):
        sizes = octets[at + 1]
    elif len(one):
        sizes[one] = octets[at[one] + 1]
    four = np.flatnonzero(sized == 4)
    if len(four):
        sizes[four] = blob.u32[at[four] + 1]
    return codes, begin, begin + sizes


def slices(buffer: pa.Buffer, at: Numbers, sizes: Numbers, indexes: pa.Array | None = None) -> pa.Array:
    """The octets at rising offsets, as a binary array: all in order, or those of `indexes`."""
    count = len(at)
    if not count:
        return pa.array([], pa.binary()) if indexes is None else pa.nulls(len(indexes), pa.binary())
    edges = np.empty(2 * count, np.int32)
    edges[0::2] = at
    edges[1::2] = at + sizes
    alternating = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), buffer])
    if indexes is None:
        indexes = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
    else:
        indexes = pc.multiply(indexes, 2)
    return alternating.take(indexes)


def texts(blob: Blob, values: Values) -> tuple[pa.Array, Numbers | None]:
    """A text for each value, and a mask of the malformed ones, None if there are none."""
    kinds = _KIND[values.codes]
    strings = kinds == _TEXT
    if strings.all():
        return _strings(blob, values, None)
    if ((kinds == _NONE) | strings).all():
        if not strings.any():
            return pa.nulls(len(values), pa.string()), None
        ranks = np.cumsum(strings, dtype=np.int32) - 1
        found, bad = _strings(blob, values.take(strings), pa.array(ranks, mask=~strings))
        return found, _put(bad, strings)
    return _mixed(blob, values, kinds)


def _put(bad: Numbers | None, which: Numbers) -> Numbers | None:
    """Converts a mask over some values to one over all."""
    if bad is None:
        return None
    found = np.zeros(len(which), bool)
    found[np.flatnonzero(which)[bad]] = True
    return found


def _mixed(blob: Blob, values: Values, kinds: Numbers) -> tuple[pa.Array, Numbers | None]:
    """Converts each kind separately, then restores the order."""
    made: list[pa.Array] = []
    index = np.zeros(len(values), np.int64)
    count = 0
    wrong: Numbers | None = None
    for kind, build in _BUILD.items():
        which = kinds == kind
        if which.any():
            array, bad = build(blob, values.take(which))
            made.append(array)
            index[which] = np.arange(count, count + len(array))
            count += len(array)
            bad = _put(bad, which)
            wrong = bad if wrong is None else wrong if bad is None else wrong | bad
    if not made:
        return pa.nulls(len(values), pa.string()), None
    none = kinds == _NONE
    indexes = pa.array(index, mask=none) if none.any() else pa.array(index)
    joined = made[0] if len(made) == 1 else pa.concat_arrays(made)
    return joined.take(indexes), wrong


def _strings(blob: Blob, values: Values, indexes: pa.Array | None) -> tuple[pa.Array, Numbers | None]:
    """Strings in UTF-8, and symbols in ASCII."""
    octets = slices(blob.buffer, values.at, values.sizes, indexes)
    try:
        found = octets.cast(pa.string())
    except pa.ArrowInvalid:
        found = None
    symbols = (values.codes == 0xA3) | (values.codes == 0xB3)
    if found is not None and not symbols.any():
        return found, None
    if found is not None and pc.all(pc.string_is_ascii(found)).as_py() is not False:
        return found, None
    data = blob.data
    bad = np.zeros(len(values), bool)
    for index in range(len(values)):
        start = int(values.at[index])
        text = bytes(data[start : start + int(values.sizes[index])])
        try:
            text.decode("ascii" if symbols[index] else "utf-8")
        except UnicodeDecodeError:
            bad[index] = True
    if found is None:
        found = pa.nulls(len(octets), pa.string())
    return found, bad if bad.any() else None


def numbers(blob: Blob, codes: Numbers, at: Numbers) -> Numbers:
    """Integers of up to 8 octets as signed integers, except a ulong of eight octets."""
    octets = blob.octets[at]
    found = octets.astype(np.int64)
    low = codes & 0xF0
    found[low == 0x40] = 0
    signed = (codes == 0x51) | (codes == 0x54) | (codes == 0x55)
    found[signed] = octets[signed].astype(np.int8)
    for code, column, kind in (
        (0x60, blob.u16, np.uint16),
        (0x61, blob.u16, np.int16),
        (0x70, blob.u32, np.uint32),
        (0x71, blob.u32, np.int32),
    ):
        which = codes == code
        if which.any():
            found[which] = column[at[which]].astype(column.dtype.newbyteorder("=")).view(kind)
    which = codes == 0x81
    if which.any():
        found[which] = blob.i64[at[which]]
    return found


def _numbers(blob: Blob, values: Values) -> tuple[pa.Array, Numbers | None]:
    return pa.array(numbers(blob, values.codes, values.at)).cast(pa.string()), None


def _big(blob: Blob, values: Values) -> tuple[pa.Array, Numbers | None]:
    return pa.array(blob.i64[values.at].astype(np.int64).view(np.uint64)).cast(pa.string()), None


def _times(blob: Blob, values: Values) -> tuple[pa.Array, Numbers | None]:
    return time_texts(blob.i64[values.at].astype(np.int64)), None


def time_texts(milliseconds: Numbers) -> pa.Array:
    """See texts.time_text."""
    usual = (milliseconds >= TIME_MIN_MS) & (milliseconds <= TIME_MAX_MS)
    count = len(milliseconds)
    plain = pa.array(np.where(usual, milliseconds, 0), pa.timestamp("ms")).cast(pa.string())
    letters = np.empty((count, 24), np.uint8)
    letters[:, :23] = np.frombuffer(plain.buffers()[2], np.uint8, 23 * count).reshape(count, 23)
    letters[:, 10] = ord("T")
    letters[:, 23] = ord("Z")
    found = _fixed(letters)
    if usual.all():
        return found
    return pc.if_else(pa.array(usual), found, pa.array(milliseconds).cast(pa.string()))


def _fixed(letters: Numbers) -> pa.Array:
    """Rows of ASCII letters as strings."""
    count, width = letters.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters))]
    )


def _uuids(blob: Blob, values: Values) -> tuple[pa.Array, Numbers | None]:
    octets = blob.octets[values.at[:, None] + np.arange(16)]
    letters = np.full((len(values), 36), ord("-"), np.uint8)
    letters[:, _UUID_DIGITS] = _HEX[octets].reshape(len(values), 32)
    return _fixed(letters), None


def _others(blob: Blob, values: Values) -> tuple[pa.Array, Numbers | None]:
    """Converts values one by one, by the complete decoder."""
    found: list[str | None] = []
    bad: list[int] = []
    data = blob.data
    heads = values.at - SIZED[values.codes]
    for index, (code, head, stop) in enumerate(
        zip(values.codes.tolist(), heads.tolist(), (values.at + values.sizes).tolist(), strict=True)
    ):
        text = None
        try:
            value, after = READERS[code](data, head, stop, 1)
            if after == stop:
                text = text_of(value)
            else:
                bad.append(index)
        except MALFORMED:
            bad.append(index)
        found.append(text)
    wrong = None
    if bad:
        wrong = np.zeros(len(values), bool)
        wrong[bad] = True
    return pa.array(found, pa.string()), wrong


_BUILD: Final = {
    _TEXT: lambda blob, values: _strings(blob, values, None),
    _NUMBER: _numbers,
    _BIG: _big,
    _TIME: _times,
    _UUID: _uuids,
    _OTHER: _others,
}
