"""The client's side of SASL: ANONYMOUS, EXTERNAL, PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677); pure.

A mechanism makes its initial response, answers challenges, and checks the server's proof at the end.
`mechanism_for` chooses the strongest that the server offers and the credentials allow.
"""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lightrail.amqp.sasl import MECHANISM_HASHES, NONCE, ROUNDS_MAX, ROUNDS_MIN, SaslError, prepare, value_of

SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""The strongest first."""


class Mechanism(Protocol):
    """One exchange."""

    name: str

    def initial(self) -> bytes | None:
        """The initial response, sent with sasl-init."""

    def respond(self, challenge: bytes) -> bytes:
        """The answer to a challenge. Raises SaslError. As slow as PBKDF2 is, for SCRAM."""

    def verify(self, additional_data: bytes | None) -> None:
        """Checks the server's proof that it knows the password. Raises SaslError without it."""


class Anonymous:
    """RFC 4505."""

    name = "ANONYMOUS"

    def initial(self) -> bytes:
        return b"anonymous"

    def respond(self, challenge: bytes) -> bytes:
        raise SaslError(f"expected no challenge of {self.name}, found one")

    def verify(self, additional_data: bytes | None) -> None:
        return


class External(Anonymous):
    """RFC 4422, appendix A: the server knows the user from elsewhere, as from the certificate of TLS."""

    name = "EXTERNAL"

    def initial(self) -> bytes:
        return b""


@dataclass(eq=False, repr=False)
class Plain(Anonymous):
    """RFC 4616: sends the password itself. For encrypted connections."""

    _user: str
    _password: str

    name = "PLAIN"

    def initial(self) -> bytes:
        return f"\0{self._user}\0{self._password}".encode()


class Scram:
    """RFC 5802 without channel binding: proves the password without showing it; the server proves itself.

    Args:
        nonce: fresh randomness, printable without comma.
    """

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        if not NONCE.fullmatch(nonce):
            raise ValueError("expected a nonce of printable ASCII without comma")
        self.name = mechanism
        self._hash = MECHANISM_HASHES[mechanism]
        self._password = prepare(password)
        self._nonce = nonce
        name = prepare(user).replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._signature = b""
        """The signature that proves the server; empty before its challenge was answered."""
        self._verified = False

    def initial(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes:
        if self._signature:
            # Some servers send their proof as one more challenge, and nothing with the outcome.
            self._check(challenge)
            return b""
        try:
            first = challenge.decode()
        except UnicodeDecodeError:
            raise SaslError("expected a challenge in UTF-8") from None
        nonce, salt, rounds = self._parse(first)
        final = f"c=biws,r={nonce}"
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), salt, rounds)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        signed = f"{self._bare},{first},{final}".encode()
        signature = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), signed, self._hash)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _parse(self, first: str) -> tuple[str, bytes, int]:
        """Nonce, salt and rounds of server-first-message."""
        attributes = first.split(",")
        if attributes[0].startswith("m="):
            raise SaslError("expected no mandatory extension, found m=")
        if len(attributes) < 3:
            raise SaslError("expected r=, s= and i= in server-first-message")
        nonce = value_of(attributes[0], "r")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or not NONCE.fullmatch(nonce):
            raise SaslError("expected our nonce with something of the server's behind it")
        try:
            salt = base64.b64decode(value_of(attributes[1], "s"), validate=True)
        except ValueError:
            raise SaslError("expected a salt in base64") from None
        text = value_of(attributes[2], "i")
        rounds = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if not ROUNDS_MIN <= rounds <= ROUNDS_MAX:
            raise SaslError(f"expected {ROUNDS_MIN} to {ROUNDS_MAX} rounds, found {text[:20]!r}")
        return nonce, salt, rounds

    def verify(self, additional_data: bytes | None) -> None:
        if not self._verified:
            self._check(additional_data or b"")

    def _check(self, message: bytes) -> None:
        shown = b"v=" + base64.b64encode(self._signature)
        if not self._signature or not hmac.compare_digest(message.split(b",")[0], shown):
            raise SaslError("expected the server to prove that it knows the password, found no proof")
        self._verified = True


def mechanism_for(
    offered: Sequence[str],
    user: str | None,
    password: str | None,
    nonce: str,
    *,
    is_secure: bool,
    has_certificate: bool = False,
) -> Mechanism:
    """The strongest mechanism that the server offers and these credentials allow.

    Args:
        is_secure: TLS, or the same machine. Otherwise the password itself is never sent.
        has_certificate: TLS presents a certificate of the client.

    Raises SaslError where there is none; the text has the offer and what to do.
    """
    names = ", ".join(offered) or "nothing"
    if user is None:
        if has_certificate and External.name in offered:
            return External()
        if Anonymous.name in offered:
            return Anonymous()
        raise SaslError(f"the server wants a user: it offers {names}. Give credentials")
    for name in SCRAM:
        if name in offered and password is not None:
            return Scram(name, user, password, nonce)
    if Plain.name in offered and password is not None:
        if is_secure:
            return Plain(user, password)
        raise SaslError(
            f"the server offers {names}, and a password is not sent as it is over a connection that others "
            "may read: use amqps://"
        )
    raise SaslError(f"the server offers {names}: no mechanism for a user with a password")
