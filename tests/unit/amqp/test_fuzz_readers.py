"""Mutated streams of transfers give the same events, answers and state with every reader of transfers.

The readers: the scanner as installed and interpreted, learned shapes with the interpreted scanner behind
them, as where nothing could be compiled, and the complete decoder alone. A few seeds in every run;
`make soak` and `make fuzz` go on from a fresh one for LIGHTRAIL_SOAK_SECONDS. The failing seed is in the
assertion, and `compare(seed)` repeats it.
"""

import random
import struct
from array import array
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lightrail import amqp as interpreted
from lightrail.amqp import compiled, events, frames, runs
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
    Rejected,
    Source,
    Target,
    Transfer,
)
from tests.unit.amqp.messages import LISTS, Lists, application_message, expiries, lasting
from tests.unit.amqp.peer import Peer, amqp, data, unsettled_of
from tests.unit.amqp.seeds import soak_seeds
from tests.unit.amqp.test_scanner import HEADERS, SHORT_LIVED, read_with

PARTS = 2
SEEDS = 500
OCTETS = bytes.fromhex("0001404142434550525356707273747578808398a0a1a3b0b1c0c1d0d17fff")
"""Octets that mean something to a reader: constructors, sections, borders."""
OPENING = 9
"""Frames of a conversation before its first transfer."""


class Reader(NamedTuple):
    """One way to read transfers."""

    scanner: Any
    scans: bool
    learn_shapes: bool


READERS = {
    "interpreted": Reader(interpreted, True, False),
    "shapes": Reader(interpreted, True, True),
    "complete": Reader(interpreted, False, False),
}
if compiled.COMPILED:
    READERS["compiled"] = Reader(compiled, True, False)


# --- streams --------------------------------------------------------------------------------------------


def uint(chance: random.Random, number: int) -> bytes:
    """One of the encodings that the number has."""
    forms = [b"\x70" + struct.pack(">I", number)]
    if number < 256:
        forms.append(b"\x52" + bytes((number,)))
    if number == 0:
        forms.append(b"\x43")
    return chance.choice(forms)


def boolean(chance: random.Random, value: bool) -> bytes:
    return chance.choice((b"\x41", b"\x56\x01") if value else (b"\x42", b"\x56\x00", b"\x40"))


def transfer_octets(
    chance: random.Random,
    channel: int,
    handle: int,
    delivery: int,
    message: bytes,
    lists: Lists,
    settled: bool,
) -> bytes:
    """A transfer frame in any of its encodings."""
    tag = chance.randbytes(chance.choice((0, 1, 4, 4, 4, 16, 32)))

    def rarely() -> bool:
        return chance.random() < 0.01

    fields = [
        uint(chance, handle),
        uint(chance, delivery),
        b"\xa0" + bytes((len(tag),)) + tag,
        uint(chance, int(rarely())) if chance.random() < 0.9 else b"\x40",
        boolean(chance, settled),
        boolean(chance, rarely()),
        b"\x50\x00" if rarely() else b"\x40",
        b"\x00\x53\x24\x45" if rarely() else b"\x40",
        boolean(chance, rarely()),
        boolean(chance, rarely()),
        boolean(chance, chance.random() < 0.5),
    ]
    body = b"\x00S\x14" + lists(*fields[: chance.choice((5, 5, 5, 6, 11))]) + message
    return struct.pack(">IBBH", 8 + len(body), 2, 0, channel) + body


def messages_of_a_run(chance: random.Random, lists: Lists) -> list[bytes]:
    """Messages that mostly agree in what makes a run."""
    count = chance.randrange(1, 9)
    sort = chance.randrange(5)
    if sort == 0:
        return [application_message(number, lists) for number in range(count)]
    if sort == 1:
        return [application_message(number, lists, priority=chance.randrange(3)) for number in range(count)]
    if sort == 2:
        expiry = chance.choice((0, -1, 1 << 40, -(1 << 63), (1 << 63) - 30))
        step = chance.choice((0, 0, 1, 3, 11))
        return [
            application_message(number, lists, expiry=expiry + number % 3 * step) for number in range(count)
        ]
    heads = chance.sample([*HEADERS, *SHORT_LIVED], chance.choice((1, 1, 3)))
    if sort == 4:
        ttl = chance.choice((1, 250, 1 << 20))
        heads = [
            b"\x00Sp" + lists(boolean(chance, True), b"\x40", uint(chance, ttl + 4 * each))
            for each in range(4)
        ]
    size = chance.choice((0, 7, 40))
    return [chance.choice(heads) + data(bytes(size)) for _ in range(count)]


def attach(name: str, handle: int, **fields: Any) -> Attach:
    """Of a link on which the peer sends."""
    return Attach(
        name=name,
        handle=handle,
        role=False,
        source=Source(),
        target=Target(address="q"),
        initial_delivery_count=0,
        **fields,
    )


def conversation(chance: random.Random) -> list[bytes]:
    """The frames of a conversation that is mostly lawful."""
    begin = Begin(next_outgoing_id=0, incoming_window=500, outgoing_window=500)
    mode = chance.randrange(3)
    pieces = [
        frames.AMQP_HEADER,
        amqp(Open(container_id="peer", max_frame_size=4_096)),
        amqp(begin),
        amqp(begin, channel=1),
        amqp(attach("a", 0)),
        amqp(attach("b", 300, rcv_settle_mode=chance.randrange(2))),
        amqp(attach("c", 5, snd_settle_mode=mode), channel=1),
        amqp(Attach(name="out", handle=1, role=True, source=Source(address="q"), target=Target())),
        amqp(
            Flow(
                next_incoming_id=0,
                incoming_window=500,
                next_outgoing_id=0,
                outgoing_window=500,
                handle=1,
                delivery_count=0,
                link_credit=20,
            )
        ),
    ]
    first = chance.choice((0, 1, 250, 2**32 - 5))
    numbers = [first, first]
    for _ in range(chance.randrange(3, 12)):
        channel, handle = chance.choice(((0, 0), (0, 0), (0, 300), (1, 5)))
        lists = chance.choice(LISTS)
        settled = mode == 1 if channel == 1 and mode != 2 else chance.random() < 0.3
        for message in messages_of_a_run(chance, lists):
            number = numbers[channel] & 0xFFFFFFFF
            pieces.append(transfer_octets(chance, channel, handle, number, message, lists, settled))
            numbers[channel] += 1
        if chance.random() < 0.3:
            pieces.append(
                chance.choice(
                    (
                        amqp(Disposition(role=True, first=0, last=9, settled=True, state=Accepted())),
                        amqp(Disposition(role=False, first=first, last=first + 3, settled=True)),
                        amqp(Transfer(handle=handle, delivery_id=number), b"rest", channel=channel),
                        frames.EMPTY_FRAME,
                        frames.EMPTY_FRAME,
                        amqp(Detach(handle=300, closed=True)),
                        amqp(End(), channel=1),
                    )
                )
            )
    if chance.random() < 0.2:
        pieces.append(amqp(Close()))
    return pieces


def resized(piece: bytes) -> bytes:
    """The frame with a size that is true again, so that what is wrong inside is found there."""
    return struct.pack(">I", len(piece)) + piece[4:]


def mutate(chance: random.Random, pieces: list[bytes]) -> None:
    """One fault, in place."""
    # What comes before the first transfer decides whether there is anything to compare.
    index = chance.randrange(OPENING if chance.random() < 0.9 else 0, len(pieces))
    piece = pieces[index]
    # Performatives and the first sections are at the beginning; bodies are not looked at.
    offset = chance.randrange(min(len(piece), chance.choice((12, 40, 120))))
    kind = chance.randrange(8)
    if kind <= 2:
        octet = chance.choice(OCTETS) if chance.random() < 0.7 else chance.randrange(256)
        pieces[index] = piece[:offset] + bytes((octet,)) + piece[offset + 1 :]
    elif kind == 3:
        pieces[index] = resized(piece[:offset])
    elif kind == 4:
        pieces[index] = resized(piece[:offset] + chance.randbytes(chance.randrange(1, 9)) + piece[offset:])
    elif kind == 5:
        pieces[index] = resized(piece[:offset] + piece[offset + chance.randrange(1, 9) :])
    elif kind == 6:
        pieces[index] = piece[:offset] + chance.choice((b"", chance.randbytes(5))) + piece[offset + 1 :]
    else:
        other = chance.randrange(len(pieces))
        pieces[index], pieces[other] = pieces[other], pieces[index]


def cut(chance: random.Random, pieces: list[bytes]) -> list[bytes]:
    """The stream in pieces as they may come from a socket; its end may be missing.

    The first one ends where the peer waits for credit.
    """
    opening, stream = b"".join(pieces[:OPENING]), b"".join(pieces[OPENING:])
    if chance.random() < 0.2:
        stream = stream[: chance.randrange(len(stream) + 1)]
    offsets = sorted(chance.randrange(len(stream) + 1) for _ in range(chance.choice((0, 0, 1, 3, 20))))
    return [
        opening,
        *(stream[start:stop] for start, stop in zip([0, *offsets], [*offsets, len(stream)], strict=True)),
    ]


# --- readers --------------------------------------------------------------------------------------------


class Trace:
    """What is seen of one engine while it reads a stream."""

    def __init__(self) -> None:
        self.observed: list[Any] = []
        """Events, with deliveries one by one, octets written and state, in order."""
        self.runs: list[Any] = []
        """Deliveries as they were grouped."""
        self.payloads: list[bytes] = []
        self.scanned = 0
        """Deliveries that the complete decoder did not read."""

    def note(self, event: Any) -> None:
        name = type(event).__name__
        if isinstance(event, events.Transfers):
            count = len(event.payloads)
            self.payloads += event.payloads
            ends = (event.earliest_expiry_ms, event.absolute_expiry_ms)
            run = (event.link.name, event.first_delivery_id, count, event.head, event.mixed, ends)
            self.runs.append(run)
            assert event.tags is None or len(event.tags) == count
            own = expiries(event)
            mixes = event.link.mixes_headers  # type: ignore[attr-defined]
            heads: list[Any] = lasting(event) if mixes else [event.head] * count
            for index, payload in enumerate(event.payloads):
                self.observed.append(
                    (
                        event.link.name,
                        event.first_delivery_id + index,
                        payload,
                        event.settled,
                        event.message_format,
                        heads[index],
                        own[index],
                        None if event.tags is None else event.tags[index],
                    )
                )
        elif isinstance(event, events.Detached | events.Ended | events.Closed):
            self.observed.append((name, event.by_peer, repr(event.error)))
        elif isinstance(event, events.Outcome):
            self.observed.append(
                (name, event.link.name, event.first, event.last, repr(event.state), event.settled)
            )
        elif isinstance(event, events.SenderSettled):
            # One by one, as the deliveries: an event is of neighbours, whose grouping is that of the runs.
            count = (event.last_delivery_id - event.first_delivery_id & 0xFFFFFFFF) + 1
            for delivery in range(event.first_delivery_id, event.first_delivery_id + count):
                self.observed.append((name, event.link.name, delivery & 0xFFFFFFFF))
        elif isinstance(event, events.Credit):
            self.observed.append((name, event.link.name, event.limit, event.drain, event.echo))
        else:
            self.observed.append(name)


def answer(event: Any, mixes: bool, tags: bool, credit: int) -> None:
    """What a broker does; each delivery alone, so that answers do not depend on the grouping."""
    if isinstance(event, events.Attached):
        event.link.accept()
        if not event.link.is_sender:
            if mixes:
                event.link.mix_headers()
            if tags:
                event.link.keep_tags()
            event.link.grant(credit)
    elif isinstance(event, events.Transfers) and not event.settled:
        for number in range(event.first_delivery_id, event.first_delivery_id + len(event.payloads)):
            event.link.settle(number, number, Rejected() if number % 5 == 0 else events.ACCEPTED)
    elif isinstance(event, events.Credit) and event.link.sent < min(event.limit, 20):  # type: ignore[attr-defined]
        with suppress(EndedError):
            event.link.send_one(data(b"z" * 40))
    elif isinstance(event, events.Outcome) and not event.settled:
        event.link.settle_sent(event.first, event.last, event.state)


def state_of(peer: Peer) -> list[Any]:
    """What decides about later frames."""
    return [
        (
            channel,
            session.state,
            session.next_incoming_id,
            session.incoming_left,
            session.next_incoming_delivery,
            unsettled_of(session),
            [
                (link.name, link.state, link.credit, link.delivery_count, getattr(link, "allowed", None))
                for link in session.links
            ],
        )
        for channel, session in sorted(peer.engine.sessions.items())
    ]


def observe(chosen: Reader, seed: int, pieces: list[bytes]) -> Trace:
    """Feeds the pieces to an engine with this reader."""
    chance = random.Random(seed)
    trace = Trace()
    mixes, tags = chance.random() < 0.5, chance.random() < 0.5
    credit = chance.choice((10_000, 10_000, 12))
    deliver = runs._deliver

    def counted(link: Any, first: int, payloads: list[bytes], *rest: Any, **fields: Any) -> None:
        trace.scanned += len(payloads)
        deliver(link, first, payloads, *rest, **fields)

    with pytest.MonkeyPatch.context() as patch:
        read_with(chosen.scanner, patch)
        patch.setattr(runs, "_deliver", counted)
        peer = Peer(
            scans=chosen.scans,
            learn_shapes=chosen.learn_shapes,
            max_frame_size=chance.choice((700, 4_096, 4_096, 4_096)),
            max_message_size=chance.choice((300, 1 << 20, 1 << 20, 1 << 20)),
            session_incoming_window=chance.choice((20, 8_192, 8_192)),
        )
        for piece in pieces:
            found = peer.feed(piece)
            while peer.engine.has_more:
                found += peer.feed(b"")
            for event in found:
                trace.note(event)
                answer(event, mixes, tags, credit)
            trace.observed.append(peer.hear_bytes())
            trace.observed.append(state_of(peer))
    return trace


def redelivered(
    scanner: Any, payloads: list[bytes], left_ms: int, missing: int
) -> tuple[bytes, list[int]] | None:
    """The same payloads as they are handed out after a failed delivery."""
    blob = b"".join(payloads)
    blob = blob[: len(blob) - missing]
    ends = [min(end, len(blob)) for end in accumulate(map(len, payloads))]
    found: tuple[bytes, list[int]] | None
    found = scanner.redelivery.redeliver(blob, 0, memoryview(array("I", ends)), 0, 1, left_ms)
    return found


def shortened(scanner: Any, payloads: list[bytes], left_ms: int, missing: int) -> tuple[bool, bytearray]:
    """The payloads in one buffer, of which the last `missing` octets are not there, with a shorter ttl."""
    blob = bytearray(b"".join(payloads))
    del blob[len(blob) - missing :]
    ends = [min(end, len(blob)) for end in accumulate(map(len, payloads))]
    return scanner.redelivery.shorten_ttl(blob, memoryview(array("I", ends)), 0, left_ms), blob


def compare(seed: int) -> int:
    """Feeds one mutated conversation to every reader; gives how many deliveries the scanner read."""
    chance = random.Random(seed)
    pieces = conversation(chance)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        mutate(chance, pieces)
    parts = cut(chance, pieces)
    left_ms, missing = chance.choice((0, 200, 1_000, 2**32 - 1)), chance.choice((0, 0, 1, 9))
    try:
        traces = {name: observe(each, seed, parts) for name, each in READERS.items()}
        complete = traces["complete"]
        for name, each in traces.items():
            assert each.observed == complete.observed, f"{name} reads otherwise than the complete decoder"
        if "compiled" in traces:
            assert traces["compiled"].runs == traces["interpreted"].runs
            assert traces["compiled"].scanned == traces["interpreted"].scanned
            missing = min(missing, sum(map(len, complete.payloads)))
            for handed_out in shortened, redelivered:
                found, expected = (
                    handed_out(each, complete.payloads, left_ms, missing) for each in (compiled, interpreted)
                )
                assert found == expected
    except BaseException as error:
        raise AssertionError(f"compare({seed}) found readers that differ: {error!r}") from error
    return traces["interpreted"].scanned


@pytest.mark.parametrize("part", range(PARTS))
def test_every_reader_gives_the_same_for_mutated_conversations(part: int) -> None:
    scanned = [compare(seed) for seed in range(part * SEEDS, (part + 1) * SEEDS)]
    assert sum(count > 5 for count in scanned) > SEEDS // 3, "conversations have to reach the scanner"


@pytest.mark.soak
def test_every_reader_gives_the_same_for_mutated_conversations_for_long(tmp_path: Path) -> None:
    soak_seeds(compare, tmp_path)
