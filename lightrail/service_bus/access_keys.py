"""Shared access keys: keys of a user, with which clients of Azure Service Bus sign their tokens.

A key is derived from the installation's secret, the user's name and a random salt, and only the salt is
stored (ADR 39). So every process can compute a key to check a signature, and no key is stored. As in Azure's
clients, signatures use the text of a key, base64 of 32 bytes, without decoding it.
"""

import base64
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from lightrail.cluster.users import UserRecord

ACCESS_KEYS_MAX: Final[int] = 4
"""Shared access keys of one user: replacing a key needs two; a signature is checked with each."""
SALT_BYTES: Final = 16
PASSWORD_BYTES: Final = 48
"""Length of the random password of a user that has only keys."""


class AccessKeyError(ValueError):
    """A key can't be made or deleted; the message has the reason."""


class AccessKey(NamedTuple):
    """One key of a user."""

    id: str
    """Id for listing and deleting: the beginning of its salt in hexadecimal digits."""
    text: str
    """The client's SharedAccessKey."""


def keys_of(secret: bytes, record: UserRecord) -> Iterator[AccessKey]:
    """The keys of a user, oldest first; `secret` is the coordinator's."""
    for salt in record.access_keys:
        label = b"lightrail shared access key 1\0" + salt + record.name.encode()
        key = hmac.digest(secret, label, "sha256")
        yield AccessKey(salt.hex()[:8], base64.b64encode(key).decode())


def texts_of(secret: bytes, record: UserRecord) -> Iterator[str]:
    """The texts of a user's keys: plain AMQP clients give one for the password of the user."""
    return (key.text for key in keys_of(secret, record))


def with_key(record: UserRecord) -> UserRecord:
    """The user with one more key. Raises AccessKeyError: it has ACCESS_KEYS_MAX already."""
    if len(record.access_keys) >= ACCESS_KEYS_MAX:
        raise AccessKeyError(
            f"user {record.name} has {ACCESS_KEYS_MAX} access keys, the most; delete one that no "
            "client uses any more"
        )
    return replace(record, access_keys=(*record.access_keys, secrets.token_bytes(SALT_BYTES)))


def without_key(record: UserRecord, id: str) -> UserRecord:
    """The user without one key. Raises AccessKeyError: it has none with this id."""
    kept = tuple(salt for salt in record.access_keys if salt.hex()[:8] != id)
    if len(kept) == len(record.access_keys):
        raise AccessKeyError(f"user {record.name} has no access key {id[:80]!a}; see `key list`")
    return replace(record, access_keys=kept)


def user_for_keys(name: str) -> UserRecord:
    """A user with a random password: it can log in with its keys only. Raises InvalidUserError."""
    return with_key(UserRecord.make(name, secrets.token_urlsafe(PASSWORD_BYTES)))
