"""Bodies of requests and answers: their media types, times and XML.

XML of bodies: parsed without document types, so that no entity is expanded.

Media types of bodies that the gateway reads and writes.

Instants: times of HTTP bodies and headers, RFC 3339 in UTC with milliseconds.
"""

from datetime import UTC, datetime
from typing import Final
from xml.etree import ElementTree as Xml

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from lightrail.gateway.errors import ProblemError

JSON: Final = "application/json"
ATOM: Final = "application/atom+xml"
POLICY: Final = "application/vnd.lightrail.policy+json"
AMQP: Final = "application/vnd.lightrail.amqp"
BATCH: Final = "application/vnd.lightrail.batch+json"


def rfc3339(at_ms: int) -> str:
    """Milliseconds since 1970 as `2030-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(text: str) -> int:
    """The reverse; a time without an offset is in UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def parsed(body: bytes, expected: str) -> Xml.Element:
    """The root of a body. Raises ProblemError, whose text begins with what was expected.

    A document type is refused where the parser meets it, whatever the encoding of the body is.
    """
    try:
        return fromstring(body, forbid_dtd=True)
    except DefusedXmlException:
        raise ProblemError(
            400, f"{expected}; found a document type: entities are not expanded here"
        ) from None
    except (Xml.ParseError, ValueError, LookupError) as error:
        raise ProblemError(400, f"{expected}; the body is no XML: {error}") from None
