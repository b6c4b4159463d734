"""Shared access keys of users: derived, listed, replaced, and never stored."""

import base64

import pytest

from lightrail.cluster.users import UserRecord, stronger
from lightrail.service_bus.access_keys import (
    ACCESS_KEYS_MAX,
    AccessKeyError,
    keys_of,
    user_for_keys,
    with_key,
    without_key,
)

SECRET = b"s" * 32
FEW = 4_096
"""Rounds, so that tests are quick."""


def user(name: str = "shop") -> UserRecord:
    return UserRecord.make(name, "a password", FEW)


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
