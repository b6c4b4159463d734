"""Shared access signatures, and the keys that make them: derived, listed, replaced, and never stored."""

import base64
import hmac
from urllib.parse import quote_plus

import pytest

from lightrail.cluster.access_keys import (
    ACCESS_KEYS_MAX,
    AccessKeyError,
    keys_of,
    user_for_keys,
    with_key,
    without_key,
)
from lightrail.cluster.users import UserRecord, stronger
from lightrail.namespace.signatures import Resource, Signature, is_signature, read, resource_of
from lightrail.namespace.tokens import TOKEN_BYTES_MAX, InvalidTokenError

SECRET = b"s" * 32
NOW_MS = 1_000_000_000_000
END_S = NOW_MS // 1000 + 60
FEW = 4_096
"""Rounds, so that tests are quick."""


def user(name: str = "shop") -> UserRecord:
    return UserRecord.make(name, "a password", FEW)


def signed(key: str, resource: str = "sb://host/orders", end: int = END_S, name: str = "shop") -> str:
    """As Azure's documentation makes it."""
    sr = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{sr}\n{end}".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={end}&skn={quote_plus(name)}"


def test_a_signature_names_its_user_its_resource_and_its_end() -> None:
    token = signed("key")
    assert is_signature(token)
    found = read(token, NOW_MS)
    assert (found.user, found.resource, found.expires_s) == ("shop", Resource("orders"), END_S)
    assert found.verify("key")
    assert not found.verify("kez")


def test_any_other_octet_of_the_signed_text_breaks_the_signature() -> None:
    token = signed("key")
    for changed in (token.replace("orders", "orderz"), token.replace(f"se={END_S}", f"se={END_S + 1}")):
        assert not read(changed, NOW_MS).verify("key")


@pytest.mark.parametrize(
    ("token", "description"),
    [
        (signed("key", end=NOW_MS // 1000), "has expired"),
        (signed("key").replace("&se=", "&se=-"), "in seconds since 1970"),
        (signed("key").replace("&se=", "&se=" + "9" * 20), "in seconds since 1970"),
        (signed("key") + "&skn=other", "once each"),
        (signed("key") + "&more=1", "once each"),
        (signed("key").partition("&skn")[0], "lacks skn"),
        ("SharedAccessSignature ", "once each"),
        (signed("key", "sb://host/" + "x" * TOKEN_BYTES_MAX), f"at most {TOKEN_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_signature_says_what_was_expected(token: str, description: str) -> None:
    with pytest.raises(InvalidTokenError, match=description):
        read(token, NOW_MS)


def test_a_signature_of_other_characters_is_wrong_and_no_error() -> None:
    assert not Signature("shop", Resource(""), END_S, b"", "\ud800é").verify("key")


def test_a_key_is_of_one_installation_one_user_and_one_salt() -> None:
    record = with_key(with_key(user()))
    first, second = keys_of(SECRET, record)
    assert len({first.text, second.text, next(keys_of(b"t" * 32, record)).text}) == 3
    assert len(base64.b64decode(first.text)) == 32
    assert list(keys_of(SECRET, UserRecord.decode("shop", record.encode()))) == [first, second]
    assert next(keys_of(SECRET, UserRecord.decode("shoq", record.encode()))).text != first.text
    assert first.text not in record.encode()


def test_keys_are_added_up_to_a_number_and_deleted_by_their_ids() -> None:
    record = user()
    for _ in range(ACCESS_KEYS_MAX):
        record = with_key(record)
    with pytest.raises(AccessKeyError, match=f"has {ACCESS_KEYS_MAX} access keys"):
        with_key(record)
    first, *others = keys_of(SECRET, record)
    assert list(keys_of(SECRET, without_key(record, first.id))) == others
    with pytest.raises(AccessKeyError, match="no access key 'none'"):
        without_key(record, "none")


def test_a_password_that_is_hashed_anew_leaves_the_keys() -> None:
    record = with_key(user())
    assert stronger(record, "a password").access_keys == record.access_keys


def test_users_of_former_versions_have_no_keys() -> None:
    assert UserRecord.decode("shop", user().encode()).access_keys == ()


def test_a_user_made_for_its_key_has_one() -> None:
    assert len(list(keys_of(SECRET, user_for_keys("shop")))) == 1


@pytest.mark.parametrize(
    ("resource", "path", "exact"),
    [
        ("sb://host/a/b", "a/b", False),
        ("AMQPS://127.0.0.1:5671/a/", "a", False),
        ("https://[::1]:8080/a?api-version=1", "a", True),
        ("sb://host", "", False),
        ("http://host/", "", False),
        ("sb://host/a/$management", "a", False),
        ("sb://host/a/$DeadLetterQueue", "a/$dlq", False),
        ("sb://host/a%20b", "a b", False),
        ("sb://host/a/!messages", "a/!messages", False),
        ("host/a", "host/a", False),
        ("host:5671", "host:5671", False),
        ("/a/b", "a/b", False),
        ("a?b", "a?b", False),
        ("other://host/a", "other://host/a", False),
        ("//host/a", "host/a", False),
    ],
)
def test_what_a_resource_names_is_in_its_text(resource: str, path: str, exact: bool) -> None:
    assert resource_of(resource) == Resource(path, exact)


def test_a_resource_bounds_names_unless_it_is_everything_or_a_path_of_the_broker() -> None:
    bound = ["a", "a/!messages", "$temporary/key"]
    assert [each for each in (*bound, "", "!status", "$Resources/queues") if Resource(each).is_name] == bound
