"""What of a queue comes with it to another shard, what does not, and what makes a copy fail."""

from typing import Any

import pytest

from lightrail.model import conditions, limits
from lightrail.model.attempts import failures
from lightrail.model.links import Durability, Ending
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import declared_of
from lightrail.shard.journal.store import StoreFullError
from lightrail.shard.moving.exporting import Exporting
from lightrail.shard.moving.importing import ImportFailedError, Importing
from lightrail.shard.moving.pieces import ColumnsError, pack, unpack
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.columns import encode_tags
from lightrail.wire.frames import Kind, OutcomeCode, frame
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.moving import (
    DEAD,
    KEY,
    NOTES,
    QUEUE,
    SEGMENT_BYTES,
    Answer,
    Side,
    ask,
    contents,
    exporting_of,
    exports_of,
    importing_of,
    queue_of,
    scene_of,
)
from tests.support.shard.scene import Scene, SmallStore, batch
from tests.unit.shard.transactions.test_schedules import under
from tests.unit.shard.transactions.test_transactions import transact

BODIES = [b"\x00\x53\x77\xa1\x01" + letter for letter in (b"a", b"b", b"c", b"d", b"e", b"f")]
EVERYTHING = 1 << 30


class Move:
    """A source with some messages, and a destination."""

    def __init__(self, policy: dict[str, Any] | None = None, *, durable: bool = True) -> None:
        self.policy = Policy.parse({"role": "queue", **(policy or {})})
        self.files = FakeFiles()
        self.source = scene_of(self.policy, FakeFiles(), memory_mark=EVERYTHING)
        self.target = scene_of(self.policy, self.files, memory_mark=EVERYTHING)
        self.side = Side(self.source)
        self.peer = self.side.peer
        self.peer.produce(1, QUEUE)
        self.peer.send(1, 1, BODIES, durable=durable)
        self.source.settle_down()
        self.exporting: Exporting
        self.importing: Importing

    def begin(self) -> None:
        self.exporting = exporting_of(self.source, QUEUE, "1")
        self.importing = importing_of(self.target, QUEUE)
        self.importing.begin(self.target.now_ms)

    def copy(self, *, rewritten: bool = False) -> Answer:
        first = 0 if rewritten else self.importing.next
        answer = ask(self.source, self.exporting, first, EVERYTHING, EVERYTHING, rewritten=rewritten)
        assert self.importing.take(*answer, self.target.now_ms) is None
        return answer

    def finish(self) -> None:
        self.copy()
        self.copy(rewritten=True)
        self.importing.finish(*self.exporting.state(self.source.now_ms), self.target.now_ms)
        self.target.settle_down()

    def open(self) -> None:
        """Also takes the links over."""
        found = self.target.engine._queues.names.get(QUEUE)
        self.importing.open(found, 2, self.target.now_ms)
        self.target.engine._links.receiving.serve(self.importing.queue, self.target.now_ms)
        self.side.move_to(self.target, [self.importing.queue])
        self.target.settle_down()
        self.peer = self.side.peer

    def all(self) -> None:
        self.begin()
        self.finish()
        self.open()


def delivered(move: Move, link: int) -> list[tuple[int, int, int]]:
    """(number, sequence, attempts) of what came on a link since the last time."""
    return [each[2:5] for each in move.side.news() if each[0] == "delivered" and each[1] == link]


def test_a_lock_that_was_renewed_lasts_for_what_was_left_of_it() -> None:
    move = Move()
    move.peer.consume(5, QUEUE, 2, lock_ms=500, lock_key=KEY % 1)
    move.source.tick(300)
    move.peer.ask("renew", queue=QUEUE, lock=KEY % 1 + "-1", sequence=1)
    move.begin()
    move.finish()
    # The move itself takes a while: it is not the holder's fault.
    move.target.now_ms = move.source.now_ms + 10_000
    move.open()
    move.target.tick(199)
    assert move.target.queue(QUEUE)["in_flight"] == 2
    move.target.tick(1)
    assert move.target.queue(QUEUE)["in_flight"] == 1
    move.target.tick(299)
    assert move.target.queue(QUEUE)["in_flight"] == 1
    move.target.tick(1)
    assert move.target.queue(QUEUE)["in_flight"] == 0


def test_a_link_goes_on_renewing_what_came_with_it() -> None:
    move = Move()
    move.peer.consume(5, QUEUE, 2, lock_ms=500)
    move.source.tick(300)
    move.peer.ask("renew_deliveries", queue=QUEUE, link=5, numbers=[1])
    move.all()
    move.target.tick(200)
    assert move.target.queue(QUEUE)["in_flight"] == 1
    number = move.peer.ask("renew_deliveries", queue=QUEUE, link=5, numbers=[0, 1])
    assert move.peer.answers[number][0] == {"locked_ms": [0, 500]}
    move.target.tick(499)
    assert move.target.queue(QUEUE)["in_flight"] == 1
    move.target.tick(1)
    assert move.target.queue(QUEUE)["in_flight"] == 0


def test_what_is_locked_by_somebody_who_left_is_settled_by_its_key() -> None:
    move = Move()
    move.peer.consume(5, QUEUE, 2, lock_ms=500, lock_key=KEY % 1)
    move.peer.close_consumer(5)
    move.all()
    assert move.target.queue(QUEUE) == {"ready": 4, "in_flight": 2}
    number = move.peer.ask("settle", queue=QUEUE, lock=KEY % 1 + "-0", sequence=0)
    move.target.settle_down()
    assert move.peer.answers[number][0] == {"found": True}
    assert move.target.queue(QUEUE) == {"ready": 4, "in_flight": 1}
    # The same key again takes over what is left.
    move.peer.consume(6, QUEUE, 3, lock_ms=500, lock_key=KEY % 1, first=2)
    assert delivered(move, 6) == [(2, 2, 0)]


@pytest.mark.parametrize(("ending", "failed"), [(Ending.FAILED, [1, 0, 1]), (Ending.BY_CLIENT, [0, 0, 1])])
def test_whose_fault_the_end_of_a_lock_is_moves_with_the_lock(ending: Ending, failed: list[int]) -> None:
    """That of the oldest counts if the client failed, and that of one that was renewed since."""
    move = Move()
    move.peer.consume(5, QUEUE, 3, lock_ms=500, lock_key=KEY % 1, lock_ends="time")
    move.peer.close_consumer(5, ending)
    number = move.peer.ask("renew_locks", queue=QUEUE, locks=[KEY % 1 + "-2"])
    move.source.settle_down()
    assert move.peer.answers[number][0] == {"locked_ms": [500]}
    move.all()
    assert move.target.queue(QUEUE)["in_flight"] == 3
    move.target.tick(500)
    assert move.target.queue(QUEUE)["in_flight"] == 0
    runs = move.target.queue_contents(QUEUE).ready.waiting()
    assert [failures(run.attempts) for run in runs for _ in range(run.count)][:3] == failed


def test_a_browser_goes_on_where_it_was() -> None:
    move = Move()
    move.peer.consume(5, QUEUE, 2, browse=True)
    move.all()
    move.peer.credit(5, 10)
    assert delivered(move, 5) == [(number, number, 0) for number in (2, 3, 4, 5)]


def test_a_suspended_link_is_resumed_behind_the_move() -> None:
    """What is stored is known to the new owner, where the client attaches its link again (2.6.13)."""
    opening: dict[str, Any] = {"client_link": "1" * 32, "steals": True, "suspended_ms": 60_000}
    move = Move()
    move.peer.produce(5, QUEUE, **opening)
    tags = frame(Kind.TAGS, link=5, number=1, count=1, body=encode_tags([b"tag"]))
    move.peer.say(tags, batch(5, 1, BODIES[:1]))
    move.source.settle_down()
    move.peer.close_producer(5)
    move.begin()
    move.finish()
    move.open()
    peer = move.target.peer("frontend-9", boot=9)
    peer.produce(1, QUEUE, **opening)
    move.target.settle_down()
    assert peer.unsettled == {1: (True, [b"tag"])}


def test_only_the_latest_attach_of_a_link_is_opened_again_behind_the_move() -> None:
    """A frontend that was away has unanswered messages whose tags have been used again (ADR 41)."""
    opening: dict[str, Any] = {"client_link": "1" * 32, "suspended_ms": 60_000}
    move = Move()
    numbers = []
    for link in (5, 6):
        move.peer.produce(link, QUEUE, **opening, steals=True)
        move.source.settle_down()
        numbers.append(move.peer.attaches[link])
    move.peer.close_producer(6)
    move.all()
    ready = move.target.queue(QUEUE)["ready"]
    peer = move.target.peer("frontend-9", boot=9)
    for link, number in zip((5, 6), numbers, strict=True):
        peer.produce(link, QUEUE, **opening, attach=number)
        peer.send(link, 1, BODIES[:1])
        move.target.settle_down()
    assert [(link, refusal.condition) for link, _, refusal in peer.refusals] == [(5, conditions.STOLEN)]
    assert move.target.queue(QUEUE)["ready"] == ready + 1


@pytest.mark.parametrize("durability", Durability)
def test_a_durable_link_is_in_the_journal_of_the_new_owner_before_it_is_the_owner(
    durability: Durability,
) -> None:
    opening: dict[str, Any] = {"client_link": "1" * 32, "steals": True, "suspended_ms": 60_000}
    opening["user"] = "ann"
    move = Move()
    move.peer.produce(5, QUEUE, **opening, durability=durability)
    tags = frame(Kind.TAGS, link=5, number=1, count=1, body=encode_tags([b"tag"]))
    move.peer.say(tags, batch(5, 1, BODIES[:1]))
    move.source.settle_down()
    move.peer.close_producer(5)
    move.begin()
    move.finish()
    move.target.settle_down()
    journal = Journal(move.files.after_crash(0, "none"), "test", 0, segment_bytes=SEGMENT_BYTES)
    termini = [each for queue in journal.recover(EVERYTHING, 1).queues for each in queue.termini]
    known = [b"tag"] if durability == Durability.UNSETTLED_STATE else []
    assert termini == ([(b"\x11" * 16, durability, 60_000, known, "ann")] if durability else [])
    move.open()
    moved = move.target.engine._links.sending.termini
    assert [each.user for each in moved.of(move.importing.queue)] == ["ann"]
    peer = move.target.peer("frontend-9", boot=9)
    peer.produce(1, QUEUE, **opening, durability=durability)
    move.target.settle_down()
    assert peer.unsettled == {1: (True, [b"tag"])}
    assert peer.durability == {1: durability}


def test_a_copy_that_is_dropped_has_no_termini() -> None:
    move = Move()
    move.peer.produce(
        5, QUEUE, client_link="1" * 32, suspended_ms=60_000, durability=Durability.UNSETTLED_STATE
    )
    move.source.settle_down()
    move.begin()
    move.finish()
    move.importing.drop(move.target.now_ms)
    move.target.settle_down()
    assert len(move.target.engine._links.sending.termini) == 0
    journal = Journal(move.files.after_crash(0, "none"), "test", 0, segment_bytes=SEGMENT_BYTES)
    assert [queue.name for queue in journal.recover(EVERYTHING, 1).queues if queue.termini] == []


RESUMABLE: dict[str, Any] = {
    "client_link": "1" * 32,
    "steals": True,
    "suspended_ms": 60_000,
    "recovers": True,
}


def test_a_link_that_ended_before_its_queue_moved_is_resumed_without_a_wait() -> None:
    """No frame of it can come: its client waits for nothing."""
    move = Move()
    move.peer.consume(5, QUEUE, 2, **RESUMABLE)
    move.source.settle_down()
    move.peer.close_consumer(5)
    move.begin()
    move.finish()
    found = move.target.engine._queues.names.get(QUEUE)
    move.importing.open(found, 2, move.target.now_ms)
    move.target.engine._links.receiving.serve(move.importing.queue, move.target.now_ms)
    peer = move.target.peer("frontend-9", boot=9)
    peer.consume(1, QUEUE, **RESUMABLE)
    move.target.settle_down()
    assert peer.recovered[1][2] == [(0, 2)]


def test_a_suspended_receiver_is_resumed_behind_the_move() -> None:
    """Its consumer moves with the queue, and its time begins anew where that is served (2.6.13)."""
    opening = RESUMABLE
    move = Move()
    move.peer.consume(5, QUEUE, 2, **opening)
    move.source.settle_down()
    terminus, _, _ = move.peer.recovered[5]
    move.peer.close_consumer(5)
    move.all()
    peer = move.target.peer("frontend-9", boot=9)
    for _ in range(30):
        peer.ping()
        move.target.tick(1_000)
    assert move.target.queue(QUEUE) == {"ready": 4, "in_flight": 2}
    peer.consume(1, QUEUE, **opening)
    move.target.settle_down()
    assert peer.recovered == {1: (terminus, 2, [(0, 2)])}
    peer.resend(1, (0, 2))
    assert [each.message for each in peer.delivered[1]] == BODIES[:2]


def test_what_is_held_stays_held_and_settled_under_its_numbers() -> None:
    move = Move()
    move.peer.consume(5, QUEUE, 3)
    move.peer.settle(5, 1, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    move.all()
    assert move.target.queue(QUEUE) == {"ready": 4, "in_flight": 2}
    move.peer.settle(5, 2, 1)
    move.peer.settle(5, 0, 1, OutcomeCode.RELEASED)
    move.peer.credit(5, 6)
    assert delivered(move, 5) == [(3, 0, 0), (4, 1, 1), (5, 3, 0)]


def test_a_message_that_is_not_on_disk_yet_is_not_given() -> None:
    move = Move()
    move.begin()
    answers: list[Answer] = []
    move.peer.send(1, 2, BODIES[:1])
    move.exporting.piece(0, EVERYTHING, EVERYTHING, lambda said, blob: answers.append((said, blob)))
    move.source.begin_commit()
    move.peer.send(1, 3, BODIES[:2])
    assert not answers
    move.source.end_commit()
    ((said, blob),) = answers
    assert (said["mark"], said["next"]) == (7, None)
    assert move.importing.take(said, blob, move.target.now_ms) is None
    assert [sequence for sequence, _, _ in contents(move.target, move.importing.queue)] == list(range(7))


def test_what_left_meanwhile_is_dropped_and_what_was_rewritten_comes_again() -> None:
    move = Move()
    move.begin()
    move.copy()
    move.peer.consume(5, QUEUE, 4)
    move.peer.settle(5, 0, 2)
    move.peer.settle(5, 3, 1, OutcomeCode.MODIFIED, SettleDetail(annotations=NOTES))
    move.copy()
    assert [sequence for sequence, _, _ in contents(move.target, move.importing.queue)] == [2, 3, 4, 5]
    move.finish()
    source, target = queue_of(move.source, QUEUE), move.importing.queue
    assert source is not None
    there = contents(move.source, source)
    assert contents(move.target, target) == there
    assert b"x-opt-note" in there[1][2]


@pytest.mark.parametrize("is_behind", [True, False])
def test_what_a_transaction_schedules_under_an_earlier_number_comes_after_what_is_copied(
    is_behind: bool,
) -> None:
    move = Move({"delay": True})
    request = move.peer.ask("reserve_numbers", queue=QUEUE, count=2)
    if is_behind:
        move.peer.send(1, 2, BODIES[:1], durable=True)
    move.source.settle_down()
    assert move.peer.answers[request][0] == {"first": 6}
    move.begin()
    move.copy()
    transact(move.peer, 1, under(6, "one", "two", queue=QUEUE))
    move.source.settle_down()
    move.finish()
    move.open()
    bodies = {
        run.sequence + at: message
        for run in move.target.queue_view(QUEUE).runs
        for at, message in enumerate(run.messages())
    }
    assert sorted(bodies) == list(range(8 + is_behind))
    assert b"one" in bodies[6]
    assert b"two" in bodies[7]
    assert move.target.queue_view(QUEUE).is_delayed(7)
    # And after a kill of the destination.
    journal = Journal(move.files.after_crash(1, "none"), "test", 0, segment_bytes=SEGMENT_BYTES)
    (found,) = journal.recover(EVERYTHING, 1).queues
    assert sum(run.count for run in found.runs) == found.next_sequence == 8 + is_behind


def test_transient_messages_come_along_and_are_in_no_journal() -> None:
    move = Move(durable=False)
    move.begin()
    move.copy()
    assert move.importing.queue.machine.contents.held == 6
    move.target.settle_down()
    (found,) = (
        Journal(move.files.after_crash(1, "all"), "test", 0, segment_bytes=SEGMENT_BYTES)
        .recover(EVERYTHING, 1)
        .queues
    )
    assert found.runs == []
    assert declared_of(found.policy)[:6] == (1, 2, True, False, False, "")


def test_dead_letters_that_had_no_room_come_along_as_messages() -> None:
    move = Move()
    store = move.source.store
    move.peer.consume(5, QUEUE, 2)
    refuse = store.append

    def full(record: Any, now_ms: int = 0) -> Any:
        raise StoreFullError("no room")

    store.append = full  # type: ignore[method-assign]
    move.peer.settle(5, 0, 1, OutcomeCode.REJECTED)
    store.append = refuse  # type: ignore[method-assign]
    assert move.source.engine._performer.dead_letters.unwritten
    move.all()
    assert move.target.queue(QUEUE) == {"ready": 5, "in_flight": 1}


def test_a_copy_counts_as_memory_and_flows_to_disk_while_it_grows() -> None:
    move = Move({"delay": True}, durable=False)
    for number in (2, 3, 4):
        move.peer.send(1, number, BODIES, durable=False)
    move.peer.consume(5, QUEUE, 20)
    delivered(move, 5)
    memory = move.target.engine._house.memory
    memory.mark = 10

    def messages() -> int:
        """Bytes of messages in memory; what is kept beside them counts, too."""
        found = sum(
            queue.machine.contents.resident_message_bytes for queue in move.target.engine._queues.stored()
        )
        assert found < memory.resident
        return found

    move.begin()
    move.copy()
    assert messages() == 4 * 36
    move.target.settle_down()
    assert messages() < 3 * 36
    move.finish()
    move.open()
    # What is held stays on disk until it gets an outcome that needs its bytes.
    assert messages() < 3 * 36
    assert move.target.queue(QUEUE) == {"ready": 4, "in_flight": 20}
    move.peer.settle(5, 7, 1, OutcomeCode.MODIFIED, SettleDetail(annotations=NOTES))
    move.peer.credit(5, 30)
    move.target.settle_down()
    assert delivered(move, 5) == [(20, 7, 0), (21, 20, 0), (22, 21, 0), (23, 22, 0), (24, 23, 0)]


def test_a_copy_is_nobodys_queue() -> None:
    move = Move()
    move.begin()
    move.copy()
    queues = move.target.engine._queues
    assert queues.find(QUEUE) is None
    assert list(queues) == []
    assert queues.get(QUEUE, 0) is None
    with pytest.raises(ImportFailedError, match="found one"):
        importing_of(move.target, QUEUE).begin(0)
    move.importing.drop(0)
    move.importing.drop(0)
    assert not queues.copying
    assert move.target.engine._house.memory.resident == 0
    move.target.settle_down()
    assert move.target.store.usage().live_bytes == 0


def test_a_dead_letter_waits_until_its_queue_has_been_opened() -> None:
    move = Move()
    move.peer.consume(5, QUEUE, 2)
    move.peer.settle(5, 0, 1, OutcomeCode.REJECTED)
    move.source.settle_down()
    dead = exporting_of(move.source, DEAD, "2")
    buried = importing_of(move.target, DEAD)
    buried.begin(0)
    move.all()
    move.peer.settle(5, 1, 1, OutcomeCode.REJECTED)
    assert len(move.target.engine._performer.dead_letters.unwritten) == 1
    assert buried.take(*ask(move.source, dead, 0, 100, 100), 0) is None
    buried.finish(*dead.state(0), 0)
    buried.open(move.target.engine._queues.names.get(DEAD), 2, 0)
    move.target.tick(100)
    assert move.target.queue(DEAD)["ready"] == 2


def test_bytes_that_are_not_those_that_were_sent_make_a_copy_fail() -> None:
    move = Move()
    move.begin()
    said, blob = ask(move.source, move.exporting, 0, EVERYTHING, EVERYTHING)
    with pytest.raises(ImportFailedError, match="checksum"):
        move.importing.take(said, blob[:-1] + b"?", 0)
    with pytest.raises(ImportFailedError, match="can't be used"):
        move.importing.take({}, blob, 0)
    with pytest.raises(ImportFailedError, match="can't be used"):
        move.importing.take({**said, "columns": [["data", "B", 3]]}, blob, 0)


def test_a_source_that_began_anew_makes_a_copy_fail() -> None:
    move = Move()
    move.begin()
    move.copy()
    move.exporting.end()
    move.exporting = exporting_of(move.source, QUEUE, "2")
    with pytest.raises(ImportFailedError, match="began again"):
        move.copy()
    with pytest.raises(ImportFailedError, match="began again"):
        move.importing.finish(*move.exporting.state(0), 0)


def test_a_copy_without_all_messages_is_not_complete() -> None:
    move = Move()
    move.begin()
    with pytest.raises(ImportFailedError, match="messages 0 to 5 are at the source and not in the copy"):
        move.importing.finish(*move.exporting.state(0), 0)
    move.copy()
    move.peer.send(1, 2, BODIES[:1])
    move.source.settle_down()
    with pytest.raises(ImportFailedError, match="messages 6 to 6 are"):
        move.importing.finish(*move.exporting.state(0), 0)
    move.finish()


def test_a_copy_without_what_was_rewritten_is_not_complete() -> None:
    move = Move()
    move.begin()
    move.copy()
    move.peer.consume(5, QUEUE, 1)
    move.peer.settle(5, 0, 1, OutcomeCode.MODIFIED, SettleDetail(annotations=NOTES))
    with pytest.raises(ImportFailedError, match="request them again"):
        move.importing.finish(*move.exporting.state(0), 0)
    move.finish()


def test_a_piece_that_is_not_wanted_any_more_goes_unanswered() -> None:
    move = Move()
    move.begin()
    queue = queue_of(move.source, QUEUE)
    assert queue is not None
    exports = exports_of(move.source, "2")
    first = exports.of(queue)
    answers: list[Answer] = []
    first.piece(0, 10, 10, lambda said, blob: answers.append((said, blob)))
    exports.end(queue)
    move.source.settle_down()
    assert not answers
    assert queue not in move.source.engine._performer.exports
    assert exports.of(queue).identity != first.identity


def test_columns_say_what_is_wrong_with_them() -> None:
    said, blob = pack({"one": b"abc", "two": [b"d", b"e"]})
    assert {name: bytes(part) for name, part in unpack(said, blob).items()} == {"one": b"abc", "two": b"de"}
    for wrong, why in (
        ([["one", "x", 3], ["two", "b", 2]], "the unknown type"),
        ([["one", "b", 3]], "the columns have 3 bytes, found 5"),
        ([["one", "Q", 3]], "ends at 24 of 5"),
        ([["one"]], "is not as expected"),
        (None, "is not as expected"),
    ):
        with pytest.raises(ColumnsError, match=why):
            unpack({**said, "columns": wrong}, blob)


def test_messages_that_can_not_be_read_now_stop_a_piece_before_them() -> None:
    scene = Scene(SmallStore(), memory_mark=40)
    peer = scene.peer()
    peer.produce(1, QUEUE)
    for number in range(1, 7):
        peer.send(1, number, [BODIES[0] * 4])
    scene.settle_down()
    queue = queue_of(scene, QUEUE)
    assert queue is not None
    assert queue.machine.contents.ready.evicted_runs
    exporting = exporting_of(scene, QUEUE, "1")
    read, scene.store.read = scene.store.read, lambda *_: []  # type: ignore[method-assign]
    said, _blob = ask(scene, exporting, 0, EVERYTHING, EVERYTHING)
    evicted = next(run for run in queue.machine.contents.ready.waiting() if run.batch.evicted)
    assert said["next"] == evicted.sequence
    assert "can't be read back now" in said["failed"]
    scene.store.read = read  # type: ignore[method-assign]
    assert ask(scene, exporting, said["next"], EVERYTHING, EVERYTHING)[0]["next"] is None


@pytest.mark.parametrize("is_killed", [False, True], ids=["goes on", "killed"])
def test_a_durable_receiver_is_in_the_journal_of_the_new_owner(is_killed: bool) -> None:
    """Also where the new owner is killed between the transaction and its first step."""
    opening = RESUMABLE | {"durability": Durability.UNSETTLED_STATE, "user": "ann"}
    move = Move()
    move.peer.consume(5, QUEUE, 2, **opening)
    move.source.settle_down()
    terminus, _, _ = move.peer.recovered[5]
    move.peer.close_consumer(5)
    move.begin()
    move.finish()
    move.target.settle_down()
    files = move.files
    if is_killed:
        files = files.after_crash(0, "none")
        target = scene_of(move.policy, files, memory_mark=EVERYTHING, placed=(0, 2))
        target.refresh()
    else:
        found = move.target.engine._queues.names.get(QUEUE)
        move.importing.open(found, 2, move.target.now_ms)
        move.target.engine._links.receiving.serve(move.importing.queue, move.target.now_ms)
        target = move.target
    target.settle_down()
    assert target.queue(QUEUE) == {"ready": 4, "in_flight": 2}
    assert target.engine._house.memory.consumers.of("ann") == limits.CONSUMER_BYTES
    peer = target.peer("frontend-9", boot=9)
    peer.consume(1, QUEUE, **opening)
    target.settle_down()
    assert peer.recovered == {1: (terminus, 2, [(0, 2)])}
    assert peer.durability == {1: Durability.UNSETTLED_STATE}
    peer.credit(1, 3)
    target.settle_down()
    after = scene_of(move.policy, files.after_crash(0, "all"), memory_mark=EVERYTHING, placed=(0, 2))
    after.settle_down()
    assert after.queue(QUEUE) == {"ready": 3, "in_flight": 3}
