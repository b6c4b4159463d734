"""The engine driven by hand: what leaves when, what is stored once, who is told what."""

from typing import Any

import pytest

from lightrail.journal.record import Epoch, Outcome
from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.shard.engine.settling import SETTLE_SLICE_MESSAGES
from lightrail.shard.queue.changes.outcomes import RETURNED_AT_ONCE
from lightrail.wire.bodies import Hello, ProducerOpen, SettleDetail
from lightrail.wire.frames import ASKED, HEADER, REPEATED, VERSION, Kind, OutcomeCode, frame
from tests.support.shard.scene import Answer, Peer, Scene, SmallStore, batch


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"m%d" % number for number in range(first, first + count)]


# --- answers -------------------------------------------------------------------------------------------


def test_a_durable_batch_is_answered_when_its_commit_has_ended() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    scene.settle_down()
    peer.send(1, 1, numbered(3))
    assert peer.accepted(1) == []
    scene.begin_commit()
    peer.send(1, 2, numbered(3))
    assert peer.accepted(1) == []
    scene.end_commit()
    assert peer.accepted(1) == [1]
    scene.settle_down()
    assert peer.accepted(1) == [2]


def test_a_record_that_an_answer_appends_is_committed_in_the_same_turn() -> None:
    """As that of a transaction that had to wait for the commit under way."""

    class Again:
        def accept(self, _: int) -> None:
            scene.store.append(Epoch(2))
            scene.engine.answers.when_synced(Last(), 0)

    class Last:
        def accept(self, _: int) -> None: ...

    scene = Scene()
    scene.settle_down()
    scene.engine.answers.when_synced(Again(), 0)
    assert scene.step().must_sync


def test_a_transient_batch_is_answered_at_once() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(3), durable=False)
    assert peer.accepted(1) == [1]
    assert scene.queue("q") == {"ready": 3, "in_flight": 0}


def test_answers_to_neighbours_are_one_frame() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.take()
    peer.say(*(batch(1, number, numbered(2)) for number in range(1, 9)))
    scene.settle_down()
    assert peer.take(Kind.ACCEPTED) == [Answer(Kind.ACCEPTED, 1, 1, 8)]


def test_after_a_failed_commit_nothing_is_accepted_not_even_what_comes_again() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    scene.settle_down()
    peer.send(1, 1, numbered(3))
    scene.begin_commit()
    assert scene.commit is not None
    error = OSError("the disk is broken")
    scene.store.fail_commit(scene.commit, error)
    scene.engine.commit_failed(error)
    scene.commit = None
    peer.greet()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(3))
    peer.send(1, 2, numbered(3), durable=False)
    assert peer.accepted(1) == []
    assert "disk is broken" in (scene.engine.not_ready() or "")


# --- once, and in order --------------------------------------------------------------------------------


def test_a_batch_that_comes_again_after_a_greeting_is_answered_and_not_stored() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(3))
    scene.settle_down()
    peer.take()
    peer.greet()
    peer.produce(1, "q")
    peer.say(batch(1, 1, numbered(3)), batch(1, 2, numbered(2, 3)))
    scene.settle_down()
    assert peer.accepted(1) == [1, 2]
    assert scene.queue("q")["ready"] == 5
    assert scene.counts.batches_duplicate == 1


def test_a_batch_that_comes_again_waits_for_the_commit_that_holds_it() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    scene.settle_down()
    peer.send(1, 1, numbered(3))
    scene.begin_commit()
    peer.greet()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(3))
    assert peer.accepted(1) == []
    scene.end_commit()
    scene.settle_down()
    assert peer.accepted(1) == [1]
    assert scene.queue("q")["ready"] == 3


def test_numbers_of_producers_are_recovered() -> None:
    store = SmallStore()
    recovered = store.recover(0)
    recovered.producers[7 << 32 | 1] = 4
    scene = Scene(store, recovered)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.say(batch(1, 4, numbered(1)), batch(1, 5, numbered(1, 1)))
    scene.settle_down()
    assert peer.accepted(1) == [4, 5]
    assert scene.queue("q")["ready"] == 1


def test_a_producer_that_was_closed_is_forgotten() -> None:
    scene = Scene()
    peer = scene.peer()
    for link in range(1, 20):
        peer.produce(link, "q")
        peer.send(link, 1, numbered(1), durable=False)
        peer.say(frame(Kind.PRODUCER_CLOSE, link=link))
    peer.greet()
    assert scene.engine._links.sending._numbers == {}


def test_order_per_producer_is_kept() -> None:
    scene = Scene()
    peer = scene.peer()
    other = scene.peer("frontend-1", 8)
    peer.produce(1, "q")
    other.produce(1, "q")
    for number in range(1, 30):
        peer.send(1, number, [b"a%d" % number], durable=number % 3 == 0)
        other.send(1, number, [b"b%d" % number], durable=number % 2 == 0)
        if number % 7 == 0:
            scene.settle_down()
    peer.consume(2, "q", 1_000)
    got = peer.messages(2)
    assert [each for each in got if each[:1] == b"a"] == [b"a%d" % number for number in range(1, 30)]
    assert [each for each in got if each[:1] == b"b"] == [b"b%d" % number for number in range(1, 30)]


def test_a_batch_for_a_producer_that_is_not_open_is_passed_over() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.send(9, 1, numbered(1))
    assert peer.take(Kind.ACCEPTED, Kind.REFUSED) == []


# --- frontends come and go -----------------------------------------------------------------------------


def test_a_stranger_is_told_that_it_is_one() -> None:
    scene = Scene()
    peer = Peer(scene)
    peer.say(frame(Kind.PING))
    assert peer.take() == [Answer(Kind.ABSENT, 0, 0, 0)]


def test_a_welcome_names_the_attempt_it_answers() -> None:
    scene = Scene(boot=42)
    peer = scene.peer()
    peer.greet()
    assert peer.welcome is not None
    assert (peer.welcome.attempt, peer.welcome.boot) == (2, 42)


def test_a_ping_is_answered_with_the_boot() -> None:
    scene = Scene(boot=42)
    peer = scene.peer()
    peer.take()
    peer.say(frame(Kind.PING))
    # One message has been sent to it before: the welcome.
    assert peer.take() == [Answer(Kind.PONG, 0, 42, 1)]


def test_what_comes_behind_a_lost_message_is_not_taken_before_a_greeting() -> None:
    scene = Scene(boot=42)
    peer = scene.peer()
    peer.say(frame(Kind.COUNT, number=1), frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
    peer.say(frame(Kind.COUNT, number=2), batch(1, 1, [b"a"], durable=False))
    peer.take()
    # The third message, with the second batch, is on no way any more: the third batch must not stand for it.
    peer.say(frame(Kind.COUNT, number=4), batch(1, 3, [b"c"], durable=False))
    assert [answer.kind for answer in peer.take()] == [Kind.ABSENT]
    peer.greet()
    peer.say(frame(Kind.COUNT, number=1), frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
    peer.say(
        frame(Kind.COUNT, number=2),
        batch(1, 2, [b"b"], durable=False),
        batch(1, 3, [b"c"], durable=False),
    )
    assert peer.accepted(1) == [2, 3]
    assert scene.queue("q")["ready"] == 3


def test_another_version_of_the_wire_is_told_ours_and_not_served() -> None:
    scene = Scene()
    peer = Peer(scene)
    peer.say(frame(Kind.HELLO, body=Hello(99, peer.name, peer.boot, 1).encode()))
    assert peer.welcome is not None
    assert peer.welcome.version == VERSION
    peer.take()
    peer.produce(1, "q")
    assert peer.take() == [Answer(Kind.ABSENT, 0, 0, 0)]


def test_a_frontend_of_the_version_before_is_answered_in_its_version() -> None:
    scene = Scene()
    peer = Peer(scene)
    peer.say(frame(Kind.HELLO, body=Hello(VERSION - 1, peer.name, peer.boot, 1).encode()))
    assert peer.welcome is not None
    assert peer.welcome.version == VERSION - 1
    peer.take()
    peer.say(frame(Kind.COUNT, number=1), frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()))
    assert [answer.kind for answer in peer.take()] == [Kind.PRODUCER_READY]


def test_frames_behind_a_greeting_belong_to_the_new_life() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.take()
    hello = Hello(VERSION, peer.name, peer.boot, 2)
    peer.say(
        frame(Kind.HELLO, body=hello.encode()),
        frame(Kind.PRODUCER_OPEN, link=1, body=ProducerOpen("q").encode()),
    )
    assert [answer.kind for answer in peer.take()] == [Kind.WELCOME, Kind.PRODUCER_READY]
    peer.say(frame(Kind.GOODBYE), frame(Kind.PING))
    assert peer.take() == []


def held(scene: Scene) -> tuple[Peer, Peer]:
    """A frontend that holds five messages, and one that wants them."""
    peer, other = scene.peer(), scene.peer("frontend-1", 8)
    peer.produce(1, "q")
    peer.send(1, 1, numbered(5))
    peer.consume(2, "q", 10)
    assert peer.messages(2) == numbered(5)
    other.consume(2, "q", 10)
    assert other.messages(2) == []
    return peer, other


def test_the_silence_of_a_frontend_releases_what_it_held() -> None:
    scene = Scene()
    peer, other = held(scene)
    for _ in range(limits.PEER_SILENCE_MS // 1_000 + 1):
        scene.tick(1_000)
        other.say(frame(Kind.PING))
    assert other.messages(2) == numbered(5)
    # Shown as delivered before, and not counted.
    assert {each.attempts for each in other.delivered[2]} == {1}
    peer.take()
    peer.settle(2, 0, 5)
    assert peer.take() == [Answer(Kind.ABSENT, 0, 0, 0)]
    assert scene.queue("q")["in_flight"] == 5


def test_a_stall_of_our_own_forgets_nobody() -> None:
    scene = Scene()
    peer, other = held(scene)
    scene.tick(60_000)
    scene.tick(1_000)
    assert other.messages(2) == []
    peer.settle(2, 0, 5)
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}


def test_a_goodbye_releases_what_was_held() -> None:
    scene = Scene()
    peer, other = held(scene)
    peer.say(frame(Kind.GOODBYE))
    assert other.messages(2) == numbered(5)


def test_a_frontend_that_zmq_lost_releases_what_it_held() -> None:
    scene = Scene()
    peer, other = held(scene)
    scene.engine.lost(peer.identity)
    scene.engine.lost(peer.identity)
    scene.turn()
    assert other.messages(2) == numbered(5)


def test_the_next_boot_of_a_frontend_ends_the_former_one() -> None:
    scene = Scene()
    _, other = held(scene)
    scene.peer("frontend-0", 9)
    assert other.messages(2) == numbered(5)


def test_a_consumer_goes_on_with_its_numbers_after_a_greeting() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(5))
    peer.consume(2, "q", 3)
    peer.greet()
    peer.consume(2, "q", 6, first=3)
    assert [each.number for each in peer.delivered[2]] == [0, 1, 2, 3, 4, 5]
    assert peer.messages(2)[3:] == numbered(3)


# --- consumers -----------------------------------------------------------------------------------------


def test_credit_is_a_limit_of_numbers() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(5))
    peer.consume(2, "q", 2)
    assert peer.messages(2) == numbered(2)
    peer.credit(2, 2)
    assert peer.messages(2) == numbered(2)
    peer.credit(2, 4)
    assert peer.messages(2) == numbered(4)


def test_drain_is_answered_after_what_there_is() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(3))
    peer.consume(2, "q")
    peer.take()
    peer.credit(2, 10, drain=True)
    assert [(answer.kind, answer.number) for answer in peer.take()] == [(Kind.DELIVER, 0), (Kind.DRAINED, 3)]
    peer.send(1, 2, numbered(1))
    assert peer.take(Kind.DELIVER) == []


def test_an_exclusive_consumer_refuses_others_before_they_are_ready() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.consume(1, "q", exclusive=True)
    peer.take()
    peer.consume(2, "q")
    assert [answer.kind for answer in peer.take()] == [Kind.GONE]
    assert peer.refusals[0][2].condition == conditions.RESOURCE_LOCKED
    peer.say(frame(Kind.CONSUMER_CLOSE, link=1))
    peer.consume(3, "q")
    assert [answer.kind for answer in peer.take()] == [Kind.CONSUMER_READY]


@pytest.mark.parametrize(
    ("ending", "counted", "shown"),
    [
        (Ending.BY_CLIENT, [], (0, 0)),
        (Ending.BY_BROKER, [], (1, 1)),
        # The first one is counted, the second one only marked.
        (Ending.FAILED, [(Outcome.MODIFIED, 1, [(0, 1)])], (1, 1)),
    ],
)
def test_how_a_consumer_ends_decides_what_is_counted_and_what_is_marked(
    ending: Ending, counted: list[Any], shown: tuple[int, int]
) -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(2))
    peer.consume(2, "q", 5)
    peer.consume(3, "q", 5)
    peer.say(frame(Kind.CONSUMER_CLOSE, flags=ending, link=2))
    delivered = peer.delivered[3]
    assert [(each.message, each.attempts) for each in delivered] == [(b"m0", shown[0]), (b"m1", shown[1])]
    scene.settle_down()
    store = scene.store
    assert isinstance(store, SmallStore)
    assert [(each.outcome, each.attempts, each.ranges) for each in store.settles()] == counted


@pytest.mark.parametrize("ending", [Ending.BY_BROKER, Ending.FAILED])
def test_many_deliveries_of_a_client_return_in_pieces_with_one_failure_at_most(ending: Ending) -> None:
    count = 2 * SETTLE_SLICE_MESSAGES + RETURNED_AT_ONCE
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(count))
    peer.consume(2, "q", count)
    peer.say(frame(Kind.CONSUMER_CLOSE, flags=ending, link=2))
    scene.settle_down()
    assert scene.queue("q") == {"ready": count, "in_flight": 0}
    store = scene.store
    assert isinstance(store, SmallStore)
    counted = [(each.attempts, each.ranges) for each in store.settles()]
    assert counted == ([(1, [(0, 1)])] if ending is Ending.FAILED else [])


def test_a_link_that_is_opened_twice_is_one() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(2), durable=False)
    peer.consume(2, "q", 5)
    peer.consume(2, "q", 5)
    peer.produce(1, "q")
    peer.send(1, 1, numbered(2), durable=False)
    assert scene.queue("q") == {"ready": 0, "in_flight": 2}
    assert len(scene.engine._performer.links) == 1


def test_settlements_of_a_turn_are_one_record() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(6))
    peer.consume(2, "q", 10)
    parts = [frame(Kind.SETTLE, link=2, number=number, count=1) for number in range(5)]
    peer.say(*parts)
    store = scene.store
    assert isinstance(store, SmallStore)
    assert [each.ranges for each in store.settles()] == [[(0, 5)]]


def test_a_settlement_that_asks_is_answered_when_it_is_on_disk() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(6))
    peer.consume(2, "q", 10)
    scene.settle_down()
    peer.take()
    peer.settle(2, 0, 2, asked=ASKED)
    peer.settle(2, 2, 2)
    assert peer.take(Kind.SETTLED) == []
    scene.begin_commit()
    assert peer.take(Kind.SETTLED) == []
    scene.end_commit()
    assert peer.take(Kind.SETTLED) == [Answer(Kind.SETTLED, 2, 0, 2)]
    assert peer.uncertain == []


def test_a_settlement_that_asks_for_nothing_that_is_stored_is_answered_at_once() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(1), durable=False)
    peer.consume(2, "q", 10)
    scene.settle_down()
    peer.take()
    peer.settle(2, 0, 1, asked=ASKED)
    # Said once more, as after a move: it is known already.
    peer.settle(2, 0, 1, asked=ASKED)
    assert peer.take(Kind.SETTLED) == [Answer(Kind.SETTLED, 2, 0, 1)] * 2


def test_what_was_settled_at_a_shard_that_was_lost_before_it_handed_its_link_over_is_not_confirmed() -> None:
    """The queue has moved here, with all its messages, and without the deliveries of the link."""
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(6))
    peer.consume(2, "q", 12, first=10, resume=True)
    scene.settle_down()
    peer.take()
    peer.settle(2, 7, 3, asked=ASKED | REPEATED)
    peer.settle(2, 6, 1, asked=ASKED)
    peer.settle(2, 10, 1, asked=ASKED)
    scene.settle_down()
    assert peer.take(Kind.SETTLED) == [
        Answer(Kind.SETTLED, 2, 7, 3),
        Answer(Kind.SETTLED, 2, 6, 1),
        Answer(Kind.SETTLED, 2, 10, 1),
    ]
    assert peer.uncertain == [(2, 7, 3), (2, 6, 1)]


@pytest.mark.parametrize("code", [OutcomeCode.ACCEPTED, OutcomeCode.REJECTED])
def test_a_settlement_that_the_store_has_no_room_for_is_not_confirmed(code: OutcomeCode) -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(6))
    peer.consume(2, "q", 10)
    scene.settle_down()
    store = scene.store
    assert isinstance(store, SmallStore)
    store.full_for_all = True
    peer.settle(2, 0, 2, code, asked=ASKED)
    scene.settle_down()
    assert peer.uncertain == [(2, 0, 2)]


def test_after_a_failed_commit_no_settlement_is_confirmed() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(6))
    peer.consume(2, "q", 10)
    scene.settle_down()
    peer.take()
    peer.settle(2, 0, 2, asked=ASKED)
    scene.begin_commit()
    scene.engine.commit_failed(OSError("no disk"))
    peer.settle(2, 2, 2, asked=ASKED)
    scene.turn()
    assert peer.take(Kind.SETTLED) == []


def test_presettled_messages_are_gone_when_delivered() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, numbered(6))
    peer.consume(2, "q", 10, presettled=True)
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}
    store = scene.store
    assert isinstance(store, SmallStore)
    assert [each.ranges for each in store.settles()] == [[(0, 6)]]


# --- limits --------------------------------------------------------------------------------------------


def test_no_more_queues_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUES_MAX", 2)
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "a")
    peer.produce(2, "b")
    peer.take()
    peer.produce(3, "c")
    peer.consume(4, "d")
    assert [answer.kind for answer in peer.take()] == [Kind.GONE, Kind.GONE]
    assert {refusal.condition for _, _, refusal in peer.refusals} == {conditions.RESOURCE_LIMIT_EXCEEDED}
    # What is rejected still has where to go.
    peer.send(1, 1, numbered(1))
    peer.consume(5, "a", 5)
    peer.settle(5, 0, 1, OutcomeCode.REJECTED, SettleDetail())
    assert scene.queue("a/$dlq")["ready"] == 1


def test_numbers_of_producers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 3)
    scene = Scene()
    peer = scene.peer()
    for link in range(1, 6):
        peer.produce(link, "q")
        peer.send(link, 1, numbered(1), durable=False)
    peer.greet()
    assert [number & 0xFF for number in scene.engine._links.sending._numbers] == [3, 4, 5]


def test_an_unknown_kind_is_passed_over() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.take()
    peer.say(HEADER.pack(60, 0, 0, 0, 0, 0, 0), frame(Kind.PING))
    assert [answer.kind for answer in peer.take()] == [Kind.PONG]
