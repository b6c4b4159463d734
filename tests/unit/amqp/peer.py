"""The other end of a conversation with the engine: says performatives, hears performatives."""

from typing import Any

from lightrail.amqp import events, frames
from lightrail.amqp.connection import Connection
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)
from lightrail.amqp.receiver import ReceivingLink
from lightrail.amqp.sender import SendingLink
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings

WINDOW = 2**31 - 1
WRAP = 2**32
"""Where the numbers of deliveries begin anew."""


def amqp(body: Any, payload: bytes = b"", channel: int = 0) -> bytes:
    """One AMQP frame."""
    return frames.frame(channel, encode_performative(body) + payload)


def sasl(body: Any) -> bytes:
    """One SASL frame."""
    return frames.sasl_frame(encode_performative(body))


def split(data: bytes) -> list[Any]:
    """Headers and frames: a header as bytes, a frame as its performative, (performative, payload) for a
    transfer, None for an empty frame."""
    found: list[Any] = []
    position = 0
    while position < len(data):
        if data[position : position + 4] == b"AMQP":
            found.append(data[position : position + 8])
            position += 8
            continue
        size = int.from_bytes(data[position : position + 4], "big")
        assert size >= 8, data[position:]
        stop = position + size
        assert stop <= len(data), "the engine wrote half a frame"
        start = position + data[position + 4] * 4
        if start == stop:
            found.append(None)
        else:
            body, after = decode_performative(data, start, stop)
            found.append((body, data[after:stop]) if isinstance(body, Transfer) else body)
        position = stop
    return found


class Peer:
    """A client by hand. `heard` is everything the engine has written so far and `hear` has not given yet."""

    def __init__(self, **settings: Any) -> None:
        self.engine = Connection(ConnectionSettings(**settings), 0)
        self.now = 0
        self.raw = b""
        """All bytes that the engine was fed."""
        self.written: list[bytes] = []

    def feed(self, data: bytes) -> list[Any]:
        self.raw += data
        return list(self.engine.feed(data, self.now))

    def say(self, body: Any, payload: bytes = b"", channel: int = 0) -> list[Any]:
        """Send one frame; the events that it causes."""
        return self.feed(amqp(body, payload, channel))

    def hear_bytes(self) -> bytes:
        data = b"".join(self.engine.output)
        self.engine.output.clear()
        self.written.append(data)
        return data

    def hear(self) -> list[Any]:
        """What the engine has written since."""
        return split(self.hear_bytes())

    def open(self, **fields: Any) -> list[Any]:
        """Headers and open."""
        found = self.feed(frames.AMQP_HEADER) + self.say(Open(container_id="peer", **fields))
        assert self.engine.opened
        self.hear()
        return found

    def begin(self, channel: int = 0, incoming_window: int = WINDOW, **fields: Any) -> Any:
        """A session; the engine's Session."""
        begin = Begin(
            next_outgoing_id=fields.pop("next_outgoing_id", 0),
            incoming_window=incoming_window,
            outgoing_window=WINDOW,
            **fields,
        )
        (begun,) = self.say(begin, channel=channel)
        assert isinstance(begun, events.Begun)
        self.hear()
        return begun.session

    def sender(self, name: str = "in", handle: int = 0, credit: int = 100, **fields: Any) -> ReceivingLink:
        """A link on which this peer sends, accepted, with credit."""
        channel = fields.pop("channel", 0)
        attach = Attach(
            name=name,
            handle=handle,
            role=False,
            source=Source(),
            target=Target(address="queue"),
            initial_delivery_count=fields.pop("initial_delivery_count", 0),
            **fields,
        )
        link = self._attach(attach, channel)
        assert isinstance(link, ReceivingLink)
        if credit:
            link.grant(credit)
        self.hear()
        return link

    def receiver(self, name: str = "out", handle: int = 1, credit: int = 100, **fields: Any) -> SendingLink:
        """A link on which this peer receives, accepted, with credit."""
        channel = fields.pop("channel", 0)
        attach = Attach(
            name=name, handle=handle, role=True, source=Source(address="queue"), target=Target(), **fields
        )
        link = self._attach(attach, channel)
        assert isinstance(link, SendingLink)
        if credit:
            self.credit(link, credit)
        self.hear()
        return link

    def _attach(self, attach: Attach, channel: int) -> Link:
        (attached,) = self.say(attach, channel=channel)
        assert isinstance(attached, events.Attached)
        attached.link.accept()
        return attached.link

    def credit(self, link: Link, credit: int, **fields: Any) -> list[Any]:
        """Flow for a link on which this peer receives, with the delivery-count that the engine has."""
        session = session_of(link)
        return self.say(
            Flow(
                next_incoming_id=fields.pop("next_incoming_id", session.next_outgoing_id & 0xFFFFFFFF),
                incoming_window=fields.pop("incoming_window", WINDOW),
                next_outgoing_id=fields.pop("next_outgoing_id", session.next_incoming_id & 0xFFFFFFFF),
                outgoing_window=WINDOW,
                handle=link.handle,
                delivery_count=fields.pop("delivery_count", link.delivery_count & 0xFFFFFFFF),
                link_credit=credit,
                **fields,
            ),
            channel=session.remote_channel,
        )

    def window(self, session: Any, incoming_window: int) -> list[Any]:
        """Flow for the session alone."""
        return self.say(
            Flow(
                next_incoming_id=session.next_outgoing_id & 0xFFFFFFFF,
                incoming_window=incoming_window,
                next_outgoing_id=session.next_incoming_id & 0xFFFFFFFF,
                outgoing_window=WINDOW,
            ),
            channel=session.remote_channel,
        )


def transfer(number: int, handle: int = 0, **fields: Any) -> Transfer:
    """The first or only transfer of delivery `number`."""
    return Transfer(
        handle=handle,
        delivery_id=number & 0xFFFFFFFF,
        delivery_tag=fields.pop("delivery_tag", (number & 0xFFFFFFFF).to_bytes(4, "big")),
        message_format=fields.pop("message_format", 0),
        **fields,
    )


def data(body: bytes) -> bytes:
    """A message with one data section."""
    return (
        b"\x00Su"
        + (bytes((0xA0, len(body))) if len(body) < 256 else b"\xb0" + len(body).to_bytes(4, "big"))
        + body
    )


def opened(**settings: Any) -> Peer:
    """A peer with an open connection and one session."""
    peer = Peer(**settings)
    peer.open()
    peer.begin()
    return peer


def conditions_of(heard: list[Any]) -> list[tuple[str, str]]:
    """(performative, condition) of everything heard that carries an error."""
    return [
        (type(body).__name__.lower(), str(body.error.condition))
        for body in heard
        if getattr(body, "error", None) is not None
    ]


def attach_sender(name: str = "in", handle: int = 0, **fields: Any) -> Attach:
    """Of a link that sends to us."""
    fields.setdefault("initial_delivery_count", 0)
    return Attach(name=name, handle=handle, role=False, source=Source(), target=Target(address="q"), **fields)


def session_of(link: Link) -> Session:
    """The session with what callers of its links do not see."""
    assert isinstance(link.session, Session)
    return link.session


def unsettled_of(session: Session) -> list[tuple[int, int, str, bool]]:
    """First, last, link and mode of the unsettled deliveries; how readers cut ranges does not matter."""
    found: list[tuple[int, int, str, bool]] = []
    for each in session.incoming.ranges:
        first, same = each.first, (each.link.name, each.second)
        if found and found[-1][1] + 1 == first and found[-1][2:] == same:
            first = found.pop()[0]
        found.append((first, each.last, *same))
    return found
