"""Connection points: straight from senders to listeners, with the listeners' credit, and nothing kept."""

import pytest

from lightrail.model import conditions
from lightrail.model.links import Ending
from lightrail.model.policy import Policy
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import DRAIN, EXACT, MORE, Kind, OutcomeCode, frame
from tests.support.shard.scene import Outcome, Peer, Scene, SmallStore

POINT = Policy.parse({"role": "connection-point"})
LISTENER, SENDER = 1, 11


def opened() -> tuple[Scene, Peer]:
    scene = Scene()
    assert isinstance(scene.names, EveryName)
    scene.names.give("p", POINT)
    return scene, scene.peer()


def listen(peer: Peer, link: int = LISTENER, credit: int = 0, **options: int | bool) -> None:
    peer.consume(link, "p", credit, relay=True, **options)


def attach(peer: Peer, *links: int) -> None:
    for link in links or (SENDER,):
        peer.produce(link, "p", relay=True)


def test_a_message_goes_to_the_listener_and_its_outcome_to_the_sender() -> None:
    scene, peer = opened()
    listen(peer, credit=10)
    attach(peer)
    assert [answer.kind for answer in peer.take(Kind.PRODUCER_READY, Kind.CONSUMER_READY)] == [
        Kind.CONSUMER_READY,
        Kind.PRODUCER_READY,
    ]
    assert peer.granted == {SENDER: 10}
    peer.send(SENDER, 1, [b"a", b"b", b"c"])
    peer.send(SENDER, 2, [b"d"], durable=False)
    assert peer.messages(LISTENER) == [b"a", b"b", b"c", b"d"]
    assert peer.outcomes == []
    peer.settle(LISTENER, 1, 3)
    detail = SettleDetail(condition="amqp:decode-error", description="no")
    peer.settle(LISTENER, 0, 1, OutcomeCode.REJECTED, detail)
    assert peer.outcomes == [
        Outcome(SENDER, 1, 1, 2, OutcomeCode.ACCEPTED),
        Outcome(SENDER, 2, 0, 1, OutcomeCode.ACCEPTED),
        Outcome(SENDER, 1, 0, 1, OutcomeCode.REJECTED, detail),
    ]
    assert peer.take(Kind.ACCEPTED) == []
    assert isinstance(scene.store, SmallStore)
    assert scene.store.records == []


def test_a_sender_without_a_listener_waits_without_credit() -> None:
    _, peer = opened()
    attach(peer)
    assert peer.take(Kind.PRODUCER_READY)
    assert peer.granted == {}
    listen(peer)
    assert peer.granted == {}
    peer.credit(LISTENER, 5)
    assert peer.granted == {SENDER: 5}


def test_grants_follow_the_credit() -> None:
    _, peer = opened()
    listen(peer, credit=4)
    attach(peer)
    peer.send(SENDER, 1, [b"a", b"b"])
    assert peer.granted == {SENDER: 4}
    peer.credit(LISTENER, 6)
    assert peer.granted == {SENDER: 6}
    peer.credit(LISTENER, 3)
    assert peer.granted == {SENDER: 3}
    peer.credit(LISTENER, 0, drain=True)
    assert peer.granted == {SENDER: 2}
    assert [(answer.link, answer.number) for answer in peer.take(Kind.DRAINED)] == [(LISTENER, 2)]


def test_what_comes_without_credit_is_released() -> None:
    _, peer = opened()
    listen(peer, credit=2)
    attach(peer)
    peer.send(SENDER, 1, [b"a", b"b", b"c"])
    assert peer.messages(LISTENER) == [b"a", b"b"]
    assert peer.outcomes == [Outcome(SENDER, 1, 2, 1, OutcomeCode.RELEASED)]
    peer.credit(LISTENER, 3)
    assert peer.granted == {SENDER: 4}


def test_a_batch_is_split_over_listeners_as_their_credit_allows() -> None:
    _, peer = opened()
    listen(peer, 1, credit=2)
    listen(peer, 2, credit=10)
    listen(peer, 3)
    attach(peer)
    assert peer.granted == {SENDER: 12}
    peer.send(SENDER, 1, [b"%d" % index for index in range(8)])
    assert peer.messages(3) == []
    assert sorted(peer.messages(1) + peer.messages(2)) == [b"%d" % index for index in range(8)]
    assert len(peer.messages(1)) == 2
    numbers = [each.number for each in peer.delivered[2]]
    assert numbers == list(range(6))
    peer.settle(2, 0, 6)
    assert sum(each.count for each in peer.outcomes) == 6


def test_listeners_take_turns() -> None:
    _, peer = opened()
    for link in (1, 2):
        listen(peer, link, credit=100)
    attach(peer)
    for number in range(1, 11):
        peer.send(SENDER, number, [b"m"])
    assert len(peer.messages(1)) == len(peer.messages(2)) == 5


def test_a_listener_that_failed_has_failed_with_its_messages_and_one_that_closed_in_order_has_not() -> None:
    _, peer = opened()
    listen(peer, 1, credit=3)
    listen(peer, 2, credit=3)
    attach(peer)
    peer.send(SENDER, 1, [b"a", b"b", b"c", b"d"])
    peer.settle(1, 0, 1)
    peer.outcomes.clear()
    peer.close_consumer(1, Ending.FAILED)
    peer.close_consumer(2)
    assert peer.outcomes == [
        Outcome(SENDER, 1, 1, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True)),
        Outcome(SENDER, 1, 2, 2, OutcomeCode.RELEASED),
    ]
    assert peer.granted == {SENDER: 4}
    peer.send(SENDER, 2, [b"late"])
    assert peer.outcomes[2:] == [Outcome(SENDER, 2, 0, 1, OutcomeCode.RELEASED)]


def test_a_lost_frontend_releases_what_its_listener_held_and_forgets_its_senders() -> None:
    scene, peer = opened()
    other = scene.peer("frontend-1", 8)
    listen(other, credit=5)
    attach(peer)
    attach(other)
    peer.send(SENDER, 1, [b"a"])
    scene.engine.lost(other.identity)
    scene.turn()
    assert peer.outcomes == [Outcome(SENDER, 1, 0, 1, OutcomeCode.RELEASED)]
    listen(peer, credit=5)
    assert peer.granted[SENDER] >= 5
    scene.engine.lost(peer.identity)
    assert scene.engine._relays._by_name == {}


def test_a_presettled_listener_answers_at_once() -> None:
    _, peer = opened()
    listen(peer, credit=5, presettled=True)
    attach(peer)
    peer.send(SENDER, 1, [b"a", b"b"])
    assert peer.outcomes == [Outcome(SENDER, 1, 0, 2, OutcomeCode.ACCEPTED)]
    peer.settle(LISTENER, 0, 2)
    peer.close_consumer(LISTENER)
    assert len(peer.outcomes) == 1


def test_credit_is_shared_fairly_and_what_lies_idle_goes_to_who_waits() -> None:
    scene, peer = opened()
    attach(peer, 11, 12, 13)
    listen(peer, credit=30)
    assert peer.granted == {11: 10, 12: 10, 13: 10}
    attach(peer, 14)
    assert 14 not in peer.granted
    for number in range(1, 3):
        scene.now_ms += 600
        peer.send(11, number, [b"m"])
    scene.tick()
    assert peer.granted[14] >= 1
    assert peer.granted[11] == 10
    granted = sum(peer.granted.values()) - 2
    assert granted <= 28


def test_a_single_credit_goes_round_all_busy_senders() -> None:
    _, peer = opened()
    attach(peer, 11, 12, 13)
    listen(peer, credit=1)
    sent = dict.fromkeys((11, 12, 13), 0)
    for number in range(1, 31):
        (link,) = [link for link in sent if peer.granted.get(link, 0) > sent[link]]
        sent[link] += 1
        peer.send(link, sent[link], [b"m"])
        peer.settle(LISTENER, number - 1, 1)
        peer.credit(LISTENER, number + 1)
    assert sent == {11: 10, 12: 10, 13: 10}
    assert len(peer.outcomes) == 30


def test_only_connection_points_are_relayed() -> None:
    _, peer = opened()
    peer.produce(1, "q", relay=True)
    peer.consume(2, "q", relay=True)
    peer.produce(3, "p")
    assert [(link, refusal.condition) for link, _, refusal in peer.refusals] == [
        (link, conditions.NOT_FOUND) for link in (1, 2, 3)
    ]


def test_a_dropped_connection_point_ends_its_links() -> None:
    scene, peer = opened()
    attach(peer)
    listen(peer, credit=5)
    peer.send(SENDER, 1, [b"a"])
    assert isinstance(scene.names, EveryName)
    scene.names.drop("p")
    scene.refresh()
    assert peer.outcomes == [Outcome(SENDER, 1, 0, 1, OutcomeCode.RELEASED)]
    assert [(link, refusal.condition) for link, _, refusal in peer.refusals] == [
        (LISTENER, conditions.RESOURCE_DELETED),
        (SENDER, conditions.RESOURCE_DELETED),
    ]
    peer.send(SENDER, 2, [b"late"])
    peer.credit(LISTENER, 9)
    peer.settle(LISTENER, 0, 1)
    assert len(peer.outcomes) == 1


@pytest.mark.parametrize("first", [0, 7])
def test_a_listener_goes_on_with_its_delivery_numbers(first: int) -> None:
    _, peer = opened()
    listen(peer, first=first)
    attach(peer)
    peer.credit(LISTENER, first + 2)
    assert peer.granted == {SENDER: 2}
    peer.send(SENDER, 1, [b"a", b"b"])
    assert [each.number for each in peer.delivered[LISTENER]] == [first, first + 1]
    peer.settle(LISTENER, first + 1, 1)
    peer.settle(LISTENER, first, 1)
    assert [each.first for each in peer.outcomes] == [1, 0]


# --- credit in bytes -------------------------------------------------------------------------------------


def allow(peer: Peer, kib: int, limit: int, link: int = LISTENER, flags: int = 0) -> None:
    """Credit as frontends give it: so many messages, and so many bytes."""
    peer.say(frame(Kind.CREDIT, flags=EXACT | flags, link=link, count=kib, number=limit))


def message(number: int, size: int = 600) -> bytes:
    return bytes([number]) * size


def test_a_listener_gets_no_more_bytes_than_it_has_credit_for_and_the_rest_waits_in_order() -> None:
    _, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 1, 10)
    assert peer.granted == {SENDER: 10}
    peer.send(SENDER, 1, [message(1), message(2), message(3)])
    peer.send(SENDER, 2, [b"small"])
    assert peer.messages(LISTENER) == [message(1)]
    assert peer.outcomes == []
    # It was sent half of its bytes, so there will be new credit without a report.
    assert peer.take(Kind.LARGER) == []
    allow(peer, 1, 10)
    assert peer.messages(LISTENER) == [message(1), message(2)]
    allow(peer, 1, 10)
    assert peer.messages(LISTENER) == [message(1), message(2), message(3), b"small"]
    peer.settle(LISTENER, 0, 4)
    assert peer.outcomes == [
        Outcome(SENDER, 1, 0, 1, OutcomeCode.ACCEPTED),
        Outcome(SENDER, 1, 1, 1, OutcomeCode.ACCEPTED),
        Outcome(SENDER, 1, 2, 1, OutcomeCode.ACCEPTED),
        Outcome(SENDER, 2, 0, 1, OutcomeCode.ACCEPTED),
    ]


@pytest.mark.parametrize("drains", [False, True])
def test_a_message_that_is_larger_than_the_credit_is_reported_and_comes_when_there_is_room(
    drains: bool,
) -> None:
    _, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 1, 10)
    peer.send(SENDER, 1, [message(1, 5_000)])
    assert [(each.link, each.number, each.count) for each in peer.take(Kind.LARGER)] == [(LISTENER, 0, 5)]
    if drains:
        allow(peer, 1, 10, flags=DRAIN)
        assert [each.kind for each in peer.take(Kind.LARGER, Kind.DRAINED)] == [Kind.LARGER, Kind.DRAINED]
    allow(peer, 5, 1)
    assert peer.messages(LISTENER) == [message(1, 5_000)]


def test_what_waits_for_one_listener_goes_to_another_that_has_room() -> None:
    _, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 1, 10)
    peer.send(SENDER, 1, [message(1), message(2)])
    listen(peer, link=2)
    allow(peer, 1, 10, link=2)
    assert peer.messages(LISTENER) == [message(1)]
    assert peer.messages(2) == [message(2)]


@pytest.mark.parametrize("end", ["listener", "name"])
def test_what_waits_is_released_when_nobody_listens_any_more(end: str) -> None:
    scene, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 1, 10)
    peer.send(SENDER, 1, [message(1), message(2)])
    peer.settle(LISTENER, 0, 1)
    if end == "listener":
        peer.close_consumer(LISTENER)
    else:
        assert isinstance(scene.names, EveryName)
        scene.names.drop("p")
        scene.refresh()
    assert peer.outcomes[1:] == [Outcome(SENDER, 1, 1, 1, OutcomeCode.RELEASED)]
    assert scene.engine._memory.parked == 0


def test_what_waits_goes_on_waiting_while_a_frontend_takes_credit_back_for_its_client_does_not_read() -> None:
    _, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 1, 10)
    peer.send(SENDER, 1, [message(1), message(2)])
    allow(peer, 1, 0)
    peer.send(SENDER, 2, [message(3)])
    assert peer.messages(LISTENER) == [message(1)]
    assert peer.outcomes == []
    allow(peer, 2, 10)
    assert peer.messages(LISTENER) == [message(1), message(2), message(3)]


def test_what_comes_between_two_windows_of_a_listener_waits() -> None:
    _, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 64, 4, flags=MORE)
    peer.send(SENDER, 1, [message(1)])
    # Messages of this size make the frontend's window smaller, while three more are on their way.
    allow(peer, 64, 2, flags=MORE)
    peer.send(SENDER, 2, [message(2), message(3)])
    peer.send(SENDER, 3, [message(4)])
    assert (peer.messages(LISTENER), peer.outcomes) == ([message(1), message(2)], [])
    allow(peer, 64, 4)
    assert peer.messages(LISTENER) == [message(number) for number in (1, 2, 3, 4)]
    peer.send(SENDER, 4, [message(5)])
    assert peer.outcomes == [Outcome(SENDER, 4, 0, 1, OutcomeCode.RELEASED)]


@pytest.mark.parametrize("is_used_up", [False, True])
def test_what_comes_after_a_drain_waits_only_where_the_next_window_follows(is_used_up: bool) -> None:
    _, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 64, 3, flags=MORE)
    peer.send(SENDER, 1, [message(1)])
    allow(peer, 64, 1 if is_used_up else 2, flags=DRAIN | MORE)
    peer.send(SENDER, 2, [message(2)])
    released = [Outcome(SENDER, 2, 0, 1, OutcomeCode.RELEASED)]
    assert peer.outcomes == ([] if is_used_up else released)


def test_what_waits_of_a_sender_that_goes_is_forgotten() -> None:
    scene, peer = opened()
    listen(peer)
    attach(peer, SENDER, SENDER + 1)
    allow(peer, 1, 10)
    peer.send(SENDER, 1, [message(1), message(2)])
    peer.send(SENDER + 1, 1, [message(3)])
    peer.close_producer(SENDER)
    allow(peer, 1, 10)
    assert peer.messages(LISTENER) == [message(1), message(3)]
    assert scene.engine._memory.parked == 0


def test_more_than_may_wait_in_the_shard_is_released() -> None:
    scene, peer = opened()
    listen(peer)
    attach(peer)
    allow(peer, 1, 10_000)
    memory = scene.engine._memory
    each = [message(1, 60_000)]
    number = 0
    while not peer.outcomes:
        number += 1
        peer.send(SENDER, number, each)
        assert memory.parked <= memory.parked_max
    assert peer.outcomes == [Outcome(SENDER, number, 0, 1, OutcomeCode.RELEASED)]
    assert memory.parked > memory.parked_max - 70_000
