"""How many links a connection has, and what they have us keep, is bounded; each bound is reached here."""

import gc
import tracemalloc
from typing import Any

import pytest

from lightrail.amqp import events, frames
from lightrail.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from lightrail.amqp.receiver import FRAGMENT_OVERHEAD
from lightrail.amqp.settings import (
    ATTACH_BYTES_MAX,
    CHANNEL_MAX,
    HANDLE_MAX,
    LINKS_PER_CONNECTION_MAX,
    MAX_SASL_FRAME_SIZE,
    SESSION_INCOMING_WINDOW,
)
from lightrail.amqp.values import Symbol
from lightrail.model import conditions, limits
from tests.unit.amqp.peer import Peer, amqp, sasl

KEPT_BYTES_MAX = 2_500
"""Of a link in the engine that is attached, with a name and an address of ordinary length."""


def attach(name: str, handle: int, **fields: Any) -> Attach:
    given: dict[str, Any] = {"role": True, "source": Source(address="queue"), "target": Target()}
    return Attach(name=name, handle=handle, **given | fields)


def opened(**settings: Any) -> Peer:
    peer = Peer(**settings)
    peer.open()
    return peer


def begin(peer: Peer, channel: int) -> None:
    peer.say(Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10), channel=channel)


def attached(peer: Peer, number: int, channel: int = 0, **fields: Any) -> list[Any]:
    """The engine's answers to an attach, which its caller accepts; nothing is remembered of the bytes."""
    for event in peer.say(attach(f"link {channel} {number}", number, **fields), channel=channel):
        if isinstance(event, events.Attached):
            event.link.accept()
    peer.raw = b""
    peer.written.clear()
    return peer.hear()


def refusal(answers: list[Any]) -> str:
    """Why a link was refused: an attach without the terminus, and a detach with the reason (2.6.3)."""
    echo, detach = answers
    assert isinstance(echo, Attach)
    assert echo.source is None
    assert isinstance(detach, Detach)
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED
    return str(detach.error.description)


def test_links_of_all_sessions_together_have_a_bound() -> None:
    peer = opened()
    most = LINKS_PER_CONNECTION_MAX
    for channel in (0, 1):
        begin(peer, channel)
    peer.hear()
    for number in range(most // 2):
        for channel in (0, 1):
            (answer,) = attached(peer, number, channel)
            assert answer.source is not None
    text = refusal(attached(peer, most // 2, 1))
    assert f"expected at most {most} links on a connection" in text
    # Others go on, and the handle of one that is detached is free.
    peer.say(Detach(handle=0, closed=True), channel=0)
    peer.say(Detach(handle=most // 2, closed=True), channel=1)
    peer.hear()
    (answer,) = attached(peer, most // 2, 1)
    assert answer.source is not None


def test_a_peer_that_goes_on_attaching_has_its_connection_closed() -> None:
    """Refused links are remembered until the peer detaches them: so they have a bound as well."""
    peer = opened(links_max=10)
    begin(peer, 0)
    peer.hear()
    for number in range(20):
        attached(peer, number)
    (close,) = attached(peer, 20)
    assert isinstance(close, Close)
    assert close.error is not None
    assert close.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED


def test_handles_beyond_handle_max_close_the_connection() -> None:
    peer = opened()
    begin(peer, 0)
    peer.hear()
    (answer,) = attached(peer, HANDLE_MAX)
    assert isinstance(answer, Attach)
    (close,) = attached(peer, HANDLE_MAX + 1)
    assert close.error.condition == conditions.FRAMING_ERROR
    assert str(HANDLE_MAX) in close.error.description


def test_channels_beyond_channel_max_close_the_connection() -> None:
    peer = opened()
    for channel in range(CHANNEL_MAX + 1):
        begin(peer, channel)
    peer.hear()
    begin(peer, CHANNEL_MAX + 1)
    (close,) = peer.hear()
    assert close.error.condition == conditions.FRAMING_ERROR
    assert str(CHANNEL_MAX) in close.error.description


def test_a_session_has_the_lowest_free_channel_however_many_there_are() -> None:
    peer = opened()
    for channel in range(1_000):
        begin(peer, channel)
    assert [answer.remote_channel for answer in peer.hear()] == list(range(1_000))
    assert sorted(peer.engine._channels) == list(range(1_000))
    for channel in (700, 30, 500):
        peer.say(End(), channel=channel)
    peer.hear()
    for channel in (2_000, 2_001, 2_002, 2_003):
        begin(peer, channel)
    peer.hear()
    ours = {each.remote_channel: each.channel for each in peer.engine._channels.values()}
    assert [ours[channel] for channel in (2_000, 2_001, 2_002, 2_003)] == [30, 500, 700, 1_000]


@pytest.mark.parametrize("field", ["name", "address"])
def test_what_attached_links_have_us_keep_has_a_bound(field: str) -> None:
    peer = opened()
    begin(peer, 0)
    peer.hear()
    size = 60_000
    refused = ""
    for number in range(2 * ATTACH_BYTES_MAX // size):
        if field == "name":
            answers = peer_says(peer, attach(f"{number:<{size}}", number))
        else:
            answers = peer_says(peer, attach(str(number), number, target=Target(address="x" * size)))
        if len(answers) == 2:
            refused = refusal(answers)
            break
    assert number >= ATTACH_BYTES_MAX // size - 1
    assert f"expected at most {ATTACH_BYTES_MAX} bytes" in refused
    # What the refused link had is kept no longer; that of another one is free when it is detached.
    peer.say(Detach(handle=0, closed=True))
    peer.hear()
    (answer,) = peer_says(peer, attach("small", 0))
    assert answer.source is not None


def peer_says(peer: Peer, body: Attach) -> list[Any]:
    for event in peer.say(body):
        if isinstance(event, events.Attached):
            event.link.accept()
    return peer.hear()


def test_attaches_that_are_not_answered_have_the_same_bound() -> None:
    peer = opened()
    begin(peer, 0)
    peer.hear()
    properties = {Symbol("p"): bytes(60_000)}
    waiting = 0
    while True:
        found = peer.say(attach(str(waiting), waiting, properties=properties))
        if not isinstance(found[0], events.Attached):
            break
        waiting += 1
    assert waiting == ATTACH_BYTES_MAX // 60_100
    assert "use another connection" in refusal(peer.hear())
    for link in peer.engine.sessions[0].links:
        link.accept()
    peer.hear()
    assert isinstance(peer.say(attach("more", 100, properties=properties))[0], events.Attached)


def test_of_an_attached_link_nothing_is_kept_that_nobody_needs() -> None:
    """Properties, capabilities and filters are for the answer to the attach alone."""
    peer = opened()
    begin(peer, 0)
    peer.hear()
    large = {Symbol("p"): bytes(30_000)}
    source = Source(address="queue", filter={Symbol("f"): "x" * 10_000})
    attached(peer, 0, properties=large, source=source)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(1, 201):
        attached(peer, number, properties=large, source=source)
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / 200
    tracemalloc.stop()
    assert each < KEPT_BYTES_MAX, f"{each:.0f} bytes"


@pytest.mark.parametrize("how", ["detached", "ended"])
def test_what_was_kept_is_counted_down_when_links_go(how: str) -> None:
    peer = opened()
    begin(peer, 0)
    peer.hear()
    for number in range(3):
        attached(peer, number)
    session = peer.engine.sessions[0]
    assert session.attach_bytes == 3 * (len("link 0 0") + len("queue"))
    if how == "detached":
        for number in range(3):
            peer.say(Detach(handle=number, closed=True))
        assert session.attach_bytes == 0
    else:
        session.end()
        # A peer that never answers our end has used up a channel and keeps what it had.
        assert session.attach_bytes == 3 * (len("link 0 0") + len("queue"))


# --- what a stranger may have us hold otherwise ------------------------------------------------------------


def test_messages_that_begin_and_do_not_end_have_a_bound_over_all_links() -> None:
    most = 100_000
    peer = opened(unfinished_bytes_max=most, max_message_size=60_000)
    begin(peer, 0)
    for handle in range(3):
        attached(
            peer,
            handle,
            role=False,
            source=Source(),
            target=Target(address="queue"),
            initial_delivery_count=0,
        )
        peer.engine.sessions[0].inputs[handle].grant(10)
    peer.hear()
    for handle in range(3):
        part = Transfer(handle=handle, delivery_id=handle, delivery_tag=b"%d" % handle, more=True)
        found = peer.say(part, b"\x00\x53\x75\xb0" + bytes(40_000))
        assert len(found) == (1 if handle == 2 else 0)
    (closed,) = found
    assert isinstance(closed, events.Closed)
    assert closed.error is not None
    assert closed.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED
    assert f"at most {most} bytes" in (closed.error.description or "")
    assert peer.engine.unfinished_bytes == 0


def test_a_sasl_frame_beyond_the_bound_ends_the_connection() -> None:
    def init(response: bytes) -> bytes:
        return sasl(SaslInit(mechanism=Symbol("PLAIN"), initial_response=response))

    overhead = len(init(bytes(1_000))) - 1_000
    for size, is_taken in ((MAX_SASL_FRAME_SIZE, True), (MAX_SASL_FRAME_SIZE + 1, False)):
        peer = Peer(sasl_mechanisms=("PLAIN",))
        found = peer.feed(frames.SASL_HEADER + init(bytes(size - overhead)))
        assert isinstance(found[-1], events.SaslInit if is_taken else events.Closed)
        assert peer.engine.closed is not is_taken


def test_by_default_two_of_the_largest_messages_may_have_begun_and_not_ended() -> None:
    """Counted without their bytes: a test need not hold them."""
    settings = Peer().engine.settings
    assert settings.max_message_size == limits.MAX_MESSAGE_BYTES
    assert settings.unfinished_bytes_max == limits.UNFINISHED_MESSAGES_MAX * limits.MAX_MESSAGE_BYTES


def test_frames_of_an_unfinished_message_count_with_what_an_object_takes() -> None:
    """Else many small frames would take many times what is counted."""
    frame, parts = b"x", 100
    most = parts * (len(frame) + FRAGMENT_OVERHEAD)
    peer = opened(unfinished_bytes_max=most)
    begin(peer, 0)
    attached(peer, 0, role=False, source=Source(), target=Target(address="q"), initial_delivery_count=0)
    peer.engine.sessions[0].inputs[0].grant(10)
    peer.hear()
    peer.say(Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), frame)
    for _ in range(parts - 1):
        assert peer.say(Transfer(handle=0, more=True), frame) == []
    assert peer.engine.unfinished_bytes == most
    (closed,) = peer.say(Transfer(handle=0, more=True), frame)
    assert isinstance(closed, events.Closed)
    assert closed.error is not None
    assert closed.error.condition == conditions.RESOURCE_LIMIT_EXCEEDED


def test_a_session_takes_at_most_a_window_of_transfers_ahead() -> None:
    """One read can hold them all; the window opens again when it has been read."""
    most = SESSION_INCOMING_WINDOW
    for more in (0, 1):
        peer = opened()
        peer.begin()
        peer.sender(credit=most + 1)
        parts = [
            amqp(Transfer(handle=0, delivery_id=each, delivery_tag=b"t", settled=True), b"\x00\x53\x77\x40")
            for each in range(most + more)
        ]
        peer.feed(b"".join(parts))
        found = peer.hear()
        if more:
            assert str(found[-1].error.condition) == "amqp:session:window-violation"
        else:
            assert [type(each).__name__ for each in found] == ["Flow"]
            assert found[0].incoming_window == most
