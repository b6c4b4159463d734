"""Durable links (messaging 3.5.5) whose queue moves, and whose new shard is killed: each message once.

Real processes and files: the terminus moves with its queue, and has to be in the store of the new shard as it
was in that of the former one.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.amqp.performatives import Accepted, Attach, Detach, Disposition, Source, Target, Transfer
from lightrail.model import conditions
from tests.conformance import test_transport_2_6_13_resume_from_broker as receiving
from tests.conformance import test_transport_2_6_13_resume_to_broker as sending
from tests.conformance.test_transport_2_6_13_resume_from_broker import (
    DURABLE_HEADER,
    SECOND,
    VALUE,
    Application,
    stored,
)
from tests.conformance.test_transport_2_6_13_resume_to_broker import durable_value
from tests.support.amqp.frame_peer import Peer, value
from tests.support.broker import Broker
from tests.support.moves import move

COUNT = 120
TAGS = [b"%d" % number for number in range(COUNT)]
with_each_store = pytest.mark.parametrize("broker", ["journal", "sqlite"], indirect=True)


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    store = getattr(request, "param", "journal")
    with Broker(tmp_path / "data", "--shards", "2", "--store", store) as started:
        yield started


def move_and_kill(broker: Broker, queue: str) -> None:
    """Moves a queue, and kills its new shard, which the supervisor starts again."""
    (shard,) = move(broker.data, queue).values()
    kill(broker, shard)


def kill(broker: Broker, shard: int) -> None:
    os.kill(broker.pid("shard", shard), signal.SIGKILL)


# --- receiving -------------------------------------------------------------------------------------------


def receiver(broker: Broker, queue: str, **fields: Any) -> tuple[Peer, Attach]:
    """A peer whose durable link is attached."""
    peer = receiving.connected(broker)
    source = Source(address=queue, timeout=60, durable=2)
    answer = receiving.attach(peer, queue, source=source, rcv_settle_mode=SECOND, **fields)
    assert isinstance(answer.source, Source)
    assert answer.source.durable == 2
    return peer, answer


def begin(broker: Broker, queue: str) -> tuple[Peer, dict[bytes, bytes]]:
    """A client that has received two thirds of the messages: its peer, and messages by tags."""
    with receiving.connected(broker, container_id="sender") as peer:
        peer.put(queue, *(DURABLE_HEADER + value(f"{number}") for number in range(COUNT)))
    peer, _ = receiver(broker, queue)
    count = COUNT * 2 // 3
    receiving.flow(peer, count)
    found = receiving.receive(peer, count)
    tags = receiving.tags_of(found)
    return peer, {tag: body(message) for tag, (_, message) in zip(tags, found, strict=True)}


def body(message: bytes) -> bytes:
    """Without the header, which counts deliveries that a killed shard had begun."""
    return message[message.index(VALUE) :]


def finish(broker: Broker, queue: str, had: dict[bytes, bytes]) -> None:
    """Resumes the link: the map is as before, and each message arrives once, with its tag if it had one."""
    tags = [*had]
    outcomes = dict.fromkeys(tags[::2], Accepted())
    peer, answer = receiver(broker, queue, unsettled=dict.fromkeys(tags) | outcomes)
    with peer:
        assert answer.unsettled == dict.fromkeys(tags)
        receiving.flow(peer, 2 * COUNT)
        found = receiving.receive(peer, COUNT)
        assert len({*receiving.tags_of(found)}) == COUNT
        new = []
        for transfer, message in found:
            tag = transfer.delivery_tag
            assert tag is not None
            assert transfer.resume == (tag in had)
            assert bool(transfer.settled) == (tag in outcomes)
            if tag not in had:
                new.append(body(message))
            elif tag not in outcomes:
                assert body(message) == had[tag]
        assert sorted([*had.values(), *new]) == sorted(value(f"{number}") for number in range(COUNT))
        last = max(transfer.delivery_id or 0 for transfer, _ in found)
        peer.write(Disposition(role=True, first=0, last=last, settled=True, state=Accepted()))
        peer.write(Detach(handle=0, closed=True))
        while type(peer.read().body) is not Detach:
            pass
    assert stored(broker, queue) == []


@with_each_store
def test_a_suspended_receiver_moves_there_and_back_over_kills_of_both(broker: Broker, queue: str) -> None:
    former, had = begin(broker, queue)
    former.socket.close()
    move_and_kill(broker, queue)
    move_and_kill(broker, queue)
    finish(broker, queue, had)


def test_an_attached_receiver_moves_and_its_new_shard_is_killed(broker: Broker, queue: str) -> None:
    """The client does not see the move. The kill detaches its link, unless the link was not there yet."""
    former, had = begin(broker, queue)
    move_and_kill(broker, queue)
    with former:
        receiving.flow(former, 10, len(had), next_incoming_id=len(had))
        for _ in range(10):
            found = former.read()
            if type(found.body) is Detach:
                assert found.body.error is not None
                assert found.body.error.condition == conditions.DETACH_FORCED
                break
            assert type(found.body) is Transfer
            assert found.body.delivery_tag not in had
            had[found.body.delivery_tag or b""] = body(found.payload)
    finish(broker, queue, had)


def test_a_receiver_goes_on_at_its_new_shard_before_it_is_killed(broker: Broker, queue: str) -> None:
    """Deliveries of both shards are in the map."""
    former, had = begin(broker, queue)
    (shard,) = move(broker.data, queue).values()
    with former:
        receiving.flow(former, 10, len(had), next_incoming_id=len(had))
        found = receiving.receive(former, 10)
        assert not {*had} & {*receiving.tags_of(found)}
        had |= {transfer.delivery_tag or b"": body(message) for transfer, message in found}
        kill(broker, shard)
        former.error_of(Detach, conditions.DETACH_FORCED)
    finish(broker, queue, had)


def test_a_suspended_receiver_survives_the_kill_of_the_destination_while_it_copies(
    broker: Broker, queue: str
) -> None:
    former, had = begin(broker, queue)
    former.socket.close()
    moving = threading.Thread(target=move, args=(broker.data, queue))
    moving.start()
    for shard in range(2):
        kill(broker, shard)
    moving.join()
    finish(broker, queue, had)


@with_each_store
def test_an_application_handles_each_message_once_over_moves_and_kills(broker: Broker, queue: str) -> None:
    """Outcomes that are under way while the queue moves, and while its new shard is killed."""
    messages = [value(f"{number}") for number in range(COUNT)]
    application = Application(queue)
    with receiving.connected(broker, container_id="sender") as peer:
        peer.put(queue, *(DURABLE_HEADER + message for message in messages))
    for part in (1, 2, 3):
        application.tags = {}
        with application.attach(broker) as peer:
            application.go_on(peer, COUNT * part // 3)
            if part < 3:
                move_and_kill(broker, queue)
    application.finish(broker)
    assert sorted(application.handled) == sorted(messages)
    assert stored(broker, queue) == []


# --- sending ---------------------------------------------------------------------------------------------


def sender(broker: Broker, queue: str, **fields: Any) -> tuple[Peer, Attach]:
    peer = sending.connected(broker)
    target = Target(address=queue, timeout=60, durable=2)
    answer = sending.attach(peer, queue, target=target, rcv_settle_mode=SECOND, **fields)
    assert isinstance(answer.target, Target)
    assert answer.target.durable == 2
    return peer, answer


def send(peer: Peer, tags: list[bytes], first: int = 0) -> None:
    for number, tag in enumerate(tags, first):
        peer.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag), durable_value(tag))


def await_outcomes(peer: Peer, last: int) -> None:
    seen = -1
    while seen < last:
        found = peer.read().body
        if type(found) is Disposition:
            assert type(found.state) is Accepted
            seen = found.first if found.last is None else found.last


def resume_all(broker: Broker, queue: str, tags: list[bytes]) -> None:
    """The map has all of them, and the queue each message once."""
    peer, answer = sender(broker, queue, unsettled=dict.fromkeys(tags))
    with peer:
        assert answer.unsettled == {tag: Accepted() for tag in tags}
        for number, tag in enumerate(tags):
            peer.write(Transfer(handle=0, delivery_id=number, delivery_tag=tag, resume=True))
        await_outcomes(peer, len(tags) - 1)
    assert sorted(sending.stored(broker, queue)) == sorted(map(durable_value, tags))


@with_each_store
def test_a_suspended_sender_moves_there_and_back_over_kills_of_both(broker: Broker, queue: str) -> None:
    former, _ = sender(broker, queue)
    with former:
        send(former, TAGS)
        await_outcomes(former, COUNT - 1)
    move_and_kill(broker, queue)
    move_and_kill(broker, queue)
    resume_all(broker, queue, TAGS)


def test_an_attached_sender_moves_and_its_new_shard_is_killed(broker: Broker, queue: str) -> None:
    """Neither the move nor the kill is seen by the client: deliveries under way are stored once."""
    former, _ = sender(broker, queue)
    with former:
        send(former, TAGS[:40])
        await_outcomes(former, 39)
        (shard,) = move(broker.data, queue).values()
        send(former, TAGS[40:80], 40)
        kill(broker, shard)
        send(former, TAGS[80:], 80)
        await_outcomes(former, COUNT - 1)
    resume_all(broker, queue, TAGS)


def test_a_suspended_sender_survives_the_kill_of_the_destination_while_it_copies(
    broker: Broker, queue: str
) -> None:
    former, _ = sender(broker, queue)
    with former:
        send(former, TAGS)
        await_outcomes(former, COUNT - 1)
    moving = threading.Thread(target=move, args=(broker.data, queue))
    moving.start()
    for shard in range(2):
        kill(broker, shard)
    moving.join()
    resume_all(broker, queue, TAGS)
