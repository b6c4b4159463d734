"""Tokens: what a user may do, signed by the installation (JWT with HS256), for HTTP and for `$cbs`.

A token names the user, a digest of the key that the user's password had when it was made, what it is limited
to and its end. Whoever takes one must compare the digest with that of the user's present key: a token ends
with the password or the user that it was made for.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import jwt

from lightrail.cluster.users import UserRecord
from lightrail.model import limits, names
from lightrail.namespace.records import Right

ALGORITHM: Final = "HS256"
AUDIENCE: Final = "lightrail"
TOKEN_BYTES_MAX: Final = 8_192
"""Longer ones are not looked at; HTTP servers and proxies stop at headers of this size."""

Scope = tuple[tuple[str, frozenset[Right]], ...]
"""(prefix, rights) pairs, as namespace/rights.py reads them."""


class InvalidToken(ValueError):
    """A token, or the wish for one, that can't be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says."""

    user: str
    key_digest: str
    expires_s: int
    """Seconds since 1970."""
    scope: Scope | None = None
    """None: everything that the user may do."""


def key_of(secret: bytes) -> bytes:
    """The signing key, from the coordinator's secret: that one serves other ends as well."""
    return hmac.digest(secret, b"lightrail tokens 1", "sha256")


def key_digest(record: UserRecord) -> str:
    """What binds a token to the password that its user had."""
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
    """What a token says, once its signature and its end were checked. Raises InvalidToken."""
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidToken(f"expected a token of at most {TOKEN_BYTES_MAX} bytes, found {len(token)}")
    try:
        # Its end is checked here and not there: the time is an argument.
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
        raise InvalidToken(f"the token is none of this installation: {error}") from None
    if claims.expires_s * 1000 <= now_ms:
        raise InvalidToken("the token has run out; ask for another one")
    return claims


def scope_of(value: Any) -> Scope | None:
    """A scope from JSON: null, or a list of `{"prefix": NAME, "rights": [...]}`. Raises InvalidToken."""
    if value is None:
        return None
    expected = 'expected a list such as [{"prefix": "myapp", "rights": ["send", "listen"]}] as scope'
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidToken(f"{expected}, found {str(value)[:80]!a}")
    if not 1 <= len(value) <= limits.TOKEN_SCOPES_MAX:
        raise InvalidToken(
            f"expected 1 to {limits.TOKEN_SCOPES_MAX} prefixes in the scope, found {len(value)}"
        )
    scope = []
    for each in value:
        if not isinstance(each, dict) or not each.keys() <= {"prefix", "rights"}:
            raise InvalidToken(f"{expected}, found {str(each)[:80]!a} in it")
        prefix = each.get("prefix", "")
        rights = each.get("rights")
        if not isinstance(prefix, str) or not isinstance(rights, list):
            raise InvalidToken(f"{expected}, found {str(each)[:80]!a} in it")
        if prefix:
            try:
                names.check(prefix)
            except names.InvalidName as error:
                raise InvalidToken(f"the prefix can't be used: {error}") from None
        try:
            scope.append((prefix, frozenset(map(Right, rights))))
        except ValueError:
            raise InvalidToken(
                f"expected rights out of {', '.join(Right)}, found {str(rights)[:80]!a}"
            ) from None
    return tuple(scope)
