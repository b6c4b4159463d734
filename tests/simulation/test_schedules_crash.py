"""The shard dies at any step of transactions that schedule messages and cancel others.

Whatever the crash leaves: a transaction has happened as a whole or not at all, its number is used once, and
what was answered stays. One that was not answered is sent again, or decided, as a frontend does it.
"""

import contextlib
from typing import Any

import pytest

from lightrail.model import conditions
from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues.declarations import EveryName
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.scene import Peer, Scene
from tests.unit.shard.test_scheduled_messages import message
from tests.unit.shard.transactions.test_prepared import ID
from tests.unit.shard.transactions.test_schedules import cancels, contents, under
from tests.unit.shard.transactions.test_transactions import PRODUCER

SEGMENT_BYTES = 1_200
KEEP = ("some", "none", "all", "some")
DUE = 1_500_000
BEFORE, AFTER = ["kept", "old"], ["kept", "new", "newer"]
STEPS_MAX = 3_000
"""Steps of the files in a whole transaction, and some more."""
STRIDE = 9
"""Bytes from one crash to the next."""


class Life:
    """A shard with a queue that delays messages."""

    def __init__(self, files: FakeFiles, now_ms: int = 1_000_000) -> None:
        self.files = files
        names = EveryName()
        names.give("q", Policy.parse({"role": "queue", "delay": True}))
        journal = Journal(files, "test", 0, segment_bytes=SEGMENT_BYTES)
        recovered = journal.recover(1 << 30, 1)
        self.scene = Scene(journal, recovered, names=names, now_ms=now_ms)
        for _ in range(5):
            self.scene.settle_down()
        self.peer = Peer(self.scene, "frontend-0", 7)
        self.peer.greet()

    @classmethod
    def begun(cls) -> "Life":
        """With two scheduled messages, and two numbers that were given."""
        life = cls(FakeFiles())
        life.peer.produce(1, "q")
        life.peer.send(1, 1, [message(each, due=DUE) for each in ("old", "kept")], durable=True)
        life.scene.settle_down()
        assert life.ask("reserve_numbers", queue="q", count=2) == {"first": 2}
        return life

    def ask(self, op: str, blob: bytes = b"", **fields: Any) -> dict[str, Any]:
        request = self.peer.ask(op, blob, **fields)
        self.scene.settle_down()
        return self.peer.answers[request][0]

    def again(self, seed: int, *, is_late: bool) -> "Life":
        """After a crash, now or when the messages are due."""
        return Life(self.files.after_crash(seed, KEEP[seed % 4]), DUE + 1 if is_late else 1_000_100)

    def check_end(self, expected: list[str]) -> None:
        """When all are due, they are enqueued once, and no number of another message is given."""
        self.scene.tick(max(0, DUE + 2 - self.scene.now_ms))
        self.scene.settle_down()
        found = contents(self.scene)
        assert sorted(found.values()) == expected
        assert self.ask("reserve_numbers", queue="q", count=1)["first"] > max(3, *found)


def work_of() -> tuple[dict[str, Any], bytes]:
    """Schedules "new" and "newer" under these numbers, and cancels "old"."""
    fields, blob = under(2, "new", "newer", due=DUE)
    return {"posts": [fields], "settles": cancels(0)}, blob


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_a_crash_at_any_step_of_a_transaction_over_several_shards(commits: bool, is_late: bool) -> None:
    for steps in range(is_late + 2 * commits, STEPS_MAX, STRIDE):
        life = Life.begun()
        work, blob = work_of()
        was_prepared = is_answered = False
        life.files.steps_left = steps
        with contextlib.suppress(Crash):
            was_prepared = life.ask("prepare", blob, id=ID, decides=1, **work) == {"prepared": True}
            is_answered = life.ask("conclude", id=ID, commit=commits) == {"concluded": True}
        life = life.again(steps, is_late=is_late)
        found = contents(life.scene)
        if is_answered:
            assert sorted(found.values()) == (AFTER if commits else BEFORE), steps
        else:
            assert sorted(found.values()) in (BEFORE, AFTER if commits else BEFORE), steps
        is_open = bool(life.ask("transactions")["count"])
        assert is_open or is_answered or not was_prepared or sorted(found.values()) == AFTER or not commits
        if is_open:
            # Until the decision it stays delayed under its number, though it may be due.
            assert found[0] == "old"
        assert life.ask("conclude", id=ID, commit=commits) == {"concluded": True}
        ended = sorted(contents(life.scene).values())
        assert ended == (AFTER if commits and (is_open or ended == AFTER) else BEFORE), steps
        life.check_end(ended)
        if is_answered:
            return
    pytest.fail("expected a life without a crash")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_crash_at_any_step_of_a_transaction_at_one_shard(is_late: bool) -> None:
    for steps in range(is_late, STEPS_MAX, STRIDE):
        life = Life.begun()
        work, blob = work_of()
        transact = {"producer": PRODUCER, "number": 1, **work}
        is_answered = False
        life.files.steps_left = steps
        with contextlib.suppress(Crash):
            is_answered = life.ask("transact", blob, **transact) == {"committed": True}
        life = life.again(steps, is_late=is_late)
        found = sorted(contents(life.scene).values())
        assert found in ((AFTER,) if is_answered else (BEFORE, AFTER)), steps
        answer = life.ask("transact", blob, repeated=True, **transact)
        if found == BEFORE and is_late:
            # The message that it cancels was enqueued meanwhile.
            assert answer["error"]["condition"] == conditions.TRANSACTION_ROLLBACK
        else:
            assert answer == {"committed": True}
            found = AFTER
        life.check_end(found)
        if is_answered:
            return
    pytest.fail("expected a life without a crash")
