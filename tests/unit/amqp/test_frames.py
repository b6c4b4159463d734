"""Frames written and read by hand mean what the complete codec says."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp import frames
from lightrail.amqp.performatives import (
    Accepted,
    Disposition,
    Flow,
    Modified,
    Received,
    Rejected,
    Released,
    decode_performative,
    encode_performative,
)
from tests.unit.amqp.peer import split

UINT = st.one_of(st.sampled_from([0, 1, 255, 256, 2**32 - 1]), st.integers(0, 2**32 - 1))
STATES = st.sampled_from(
    [None, Accepted(), Released(), Rejected(), Modified(delivery_failed=True), Received(1, 2)]
)


@given(st.booleans(), UINT, UINT, st.booleans(), STATES, st.integers(0, 65535))
def test_a_disposition_written_by_hand_reads_as_it_was_meant(
    receiver: bool, first: int, last: int, settled: bool, state: object, channel: int
) -> None:
    encoded = b"" if state is None else encode_performative(state)
    written = frames.disposition(channel, receiver, first, last, settled, encoded)
    assert written[6:8] == channel.to_bytes(2, "big")
    (found,) = split(written)
    assert (found.role, found.first, found.settled) == (receiver, first, settled)
    assert (found.first if found.last is None else found.last) == last
    assert type(found.state) is type(state)


@given(st.booleans(), UINT, st.none() | UINT, st.booleans(), STATES, st.booleans())
def test_a_disposition_read_by_hand_is_what_the_decoder_reads_or_left_to_it(
    role: bool, first: int, last: int | None, settled: bool, state: object, batchable: bool
) -> None:
    meant = Disposition(role=role, first=first, last=last, settled=settled, state=state, batchable=batchable)  # type: ignore[arg-type]
    body = encode_performative(meant)
    found = frames.read_disposition(body, 3, len(body))
    if found is None:
        assert not isinstance(state, Accepted | None) or body[3] != 0xC0
        return
    code = {0: None, 0x24: Accepted(), 0x26: Released()}[found[4]]
    assert found[:4] == (role, first, first if last is None else last, settled)
    assert code == state


@given(
    st.none() | UINT,
    UINT,
    UINT,
    UINT,
    st.none() | st.tuples(UINT, st.none() | UINT, st.none() | UINT, st.none() | UINT, st.booleans()),
    st.booleans(),
)
def test_a_flow_written_by_hand_reads_as_it_was_meant_by_both_decoders(
    next_incoming: int | None,
    window: int,
    next_outgoing: int,
    outgoing: int,
    link: tuple[int, int | None, int | None, int | None, bool] | None,
    echo: bool,
) -> None:
    fields = (next_incoming, window, next_outgoing, outgoing)
    handle, delivery_count, credit, available, drain = link or (None, None, None, None, False)
    written = frames.flow(3, *fields, handle, delivery_count, credit, available, drain, echo)
    (found,) = split(written)
    assert isinstance(found, Flow)
    assert (found.next_incoming_id, found.incoming_window, found.next_outgoing_id) == fields[:3]
    assert found.outgoing_window == outgoing
    assert found.echo is echo
    if link is not None:
        assert (found.handle, found.delivery_count, found.link_credit, found.available, found.drain) == link
    quick = frames.read_small_fields(written, 11, len(written))
    assert quick is not None
    assert quick[:4] == list(fields)


@given(st.binary(max_size=60))
def test_reading_by_hand_never_raises(body: bytes) -> None:
    frames.read_small_fields(body, 0, len(body))
    frames.read_disposition(body, 0, len(body))
    frames.read_small_fields(b"\xc0" + body, 0, len(body) + 1)
    frames.read_disposition(b"\xc0" + body, 0, len(body) + 1)


@given(st.binary(max_size=40), st.integers(0, 255))
def test_what_is_read_by_hand_the_decoder_reads_too(fields: bytes, count: int) -> None:
    body = b"\x00\x53\x15\xc0" + bytes((len(fields) + 1, count)) + fields
    found = frames.read_disposition(body, 3, len(body))
    if found is not None:
        meant, end = decode_performative(body, 0, len(body))
        assert end == len(body)
        assert (meant.role, meant.first, meant.settled) == (found[0], found[1], found[3])


@given(UINT)
def test_uint_is_written_in_its_smallest_form(value: int) -> None:
    written = frames.uint(value)
    assert len(written) == (1 if value == 0 else 2 if value < 256 else 5)
    assert int.from_bytes(written[1:], "big") == value
