"""A commit asks the shard of its queues, again where an answer is lost, elsewhere where a queue has moved."""

import asyncio
from typing import Any

import pytest

from lightrail.amqp.performatives import Accepted, Modified
from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import Symbol, Timestamp
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.guard import Hold
from lightrail.frontend.links.outcomes import Deferral
from lightrail.frontend.transactions import committing
from lightrail.frontend.transactions.committing import Committing
from lightrail.frontend.transactions.transaction import Attributes, Post, Retirement, Transaction
from lightrail.model import conditions, limits
from lightrail.model.placement import Placement
from lightrail.model.policy import QUEUE
from lightrail.model.transaction_ids import born_ms
from lightrail.namespace.records import Name, Right
from lightrail.namespace.statuses import MissingError
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import ConsumerOpen
from tests.support.amqp.frontend_fakes import FakeConnection, FakeFrontend, FakeGuard
from tests.unit.amqp.peer import data

LINK = 5
SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
ATTRIBUTES = Attributes(durable=True, priority=4, expires_at_ms=0, message_format=0)


class Owners:
    """Where queues are, and shards that answer as the test says."""

    def __init__(self, frontend: "Frontend") -> None:
        self.frontend = frontend
        self.resolver = self
        self.answers: list[Exception | None] = []
        """One for each request; None: applied."""
        self.asked: list[tuple[int, dict[str, Any], bytes]] = []
        self.ops: list[tuple[str, int]] = []
        self.concluded: list[tuple[int, str, bool]] = []
        self.away: set[int] = set()

    def peer(self, shard: int) -> "Shard | None":
        return None if shard in self.away else Shard(self, shard)

    async def change(self, wait_ms: int) -> int:
        self.away.clear()
        self.frontend.time_ms += wait_ms
        return min(2 * wait_ms, limits.OWNER_RETRY_MS_MAX)


class Shard:
    def __init__(self, owners: Owners, shard: int) -> None:
        self.owners = owners
        self.shard = shard

    async def request(self, op: str, fields: dict[str, Any], *, blob: bytes = b"") -> None:
        self.owners.ops.append((op, self.shard))
        if op == "conclude":
            self.owners.concluded.append((self.shard, fields["id"], fields["commit"]))
            return
        self.owners.asked.append((self.shard, dict(fields), blob))
        answer = self.owners.answers.pop(0) if self.owners.answers else None
        if answer is not None:
            raise answer


class Frontend(FakeFrontend):
    boot = 7

    def __init__(self) -> None:
        super().__init__()
        self.owners = Owners(self)
        self.shard_connections = self  # type: ignore[assignment]
        self.polls = 0
        """Times that names were read anew."""
        self.places: dict[str, list[int]] = {}
        """Shards of a queue, one for each time that it is looked up; the last one stays."""

    def poll(self) -> None:
        self.polls += 1

    async def find(self, queue: str) -> Placement:
        places = self.places.get(queue, [0])
        return Placement(places.pop(0) if len(places) > 1 else places[0], 1)


class Consumer:
    queue = "a"
    number = 3
    options = ConsumerOpen("a")

    class settlements:  # noqa: N801 - an attribute of the link
        is_lost = True
        has_key = False

        @staticmethod
        def hold(_held: object) -> None:
            pass


class Rig:
    def __init__(self) -> None:
        self.frontend = Frontend()
        self.connection = FakeConnection(self.frontend)
        self.committing = Committing(self.connection, LINK)  # type: ignore[arg-type]

    def commit(self, *queues: str) -> None:
        transaction = Transaction(b"t")
        for queue in queues:
            transaction.post(Post(queue, False, [b"one", b"two"], ATTRIBUTES))
        asyncio.run(self.committing.commit(transaction))

    @property
    def asked(self) -> list[tuple[int, dict[str, Any], bytes]]:
        return self.frontend.owners.asked


def test_the_work_is_one_request() -> None:
    rig = Rig()
    rig.commit("a", "b")
    ((shard, fields, blob),) = rig.asked
    assert shard == 0
    assert (fields["producer"], fields["number"], fields["settles"]) == (7 << 32 | LINK, 1, [])
    assert fields["posts"] == [[["a"], True, 4, 0, 0, 2, 6], [["b"], True, 4, 0, 0, 2, 6]]
    assert blob == b"\x03\x00\x00\x00\x06\x00\x00\x00onetwo" * 2


@pytest.mark.parametrize("how", ["sends", "settles by a lock"])
def test_a_right_that_was_revoked_before_the_commit_is_a_refusal(how: str) -> None:
    """Its links may have ended since: their rights are checked once more."""
    rig = Rig()
    transaction = Transaction(b"t")
    record = Name("a", QUEUE)
    if how == "sends":
        hold = Hold(rig.connection.client, Right.SEND, record, lambda *_: None)
        hold.is_released = True
        transaction.post(Post("a", False, [b"one"], ATTRIBUTES, hold=hold))
    else:
        transaction.retire_lock("a", "k", 7, Accepted())
    guard = rig.frontend.guard
    assert isinstance(guard, FakeGuard)
    guard.revoked["a"] = "user x has no right at a"
    with pytest.raises(ConditionError) as raised:
        asyncio.run(rig.committing.commit(transaction))
    assert raised.value.condition == conditions.UNAUTHORIZED_ACCESS
    assert rig.asked == []
    assert rig.frontend.polls == 1


def test_without_work_nobody_is_asked() -> None:
    rig = Rig()
    rig.commit()
    assert rig.asked == []


def test_transactions_are_numbered() -> None:
    rig = Rig()
    rig.commit("a")
    rig.commit("a")
    assert [fields["number"] for _, fields, _ in rig.asked] == [1, 2]


def test_while_it_is_not_known_whether_it_was_applied_the_same_request_is_sent_again() -> None:
    rig = Rig()
    rig.frontend.owners.answers = [ShardDownError("lost"), ShardDownError("lost"), None]
    rig.frontend.places["a"] = [0, 1]
    rig.commit("a")
    first, second, third = rig.asked
    # Not where the queue is by now: the first shard may have applied it, and delivered the messages.
    shard, fields, blob = first
    assert shard == 0
    assert second == third == (0, {**fields, "repeated": True}, blob)


def test_a_shard_that_is_away_is_awaited() -> None:
    rig = Rig()
    rig.frontend.owners.away = {0}
    rig.commit("a")
    assert len(rig.asked) == 1


def test_a_queue_that_has_moved_is_looked_up_again() -> None:
    rig = Rig()
    rig.frontend.places["a"] = [0, 1]
    rig.frontend.owners.answers = [ShardRefusedError(conditions.MOVED, "elsewhere")]
    rig.commit("a")
    assert [shard for shard, _, _ in rig.asked] == [0, 1]
    assert [fields["number"] for _, fields, _ in rig.asked] == [1, 1]


def test_a_refusal_is_a_rollback_with_its_reason() -> None:
    rig = Rig()
    rig.frontend.owners.answers = [ShardRefusedError(conditions.RESOURCE_LIMIT_EXCEEDED, "it is full")]
    with pytest.raises(ConditionError) as raised:
        rig.commit("a")
    assert raised.value.condition == conditions.TRANSACTION_ROLLBACK
    assert "it is full" in raised.value.description


def test_a_queue_that_moves_for_too_long_is_a_rollback() -> None:
    rig = Rig()
    moved = ShardRefusedError(conditions.MOVED, "on its way")
    rig.frontend.owners.answers = [moved] * 10_000
    before = rig.frontend.time_ms
    with pytest.raises(ConditionError) as raised:
        rig.commit("a")
    assert raised.value.condition == conditions.TRANSACTION_ROLLBACK
    assert (
        committing.TRANSACTION_COMMIT_MS
        <= rig.frontend.time_ms - before
        < 2 * committing.TRANSACTION_COMMIT_MS
    )


def test_for_a_client_that_has_left_a_shard_is_not_awaited_for_ever() -> None:
    rig = Rig()
    rig.connection.is_open = False
    rig.frontend.owners.answers = [ShardDownError("lost")] * 10_000
    with pytest.raises(ConditionError):
        rig.commit("a")
    assert rig.frontend.time_ms < 1_000_000 + 2 * committing.TRANSACTION_COMMIT_MS


def test_a_client_that_is_there_waits_for_its_shard() -> None:
    rig = Rig()
    rig.frontend.owners.answers = [ShardDownError("lost")] * 1_000
    rig.commit("a")
    assert len(rig.asked) == 1_001


def test_a_consumer_that_ends_while_its_queue_moves_is_a_rollback() -> None:
    rig = Rig()
    rig.frontend.owners.answers = [ShardRefusedError(conditions.MOVED, "on its way")]
    transaction = Transaction(b"t")
    transaction.retire(Retirement(Consumer(), 0, 4, Accepted(), True))  # type: ignore[arg-type]
    with pytest.raises(ConditionError) as raised:
        asyncio.run(rig.committing.commit(transaction))
    assert raised.value.condition == conditions.TRANSACTION_ROLLBACK
    ((_, fields, _),) = rig.asked
    assert fields["settles"] == [["a", 3, 0, 5, 0, {}]]


def test_a_deferred_message_is_settled_by_the_key_of_its_lock_at_the_shard_of_its_queue() -> None:
    rig = Rig()
    rig.frontend.places = {"a": [0], "b": [1]}
    transaction = Transaction(b"t")
    transaction.retire_lock("a", "k", 7, Accepted())
    transaction.retire_lock("b", "k", 8, Deferral(Modified(undeliverable_here=True)))
    asyncio.run(rig.committing.commit(transaction))
    (one, first, _), (other, second, _) = rig.asked
    assert (one, first["settles"]) == (0, [["a", 0, 7, 1, 0, {}, "k"]])
    ((*beginning, detail, key),) = second["settles"]
    assert (other, beginning, key) == (1, ["b", 0, 8, 1, 3], "k")
    assert detail["deferred"] is True


def test_all_shards_but_the_last_prepare_and_the_last_decides() -> None:
    rig = Rig()
    rig.frontend.places |= {"b": [1], "c": [2]}
    rig.commit("a", "b", "c")
    owners = rig.frontend.owners
    assert owners.ops[:3] == [("prepare", 0), ("prepare", 1), ("transact", 2)]
    assert sorted(owners.ops[3:]) == [("conclude", 0), ("conclude", 1)]
    (_, first, _), (_, second, _), (_, decision, _) = rig.asked
    assert first["id"] == second["id"] == decision["id"]
    assert born_ms(bytes.fromhex(first["id"])) == rig.frontend.now_ms()
    assert first["decides"] == second["decides"] == 2
    assert first["user"] == second["user"] == "anonymous"
    assert decision["others"] == [0, 1]
    assert (decision["producer"], decision["number"]) == (7 << 32 | LINK, 1)
    assert {commit for _, _, commit in owners.concluded} == {True}


@pytest.mark.parametrize("refuses", [0, 1])
def test_where_one_shard_refuses_all_others_give_back(refuses: int) -> None:
    rig = Rig()
    rig.frontend.places["b"] = [1]
    full = ShardRefusedError(conditions.RESOURCE_LIMIT_EXCEEDED, "it is full")
    rig.frontend.owners.answers = [None] * refuses + [full]
    with pytest.raises(ConditionError, match="it is full"):
        rig.commit("a", "b")
    assert [commit for _, _, commit in rig.frontend.owners.concluded] == [False]


def test_where_a_queue_has_moved_the_parts_are_made_anew_under_another_id() -> None:
    rig = Rig()
    rig.frontend.places |= {"b": [1, 3]}
    rig.frontend.owners.answers = [None, ShardRefusedError(conditions.MOVED, "elsewhere")]
    rig.commit("a", "b")
    owners = rig.frontend.owners
    assert [op for op in owners.ops if op[0] != "conclude"] == [
        ("prepare", 0),
        ("transact", 1),
        ("prepare", 0),
        ("transact", 3),
    ]
    (_, one, aborted), (_, other, committed) = owners.concluded
    assert one != other
    assert (aborted, committed) == (False, True)


def test_a_decision_that_nobody_knows_is_not_sent() -> None:
    """The client has left, and the last shard is away: the others ask it themselves."""
    rig = Rig()
    rig.connection.is_open = False
    rig.frontend.places["b"] = [1]
    rig.frontend.owners.answers = [None, *[ShardDownError("lost")] * 10_000]
    with pytest.raises(ConditionError):
        rig.commit("a", "b")
    assert rig.frontend.owners.concluded == []


def test_a_name_that_is_no_queue_any_more_is_a_rollback() -> None:
    rig = Rig()
    rig.frontend.policies["a"] = {"role": "none"}
    with pytest.raises(ConditionError) as raised:
        rig.commit("a")
    assert raised.value.condition == conditions.TRANSACTION_ROLLBACK


def test_the_names_are_read_anew_before_the_queues_are_found_and_nobody_is_asked_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()

    async def routed(_self: object, router: str, _post: Post) -> list[object]:
        assert (router, rig.frontend.polls) == ("t", 1)
        return []

    monkeypatch.setattr(Committing, "_routed", routed)
    rig.frontend.policies["t"] = {"role": "router"}
    rig.commit("t")
    assert rig.frontend.polls == 1
    assert rig.asked == []


def test_a_queue_whose_messages_ask_for_a_delay_delays_them_before_the_shard_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    made: list[str] = []

    async def make_delay(_frontend: object, queue: str) -> None:
        assert not rig.asked
        made.append(queue)
        if queue == "refuses":
            raise ShardDownError("shard 0 is away")

    monkeypatch.setattr(committing, "make_delay", make_delay)

    def commit(queue: str, may_delay: bool, message: bytes) -> None:
        transaction = Transaction(b"t")
        transaction.post(Post(queue, False, [b"one", message], ATTRIBUTES, "c", may_delay))
        asyncio.run(rig.committing.commit(transaction))

    commit("a", True, b"x-opt-delivery-time")
    assert (made, len(rig.asked)) == (["a"], 1)
    rig.asked.clear()
    commit("b", False, b"x-opt-delivery-time")
    commit("c", True, b"nothing of that kind")
    assert (made, len(rig.asked)) == (["a"], 2)
    rig.asked.clear()
    with pytest.raises(ConditionError, match="refuses can't be made to delay messages") as refused:
        commit("refuses", True, b"x-opt-delivery-delay")
    assert refused.value.condition == conditions.TRANSACTION_ROLLBACK
    assert not rig.asked


def test_messages_that_are_scheduled_wait_in_the_queue_of_their_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    soon = with_annotations(data(b"soon"), {SCHEDULED: Timestamp(rig.frontend.now_ms() + 1000)})
    due = with_annotations(data(b"due"), {SCHEDULED: Timestamp(rig.frontend.now_ms())})
    problem = ""

    async def scheduled_queue(_service: object, router: str) -> Name:
        if problem:
            raise MissingError(problem)
        return Name(f"{router}/$scheduled", QUEUE)

    async def routed(_self: object, router: str, post: Post) -> list[object]:
        return [(frozenset((f"{router}/subscribed",)), post, post.payloads)]

    monkeypatch.setattr(committing, "scheduled_queue", scheduled_queue)
    monkeypatch.setattr(Committing, "_routed", routed)
    rig.frontend.service = None  # type: ignore[attr-defined]
    rig.frontend.policies["t"] = {"role": "router"}
    attributes = ATTRIBUTES._replace(expires_at_ms=7)

    def commit(may_schedule: bool, *messages: bytes) -> list[tuple[list[str], int, int]]:
        """Queues, expiry and count of each post."""
        rig.asked.clear()
        transaction = Transaction(b"t")
        transaction.post(Post("t", False, list(messages), attributes, may_schedule=may_schedule))
        asyncio.run(rig.committing.commit(transaction))
        return [(post[0], post[3], post[5]) for post in rig.asked[0][1]["posts"]]

    assert commit(True, soon, due, soon) == [(["t/$scheduled"], 0, 2), (["t/subscribed"], 7, 1)]
    assert commit(True, soon) == [(["t/$scheduled"], 0, 1)]
    assert commit(True, due) == [(["t/subscribed"], 7, 1)]
    assert commit(False, soon) == [(["t/subscribed"], 7, 1)]
    problem = "t is no router any more"
    with pytest.raises(ConditionError, match="can't be scheduled in t: t is no router any more") as refused:
        commit(True, soon)
    assert refused.value.condition == conditions.TRANSACTION_ROLLBACK


def test_other_work_goes_on_while_a_commit_finds_the_queues_of_many_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committing, "TRANSACTION_PARTS_AT_ONCE", 10)
    rig = Rig()
    turns = 0

    async def check() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        transaction = Transaction(b"t")
        for number in range(100):
            transaction.post(Post(f"q{number}", False, [b"m"], ATTRIBUTES))
        going_on = asyncio.create_task(others())
        await rig.committing.commit(transaction)
        going_on.cancel()

    asyncio.run(check())
    assert len(rig.frontend.owners.asked) == 1
    assert turns >= 20
