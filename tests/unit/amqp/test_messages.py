"""Messages as values: what was written is read again, and what other clients write is read as well."""

import uuid
from typing import Any

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.messages import Message, plain, read_body, read_message, write_message
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Array, DecodeError, Described, Float, Symbol, Timestamp, UInt, ULong


@pytest.mark.parametrize("body", [None, "text", 7, {"a": [1, 2], "b": {"c": None}}, [], b"bytes"])
def test_what_was_written_is_read(body: Any) -> None:
    message = Message(Properties(message_id="id", reply_to="there"), {"operation": "READ"}, body)
    assert read_message(write_message(message)) == message


def test_a_body_of_data_sections_is_their_bytes() -> None:
    assert read_body(b"\x00\x53\x75\xa0\x02ab\x00\x53\x75\xa0\x01c") == b"abc"


def test_a_body_of_sequences_is_all_their_items() -> None:
    section = b"\x00" + encode(Symbol("amqp:amqp-sequence:list")) + encode([1, "x"])
    assert read_body(section + section) == [1, "x", 1, "x"]


def test_no_body_is_none() -> None:
    assert read_message(b"") == Message()


def test_a_body_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(DecodeError):
        read_message(b"\x00\x53\x77\xa1\x05abc")


def test_values_become_what_json_knows() -> None:
    value = {Symbol("s"): [UInt(1), ULong(2), Float(0.5), True, None, Symbol("x")], "t": Timestamp(5)}
    made = plain(value)
    assert made == {"s": [1, 2, 0.5, True, None, "x"], "t": 5}
    assert [type(each) for each in made["s"]] == [int, int, float, bool, type(None), str]
    assert plain(Array([Symbol("a")], 0xA3)) == ["a"]


@pytest.mark.parametrize("value", [b"bytes", uuid.UUID(int=1), {1: 2}, Described(Symbol("d"), 1), [b""]])
def test_values_that_json_has_no_type_for_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        plain(value)
