"""Properties: the schedule of retries, and sagas against a model."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.bus import Bus, Context, MemoryStore, Outcome, Retry, Saga, SagaContext, command, message
from lightrail.bus.testing import TestBus
from tests.bus.conftest import play
from tests.bus.shop import OrderPlaced


def expected_calls(retry: Retry, failures: int) -> list[tuple[float, int, int]]:
    """When a handler is called that fails so often: seconds, failed deliveries before, attempt."""
    calls: list[tuple[float, int, int]] = []
    now = 0.0
    for delivery in range(len(retry.delayed) + 1):
        for attempt in range(1, retry.immediate + 2):
            calls.append((now, delivery, attempt))
            if len(calls) > failures:
                return calls
        if delivery < len(retry.delayed):
            now += retry.delayed[delivery]
    return calls


@settings(max_examples=80, deadline=None)
@given(
    immediate=st.integers(0, 3),
    delayed=st.lists(st.integers(1, 1_000).map(float), max_size=4),
    failures=st.integers(0, 20),
)
def test_a_handler_is_called_at_the_times_of_its_schedule(
    immediate: int, delayed: list[float], failures: int
) -> None:
    retry = Retry(immediate=immediate, delayed=delayed)
    calls: list[tuple[float, int, int]] = []

    async def test() -> None:
        bus = Bus("amqp://nobody", name="service")

        @bus.handler(retry=retry)
        async def handle(order: OrderPlaced, context: Context) -> None:
            calls.append((test.clock.time() - began, context.delivery_count, context.attempt))
            if len(calls) <= failures:
                raise RuntimeError("not yet")

        async with TestBus(bus) as test:
            began = test.clock.time()
            await test.publish(OrderPlaced(1))
            for pause in delayed:
                await test.advance(pause)
            await test.advance(10_000)
            expected = expected_calls(retry, failures)
            assert calls == expected
            assert test.handled[-1].outcome is (
                Outcome.HANDLED if len(expected) > failures else Outcome.FAILED
            )
            assert len(test.dead_letters(OrderPlaced)) == (len(expected) <= failures)

    play(test())


@message("counter.started")
@dataclass
class Started:
    name: str


@message("counter.added")
@dataclass
class Added:
    name: str
    number: int


@command("counter.end")
@dataclass
class End:
    name: str


@message("counter.ended")
@dataclass
class Ended:
    name: str
    numbers: list[int]


@dataclass
class Count:
    numbers: list[int] = field(default_factory=list)


NAMES = st.sampled_from("ab")
MESSAGES = st.lists(
    st.tuples(
        st.builds(Started, NAMES) | st.builds(Added, NAMES, st.integers(0, 9)) | st.builds(End, NAMES),
        st.integers(0, 5),
    ),
    max_size=20,
)


@settings(max_examples=80, deadline=None)
@given(MESSAGES)
def test_sagas_are_those_of_a_model_whatever_comes_in_which_order_and_how_often(
    messages: list[tuple[Any, int]],
) -> None:
    """Each message has one of six ids: the same id with another message is another one, by its handler."""

    async def test() -> None:
        store = MemoryStore()
        bus = Bus("amqp://nobody", name="service", store=store)
        saga = Saga("counter", Count, store)

        @saga.starts(key="name")
        async def started(event: Started, state: Count, context: SagaContext) -> None: ...

        @saga.handles(key="name")
        async def added(event: Added, state: Count, context: SagaContext) -> None:
            state.numbers.append(event.number)

        @saga.handles(key="name")
        async def end(command: End, state: Count, context: SagaContext) -> None:
            await context.publish(Ended(command.name, state.numbers))
            context.complete()

        bus.include(saga)
        model: dict[str, list[int]] = {}
        ended: list[Ended] = []
        seen: set[tuple[type, int]] = set()
        async with TestBus(bus) as test:
            for each, id in messages:
                send = test.send if isinstance(each, End) else test.publish
                await send(each, id=f"m-{id}")
                await test.idle()
                known = each.name in model
                if (type(each), id) in seen or (not known and not isinstance(each, Started)):
                    continue
                seen.add((type(each), id))
                match each:
                    case Started():
                        model.setdefault(each.name, [])
                    case Added():
                        model[each.name].append(each.number)
                    case End():
                        ended.append(Ended(each.name, model.pop(each.name)))
            found = {key: state for (_, key), state in store.sagas.items()}
            assert found.keys() == model.keys()
            for name, numbers in model.items():
                assert f'"numbers":{str(numbers).replace(" ", "")}' in found[name].state
            assert [each.value for each in test.sendings if isinstance(each.value, Ended)] == ended

    play(test())
