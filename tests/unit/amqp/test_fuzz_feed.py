"""Whatever a peer sends, feed answers with events and lawful frames, in bounded time and memory."""

from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightrail.amqp import events, frames
from lightrail.amqp.errors import EndedError
from lightrail.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
    encode_performative,
)
from lightrail.amqp.values import Symbol
from lightrail.model import conditions
from tests.unit.amqp.peer import Peer, amqp, conditions_of, data, sasl, transfer

KNOWN = {value for name, value in vars(conditions).items() if name.isupper()}

LAWFUL = [
    frames.AMQP_HEADER,
    amqp(Open(container_id="peer", max_frame_size=600, idle_time_out=1000)),
    amqp(Begin(next_outgoing_id=0, incoming_window=5, outgoing_window=5)),
    amqp(
        Attach(
            name="in",
            handle=0,
            role=False,
            source=Source(),
            target=Target(address="q"),
            initial_delivery_count=0,
        )
    ),
    amqp(
        Attach(
            name="out", handle=1, role=True, source=Source(address="q"), target=Target(), rcv_settle_mode=1
        )
    ),
    *[amqp(transfer(number), data(b"x" * 20)) for number in range(1, 12)],
    amqp(transfer(12, more=True), data(b"x" * 20)),
    amqp(Transfer(handle=0), b"y"),
    amqp(
        Flow(
            next_incoming_id=0,
            incoming_window=50,
            next_outgoing_id=13,
            outgoing_window=50,
            handle=1,
            delivery_count=0,
            link_credit=20,
        )
    ),
    amqp(Disposition(role=True, first=0, last=3, settled=False, state=Accepted())),
    amqp(Disposition(role=False, first=0, last=30, settled=True, state=Accepted())),
    frames.EMPTY_FRAME,
    amqp(Begin(next_outgoing_id=0, incoming_window=5, outgoing_window=5), channel=1),
    amqp(End(), channel=1),
    amqp(Detach(handle=0, closed=True)),
    amqp(End()),
    amqp(Close()),
]

MUTATION = st.tuples(
    st.sampled_from(["octet", "cut", "repeat", "insert", "swap", "drop"]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.binary(max_size=12),
)


def mutate(pieces: list[bytes], mutations: list[Any]) -> list[bytes]:
    pieces = list(pieces)
    for kind, where, what, octets in mutations:
        if not pieces:
            break
        index = where % len(pieces)
        piece = pieces[index]
        if kind == "octet" and piece:
            offset = what % len(piece)
            pieces[index] = piece[:offset] + bytes([where % 256]) + piece[offset + 1 :]
        elif kind == "cut" and piece:
            pieces[index] = piece[: what % len(piece)]
        elif kind == "repeat":
            pieces.insert(what % (len(pieces) + 1), piece)
        elif kind == "insert":
            pieces.insert(index, octets)
        elif kind == "swap":
            other = what % len(pieces)
            pieces[index], pieces[other] = pieces[other], pieces[index]
        elif kind == "drop":
            del pieces[index]
    return pieces


def drive(peer: Peer, pieces: list[bytes], step: int) -> None:
    """Feed, answer as a broker would, and check what the engine writes."""
    sent = 0
    for start in range(0, len(pieces), step):
        found = peer.feed(b"".join(pieces[start : start + step]))
        for event in found:
            if isinstance(event, events.Attached):
                event.link.accept()
                if not event.link.is_sender:
                    event.link.grant(9)
            elif isinstance(event, events.Transfers):
                first = event.first_delivery_id
                event.link.settle(first, first + len(event.payloads) - 1)
            elif isinstance(event, events.Credit):
                while sent < min(event.limit, 30) and event.link.sent < event.limit:  # type: ignore[attr-defined]
                    with suppress(EndedError):
                        event.link.send_one(data(b"z" * 400 * (sent % 3)))
                    sent += 1
                event.link.drained()
            elif isinstance(event, events.Outcome) and not event.settled:
                event.link.settle_sent(event.first, event.last, event.state)
            elif isinstance(event, events.SaslInit):
                peer.engine.sasl_outcome(event.mechanism == "PLAIN", "user")
                found += peer.feed(b"")
            elif (
                isinstance(event, events.Closed | events.Ended | events.Detached) and event.error is not None
            ):
                assert event.by_peer or event.error.condition in KNOWN
                assert event.by_peer or "found" in str(event.error.description)
        if peer.engine.closed:
            break
    heard = peer.hear()
    assert {condition for _, condition in conditions_of(heard)} <= KNOWN
    closes = [index for index, body in enumerate(heard) if isinstance(body, Close)]
    assert closes in ([], [len(heard) - 1]), "close is the last thing ever written"
    assert peer.feed(b"") == [] or not peer.engine.closed
    peer.engine.tick(10**6)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MUTATION, max_size=6), st.integers(1, 30))
def test_a_lawful_conversation_with_faults_in_it(mutations: list[Any], step: int) -> None:
    drive(Peer(max_frame_size=700, session_incoming_window=8), mutate(LAWFUL, mutations), step)


@settings(max_examples=150, deadline=None)
@given(st.lists(MUTATION, max_size=4), st.integers(1, 30))
def test_a_sasl_conversation_with_faults_in_it(mutations: list[Any], step: int) -> None:
    start = [frames.SASL_HEADER, sasl(SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0a\0b"))]
    peer = Peer(sasl_mechanisms=("PLAIN",), allow_plain_header=False)
    drive(peer, mutate([*start, *LAWFUL], mutations), step)


WHOLE = st.sampled_from([piece[8:] for piece in LAWFUL[1:]])
BODY = WHOLE | st.tuples(WHOLE, st.integers(0, 60)).map(lambda both: both[0][: both[1]])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), BODY | st.binary(max_size=60)), max_size=12))
def test_frames_of_any_content_after_open(bodies: list[tuple[int, bytes]]) -> None:
    drive(Peer(), [*LAWFUL[:4], *[frames.frame(channel, body) for channel, body in bodies]], 3)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_garbage(garbage: bytes, after_open: bool) -> None:
    drive(Peer(), [*(LAWFUL[:3] if after_open else []), garbage], 1)


NUMBER = st.none() | st.sampled_from([0, 1, 2, 5, 255, 2**31, 2**32 - 1])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.builds(
                Flow,
                next_incoming_id=NUMBER,
                incoming_window=NUMBER.filter(lambda value: value is not None),
                next_outgoing_id=NUMBER.filter(lambda value: value is not None),
                outgoing_window=st.just(1),
                handle=st.sampled_from([None, 0, 1, 9]),
                delivery_count=NUMBER,
                link_credit=NUMBER,
                drain=st.booleans(),
                echo=st.booleans(),
            ),
            st.builds(
                Disposition,
                role=st.booleans(),
                first=NUMBER.filter(lambda value: value is not None),
                last=NUMBER,
                settled=st.booleans(),
            ),
            st.builds(
                Transfer,
                handle=st.sampled_from([0, 0, 0, 1, 9]),
                delivery_id=NUMBER,
                delivery_tag=st.sampled_from([b"a", b"a", None]),
                more=st.booleans(),
                aborted=st.booleans(),
                resume=st.booleans(),
                settled=st.sampled_from([None, True, False]),
            ),
            st.builds(Detach, handle=st.sampled_from([0, 1, 9]), closed=st.booleans()),
        ),
        max_size=15,
    )
)
def test_well_formed_frames_with_any_numbers(bodies: list[Any]) -> None:
    pieces = [frames.frame(0, encode_performative(body)) for body in bodies]
    drive(Peer(session_incoming_window=8), [*LAWFUL[:5], *pieces], 2)
