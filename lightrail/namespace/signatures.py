"""Shared access signatures: tokens that clients of Azure Service Bus sign with a key of a user.

The text is `SharedAccessSignature sr=URI&sig=SIGNATURE&se=END&skn=NAME`, each value percent-encoded: the
resource, base64 of HMAC-SHA256 over "URI\\nEND" with the text of the key (URI in the form that it has in the
token), the end in seconds since 1970, and the name of the key, which is a user here.
"""

import base64
import hmac
from typing import Final, NamedTuple
from urllib.parse import unquote, unquote_plus

from lightrail.model.names import TEMPORARY_SEGMENT, InvalidNameError, queue_name
from lightrail.namespace.tokens import TOKEN_BYTES_MAX, InvalidTokenError

PREFIX: Final = "SharedAccessSignature "
SCHEMES: Final = frozenset({"amqp", "amqps", "sb", "http", "https"})
"""Schemes of resources and audiences that are URIs; only their path counts."""
MANAGEMENT_SUFFIX: Final = "/$management"
"""Suffix of a resource that is the management node of a name: the signature is for the name."""
_FIELDS: Final = frozenset({"sr", "sig", "se", "skn"})
_END_DIGITS: Final = 15
_TEMPORARY: Final = f"{TEMPORARY_SEGMENT}/"


class Resource(NamedTuple):
    """What a signature opens, by its signed text alone: nothing that its holder sends decides about it.

    A resource with a scheme is a URI, and its path counts: a broker has many hosts and ports. A resource
    without one is a path, and never begins with a host: who may choose the host would decide how much of the
    path is left (ADR 50).
    """

    path: str
    """A name, decoded, or another path of HTTP; empty for everything."""
    exact: bool = False
    """Whether it is the URI of one request, with its query: it opens its path, and nothing below."""

    @property
    def is_name(self) -> bool:
        """Whether it bounds names; False for everything, and for paths of the broker's own (`!status`)."""
        return bool(self.path) and (not self.path.startswith(("!", "$")) or self.path.startswith(_TEMPORARY))

    def opens(self, path: str) -> bool:
        """Whether it opens a name or another path.

        The clients for Go and JavaScript sign in lower case, whatever the case of the name.
        """
        asked = (path, path.lower())
        if self.exact:
            return self.path in asked
        return not self.path or any(f"{each}/".startswith(f"{self.path}/") for each in asked)


EVERYTHING: Final = Resource("")


def resource_of(text: str) -> Resource:
    """The resource that a signature is for."""
    scheme, separator, rest = text.partition("://")
    query = ""
    if separator and scheme.lower() in SCHEMES:
        rest, _, query = rest.partition("?")
        path = rest.partition("/")[2]
    else:
        path = text
    path = path.strip("/").removesuffix(MANAGEMENT_SUFFIX)
    try:
        path = queue_name(f"/{path}")
    except InvalidNameError:
        path = unquote(path)
    return Resource(path, bool(query))


class Signature(NamedTuple):
    """A signature that was read, and not verified yet."""

    user: str
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


def unsigned(user: str) -> str:
    """The text of the error for a signature that matches no key of its user."""
    return (
        f"no user {user!a:.80} has an access key that made this signature; `lightrail-admin key list` shows "
        "the users that have keys"
    )


def read(token: str, now_ms: int) -> Signature:
    """A signature that has not expired. Raises InvalidTokenError."""
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidTokenError(f"expected a token of at most {TOKEN_BYTES_MAX} bytes, found {len(token)}")
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
