"""What one feed may cost, whatever the peer sends: the rest of it waits for the next feeds, in its order."""

from collections.abc import Iterator
from typing import Any, SupportsIndex

from lightrail.amqp import events, frames
from lightrail.amqp.connection import Connection
from lightrail.amqp.link_endpoint import LinkEndpoint
from lightrail.amqp.performatives import Source, Target
from lightrail.amqp.session import Session
from lightrail.amqp.settings import ConnectionSettings
from lightrail.amqp.unsettled import Range
from lightrail.model import limits

ACCEPTED = b"\x00S\x24\x45"
COUNT = 60_000


def attached(links: int) -> tuple[Connection, Session, list[LinkEndpoint]]:
    """A server with links that a client has attached to receive from it."""
    server = Connection(ConnectionSettings(), 0)
    client = Connection(ConnectionSettings(is_server=False, container_id="c"), 0)

    def exchange() -> None:
        for _ in range(4):
            for one, other in ((client, server), (server, client)):
                data = b"".join(one.output)
                one.output.clear()
                for event in other.feed(data, 0):
                    if isinstance(event, events.Attached) and other is server:
                        event.link.accept()

    client.open()
    exchange()
    session = client.begin()
    exchange()
    for number in range(links):
        session.attach(f"r{number}", False, source=Source(address="q"), target=Target())
    exchange()
    [found] = server.sessions.values()
    return server, found, list(found.outputs.values())


def delivered_by_turns(session: Session, links: list[LinkEndpoint]) -> None:
    """Links got one message after the other, so that no two neighbours are one range."""
    for number in range(COUNT):
        session.outgoing.add(links[number % len(links)], number, number, number - number // len(links))
    session.next_delivery_id = COUNT


def feeds(server: Connection, data: bytes) -> Iterator[list[events.Event]]:
    """What each feed gives until nothing is left."""
    yield server.feed(data, 0)
    while server.has_more:
        yield server.feed(b"", 0)


def disposition(first: int, last: int, *, settled: bool = True, state: bytes = ACCEPTED) -> bytes:
    return frames.disposition(0, True, first, last, settled, state)


def test_frames_beyond_those_of_a_turn_wait_for_the_next() -> None:
    server, session, [link] = attached(1)
    session.outgoing.add(link, 0, 10_000)
    session.next_delivery_id = 10_001
    # Every second one, so that no two outcomes are one event.
    data = b"".join(disposition(number, number) for number in range(1, 10_000, 2))
    found = list(feeds(server, data))
    assert [len(each) for each in found] == [limits.FRAMES_OF_A_TURN, 5_000 - limits.FRAMES_OF_A_TURN]
    firsts = [event.first for each in found for event in each if isinstance(event, events.Outcome)]
    assert firsts == list(range(1, 10_000, 2))


def test_a_disposition_of_many_ranges_is_taken_in_pieces_before_the_frame_behind_it() -> None:
    server, session, links = attached(2)
    delivered_by_turns(session, links)
    session.outgoing.add(links[0], COUNT, COUNT, 0)
    found = list(feeds(server, disposition(0, COUNT - 1) + disposition(COUNT, COUNT, state=b"")))
    most = 4 * limits.FRAMES_OF_A_TURN + limits.SETTLED_RANGES_AT_ONCE
    assert max(len(each) for each in found) <= most
    assert sum(len(each) for each in found) == COUNT + 1
    last = found[-1][-1]
    assert isinstance(last, events.Outcome)
    assert (last.first, last.state) == (COUNT, None)
    assert not session.outgoing.ranges


def test_what_is_said_again_and_again_of_many_ranges_is_looked_at_in_pieces() -> None:
    server, session, links = attached(2)
    delivered_by_turns(session, links)
    found = list(feeds(server, disposition(0, COUNT - 1, settled=False) * 3))
    assert max(len(each) for each in found) <= 4 * limits.FRAMES_OF_A_TURN + limits.SETTLED_RANGES_AT_ONCE
    assert sum(len(each) for each in found) == 3 * COUNT
    assert len(session.outgoing.ranges) == COUNT


def test_one_range_of_very_many_deliveries_is_taken_in_pieces() -> None:
    server, session, [link] = attached(1)
    count = 1_000_000
    session.outgoing.add(link, 0, count - 1)
    session.next_delivery_id = count
    found = list(feeds(server, disposition(0, count - 1, settled=False)))
    assert len(found) > 5
    at = 0
    for each in found:
        for event in each:
            assert isinstance(event, events.Outcome)
            assert event.first == at
            at = event.last + 1
    assert at == count


def test_links_that_end_with_many_ranges_in_their_session_end_in_several_turns() -> None:
    server, session, links = attached(40)
    delivered_by_turns(session, links)
    client_detaches = b"".join(
        frames.frame(0, b"\x00S\x16\xc0\x04\x02\x52" + bytes((link.handle,)) + b"\x41") for link in links
    )
    found = list(feeds(server, client_detaches))
    assert len(found) >= 2
    assert sum(len(each) for each in found) == 40
    assert not session.outgoing.ranges


def test_nothing_is_left_of_a_session_that_ends_while_a_disposition_goes_on() -> None:
    server, session, links = attached(2)
    delivered_by_turns(session, links)
    server.feed(disposition(0, COUNT - 1), 0)
    assert server.has_more
    session.end()
    rest = [event for each in feeds(server, b"") for event in each]
    assert not rest
    assert server.rest is None


def test_taking_from_the_front_of_many_ranges_moves_the_others_once() -> None:
    class Ranges(list[Range[LinkEndpoint]]):
        changes = 0

        def __delitem__(self, key: SupportsIndex | slice) -> None:
            self.changes += 1
            super().__delitem__(key)

        def __setitem__(self, key: Any, value: Any) -> None:
            self.changes += 1
            super().__setitem__(key, value)

    _, session, links = attached(2)
    delivered_by_turns(session, links)
    unsettled = session.outgoing
    unsettled.ranges = ranges = Ranges(unsettled.ranges)
    found = unsettled.take(0, COUNT)
    assert len(found) == limits.SETTLED_RANGES_AT_ONCE
    assert len(unsettled.ranges) == COUNT - limits.SETTLED_RANGES_AT_ONCE
    assert ranges.changes == 1
