"""Names: which addresses name the same queue, and which name none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.model.names import (
    QUEUE_NAME_BYTES_MAX,
    InvalidNameError,
    check,
    dead_letter_name,
    is_dead_letter,
    owner,
    queue_name,
)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("q1", "q1"),
        ("/q1", "q1"),
        ("myapp/orders/q1", "myapp/orders/q1"),
        ("amqp://host/q1", "q1"),
        ("amqp://user@host:5672/a/b", "a/b"),
        ("AMQPS://host/q1", "q1"),
        ("amqp:q1", "amqp:q1"),
        ("http://host/q1x", None),
        ("a%20b", "a b"),
        ("a%2Fb", "a/b"),
        ("a%2520b", "a%20b"),
        ("queue://a/b", "a/b"),
        ("TOPIC://a", "a"),
        ("queue:///a", "a"),
        ("caf%C3%A9", "café"),
        ("café", "café"),
        ("a$b!", "a$b!"),
        ("q1/$dlq", "q1/$dlq"),
        ("a/b/$subscriptions/k", "a/b/$subscriptions/k"),
        ("a/b/$scheduled", "a/b/$scheduled"),
        ("a/$scheduled/$dlq", "a/$scheduled/$dlq"),
        ("$temporary/k", "$temporary/k"),
        ("$temporary/k/$dlq", "$temporary/k/$dlq"),
        ("$temporary/k/$subscriptions/s", "$temporary/k/$subscriptions/s"),
        ("$temporary/k/$subscriptions/s/$dlq", "$temporary/k/$subscriptions/s/$dlq"),
        ("q" * QUEUE_NAME_BYTES_MAX + "/$dlq", "q" * QUEUE_NAME_BYTES_MAX + "/$dlq"),
    ],
)
def test_addresses(address: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(InvalidNameError):
            queue_name(address)
    else:
        assert queue_name(address) == name


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "empty"),
        ("/", "empty"),
        ("amqp://host", "no path"),
        ("amqp://host/", "no path"),
        ("queue://", "empty"),
        ("other://a", "empty segment"),
        ("a//b", "empty segment"),
        ("a/", "empty segment"),
        ("//a", "empty segment"),
        ("a/../b", "empty segment"),
        ("a/./b", "empty segment"),
        ("$temporary", "the system's"),
        ("$temporary/k/x", "the system's"),
        ("$temporary/$subscriptions/s", "the system's"),
        ("$subscriptions/s", "the system's"),
        ("a/$subscriptions/$s", "the system's"),
        ("$scheduled", "the system's"),
        ("a/$scheduled/b", "the system's"),
        ("a/$scheduled/$subscriptions/s", "the system's"),
        ("a/$subscriptions/s/$scheduled", "the system's"),
        ("a%2F%2E%2E", "empty segment"),
        ("a\nb", r"U\+000A"),
        ("a%00b", r"U\+0000"),
        ("a\u2028b", r"U\+2028"),
        ("a\ud800", r"U\+D800"),
        ("%", "two hexadecimal digits"),
        ("a%4", "two hexadecimal digits"),
        ("a%zz", "two hexadecimal digits"),
        ("a%ff", "UTF-8"),
        ("$management", "the system's"),
        ("!policy", "the system's"),
        ("a/$cbs/b", "the system's"),
        ("a/%24cbs", "the system's"),
        ("$dlq", "the system's"),
        ("a/$dlq/$dlq", "the system's"),
        ("q" * (QUEUE_NAME_BYTES_MAX + 1), "at most 512"),
        ("é" * 257, "514 bytes"),
    ],
)
def test_refused(address: str, said: str) -> None:
    with pytest.raises(InvalidNameError, match=said) as error:
        queue_name(address)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1_000


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_refused(address: str) -> None:
    try:
        name = queue_name(address)
    except InvalidNameError as refusal:
        said = str(refusal)
    else:
        check(name)
        name.encode()
        assert all(name.split("/"))
        said = "a name"
    assert said.isprintable()


def test_dead_letter_queues() -> None:
    assert dead_letter_name("a/b") == "a/b/$dlq"
    assert dead_letter_name("a/b/$dlq") == "a/b/$dlq"
    assert is_dead_letter("a/$dlq")
    assert not is_dead_letter("$dlq")
    assert (owner("a/$dlq"), owner("a")) == ("a", "a")
