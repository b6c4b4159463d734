"""Tokens: rights of a user, signed by the installation (JWT with HS256), for HTTP and for `$cbs`.

A token has the user, a digest of the user's key at its creation, its scope and its end. The receiver must
compare the digest with that of the user's present key, so that a token ends with its user's password.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import jwt

from lightrail.cluster.users import UserRecord
from lightrail.model import names
from lightrail.namespace.records import Right

TOKEN_SCOPES_MAX: Final[int] = 64
"""Most prefixes that a token can be limited to: it travels in a header."""
ALGORITHM: Final = "HS256"
AUDIENCE: Final = "lightrail"
TOKEN_BYTES_MAX: Final = 8_192
"""Longer tokens are refused unread; HTTP servers and proxies stop at headers of this size."""

Scope = tuple[tuple[str, frozenset[Right]], ...]
"""(prefix, rights) pairs, in the form of namespace/rights.py."""


class InvalidTokenError(ValueError):
    """A token, or a request for one, that can't be used; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a token."""

    user: str
    key_digest: str
    expires_s: int
    """Seconds since 1970."""
    scope: Scope | None = None
    """None for all rights of the user."""


def key_of(secret: bytes) -> bytes:
    """The signing key, derived from the coordinator's secret, which serves other purposes as well."""
    return hmac.digest(secret, b"lightrail tokens 1", "sha256")


def key_digest(record: UserRecord) -> str:
    """Digest that binds a token to its user's password."""
    stored_key = record.tokens_of or record.sha256.stored_key
    return sha256(b"lightrail token\0" + stored_key).hexdigest()[:32]


def make(secret: bytes, claims: Claims) -> str:
    """The signed token. `secret` is the coordinator's."""
    body: dict[str, Any] = {
        "aud": AUDIENCE,
        "sub": claims.user,
        "key": claims.key_digest,
        "exp": claims.expires_s,
    }
    if claims.scope is not None:
        body["scope"] = [[prefix, sorted(rights)] for prefix, rights in claims.scope]
    return jwt.encode(body, key_of(secret), ALGORITHM)


def read(secret: bytes, token: str, now_ms: int) -> Claims:
    """The claims of a token after checking its signature and its end. Raises InvalidTokenError."""
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidTokenError(f"expected a token of at most {TOKEN_BYTES_MAX} bytes, found {len(token)}")
    try:
        # Checked here and not by PyJWT, because the time is an argument.
        options: Any = {"verify_exp": False, "require": ["exp", "sub", "aud"]}
        body = jwt.decode(token, key_of(secret), [ALGORITHM], options=options, audience=AUDIENCE)
        scope = body.get("scope")
        claims = Claims(
            str(body["sub"]),
            str(body.get("key", "")),
            int(body["exp"]),
            None
            if scope is None
            else tuple((str(prefix), frozenset(map(Right, rights))) for prefix, rights in scope),
        )
    except (jwt.InvalidTokenError, ValueError, TypeError) as error:
        raise InvalidTokenError(f"the token is not from this installation: {error}") from None
    if claims.expires_s * 1000 <= now_ms:
        raise InvalidTokenError("the token has expired; request another one")
    return claims


def scope_of(value: Any) -> Scope | None:
    """A scope from JSON: null, or a list of `{"prefix": NAME, "rights": [...]}`. Raises InvalidTokenError."""
    if value is None:
        return None
    expected = 'expected a list such as [{"prefix": "myapp", "rights": ["send", "listen"]}] as scope'
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidTokenError(f"{expected}, found {str(value)[:80]!a}")
    if not 1 <= len(value) <= TOKEN_SCOPES_MAX:
        raise InvalidTokenError(f"expected 1 to {TOKEN_SCOPES_MAX} prefixes in the scope, found {len(value)}")
    scope = []
    for each in value:
        if not isinstance(each, dict) or not each.keys() <= {"prefix", "rights"}:
            raise InvalidTokenError(f"{expected}, found {str(each)[:80]!a} in it")
        prefix = each.get("prefix", "")
        rights = each.get("rights")
        if not isinstance(prefix, str) or not isinstance(rights, list):
            raise InvalidTokenError(f"{expected}, found {str(each)[:80]!a} in it")
        if prefix:
            try:
                names.check(prefix)
            except names.InvalidNameError as error:
                raise InvalidTokenError(f"the prefix can't be used: {error}") from None
        try:
            scope.append((prefix, frozenset(map(Right, rights))))
        except ValueError:
            raise InvalidTokenError(
                f"expected rights out of {', '.join(Right)}, found {str(rights)[:80]!a}"
            ) from None
    return tuple(scope)
