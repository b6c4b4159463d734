"""Forwarded: the header field with which one process forwards the request of a client to another.

A gateway adds it to a WebSocket request for a frontend, and a frontend to a request of administration for a
gateway. It has the client's address, and whether the client uses TLS. The other process checks it by a code
over the request's nonce and the time, made with a key that only processes of the installation have; that key
is another one in each direction.
"""

import hmac
from dataclasses import dataclass
from typing import Final

FORWARDED_AGE_MS: Final[int] = 60_000
"""Greatest age of the header that a gateway adds to a forwarded request; a frontend is never busy for
longer."""
FIELD: Final = "LightRail-Forwarded"
_VERSION: Final = "1"
_PARTS: Final = 6
NONCE_FIELD: Final = "LightRail-Nonce"
"""The nonce of a request to a gateway; that to a frontend has Sec-WebSocket-Key."""
TO_FRONTEND: Final = b"lightrail websocket forwarded"
TO_GATEWAY: Final = b"lightrail administration forwarded"
"""Directions: what the key is for."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A client of a gateway or a frontend, which forwards it.

    Attributes:
        host: the client's address.
        tls: whether the client's connection is encrypted.
    """

    host: str
    port: int
    tls: bool

    def sign(self, secret: bytes, nonce: bytes, now_ms: int, direction: bytes = TO_FRONTEND) -> str:
        """The value of the header field: VERSION TIME_MS TLS HOST PORT CODE.

        Args:
            secret: of the installation.
            nonce: the field Sec-WebSocket-Key, or NONCE_FIELD, of the same request.
        """
        text = f"{_VERSION} {now_ms} {int(self.tls)} {self.host} {self.port}"
        return f"{text} {_code(secret, nonce, text, direction)}"

    @classmethod
    def read(
        cls, value: str, secret: bytes, nonce: bytes, now_ms: int, direction: bytes = TO_FRONTEND
    ) -> "Forwarded":
        """Raises ValueError: the header was not written by a process of the installation, or is too old."""
        text, _, code = value.rpartition(" ")
        if not hmac.compare_digest(
            code.encode(errors="replace"), _code(secret, nonce, text, direction).encode()
        ):
            raise ValueError(f"expected {FIELD} by a process of this installation, found another code")
        parts = value.split(" ")
        if len(parts) != _PARTS or parts[0] != _VERSION:
            raise ValueError(f"expected {FIELD} of version {_VERSION}, found {value[:80]!a}")
        _, at_ms, tls, host, port, _ = parts
        if abs(now_ms - int(at_ms)) > FORWARDED_AGE_MS:
            raise ValueError(f"{FIELD} was written {now_ms - int(at_ms)} ms ago")
        return cls(host, int(port), tls == "1")


def _code(secret: bytes, nonce: bytes, text: str, direction: bytes) -> str:
    key = hmac.digest(secret, direction, "sha256")
    return hmac.digest(key, nonce + b" " + text.encode(errors="replace"), "sha256").hex()
