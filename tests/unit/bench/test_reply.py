"""lightrail.bench.requesting: a reply has the address, correlation-id and body that its request asks for."""

import pytest
from proton import Message

from lightrail.bench.message import STAMP, MalformedMessageError, build, origin_of, parse
from lightrail.bench.numbered import NumberedSections, message_id
from lightrail.bench.requesting import CORRELATION_ID, REPLY_TO, properties, reply_to, text_of

ORIGIN = origin_of(7, 3)


def request(numbered: NumberedSections, size: int = 100, sequence: int = 42) -> bytearray:
    template = build(size, True, numbered, ORIGIN)
    for digits in template.digits:
        digits.write(template.buffer, sequence)
    STAMP.pack_into(template.buffer, template.stamp_at, ORIGIN, sequence, 1_000)
    return template.buffer


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("size", [24, 100, 256, 70_000])
@pytest.mark.parametrize("address", ["bench-reply-1", "/queue/" + "n" * 300])
def test_proton_reads_requests_and_replies(address: str, size: int, durable: bool) -> None:
    octets = request(NumberedSections(message_ids=True, groups=12, reply_to=address), size)
    sent = Message()
    sent.decode(bytes(octets))
    assert (sent.id, sent.reply_to, sent.group_id) == (message_id(ORIGIN, 42), address, "06")
    found = reply_to(octets, parse(octets), durable)
    reply = Message()
    reply.decode(found.octets)
    assert found.address == reply.address == address
    assert (reply.correlation_id, reply.body, reply.durable) == (sent.id, sent.body, durable)
    assert STAMP.unpack_from(bytes(reply.body)) == (ORIGIN, 42, 1_000)


def test_properties_are_found_behind_other_sections_whoever_encoded_them() -> None:
    message = Message(body=b"x", inferred=True, id=7, reply_to="there", durable=True, address="a")
    message.annotations = {"x-opt-a": "b"}
    fields = properties(message.encode())
    assert text_of(fields, REPLY_TO) == "there"
    assert text_of(fields, 0) is None
    assert text_of(fields, CORRELATION_ID) is None
    found = Message()
    octets = bytearray(message.encode())
    found.decode(reply_to(octets, parse(octets), False).octets)
    assert found.correlation_id == 7


@pytest.mark.parametrize(
    "numbered", [NumberedSections(), NumberedSections(message_ids=True), NumberedSections(reply_to="there")]
)
def test_a_message_that_asks_for_no_reply_is_no_request(numbered: NumberedSections) -> None:
    octets = request(numbered)
    with pytest.raises(MalformedMessageError, match="expected a request with a message-id and a reply-to"):
        reply_to(octets, parse(octets), False)
