"""Senders with `resume`, against a broker that answers each attach as the test says (transport 2.6.13)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lightrail.amqp import events
from lightrail.amqp.link import Link
from lightrail.amqp.performatives import Accepted, AmqpError, Modified, Received, Rejected, Released
from lightrail.amqp.values import Symbol
from lightrail.client import (
    ClientError,
    Message,
    Outcome,
    OutcomeKind,
    ReconnectPolicy,
    Sender,
    connect,
    resuming_sender,
)
from tests.support.amqp.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.usefixtures("closes_soon")

DEADLINE_S = 20.0
SOON = ReconnectPolicy(first=0.005, longest=0.05, connect=5.0)
SMALL_FRAME = 512

Answers = list["asyncio.Future[Outcome]"]


def play(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - whatever it is that happens
        await asyncio.sleep(0.001)


async def accepted(answers: Answers) -> None:
    """Waits until all are accepted."""
    assert [(await answer).kind for answer in answers] == [OutcomeKind.ACCEPTED] * len(answers)


def encoded(number: int) -> bytes:
    return Message(number).encode()


async def sent(broker: ScriptedBroker, count: int) -> tuple[list[bytes], list[bytes]]:
    """Tags and messages of so many new deliveries."""
    tags: list[bytes] = []
    messages: list[bytes] = []
    while len(tags) < count:
        event = await broker.next(events.Transfers)
        assert event.tags is not None
        tags += event.tags
        messages += event.payloads
    assert len(tags) == count
    return tags, messages


async def lost(
    broker: ScriptedBroker, sender: Sender, count: int, **answer: Any
) -> tuple[Answers, list[bytes]]:
    """Messages that the broker has received when the connection is lost: their outcomes, and their tags."""
    await broker.attach(**answer)
    await sender.opened()
    answers = [sender.send_nowait(number) for number in range(count)]
    tags, messages = await sent(broker, count)
    assert messages == [*map(encoded, range(count))]
    broker.lose()
    await until(lambda: not sender.healthy)
    return answers, tags


async def settled(link: Link, broker: ScriptedBroker, first: int, last: int, state: Any = ...) -> None:
    """Sends an outcome of new deliveries of a link, which the client settles."""
    link.settle(first, last, state=Accepted() if state is ... else state)
    broker.write()
    found = await broker.next(events.SenderSettled)
    assert (found.first_delivery_id, found.last_delivery_id) == (first, last)


def test_the_client_settles_what_has_an_outcome_and_the_map_has_the_rest() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            link, theirs = await broker.attach()
            assert theirs == {}, "a first attach: what a former process has sent is no concern of this one"
            answers = [sender.send_nowait(number) for number in range(3)]
            tags, _ = await sent(broker, 3)
            await settled(link, broker, 0, 1)
            assert [answer.result().accepted for answer in answers[:2]] == [True, True]
            broker.lose()
            _, theirs = await broker.attach(unsettled={})
            assert theirs == {tags[2]: None}

    play(test())


def test_the_broker_is_asked_for_the_time_and_for_durable_state() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            for durable in (True, False):
                sender = connection.sender("q", resume=60, durable=durable)
                link = (await broker.next(events.Attached)).link
                assert (link.target.timeout, link.target.durable) == (60, 2 if durable else 0)
                assert link.rcv_settle_mode == 1
                link.accept()
                broker.write()
                await sender.opened()
                assert sender.resumes
            plain = connection.sender("q")
            link = (await broker.next(events.Attached)).link
            assert (link.target.timeout, link.rcv_settle_mode, link.attach.unsettled) == (0, 0, None)  # type: ignore[union-attr]
            link.accept()
            broker.write()
            await plain.opened()
            assert not plain.resumes

    play(test())


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (Accepted(), OutcomeKind.ACCEPTED),
        (Rejected(error=AmqpError(Symbol("amqp:not-allowed"), "no")), OutcomeKind.REJECTED),
        (Released(), OutcomeKind.RELEASED),
        (Modified(delivery_failed=True), OutcomeKind.MODIFIED),
    ],
    ids=["accepted", "rejected", "released", "modified"],
)
def test_an_outcome_in_the_broker_s_map_is_that_of_the_message(state: Any, kind: OutcomeKind) -> None:
    """Tags 3, 8 and 12 of the table in messaging 3.4.6; the settled transfer lets the broker forget them."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            answers, tags = await lost(broker, sender, 2)
            _, theirs = await broker.attach(unsettled=dict.fromkeys(tags, state))
            assert theirs == dict.fromkeys(tags)
            assert [(await answer).kind for answer in answers] == [kind, kind]
            for tag in tags:
                resumed = await broker.next(events.Resumed)
                assert (resumed.tag, resumed.settled) == (tag, True)
            assert (await answers[0]).condition == (
                "amqp:not-allowed" if kind is OutcomeKind.REJECTED else ""
            )
            new = sender.send_nowait("new")
            tags, messages = await sent(broker, 1)
            assert messages == [Message("new").encode()]
            assert not new.done()

    play(test())


@pytest.mark.parametrize(
    "state", [None, Received(section_number=0, section_offset=5)], ids=["null", "received"]
)
def test_a_delivery_without_an_outcome_at_the_broker_is_resumed_with_its_message(state: Any) -> None:
    """Tags 2 and 6."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            answers, tags = await lost(broker, sender, 2)
            link, _ = await broker.attach(unsettled=dict.fromkeys(tags, state))
            for number, tag in enumerate(tags):
                resumed = await broker.next(events.Resumed)
                assert (resumed.tag, resumed.settled, resumed.delivery_id) == (tag, False, number)
            assert not any(answer.done() for answer in answers)
            await settled(link, broker, 0, 1)
            await accepted(answers)
            assert not broker.has(events.Transfers)

    play(test())


def test_what_the_broker_does_not_have_is_sent_again_under_its_tag_ahead_of_newer_messages() -> None:
    """Tags 1 and 5, among others."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            answers, tags = await lost(broker, sender, 5)
            answers += [sender.send_nowait(number) for number in (5, 6)]
            link, _ = await broker.attach(unsettled={tags[0]: Accepted(), tags[2]: None})
            assert (await broker.next(events.Resumed)).tag == tags[0]
            assert (await broker.next(events.Resumed)).tag == tags[2]
            again, messages = await sent(broker, 5)
            assert again[:3] == [tags[1], tags[3], tags[4]]
            assert messages == [encoded(number) for number in (1, 3, 4, 5, 6)]
            assert not {*again[3:]} & {*tags}, "a tag is that of one message for ever"
            link.settle(0, 6)
            broker.write()
            await accepted(answers)

    play(test())


def test_a_message_is_sent_again_until_it_has_an_outcome() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            answers, tags = await lost(broker, sender, 3)
            for credit in (0, 2, 100):
                await broker.attach(unsettled={}, credit=credit)
                await sender.opened()
                if credit:
                    again, _ = await sent(broker, min(credit, 3))
                    assert again == tags[:credit]
                broker.lose()
                await until(lambda: not sender.healthy)
            link, theirs = await broker.attach(unsettled={})
            assert theirs == dict.fromkeys(tags)
            assert (await sent(broker, 3))[0] == tags
            await settled(link, broker, 0, 2)
            await accepted(answers)

    play(test())


def test_tags_of_two_senders_differ() -> None:
    """A process has the link names of its predecessor, whose tags the broker may have."""

    async def test() -> None:
        async with ScriptedBroker() as broker:
            found = []
            for _ in range(2):
                async with connect(broker.url, name="app") as connection:
                    sender = connection.sender("q", name="link", resume=60)
                    await broker.attach()
                    sender.send_nowait(1)
                    found += (await sent(broker, 1))[0]
                    broker.lose()
                    connection._give_up(ClientError("the process has ended"))
            assert found[0] != found[1]

    play(test())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kept_s": 0}, {"kept_s": 0, "unsettled": {}}),
        ({"mode": 0}, {"mode": 0, "unsettled": {}}),
        ({}, {}),
        ({}, {"kept_s": 0, "unsettled": {}}),
    ],
    ids=["no time", "settles first", "no map", "another broker"],
)
def test_where_the_broker_does_not_resume_the_outcome_is_unknown(first: Any, second: Any) -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            answers, _ = await lost(broker, sender, 2, **first)
            waits = sender.send_nowait("waits")
            await broker.attach(**second)
            assert [(await answer).kind for answer in answers] == [OutcomeKind.UNKNOWN] * 2
            _, messages = await sent(broker, 1)
            assert messages == [Message("waits").encode()]
            assert not waits.done()

    play(test())


class Clock:
    """The clock of resumed senders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(resuming_sender, "now_s", lambda: self.now_s)


@pytest.mark.parametrize(("passed_s", "is_known"), [(59.0, True), (61.0, False)])
def test_after_the_link_s_time_an_empty_map_does_not_tell_what_was_stored(
    monkeypatch: pytest.MonkeyPatch, passed_s: float, is_known: bool
) -> None:
    async def test() -> None:
        clock = Clock(monkeypatch)
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            answers, tags = await lost(broker, sender, 2)
            clock.now_s += passed_s
            await broker.attach(unsettled={tags[0]: Accepted()})
            assert (await answers[0]).accepted, "what is in the map is known at any time"
            if is_known:
                assert (await sent(broker, 1))[0] == tags[1:]
            else:
                outcome = await answers[1]
                assert outcome.kind is OutcomeKind.UNKNOWN
                assert "longer than the broker keeps" in outcome.description

    play(test())


def test_the_link_s_time_counts_from_the_last_proof_that_it_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may wait for its outcome for any time, while those of later ones arrive."""

    async def test() -> None:
        clock = Clock(monkeypatch)
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            link, _ = await broker.attach()
            await sender.opened()
            slow = sender.send_nowait("slow")
            tags, _ = await sent(broker, 1)
            clock.now_s += 100
            fast = sender.send_nowait("fast")
            await sent(broker, 1)
            await settled(link, broker, 1, 1)
            assert (await fast).accepted
            clock.now_s += 59
            broker.lose()
            await broker.attach(unsettled={})
            assert (await sent(broker, 1))[0] == tags[:1]
            assert not slow.done()

    play(test())


def test_each_attach_that_is_answered_begins_the_link_s_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        clock = Clock(monkeypatch)
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            answers, tags = await lost(broker, sender, 1)
            for _ in range(3):
                # Not within the time between attach and answer, which is not known to be part of its life.
                await broker.attach(unsettled={})
                assert (await sent(broker, 1))[0] == tags
                clock.now_s += 50
                broker.lose()
                await until(lambda: not sender.healthy)
            assert not answers[0].done()
            await broker.attach(unsettled={tags[0]: Accepted()})
            await accepted(answers)

    play(test())


def test_messages_become_unknown_when_the_time_has_passed_without_a_broker() -> None:
    async def test() -> None:
        broker = ScriptedBroker()
        async with broker:
            connection = await connect(broker.url, reconnect=SOON)
            sender = connection.sender("q", resume=1)
            answers, _ = await lost(broker, sender, 2, kept_s=1)
            waits = sender.send_nowait("never sent")
            await broker.close()
            assert [(await answer).kind for answer in answers] == [OutcomeKind.UNKNOWN] * 2
            assert not waits.done()
            async with broker:
                _, theirs = await broker.attach(1, unsettled={})
                assert theirs == {}
                assert (await sent(broker, 1))[1] == [Message("never sent").encode()]
                broker.lose()
                connection._give_up(ClientError("the test ends"))

    play(test())


def test_an_incomplete_map_is_settled_part_by_part_and_nothing_new_is_sent_before() -> None:
    """2.7.3: the absence of a tag in an incomplete map is no evidence."""

    async def test() -> None:
        async with (
            ScriptedBroker(max_frame_size=SMALL_FRAME) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            sender = connection.sender("q", resume=60)
            answers, tags = await lost(broker, sender, 3)
            new = sender.send_nowait("new")
            others = {b"%012d" % number: Accepted() for number in range(40)}
            link, _ = await broker.attach(unsettled={tags[0]: Accepted(), tags[1]: None, **others})
            assert link.incomplete_unsettled
            assert (await broker.next(events.Resumed)).tag == tags[0]
            assert (await broker.next(events.Resumed)).tag == tags[1]
            assert (await answers[0]).accepted
            assert not sender.healthy
            # Until the resumed delivery has an outcome.
            link.settle(1, 1)
            broker.write()
            assert (await answers[1]).accepted
            detached = await broker.next(events.Detached)
            assert not detached.closed
            assert not broker.has(events.Transfers)
            _, theirs = await broker.attach(unsettled={})
            assert theirs == {tags[2]: None}
            again, messages = await sent(broker, 2)
            assert again[0] == tags[2]
            assert messages == [encoded(2), Message("new").encode()]
            assert not new.done()
            assert len(broker.connections) == 1

    play(test())


def test_an_incomplete_map_without_a_delivery_of_the_client_decides_nothing() -> None:
    async def test() -> None:
        async with (
            ScriptedBroker(max_frame_size=SMALL_FRAME) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            sender = connection.sender("q", resume=60)
            answers, _ = await lost(broker, sender, 2)
            await broker.attach(unsettled={b"%012d" % number: Accepted() for number in range(40)})
            assert [(await answer).kind for answer in answers] == [OutcomeKind.UNKNOWN] * 2
            assert not (await broker.next(events.Detached)).closed
            _, theirs = await broker.attach(unsettled={})
            assert theirs == {}
            await until(lambda: sender.healthy)

    play(test())


def test_no_more_messages_are_under_way_than_a_frame_has_room_for() -> None:
    async def test() -> None:
        most = SMALL_FRAME // 36
        async with (
            ScriptedBroker(max_frame_size=SMALL_FRAME) as broker,
            connect(broker.url, reconnect=SOON) as connection,
        ):
            sender = connection.sender("q", resume=60)
            await broker.attach()
            answers = [sender.send_nowait(number) for number in range(100)]
            tags, _ = await sent(broker, most)
            broker.lose()
            link = (await broker.next(events.Attached)).link
            assert link.attach is not None
            assert (link.attach.unsettled, link.attach.incomplete_unsettled) == (dict.fromkeys(tags), False)
            link.keep_tags()
            link.accept(unsettled={})
            link.grant(1_000)
            broker.write()
            received: list[bytes] = []
            first = 0
            while len(received) < 100:
                event = await broker.next(events.Transfers)
                received += event.payloads
                assert len(received) - first <= most
                link.settle(first, len(received) - 1)
                first = len(received)
                broker.write()
            assert received == [*map(encoded, range(100))]
            await accepted(answers)

    play(test())


@pytest.mark.parametrize(
    ("condition", "goes_on"),
    [
        ("amqp:link:detach-forced", True),
        ("amqp:link:stolen", True),
        ("amqp:internal-error", True),
        ("amqp:decode-error", False),
        ("amqp:link:message-size-exceeded", False),
    ],
)
def test_a_detached_link_is_resumed_unless_a_message_was_refused(condition: str, goes_on: bool) -> None:
    """A message that the broker refuses with its link would end each resumed link."""

    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            link, _ = await broker.attach()
            answer = sender.send_nowait(0)
            tags, _ = await sent(broker, 1)
            link.detach(condition)
            broker.write()
            link, theirs = await broker.attach(unsettled={})
            if goes_on:
                assert theirs == {tags[0]: None}
                assert (await sent(broker, 1))[0] == tags
                assert not answer.done()
            else:
                assert theirs == {}
                assert (await answer).kind is OutcomeKind.UNKNOWN
            assert len(broker.connections) == 1

    play(test())


def test_a_message_that_is_too_large_is_rejected_and_ends_no_link() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            await broker.attach(max_message_size=100)
            await sender.opened()
            rejected = await sender.send_nowait(b"x" * 200)
            assert (rejected.kind, rejected.condition) == (
                OutcomeKind.REJECTED,
                "amqp:link:message-size-exceeded",
            )
            small = sender.send_nowait(b"x" * 50)
            await sent(broker, 1)
            broker.lose()
            await broker.attach(max_message_size=10, unsettled={})
            assert (await small).kind is OutcomeKind.REJECTED

    play(test())


def test_a_state_of_a_delivery_that_is_no_outcome_settles_nothing() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            link, _ = await broker.attach()
            answer = sender.send_nowait(0)
            await sent(broker, 1)
            link.settle(0, 0, state=Received(section_number=0, section_offset=3), settled=False)
            broker.write()
            await settled(link, broker, 0, 0)
            assert (await answer).accepted

    play(test())


def test_a_sender_that_is_closed_ends_its_link_for_good() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            link, _ = await broker.attach()
            answer = sender.send_nowait(0)
            await sent(broker, 1)
            closing = asyncio.create_task(sender.close())
            await settled(link, broker, 0, 0)
            assert (await answer).accepted
            await closing
            assert (await broker.next(events.Detached)).closed

    play(test())


def test_a_sender_with_resume_is_not_for_transactions() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            sender = connection.sender("q", resume=60)
            await broker.attach()
            with pytest.raises(ClientError, match="without `resume` in a transaction"):
                await sender.send_with(b"", None)  # type: ignore[arg-type]

    play(test())


def test_what_can_not_be_resumed_is_refused() -> None:
    async def test() -> None:
        async with ScriptedBroker() as broker, connect(broker.url, reconnect=SOON) as connection:
            for found in (0, -1, 0.5):
                with pytest.raises(ValueError, match="whole seconds"):
                    connection.sender("q", resume=found)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="resume with presettled"):
                connection.sender("q", resume=60, presettled=True)
            with pytest.raises(ValueError, match="resume with no address"):
                connection.sender(resume=60)
            for options in ({"browse": True}, {"dynamic": True}, {"presettled": True}):
                with pytest.raises(ValueError, match="a link that can be resumed"):
                    connection.receiver("q", resume=60, **options)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="resume with subscription"):
                connection.receiver("q", resume=60, subscription="s", shared=True)
            assert not broker.has(events.Attached)

    play(test())
