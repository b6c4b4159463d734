"""XML of bodies: parsed without document types, so that no entity is expanded."""

from xml.etree import ElementTree as Xml

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring

from lightrail.gateway.errors import ProblemError


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
