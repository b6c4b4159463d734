"""Special queues read real AMQP messages: keys, groups and delays by the paths that policies name."""

import pytest

from lightrail.amqp.encoder import encode
from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import Described, Symbol, Timestamp, UByte, ULong
from lightrail.filters.errors import FilterError
from lightrail.shard.effects.performer import JOURNAL_OUTCOME
from lightrail.shard.queue.machine import Machine
from lightrail.shard.queue.order.keyed import DELAY_PATH, TIME_PATH
from lightrail.shard.queue.order.message_keys import GROUP_PATH
from lightrail.shard.queue.values.commands import Attach, Credit, Enqueue
from lightrail.shard.queue.values.effects import Deliver, Effect, Reason
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import batch_of
from lightrail.shard.queues.dead_letters import field_reader


def message(body: str, key: object = None, group: str | None = None) -> bytes:
    properties = [None] * 10 + [group]
    sections = [
        encode(Described(ULong(0x73), properties)),
        encode(Described(ULong(0x74), {"price": key} if key is not None else {})),
        encode(Described(ULong(0x77), body)),
    ]
    return b"".join(sections)


def bodies(effects: list[Effect]) -> list[str]:
    return [
        each[-1:].decode()
        for effect in effects
        if isinstance(effect, Deliver)
        for each in effect.run.messages()
    ]


def test_annotations_delay_a_message() -> None:
    machine = Machine("orders", Policy(delay=True), look=field_reader)
    at = with_annotations(message("a"), {Symbol("x-opt-delivery-time"): Timestamp(1_500)})
    after = with_annotations(message("b"), {Symbol("x-opt-delivery-delay"): UByte(200)})
    machine.apply(Enqueue(batch_of([at, after, message("c")], enqueued_at_ms=1_000)), 1_000)
    assert machine.view.gauges.delayed == 2
    assert machine.next_deadline_ms == 1_200
    machine.apply(Attach(1), 1_500)
    machine.apply(Credit(1, 9), 1_500)
    assert bodies(machine.dispatch(1_500)) == ["a", "b", "c"]


def test_an_application_property_sorts() -> None:
    policy = Policy(order="sorted", order_key="application-properties.price")
    machine = Machine("orders", policy, look=field_reader)
    machine.apply(Enqueue(batch_of([message("c", 3), message("z"), message("a", 1.5), message("b", 2)])), 0)
    machine.apply(Attach(1), 0)
    machine.apply(Credit(1, 9), 0)
    assert bodies(machine.dispatch(0)) == ["a", "b", "c", "z"]


def test_the_group_id_keeps_a_group_together() -> None:
    machine = Machine("orders", Policy(groups=True), look=field_reader)
    machine.apply(Enqueue(batch_of([message(body, group="g") for body in "abc"])), 0)
    for consumer in (1, 2):
        machine.apply(Attach(consumer), 0)
        machine.apply(Credit(consumer, 9), 0)
    effects = machine.dispatch(0)
    assert bodies(effects) == ["a", "b", "c"]
    assert len({effect.consumer for effect in effects if isinstance(effect, Deliver)}) == 1


def test_what_is_no_message_has_no_fields() -> None:
    for path in (GROUP_PATH, DELAY_PATH, TIME_PATH, "subject"):
        assert field_reader(path)(b"garbage") is None


def test_a_path_without_a_field_is_refused() -> None:
    with pytest.raises(FilterError):
        field_reader("weather")


def test_every_reason_to_leave_is_one_for_the_journal() -> None:
    assert set(Reason) - set(JOURNAL_OUTCOME) == {Reason.LOST}
