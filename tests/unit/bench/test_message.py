"""lightrail.bench.message: proton reads what is built, and the body is found whatever a broker adds."""

import pytest
from proton import Data, Message

from lightrail.bench.application import SIZES, sizes
from lightrail.bench.message import (
    SIZE_MIN,
    STAMP,
    MalformedMessageError,
    Parsed,
    build,
    origin_of,
    parse,
    run_of,
)
from lightrail.bench.numbered import NumberedSections


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("size", [SIZE_MIN, 100, 255, 256, 5_000, 70_000])
def test_proton_reads_what_is_built(size: int, durable: bool) -> None:
    template = build(size, durable)
    buffer, at = template.buffer, template.stamp_at
    STAMP.pack_into(buffer, at, origin_of(7, 3), 42, 1_000)
    message = Message()
    message.decode(bytes(buffer))
    assert message.durable is durable
    assert len(message.body) == size
    assert STAMP.unpack_from(bytes(message.body)) == (origin_of(7, 3), 42, 1_000)
    parsed = parse(buffer)
    assert (parsed.body, parsed.size, parsed.redelivered) == (at, size, False)


@pytest.mark.parametrize(
    ("fields", "redelivered"),
    [
        ({}, False),
        ({"delivery_count": 1}, True),
        ({"durable": True, "priority": 9, "ttl": 5.0}, False),
        ({"durable": True, "delivery_count": 300}, True),
    ],
)
def test_the_body_is_found_behind_other_sections(fields: dict[str, object], redelivered: bool) -> None:
    message = Message(body=b"x" * 300, inferred=True, properties={"a": 1}, subject="s" * 300)
    message.annotations = {"x-opt-a": "b"}
    for name, value in fields.items():
        setattr(message, name, value)
    encoded = message.encode()
    parsed = parse(encoded)
    assert encoded[parsed.body : parsed.body + parsed.size] == b"x" * 300
    assert parsed.redelivered is redelivered


def test_a_broker_that_says_not_the_first_acquirer_redelivers() -> None:
    header = Data()
    header.put_described()
    header.enter()
    header.put_ulong(0x70)
    header.put_list()
    header.enter()
    header.put_bool(True)
    header.put_ubyte(4)
    header.put_null()
    header.put_bool(False)
    header.exit()
    header.exit()
    assert parse(header.encode() + build(100, False).buffer).redelivered


@pytest.mark.parametrize("list32", [False, True])
@pytest.mark.parametrize("priorities", [0, 10])
@pytest.mark.parametrize(("ttl_ms", "jms"), [(0, False), (3_600_000, True)])
def test_what_applications_send_has_its_fields_and_an_id_of_its_own(
    monkeypatch: pytest.MonkeyPatch, list32: bool, priorities: int, ttl_ms: int, jms: bool
) -> None:
    origin = origin_of(7, 3)
    numbered = NumberedSections(priorities, application=True, list32=list32, ttl_ms=ttl_ms, jms=jms)
    found = []
    times: list[float] = []
    clock = iter(range(1_800_000_000, 1_800_000_100))
    monkeypatch.setattr("lightrail.bench.application.time.time_ns", lambda: next(clock) * 1_000_000_000)
    for sequence in (0, 13):
        template = build(300, True, numbered, origin)
        for digits in template.digits:
            digits.write(template.buffer, sequence)
        STAMP.pack_into(template.buffer, template.stamp_at, origin, sequence, 1_000)
        assert parse(template.buffer) == Parsed(template.stamp_at, 300, False)
        assert (b"\x00Ss\xd0" in template.buffer) is list32
        message = Message()
        message.decode(bytes(template.buffer))
        assert (message.durable, message.priority) == (True, sequence % 10 if priorities else 4)
        assert (message.subject, message.content_type) == ("order.created", "application/json")
        assert message.ttl == ttl_ms / 1_000
        annotations = {"x-opt-jms-msg-type": 3, "x-opt-jms-dest": 0} if jms else None
        assert message.annotations == annotations
        assert message.creation_time > 1_700_000_000
        if jms:
            assert message.expiry_time == pytest.approx(message.creation_time + message.ttl)
            times.append(message.creation_time)
        else:
            assert not message.expiry_time
        assert message.properties == {"tenant": "acme", "region": "eu-west-1"}
        found.append(message.id)
    assert found == [f"{origin:016x}-{0:012}", f"{origin:016x}-{13:012}"]
    assert times == sorted(set(times))


def test_the_sizes_of_one_sender_are_many_and_always_the_same() -> None:
    assert sizes(origin_of(1, 5)) == sizes(origin_of(2, 5)) != sizes(origin_of(1, 6))
    assert len(set(sizes(5))) > 100
    assert (min(sizes(5)) >= SIZES[0], max(sizes(5)) <= SIZES[1]) == (True, True)


def test_every_cut_is_malformed() -> None:
    buffer = build(100, True, NumberedSections(10, True, 7, ("colour", 100))).buffer
    for end in range(len(buffer)):
        with pytest.raises((MalformedMessageError, IndexError)):
            parse(bytes(buffer[:end]))


def test_an_origin_names_its_run_and_each_sender_has_another() -> None:
    origin = origin_of(0xABCDEF1, 9_999)
    assert run_of(origin) == 0xABCDEF1
    assert origin != origin_of(0xABCDEF1, 9_998)
    assert origin < 1 << 64


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("property", [None, ("colour", 100), ("n" * 64, 1_000_000_000)])
@pytest.mark.parametrize("priorities", [0, 10])
@pytest.mark.parametrize("groups", [0, 1, 12])
@pytest.mark.parametrize("message_ids", [False, True])
def test_numbers_change_with_every_message_and_nothing_else_does(
    message_ids: bool, groups: int, priorities: int, property: tuple[str, int] | None, durable: bool
) -> None:
    origin = origin_of(7, 3)
    template = build(100, durable, NumberedSections(priorities, message_ids, groups, property), origin)
    length = len(template.buffer)
    for sequence in (0, 1, 13, 107):
        for digits in template.digits:
            digits.write(template.buffer, sequence)
        STAMP.pack_into(template.buffer, template.stamp_at, origin, sequence, 1_000)
        assert len(template.buffer) == length
        message = Message()
        message.decode(bytes(template.buffer))
        assert message.durable is durable
        assert message.priority == (sequence % priorities if priorities else 4)
        assert message.id == (f"{origin:016x}-{sequence:012}" if message_ids else None)
        assert message.group_id == (f"{sequence % groups:0{len(str(groups - 1))}}" if groups else None)
        if property is not None:
            name, count = property
            assert message.properties == {name: f"{sequence % count:0{len(str(count - 1))}}"}
        assert STAMP.unpack_from(bytes(message.body)) == (origin, sequence, 1_000)
        assert parse(template.buffer).body == template.stamp_at
