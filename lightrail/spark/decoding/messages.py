"""Messages as columns: each step of decoding is done for all messages of a batch together.

Theory. A message is a chain: the constructor and size of a value give the offset of the next one. Following
it in Python costs microseconds per message; here a step is a few operations on whole columns of positions
(one item per message), so that a field costs some dozens of nanoseconds. A message with an unexpected
encoding, whether uncommon (a symbolic descriptor, a body of several sections) or malformed, is left to
sections.py, which defines the meaning of columns. Tests compare both.

Measured by tests/benchmarks/arrow_bench.py.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lightrail.spark.columns import SCHEMA
from lightrail.spark.decoding.sections import OF_PROPERTIES, PROPERTY_NAMES, read_columns
from lightrail.spark.decoding.values import KNOWN, NULL, Blob, Values, slices, step, texts
from lightrail.spark.decoding.windows import Numbers

SPARK_MAP_PAIRS: Final[int] = 64
"""Entries of maps that are read in all messages of a batch at once; larger maps are read one by one."""

_ANNOTATIONS, _PROPERTIES, _APPLICATION, _DATA, _SEQUENCE, _VALUE = range(0x72, 0x78)
_SECTIONS: Final = 9
_RANK: Final = np.array([0, 1, 2, 3, 4, 5, 5, 5, 6])
"""Order of the sections 0x70 to 0x78; here none may occur twice (messaging 3.2)."""


def _codes(*codes: int) -> Numbers:
    found = np.zeros(256, bool)
    found[list(codes)] = True
    return found


_LIST: Final = _codes(0x45, 0xC0, 0xD0)
_MAP: Final = _codes(0xC1, 0xD1)
_ALLOWED: Final = np.stack(
    [_LIST, _MAP, _MAP, _LIST, _MAP, _codes(0xA0, 0xB0), _codes(0xC0, 0xD0, 0x45), KNOWN, _MAP]
)
"""Constructors of the values of sections."""

_STRING: Final = _codes(NULL, 0xA1, 0xB1)
_SYMBOL: Final = _codes(NULL, 0xA3, 0xB3)
_BINARY: Final = _codes(NULL, 0xA0, 0xB0)
_TIME: Final = _codes(NULL, 0x83)
_ID: Final = _codes(NULL, 0x44, 0x53, 0x80, 0x98, 0xA0, 0xB0, 0xA1, 0xB1)
_UINT: Final = _codes(NULL, 0x43, 0x52, 0x70)
_FIELDS: Final = (
    *(_ID, _BINARY, _STRING, _STRING, _STRING, _ID, _SYMBOL),
    *(_SYMBOL, _TIME, _TIME, _STRING, _UINT, _STRING),
)
"""Constructors of the fields of the properties section that are read here."""
_KEYS: Final = _codes(0xA1, 0xB1, 0xA3, 0xB3)
_NAMES: Final = pa.array(PROPERTY_NAMES, pa.string())
_PLAIN_BODY: Final = _codes(NULL, 0xA0, 0xB0, 0xA1, 0xB1, 0xA3, 0xB3)


def columns(
    blob: bytes | pa.Buffer, starts: Numbers, stops: Numbers, foreign: Numbers, names: Collection[str]
) -> tuple[dict[str, pa.Array], int]:
    """The named columns, and the number of messages that could not be decoded, whole or in part.

    Args:
        blob: the messages one after another, with values.PADDING behind them.
        foreign: mask of messages with a message format other than 0, which are null.
    """
    fast, found = _read(Blob(blob), starts, stops, ~foreign, names)
    slow = np.flatnonzero(~fast & ~foreign)
    undecodable = int(foreign.sum())
    if not len(slow) and not undecodable:
        return found, 0
    odd: dict[str, list[Any]] = {name: [] for name in names}
    view = memoryview(blob)
    for start, stop in zip(starts[slow].tolist(), stops[slow].tolist(), strict=True):
        values, whole = read_columns(bytes(view[start:stop]), names)
        undecodable += not whole
        for name in names:
            odd[name].append(values[name])
    quick = int(fast.sum())
    index = np.zeros(len(starts), np.int64)
    index[fast] = np.arange(quick)
    index[slow] = np.arange(quick, quick + len(slow))
    indexes = pa.array(index, mask=foreign)
    joined = {}
    for name in names:
        kind = SCHEMA.field(name).type
        some = _pairs(odd[name]) if pa.types.is_map(kind) else odd[name]
        joined[name] = pa.concat_arrays([found[name], pa.array(some, kind)]).take(indexes)
    return joined, undecodable


def _pairs(maps: list[dict[str, Any] | None]) -> list[list[tuple[str, Any]] | None]:
    return [None if items is None else list(items.items()) for items in maps]


def _read(
    blob: Blob, starts: Numbers, stops: Numbers, among: Numbers, names: Collection[str]
) -> tuple[Numbers, dict[str, pa.Array]]:
    """A mask of the messages that were read here, and their columns."""
    fast = among.copy()
    values_at, values_end = _find_sections(blob, starts, stops, fast)
    while True:
        chosen = np.flatnonzero(fast)
        reading = _Reading(blob, values_at[:, chosen], values_end[:, chosen])
        found: dict[str, pa.Array] = {}
        for group, read in _READ:
            wanted = [name for name in group if name in names]
            if wanted:
                found |= read(reading, wanted)
        if not reading.odd.any():
            return fast, found
        fast[chosen[reading.odd]] = False


def _find_sections(blob: Blob, starts: Numbers, stops: Numbers, fast: Numbers) -> tuple[Numbers, Numbers]:
    """Begin and end of the value of each section (sections x messages), 0 if it is missing.

    Removes messages that do not have the common form from `fast`.
    """
    octets = blob.octets
    values_at = np.zeros((_SECTIONS, len(starts)), np.int64)
    values_end = np.zeros((_SECTIONS, len(starts)), np.int64)
    active = np.flatnonzero(fast)
    at, end = starts[active].astype(np.int64), stops[active].astype(np.int64)
    rank = np.full(len(active), -1)
    while True:
        inside = at < end
        if not inside.all():
            active, at, end, rank = active[inside], at[inside], end[inside], rank[inside]
        if not len(active):
            return values_at, values_end
        kind = octets[at + 2].astype(np.int64) - 0x70
        known = (octets[at] == 0) & (octets[at + 1] == 0x53) & (kind >= 0) & (kind < _SECTIONS)
        kind[~known] = 0
        value_at = at + 3
        codes, _, after = step(blob, value_at)
        known &= _ALLOWED[kind, codes] & (value_at < end) & (after <= end) & (_RANK[kind] > rank)
        if not known.all():
            fast[active[~known]] = False
            active, end, kind = active[known], end[known], kind[known]
            value_at, after = value_at[known], after[known]
        values_at[kind, active] = value_at
        values_end[kind, active] = after
        rank = _RANK[kind]
        at = after


class _Reading:
    """Columns of messages whose sections were found; marks messages as odd that need sections.py."""

    def __init__(self, blob: Blob, values_at: Numbers, values_end: Numbers) -> None:
        self._blob = blob
        self._at = values_at
        self._end = values_end
        self._count = values_at.shape[1]
        self.odd = np.zeros(self._count, bool)

    def _open(self, section: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Messages that have this section, a list or map; number of items, begin and end of each."""
        octets, u32 = self._blob.octets, self._blob.u32
        which = np.flatnonzero(self._at[section - 0x70])
        at, end = self._at[section - 0x70, which], self._end[section - 0x70, which]
        codes = octets[at]
        counts = octets[at + 2].astype(np.int64)
        begin = at + 3
        wide = np.flatnonzero(codes & 0xF0 == 0xD0)
        if len(wide):
            counts[wide] = u32[at[wide] + 5]
            begin[wide] = at[wide] + 9
        empty = codes == 0x45
        if empty.any():
            counts[empty] = 0
            begin[empty] = end[empty]
        right = begin <= end
        if right.all():
            return which, counts, begin, end
        self.odd[which[~right]] = True
        return which[right], counts[right], begin[right], end[right]

    def _texts(self, values: Values, messages: Numbers) -> pa.Array:
        """Texts of values; marks messages with malformed values as odd."""
        found, bad = texts(self._blob, values)
        if bad is not None:
            self.odd[messages[bad]] = True
        return found

    # --- the properties --------------------------------------------------------------------------------

    def read_properties(self, names: Collection[str]) -> dict[str, pa.Array]:
        """Columns of the properties section; none if there are odd messages."""
        width = len(PROPERTY_NAMES)
        codes = np.full((width, self._count), NULL, np.uint8)
        begins = np.zeros((width, self._count), np.int64)
        sizes = np.zeros((width, self._count), np.int64)
        which, counts, at, ends = self._open(_PROPERTIES)
        for index in range(width + 1):
            done = counts == index
            if done.any():
                self.odd[which[done & (at != ends)]] = True
                which, counts, at, ends = which[~done], counts[~done], at[~done], ends[~done]
            if not len(which) or index == width:
                break
            code, begin, after = step(self._blob, at)
            right = _FIELDS[index][code] & (at < ends) & (after <= ends)
            if not right.all():
                self.odd[which[~right]] = True
                which, counts, ends = which[right], counts[right], ends[right]
                code, begin, after = code[right], begin[right], after[right]
            codes[index, which] = code
            begins[index, which] = begin
            sizes[index, which] = after - begin
            at = after
        self.odd[which] = True  # More fields than the section defines.
        if self.odd.any():
            return {}
        every = np.arange(self._count)
        found: dict[str, pa.Array] = {}
        for name in names:
            if name == "properties":
                found[name] = self._property_map(codes, begins, sizes)
            else:
                index = OF_PROPERTIES[name]
                found[name] = self._texts(Values(codes[index], begins[index], sizes[index]), every)
        return found

    def _property_map(self, codes: Numbers, begins: Numbers, sizes: Numbers) -> pa.Array:
        there = np.ascontiguousarray((codes != NULL).T)
        message, field = np.nonzero(there)
        flat = field * self._count + message
        items = self._texts(Values(codes.ravel()[flat], begins.ravel()[flat], sizes.ravel()[flat]), message)
        return _maps(there.sum(axis=1), _NAMES.take(pa.array(field)), items)

    # --- maps ------------------------------------------------------------------------------------------

    def read_application_properties(self, names: Collection[str]) -> dict[str, pa.Array]:
        """The column of that name."""
        return self._map(_APPLICATION, "application_properties")

    def read_annotations(self, names: Collection[str]) -> dict[str, pa.Array]:
        """The column of that name."""
        return self._map(_ANNOTATIONS, "message_annotations")

    def _map(self, section: int, name: str) -> dict[str, pa.Array]:
        """The column of a section that is a map; none if there are odd messages."""
        which, counts, at, ends = self._open(section)
        usual = (counts & 1 == 0) & (counts <= 2 * SPARK_MAP_PAIRS)
        if not usual.all():
            self.odd[which[~usual]] = True
            which, counts, at, ends = which[usual], counts[usual], at[usual], ends[usual]
        pairs = np.zeros(self._count, np.int64)
        pairs[which] = counts >> 1
        first = np.cumsum(pairs) - pairs
        total = int(pairs.sum())
        keys, items = _empty(total), _empty(total)
        number = 0
        while True:
            done = pairs[which] == number
            if done.any():
                self.odd[which[done & (at != ends)]] = True
                which, at, ends = which[~done], at[~done], ends[~done]
            if not len(which):
                break
            code, begin, after = step(self._blob, at)
            right = _KEYS[code] & (at < ends) & (after < ends)
            if right.all():
                slot = first[which] + number
                keys.put(slot, code, begin, after - begin)
                code, begin, at = step(self._blob, after)
                right = KNOWN[code] & (at <= ends)
                items.put(slot, code, begin, at - begin)
                number += 1
            if not right.all():
                self.odd[which[~right]] = True
                which, at, ends = which[right], at[right], ends[right]
        if self.odd.any():
            return {}
        message = np.repeat(np.arange(self._count), pairs)
        names = self._texts(keys, message)
        if self.odd.any():
            return {}
        self._distinct(names, message)
        return {name: _maps(pairs, names, self._texts(items, message))}

    def _distinct(self, names: pa.Array, message: Numbers) -> None:
        """Marks messages with a map that has a key twice, which is malformed (types 1.6.23)."""
        if len(names):
            encoded = names.dictionary_encode()
            width = len(encoded.dictionary)
            marks = np.sort(message * width + encoded.indices.to_numpy())
            twice = marks[1:][marks[1:] == marks[:-1]]
            self.odd[twice // width] = True

    # --- the body --------------------------------------------------------------------------------------

    def read_body(self, names: Collection[str]) -> dict[str, pa.Array]:
        """The column `body`."""
        self.odd |= self._at[_SEQUENCE - 0x70] != 0
        at = np.where(self._at[_DATA - 0x70] != 0, self._at[_DATA - 0x70], self._at[_VALUE - 0x70])
        which = np.flatnonzero(at)
        code, begin, after = step(self._blob, at[which])
        self.odd[which] |= ~_PLAIN_BODY[code]
        if self.odd.any():
            return {}
        values = Values(code, begin, after - begin)
        strings = _KEYS[code]
        self._texts(values.take(strings), which[strings])
        there = code != NULL
        values, which = values.take(there), which[there]
        if len(which) == self._count:
            return {"body": slices(self._blob.buffer, values.at, values.sizes)}
        index = np.zeros(self._count, np.int32)
        null = np.ones(self._count, bool)
        index[which] = np.arange(len(which))
        null[which] = False
        return {"body": slices(self._blob.buffer, values.at, values.sizes, pa.array(index, mask=null))}


def _empty(count: int) -> Values:
    return Values(np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))


def _maps(counts: Numbers, keys: pa.Array, items: pa.Array) -> pa.Array:
    """A column of maps; `counts` has the number of pairs of each."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)


_READ: Final[
    tuple[tuple[tuple[str, ...], Callable[[_Reading, Collection[str]], dict[str, pa.Array]]], ...]
] = (
    (("body",), _Reading.read_body),
    ((*OF_PROPERTIES, "properties"), _Reading.read_properties),
    (("application_properties",), _Reading.read_application_properties),
    (("message_annotations",), _Reading.read_annotations),
)
"""Readers of the sections. The body is first, because it finds odd messages at the least cost."""
