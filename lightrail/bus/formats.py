"""Formats: encodings of a message and its type in an envelope."""

import datetime as dt
import json
import uuid
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lightrail.bus.errors import NotReadableError
from lightrail.transport import Envelope

TYPE: Final = "lightrail-type"
"""Header: wire names of the message's type and its bases, nearest first, with blanks between them."""
JSON: Final = "application/json"
CLOUD_EVENTS: Final = "application/cloudevents+json"
_SPEC_VERSION: Final = "1.0"
_PREFIXES: Final = ("cloudEvents:", "cloudEvents_")
"""Of CloudEvents' attributes in application-properties (AMQP protocol binding 1.0.2, 3.1.3.1)."""
_BASES: Final = "lightrailbases"
"""Extension attribute of CloudEvents: wire names of the bases."""


@dataclass(frozen=True, slots=True)
class Read:
    """A decoded message, before its class is known.

    Attributes:
        types: wire names of its type and bases; empty if the sender wrote none.
        data: a JSON value.
        envelope: the received one, with the headers, ids and addresses that its body carries in some formats.
    """

    types: tuple[str, ...]
    data: Any
    envelope: Envelope


class Format(Protocol):
    """An encoding of messages; a bus writes one format, and reads each format that it has (see Formats)."""

    def reads(self, envelope: Envelope) -> bool:
        """Whether an envelope is of this format."""
        ...

    def write(
        self, types: str, data: Any, envelope: Envelope, *, source: str, cause: Envelope | None
    ) -> None:
        """Encodes a message into an envelope that has its id, its addresses and its headers.

        Sets the body and the content type, and adds headers of the format that are not there.

        Args:
            types: wire names with blanks between them.
            data: a JSON value.
            source: name of the bus.
            cause: the message whose handler sends this one.
        """
        ...

    def read(self, envelope: Envelope) -> Read:
        """The message of an envelope. Raises NotReadableError."""
        ...

    def knows_faults(self, request: Envelope) -> bool:
        """Whether the sender of a request expects the error of its responder as a `Fault` in this format.

        Other requesters get the error as plain JSON (docs/formats/bus.md).
        """
        ...


class Json:
    """Plain JSON: the body is the message, the header lightrail-type its type."""

    def reads(self, envelope: Envelope) -> bool:
        """Every envelope that no other format reads."""
        return True

    def write(
        self, types: str, data: Any, envelope: Envelope, *, source: str, cause: Envelope | None
    ) -> None:
        """The message as JSON in UTF-8."""
        envelope.body, envelope.content_type = dumps(data), JSON
        envelope.headers = {TYPE: types, **envelope.headers}

    def read(self, envelope: Envelope) -> Read:
        """The body, and the types of the header."""
        types = envelope.headers.get(TYPE)
        return Read(tuple(types.split()) if isinstance(types, str) else (), _loads(envelope.body), envelope)

    def knows_faults(self, request: Envelope) -> bool:
        """Never."""
        return False


class CloudEvents:
    """CloudEvents 1.0: structured messages are written; those of the binary mode are read, too.

    Args:
        source: URI reference of the sender; by default the name of the bus.
    """

    def __init__(self, source: str | None = None) -> None:
        self._source = source

    def reads(self, envelope: Envelope) -> bool:
        """By the content type, or the attributes in headers."""
        if (envelope.content_type or "").startswith(CLOUD_EVENTS):
            return True
        return any(f"{prefix}specversion" in envelope.headers for prefix in _PREFIXES)

    def write(
        self, types: str, data: Any, envelope: Envelope, *, source: str, cause: Envelope | None
    ) -> None:
        """One JSON object with attributes and data (CloudEvents JSON event format, 3)."""
        name, _, bases = types.partition(" ")
        event = {
            "specversion": _SPEC_VERSION,
            "id": envelope.id,
            "source": self._source or source,
            "type": name,
            "time": dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": JSON,
            "data": data,
        }
        if bases:
            event[_BASES] = bases
        envelope.body, envelope.content_type = dumps(event), f"{CLOUD_EVENTS}; charset=utf-8"

    def read(self, envelope: Envelope) -> Read:
        """Raises NotReadableError for other versions than 1.0, and without a type."""
        if (envelope.content_type or "").startswith(CLOUD_EVENTS):
            event: dict[str, Any] = _loads(envelope.body)
            if not isinstance(event, dict):
                raise NotReadableError(f"expected a JSON object of CloudEvents, found {event!r:.80}")
            data = event.get("data")
        else:
            event = {}
            for name, value in envelope.headers.items():
                for prefix in _PREFIXES:
                    if name.startswith(prefix):
                        event[name.removeprefix(prefix)] = value
            data = _loads(envelope.body)
        if event.get("specversion") != _SPEC_VERSION:
            raise NotReadableError(
                f"expected CloudEvents 1.0, found specversion {event.get('specversion')!r}"
            )
        type = event.get("type")
        if not isinstance(type, str):
            raise NotReadableError("expected a type of CloudEvents, found none")
        return Read((type, *str(event.get(_BASES, "")).split()), data, envelope)

    def knows_faults(self, request: Envelope) -> bool:
        """Never."""
        return False


class Formats:
    """All formats that a bus reads, and the one that it writes.

    Args:
        written: the format of sent messages; Json by default.
    """

    def __init__(self, written: Format | None = None) -> None:
        self.written: Final[Format] = written or Json()
        others: list[Format] = [CloudEvents(), Json()]
        self._read: list[Format] = [self.written] if not isinstance(self.written, Json) else []
        self._read += [
            each for each in others if type(each) is not type(self.written) or isinstance(each, Json)
        ]

    def read(self, envelope: Envelope) -> Read:
        """The message of an envelope of any known format. Raises NotReadableError."""
        for each in self._read:
            if each.reads(envelope):
                return each.read(envelope)
        raise AssertionError("plain JSON reads what no other format does")


def new_id() -> str:
    """The id of a new message."""
    return uuid.uuid4().hex


def dumps(data: Any) -> bytes:
    """JSON in UTF-8. Raises ValueError for NaN and infinities."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # A lone surrogate, which JSON of a sender may have, becomes its escape of JSON.
    return text.encode(errors="backslashreplace")


def _loads(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotReadableError(f"expected JSON, found {body[:80]!r}: {error}") from error
