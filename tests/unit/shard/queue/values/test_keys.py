"""Keys: the values of all types have one order, and what is kept of a value is small."""

import uuid

import pytest

from lightrail.amqp.values import Symbol, Timestamp
from lightrail.shard.queue.values.keys import KEY_BYTES_MAX, MISSING, key_of


def test_keys_of_all_types_have_one_order() -> None:
    values = [
        False, True, -1, 0.5, 1, 2.0, 10**20, float("inf"), float("nan"), Timestamp(5), "", "a", Symbol("b"),
        "c", uuid.UUID(int=1), b"", b"z", [1], {"a": 1}, None,
    ]  # fmt: skip
    keys = [key_of(value) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert key_of(1) == key_of(1.0)
    assert key_of("b") == key_of(Symbol("b"))
    assert keys[-1] == MISSING


@pytest.mark.parametrize("kind", [str, bytes])
def test_long_keys_are_cut_and_told_apart(kind: type[str | bytes]) -> None:
    """Whatever a message has in the field of a key, what is kept of it is small."""
    most = KEY_BYTES_MAX
    texts = ["k" * most, "k" * most * 4_000 + "a", "k" * most * 4_000 + "b"]
    exact, one, two = texts if kind is str else [text.encode() for text in texts]
    assert key_of(exact)[1] == exact
    assert key_of(one) != key_of(two)
    assert key_of(one) == key_of(one[:])
    assert len(key_of(one)[1]) <= most + 32
