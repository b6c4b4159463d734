"""Users: what may be a name and a password, and what is kept of it."""

import pytest

from lightrail.amqp.sasl import verify_plain
from lightrail.cluster.users import InvalidUserError, UserRecord, user_name


def test_both_hashes_prove_the_password() -> None:
    record = UserRecord.make("alice", "pässword", iterations=2)
    assert verify_plain(record.sha256, "pässword")
    assert verify_plain(record.sha512, "pässword")
    assert not verify_plain(record.sha256, "password")
    assert len(record.sha256.stored_key) == 32
    assert len(record.sha512.stored_key) == 64


def test_equal_passwords_leave_different_records() -> None:
    one, other = (UserRecord.make("alice", "secret", iterations=1) for _ in range(2))
    assert one.sha256.salt != other.sha256.salt != one.sha512.salt
    assert one.sha256.stored_key != other.sha256.stored_key


def test_the_default_is_slow_enough() -> None:
    assert UserRecord.make("alice", "secret").sha256.iterations >= 4096


def test_names_are_kept_as_clients_send_them() -> None:
    assert user_name("\uff41lice") == "alice"
    assert user_name("o'neil, x=1@example") == "o'neil, x=1@example"


@pytest.mark.parametrize(
    "name", ["", " alice", "alice ", "a\nb", "a\x00", "x" * 256, "é" * 128, "\xad", "\ud800"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidUserError, match="user name"):
        user_name(name)


@pytest.mark.parametrize("password", ["", "a\nb", "x" * 1025, "\xad"])
def test_bad_passwords_are_refused_and_not_shown(password: str) -> None:
    with pytest.raises(InvalidUserError, match="the password can't be used") as error:
        UserRecord.make("alice", password, iterations=1)
    assert not password or password not in str(error.value)
