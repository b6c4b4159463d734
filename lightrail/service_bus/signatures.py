"""Shared access signatures: tokens that clients of Azure Service Bus sign with a key, of an entity or a user.

The text is `SharedAccessSignature sr=URI&sig=SIGNATURE&se=END&skn=NAME`, each value percent-encoded: the
resource, base64 of HMAC-SHA256 over "URI\\nEND" with the text of the key (URI in the form that it has in the
token), the end in seconds since 1970, and the name of the key: an authorization rule of the entity that the
resource names, or else a user.
"""

import base64
import hmac
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import unquote_plus

from lightrail.cluster.coordinator import Coordinator
from lightrail.cluster.users import UserRecord
from lightrail.model import names
from lightrail.model.names import InvalidNameError
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES
from lightrail.namespace.rights import Resource, RuleKey, resource_of
from lightrail.namespace.tokens import TOKEN_BYTES_MAX, InvalidTokenError
from lightrail.service_bus import rule_keys
from lightrail.service_bus.access_keys import keys_of
from lightrail.service_bus.rule_keys import SealedKeyError, entity_at, written_entity

PREFIX: Final = "SharedAccessSignature "
_FIELDS: Final = frozenset({"sr", "sig", "se", "skn"})
_END_DIGITS: Final = 15


class Signature(NamedTuple):
    """A signature that was read, and not verified yet."""

    name: str
    """Of the key."""
    resource: Resource
    expires_s: int
    signed: bytes
    """The text that was signed."""
    digest: str

    def verify(self, key: str) -> bool:
        """Whether the signature was made with this key."""
        made = base64.b64encode(hmac.digest(key.encode(), self.signed, "sha256"))
        return hmac.compare_digest(made, self.digest.encode(errors="replace"))


def is_signature(token: str) -> bool:
    """Whether a token is a shared access signature, and no JSON web token."""
    return token.startswith(PREFIX)


def read(token: str, now_ms: int) -> Signature:
    """A signature that has not expired. Raises InvalidTokenError."""
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidTokenError(f"expected a token of at most {TOKEN_BYTES_MAX} bytes, found {len(token)}")
    if any("\ud800" <= each <= "\udfff" for each in token):
        # Octets of a header of HTTP that are no UTF-8: no name has them, and no entry can be looked up.
        raise InvalidTokenError("expected a signature in UTF-8, or percent-encoded; found other octets")
    fields: dict[str, str] = {}
    for part in token.removeprefix(PREFIX).split("&"):
        name, _, value = part.partition("=")
        if name not in _FIELDS or name in fields or not value:
            raise InvalidTokenError(
                f"expected a signature with sr, sig, se and skn, once each, found {part[:40]!a} in it"
            )
        fields[name] = value
    if missing := _FIELDS - fields.keys():
        raise InvalidTokenError(f"the signature lacks {', '.join(sorted(missing))}")
    end = fields["se"]
    if not end.isascii() or not end.isdigit() or len(end) > _END_DIGITS:
        raise InvalidTokenError(f"expected the end se in seconds since 1970, found {end[:40]!a}")
    if int(end) * 1000 <= now_ms:
        raise InvalidTokenError("the signature has expired; make another one")
    return Signature(
        unquote_plus(fields["skn"]),
        resource_of(unquote_plus(fields["sr"])),
        int(end),
        f"{fields['sr']}\n{end}".encode(errors="replace"),
        unquote_plus(fields["sig"]),
    )


async def signer(
    coordinator: Coordinator, directory: Directory, secret: bytes, found: Signature
) -> RuleKey | UserRecord:
    """Whose key made a signature: that of a rule of the entity, else that of a user.

    Args:
        secret: the coordinator's.

    Raises InvalidTokenError: no such key made it. Raises CoordinatorError.
    """
    rule = _rule(directory, secret, found)
    if rule is not None:
        return rule
    record = await coordinator.user(found.name)
    if record is not None and any(found.verify(key.text) for key in keys_of(secret, record)):
        return record
    # Set a moment ago by another process, perhaps: an administration client was answered before.
    entity = written_entity(directory, found.resource.path)
    # Strangers write the path: what can be no name is never there, and the request for it might be too large.
    with suppress(InvalidNameError):
        names.check(entity)
        await coordinator.current(NAMES + entity)
    directory.refresh()
    rule = _rule(directory, secret, found)
    if rule is not None:
        return rule
    if not found.resource.path:
        raise InvalidTokenError(
            f"no user {found.name!a:.80} has a key that made this signature for everything; "
            "`lightrail-admin key list` shows the users that have keys. The key of an entity is good for a "
            "signature for the entity: a connection string with it needs EntityPath=NAME"
        )
    raise InvalidTokenError(
        f"neither an authorization rule of {found.resource.path!a:.200} nor a user has the name "
        f"{found.name!a:.80} and a key that made this signature; `lightrail-admin key list` shows the users "
        "that have keys"
    )


def _rule(directory: Directory, secret: bytes, found: Signature) -> RuleKey | None:
    """The rule with the key, of the entity that the resource names. Raises InvalidTokenError."""
    entity = entity_at(directory, found.resource.path)
    rule = None if entity is None else entity.authorization_rule(found.name)
    if entity is None or rule is None:
        return None
    try:
        made = (sealed for sealed, key in rule_keys.keys_of(secret, rule) if found.verify(key))
        sealed = next(made, None)
    except SealedKeyError as error:
        raise InvalidTokenError(str(error)) from None
    return None if sealed is None else RuleKey(rule.name, sealed.digest, entity.name)
