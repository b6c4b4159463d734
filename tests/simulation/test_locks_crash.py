"""Locks by time in random histories of links, frontends, restarts, kills and moves, against a model.

The model has one object per message: who has it locked under which number until when, and how often it has
failed. After every step the shard has exactly that: one owner at a time, no lock that ends before its time,
nothing lost, and each end counted by the rule of whose fault it is.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lightrail.model.links import Ending
from lightrail.shard.links.receiving.restored_locks import LOCKED_AFTER_START_MS
from lightrail.wire.bodies import SettleDetail
from lightrail.wire.frames import OutcomeCode
from tests.support.shard.kept_locks import LockDisk
from tests.support.shard.moving import ask as move_piece
from tests.support.shard.moving import exporting_of, importing_of
from tests.support.shard.scene import Peer, Scene, numbered_messages
from tests.unit.shard.transactions.test_transactions import committed, settled, transact

LINK = 5
MESSAGES_MAX = 8
LINKS_MAX = 3
FAILED = SettleDetail(delivery_failed=True)


@dataclass
class Message:
    """One message that the queue has."""

    failures: int = 0
    key: str = ""
    """Of its lock; empty: it is ready."""
    number: int = 0
    until_ms: int = 0


@dataclass
class Key:
    """A key of locks, and the frontend that has its link, if there is one."""

    peer: Peer | None = None
    next: int = 0
    counting: set[int] = field(default_factory=set)
    """Without a link: the deliveries whose ends count."""


class History:
    """A queue, first at one shard, and its clients."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.shards = 0
        self.disk = self.new_shard()
        self.lock_s = 60
        self.boot = 10
        self.sent = 0
        self.there: dict[bytes, Message] = {}
        self.keys: dict[str, Key] = {}

    def new_shard(self) -> LockDisk:
        self.shards += 1
        directory = self.directory / f"shard-{self.shards}"
        directory.mkdir()
        return LockDisk(directory, messages=0, max_delivery_count=1_000)

    @property
    def scene(self) -> Scene:
        return self.disk.scene

    def peer(self) -> Peer:
        self.boot += 1
        return self.disk.peer(self.boot)

    def of(self, key: str) -> list[tuple[int, bytes]]:
        """The messages that are locked under a key, by number."""
        return sorted((message.number, body) for body, message in self.there.items() if message.key == key)

    # --- steps -----------------------------------------------------------------------------------------

    def run(self, length: int) -> None:
        self.send()
        steps = [
            self.send,
            self.attach,
            self.receive,
            self.receive,
            self.receive,
            self.settle,
            self.settle_by_token,
        ]
        steps += [self.renew, self.renew, self.close, self.lose, self.reopen, self.wait, self.wait]
        steps += [self.start_again, self.start_again, self.change, self.move, self.commit]
        for _ in range(length):
            self.chance.choice(steps)()
            self.check()

    def send(self) -> None:
        if len(self.there) > MESSAGES_MAX:
            return
        peer = self.peer()
        peer.produce(1, "q")
        bodies = numbered_messages(self.chance.randint(1, 4), self.sent)
        self.sent += len(bodies)
        peer.send(1, 1, bodies)
        self.scene.settle_down()
        self.there |= {body: Message() for body in bodies}
        self.scene.engine.lost(peer.identity)
        self.read()

    def attach(self) -> None:
        if sum(found.peer is not None for found in self.keys.values()) == LINKS_MAX:
            return
        key = f"{len(self.keys):016x}"
        self.keys[key] = Key()
        self.open(key)

    def reopen(self) -> None:
        """A frontend opens its link again, and may have lost the last deliveries on their way."""
        keys = [key for key, found in self.keys.items() if found.peer is None and self.of(key)]
        if keys:
            key = self.chance.choice(keys)
            first = self.chance.choice([self.keys[key].next, self.of(key)[-1][0]])
            for number, body in self.of(key):
                if number >= first:
                    self.back(self.there[body])
            self.keys[key].next = first
            self.open(key)

    def open(self, key: str) -> None:
        found = self.keys[key]
        peer = found.peer = self.peer()
        found.counting.clear()
        peer.consume(LINK, "q", found.next, first=found.next, lock_key=key, lock_ends="time")
        self.scene.settle_down()
        self.read()

    def receive(self) -> None:
        for key, peer in self.linked():
            peer.credit(LINK, self.keys[key].next + self.chance.randint(0, 3))
            self.scene.settle_down()
            self.read()
            peer.credit(LINK, self.keys[key].next)

    def linked(self) -> list[tuple[str, Peer]]:
        """One of the links, at random."""
        found = [(key, each.peer) for key, each in self.keys.items() if each.peer is not None]
        return [self.chance.choice(found)] if found else []

    def read(self) -> None:
        for key, found in self.keys.items():
            for each in [] if found.peer is None else found.peer.delivered.pop(LINK, []):
                message = self.there[each.message]
                assert not message.key, "it is locked for another one"
                assert each.number == found.next
                message.key, message.number = key, each.number
                message.until_ms = self.scene.now_ms + 1_000 * self.lock_s
                found.next += 1

    def back(self, message: Message, *, failed: bool = False) -> None:
        message.key = ""
        message.failures += failed

    def settle(self) -> None:
        for key, peer in self.linked():
            for number, body in self.of(key)[: self.chance.randint(1, 2)]:
                code = self.chance.choice([OutcomeCode.ACCEPTED, OutcomeCode.RELEASED, OutcomeCode.MODIFIED])
                peer.settle(LINK, number, 1, code, FAILED if code is OutcomeCode.MODIFIED else None)
                self.settled(body, code)
            self.scene.settle_down()
            self.read()

    def settled(self, body: bytes, code: OutcomeCode) -> None:
        if code is OutcomeCode.ACCEPTED:
            del self.there[body]
        else:
            self.back(self.there[body], failed=code is OutcomeCode.MODIFIED)

    def token(self) -> list[tuple[str, int, bytes]]:
        """One of the locks, at random."""
        found = [(each.key, each.number, body) for body, each in self.there.items() if each.key]
        return [self.chance.choice(found)] if found else []

    def ask(self, op: str, key: str, number: int, **fields: Any) -> list[Any]:
        peer = self.peer()
        asked = peer.ask(op, queue="q", locks=[f"{key}-{number}"], **fields)
        self.scene.settle_down()
        (answer,) = (each for each in peer.answers[asked][0].values() if isinstance(each, list))
        self.read()
        return answer

    def settle_by_token(self) -> None:
        for key, number, body in self.token():
            outcome = self.chance.choice([OutcomeCode.ACCEPTED, OutcomeCode.RELEASED, OutcomeCode.MODIFIED])
            failed = outcome is OutcomeCode.MODIFIED
            self.settled(body, outcome)
            fields = {"outcome": outcome.name.lower(), "delivery_failed": failed}
            assert self.ask("settle_locks", key, number, **fields) == [True]
            assert self.ask("settle_locks", key, number) == [False]

    def commit(self) -> None:
        """A transaction settles messages by their tokens, all or none."""
        tokens = {body: (key, number) for _ in range(2) for key, number, body in self.token()}
        is_lost = self.chance.random() < 0.3
        settles = [[*settled("q", 0, number, 1), key] for key, number in tokens.values()]
        if is_lost:
            settles.append([*settled("q", 0, 10_000, 1), "0" * 16])
        if settles:
            peer = self.peer()
            request = transact(peer, self.boot, settles=settles)
            assert committed(self.scene, peer, request) is not is_lost
            for body in [] if is_lost else tokens:
                del self.there[body]
            self.read()

    def renew(self) -> None:
        for key, number, body in self.token():
            assert self.ask("renew_locks", key, number) == [1_000 * self.lock_s]
            self.there[body].until_ms = self.scene.now_ms + 1_000 * self.lock_s
            if self.keys[key].peer is None:
                self.keys[key].counting.add(number)

    def close(self) -> None:
        for key, peer in self.linked():
            ending = self.chance.choice([Ending.BY_CLIENT, Ending.FAILED])
            self.unlink(key, ending)
            peer.close_consumer(LINK, ending)
            self.scene.settle_down()
            self.read()

    def unlink(self, key: str, ending: Ending) -> None:
        self.keys[key].peer = None
        if ending is Ending.FAILED:
            self.keys[key].counting |= {number for number, _ in self.of(key)[:1]}

    def lose(self) -> None:
        """A frontend is lost, with its link."""
        for key, peer in self.linked():
            self.unlink(key, Ending.BY_BROKER)
            self.scene.engine.lost(peer.identity)
            self.scene.settle_down()
            self.read()

    def wait(self) -> None:
        """Some seconds, one by one."""
        for _ in range(self.chance.randint(1, 25)):
            for each in self.keys.values():
                if each.peer is not None:
                    each.peer.ping()
            self.ends_by(self.scene.now_ms + 1_000)
            self.scene.tick(1_000)
            self.scene.settle_down()
            self.read()

    def ends_by(self, now_ms: int) -> None:
        for message in self.there.values():
            if message.key and message.until_ms <= now_ms:
                key = self.keys[message.key]
                self.back(message, failed=key.peer is not None or message.number in key.counting)

    def change(self) -> None:
        """Another lock time, which changes no end that was given."""
        self.lock_s = self.chance.choice([20, 60, 90])
        self.disk.give(lock_duration=self.lock_s, max_delivery_count=1_000)
        self.scene.refresh()

    def start_again(self) -> None:
        """The shard ends, in order or by a kill; for some seconds nobody serves."""
        for key in self.keys:
            self.unlink(key, Ending.BY_BROKER)
        end = self.chance.choice([self.disk.killed, self.disk.restarted])
        end(self.chance.choice([0, 3_000, 30_000]), memory_bytes=self.chance.choice([0, 1 << 30]))
        for message in self.there.values():
            message.until_ms = max(message.until_ms, self.scene.now_ms + LOCKED_AFTER_START_MS)

    def move(self) -> None:
        """The queue moves to a new shard; its links have been closed before."""
        for key, found in self.keys.items():
            if found.peer is not None:
                found.peer.close_consumer(LINK)
                self.unlink(key, Ending.BY_CLIENT)
        self.scene.settle_down()
        source, self.disk = self.disk, self.new_shard()
        self.disk.give(lock_duration=self.lock_s, max_delivery_count=1_000)
        target = self.scene
        target.now_ms = source.scene.now_ms
        exporting, importing = exporting_of(source.scene, "q", "1"), importing_of(target, "q")
        importing.begin(target.now_ms)
        for rewritten in (False, True):
            first = 0 if rewritten else importing.next
            answer = move_piece(source.scene, exporting, first, 1 << 30, 1 << 30, rewritten=rewritten)
            assert importing.take(*answer, target.now_ms) is None
        importing.finish(*exporting.state(source.scene.now_ms), target.now_ms)
        target.settle_down()
        importing.open(target.engine._queues.names.get("q"), 2, target.now_ms)
        target.settle_down()

    # --- laws ------------------------------------------------------------------------------------------

    def check(self) -> None:
        found = self.scene.everything("q")
        assert sorted(each[3] for each in found) == sorted(self.there), "none is lost, none is there twice"
        assert {each[3]: each[2] for each in found} == {
            body: each.failures for body, each in self.there.items()
        }
        numbers = {each[3]: each[1] for each in found if each[0] is not None}
        locked = {body: each.number for body, each in self.there.items() if each.key}
        assert numbers == locked, "these are locked, under these numbers, and no others"
        holders: dict[bytes, str] = {}
        for consumer in self.scene.queue_contents("q").locks.keyed():
            holders |= dict.fromkeys(
                (body for number, body in self.of(consumer.options.lock_key)), consumer.options.lock_key
            )
        assert holders == {body: each.key for body, each in self.there.items() if each.key}


@pytest.mark.parametrize("seed", range(10))
def test_each_message_has_one_owner_whatever_ends(tmp_path: Path, seed: int) -> None:
    History(tmp_path, seed).run(120)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_each_message_has_one_owner_in_long_histories(tmp_path: Path, seed: int) -> None:
    History(tmp_path, seed).run(400)
