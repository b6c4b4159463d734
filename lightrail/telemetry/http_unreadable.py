"""Unreadable HTTP requests: status and text of their answer, and their kind for the log.

Clients can send any number of them before they authenticate.
"""

from typing import Final, NamedTuple

from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError, LineTooLong

from lightrail.model import limits

TOO_LARGE: Final = 431
"""Request Header Fields Too Large (RFC 6585)."""
TOO_MANY: Final = "Too many headers received"
"""aiohttp's message of this error; nothing else distinguishes it from other errors."""


class Unreadable(NamedTuple):
    """A request that can't be read, for its client and for the log."""

    status: int
    text: str
    spoken: str
    """Kind of the request, one of few, for `Strangers`; empty if its first bytes were logged already."""


def described(error: HttpProcessingError) -> Unreadable:
    """The answer to a request that aiohttp's parser refused, and its kind for the log."""
    if isinstance(error, LineTooLong):
        most = f"expected a request line and headers of at most {limits.HTTP_HEADER_BYTES} bytes each"
        return Unreadable(TOO_LARGE, f"{most}, found a longer one", "HTTP with too long a line or header")
    if TOO_MANY in error.message:
        most = f"expected at most {limits.HTTP_HEADERS_MAX} headers"
        return Unreadable(TOO_LARGE, f"{most}, found more", "HTTP with too many headers")
    spoken = "" if isinstance(error, BadHttpMethod) else "HTTP that can't be read"
    return Unreadable(400, error.message, spoken)
