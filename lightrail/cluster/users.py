"""Users: who may connect, by a name and the SCRAM keys of a password that is itself never kept."""

import secrets
import unicodedata
from dataclasses import dataclass
from typing import Final

from lightrail.amqp.sasl import ITERATIONS_DEFAULT, SALT_BYTES, SaslError, ScramKeys, derive, prepare

NAME_BYTES_MAX: Final = 255
PASSWORD_BYTES_MAX: Final = 1_024


class UserRefused(ValueError):
    """A name or password that can't be used; the message says what is allowed, never the password."""


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user: the name, and what proves the password for each hash. Both have a salt of their own."""

    name: str
    sha256: ScramKeys
    sha512: ScramKeys

    @classmethod
    def make(cls, name: str, password: str, iterations: int = ITERATIONS_DEFAULT) -> "UserRecord":
        """The record of a new password; the salts are drawn at random. Raises UserRefused."""
        known = user_name(name)
        check_password(password)
        try:
            return cls(
                known,
                derive(password, secrets.token_bytes(SALT_BYTES), iterations, "sha256"),
                derive(password, secrets.token_bytes(SALT_BYTES), iterations, "sha512"),
            )
        except SaslError as error:
            raise UserRefused(f"the password can't be used: {error}") from None


def user_name(name: str) -> str:
    """The name as it is kept: what clients send went through SASLprep too (RFC 5802, 5.1).

    Raises UserRefused unless a user may have this name.
    """
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= NAME_BYTES_MAX or name != name.strip() or _has_control(name):
        raise UserRefused(
            f"the user name {name[:80]!a} can't be used; expected 1 to {NAME_BYTES_MAX} bytes of UTF-8 "
            "without control characters and without white space at its ends"
        )
    try:
        return prepare(name)
    except SaslError as error:
        raise UserRefused(f"the user name {name[:80]!a} can't be used: {error}") from None


def check_password(password: str) -> None:
    """Raise UserRefused unless this may be a password."""
    size = len(password.encode(errors="replace"))
    if not 1 <= size <= PASSWORD_BYTES_MAX or _has_control(password):
        raise UserRefused(
            f"the password can't be used; expected 1 to {PASSWORD_BYTES_MAX} bytes of UTF-8 "
            "without control characters"
        )


def _has_control(text: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
