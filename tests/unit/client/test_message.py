"""Messages of the client: every type and section there and back, and as qpid-proton reads the same bytes."""

import uuid
from typing import Any

import proton
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightrail.amqp.values import DecodeError, Symbol, Timestamp, UInt
from lightrail.client import Data, Message, Sequence

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SIMPLE = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=20)
    | st.uuids()
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
IDS = st.none() | TEXT | st.uuids() | st.binary(max_size=20) | st.integers(0, (1 << 64) - 1)
SECONDS = st.none() | st.integers(0, 1 << 31).map(lambda milliseconds: milliseconds / 1000)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "id": IDS,
        "correlation_id": IDS,
        "subject": st.none() | TEXT,
        "to": st.none() | TEXT,
        "reply_to": st.none() | TEXT,
        "content_type": st.none() | st.just("application/json"),
        "content_encoding": st.none() | st.just("gzip"),
        "group": st.none() | TEXT,
        "group_sequence": st.none() | st.integers(0, (1 << 32) - 1),
        "reply_to_group": st.none() | TEXT,
        "user_id": st.none() | st.binary(max_size=10),
        "expires_at": SECONDS,
        "created_at": SECONDS,
        "durable": st.booleans(),
        "priority": st.integers(0, 255),
        "ttl": SECONDS,
        "properties": st.dictionaries(TEXT, SIMPLE, max_size=4),
        "annotations": st.dictionaries(st.just("x-opt-a") | st.just("x-opt-b"), VALUES, max_size=2),
        "delivery_annotations": st.dictionaries(st.just("x-opt-c"), VALUES, max_size=1),
        "footer": st.dictionaries(st.just("x-opt-d"), VALUES, max_size=1),
    },
)
BODIES = (
    VALUES
    | st.lists(st.binary(max_size=10), min_size=2, max_size=4).map(Data)
    | st.lists(st.lists(SIMPLE, max_size=3), min_size=1, max_size=3).map(Sequence)
)
NAMES = [
    *("body", "id", "correlation_id", "subject", "to", "reply_to", "content_type", "content_encoding"),
    *("group", "group_sequence", "reply_to_group", "user_id", "expires_at", "created_at", "durable"),
    *("priority", "ttl", "properties", "annotations", "delivery_annotations", "footer"),
]


@given(BODIES, FIELDS)
def test_what_was_said_is_read_again(body: Any, fields: dict[str, Any]) -> None:
    message = Message(body, **fields)
    found = Message.decode(message.encode())
    for name in NAMES:
        assert getattr(found, name) == getattr(message, name), name
    assert type(found.body) is type(body) or isinstance(found.body, type(body))


@given(BODIES, FIELDS)
def test_what_came_goes_on_as_the_same_bytes(body: Any, fields: dict[str, Any]) -> None:
    payload = Message(body, **fields).encode()
    found = Message.decode(payload)
    assert found.encode() is payload
    assert found.subject == found.replace(priority=9).subject
    assert found.encode() is payload, "reading it changes nothing"
    assert found == Message.decode(bytes(payload))


@given(VALUES, FIELDS)
def test_proton_reads_the_same(body: Any, fields: dict[str, Any]) -> None:
    # Proton has no bytes as a value of a map, where it hands out memoryviews, and reads an empty id as none.
    # Texts of properties end at their first NUL for it.
    assume(not any("\0" in value for value in fields.values() if type(value) is str))
    message = Message(body, **fields)
    theirs = proton.Message()
    theirs.decode(message.encode())
    ours = Message.decode(message.encode())
    assert plain(theirs.body) == plain(ours.body)
    assert (theirs.subject, theirs.address, theirs.reply_to) == (ours.subject, ours.to, ours.reply_to)
    assert plain(theirs.id) == plain(ours.id)
    assert plain(theirs.correlation_id) == plain(ours.correlation_id)
    assert (theirs.durable, theirs.priority) == (ours.durable, ours.priority)
    assert theirs.ttl == (ours.ttl or 0)
    assert plain(theirs.properties or {}) == plain(dict(ours.properties))
    assert plain(theirs.annotations or {}) == plain(dict(ours.annotations))


def plain(value: Any) -> Any:
    """The value without the classes that either library has for AMQP's types."""
    match value:
        case memoryview() | bytes():
            return bytes(value)
        case bool() | None | uuid.UUID():
            return value
        case str():
            return str(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case dict():
            return {plain(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    raise AssertionError(type(value))


@given(BODIES, FIELDS)
def test_a_message_is_replaced_by_another_and_never_changes(body: Any, fields: dict[str, Any]) -> None:
    message = Message(body, **fields)
    before = message.encode()
    other = message.replace(subject="another")
    assert other.subject == "another"
    assert other.replace(subject=message.subject) == message
    assert message.encode() == before
    with pytest.raises(AttributeError):
        message.subject = "else"  # type: ignore[misc]


def test_a_plain_message_is_durable_and_has_its_body_alone() -> None:
    assert Message(b"hello").encode() == b"\x00\x53\x70\xc0\x02\x01\x41\x00\x53\x75\xa0\x05hello"
    assert Message(b"hello", durable=False).encode() == b"\x00\x53\x75\xa0\x05hello"


def test_types_that_python_does_not_have_keep_theirs() -> None:
    body = [Symbol("s"), Timestamp(5), UInt(7)]
    found = Message.decode(Message(body).encode()).body
    assert [type(each) for each in found] == [Symbol, Timestamp, UInt]


@pytest.mark.parametrize("fields", [{"ttl": -1}, {"expires_at": -0.001}])
def test_times_before_there_were_any_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 seconds or more"):
        Message(b"", **fields)  # type: ignore[arg-type]


def test_what_amqp_has_no_type_for_is_named() -> None:
    with pytest.raises((TypeError, ValueError), match=r"complex"):
        Message({"x": 1j}).encode()


@pytest.mark.parametrize("payload", [b"x", b"\x00\x53\x75\xa0\x05hell", b"\x00\x53\x99\x45"])
def test_bytes_that_are_no_message_say_so_where_they_are_read(payload: bytes) -> None:
    message = Message.decode(payload)
    assert message.encode() is payload
    with pytest.raises(DecodeError):
        _ = message.body
    assert "no message" in repr(message)
