"""SessionLink: a client's attach is answered when its session is accepted; requests about sessions."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.amqp.composite import write_composite
from lightrail.amqp.performatives import Attach as AttachFrame
from lightrail.amqp.performatives import Source
from lightrail.amqp.sections import Properties, decode_annotations
from lightrail.amqp.values import Described, Long, Symbol, Timestamp, UInt
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.links.bound import Terms
from lightrail.frontend.nodes.requests import RequestError
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy
from lightrail.namespace.records import Name
from lightrail.namespace.rights import ANYBODY
from lightrail.service_bus.links.sessions import (
    EPOCH_TICKS,
    LOCKED_UNTIL,
    SESSION_ANSWER_MS,
    SESSION_FILTER,
    SESSION_WAIT_MS,
    SESSION_WAIT_MS_MAX,
    TIMED_OUT,
    SessionLink,
    request_session,
)
from lightrail.service_bus.nodes import sessions
from lightrail.service_bus.nodes.management import SESSION_PEEK_PAGES_MAX
from lightrail.service_bus.nodes.sessions import session_in
from lightrail.wire.bodies import Answer, ConsumerOpen, Refusal
from lightrail.wire.frames import Kind
from tests.support.amqp.frontend_fakes import FakeConnection, FakeShard
from tests.support.amqp.frontend_scene import Scene, play
from tests.support.amqp.requests import Requester
from tests.unit.amqp.peer import data
from tests.unit.frontend.test_deliveries import slice_of
from tests.unit.service_bus.links.test_deliveries import MESSAGE, Directory, Link

CODE = 0x00000137000000C
GO = Described(CODE, None)
"""The filter of the client for Go."""


class Timer:
    def __init__(self, wait_ms: int, call: Any) -> None:
        self.wait_ms, self.call = wait_ms, call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Rig:
    """A client that requests a session."""

    def __init__(self, given: Any = None, properties: dict[Symbol, Any] | None = None) -> None:
        self.connection = FakeConnection()
        self.connection.frontend.directory = Directory({})  # type: ignore[assignment]
        self.timers: list[Timer] = []
        self.connection.frontend.timer = self.timer  # type: ignore[method-assign, assignment]
        self.link = Link()
        self.link.source = Source(filter={SESSION_FILTER: given})  # type: ignore[attr-defined]
        self.link.attach = AttachFrame(name="x", handle=0, role=True, properties=properties)
        self.shard = FakeShard()
        self.terms = Terms("owner")
        options = ConsumerOpen("q", session=given, any_session=given is None or given is GO)
        self.consumer = SessionLink(
            self.connection,  # type: ignore[arg-type]
            self.link,  # type: ignore[arg-type]
            self.shard,  # type: ignore[arg-type]
            number=6,
            options=options,
            terms=self.terms,
        )
        self.consumer.start(10, False)
        self.consumer.reopen()
        self.consumer.ready()

    def timer(self, wait_ms: int, call: Any) -> Timer:
        self.timers.append(Timer(wait_ms, call))
        return self.timers[-1]


@pytest.mark.parametrize(("given", "answered"), [(None, "s"), (GO, Described(CODE, "s"))])
def test_an_attach_is_answered_with_the_accepted_session_and_the_end_of_its_lock(
    given: Any, answered: Any
) -> None:
    rig = Rig(given)
    assert rig.connection.accepted == []
    assert [each.kind for each in rig.shard.take()] == [Kind.CONSUMER_OPEN]
    rig.consumer.accepted("s", 30_000)
    assert rig.connection.accepted == [rig.link]
    assert rig.terms.filter == {SESSION_FILTER: answered}
    until_ms = rig.connection.frontend.now_ms() + 30_000
    assert rig.terms.properties == {LOCKED_UNTIL: Long(EPOCH_TICKS + 10_000 * until_ms)}
    assert [each.kind for each in rig.shard.take()] == [Kind.CREDIT]
    assert rig.timers[0].is_cancelled
    rig.consumer.accepted("s", 0)
    assert rig.connection.accepted == [rig.link]
    assert rig.consumer.locked_until_ms == rig.connection.frontend.now_ms() + limits.BUS_LOCK_SHOWN_MS


def test_messages_are_locked_as_long_as_the_session() -> None:
    rig = Rig("s")
    rig.consumer.accepted("s", 30_000)
    rig.consumer.deliver(slice_of(0, [MESSAGE]), 0, 1)
    (message,) = rig.link.sent
    assert decode_annotations(message)["x-opt-locked-until"] == Timestamp(rig.consumer.locked_until_ms)


@pytest.mark.parametrize(
    ("properties", "wait_ms"),
    [
        (None, SESSION_WAIT_MS),
        ({Symbol("com.microsoft:timeout"): UInt(500)}, 450),
        ({Symbol("com.microsoft:timeout"): UInt(5_000)}, 5_000 - SESSION_ANSWER_MS),
        ({Symbol("com.microsoft:timeout"): "x"}, SESSION_WAIT_MS),
        ({Symbol("com.microsoft:timeout"): UInt(1 << 31)}, SESSION_WAIT_MS_MAX),
    ],
)
def test_a_client_waits_for_a_session_as_long_as_its_time_out_says(
    properties: dict[Symbol, Any] | None, wait_ms: int
) -> None:
    rig = Rig(properties=properties)
    assert [timer.wait_ms for timer in rig.timers] == [wait_ms]
    rig.timers[0].call()
    assert [condition for condition, _ in rig.connection.lost] == [TIMED_OUT]


def test_a_client_with_the_id_of_a_session_does_not_wait() -> None:
    assert Rig("s").timers == []


def test_nothing_is_accepted_after_the_end() -> None:
    rig = Rig()
    rig.consumer.close()
    rig.consumer.accepted("s", 0)
    rig.timers[0].call()
    assert (rig.connection.accepted, rig.connection.lost) == ([], [])


@pytest.mark.parametrize(
    ("attached", "condition"),
    [(False, conditions.SESSION_CANNOT_BE_LOCKED), (True, conditions.SESSION_LOCK_LOST)],
)
def test_a_session_that_another_receiver_has_is_lost_if_it_was_accepted_before(
    attached: bool, condition: str
) -> None:
    rig = Rig("s")
    if attached:
        rig.consumer.accepted("s", 0)
    rig.consumer.ended(Refusal(conditions.SESSION_CANNOT_BE_LOCKED, "why"))
    ((_, was_attached, refusal),) = rig.connection.refused
    assert (was_attached, refusal.condition) == (attached, condition)


# --- what a source requests --------------------------------------------------------------------------------


def requested(source: Source, *, options: ConsumerOpen | None = None, **policy: Any) -> ConsumerOpen | None:
    options = options or ConsumerOpen("q")
    record = Name("q", Policy.parse({"role": "queue", "groups": True, **policy}))
    attach = SimpleNamespace(link=SimpleNamespace(source=source), record=record)
    return options if request_session(attach, options) else None  # type: ignore[arg-type]


def test_the_session_of_a_source_is_its_filter() -> None:
    assert requested(Source()) is None
    assert requested(Source(filter={Symbol("x"): None})) is None
    for given, session in ((None, None), ("s", "s"), (GO, None), (Described(CODE, "s"), "s"), ("", "")):
        options = requested(Source(filter={SESSION_FILTER: given}))
        assert options is not None
        assert (options.session, options.any_session) == (session, session is None)


@pytest.mark.parametrize(
    ("source", "changes", "policy", "condition"),
    [
        (Source(filter={SESSION_FILTER: 7}), {}, {}, conditions.INVALID_FIELD),
        (Source(filter={SESSION_FILTER: "s"}), {}, {"groups": False}, conditions.NOT_ALLOWED),
        (Source(filter={SESSION_FILTER: "s"}), {}, {"single_active": True}, conditions.NOT_ALLOWED),
        (Source(filter={SESSION_FILTER: "s"}), {"browse": True}, {}, conditions.NOT_ALLOWED),
        (Source(filter={SESSION_FILTER: "s"}), {"relay": True}, {}, conditions.NOT_ALLOWED),
        (
            Source(
                filter={
                    SESSION_FILTER: "s",
                    Symbol("jms"): Described(Symbol("apache.org:selector-filter:string"), "a = 1"),
                }
            ),
            {},
            {},
            conditions.NOT_IMPLEMENTED,
        ),
    ],
)
def test_a_source_of_no_session_says_why(
    source: Source, changes: dict[str, Any], policy: dict[str, Any], condition: str
) -> None:
    with pytest.raises(ConditionError) as caught:
        requested(source, options=ConsumerOpen("q", **changes), **policy)
    assert caught.value.condition == condition


# --- requests ----------------------------------------------------------------------------------------------


def test_a_request_to_peek_at_a_session_reads_a_bounded_number_of_pages() -> None:
    async def test(scene: Scene) -> None:
        await scene.frontend.service.give(ANYBODY, "q", Policy.parse({"role": "queue", "groups": True}))
        asked: list[int] = []

        async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
            asked.append(fields["from"])
            row = {"size": len(MESSAGE), "message_format": 0, "sequence": 1, "enqueued_at_ms": 1}
            return Answer({"messages": [row], "next": fields["from"] + 1}, memoryview(MESSAGE))

        scene.frontend.ask_shard = ask  # type: ignore[method-assign]
        requester = await Requester.attach(scene.client(), "q/$management")
        body = {"from-sequence-number": Long(1), "message-count": 5, "session-id": "s"}
        answer = await requester.ask(body, operation="com.microsoft:peek-message")
        assert answer.application["statusCode"] == 204
        assert asked == list(range(SESSION_PEEK_PAGES_MAX))

    play(test)


@pytest.mark.parametrize("loads", [2, 1 << 20])
def test_a_request_is_repeated_while_the_queue_is_loading(
    loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSION_LOADING_AGAIN_MS", 1)
    monkeypatch.setattr(limits, "REQUEST_MS", 5)
    asked: list[str] = []

    async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
        asked.append(op)
        loaded: dict[str, Any] = {"sessions": ["a"]}
        return Answer({"loading": True} if len(asked) <= loads else loaded, memoryview(b""))

    connection: Any = SimpleNamespace(frontend=SimpleNamespace(ask_shard=ask))
    record = Name("q", Policy.parse({"role": "queue", "groups": True}))
    work = sessions._ask(connection, record, "sessions", {})
    if loads == 2:
        assert asyncio.run(work).fields == {"sessions": ["a"]}
        assert len(asked) == 3
    else:
        with pytest.raises(RequestError, match="after a restart"):
            asyncio.run(work)
        assert len(asked) == 5


def test_the_session_of_a_message_is_its_group_id() -> None:
    assert session_in(write_composite(Properties(group_id="s")) + data(b"x")) == "s"
    assert session_in(data(b"x")) is None
    assert session_in(b"\0\0") is None
    assert session_in(data(b"x"), message_format=1) is None
