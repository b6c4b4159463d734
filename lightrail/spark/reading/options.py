"""The options of the data source `lightrail` for reading, checked; docs/operate/spark.md lists them.

Offsets: the read position in each journal, `{"JOURNAL": next lsn}`, and their form in options.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from lightrail.spark.columns import DECODED, FIELDS, Decode
from lightrail.spark.http import Access

EARLIEST: Final = -2
LATEST: Final = -1
"""The number for the end of a journal, as in Kafka's source."""

Offsets = dict[str, int]
"""Journal (its disk) → the first record that has not been read. In options also EARLIEST or LATEST."""
Wish = str | Offsets
"""`earliest`, `latest`, or offsets."""


class BadOffsetsError(ValueError):
    """A text without valid offsets; the message says what was expected and what was found."""


def parse(text: str) -> Wish:
    """Parses startingOffsets or endingOffsets.

    Raises:
        BadOffsetsError: it is neither `earliest`, nor `latest`, nor offsets in JSON.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not all(_is_position(value) for value in fields.values()):
        raise BadOffsetsError(
            'expected earliest, latest, or JSON like {"JOURNAL": 1234} (-2: earliest, -1: latest), '
            f"found {text[:200]!r}"
        )
    return ordered(fields)


def _is_position(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= EARLIEST


def ordered(offsets: Mapping[str, int]) -> Offsets:
    """The same offsets, sorted, because Spark compares offsets by their text."""
    return dict(sorted(offsets.items()))


KNOWN: Final = (
    *("path", "gateway", "user", "passwordFile", "tokenFile", "caFile", "queues", "queuePattern"),
    *("startingOffsets", "startingTimestamp", "endingOffsets", "maxMessagesPerTrigger", "maxBytesPerTrigger"),
    *("minPartitions", "failOnDataLoss", "lossPath", "includeBody", "columns", "decode", "capturedOnly"),
    *("reader", "readerHours", "readerBytes"),
)
_OF_SPARK: Final = frozenset({"paths", "__paths__"})
_SECRET: Final = frozenset({"password", "token", "secret", "authorization"})
_NAMES: Final = tuple(name for name, _ in FIELDS)
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class OptionError(ValueError):
    """An invalid option; the message says what was expected, what was found, what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a read."""

    paths: tuple[str, ...]
    access: Access | None
    queues: frozenset[str] | None
    pattern: str | None
    starting: Wish
    starting_ms: int | None
    ending: Wish
    messages_max: int | None
    bytes_max: int | None
    partitions_min: int | None
    fail_on_loss: bool
    loss_path: str | None
    include_body: bool
    columns: tuple[str, ...]
    decode: Decode
    captured_only: bool
    reader: str | None
    reader_hours: float | None
    reader_bytes: int | None


def read_options(given: Mapping[str, str], streaming: bool = False) -> Options:
    """The options of a read.

    Raises:
        OptionError: an option has a wrong value.
    """
    _check_names(given)
    texts = _Texts(given)
    access = _access(texts)
    paths = _paths(texts)
    if not paths and access is None:
        raise OptionError(
            "expected the option path (archive folders) or gateway (a URL), or both; found neither"
        )
    queues, pattern = _queues(texts)
    starting, ending = _bounds(texts, streaming)
    reader = texts.get("reader")
    if reader is not None and access is None:
        raise OptionError(
            "the option reader names a pin at the shards and needs the option gateway, found none"
        )
    return Options(
        paths=paths,
        access=access,
        queues=queues,
        pattern=pattern,
        starting=starting,
        starting_ms=texts.time_ms("startingTimestamp"),
        ending=ending,
        messages_max=texts.count("maxMessagesPerTrigger"),
        bytes_max=texts.size("maxBytesPerTrigger"),
        partitions_min=texts.count("minPartitions"),
        fail_on_loss=texts.truth("failOnDataLoss", True),
        loss_path=texts.get("lossPath"),
        include_body=texts.truth("includeBody", True),
        columns=_columns(texts),
        decode=_decode(texts),
        captured_only=texts.truth("capturedOnly", True),
        reader=reader,
        reader_hours=texts.hours("readerHours"),
        reader_bytes=texts.size("readerBytes"),
    )


def _check_names(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in KNOWN}
    for name in given:
        lower = name.lower()
        if lower in known or lower in _OF_SPARK:
            continue
        if lower in _SECRET:
            raise OptionError(
                f"the option {name} would show a secret in Spark's plans: write it to a file and give "
                "passwordFile or tokenFile"
            )
        near = difflib.get_close_matches(lower, known, 1)
        hint = f"; did you mean {known[near[0]]}?" if near else f": one of {', '.join(KNOWN)}"
        raise OptionError(f"expected an option of the source lightrail, found {name!r}{hint}")


def _access(texts: "_Texts") -> Access | None:
    names = ("gateway", "user", "passwordFile", "tokenFile", "caFile")
    given = {name: text for name in names if (text := texts.get(name)) is not None}
    if "gateway" not in given:
        if given:
            raise OptionError(f"{next(iter(given))} is for the option gateway, which is not given")
        return None
    if "user" in given and "tokenFile" in given:
        raise OptionError("expected one of the options user and tokenFile, found both")
    try:
        return Access.of_options(given)
    except ValueError as error:
        raise OptionError(str(error)) from error


def _paths(texts: "_Texts") -> tuple[str, ...]:
    found = list(texts.list("path") or ())
    for name in _OF_SPARK:
        several = texts.get(name)
        if several is not None:
            try:
                found += [str(each) for each in json.loads(several)]
            except ValueError as error:
                raise OptionError(
                    f"{name}: expected a list of paths in JSON, found {several[:200]!r}"
                ) from error
    return tuple(dict.fromkeys(found))


def _queues(texts: "_Texts") -> tuple[frozenset[str] | None, str | None]:
    """The queues to read, by name or by a pattern; both None for all of them."""
    queues = texts.list("queues")
    pattern = texts.get("queuePattern")
    if queues is not None and pattern is not None:
        raise OptionError("expected one of the options queues and queuePattern, found both")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"queuePattern: expected a regular expression, found {pattern!r}: {error}"
            ) from error
    return None if queues is None else frozenset(queues), pattern


def _bounds(texts: "_Texts", streaming: bool) -> tuple[Wish, Wish]:
    """The starting and the ending offsets."""
    if texts.get("startingOffsets") is not None and texts.get("startingTimestamp") is not None:
        raise OptionError("expected one of the options startingOffsets and startingTimestamp, found both")
    starting = texts.offsets("startingOffsets", "latest" if streaming else "earliest")
    if not streaming and starting == "latest":
        raise OptionError("startingOffsets: expected earliest or JSON in a batch, found latest")
    ending = texts.offsets("endingOffsets", "latest")
    if streaming and texts.get("endingOffsets") is not None:
        raise OptionError("endingOffsets is for batches (spark.read), a stream has no end: remove the option")
    if ending == "earliest":
        raise OptionError("endingOffsets: expected latest or JSON, found earliest")
    return starting, ending


def _decode(texts: "_Texts") -> Decode:
    text = texts.get("decode") or Decode.PROPERTIES
    try:
        return Decode(text.lower())
    except ValueError:
        raise OptionError(f"decode: expected one of {', '.join(Decode)}, found {text!r}") from None


def _columns(texts: "_Texts") -> tuple[str, ...]:
    names = texts.list("columns")
    if names is None:
        return _NAMES
    check_columns(names)
    decode = _decode(texts)
    missing = [name for name in names if decode is Decode.NONE and name in DECODED]
    if decode is not Decode.ALL and "body" in names:
        missing.append("body")
    if missing:
        needed = Decode.ALL if "body" in missing else Decode.PROPERTIES
        raise OptionError(
            f"columns: {', '.join(missing)} would be null with decode={decode}: expected decode={needed}"
        )
    return tuple(names)


def check_columns(names: Iterable[str]) -> None:
    """Checks that the source has these columns.

    Raises:
        OptionError: a column is unknown, or named twice.
    """
    seen: set[str] = set()
    for name in names:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise OptionError(f"columns: expected some of {', '.join(_NAMES)}; found {name!r}{hint}")
        if name in seen:
            raise OptionError(f"columns: found {name} twice")
        seen.add(name)


class _Texts:
    """Texts of options, and their parsers."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): text for name, text in given.items()}

    def get(self, name: str) -> str | None:
        """The text of an option; None if it is missing or empty."""
        return self._given.get(name.lower(), "").strip() or None

    def list(self, name: str) -> list[str] | None:
        """An option with names separated by commas."""
        text = self.get(name)
        if text is None:
            return None
        return [each.strip() for each in text.split(",") if each.strip()]

    def truth(self, name: str, default: bool) -> bool:
        """An option with true or false."""
        text = self.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(f"{name}: expected true or false, found {text!r}")
        return text.lower() == "true"

    def count(self, name: str) -> int | None:
        """An option with a number of at least 1."""
        text = self.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise OptionError(f"{name}: expected a number of at least 1, found {text!r}")
        return int(text)

    def size(self, name: str) -> int | None:
        """An option with a number of bytes, such as 1048576 or 64m."""
        text = self.get(name)
        if text is None:
            return None
        match = _SIZE.fullmatch(text)
        if match is None or not int(match[1]):
            raise OptionError(f"{name}: expected a number of bytes like 67108864 or 64m, found {text!r}")
        return int(match[1]) * _FACTORS[match[2].lower()]

    def hours(self, name: str) -> float | None:
        """An option with a number of hours, also fractional."""
        text = self.get(name)
        if text is None:
            return None
        try:
            hours = float(text)
        except ValueError:
            hours = 0.0
        if not 0 < hours < float("inf"):
            raise OptionError(f"{name}: expected a number of hours above 0, found {text!r}")
        return hours

    def time_ms(self, name: str) -> int | None:
        """An option with milliseconds since 1970-01-01 UTC, or a time in ISO 8601."""
        text = self.get(name)
        if text is None:
            return None
        if text.isdecimal():
            return int(text)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise OptionError(
                f"{name}: expected milliseconds since 1970 or a time like 2026-01-31T12:00:00Z, "
                f"found {text!r}"
            ) from None
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)

    def offsets(self, name: str, default: str) -> Wish:
        """An option with earliest, latest, or JSON."""
        try:
            return parse(self.get(name) or default)
        except BadOffsetsError as error:
            raise OptionError(f"{name}: {error}") from error
