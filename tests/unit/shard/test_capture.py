"""What the journal says of a captured queue: everything that happened to its messages, and nothing twice."""

import json
import logging
from typing import Any

import pytest

from lightrail.model.policy import Policy
from lightrail.shard.effects import performer
from lightrail.shard.journal.journal import Journal
from lightrail.shard.journal.record import declared_of
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.captured import broken_laws, events, read
from tests.support.shard.fake_files import FakeFiles
from tests.support.shard.moving import NOTES
from tests.support.shard.scene import Peer, Scene, SmallStore, numbered_messages

QUEUE = "q"
DEAD = "q/$dlq"
EVERYTHING = 1 << 30
PRODUCER = 7 << 32 | 1
CONSUMER = 7 << 32 | 2


def policy(**fields: Any) -> Policy:
    return Policy.parse({"role": "queue", **fields})


class Captured:
    """A shard with a journal and the captured queue `q`; a frontend that sends on link 1, listens on 2."""

    def __init__(
        self, files: FakeFiles | None = None, *, memory_mark: int = EVERYTHING, **fields: Any
    ) -> None:
        self.files = files or FakeFiles()
        self.names = EveryName()
        self.names.give(QUEUE, policy(**{"capture": True, **fields}))
        self.journal = Journal(self.files, "test", 0, segment_bytes=1 << 16)
        recovered = self.journal.recover(memory_mark, 1_000_000)
        self.scene = Scene(self.journal, recovered, names=self.names, memory_mark=memory_mark)
        self.peer = self.scene.peer()
        self.peer.produce(1, QUEUE)

    def send(self, number: int, count: int = 1, *, durable: bool = True, **options: Any) -> None:
        self.peer.send(1, number, numbered_messages(count, 10 * number), durable=durable, **options)

    def said(self, queue: str | None = QUEUE) -> list[tuple[int, str]]:
        self.scene.settle_down()
        found = read(self.disk()).events
        assert not broken_laws(found)
        return events(self.disk(), queue)

    def disk(self) -> FakeFiles:
        return self.files.after_crash(1, "all")

    def policies(self) -> dict[str, str]:
        """What the journal says of each queue."""
        self.scene.settle_down()
        found = Journal(self.disk(), "test", 0, segment_bytes=1 << 16).recover(EVERYTHING)
        return {each.name: each.policy for each in found.queues}


# --- which queues --------------------------------------------------------------------------------------


def test_the_record_of_a_captured_queue_and_of_its_dead_letters_says_so() -> None:
    captured = Captured()
    captured.send(1)
    captured.peer.consume(2, QUEUE, 1)
    captured.peer.settle(2, 0, 1, OutcomeCode.REJECTED)
    captured.peer.produce(3, "other")
    said = captured.policies()
    assert {name: declared_of(text).captured for name, text in said.items()} == {
        QUEUE: True,
        DEAD: True,
        "other": False,
    }
    assert json.loads(said[QUEUE])["capture"] is True
    assert "capture" not in json.loads(said["other"])


def test_it_begins_and_ends_with_the_policy_and_so_it_is_after_a_restart() -> None:
    captured = Captured(capture=False)
    captured.send(1)
    captured.peer.consume(2, QUEUE, 1)
    captured.peer.settle(2, 0, 1, OutcomeCode.REJECTED)
    for number, on in ((2, True), (3, False)):
        captured.names.give(QUEUE, policy(capture=on))
        captured.scene.refresh()
        assert {declared_of(text).captured for text in captured.policies().values()} == {on}
        captured.send(number, durable=False)
    assert captured.said() == [(1, "enqueued")]
    captured.names.give(QUEUE, policy(capture=True))
    captured.scene.refresh()
    captured.scene.settle_down()
    again = Captured(captured.disk())
    assert {declared_of(text).captured for text in again.policies().values()} == {True}
    again.send(4, durable=False)
    assert again.said()[-1:] == [(2, "enqueued")]


def test_a_policy_of_before_captures_were_written_down_is_written_down_anew() -> None:
    old = Captured(capture=False)
    old.send(1)
    old.scene.settle_down()
    # The text of the policy had the field; the record had not.
    again = Captured(old.disk())
    assert declared_of(again.policies()[QUEUE]).captured


# --- what is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_each_message_is_there_with_what_became_of_it(durable: bool) -> None:
    captured = Captured(max_delivery_count=2)
    captured.send(1, 6, durable=durable)
    captured.peer.consume(2, QUEUE, 6)
    captured.peer.settle(2, 0, 1)
    captured.peer.settle(2, 1, 1, OutcomeCode.REJECTED, SettleDetail(condition="it:is-bad"))
    captured.peer.settle(2, 2, 1, OutcomeCode.RELEASED)
    captured.peer.settle(2, 3, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    captured.peer.settle(2, 4, 1, OutcomeCode.MODIFIED)
    captured.peer.settle(2, 5, 1, OutcomeCode.MODIFIED, SettleDetail(annotations=NOTES))
    captured.peer.credit(2, 10)
    captured.peer.settle(2, 7, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
    assert captured.said() == [
        *((sequence, "enqueued") for sequence in range(6)),
        *((sequence, "delivered") for sequence in range(6)),
        (0, "accepted"),
        (1, "dead_lettered"),
        (2, "released"),
        (3, "modified"),
        (4, "modified"),
        (5, "modified"),
        *((sequence, "delivered") for sequence in range(2, 6)),
        (3, "dead_lettered"),
    ]
    found = read(captured.disk()).events
    assert [each for each in found if each.queue == DEAD] == [
        each for each in found if each.queue == DEAD and each.event == "enqueued"
    ]
    assert [each.reason for each in found if each.event == "dead_lettered"] == [
        "rejected",
        "max-delivery-count",
    ]
    assert {each.who for each in found if each.queue == QUEUE and each.event == "enqueued"} == {PRODUCER}
    assert {each.who for each in found if each.event == "delivered"} == {CONSUMER}
    assert {each.durable for each in found if each.event == "enqueued"} == {durable}
    sent = [each.message for each in found if each.queue == QUEUE and each.event == "enqueued"]
    assert sent == numbered_messages(6, 10)
    assert [each.attempts for each in found if each.event == "modified"] == [1, 0, 0]


@pytest.mark.parametrize("durable", [True, False])
def test_what_leaves_unasked_is_settled_too(durable: bool) -> None:
    captured = Captured(max_length=3, overflow="discard_existing")
    for number in range(1, 5):
        captured.send(number, durable=durable, expires_at_ms=2_000_000 if number == 2 else 0)
    captured.scene.tick(1_500_000)
    captured.peer.ask("purge", queue=QUEUE)
    assert captured.said() == [
        (0, "enqueued"),
        (1, "enqueued"),
        (2, "enqueued"),
        (3, "enqueued"),
        (0, "discarded"),
        (1, "dead_lettered"),
        (2, "purged"),
        (3, "purged"),
    ]


def test_what_a_receiver_takes_as_settled_is_delivered_and_accepted() -> None:
    captured = Captured()
    captured.peer.consume(2, QUEUE, 5, presettled=True)
    captured.send(1, 2, durable=False)
    assert captured.said() == [
        (0, "enqueued"),
        (1, "enqueued"),
        (0, "delivered"),
        (1, "delivered"),
        (0, "accepted"),
        (1, "accepted"),
    ]


def test_looking_is_no_delivery() -> None:
    captured = Captured()
    captured.send(1, 3)
    captured.peer.consume(2, QUEUE, 5, browse=True)
    captured.peer.ask("peek", queue=QUEUE)
    assert len(captured.peer.messages(2)) == 3
    assert captured.said() == [(0, "enqueued"), (1, "enqueued"), (2, "enqueued")]


def test_a_lock_that_runs_out_is_a_delivery_that_failed() -> None:
    captured = Captured()
    captured.send(1, durable=False)
    captured.peer.consume(2, QUEUE, 1, lock_ms=500)
    captured.scene.tick(500)
    assert captured.said() == [(0, "enqueued"), (0, "delivered"), (0, "modified")]


def test_what_a_frontend_held_that_is_gone_is_released() -> None:
    captured = Captured()
    captured.send(1, 2)
    captured.peer.consume(2, QUEUE, 2)
    captured.scene.engine.lost(captured.peer.identity)
    assert captured.said()[-2:] == [(0, "released"), (1, "released")]


def test_one_record_tells_what_a_consumer_got_in_a_step() -> None:
    captured = Captured()
    for number in range(1, 40):
        captured.send(number)
    captured.peer.consume(2, QUEUE, 100)
    captured.scene.settle_down()
    assert read(captured.disk()).codes.count(12) == 1


def test_two_queues_of_a_route_and_one_that_is_not_captured() -> None:
    for durable in (True, False):
        captured = Captured()
        captured.names.give("second", policy(capture=True))
        captured.peer.produce(5)
        captured.peer.targets(5, 1, QUEUE, "plain", "second")
        captured.peer.route(5, 1, 1, numbered_messages(2), durable=durable)
        captured.scene.settle_down()
        found = [(each.queue, each.sequence, each.who) for each in read(captured.disk()).events]
        producer = 7 << 32 | 5
        assert found == [(name, at, producer) for name in (QUEUE, "second") for at in (0, 1)]
        for link, name in ((6, QUEUE), (7, "plain"), (8, "second")):
            captured.peer.consume(link, name, 5)
            assert captured.peer.messages(link) == numbered_messages(2)


def test_a_routed_share_of_its_own_is_one_group_with_the_rest() -> None:
    captured = Captured(durable="never")
    captured.names.give("second", policy(max_length=5))
    captured.peer.produce(5)
    captured.peer.targets(5, 1, QUEUE, "second")
    captured.peer.route(5, 1, 1, numbered_messages(2))
    captured.scene.settle_down()
    found = read(captured.disk(), captured_only=False).events
    assert [(each.queue, each.durable, each.who) for each in found] == [
        *[(QUEUE, False, 7 << 32 | 5)] * 2,
        *[("second", True, 7 << 32 | 5)] * 2,
    ]


# --- what does not change ------------------------------------------------------------------------------


def test_a_transient_sender_is_answered_at_once_and_its_messages_are_gone_after_a_restart() -> None:
    captured = Captured()
    captured.scene.settle_down()
    captured.send(1, 3, durable=False)
    assert captured.peer.accepted(1) == [1]
    captured.send(2, 1)
    captured.scene.settle_down()
    again = Captured(captured.disk())
    assert again.scene.queue(QUEUE) == {"ready": 1, "in_flight": 0}


def test_a_number_of_a_transient_batch_is_not_remembered_beyond_a_restart() -> None:
    """It was not answered, or who sent it would not say it again: then it is as if it had never come."""
    captured = Captured()
    captured.send(1, 2, durable=False)
    captured.scene.settle_down()
    again = Captured(captured.disk())
    again.send(1, 2, durable=False)
    assert again.scene.queue(QUEUE) == {"ready": 2, "in_flight": 0}


def test_a_transient_sender_waits_while_the_disk_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer, "CAPTURE_GATHERED_BYTES_MAX", 40)
    captured = Captured()
    captured.scene.settle_down()
    for number in (1, 2, 3):
        captured.send(number, 4, durable=False)
    assert captured.peer.accepted(1) == [1]
    assert captured.scene.step().must_sync
    captured.scene.settle_down()
    assert captured.peer.accepted(1) == [2, 3]


def test_deliveries_ask_for_no_sync() -> None:
    captured = Captured()
    captured.send(1)
    captured.scene.settle_down()
    syncs = captured.journal.usage().syncs
    captured.peer.consume(2, QUEUE, 1)
    captured.scene.settle_down()
    assert captured.journal.usage().syncs == syncs
    assert captured.said()[-1] == (0, "delivered")


def test_transient_messages_that_find_no_room_are_refused() -> None:
    captured = Captured()
    captured.scene.settle_down()
    captured.files.space = captured.files.used()
    number = 0
    while not captured.peer.refusals:
        number += 1
        assert number < 200
        captured.peer.send(1, number, [b"x" * 1_000], durable=False)
        captured.scene.settle_down()
    assert "found none" in captured.peer.refusals[0][2].description
    assert captured.scene.queue(QUEUE)["ready"] == number - 1


def test_on_a_full_disk_deliveries_go_on_and_that_they_are_not_told_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is left of the disk is for settlements, without which messages come again after a restart."""
    captured = Captured()
    captured.scene.settle_down()
    captured.files.space = captured.files.used()
    number = 0
    while not captured.peer.refusals:
        number += 1
        captured.peer.send(1, number, [b"x" * 1_000])
        captured.scene.settle_down()
    failures = captured.scene.counts.store_failures
    with caplog.at_level(logging.ERROR):
        captured.peer.consume(2, QUEUE, 3)
        captured.peer.settle(2, 0, 1, OutcomeCode.RELEASED)
        captured.peer.settle(2, 1, 2)
    assert len(captured.peer.messages(2)) == 3
    captured.scene.settle_down()
    assert [each for each in events(captured.disk()) if each[1] != "enqueued"] == [
        (1, "accepted"),
        (2, "accepted"),
    ]
    assert captured.scene.counts.store_failures == failures + 2
    (said,) = caplog.messages
    assert said.startswith("deliveries and releases of captured queues, such as q, could not be written")


def test_what_flows_to_disk_and_what_the_cleaner_writes_again_is_no_event() -> None:
    plain = Captured(capture=False, memory_mark=4_000)
    kept = Captured(memory_mark=4_000)
    for captured in (plain, kept):
        for number in range(1, 41):
            captured.peer.send(1, number, [b"%03d" % number + b"." * 500], durable=False)
            captured.scene.settle_down()
        assert captured.scene.counts.evictions
        captured.peer.consume(2, QUEUE, 100)
        captured.scene.settle_down()
        assert len(captured.peer.messages(2)) == 40
    assert plain.said(None) == []
    assert [event for _, event in kept.said()].count("enqueued") == 40


# --- stores that keep no journal -----------------------------------------------------------------------


def test_a_store_without_a_journal_says_once_that_it_can_not_capture(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = EveryName()
    names.give(QUEUE, policy(capture=True))
    store = SmallStore()
    scene = Scene(store, names=names)
    peer: Peer = scene.peer()
    with caplog.at_level(logging.WARNING):
        for link in (1, 2):
            peer.produce(link, QUEUE)
        names.give(QUEUE, policy(capture=True, max_length=9))
        scene.refresh()
    assert [each.getMessage() for each in caplog.records if "captured" in each.getMessage()] == [
        "the policy of queue q has capture, and the store of this shard is no journal: the queue is not "
        "captured. Start with --store journal, or remove capture from the policy"
    ]
    peer.send(1, 1, [b"a"], durable=False)
    assert not store.appends()
    number = peer.ask("queue", queue=QUEUE)
    assert peer.answers[number][0]["captured"] is False
