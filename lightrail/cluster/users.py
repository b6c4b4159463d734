"""Users: names and the SCRAM keys of their passwords, which are never stored."""

import base64
import json
import secrets
import unicodedata
from dataclasses import dataclass, replace
from typing import Any, Final

from lightrail.amqp.sasl import ROUNDS, SALT_BYTES, SaslError, ScramKeys, derive, prepare

NAME_BYTES_MAX: Final = 255
PASSWORD_BYTES_MAX: Final = 1_024


FORMER_ROUNDS: Final = frozenset((15_000,))
"""Former defaults: records with these get today's default when their user logs in. Other numbers were chosen
by an operator."""


class InvalidUserError(ValueError):
    """A name or password that can't be used; the message has what is allowed, never the password."""


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user: the name, and for each hash the keys that prove the password. Each hash has its own salt."""

    name: str
    sha256: ScramKeys
    sha512: ScramKeys
    tokens_of: bytes = b""
    """The stored key that tokens of this password are bound to, if the password was hashed again since."""
    access_keys: tuple[bytes, ...] = ()
    """Salts of the user's shared access keys (access_keys.py), oldest first."""

    @classmethod
    def make(cls, name: str, password: str, iterations: int | None = None) -> "UserRecord":
        """The record of a new password; the salts are drawn at random. Raises InvalidUserError.

        Args:
            iterations: rounds of PBKDF2, for both hashes; those of ROUNDS without it.
        """
        known = user_name(name)
        check_password(password)
        try:
            sha256, sha512 = (
                derive(password, secrets.token_bytes(SALT_BYTES), iterations or ROUNDS[hash], hash)
                for hash in ("sha256", "sha512")
            )
            return cls(known, sha256, sha512)
        except SaslError as error:
            raise InvalidUserError(f"the password can't be used: {error}") from None

    def encode(self) -> str:
        """The value of the entry ``users/NAME``: both hashes, with bytes in base64."""
        fields: dict[str, object] = {"sha256": _to_json(self.sha256), "sha512": _to_json(self.sha512)}
        if self.tokens_of:
            fields["tokens_of"] = base64.b64encode(self.tokens_of).decode()
        if self.access_keys:
            fields["access_keys"] = [base64.b64encode(salt).decode() for salt in self.access_keys]
        return json.dumps(fields, separators=(",", ":"))

    @property
    def is_weak(self) -> bool:
        """Whether it has fewer rounds than records that are made by default now (formerly 15,000)."""
        return self.sha256.iterations in FORMER_ROUNDS

    @classmethod
    def decode(cls, name: str, value: str) -> "UserRecord":
        """Decodes such an entry. Raises ValueError."""
        try:
            fields = json.loads(value)
            tokens_of = base64.b64decode(fields.get("tokens_of", ""), validate=True)
            salts = (base64.b64decode(salt, validate=True) for salt in fields.get("access_keys", ()))
            return cls(
                name, _from_json(fields["sha256"]), _from_json(fields["sha512"]), tokens_of, tuple(salts)
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected the keys of sha256 and sha512: {error!r}") from None


def stronger(record: UserRecord, password: str) -> UserRecord:
    """The record of the same password with as many rounds as new ones; tokens stay valid."""
    made = UserRecord.make(record.name, password)
    tokens_of = record.tokens_of or record.sha256.stored_key
    return replace(made, tokens_of=tokens_of, access_keys=record.access_keys)


def user_name(name: str) -> str:
    """The stored form of a name: SASLprep is applied, as to names from clients (RFC 5802, 5.1).

    Raises InvalidUserError unless a user may have this name.
    """
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= NAME_BYTES_MAX or name != name.strip() or _has_control(name):
        raise InvalidUserError(
            f"the user name {name[:80]!a} can't be used; expected 1 to {NAME_BYTES_MAX} bytes of UTF-8 "
            "without control characters and without white space at its ends"
        )
    try:
        return prepare(name)
    except SaslError as error:
        raise InvalidUserError(f"the user name {name[:80]!a} can't be used: {error}") from None


def check_password(password: str) -> None:
    """Raise InvalidUserError unless this may be a password."""
    size = len(password.encode(errors="replace"))
    if not 1 <= size <= PASSWORD_BYTES_MAX or _has_control(password):
        raise InvalidUserError(
            f"the password can't be used; expected 1 to {PASSWORD_BYTES_MAX} bytes of UTF-8 "
            "without control characters"
        )


def _has_control(text: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def _to_json(keys: ScramKeys) -> dict[str, object]:
    return {
        "salt": base64.b64encode(keys.salt).decode(),
        "iterations": keys.iterations,
        "stored_key": base64.b64encode(keys.stored_key).decode(),
        "server_key": base64.b64encode(keys.server_key).decode(),
    }


def _from_json(fields: Any) -> ScramKeys:
    salt, stored, server = (
        base64.b64decode(fields[key], validate=True) for key in ("salt", "stored_key", "server_key")
    )
    return ScramKeys(salt, int(fields["iterations"]), stored, server)
