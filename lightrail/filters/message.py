"""Message view: single fields of an encoded message, read without decoding the rest.

The sections before the body are skipped by their sizes, and only the requested field is decoded. The body is
never read. A malformed field has no value (None) and raises no error: such a message does not match. Fields
before the requested one are skipped unchecked, so a value may be read from a section that a complete decoding
would refuse.

CPU microseconds on one core, for a message with header, nine properties and four application properties
(tests/benchmarks/filters_bench.py): `extract` of the subject 1.3, of the group-id 1.7, of the third
application property 2.5, of an absent one 1.1; decoding either section takes 5. `Matcher.targets` of
a hundred subscriptions that compare one application property takes 2.5, the view included.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from lightrail.amqp.decoder import READERS, Buffer, read_value, skip
from lightrail.amqp.values import truncated, unexpected
from lightrail.filters.dead_letters import service_bus_reason
from lightrail.filters.path import (
    APPLICATION_PROPERTIES,
    FOLDED,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SUBJECT,
    Path,
    entry,
)
from lightrail.filters.patterns import split_words
from lightrail.filters.sections import (
    BROKEN,
    FOUR_OCTETS,
    LISTS,
    MALFORMED,
    MAPS,
    ONE_OCTET,
    WIDTHS,
    find_section,
    locate,
    open_items,
    section_end,
)
from lightrail.filters.terms import OPAQUE, key_of, term

FILTER_SECTION_BYTES: Final[int] = 1024 * 1024
"""Largest section of a message that filters read; fields of a larger one count as absent."""
FILTER_MAP_ITEMS: Final[int] = 32 * 1024
"""Most keys and values of a section that filters read, in the same way."""
_OF_DEAD_LETTERS: Final = (b"deadletterreason", b"deadlettererrordescription")
"""Application properties that clients of Azure Service Bus find in a dead letter, in small letters."""
_u32: Final = Struct(">I").unpack_from

# --- fields -------------------------------------------------------------------------------------------


def _list_field(data: Buffer, value_at: int, path: Path) -> Any:
    if data[value_at] not in LISTS:
        raise unexpected("a list", f"{data[value_at]:#04x}", value_at)
    count, position, stop = open_items(data, value_at)
    index = path.index
    if count <= index or stop - position > FILTER_SECTION_BYTES:
        return path.default
    for _ in range(index):
        width = WIDTHS[data[position]]
        if width > 0:
            position += width
        elif width == ONE_OCTET:
            position += 2 + data[position + 1]
        elif width == FOUR_OCTETS:
            position += 5 + _u32(data, position + 1)[0]
        else:
            position = skip(data, position, stop)
    if position >= stop:
        raise truncated(path.text, 1, position, stop)
    value = path.readers[data[position]](data, position + 1, stop, 1)[0]
    return path.default if value is None else value


def _map_entry(data: Buffer, value_at: int, path: Path) -> Any:
    if data[value_at] not in MAPS:
        raise unexpected("a map", f"{data[value_at]:#04x}", value_at)
    count, position, stop = open_items(data, value_at)
    if count > FILTER_MAP_ITEMS or stop - position > FILTER_SECTION_BYTES:
        return None
    wanted = path.key
    length = len(wanted)
    if type(data) is bytes and data.find(wanted, position, stop) < 0:
        # Don't walk for a key whose octets do not occur in the section.
        return None
    for _ in range(count >> 1):
        code = data[position]
        if code == 0xA1 or code == 0xA3:
            key_at = position + 2
            position = key_at + data[position + 1]
            hit = position - key_at == length and data[key_at:position] == wanted
        elif code == 0xB1 or code == 0xB3:
            key_at = position + 5
            position = key_at + _u32(data, position + 1)[0]
            hit = position - key_at == length and data[key_at:position] == wanted
        else:
            position = skip(data, position, stop)
            hit = False
        if position >= stop:
            raise truncated("the value of an entry", 1, position, stop)
        code = data[position]
        width = WIDTHS[code]
        if hit:
            if code == 0xA1:
                after = position + 2 + data[position + 1]
                if after > stop:
                    raise truncated("string", after - stop, position, stop)
                return str(data[position + 2 : after], "utf-8")
            if (code >= 0xC0 or not code) and skip(data, position, stop) - position > _COMPOUND_BYTES:
                return OPAQUE
            return READERS[code](data, position + 1, stop, 1)[0]
        if width > 0:
            position += width
        elif width == ONE_OCTET:
            position += 2 + data[position + 1]
        elif width == FOUR_OCTETS:
            position += 5 + _u32(data, position + 1)[0]
        else:
            position = skip(data, position, stop)
    return None


def _folded_entry(data: Buffer, value_at: int, wanted: bytes) -> int:
    """The offset of the value of the first entry whose key is `wanted` in lower case, which is ASCII; or -1.

    Raises one of MALFORMED.
    """
    if data[value_at] not in MAPS:
        raise unexpected("a map", f"{data[value_at]:#04x}", value_at)
    count, position, stop = open_items(data, value_at)
    if count > FILTER_MAP_ITEMS or stop - position > FILTER_SECTION_BYTES:
        return -1
    length = len(wanted)
    for _ in range(count >> 1):
        code = data[position]
        if code == 0xA1 or code == 0xA3:
            key_at = position + 2
            position = key_at + data[position + 1]
            if position - key_at == length and bytes(data[key_at:position]).lower() == wanted:
                return position
        else:
            key_at = position + 5
            position = skip(data, position, stop)
            if code in (0xB1, 0xB3) and bytes(data[key_at:position]).lower() == wanted:
                return position
        position = skip(data, position, stop)
    return -1


_FIELD_OF: Final[dict[int, Callable[[Buffer, int, Path], Any]]] = {
    HEADER: _list_field,
    MESSAGE_ANNOTATIONS: _map_entry,
    PROPERTIES: _list_field,
    APPLICATION_PROPERTIES: _map_entry,
}


def _map_values(data: Buffer, value_at: int) -> dict[bytes, int]:
    """Offsets of the values of a map by the octets of their keys, as far as the map is well-formed."""
    found: dict[bytes, int] = {}
    try:
        count, position, stop = open_items(data, value_at)
        if count > FILTER_MAP_ITEMS or stop - position > FILTER_SECTION_BYTES:
            return found
        for _ in range(count >> 1):
            code = data[position]
            key_at = position + (2 if code in (0xA1, 0xA3) else 5)
            position = skip(data, position, stop)
            if code in (0xA1, 0xA3, 0xB1, 0xB3):
                found.setdefault(bytes(data[key_at:position]), position)
            position = skip(data, position, stop)
    except MALFORMED:
        pass
    return found


def lowered(key: bytes) -> bytes:
    """The octets of a name in lower case."""
    return (
        key.lower()
        if key.isascii()
        else key.decode(errors="surrogateescape").lower().encode(errors="replace")
    )


def extract(data: Buffer, path: Path) -> Any:
    """The value of one field of an encoded message, None when it is absent or malformed.

    Values have the classes that decoding gives them (a message-id of 1 and one of "1" are different); fields
    of the header have the specification's defaults. Never raises for malformed bytes.
    """
    try:
        value_at = find_section(data, path.section)
        if value_at < 0:
            return path.default
        return _FIELD_OF[path.section](data, value_at, path)
    except MALFORMED:
        return None


_COMPOUND_BYTES: Final = 4_096
"""Largest list, map, array or described value that is decoded: no filter compares their contents."""
_WALKS: Final = 4
"""Number of fields per message that are found by walking; after them maps are indexed."""

# --- the view -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class MessageView:
    """One encoded message; sections are located at the first use, terms are cached.

    `spent` counts the cost of filters that depends on the message, in units of about 0.1 microseconds, as an
    upper estimate. The part that depends on the filter alone is its `weight`.
    """

    data: Buffer
    spent: int = 0
    _sections: dict[int, int] | None = None
    _maps: dict[int, dict[bytes, int]] | None = None
    _terms: dict[str, Any] = field(default_factory=dict)
    _words: list[str] | None = None

    def field(self, path: Path) -> Any:
        """The decoded value of a field; None when it is absent or malformed."""
        sections = self._sections
        if sections is None:
            # An octet counts as a unit: entries of maps have at least three, and are walked at most four
            # times.
            sections, octets = locate(self.data)
            self._sections = sections
            self.spent += octets
        section = path.section
        value_at = sections.get(section, -1)
        if value_at < 0:
            if section == FOLDED:
                return key_of(self.property(path))
            return None if value_at == BROKEN else path.default
        try:
            if len(self._terms) >= _WALKS and self.data[value_at] in MAPS:
                return self._entry(section, value_at, path)
            return _FIELD_OF[section](self.data, value_at, path)
        except MALFORMED:
            return None

    def _entry(self, section: int, value_at: int, path: Path) -> Any:
        """An entry of a map, which is indexed once: for messages of which many fields are read."""
        if self._maps is None:
            self._maps = {}
        values = self._maps.get(section)
        if values is None:
            values = self._maps[section] = _map_values(self.data, value_at)
        at = values.get(path.key)
        return None if at is None else self._value(at, value_at)

    def _value(self, at: int, value_at: int) -> Any:
        """The value at an offset in the map at `value_at`. Raises one of MALFORMED."""
        data, stop = self.data, section_end(self.data, value_at)
        if (data[at] >= 0xC0 or not data[at]) and skip(data, at, stop) - at > _COMPOUND_BYTES:
            return OPAQUE
        return read_value(data, at, stop, 1)[0]

    def property(self, path: Path) -> Any:
        """The decoded application property with the name of a folded path; the first of several.

        Among them are the reason and the description of a dead letter, which are annotations here.
        """
        if path.key in _OF_DEAD_LETTERS and (found := self._of_dead_letter(path.key)) is not None:
            return found
        value_at = self.section(APPLICATION_PROPERTIES)
        if value_at < 0:
            return None
        try:
            if len(self._terms) >= _WALKS or not path.key.isascii():
                at = self.folded().get(path.key, -1)
            else:
                at = _folded_entry(self.data, value_at, path.key)
            return None if at < 0 else self._value(at, value_at)
        except MALFORMED:
            return None

    def _of_dead_letter(self, key: bytes) -> str | None:
        def annotation(name: str) -> Any:
            return self.field(entry(MESSAGE_ANNOTATIONS, name))

        return service_bus_reason(annotation)[_OF_DEAD_LETTERS.index(key)]

    def folded(self) -> dict[bytes, int]:
        """Offsets of the values of the application properties by the octets of their names in lower case."""
        if self._maps is None:
            self._maps = {}
        found = self._maps.get(FOLDED)
        if found is None:
            found = self._maps[FOLDED] = {}
            value_at = self.section(APPLICATION_PROPERTIES)
            if value_at >= 0:
                for key, at in _map_values(self.data, value_at).items():
                    found.setdefault(lowered(key), at)
        return found

    def names(self, key: bytes) -> list[bytes]:
        """The names of application properties that are `key` in lower case, as the message spells them."""
        value_at = self.section(APPLICATION_PROPERTIES)
        found = _map_values(self.data, value_at) if value_at >= 0 and key in self.folded() else {}
        return [name for name in found if lowered(name) == key]

    def section(self, code: int) -> int:
        """The offset of the value of a section before the body; negative if there is none."""
        if self._sections is None:
            self._sections, octets = locate(self.data)
            self.spent += octets
        return self._sections.get(code, -1)

    def kept(self, text: str, make: Callable[["MessageView"], Any]) -> Any:
        """What `make` makes of this message, made once for each `text`, which is no path."""
        terms = self._terms
        if text in terms:
            return terms[text]
        value = terms[text] = make(self)
        return value

    def term(self, path: Path) -> Any:
        """The value of a field as filters compare it (see `term`)."""
        terms = self._terms
        text = path.text
        if text in terms:
            return terms[text]
        value = self.field(path)
        if type(value) is not str:
            value = term(value)
        terms[text] = value
        return value

    def subject_words(self) -> list[str]:
        """The words of the subject, between its dots and slashes; none when it is empty or absent."""
        words = self._words
        if words is None:
            subject = self.term(SUBJECT)
            words = self._words = split_words(subject) if type(subject) is str else []
        return words
