"""Connections: headers, SASL, open and close, idle time-outs, faults that end everything."""

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.connection import PIPELINED_BYTES_MAX, Connection
from lightrail.amqp.connection_endpoint import MIN_MAX_FRAME_SIZE
from lightrail.amqp.errors import LocalError
from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Begin,
    Close,
    End,
    Flow,
    Open,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
)
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.values import Symbol
from tests.unit.amqp.peer import Peer, amqp, conditions_of, data, opened, sasl, split, transfer

# --- headers (2.2) --------------------------------------------------------------------------------------


def test_header_and_open_are_answered_in_kind() -> None:
    peer = Peer(container_id="broker", max_frame_size=4096, channel_max=7, idle_time_out_ms=60_000)
    assert peer.feed(frames.AMQP_HEADER) == []
    assert peer.hear() == [frames.AMQP_HEADER]
    (event,) = peer.say(Open(container_id="peer", hostname="here"))
    assert isinstance(event, events.Opened)
    assert event.open.hostname == "here"
    (answer,) = peer.hear()
    assert (answer.container_id, answer.max_frame_size, answer.channel_max) == ("broker", 4096, 7)
    assert answer.idle_time_out == 30_000, "half of the threshold is announced (2.4.5)"


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x01\x01\x00",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x02\x01\x00\x00",
        b"GET / HT",
        b"AMQP\x01\x01\x00\x00",
    ],
)
def test_a_header_not_spoken_here_is_answered_by_one_that_is_and_the_end(header: bytes) -> None:
    peer = Peer()
    assert peer.feed(header) == [events.HeaderRejected(frames.AMQP_HEADER, header)]
    assert peer.hear() == [frames.AMQP_HEADER]
    assert peer.engine.closed
    assert peer.feed(b"more") == []


def test_garbage_shorter_than_a_header_is_rejected_at_its_first_byte() -> None:
    peer = Peer()
    assert peer.feed(b"\x16") == [events.HeaderRejected(frames.AMQP_HEADER, b"\x16")]


def test_a_plain_header_where_sasl_is_required_is_answered_by_the_sasl_header() -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",), allow_plain_header=False)
    rejected = events.HeaderRejected(frames.SASL_HEADER, frames.AMQP_HEADER)
    assert peer.feed(frames.AMQP_HEADER) == [rejected]
    assert peer.hear() == [frames.SASL_HEADER]
    assert peer.engine.closed


def test_a_sasl_header_where_there_is_no_sasl_is_answered_by_the_plain_header() -> None:
    peer = Peer()
    peer.feed(frames.SASL_HEADER)
    assert peer.hear() == [frames.AMQP_HEADER]
    assert peer.engine.closed


# --- SASL (security 5.3) --------------------------------------------------------------------------------


def test_sasl_goes_from_mechanisms_over_challenge_to_outcome_and_a_new_header() -> None:
    peer = Peer(sasl_mechanisms=("SCRAM-SHA-256", "PLAIN"), allow_plain_header=False)
    assert peer.feed(frames.SASL_HEADER) == []
    assert peer.hear() == [
        frames.SASL_HEADER,
        SaslMechanisms(sasl_server_mechanisms=[Symbol("SCRAM-SHA-256"), Symbol("PLAIN")]),
    ]
    init = SaslInit(mechanism=Symbol("SCRAM-SHA-256"), initial_response=b"n,,n=u,r=x", hostname="here")
    assert peer.feed(sasl(init)) == [events.SaslInit("SCRAM-SHA-256", b"n,,n=u,r=x", "here")]
    peer.engine.sasl_challenge(b"r=xy")
    assert peer.hear() == [SaslChallenge(challenge=b"r=xy")]
    assert peer.feed(b"") == []
    assert peer.feed(sasl(SaslResponse(response=b"c=biws"))) == [events.SaslResponse(b"c=biws")]
    peer.engine.sasl_outcome(True, "u", b"v=1")
    assert peer.hear() == [SaslOutcome(code=0, additional_data=b"v=1")]
    assert peer.engine.user == "u"
    (event,) = peer.feed(frames.AMQP_HEADER + amqp(Open(container_id="peer")))
    assert isinstance(event, events.Opened)


def test_all_of_it_pipelined_waits_for_the_answers() -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",), allow_plain_header=False)
    found = peer.feed(
        frames.SASL_HEADER
        + sasl(SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0u\0p"))
        + frames.AMQP_HEADER
        + amqp(Open(container_id="peer"))
        + amqp(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    )
    assert [type(event) for event in found] == [events.SaslInit]
    peer.engine.sasl_outcome(True, "u")
    assert [type(event) for event in peer.feed(b"")] == [events.Opened, events.Begun]


def test_a_bad_outcome_closes() -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",))
    peer.feed(frames.SASL_HEADER + sasl(SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0u\0p")))
    peer.hear()
    peer.engine.sasl_outcome(False)
    assert peer.hear() == [SaslOutcome(code=1)]
    assert peer.engine.closed


def test_a_mechanism_that_was_not_offered_gets_the_outcome_auth() -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",))
    (event,) = peer.feed(frames.SASL_HEADER + sasl(SaslInit(mechanism=Symbol("GSSAPI"))))
    assert isinstance(event, events.Closed)
    assert peer.hear()[-1] == SaslOutcome(code=1)
    assert peer.engine.closed


@pytest.mark.parametrize(
    "frame",
    [
        sasl(SaslMechanisms(sasl_server_mechanisms=[Symbol("PLAIN")])),
        sasl(SaslOutcome(code=0)),
        sasl(SaslChallenge(challenge=b"")),
        sasl(SaslResponse(response=b"too early")),
        amqp(Open(container_id="peer")),
        frames.sasl_frame(b""),
        b"\xff\xff\xff\xff\x02\x01\x00\x00",
        b"\x00\x00\x00\x07\x02\x01\x00\x00",
        frames.sasl_frame(b"\x00\x53\x41\xc0\x7f\x01"),
        frames.sasl_frame(b"\x00\x53\x41\xc0\x07\x01\xa3\x05PLAIN\x40"),
    ],
)
def test_what_only_a_server_may_send_and_what_is_no_frame_closes_the_socket(frame: bytes) -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",))
    peer.feed(frames.SASL_HEADER)
    (event,) = peer.feed(frame)
    assert isinstance(event, events.Closed)
    assert not event.by_peer
    assert event.error is not None
    assert peer.engine.closed


def test_a_sasl_answer_that_is_not_due_is_a_local_error() -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",))
    with pytest.raises(LocalError):
        peer.engine.sasl_outcome(True)
    peer.feed(frames.SASL_HEADER)
    with pytest.raises(LocalError):
        peer.engine.sasl_challenge(b"")


def test_a_sasl_frame_larger_than_512_bytes_is_read() -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",))
    response = b"\0u\0" + b"p" * 5000
    (event,) = peer.feed(
        frames.SASL_HEADER + sasl(SaslInit(mechanism=Symbol("PLAIN"), initial_response=response))
    )
    assert event.response == response


def test_flooding_behind_an_unanswered_sasl_frame_ends_it() -> None:
    peer = Peer(sasl_mechanisms=("PLAIN",), max_frame_size=512)
    peer.feed(frames.SASL_HEADER + sasl(SaslInit(mechanism=Symbol("PLAIN"))))
    assert peer.feed(b"x" * PIPELINED_BYTES_MAX) == []
    (event,) = peer.feed(b"x")
    assert isinstance(event, events.Closed)


# --- open and close (2.4, 2.7.1, 2.7.9) -----------------------------------------------------------------


def test_the_first_frame_must_be_open() -> None:
    peer = Peer()
    peer.feed(frames.AMQP_HEADER)
    (event,) = peer.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert isinstance(event, events.Closed)
    _, answer, close = peer.hear()
    assert isinstance(answer, Open), "close may only follow open"
    assert close.error.condition == "amqp:not-allowed"
    assert "expected open, found begin" in close.error.description


def test_a_second_open_closes_with_not_allowed() -> None:
    peer = opened()
    (event,) = peer.say(Open(container_id="again"))
    assert isinstance(event, events.Closed)
    assert not event.by_peer
    assert conditions_of(peer.hear()) == [("close", "amqp:not-allowed")]
    assert not peer.engine.closed, "the peer's close is waited for"
    assert peer.say(Close()) == []
    assert peer.engine.closed


def test_open_beyond_channel_0_is_a_framing_error() -> None:
    peer = Peer()
    peer.feed(frames.AMQP_HEADER)
    peer.say(Open(container_id="peer"), channel=1)
    assert conditions_of(peer.hear()) == [("close", "amqp:connection:framing-error")]


def test_max_frame_size_below_512_is_an_invalid_field() -> None:
    Peer().open(max_frame_size=MIN_MAX_FRAME_SIZE)
    peer = Peer()
    peer.feed(frames.AMQP_HEADER)
    peer.say(Open(container_id="peer", max_frame_size=MIN_MAX_FRAME_SIZE - 1))
    assert conditions_of(peer.hear()) == [("close", "amqp:invalid-field")]


def test_close_is_answered_and_nothing_follows_it() -> None:
    peer = opened()
    error = AmqpError(condition=Symbol("amqp:internal-error"), description="tired")
    (event,) = peer.say(Close(error=error))
    assert event == events.Closed(error, True)
    assert peer.hear() == [Close()]
    assert peer.engine.closed
    assert peer.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)) == []
    assert peer.hear() == []


def test_our_close_drops_what_comes_until_the_peers() -> None:
    peer = opened()
    link = peer.sender()
    peer.engine.close("amqp:connection:forced", "going down")
    assert conditions_of(peer.hear()) == [("close", "amqp:connection:forced")]
    assert peer.say(Transfer(handle=0, delivery_id=0, delivery_tag=b"a")) == []
    assert peer.feed(frames.frame(0, b"\x00\x53\x77\x45")) == []
    link.grant(100)
    link.detach()
    peer.engine.close()
    assert peer.hear() == [], "commands after close do nothing"
    assert peer.say(Close()) == []
    assert peer.engine.closed


def test_simultaneous_close_ends_both() -> None:
    peer = opened()
    peer.engine.close()
    peer.say(Close(error=AmqpError(condition=Symbol("amqp:internal-error"))))
    assert peer.engine.closed


def test_time_is_up_for_a_peer_that_does_not_answer_close() -> None:
    peer = opened(closing_time_ms=5_000)
    peer.engine.close()
    assert peer.engine.tick(10) == 5_000
    assert peer.engine.tick(5_000) is None
    assert peer.engine.closed


# --- framing (2.3) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        b"\x00\x00\x00\x07\x02\x00\x00\x00",
        b"\xff\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x00\x00\x08\x01\x00\x00\x00",
        b"\x00\x00\x00\x08\x03\x00\x00\x00",
        b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x18\x45\x00\x00\x00\x00",
        b"\x00\x00\x00\x10\x02\x07\x00\x00\x00\x53\x18\x45\x00\x00\x00\x00",
    ],
)
def test_what_can_not_be_cut_into_frames_is_a_framing_error_and_the_end(start: bytes) -> None:
    peer = opened()
    (event,) = peer.feed(start)
    assert isinstance(event, events.Closed)
    assert conditions_of(peer.hear()) == [("close", "amqp:connection:framing-error")]
    assert peer.engine.closed


def test_a_frame_larger_than_announced_is_refused_from_its_header_alone() -> None:
    peer = opened(max_frame_size=1024)
    peer.feed((1025).to_bytes(4, "big") + b"\x02\x00\x00\x00")
    (close,) = peer.hear()
    assert close.error.condition == "amqp:connection:framing-error"
    assert "1024" in close.error.description
    assert "1025" in close.error.description


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x53\x99\x45",
        b"\x40",
        b"\x00\x53\x11\xc0\x03\x01\x40",
        b"\x00\x53\x70\x45",
        b"\x00\x53\x13\xc0\x02\x01\x41",
        b"\x00\x53\x17\x45\x00",
        b"\x00\x53",
        b"\x00",
    ],
)
def test_what_is_no_performative_closes_with_decode_error(body: bytes) -> None:
    peer = opened()
    (event,) = peer.feed(frames.frame(0, body))
    assert isinstance(event, events.Closed)
    assert conditions_of(peer.hear()) == [("close", "amqp:decode-error")]


def test_an_sasl_body_in_an_amqp_frame_closes_with_decode_error() -> None:
    peer = opened()
    peer.feed(amqp(SaslOutcome(code=0)))
    assert conditions_of(peer.hear()) == [("close", "amqp:decode-error")]


def test_an_extended_header_is_skipped() -> None:
    peer = opened()
    body = amqp(End())[8:]
    (event,) = peer.feed((len(body) + 12).to_bytes(4, "big") + b"\x03\x00\x00\x00" + b"skip" + body)
    assert isinstance(event, events.Ended)


def test_empty_frames_say_nothing() -> None:
    peer = opened()
    assert peer.feed(frames.EMPTY_FRAME * 3) == []
    assert peer.hear() == []


def test_frames_on_a_channel_without_session_are_not_allowed() -> None:
    peer = opened()
    peer.say(Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1), channel=5)
    (close,) = peer.hear()
    assert close.error.condition == "amqp:not-allowed"
    assert "flow on channel 5" in close.error.description


def test_begin_beyond_channel_max_is_a_framing_error() -> None:
    peer = opened(channel_max=3)
    peer.begin(channel=3)
    peer.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=4)
    assert conditions_of(peer.hear()) == [("close", "amqp:connection:framing-error")]


def test_begin_on_a_channel_in_use_is_not_allowed() -> None:
    peer = opened()
    peer.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    assert conditions_of(peer.hear()) == [("close", "amqp:not-allowed")]


def test_more_sessions_than_the_peers_channel_max_lets_us_answer_are_not_allowed() -> None:
    peer = Peer()
    peer.open(channel_max=0)
    peer.begin(channel=0)
    peer.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1), channel=1)
    assert conditions_of(peer.hear()) == [("close", "amqp:not-allowed")]


def test_close_may_come_on_any_channel() -> None:
    peer = opened()
    (event,) = peer.say(Close(), channel=9)
    assert isinstance(event, events.Closed)
    assert event.by_peer


# --- time (2.4.5) ---------------------------------------------------------------------------------------


def test_a_connection_that_does_not_open_in_time_is_closed() -> None:
    peer = Peer(opening_time_ms=10_000)
    assert peer.engine.tick(0) == 10_000
    peer.feed(b"AMQP")
    assert peer.engine.tick(9_999) == 10_000
    assert peer.engine.tick(10_000) is None
    assert peer.engine.closed


def test_after_the_header_it_is_told_why() -> None:
    peer = Peer(opening_time_ms=10_000)
    peer.feed(frames.AMQP_HEADER)
    peer.engine.tick(10_000)
    assert conditions_of(peer.hear()) == [("close", "amqp:resource-limit-exceeded")]


def test_a_silent_peer_gets_a_close_with_a_condition_and_then_the_end() -> None:
    peer = opened(idle_time_out_ms=60_000, closing_time_ms=5_000)
    assert peer.engine.tick(1_000) == 60_000
    peer.now = 30_000
    peer.feed(frames.EMPTY_FRAME)
    assert peer.engine.tick(60_000) == 90_000, "counted from the last frame"
    assert peer.engine.tick(90_000) == 95_000
    assert conditions_of(peer.hear()) == [("close", "amqp:resource-limit-exceeded")]
    assert peer.engine.tick(95_000) is None
    assert peer.engine.closed


def test_bytes_that_make_no_frame_are_silence() -> None:
    peer = opened(idle_time_out_ms=60_000)
    for now in range(10_000, 60_000, 10_000):
        peer.now = now
        peer.feed(b"\0" if now < 30_000 else b"")
    assert peer.engine.tick(60_000) == 65_000
    assert peer.engine.phase > 3


def test_empty_frames_go_out_at_half_of_the_peers_time_out() -> None:
    peer = Peer(idle_time_out_ms=0)
    peer.open(idle_time_out=10_000)
    assert peer.engine.tick(0) == 5_000
    assert peer.hear() == []
    assert peer.engine.tick(5_000) == 10_000
    assert peer.hear() == [None]


def test_no_time_out_needs_no_tick() -> None:
    peer = Peer(idle_time_out_ms=0)
    peer.open()
    assert peer.engine.tick(0) is None


def test_a_time_out_too_short_to_keep_is_refused() -> None:
    peer = Peer(peer_idle_time_out_ms_min=20)
    peer.feed(frames.AMQP_HEADER)
    peer.say(Open(container_id="peer", idle_time_out=5))
    assert conditions_of(peer.hear()) == [("close", "amqp:invalid-field")]


# --- both roles -----------------------------------------------------------------------------------------


def exchange(left: Connection, right: Connection) -> tuple[list[object], list[object]]:
    """Carry bytes between two engines until both are quiet."""
    found: tuple[list[object], list[object]] = ([], [])
    while left.output or right.output:
        data = b"".join(left.output)
        left.output.clear()
        found[1].extend(right.feed(data, 0))
        data = b"".join(right.output)
        right.output.clear()
        found[0].extend(left.feed(data, 0))
    return found


def test_two_engines_talk_to_each_other() -> None:
    client = Connection(ConnectionSettings(is_server=False, container_id="client"), 0)
    server = Connection(ConnectionSettings(), 0)
    client.open()
    session = client.begin()
    sending = session.attach("a", True, Source(), Target(address="q"))
    _, (opened_there, begun, attached) = exchange(client, server)
    assert isinstance(opened_there, events.Opened)
    assert isinstance(begun, events.Begun)
    assert isinstance(attached, events.Attached)
    attached.link.accept()
    attached.link.grant(10)
    here, _ = exchange(client, server)
    assert here == [events.Attached(sending), events.Credit(sending, 10)]
    sending.send_one(b"\x00Sw\xa1\x02hi")
    _, (came,) = exchange(client, server)
    assert isinstance(came, events.Transfers)
    attached.link.settle(came.first_delivery_id, came.first_delivery_id)
    here, _ = exchange(client, server)
    assert here == [events.Outcome(sending, 0, 0, events.ACCEPTED, True)]
    client.close()
    exchange(client, server)
    assert client.closed
    assert server.closed


def test_begin_before_open_is_a_local_error() -> None:
    with pytest.raises(LocalError):
        Connection(ConnectionSettings(is_server=False), 0).begin()


# --- cutting the stream ---------------------------------------------------------------------------------

PRELUDE = b"".join(
    [
        frames.AMQP_HEADER,
        amqp(Open(container_id="peer")),
        amqp(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)),
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
    ]
)
REST = b"".join(
    [
        *[amqp(transfer(number), data(b"x" * number)) for number in range(6)],
        amqp(transfer(6, more=True), data(b"y" * 30)),
        amqp(Transfer(handle=0, more=True), b"z" * 30),
        amqp(Transfer(handle=0), b"end"),
        *[amqp(transfer(number, settled=True), data(b"x")) for number in range(7, 10)],
        frames.EMPTY_FRAME,
        amqp(Flow(next_incoming_id=0, incoming_window=5, next_outgoing_id=12, outgoing_window=1, echo=True)),
        amqp(End()),
        amqp(Close()),
    ]
)


def told(prelude: list[bytes], rest: list[bytes]) -> list[object]:
    """What a conversation tells; each Transfers taken apart, as batches depend on the cuts."""
    connection = Connection(ConnectionSettings(), 0)
    found: list[object] = []
    for chunk in prelude + rest:
        for event in connection.feed(chunk, 0):
            if isinstance(event, events.Attached):
                event.link.accept()
                event.link.grant(100)
            if isinstance(event, events.Transfers):
                for index, payload in enumerate(event.payloads):
                    found.append((event.first_delivery_id + index, payload, event.settled, event.head))
            else:
                found.append(type(event).__name__)
    found.append([type(body).__name__ for body in split(b"".join(connection.output))])
    return found


def test_a_conversation_cut_anywhere_means_the_same() -> None:
    whole = told([PRELUDE], [REST])
    assert len([item for item in whole if isinstance(item, tuple)]) == 10
    assert whole[:3] == ["Opened", "Begun", "Attached"]
    assert whole[-3:-1] == ["Ended", "Closed"]
    assert told([PRELUDE[index : index + 1] for index in range(len(PRELUDE))], [REST]) == whole
    assert told([PRELUDE], [REST[index : index + 1] for index in range(len(REST))]) == whole
    for cut in range(len(REST)):
        assert told([PRELUDE], [REST[:cut], REST[cut:]]) == whole
    for cut in range(len(PRELUDE)):
        assert told([PRELUDE[:cut], PRELUDE[cut:]], [REST]) == whole


def test_what_a_tick_led_to_is_told_by_the_next_feed() -> None:
    peer = opened(idle_time_out_ms=60_000, closing_time_ms=5_000)
    peer.engine.tick(60_000)
    (event,) = peer.feed(b"")
    assert isinstance(event, events.Closed)
    assert not event.by_peer


def test_as_many_links_as_the_other_engine_takes() -> None:
    client = Connection(ConnectionSettings(is_server=False), 0)
    server = Connection(ConnectionSettings(handle_max=0, channel_max=0), 0)
    client.open()
    session = client.begin()
    exchange(client, server)
    link = session.attach("a", True, Source(), Target(address="q"))
    _, (attached,) = exchange(client, server)
    attached.link.accept()  # type: ignore[attr-defined]
    assert exchange(client, server)[0] == [events.Attached(link)]
    with pytest.raises(LocalError):
        session.attach("b", True)
    with pytest.raises(LocalError):
        client.begin()
    link.detach()
    exchange(client, server)
    session.attach("b", True)
    exchange(client, server)
    assert server.opened
    assert len(server.sessions[0].links) == 1


def test_after_a_fault_the_peers_close_is_found_wherever_the_stream_is_cut() -> None:
    stream = frames.frame(0, b"\x00\x53\x99\x45") + amqp(End()) + amqp(Close())
    for cut in range(len(stream) + 1):
        peer = opened()
        peer.feed(stream[:cut])
        peer.feed(stream[cut:])
        assert peer.engine.closed
        assert conditions_of(peer.hear()) == [("close", "amqp:decode-error")]


def test_a_link_that_is_detached_before_the_peer_has_answered_leaves_nothing_behind() -> None:
    client = Connection(ConnectionSettings(is_server=False, container_id="client"), 0)
    server = Connection(ConnectionSettings(), 0)
    client.open()
    session = client.begin()
    exchange(client, server)
    for _ in range(2):
        session.attach("a", True, Source(), Target(address="q")).detach()
    last = session.attach("a", True, Source(), Target(address="q"))
    _, there = exchange(client, server)
    for event in there:
        if isinstance(event, events.Attached):
            event.link.accept()
            event.link.grant(10)
    here, _ = exchange(client, server)
    assert here == [events.Attached(last), events.Credit(last, 10)]
    last.send_one(b"\x00Sw\xa1\x02hi")
    _, (came,) = exchange(client, server)
    assert isinstance(came, events.Transfers)
    assert session.links == [last]
    assert client.opened
    assert server.opened


def test_a_client_hears_that_its_link_is_drained_and_releases_what_it_did_not_settle() -> None:
    client = Connection(ConnectionSettings(is_server=False, container_id="client"), 0)
    server = Connection(ConnectionSettings(), 0)
    client.open()
    receiving = client.begin().attach("a", False, Source(address="q"), Target())
    _, there = exchange(client, server)
    there[-1].link.accept()  # type: ignore[attr-defined]
    exchange(client, server)
    receiving.grant(10)
    _, (credit,) = exchange(client, server)
    assert isinstance(credit, events.Credit)
    sending = credit.link
    for _ in range(5):
        sending.send_one(b"\x00Sw\xa1\x02hi")
    here, _ = exchange(client, server)
    assert sum(len(event.payloads) for event in here if isinstance(event, events.Transfers)) == 5
    receiving.settle(1, 2)
    receiving.grant(receiving.credit, drain=True)
    _, there = exchange(client, server)
    sending.drained()
    here, _ = exchange(client, server)
    assert here == [events.Drained(receiving)]
    assert receiving.credit == 0
    receiving.release_unsettled()
    receiving.detach()
    _, there = exchange(client, server)
    outcomes = [event for event in there if isinstance(event, events.Outcome)]
    assert [(each.first, each.last, each.state) for each in outcomes] == [
        (0, 0, events.RELEASED),
        (3, 4, events.RELEASED),
    ]
