"""Tokens: what was signed is read, and nothing else; scopes from JSON."""

import jwt
import pytest

from lightrail.namespace import tokens
from lightrail.namespace.records import Right

SECRET = bytes(range(32))
NOW_MS = 1_000_000_000_000
CLAIMS = tokens.Claims(
    "alice", "digest", NOW_MS // 1000 + 60, (("a/b", frozenset({Right.SEND})), ("c", frozenset()))
)


def test_what_was_signed_is_read() -> None:
    assert tokens.read(SECRET, tokens.make(SECRET, CLAIMS), NOW_MS) == CLAIMS
    everything = tokens.Claims("bob", "digest", NOW_MS // 1000 + 1)
    assert tokens.read(SECRET, tokens.make(SECRET, everything), NOW_MS) == everything


def test_it_ends_to_the_second() -> None:
    token = tokens.make(SECRET, CLAIMS)
    tokens.read(SECRET, token, NOW_MS + 59_999)
    with pytest.raises(tokens.InvalidTokenError, match="expired"):
        tokens.read(SECRET, token, NOW_MS + 60_000)


def test_other_signatures_and_algorithms_are_refused() -> None:
    good = tokens.make(SECRET, CLAIMS)
    body = {"aud": tokens.AUDIENCE, "sub": "alice", "exp": NOW_MS}
    for token in (
        tokens.make(bytes(32), CLAIMS),
        good[:-3] + "abc",
        jwt.encode(body, "", "none"),
        jwt.encode(body | {"aud": "other"}, tokens.key_of(SECRET), "HS256"),
        jwt.encode({"sub": "alice"}, tokens.key_of(SECRET), "HS256"),
        jwt.encode(body | {"scope": [["a", ["fly"]]]}, tokens.key_of(SECRET), "HS256"),
        jwt.encode(body | {"scope": 5}, tokens.key_of(SECRET), "HS256"),
        "",
        "x" * 10_000,
    ):
        with pytest.raises(tokens.InvalidTokenError):
            tokens.read(SECRET, token, NOW_MS)


def test_scopes_are_read_from_json() -> None:
    assert tokens.scope_of(None) is None
    found = tokens.scope_of([{"prefix": "a", "rights": ["send", "listen"]}, {"rights": ["manage"]}])
    assert found == (("a", frozenset({Right.SEND, Right.LISTEN})), ("", frozenset({Right.MANAGE})))


@pytest.mark.parametrize(
    "value",
    [
        "a",
        [],
        {},
        [5],
        [{"prefix": "a"}],
        [{"prefix": "a//b", "rights": []}],
        [{"rights": ["fly"]}],
        [{"x": 1}],
    ],
)
def test_bad_scopes_are_refused_in_words(value: object) -> None:
    with pytest.raises(tokens.InvalidTokenError, match=r"expected|can't be used"):
        tokens.scope_of(value)
