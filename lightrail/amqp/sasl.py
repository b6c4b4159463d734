"""The server's side of SASL PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677); pure: nonces are arguments.
The client's side is in sasl_client.py.

A SCRAM exchange: `user = server.first(message)`; the caller looks the user's keys up, or makes
`unknown_user_keys`, and answers with `server.challenge(keys, nonce)`; `server.final(message)` checks the
proof and returns the signature that proves the server to the client (additional-data of sasl-outcome, or one
more challenge for clients that expect it there).
"""

import base64
import binascii
import enum
import hashlib
import hmac
import re
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Final

MECHANISM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each SCRAM mechanism, by its name in hashlib."""
ROUNDS: Final = {"sha256": 600_000, "sha512": 210_000}
"""Rounds of PBKDF2 for new passwords, by hash, as OWASP recommends (2023; ADR 22). RFC 7677 section 4 asks
for 4,096 at least."""
ROUNDS_MIN: Final = 4_096
ROUNDS_MAX: Final = 10_000_000
SALT_BYTES: Final = 16
MESSAGE_BYTES_MAX: Final = 8_192
"""Longest message that is parsed; names and passwords have 1,024 bytes at most, tripled when escaped."""

NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
"""Printable ASCII but the comma (RFC 5802 section 7)."""


class SaslError(ValueError):
    """A malformed message, or one without proof. A server logs the text and does not send it."""


class WrongProofError(SaslError):
    """The proof is not that of the password; `ScramServer.prove` tries other keys of the same salt."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Keys by which a server checks a password, and can't log in with it (RFC 5802 section 3)."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @property
    def hash(self) -> str:
        """sha256 or sha512: the one whose digest is as long as the keys."""
        return "sha512" if len(self.stored_key) == 64 else "sha256"


def derive(password: str, salt: bytes, iterations: int, hash: str) -> ScramKeys:
    """Keys of a password; `hash` is sha256 or sha512. Raises SaslError for a password SASLprep forbids.

    Slow by design: a tenth of a second for as many iterations as ROUNDS.
    """
    salted = hashlib.pbkdf2_hmac(hash, prepare(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash)
    return ScramKeys(
        salt, iterations, hashlib.new(hash, client_key).digest(), hmac.digest(salted, b"Server Key", hash)
    )


def verify_plain(keys: ScramKeys, password: str) -> bool:
    """Whether the keys belong to this password. As slow as `derive`."""
    try:
        shown = derive(password, keys.salt, keys.iterations, keys.hash)
    except SaslError:
        return False
    return hmac.compare_digest(shown.stored_key, keys.stored_key)


def unknown_user_keys(secret: bytes, user: str, mechanism: str, iterations: int | None = None) -> ScramKeys:
    """Keys that no password has; the salt is the same for a name each time.

    With them an exchange for an unknown user looks like one with a wrong password (RFC 5802 section 9).
    They reveal which users exist unless `secret` outlives the process and `iterations` are those of users.
    """
    hash = MECHANISM_HASHES[mechanism]

    def part(label: str) -> bytes:
        return hmac.digest(secret, f"{label}\0{mechanism}\0{user}".encode(), hash)

    rounds = ROUNDS[hash] if iterations is None else iterations
    return ScramKeys(part("salt")[:SALT_BYTES], rounds, part("stored key"), part("server key"))


def prepare(text: str) -> str:
    """SASLprep (RFC 4013) of a name or password. Raises SaslError when it is empty or forbidden.

    Code points that Unicode 3.2 did not have are accepted, as RFC 3454 allows for queries.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared:
        raise SaslError("expected a name or password, found an empty one")
    if any(_is_prohibited(character) for character in prepared):
        raise SaslError("expected a name or password without control characters or other forbidden ones")
    if any(map(stringprep.in_table_d1, prepared)) and not _is_right_to_left(prepared):
        raise SaslError("expected text that runs in one direction, found both (RFC 3454 section 6)")
    return prepared


_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def _is_prohibited(character: str) -> bool:
    return any(is_in(character) for is_in in _PROHIBITED)


def _is_right_to_left(text: str) -> bool:
    ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    return ends and not any(map(stringprep.in_table_d2, text))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslError(f"expected a message of at most {MESSAGE_BYTES_MAX} bytes, found {len(message)}")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslError("expected a message in UTF-8") from None


def _check_authorization(authorization: str, user: str) -> None:
    """Users may not act for one another here (authzid, RFC 4422 section 3.4.1)."""
    if authorization not in ("", user):
        raise SaslError("expected no authorization identity, or the user's own")


def parse_plain(response: bytes) -> tuple[str, str]:
    """(user, password) of a PLAIN response, the user's name prepared. Raises SaslError."""
    parts = _text(response).split("\0")
    if len(parts) != 3:
        raise SaslError(f"expected two NUL in a PLAIN response, found {len(parts) - 1}")
    authorization, user, password = parts
    if not password:
        raise SaslError("expected a password in a PLAIN response, found an empty one")
    user = prepare(user)
    _check_authorization(authorization and prepare(authorization), user)
    return user, password


class _Step(enum.Enum):
    FIRST = "client-first-message"
    CHALLENGE = "server-first-message"
    FINAL = "client-final-message"
    END = "nothing more"


class ScramServer:
    """One exchange. Its calls come in the order first, challenge, final, each once; all raise SaslError."""

    __slots__ = (
        "_authentication",
        "_client_bare",
        "_gs2_header",
        "_hash",
        "_keys",
        "_nonce",
        "_server_first",
        "_shown",
        "_step",
        "user",
    )

    def __init__(self, mechanism: str) -> None:
        self._hash = MECHANISM_HASHES[mechanism]
        self._step = _Step.FIRST
        self._gs2_header = ""
        self._client_bare = ""
        self._nonce = ""
        self._server_first = ""
        self._keys: ScramKeys | None = None
        self._authentication = b""
        self._shown = b""
        """The client's proof."""
        self.user = ""
        """The name that the client claims; proven once `final` returned."""

    def _take(self, step: _Step, following: _Step) -> None:
        if self._step is not step:
            raise SaslError(f"expected {self._step.value}, found {step.value}")
        self._step = following

    def first(self, message: bytes) -> str:
        """Read client-first-message; returns the claimed name of the user, prepared."""
        self._take(_Step.FIRST, _Step.CHALLENGE)
        binding, authorization, bare = _split_gs2(_text(message))
        self._gs2_header = f"{binding},{authorization},"
        self._client_bare = bare
        attributes = bare.split(",")
        if attributes[0].startswith("m="):
            raise SaslError("expected no mandatory extension, found m=")
        if len(attributes) < 2:
            raise SaslError("expected n= and r= in client-first-message")
        self.user = prepare(_unescape(value_of(attributes[0], "n")))
        self._nonce = value_of(attributes[1], "r")
        if not NONCE.fullmatch(self._nonce):
            raise SaslError("expected a nonce of printable ASCII without comma")
        if authorization:
            _check_authorization(prepare(_unescape(value_of(authorization, "a"))), self.user)
        return self.user

    def challenge(self, keys: ScramKeys, nonce: str) -> bytes:
        """server-first-message for the user's keys; `nonce` is fresh randomness, printable without comma."""
        self._take(_Step.CHALLENGE, _Step.FINAL)
        if keys.hash != self._hash:
            raise SaslError(f"expected keys of {self._hash}, found keys of {keys.hash}")
        if not NONCE.fullmatch(nonce):
            raise SaslError("expected a server nonce of printable ASCII without comma")
        self._keys = keys
        self._nonce += nonce
        salt = base64.b64encode(keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={keys.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """Check client-final-message; returns server-final-message, and `user` is proven.

        Raises WrongProofError: the message is well formed, and proves another password.
        """
        self._take(_Step.FINAL, _Step.END)
        keys = self._keys
        assert keys is not None
        without_proof, separator, proof = _text(message).rpartition(",p=")
        attributes = without_proof.split(",")
        if not separator or len(attributes) < 2:
            raise SaslError("expected c=, r= and p= in client-final-message")
        if _base64(value_of(attributes[0], "c")) != self._gs2_header.encode():
            raise SaslError("expected the channel binding header of client-first-message")
        if not hmac.compare_digest(value_of(attributes[1], "r").encode(), self._nonce.encode()):
            raise SaslError("expected the nonce of server-first-message")
        if any(attribute.startswith("m=") for attribute in attributes):
            raise SaslError("expected no mandatory extension, found m=")
        shown = _base64(proof)
        if len(shown) != len(keys.stored_key):
            raise SaslError(f"expected a proof of {len(keys.stored_key)} bytes, found {len(shown)}")
        self._authentication = f"{self._client_bare},{self._server_first},{without_proof}".encode()
        self._shown = shown
        signature = self.prove(keys)
        if signature is None:
            raise WrongProofError("expected the proof of the user's password")
        return signature

    def prove(self, keys: ScramKeys) -> bytes | None:
        """server-final-message if the proof that `final` has read is that of these keys, otherwise None."""
        signature = hmac.digest(keys.stored_key, self._authentication, self._hash)
        client_key = bytes(left ^ right for left, right in zip(self._shown, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), keys.stored_key):
            return None
        return b"v=" + base64.b64encode(hmac.digest(keys.server_key, self._authentication, self._hash))


def _split_gs2(message: str) -> tuple[str, str, str]:
    """(channel binding flag, authzid attribute or "", the bare message) of client-first-message."""
    parts = message.split(",", 2)
    if len(parts) != 3:
        raise SaslError("expected a GS2 header before client-first-message")
    binding, authorization, bare = parts
    if binding.startswith("p="):
        raise SaslError("expected no channel binding: this server offers none")
    # y: the client supports binding and assumes that we don't, which is right (RFC 5802 section 6).
    if binding not in ("n", "y"):
        raise SaslError("expected the channel binding flag n or y")
    return binding, authorization, bare


def value_of(attribute: str, name: str) -> str:
    if not attribute.startswith(f"{name}="):
        raise SaslError(f"expected the attribute {name}= in its place")
    return attribute[2:]


def _unescape(name: str) -> str:
    """=2C and =3D stand for comma and equals sign, no other use of = is valid (RFC 5802 section 5.1)."""
    if re.search("=(?!2C|3D)", name):
        raise SaslError("expected = in a name only as part of =2C or =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslError("expected base64") from None
