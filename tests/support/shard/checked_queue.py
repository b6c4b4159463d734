"""A queue whose invariants are checked after every call, and the policies by which it looks into messages."""

from collections.abc import Callable, Iterable
from typing import Any

from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.values.commands import (
    Attach,
    Command,
    ConsumerOptions,
    Credit,
    Enqueue,
    Outcome,
    OutcomeKind,
)
from lightrail.shard.queue.values.effects import Deliver, Effect, Reason, Removed
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import batch_of
from tests.support.shard import invariants

NOT_HERE = Outcome(OutcomeKind.MODIFIED, undeliverable_here=True)
LAST_VALUE = Policy(order="last_value", order_key="key")
SORTED = Policy(order="sorted", order_key="key")
GROUPS = Policy(groups=True)
DELAY = Policy(delay=True)
BOUNDED = Policy(delay=True, max_length=2, overflow="discard_existing")


def look(path: str) -> Callable[[bytes], Any]:
    """Messages of these tests look like `key=7 group=a delay=50 anything`."""
    name = {
        "key": b"key",
        "properties.group-id": b"group",
        "message-annotations.x-opt-delivery-delay": b"delay",
        "message-annotations.x-opt-delivery-time": b"time",
        "message-annotations.x-opt-scheduled-enqueue-time": b"scheduled",
    }[path]

    def find(message: bytes) -> Any:
        for word in message.split():
            left, _, right = word.partition(b"=")
            if left == name:
                return int(right) if right.isdigit() else right.decode()
        return None

    return find


def annotated(message: bytes, annotations: bytes) -> bytes:
    return message + annotations


class Checked:
    """A machine with the invariants checked after every call."""

    def __init__(self, machine: Machine, now: int) -> None:
        self.machine = machine
        self.now = now

    def do(self, *commands: Command) -> list[Effect]:
        effects: list[Effect] = []
        for command in commands:
            effects += self.machine.apply(command, self.now)
            invariants.check(self.machine)
        return effects

    def dispatch(self) -> list[Effect]:
        effects = self.machine.dispatch(self.now)
        invariants.check(self.machine)
        return effects

    def consumer(self, identity: int, credit: int = 100, **options: Any) -> None:
        assert not self.do(Attach(identity, ConsumerOptions(**options)), Credit(identity, credit))


class PlainBench(Checked):
    """One that takes messages as they are."""

    def __init__(self, name: str = "orders", policy: Policy | None = None, **options: Any) -> None:
        super().__init__(Machine(name, policy, **options), now=0)

    def put(self, *messages: bytes, **attributes: Any) -> list[Effect]:
        return self.do(Enqueue(batch_of(messages, **attributes)))


class Bench(Checked):
    """One that looks into its messages, which are texts."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(Machine("orders", policy, look=look, annotate=annotated), now=1_000)

    def put(self, *messages: str, **attributes: Any) -> None:
        attributes.setdefault("enqueued_at_ms", self.now)
        self.do(Enqueue(batch_of([message.encode() for message in messages], **attributes)))

    def get(self, consumer: int | None = None) -> list[str]:
        return delivered(self.dispatch(), consumer)


def delivered(effects: Iterable[Effect], consumer: int | None = None) -> list[str]:
    return [message.decode() for message in payloads(effects, consumer)]


def payloads(effects: Iterable[Effect], consumer: int | None = None) -> list[bytes]:
    """The same of messages that are no texts."""
    return [
        message
        for effect in effects
        if isinstance(effect, Deliver) and consumer in (None, effect.consumer)
        for message in effect.run.messages()
    ]


def removed(effects: Iterable[Effect], reason: Reason) -> list[int]:
    return [
        sequence
        for effect in effects
        if isinstance(effect, Removed) and effect.reason is reason
        for sequence in range(effect.first_sequence, effect.last_sequence)
    ]


def numbered(count: int) -> list[bytes]:
    return [f"m{index}".encode() for index in range(count)]
