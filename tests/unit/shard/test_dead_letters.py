"""Dead letters: what is written with them, in which order, and what becomes of them on a full disk."""

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import decode_annotations, with_annotations
from lightrail.amqp.values import Symbol, UInt
from lightrail.journal.record import CONTINUED, Outcome, Settle
from lightrail.model import limits
from lightrail.shard.journal.record import Append
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support.now import now
from tests.support.shard.scene import Peer, Scene, SmallStore

BODY = b"\x00\x53\x75\xa0\x01"
"""A data section of one byte, without that byte."""


def opened(messages: list[bytes], *, durable: bool = True, **options: int) -> tuple[Scene, SmallStore, Peer]:
    """A queue with these messages, all of them delivered on link 2."""
    scene = Scene(**options)  # type: ignore[arg-type]
    store = scene.store
    assert isinstance(store, SmallStore)
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, messages, durable=durable)
    peer.consume(2, "q", 100)
    scene.settle_down()
    return scene, store, peer


def letters(count: int) -> list[bytes]:
    return [BODY + bytes((65 + number,)) for number in range(count)]


def test_rejected_messages_go_with_their_reason_as_one_group() -> None:
    scene, store, peer = opened(letters(3))
    store.records.clear()
    detail = SettleDetail(condition="acme:bad", description="no such customer")
    peer.settle(2, 0, 2, OutcomeCode.REJECTED, detail)
    peer.consume(3, "q/$dlq", 100)
    got = peer.messages(3)
    assert [message[-1:] for message in got] == [b"A", b"B"]
    notes = decode_annotations(got[0])
    assert notes == {
        Symbol("x-opt-dead-letter-reason"): "rejected",
        Symbol("x-opt-dead-letter-source"): "q",
        Symbol("x-opt-dead-letter-time"): scene.now_ms,
        Symbol("x-opt-dead-letter-condition"): "acme:bad",
        Symbol("x-opt-dead-letter-description"): "no such customer",
        Symbol("x-opt-dead-letter-count"): 1,
    }
    append, settle = store.records[-2:]
    assert isinstance(append, Append)
    assert isinstance(settle, Settle)
    assert append.flags & CONTINUED
    assert not settle.flags & CONTINUED
    assert (settle.outcome, settle.ranges) == (Outcome.DEAD_LETTERED, [(0, 2)])
    assert scene.counts.dead_lettered["rejected"] == 2


def test_a_message_that_dies_again_keeps_its_first_error_and_counts() -> None:
    """As after a redrive: somebody sends what was in the dead-letter queue once more."""
    scene, _, peer = opened(letters(1))
    peer.settle(2, 0, 1, OutcomeCode.REJECTED, SettleDetail(condition="acme:bad", description="first"))
    peer.consume(3, "q/$dlq", 1)
    scene.now_ms += 5
    peer.send(1, 2, peer.messages(3))
    peer.settle(2, 1, 1, OutcomeCode.REJECTED, SettleDetail(condition="acme:worse", description="second"))
    peer.credit(3, 2)
    notes = decode_annotations(peer.messages(3)[1])
    assert notes[Symbol("x-opt-dead-letter-condition")] == "acme:bad"
    assert notes[Symbol("x-opt-dead-letter-description")] == "first"
    assert notes[Symbol("x-opt-dead-letter-count")] == 2
    assert notes[Symbol("x-opt-dead-letter-time")] == scene.now_ms


def test_the_history_outlasts_a_redrive() -> None:
    history = {Symbol("x-opt-dead-letter-count"): UInt(3), Symbol("x-opt-dead-letter-description"): "first"}
    _scene, _, peer = opened([with_annotations(letters(1)[0], history)])
    peer.settle(2, 0, 1, OutcomeCode.REJECTED, SettleDetail(condition="acme:bad", description="second"))
    peer.consume(3, "q/$dlq", 100)
    notes = decode_annotations(peer.messages(3)[0])
    assert notes[Symbol("x-opt-dead-letter-count")] == 4
    assert notes[Symbol("x-opt-dead-letter-description")] == "first"


def test_too_many_attempts() -> None:
    scene, _, peer = opened(letters(1), max_delivery_count=3)
    failed = SettleDetail(delivery_failed=True)
    for number in range(3):
        peer.settle(2, number, 1, OutcomeCode.MODIFIED, failed)
    assert [each.attempts for each in peer.delivered[2]] == [0, 1, 2]
    peer.consume(3, "q/$dlq", 100)
    assert decode_annotations(peer.messages(3)[0])[Symbol("x-opt-dead-letter-reason")] == "max-delivery-count"
    # There it may fail for ever.
    for number in range(20):
        peer.settle(3, number, 1, OutcomeCode.MODIFIED, failed)
        scene.tick(limits.DEAD_LETTER_RETRY_MS_MAX)
    assert scene.queue("q/$dlq")["in_flight"] == 1


def test_expired_messages_by_the_clock_alone() -> None:
    """The dead-letter queue comes into being while all queues are looked through."""
    scene = Scene()
    peer = scene.peer()
    for link in (1, 2, 3):
        peer.produce(link, f"q{link}")
        peer.send(link, 1, letters(2), expires_at_ms=scene.now_ms + 100 * link)
    assert now(scene.engine.deadline_ms) == scene.now_ms + 100
    scene.tick(150)
    assert scene.queue("q1")["ready"] == 0
    assert scene.queue("q1/$dlq")["ready"] == 2
    assert now(scene.engine.deadline_ms) == scene.now_ms - 150 + 200
    scene.tick(1_000)
    assert scene.queue("q3/$dlq")["ready"] == 2
    assert scene.engine.deadline_ms is None
    scene.tick(100_000)
    assert scene.queue("q1/$dlq")["ready"] == 2


def test_in_flight_messages_do_not_expire_under_their_consumer() -> None:
    scene = Scene()
    peer = scene.peer()
    peer.produce(1, "q")
    peer.send(1, 1, letters(2), expires_at_ms=scene.now_ms + 100)
    peer.consume(2, "q", 1)
    scene.tick(500)
    assert scene.queue("q") == {"ready": 0, "in_flight": 1}
    peer.settle(2, 0, 1)
    assert scene.queue("q/$dlq")["ready"] == 1


def test_a_malformed_message_is_kept_as_it_is() -> None:
    garbage = [b"\x00\x53\x75\xff\xff\xff", b"no message", b"\x00"]
    scene, _, peer = opened(garbage)
    notes = SettleDetail(annotations=encode({Symbol("x-opt-a"): 1}).hex())
    peer.settle(2, 0, 3, OutcomeCode.MODIFIED, notes)
    assert peer.messages(2) == garbage * 2
    peer.settle(2, 3, 3, OutcomeCode.REJECTED, SettleDetail())
    peer.consume(3, "q/$dlq", 100)
    assert peer.messages(3) == garbage
    assert scene.queue("q") == {"ready": 0, "in_flight": 0}


def test_annotations_of_modified_are_merged_and_written() -> None:
    _, store, peer = opened(letters(1))
    notes = SettleDetail(annotations=encode({Symbol("x-opt-a"): 1}).hex())
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, notes)
    assert decode_annotations(peer.messages(2)[1]) == {Symbol("x-opt-a"): 1}
    assert store.appends()[-1].targets == [(1, 0)]


def test_annotations_on_a_full_disk_are_kept_in_memory() -> None:
    scene, store, peer = opened(letters(1))
    store.full = True
    notes = SettleDetail(annotations=encode({Symbol("x-opt-a"): 1}).hex())
    peer.settle(2, 0, 1, OutcomeCode.MODIFIED, notes)
    assert decode_annotations(peer.messages(2)[1]) == {Symbol("x-opt-a"): 1}
    # The message still has its location: the cleaner would find it.
    machine = next(iter(scene.engine._queues)).machine
    assert len(machine.footprint.runs_in(0)) == 1


def test_dead_letters_wait_while_the_disk_is_full() -> None:
    scene, store, peer = opened(letters(3))
    peer.consume(3, "q/$dlq", 100)
    store.full = True
    peer.settle(2, 0, 2, OutcomeCode.REJECTED, SettleDetail())
    scene.tick(1_000)
    assert peer.messages(3) == []
    # On disk they are still in their queue, and that segment must stay.
    assert scene.engine._house._cleaner._in_use(0)
    assert not [each for each in store.settles() if each.outcome == Outcome.DEAD_LETTERED]
    store.full = False
    scene.tick(1_000)
    assert [message[-1:] for message in peer.messages(3)] == [b"A", b"B"]
    assert [each.ranges for each in store.settles()][-1:] == [[(0, 2)]]
    assert scene.counts.dead_lettered["rejected"] == 2
    assert not scene.engine._house._cleaner._in_use(0)


def test_dead_letters_wait_for_their_queue_to_be_written_down() -> None:
    scene, store, peer = opened(letters(1), durable=False)
    store.full_for_all = True
    peer.settle(2, 0, 1, OutcomeCode.REJECTED, SettleDetail())
    scene.tick(1_000)
    store.full_for_all = False
    scene.tick(1_000)
    assert scene.queue("q/$dlq")["ready"] == 1


def test_what_is_rejected_in_a_dead_letter_queue_stays_there() -> None:
    scene, _, peer = opened(letters(1))
    peer.settle(2, 0, 1, OutcomeCode.REJECTED, SettleDetail())
    peer.consume(3, "q/$dlq", 100)
    peer.settle(3, 0, 1, OutcomeCode.REJECTED, SettleDetail())
    assert scene.queue("q/$dlq") == {"ready": 1, "in_flight": 0}
    assert len(list(scene.engine._queues)) == 2


def test_an_outcome_of_a_consumer_that_has_gone_changes_nothing() -> None:
    scene, _, peer = opened(letters(1))
    peer.say(frame(Kind.CONSUMER_CLOSE, link=2))
    peer.settle(2, 0, 1, OutcomeCode.REJECTED, SettleDetail())
    assert scene.queue("q") == {"ready": 1, "in_flight": 0}
