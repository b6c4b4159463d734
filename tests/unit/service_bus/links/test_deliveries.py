"""BusConsumerLink: what clients of Azure Service Bus read in deliveries, and what their outcomes become."""

import asyncio
from typing import Any

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.decoder import decode
from lightrail.amqp.events import ACCEPTED, Credit, Outcome
from lightrail.amqp.link import DETACHED, SETTLE_SECOND
from lightrail.amqp.performatives import (
    AmqpError,
    Modified,
    Rejected,
    TransactionalState,
)
from lightrail.amqp.sections import (
    Header,
    Properties,
    decode_annotations,
    decode_application_properties,
    decode_header,
    decode_properties,
    with_annotations,
    with_application_properties,
)
from lightrail.amqp.values import Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.filters.dead_letters import NOTED_DESCRIPTION, NOTED_REASON
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.headers import with_new_header
from lightrail.frontend.links.outcomes import GROWTH_BYTES_MAX, Deferral
from lightrail.model import conditions, limits
from lightrail.model.links import Ending
from lightrail.model.policy import Policy
from lightrail.namespace.records import Name
from lightrail.service_bus.links import deliveries
from lightrail.service_bus.links.deliveries import SHOWN_BYTES_MAX, STAYS_DEAD, BusConsumerLink
from lightrail.service_bus.messages import (
    BUS_REASON_CHARACTERS,
    annotated,
    annotations_of,
)
from lightrail.shard_client.links import TO_CONSUMERS
from lightrail.shard_client.peers.requests import ShardDownError
from lightrail.wire.bodies import Answer, ConsumerOpen, SettleDetail
from lightrail.wire.frames import NOT_LOCKED, Kind, OutcomeCode, frame
from tests.support.amqp.frontend_fakes import FakeConnection, FakeLink, FakeShard
from tests.unit.amqp.peer import data
from tests.unit.frontend.test_deliveries import slice_of

MESSAGE = write_composite(Properties(message_id="m")) + data(b"body")


class Directory:
    def __init__(self, policy: dict[str, Any]) -> None:
        self.policy = Policy.parse({"role": "queue", **policy})

    def get(self, name: str) -> Name:
        return Name(name, self.policy)


class Link(FakeLink):
    prefix = b""
    tags: tuple[int, bool] | None = None
    """Their first number, and whether they are wide."""

    def number_tags(self, prefix: bytes, first: int, *, wide: bool = False) -> None:
        self.prefix, self.tags = prefix, (first, wide)


class Rig:
    def __init__(self, queue: str = "q", presettled: bool = False, largest: int = 0, **policy: Any) -> None:
        self.connection = FakeConnection()
        self.connection.frontend.directory = Directory(policy)  # type: ignore[assignment]
        self.link = Link()
        self.link.peer_max_message_size = largest
        self.shard = FakeShard()
        self.consumer = BusConsumerLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=6,
            options=ConsumerOpen(queue, presettled=presettled),
        )
        self.consumer.reopen()
        self.consumer.ready()
        self.consumer.credit(Credit(self.link, 10, False))  # type: ignore[arg-type]

    def delivered(self, *messages: bytes) -> list[bytes]:
        """The messages as the client gets them."""
        before = len(self.link.sent)
        self.consumer.deliver(slice_of(0, list(messages)), 0, len(messages))
        return self.link.sent[before:]

    def outcome(self, state: Any, settled: bool = False) -> list[Any]:
        self.shard.take()
        event = Outcome(self.link, 0, 0, state, settled)  # type: ignore[arg-type]
        self.consumer.outcome(event)
        return self.shard.take(Kind.SETTLE)


def test_a_delivery_has_a_sequence_from_one_on_a_count_and_the_end_of_its_lock() -> None:
    rig = Rig(lock_duration=30)
    first, second = rig.delivered(MESSAGE, MESSAGE)
    for sequence, found in ((1, first), (2, second)):
        notes = decode_annotations(found)
        assert notes["x-opt-sequence-number"] == sequence
        assert notes["x-opt-locked-until"] - rig.connection.frontend.now_ms() <= 30_000
        assert decode_properties(found).message_id == "m"
        assert found.endswith(data(b"body"))
        assert decode_header(found).delivery_count == 0


@pytest.mark.parametrize(
    ("ttl", "expires", "attempts", "shown"),
    [
        (5_000, 5_000, 0, 5_000),
        (5_000, 5_000, 2, 5_000),
        (5_000, 5_004, 0, 5_000),  # it expires with its batch
        (5_000, 4_900, 0, 5_000),  # it was on its way for a while
        (5_000, 3_000, 0, 3_000),  # by the queue's max_age
        (None, 3_000, 0, 3_000),
        (None, 1 << 40, 0, (1 << 32) - 1),
        (5_000, 0, 0, 5_000),  # a dead letter
        (None, 0, 0, None),
    ],
)
def test_a_ttl_counts_from_when_the_message_was_enqueued(
    ttl: int | None, expires: int, attempts: int, shown: int | None
) -> None:
    """The frontend's clock is far beyond: for other clients the ttl is what is left."""
    rig = Rig()
    message = write_composite(Header(ttl=ttl)) + MESSAGE
    rig.consumer.deliver(slice_of(0, [message], expires=expires, attempts=attempts), 0, 1)
    header = decode_header(rig.link.sent[-1])
    assert (header.ttl, header.delivery_count) == (shown, attempts)


@pytest.mark.parametrize(
    ("ttl", "life", "shown"),
    [
        (None, 1 << 33, 1 << 33),
        ((1 << 32) - 1, 1 << 33, 1 << 33),  # the sender's time to live, which did not fit
        ((1 << 32) - 1, 1 << 31, 1 << 31),  # the queue's
        (5_000, 5_000, 5_000),
    ],
)
def test_the_times_of_creation_and_of_expiry_have_a_ttl_of_any_length(
    ttl: int | None, life: int, shown: int
) -> None:
    sent = Properties(message_id="m", subject="s", creation_time=1, absolute_expiry_time=2)
    message = write_composite(Header(ttl=ttl)) + write_composite(sent) + data(b"body")
    found = decode_properties(annotated(message, annotations_of(0, 1_000), life_ms=life))
    assert (found.creation_time, found.absolute_expiry_time) == (1_000, 1_000 + shown)
    assert (found.message_id, found.subject) == ("m", "s")
    found = decode_properties(annotated(message, annotations_of(0, 1_000)))
    assert (found.creation_time, found.absolute_expiry_time) == (1, 2)


def test_a_delivery_count_of_the_sender_is_not_kept() -> None:
    message = write_composite(Header(delivery_count=7)) + MESSAGE
    rig = Rig()
    for number, attempts in enumerate((0, 2)):
        rig.consumer.deliver(slice_of(0, [message], attempts=attempts), number, 1)
        assert decode_header(rig.link.sent[-1]).delivery_count == attempts
    assert decode_header(annotated(message, annotations_of(0, 1), attempts=3)).delivery_count == 3


@pytest.mark.parametrize("queue", ["t/Subscriptions/s", "t/Subscriptions/s/$dlq", "q"])
def test_a_message_of_a_subscription_has_the_number_with_which_it_was_enqueued(queue: str) -> None:
    (found,) = Rig(queue).delivered(MESSAGE)
    number = decode_annotations(found).get("x-opt-enqueue-sequence-number")
    assert number == (None if queue == "q" else 1)


def test_a_lock_that_no_time_ends_is_shown_with_an_end() -> None:
    (found,) = Rig().delivered(MESSAGE)
    shown = decode_annotations(found)["x-opt-locked-until"]
    assert limits.BUS_LOCK_SHOWN_MS - 70_000 < shown - 1_000_000 <= limits.BUS_LOCK_SHOWN_MS


def test_a_lock_token_is_the_key_of_the_link_at_the_shard_and_the_number_of_the_delivery() -> None:
    rig, other = Rig(), Rig()
    assert rig.link.prefix.hex() == rig.consumer.options.lock_key == rig.consumer.lock_key
    assert len(rig.link.prefix) == 8
    assert rig.link.tags == (0, True)
    assert other.link.prefix != rig.link.prefix
    assert rig.consumer.options.lock_ends == "time"


@pytest.mark.parametrize(
    ("queue", "policy", "keeps", "lock_ms"),
    [
        ("q", {"lock_duration": 30}, True, 0),
        ("q", {"lock_duration": 30, "lock_ends": "link"}, False, 0),
        ("q", {}, False, 0),
        ("q/$dlq", {"lock_duration": 30}, True, 30_000),
        ("q/$dlq", {}, False, 0),
    ],
)
def test_locks_outlive_the_link_where_the_queue_or_that_of_its_dead_letters_has_a_lock_time(
    queue: str, policy: dict[str, Any], keeps: bool, lock_ms: int
) -> None:
    rig = Rig(queue, **policy)
    rig.delivered(MESSAGE)
    rig.shard.take()
    assert (rig.consumer.keeps_locks, rig.consumer.options.lock_ms) == (keeps, lock_ms)
    rig.consumer.ends(Ending.BY_CLIENT)
    rig.consumer.close()
    said = [frame.kind for frame in rig.shard.take()]
    assert said == ([Kind.CREDIT, Kind.SETTLE] if keeps else [])
    assert rig.shard.endings == [Ending.BY_CLIENT]


def test_dead_letters_are_locked_for_the_time_that_their_link_has_asked_for() -> None:
    rig = Rig("q/$dlq", lock_duration=30)
    rig.connection.frontend.directory = Directory({"lock_duration": 300})  # type: ignore[assignment]
    (found,) = rig.delivered(MESSAGE)
    shown = decode_annotations(found)["x-opt-locked-until"]
    assert shown - rig.connection.frontend.now_ms() <= 30_000
    rig.connection.frontend.directory = Directory({})  # type: ignore[assignment]
    assert rig.consumer.keeps_locks


def test_what_was_not_sent_to_the_client_returns_when_the_link_ends() -> None:
    rig = Rig(lock_duration=30)
    rig.delivered(MESSAGE, MESSAGE, MESSAGE)
    rig.link.backlog = 2
    rig.shard.take()
    rig.consumer.ends(Ending.FAILED)
    rig.consumer.close()
    credit, settled = rig.shard.take()
    assert (credit.kind, credit.number) == (Kind.CREDIT, 1)
    assert (settled.kind, settled.flags, settled.number) == (Kind.SETTLE, OutcomeCode.RELEASED, 1)
    assert settled.count > 3


def test_what_was_not_sent_when_the_shard_was_lost_returns_when_it_serves_again() -> None:
    rig = Rig(lock_duration=30)
    rig.delivered(MESSAGE, MESSAGE)
    rig.shard.serving = False
    rig.consumer.ends(Ending.BY_CLIENT)
    rig.consumer.close()
    assert rig.shard.late == [("return_unsent", {"locks": [f"{rig.consumer.lock_key}-2"]})]


def test_what_was_not_sent_returns_also_where_the_lock_time_was_removed_meanwhile() -> None:
    """The shard keeps locks that were given, whatever the policy says now."""
    rig = Rig(lock_duration=30)
    rig.delivered(MESSAGE, MESSAGE, MESSAGE)
    rig.connection.frontend.directory = Directory({})  # type: ignore[assignment]
    rig.link.backlog = 2
    rig.shard.take()
    rig.consumer.ends(Ending.BY_CLIENT)
    rig.consumer.close()
    assert [(frame.kind, frame.number) for frame in rig.shard.take()] == [(Kind.CREDIT, 1), (Kind.SETTLE, 1)]


def test_a_slice_that_comes_when_the_link_has_ended_was_not_sent() -> None:
    rig = Rig(lock_duration=30)
    rig.delivered(MESSAGE, MESSAGE, MESSAGE)
    rig.link.backlog = 1
    rig.link.state = DETACHED
    rig.consumer.deliver(slice_of(3, [MESSAGE, MESSAGE]), 3, 2)
    rig.shard.take()
    rig.consumer.ends(Ending.BY_CLIENT)
    rig.consumer.close()
    assert [(frame.kind, frame.number) for frame in rig.shard.take()] == [(Kind.CREDIT, 2), (Kind.SETTLE, 2)]


def test_after_a_loss_of_the_shard_it_is_asked_whether_earlier_messages_are_locked() -> None:
    rig = Rig(lock_duration=30)
    rig.delivered(MESSAGE)
    rig.consumer.reopen()
    asked: list[tuple[str, dict[str, Any]]] = []

    async def ask(_queue: str, op: str, fields: dict[str, Any]) -> Answer:
        asked.append((op, fields))
        return Answer({"found": [True]}, memoryview(b""))

    rig.connection.frontend.ask_shard = ask  # type: ignore[attr-defined]
    tasks: list[Any] = []
    rig.connection.frontend.spawn = tasks.append  # type: ignore[attr-defined]
    assert rig.outcome(ACCEPTED) == []
    asyncio.run(tasks.pop())
    # The link may have ended when the request is at the shard.
    assert [(op, fields["locks"]) for op, fields in asked] == [
        ("settle_locks", [f"{rig.consumer.lock_key}-0"])
    ]
    assert rig.link.settled_sent == [(0, 0, ACCEPTED)]


@pytest.mark.parametrize("is_locked", [True, False])
def test_an_outcome_that_a_lost_shard_may_have_stored_is_given_to_the_next_one(is_locked: bool) -> None:
    rig = Rig(lock_duration=30)
    rig.link.rcv_settle_mode = SETTLE_SECOND
    rig.delivered(MESSAGE)
    asked: list[dict[str, Any]] = []

    async def ask(_queue: str, _op: str, fields: dict[str, Any]) -> Answer:
        asked.append(fields)
        return Answer({"found": [is_locked]}, memoryview(b""))

    rig.connection.frontend.ask_shard = ask  # type: ignore[attr-defined]
    tasks: list[Any] = []
    rig.connection.frontend.spawn = tasks.append  # type: ignore[attr-defined]
    assert rig.outcome(ACCEPTED)
    rig.consumer.reopen()
    asyncio.run(tasks.pop())
    for _, call in rig.connection.frontend.calls:
        call()
    assert [(each["locks"], each["outcome"]) for each in asked] == [
        ([f"{rig.consumer.lock_key}-0"], "accepted")
    ]
    ((first, last, answer),) = rig.link.settled_sent
    assert (first, last) == (0, 0)
    if is_locked:
        assert answer is ACCEPTED
    else:
        assert answer.error.condition == conditions.MESSAGE_LOCK_LOST
    assert rig.consumer.settlements.count == 0
    assert rig.connection.lost == []
    rig.consumer.settled(0, 1, True)
    assert len(rig.link.settled_sent) == 1


@pytest.mark.parametrize("error", [ShardDownError(), CoordinatorError("etcd is away")], ids=repr)
def test_an_outcome_whose_request_is_lost_with_its_shard_is_a_lost_lock_and_the_link_goes_on(
    error: Exception,
) -> None:
    rig = Rig(lock_duration=30)
    rig.link.rcv_settle_mode = SETTLE_SECOND
    rig.delivered(MESSAGE)
    rig.consumer.reopen()

    async def ask(_queue: str, _op: str, _fields: dict[str, Any]) -> Answer:
        raise error

    rig.connection.frontend.ask_shard = ask  # type: ignore[attr-defined]
    tasks: list[Any] = []
    rig.connection.frontend.spawn = tasks.append  # type: ignore[attr-defined]
    assert rig.outcome(ACCEPTED) == []
    asyncio.run(tasks.pop())
    for _, call in rig.connection.frontend.calls:
        call()
    ((first, last, answer),) = rig.link.settled_sent
    assert (first, last, answer.error.condition) == (0, 0, conditions.MESSAGE_LOCK_LOST)
    assert rig.connection.lost == []


def doubtful(rig: Rig, count: int) -> tuple[list[Any], list[list[str]]]:
    """Accepts messages whose locks may have ended; returns the work that asks the shard, and what it asks."""
    rig.link.rcv_settle_mode = SETTLE_SECOND
    rig.delivered(*[MESSAGE] * count)
    rig.consumer.reopen()
    asked: list[list[str]] = []

    async def ask(_queue: str, _op: str, fields: dict[str, Any]) -> Answer:
        asked.append(fields["locks"])
        return Answer({"found": [True] * len(fields["locks"])}, memoryview(b""))

    rig.connection.frontend.ask_shard = ask  # type: ignore[attr-defined]
    work: list[Any] = []
    rig.connection.frontend.spawn = work.append  # type: ignore[attr-defined]
    rig.consumer.outcome(Outcome(rig.link, 0, count - 1, ACCEPTED, False))  # type: ignore[arg-type]
    return work, asked


def test_all_outcomes_reach_the_shard_also_of_a_link_that_ends_meanwhile() -> None:
    rig = Rig(lock_duration=30)
    count = limits.LOCKS_RENEWED_MAX + 1
    work, asked = doubtful(rig, count)
    rig.consumer.close()
    asyncio.run(work.pop())
    assert sum(map(len, asked)) == count
    assert rig.link.settled_sent == []


def test_what_the_client_settles_while_the_shard_is_asked_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(lock_duration=30)
    work, _ = doubtful(rig, 1)
    rig.consumer.outcome(Outcome(rig.link, 0, 0, ACCEPTED, True))  # type: ignore[arg-type]
    rig.consumer.deliver(slice_of(1, [MESSAGE]), 1, 1)
    # The link has no unsettled delivery of this number any more.
    monkeypatch.setattr(rig.link, "settle_sent", lambda first, last, state: 0)
    asyncio.run(work.pop())
    assert rig.consumer.settlements.count == 1


def test_what_is_no_message_is_delivered_as_it_is() -> None:
    assert Rig().delivered(b"no sections") == [b"no sections"]


def test_a_reason_is_kept_with_the_dead_letter_and_is_no_longer_than_its_bound() -> None:
    rig = Rig()
    info = {
        Symbol("DeadLetterReason"): "why " + "x" * BUS_REASON_CHARACTERS,
        Symbol("DeadLetterErrorDescription"): "größer",
        Symbol("other"): 1,
    }
    error = AmqpError(condition=Symbol("com.microsoft:dead-letter"), description="größer", info=info)
    (said,) = rig.outcome(Rejected(error=error))
    assert said.flags == OutcomeCode.REJECTED
    detail = SettleDetail.decode(said.body)
    dead = {Symbol("x-opt-dead-letter-reason"): Symbol("rejected"), **_notes(detail)}
    found = annotated(with_annotations(MESSAGE, dead), annotations_of(0, 1))
    properties = decode_application_properties(found)
    assert len(properties["DeadLetterReason"]) == BUS_REASON_CHARACTERS
    assert properties["DeadLetterErrorDescription"] == "größer"


def test_a_reason_that_is_no_text_is_a_property_of_the_dead_letter() -> None:
    rig = Rig()
    info = {Symbol("DeadLetterReason"): 5, Symbol("DeadLetterErrorDescription"): True}
    condition = Symbol("com.microsoft:dead-letter")
    (said,) = rig.outcome(Rejected(error=AmqpError(condition=condition, info=info)))
    dead = {
        Symbol("x-opt-dead-letter-reason"): Symbol("rejected"),
        Symbol("x-opt-dead-letter-condition"): condition,
        **_notes(SettleDetail.decode(said.body)),
    }
    found = annotated(with_annotations(MESSAGE, dead), annotations_of(0, 1))
    assert decode_application_properties(found) == {
        "DeadLetterReason": 5,
        "DeadLetterErrorDescription": True,
    }


@pytest.mark.parametrize(
    "state",
    [
        Modified(message_annotations={Symbol("colour"): "red", Symbol("x-opt-note"): 1}),
        Modified(undeliverable_here=True, message_annotations={Symbol("colour"): "red"}),
        Rejected(error=AmqpError(condition=Symbol("x"), info={Symbol("colour"): "red"})),
    ],
)
def test_what_an_outcome_changes_is_an_application_property_from_then_on(state: Any) -> None:
    rig = Rig()
    (said,) = rig.outcome(state)
    message = with_application_properties(MESSAGE, {"colour": "blue", "size": 2})
    kept = with_annotations(message, _notes(SettleDetail.decode(said.body)))
    found = annotated(kept, annotations_of(0, 1))
    assert decode_application_properties(found) == {"colour": "red", "size": 2}
    assert not any(str(name).startswith("x-opt-property-") for name in decode_annotations(found))
    # Other clients see the message as it was sent, and the change as an annotation.
    assert decode_application_properties(kept)["colour"] == "blue"
    assert decode_annotations(kept)["x-opt-property-colour"] == "red"


def _notes(detail: SettleDetail) -> dict[Symbol, Any]:
    encoded = bytes.fromhex(detail.annotations)
    notes: dict[Symbol, Any] = decode(encoded, 0, len(encoded))[0]
    return notes


@pytest.mark.parametrize(
    ("own", "notes", "shown"),
    [
        ("expired", {}, ("TTLExpiredException", "The message expired and was dead lettered.")),
        (
            "max-delivery-count",
            {"x-opt-dead-letter-description": "10"},
            ("MaxDeliveryCountExceeded", "10"),
        ),
        # It was dead-lettered by a receiver before, and forwarded.
        ("max-delivery-count", {"x-opt-deadletter-reason": "why"}, ("MaxDeliveryCountExceeded", None)),
        ("other", {}, ("other", None)),
        ("rejected", {}, (None, None)),
        ("rejected", {"x-opt-dead-letter-condition": "com.microsoft:dead-letter"}, (None, None)),
        (
            "rejected",
            {"x-opt-dead-letter-condition": "amqp:x", "x-opt-dead-letter-description": "d"},
            ("amqp:x", "d"),
        ),
        (
            "rejected",
            {"x-opt-deadletter-reason": "why", "x-opt-deadletter-description": "so"},
            ("why", "so"),
        ),
        # It was sent again from a dead-letter queue.
        (None, {"x-opt-deadletter-reason": "why", "x-opt-dead-letter-count": 1}, (None, None)),
        (5, {"x-opt-deadletter-reason": "why"}, (None, None)),
    ],
)
def test_a_dead_letter_has_its_reason_in_every_queue(
    own: Any, notes: dict[str, Any], shown: tuple[str | None, str | None]
) -> None:
    if own is not None:
        notes = {"x-opt-dead-letter-reason": Symbol(own) if isinstance(own, str) else own, **notes}
    message = with_application_properties(MESSAGE, {"a": 1})
    message = with_annotations(message, {Symbol(key): value for key, value in notes.items()})
    (found,) = Rig("forwarded").delivered(message)
    properties = decode_application_properties(found)
    assert properties.pop("a") == 1
    assert (properties.get("DeadLetterReason"), properties.get("DeadLetterErrorDescription")) == shown
    assert len(properties) == len([each for each in shown if each])


def test_a_forwarded_dead_letter_has_its_source() -> None:
    notes = {Symbol("x-opt-dead-letter-reason"): Symbol("rejected"), Symbol("x-opt-dead-letter-source"): "s"}
    (found,) = Rig("forwarded").delivered(with_annotations(MESSAGE, notes))
    assert decode_annotations(found)["x-opt-deadletter-source"] == "s"


def test_a_dead_letter_has_no_annotations_with_which_its_copy_would_be_one() -> None:
    """A client that sends what it received keeps annotations that it does not know."""
    names = ("dead-letter-reason", "dead-letter-condition", "dead-letter-count", "deadletter-reason", "own")
    (found,) = Rig().delivered(
        with_annotations(MESSAGE, {Symbol(f"x-opt-{name}"): Symbol("rejected") for name in names})
    )
    assert decode_application_properties(found)["DeadLetterReason"] == "rejected"
    kept = {name for name in decode_annotations(found) if name.startswith(("x-opt-dead", "x-opt-own"))}
    assert kept == {"x-opt-own"}


def test_application_properties_are_replaced_and_all_else_stays() -> None:
    once = with_application_properties(MESSAGE, {"a": "1"})
    twice = with_application_properties(once, {"a": "1", "b": 2})
    assert decode_application_properties(twice) == {"a": "1", "b": 2}
    assert decode_properties(twice).message_id == "m"
    assert twice.endswith(data(b"body"))
    assert with_application_properties(data(b""), {}).endswith(data(b""))


def test_a_confirmed_rejection_comes_back_without_its_error() -> None:
    rig = Rig()
    rig.link.rcv_settle_mode = 1
    rig.delivered(MESSAGE)
    rig.outcome(Rejected(error=AmqpError(condition=Symbol("x"))))
    rig.consumer.settled(0, 1, True)
    assert rig.link.settled_sent == [(0, 0, Rejected())]


def test_a_dead_letter_that_is_dead_lettered_again_stays_locked_and_the_client_hears_of_it() -> None:
    rig = Rig("q/$dlq")
    rig.link.rcv_settle_mode = 1
    rig.delivered(MESSAGE, MESSAGE)
    unsettled = rig.connection.unsettled_bytes
    assert rig.outcome(Rejected(error=AmqpError(condition=Symbol("x")))) == []
    ((first, last, answer),) = rig.link.settled_sent
    assert (first, last, answer.error.condition) == (0, 0, conditions.NOT_ALLOWED)
    assert rig.connection.unsettled_bytes < unsettled
    # A client that does not wait for an answer keeps the dead letter for other receivers.
    rig = Rig("q/$dlq")
    rig.delivered(MESSAGE)
    assert [each.flags for each in rig.outcome(Rejected(), settled=True)] == [OutcomeCode.REJECTED]


def test_undeliverable_here_defers_and_is_no_failed_delivery() -> None:
    rig = Rig()
    rig.delivered(MESSAGE)
    notes = {Symbol("x-opt-a"): 1}
    (said,) = rig.outcome(
        Modified(delivery_failed=True, undeliverable_here=True, message_annotations=notes), settled=True
    )
    detail = SettleDetail.decode(said.body)
    assert said.flags == OutcomeCode.MODIFIED
    assert (detail.deferred, detail.delivery_failed, detail.undeliverable_here) == (True, False, False)
    assert _notes(detail) == notes


def test_a_confirmed_deferral_comes_back_as_the_client_sent_it() -> None:
    rig = Rig()
    rig.link.rcv_settle_mode = 1
    rig.delivered(MESSAGE)
    state = Modified(delivery_failed=True, undeliverable_here=True)
    rig.outcome(state)
    rig.consumer.settled(0, 1, True)
    assert rig.link.settled_sent == [(0, 0, state)]


def test_other_outcomes_are_those_of_any_receiver() -> None:
    rig = Rig()
    rig.delivered(MESSAGE)
    (said,) = rig.outcome(ACCEPTED, settled=True)
    assert said.flags == OutcomeCode.ACCEPTED


def test_a_message_without_an_id_has_the_same_one_whenever_it_is_delivered() -> None:
    first, again = (annotated(data(b"x"), annotations_of(3, 5)) for _ in range(2))
    other = annotated(data(b"x"), annotations_of(4, 5))
    assert decode_properties(first).message_id == decode_properties(again).message_id
    assert decode_properties(other).message_id != decode_properties(first).message_id
    assert first.endswith(data(b"x"))


@pytest.mark.parametrize("failed", [None, False, True])
def test_an_abandoned_message_counts_as_a_failed_delivery(failed: bool | None) -> None:
    rig = Rig()
    rig.delivered(MESSAGE)
    (said,) = rig.outcome(Modified(delivery_failed=failed, undeliverable_here=False), settled=True)
    assert SettleDetail.decode(said.body).delivery_failed


def transacted(rig: Rig, outcome: Any, settled: bool = False) -> Outcome:
    """An outcome of the first delivery, in a transaction."""
    state = TransactionalState(txn_id=b"1", outcome=outcome)
    event = Outcome(rig.link, 0, 0, state, settled)  # type: ignore[arg-type]
    return rig.consumer.transacted(event, state)


def test_an_outcome_in_a_transaction_is_answered_at_once_and_is_the_transactions_then() -> None:
    """The client for Java waits for the answer before it commits."""
    rig = Rig()
    rig.delivered(MESSAGE)
    found = transacted(rig, ACCEPTED)
    assert (found.first, found.last, found.state, found.settled) == (0, 0, ACCEPTED, True)
    assert rig.link.settled_sent == [(0, 0, TransactionalState(txn_id=b"1", outcome=ACCEPTED))]
    assert rig.shard.take(Kind.SETTLE) == []


def test_an_outcome_in_a_transaction_that_the_client_settles_needs_no_answer() -> None:
    rig = Rig()
    rig.delivered(MESSAGE)
    found = transacted(rig, Modified(delivery_failed=None), settled=True)
    assert found is not None
    assert found.state == Modified(delivery_failed=True)
    assert rig.link.settled_sent == []


def test_a_dead_letter_of_a_transaction_keeps_its_reason() -> None:
    rig = Rig()
    rig.delivered(MESSAGE)
    info = {Symbol("DeadLetterReason"): "why"}
    found = transacted(rig, Rejected(error=AmqpError(condition=Symbol("x"), info=info)))
    assert found is not None
    assert found.state.error.info == {Symbol("x-opt-deadletter-reason"): "why"}
    # The client for .NET takes an error in the answer for a failure of its call.
    assert rig.link.settled_sent == [(0, 0, TransactionalState(txn_id=b"1", outcome=Rejected()))]


def test_a_dead_letter_can_not_be_dead_lettered_again_in_a_transaction() -> None:
    rig = Rig("q/$dlq")
    rig.delivered(MESSAGE)
    with pytest.raises(ConditionError, match="can't be dead-lettered again"):
        transacted(rig, Rejected())
    assert rig.link.settled_sent == [(0, 0, TransactionalState(txn_id=b"1", outcome=STAYS_DEAD))]
    assert rig.connection.unsettled_bytes == 0
    rig = Rig("q/$dlq")
    rig.delivered(MESSAGE)
    assert transacted(rig, Rejected(), settled=True).state == Rejected()
    assert rig.link.settled_sent == []


def test_a_deferral_in_a_transaction_is_answered_at_once_and_is_the_transactions_then() -> None:
    rig = Rig()
    rig.delivered(MESSAGE)
    state = Modified(undeliverable_here=True, message_annotations={Symbol("x-opt-a"): 1})
    found = transacted(rig, state)
    assert (found.state, found.settled) == (Deferral(state, {Symbol("x-opt-a"): 1}), True)
    assert rig.link.settled_sent == [(0, 0, TransactionalState(txn_id=b"1", outcome=state))]
    assert rig.shard.take(Kind.SETTLE) == []


def test_only_the_shard_knows_whether_a_message_is_locked_when_its_lock_may_have_ended() -> None:
    """Of three messages the second has another receiver when the outcomes come."""

    async def test() -> None:
        rig = Rig(lock_duration=30)
        frontend = rig.connection.frontend
        frontend.time_ms = 1 << 20  # The slice has the last 16 bits of when it was delivered: 0.
        work: list[Any] = []
        frontend.spawn = work.append  # type: ignore[attr-defined]

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            assert (queue, op, fields["outcome"]) == ("q", "settle_locks", "accepted")
            return Answer({"found": [not each.endswith("-1") for each in fields["locks"]]}, memoryview(b""))

        frontend.ask_shard = ask  # type: ignore[attr-defined]
        rig.link.rcv_settle_mode = 1
        rig.delivered(MESSAGE, MESSAGE, MESSAGE)
        rig.shard.take()

        def accept(first: int, last: int, settled: bool = False) -> None:
            rig.consumer.outcome(Outcome(rig.link, first, last, ACCEPTED, settled))  # type: ignore[arg-type]

        frontend.time_ms += 28_000
        accept(0, 0)
        assert (len(work), len(rig.shard.take(Kind.SETTLE))) == (0, 1)
        frontend.time_ms += 2_000
        rig.consumer.settled(0, 1, True)
        accept(1, 2)
        accept(1, 1)  # The client repeats it: there is one answer.
        assert rig.shard.take(Kind.SETTLE) == []
        for each in work:
            await each
        (_, first), (second, lost), (third, last) = [(at, state) for at, _, state in rig.link.settled_sent]
        assert (first, last, second, third) == (ACCEPTED, ACCEPTED, 1, 2)
        assert lost.error.condition == conditions.MESSAGE_LOCK_LOST

    asyncio.run(test())


def test_an_outcome_of_a_message_that_the_link_no_longer_has_is_a_lost_lock() -> None:
    rig = Rig(lock_duration=30)
    rig.link.rcv_settle_mode = SETTLE_SECOND
    rig.delivered(MESSAGE, MESSAGE, MESSAGE)
    rig.consumer.outcome(Outcome(rig.link, 0, 2, ACCEPTED, False))  # type: ignore[arg-type]
    for first, count, flags in ((0, 1, 0), (1, 1, NOT_LOCKED), (2, 1, 0), (1, 1, NOT_LOCKED)):
        to_consumer = TO_CONSUMERS[Kind.SETTLED]
        to_consumer(rig.consumer, frame(Kind.SETTLED, flags=flags, link=6, number=first, count=count))
    (_, _, before), (first, last, lost), (_, _, behind) = rig.link.settled_sent
    assert (before, behind) == (ACCEPTED, ACCEPTED)
    assert (first, last, lost.error.condition) == (1, 1, conditions.MESSAGE_LOCK_LOST)
    assert rig.consumer.settlements.count == 0


def test_a_client_that_waits_for_no_answer_asks_nothing() -> None:
    rig = Rig(lock_duration=30)
    rig.delivered(MESSAGE)
    rig.connection.frontend.time_ms += 60_000
    assert [each.count for each in rig.outcome(ACCEPTED, settled=True)] == [1]


def test_deliveries_whose_locks_have_ended_do_not_hold_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_UNSETTLED_BYTES", 5_000)
    rig = Rig(lock_duration=30)
    frontend = rig.connection.frontend
    now_ms = frontend.now_ms()
    monkeypatch.setattr(frontend, "now_ms", lambda: now_ms)
    rig.consumer.credit(Credit(rig.link, 1_000, False))  # type: ignore[arg-type]
    rig.link.session.outgoing.add(rig.link, 0, 9)
    rig.delivered(*[MESSAGE + bytes(1_000)] * 10)
    assert rig.consumer in rig.connection.starved
    now_ms += 30_000
    waits, frontend.calls = [(wait, call) for wait, call in frontend.calls if wait], []
    assert [0 < wait < 30_000 for wait, _ in waits] == [True]
    rig.shard.take()
    waits[0][1]()
    assert rig.shard.take(Kind.CREDIT)
    assert rig.connection.unsettled_bytes == 0
    # What the client settles late was counted before.
    rig.consumer.deliver(slice_of(10, [MESSAGE]), 10, 1)
    before = rig.connection.unsettled_bytes
    event = Outcome(rig.link, 0, 9, ACCEPTED, True)  # type: ignore[arg-type]
    rig.consumer.outcome(event)
    assert rig.connection.unsettled_bytes == before > 0
    rig.consumer.outcome(Outcome(rig.link, 10, 10, ACCEPTED, True))  # type: ignore[arg-type]
    assert rig.connection.unsettled_bytes == 0


@pytest.mark.parametrize(
    ("largest", "presettled", "removed_max"),
    [(0, True, 0), (1 << 20, False, (1 << 20) - GROWTH_BYTES_MAX), (GROWTH_BYTES_MAX, False, 0)],
)
def test_what_is_received_and_deleted_waits_for_its_removal_if_it_certainly_fits(
    largest: int, presettled: bool, removed_max: int
) -> None:
    rig = Rig(presettled=True, largest=largest)
    (opened,) = rig.shard.take(Kind.CONSUMER_OPEN)
    opening = ConsumerOpen.decode(opened.body)
    assert (opening.presettled, opening.removed_bytes_max) == (presettled, removed_max)
    assert opening.removes_first == (presettled or removed_max > 0)
    assert rig.delivered(MESSAGE)
    accepted = rig.shard.take(Kind.SETTLE)
    assert [(each.number, each.count) for each in accepted] == ([] if presettled else [(0, 1)])


@pytest.mark.parametrize(("growth", "has_grown"), [(0, True), (1, False)])
def test_what_the_shard_has_removed_is_sent_without_annotations_that_might_make_it_too_large(
    growth: int, has_grown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = MESSAGE + bytes(SHOWN_BYTES_MAX + growth)
    monkeypatch.setattr(deliveries, "annotated", lambda *_, **__: grown)
    largest = len(MESSAGE) + GROWTH_BYTES_MAX
    assert Rig(presettled=True, largest=largest).delivered(MESSAGE) == [grown if has_grown else MESSAGE]
    # About what the shard has not removed, and what is settled later, the frontend decides when it sends.
    for rig in (Rig(presettled=True, largest=largest - 1), Rig()):
        assert rig.delivered(MESSAGE) == [grown]


def test_what_a_frontend_adds_is_small_unless_the_message_is_encoded_anew_at_greater_length() -> None:
    notes = {Symbol("x-opt-dead-letter-reason"): "rejected", NOTED_REASON: "r" * BUS_REASON_CHARACTERS}
    notes |= {Symbol("x-opt-dead-letter-source"): "q" * 1_024, NOTED_DESCRIPTION: "d" * BUS_REASON_CHARACTERS}
    bare = data(b"")
    for message in (bare, with_annotations(bare, notes)):
        given = annotations_of((1 << 63) - 2, 1 << 62, is_subscription=True)
        shown = annotated(message, given, life_ms=1 << 33, attempts=(1 << 32) - 1)
        again = with_new_header(shown, (1 << 32) - 1, 0, 0)
        assert 0 < len(shown) - len(message) <= SHOWN_BYTES_MAX
        assert len(again) - len(message) <= GROWTH_BYTES_MAX
