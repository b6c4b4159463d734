"""Transactions at one shard against a model with one object per message, in random histories.

The frontend opens transactions, commits and rolls them back; other shards prepare and decide some with this
one; locks expire, requests come again, and the shard dies at any byte of its journal. After every step the
shard must have each message once, where the model has it: all of a transaction has happened, or nothing.
"""

import copy
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lightrail.model.policy import Policy
from lightrail.shard.journal.journal import Journal
from lightrail.shard.queues import memory
from lightrail.shard.queues.declarations import EveryName
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.model.histories import SOAK_S, checked, soak
from tests.model.modelled_transactions import (
    ATTEMPTS_MAX,
    DEFERS,
    FAILED,
    LINK,
    OUTCOMES,
    SOURCE,
    TARGET,
    State,
    Work,
    expected,
    found,
    free,
    name_of,
    remembered,
    request_of,
    sequences_of,
    used_by,
)
from tests.support.shard.fake_files import Crash, FakeFiles
from tests.support.shard.scene import Peer, Scene

LOCK_MS = 3_000
FILLED = 6
"""Messages that are in the queue at first."""
DEFERRED_AT_FIRST = 2
OTHER = 2
"""The other shard, of every transaction over both."""
ROOM_BYTES = 1 << 24
"""Of prepared transactions, more than a history has."""
UNANSWERED = -1
WHICH = st.sampled_from(range(len(OUTCOMES)))
CRASHES = st.sampled_from([None, UNANSWERED, *range(20, 1_200, 40)])
"""Bytes that reach the disk before the shard dies in a step; all of them, with no answer; None: it lives."""


class TransactionModel(RuleBasedStateMachine):
    """Rules are what frontends, other shards, time and crashes may do."""

    @initialize(memory_mark=st.sampled_from([1 << 30, 300]), seed=st.integers(0, 1_000))
    def begin(self, memory_mark: int, seed: int) -> None:
        self.memory_mark = memory_mark
        # A model of what transactions do has no bound of their memory: test_room.py fills it.
        self.room = mock.patch.object(memory, "TRANSACTIONS_PREPARED_BYTES_MIN", ROOM_BYTES)
        self.room.start()
        self.chance = random.Random(seed)
        self.names = EveryName()
        self.names.give(SOURCE, Policy.parse({"role": "queue", "lock_duration": LOCK_MS // 1_000}))
        self.files = FakeFiles()
        self.now_ms = 1_000_000
        self.boot = 6
        self.next = self.messages = self.ids = self.keys = 0
        self.state = State()
        self.open: list[Work] = []
        self.last: Work | None = None
        """The transaction that was committed last, with an answer or without."""
        self.decisions: dict[str, bool] = {}
        """Of the other shard."""
        self.start()
        self.connect()
        self.commit_now([(self.name(), SOURCE) for _ in range(FILLED)])

    def teardown(self) -> None:
        self.room.stop()

    def commit_now(self, posts: list[tuple[str, str]]) -> None:
        """Sends messages, each in a batch of its own, and defers some of them."""
        self.open = [Work(posts)]
        self.commit(None)
        self.receive(FILLED)
        first = free(self.state)[:DEFERRED_AT_FIRST]
        self.open = [Work(settles=[(number, name, DEFERS) for number, name in first])]
        self.commit(None)

    def start(self) -> None:
        journal = Journal(self.files, "test", 0, segment_bytes=6_000)
        recovered = journal.recover(self.memory_mark, 1)
        self.scene = Scene(
            journal,
            recovered,
            memory_mark=self.memory_mark,
            max_delivery_count=ATTEMPTS_MAX,
            names=self.names,
            now_ms=self.now_ms,
        )

    def connect(self) -> None:
        """A frontend begins."""
        self.boot += 1
        self.number = self.next = self.state.known = self.state.known_on_disk = 0
        self.last = None
        self.open = []
        self.attach()

    def attach(self) -> None:
        self.peer = Peer(self.scene, "frontend-0", self.boot)
        self.peer.greet()
        self.peer.consume(LINK, SOURCE, first=self.next)

    def name(self) -> str:
        self.messages += 1
        return f"m{self.messages - 1}"

    def step(self, ask: Callable[[], int], after: State, crash: int | None) -> dict[str, Any] | None:
        """Does something; what the shard has then is `after`, or as before where it dies.

        Returns:
            The answer; None where the shard has died.
        """
        self.files.steps_left = None if crash == UNANSWERED else crash
        try:
            request = ask()
            self.scene.settle_down()
            if crash == UNANSWERED:
                self.state = after
                raise Crash
        except Crash:
            self.restart()
            after.restart()
            if (found(self.scene), self.remembered()) == (expected(after), remembered(after)):
                self.state = after
            assert self.remembered() == remembered(self.state), "in part"
            return None
        finally:
            self.files.steps_left = None
        self.state = after
        self.hear()
        return self.peer.answers[request][0]

    def restart(self) -> None:
        self.files = self.files.after_crash(
            self.chance.randrange(1_000), self.chance.choice(["some", "none", "all"])
        )
        self.state.restart()
        self.start()
        self.attach()

    def request(self, op: str, work: Work, **fields: Any) -> Callable[[], int]:
        """The request that has the work of a transaction."""
        body, blob = request_of(work)
        body |= fields
        return lambda: self.peer.ask(op, blob, **body)

    def transact(self, work: Work, **fields: Any) -> Callable[[], int]:
        return self.request("transact", work, producer=self.boot << 32 | 50, number=work.number, **fields)

    # --- the frontend ------------------------------------------------------------------------------------

    @rule(count=st.integers(2, 6))
    def receive(self, count: int) -> None:
        self.peer.credit(LINK, self.next + count)
        self.scene.settle_down()
        self.hear()

    def hear(self) -> None:
        """Notes what was delivered."""
        for each in self.peer.delivered.pop(LINK, []):
            message = self.state.messages[name_of(each.message)]
            assert (message.queue, message.number, message.reserved) == (SOURCE, None, "")
            assert not message.is_deferred
            assert each.number == self.next
            # A message that was delivered before a crash counts as redelivered, without an attempt (ADR 5).
            assert each.attempts in (message.attempts, message.attempts or 1), (each, message)
            message.number, message.until_ms = each.number, self.scene.now_ms + LOCK_MS
            self.next += 1

    @rule(data=st.data(), queues=st.lists(st.sampled_from([SOURCE, SOURCE, TARGET]), min_size=1, max_size=3))
    def send(self, data: st.DataObject, queues: list[str]) -> None:
        self.draw(data).posts.extend((self.name(), queue) for queue in queues)

    @precondition(lambda self: bool(free(self.state, self.open)))
    @rule(data=st.data(), outcomes=st.lists(WHICH, min_size=1, max_size=4))
    def settle(self, data: st.DataObject, outcomes: list[int]) -> None:
        work = self.draw(data)
        for (number, name), which in zip(free(self.state, self.open), outcomes, strict=False):
            work.settles.append((number, name, which))
            if key := self.state.messages[name].key:
                work.keys[name] = key

    def draw(self, data: st.DataObject) -> Work:
        """An open transaction, or a new one."""
        if len(self.open) < 3 and (not self.open or data.draw(st.booleans())):
            self.open.append(Work())
            return self.open[-1]
        return data.draw(st.sampled_from(self.open))

    @precondition(lambda self: self.state.set_aside)
    @rule(data=st.data(), repeats=st.booleans(), outcomes=st.lists(WHICH, max_size=3))
    def receive_deferred(self, data: st.DataObject, repeats: bool, outcomes: list[int]) -> None:
        """A client receives deferred messages, perhaps by two requests, and perhaps settles some of them."""
        names = data.draw(st.lists(st.sampled_from(self.state.set_aside), min_size=1, unique=True))
        sequences = sequences_of(self.scene)
        self.keys += 1
        key = f"{self.keys:016x}"
        after = copy.deepcopy(self.state)
        for name in names:
            message = after.messages[name]
            message.number, message.key = sequences[name], key
            message.until_ms = self.scene.now_ms + LOCK_MS
        wanted = sorted(sequences[name] for name in names)
        fields: dict[str, Any] = {"queue": SOURCE, "sequences": wanted, "key": key}
        for _ in range(1 + repeats):
            answer = self.step(lambda: self.peer.ask("receive_deferred", **fields), after, None) or {}
            assert [each["sequence"] for each in answer["messages"]] == wanted
        if outcomes:
            work, used = self.draw(data), used_by(self.open)
            for name, which in zip(names, outcomes, strict=False):
                if name not in used:
                    work.settles.append((sequences[name], name, which))
                    work.keys[name] = key

    @precondition(lambda self: self.open)
    @rule(crash=CRASHES)
    def commit(self, crash: int | None) -> None:
        work = self.last = self.open.pop(0)
        self.number += 1
        work.number = self.number
        self.ask_to_commit(work, crash)

    @precondition(lambda self: self.last is not None)
    @rule(crash=CRASHES)
    def commit_again(self, crash: int | None) -> None:
        """The request is sent once more: it has no answer, or its answer was lost."""
        work, self.last = self.last, None
        assert work is not None
        self.ask_to_commit(work, crash)

    def ask_to_commit(self, work: Work, crash: int | None) -> None:
        before, after = self.state, copy.deepcopy(self.state)
        known = before.known >= work.number
        applies = not known and before.has(work)
        if applies:
            after.commit(work)
        answer = self.step(self.transact(work), after, crash)
        if answer is None:
            return
        assert ("committed" in answer) is (known or applies), answer

    def remembered(self) -> tuple[int, set[str], set[str]]:
        """What the shard remembers of transactions: see `remembered` of a model's state."""
        transactions = self.scene.engine.transactions
        return (
            self.scene.engine._links.sending.known_number(self.boot << 32 | 50),
            {id.hex() for id, _ in transactions.prepared.overdue(1 << 60)},
            {id.hex() for id in transactions.decisions.awaited.get(OTHER, [])},
        )

    @precondition(lambda self: self.open)
    @rule()
    def roll_back(self) -> None:
        """The deliveries come back as failed ones; a frontend does that, no transaction is in it."""
        work = self.open.pop(0)
        for number, name, _ in work.settles:
            # A deferred message is locked until the end of its lock.
            if name not in work.keys and self.state.has(Work(settles=[(number, name, 0)])):
                self.peer.settle(LINK, number, 1, OutcomeCode.MODIFIED, SettleDetail(delivery_failed=True))
                self.state.give(name, FAILED)
        self.scene.settle_down()
        self.hear()

    @rule()
    def lose_the_frontend(self) -> None:
        self.scene.engine.lost(self.peer.identity)
        self.scene.settle_down()
        self.state.release()
        self.connect()

    # --- several shards ----------------------------------------------------------------------------------

    @precondition(lambda self: self.open)
    @rule(crash=CRASHES)
    def prepare(self, crash: int | None) -> None:
        work = self.open.pop(0)
        self.ids += 1
        id = f"{self.ids:032x}"
        for attempt in (crash, None):
            after = copy.deepcopy(self.state)
            applies = id in after.prepared or after.has(work)
            if id not in after.prepared and applies:
                after.reserve(id, work)
            answer = self.step(self.request("prepare", work, id=id, decides=OTHER), after, attempt)
            if answer is not None:
                assert ("prepared" in answer) is applies, answer
                return

    @precondition(lambda self: self.state.prepared)
    @rule(data=st.data(), commits=st.booleans(), crash=CRASHES, times=st.integers(1, 2))
    def conclude(self, data: st.DataObject, commits: bool, crash: int | None, times: int) -> None:
        id = data.draw(st.sampled_from(sorted(self.state.prepared)))
        commits = self.decisions.setdefault(id, commits)
        for _ in range(times):
            after = copy.deepcopy(self.state)
            after.conclude(id, commits=commits, until_ms=self.scene.now_ms + LOCK_MS)
            answer = self.step(lambda: self.peer.ask("conclude", id=id, commit=commits), after, crash)
            assert answer in (None, {"concluded": True})

    @precondition(lambda self: self.decisions)
    @rule(data=st.data())
    def conclude_what_is_concluded(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.decisions)))
        if id not in self.state.prepared:
            commits = self.decisions[id]
            answer = self.step(lambda: self.peer.ask("conclude", id=id, commit=commits), self.state, None)
            assert answer == {"concluded": True}

    @precondition(lambda self: self.open)
    @rule(crash=CRASHES, asks_first=st.sampled_from([False, False, True]))
    def decide(self, crash: int | None, asks_first: bool) -> None:
        """This shard decides; perhaps after the other has asked in vain."""
        work = self.open.pop(0)
        self.ids += 1
        id = f"{self.ids:032x}"
        if asks_first:
            self.ask_for_the_decision(id)
        self.number += 1
        work.number = self.number
        self.last = None
        after = copy.deepcopy(self.state)
        applies = after.has(work) and id not in after.aborted
        work.is_decision = True
        if applies:
            after.commit(work)
            after.decided.add(id)
        answer = self.step(self.transact(work, id=id, others=[OTHER]), after, crash)
        if answer is not None:
            assert ("committed" in answer) is applies, answer
        self.ask_for_the_decision(id)

    def ask_for_the_decision(self, id: str) -> None:
        after = copy.deepcopy(self.state)
        committed = id in after.decided
        if not committed:
            after.aborted.add(id)
        answer = self.step(lambda: self.peer.ask("outcome", id=id), after, None)
        assert answer == {"committed": committed}

    @precondition(lambda self: self.state.decided)
    @rule(data=st.data())
    def the_other_has_concluded(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.state.decided)))
        self.scene.engine.transactions.decisions.forget(OTHER, [bytes.fromhex(id)], self.scene.now_ms)
        self.scene.settle_down()
        self.state.decided.discard(id)

    # --- time, and the end of the process ----------------------------------------------------------------

    @rule(wait_ms=st.sampled_from([1, 400, LOCK_MS]))
    def time_passes(self, wait_ms: int) -> None:
        self.peer.ping()
        self.scene.tick(wait_ms)
        self.scene.settle_down()
        self.now_ms = self.scene.now_ms
        self.state.expire(self.now_ms)
        self.hear()

    @rule()
    def crash(self) -> None:
        """What was answered is there."""
        self.restart()

    # --- after every step --------------------------------------------------------------------------------

    @invariant()
    def each_message_is_where_the_model_has_it(self) -> None:
        there, wanted = found(self.scene), expected(self.state)
        assert there == wanted, (
            f"only found {set(there) - set(wanted)}, only expected {set(wanted) - set(there)}"
        )

    @invariant()
    def the_shard_knows_what_it_has_to_know(self) -> None:
        known, *others = self.remembered()
        assert known == self.state.known
        assert others == [set(self.state.prepared), self.state.decided]


TestTransactions = checked(TransactionModel)


@pytest.mark.soak
def test_many_histories() -> None:
    soak(TransactionModel, SOAK_S)


if __name__ == "__main__":
    pytest.main([__file__])
