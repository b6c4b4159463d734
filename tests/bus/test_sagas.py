"""Sagas and transactions: effects once, whatever fails in between."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from lightrail.bus import (
    Bus,
    Context,
    Depends,
    MemoryStore,
    Outcome,
    RequestFailedError,
    Retry,
    Saga,
    SagaContext,
    SqliteStore,
    Store,
    StoreError,
    command,
    message,
)
from lightrail.bus import forwarder as forwarding
from lightrail.bus.forwarder import Forwarder
from lightrail.bus.messages import Sending
from lightrail.bus.outgoing import ANSWER
from lightrail.bus.postgresql import PostgresqlStore
from lightrail.bus.store import AlreadyHandledError, ConflictError, SagaChange, SagaState, Step
from lightrail.bus.testing import TestBus
from lightrail.transport import Envelope, LoopClock, SendRefusedError
from tests.bus.conftest import Buses, Run, Seen, play
from tests.bus.shop import Bill, Invoice, OrderPlaced


@message("saga.paid")
@dataclass
class Paid:
    order: int


@command("saga.payment-overdue")
@dataclass
class PaymentOverdue:
    order: int


@message("saga.cancelled")
@dataclass
class Cancelled:
    order: int


@dataclass
class OrderState:
    order: int = 0
    lines: list[str] = field(default_factory=list)
    reminders: int = 0


def refused(store: Any) -> list[tuple[str, str]]:
    """Address and reason of what was set aside."""
    query = "select address, reason from lightrail_refused"
    if isinstance(store, MemoryStore):
        return [(waiting.address, reason) for waiting, reason in store.refused.values()]
    if isinstance(store, SqliteStore):
        database = sqlite3.connect(store.path)
        rows = database.execute(query).fetchall()
        database.close()
        return rows
    with store._engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


class Hurried(LoopClock):
    """Pauses between attempts take no time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def new_saga(store: Store) -> Saga[OrderState]:
    saga = Saga("shop.order-process", OrderState, store)

    @saga.starts(key="order")
    async def placed(event: OrderPlaced, state: OrderState, context: SagaContext) -> None:
        state.order = event.order
        state.lines += event.lines
        await context.send(Bill(event.order))
        if context.is_new:
            await context.timeout(PaymentOverdue(event.order), delay=3600)

    @saga.handles(key="order")
    async def paid(event: Paid, state: OrderState, context: SagaContext) -> None:
        await context.publish(Invoice(event.order))
        context.complete()

    @saga.handles(key="order")
    def overdue(command: PaymentOverdue, state: OrderState, context: SagaContext) -> None:
        state.reminders += 1
        if state.reminders == 2:
            context.publish(Cancelled(command.order))
            context.complete()
        else:
            context.timeout(PaymentOverdue(command.order), delay=3600)

    return saga


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgresql":
        engine = request.getfixturevalue("engine")
        yield PostgresqlStore(engine)
    else:
        yield MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "shop.db")


def test_a_saga_keeps_its_state_between_messages_and_ends(store: Store) -> None:
    async def test() -> None:
        bus = Bus("amqp://nobody", name="shop", store=store)
        bus.include(new_saga(store))
        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(7, ["tea"]))
            assert await test.sent(Bill) == Bill(7)
            await test.publish(OrderPlaced(7, ["salt"]))
            await test.idle()
            found = await store.saga("shop.order-process", "7")
            assert found is not None
            assert '"lines":["tea","salt"]' in found.state
            await test.publish(Paid(7))
            assert await test.published(Invoice) == Invoice(7)
            assert await store.saga("shop.order-process", "7") is None
            # It finds none, and nothing happens.
            await test.publish(Paid(7))
            await test.idle()
            assert len([each for each in test.sendings if isinstance(each.value, Invoice)]) == 1

    play(test())


def test_a_saga_s_time_outs_come_at_their_time(store: Store) -> None:
    async def test() -> None:
        bus = Bus("amqp://nobody", name="shop", store=store)
        bus.include(new_saga(store))
        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(7))
            await test.sent(PaymentOverdue)
            await test.advance(3599)
            assert not any(each.type.name == "saga.payment-overdue" for each in test.handled)
            await test.advance(1)
            assert len([each for each in test.sendings if isinstance(each.value, PaymentOverdue)]) == 2
            await test.advance(3600)
            assert await test.published(Cancelled) == Cancelled(7)

    play(test())


def test_a_step_that_is_delivered_again_has_its_effects_once(store: Store) -> None:
    async def test() -> None:
        bus = Bus("amqp://nobody", name="shop", store=store)
        bus.include(new_saga(store))
        async with TestBus(bus) as test:
            for _ in range(3):
                await test.publish(OrderPlaced(7, ["tea"]), id="the-same")
            await test.idle()
            found = await store.saga("shop.order-process", "7")
            assert found is not None
            assert '"lines":["tea"]' in found.state
            await test.sent(Bill)
            assert len([each for each in test.sendings if isinstance(each.value, Bill)]) == 1

    play(test())


def test_steps_of_one_saga_that_meet_are_all_in_its_state(run: Run, tmp_path: Path) -> None:
    async def law(buses: Buses) -> None:
        path = tmp_path / "shop.db"
        services = []
        for _ in range(2):
            bus = buses.bus("shop", store=SqliteStore(path))
            assert bus.store is not None
            bus.include(new_saga(bus.store))
            await bus.start()
            services.append(bus)
        async with buses.bus("other") as other:
            await asyncio.gather(*(other.publish(OrderPlaced(7, [str(number)])) for number in range(30)))
            database = sqlite3.connect(path)
            while True:
                row = database.execute("select state from lightrail_sagas").fetchone()
                lines = [] if row is None else json.loads(row[0])["lines"]
                if len(lines) == 30:
                    break
                await asyncio.sleep(0.01)
            database.close()
            assert sorted(map(int, lines)) == list(range(30))
        for bus in services:
            await bus.stop()

    run(law)


def insert(database: Any, order: int) -> None:
    """By either interface of a database."""
    if isinstance(database, sqlite3.Connection):
        database.execute("insert into invoices values (?)", (order,))
    else:
        database.execute(text("insert into invoices values (:order)"), {"order": order})


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_handler_s_transaction_has_its_rows_its_messages_and_its_inbox_in_one_commit(
    tmp_path: Path, engine: Engine, kind: str
) -> None:
    async def test() -> None:
        engine_of = create_engine(f"sqlite:///{tmp_path / 'shop.db'}") if kind == "sqlite" else engine
        with engine_of.begin() as database:
            database.execute(text("create table invoices (number integer)"))
        store: Any = SqliteStore(tmp_path / "shop.db") if kind == "sqlite" else PostgresqlStore(engine)
        bus = Bus("amqp://nobody", name="billing", store=store)
        calls = 0

        @bus.handler(retry=Retry(immediate=1))
        def bill(order: OrderPlaced, context: Context, database: Any = Depends(store.transaction)) -> None:
            nonlocal calls
            calls += 1
            insert(database, order.order)
            context.publish(Invoice(order.order))
            if order.order == 1 and calls == 1:
                raise RuntimeError("behind the insert")

        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(1), id="a")
            assert await test.published(Invoice) == Invoice(1)
            assert calls == 2
            # Delivered again: neither its row nor its message.
            await test.publish(OrderPlaced(1), id="a")
            await test.publish(OrderPlaced(2), id="b")
            await test.published(Invoice, where=lambda invoice: invoice.order == 2)
            await test.idle()
            assert calls == 3
            assert {each.outcome for each in test.handled} == {Outcome.HANDLED}
            assert len([each for each in test.sendings if isinstance(each.value, Invoice)]) == 2
        with engine_of.begin() as database:
            rows = database.execute(text("select number from invoices order by number")).all()
            assert [row[0] for row in rows] == [1, 2]
            assert database.execute(text("select count(*) from lightrail_outbox")).scalar_one() == 0
        if kind == "sqlite":
            engine_of.dispose()

    play(test())


def test_a_test_waits_for_what_the_forwarder_has_not_sent_yet(tmp_path: Path) -> None:
    class SlowStore(SqliteStore):
        """A store whose forwarder waits until somebody else has looked into the outbox."""

        def __init__(self) -> None:
            super().__init__(tmp_path / "shop.db")
            self.looks = asyncio.Semaphore(0)

        async def next(self, count: int) -> list[Any]:
            found = await super().next(count)
            if count == 1:
                self.looks.release()
            elif found:
                await self.looks.acquire()
            return found

    async def test() -> None:
        store = SlowStore()
        bus = Bus("amqp://nobody", name="billing", store=store)

        @bus.handler
        def bill(order: OrderPlaced, context: Context, _: Any = Depends(store.transaction)) -> None:
            context.publish(Invoice(order.order))

        async with TestBus(bus) as test:
            await test.publish(OrderPlaced(1))
            assert await test.consumed(OrderPlaced) == OrderPlaced(1)
            assert await test.published(Invoice) == Invoice(1)

    play(test())


def test_of_several_processes_one_forwards_and_another_takes_over(engine: Engine) -> None:
    async def test() -> None:
        first, second = PostgresqlStore(engine), PostgresqlStore(engine)
        await first.open()
        await second.open()
        assert await first.forwards()
        assert await first.forwards()
        assert not await second.forwards()
        # The server ends the connection that has the lock, and answers when its process has ended.
        with engine.begin() as database:
            ended = (
                "select pg_terminate_backend(pid, 10000) from pg_locks join pg_database on oid = database "
                "where locktype = 'advisory' and datname = current_database()"
            )
            assert database.execute(text(ended)).scalars().all() == [True]
        assert await second.forwards()
        assert not await first.forwards()
        await second.close()
        assert await first.forwards()
        await first.close()
        with pytest.raises(StoreError, match="expected an engine of PostgreSQL"):
            PostgresqlStore(create_engine("sqlite://"))

    play(test())


def test_with_three_forwarders_the_order_of_each_key_holds_while_they_come_and_end(
    engine: Engine, run: Run
) -> None:
    async def law(buses: Buses) -> None:
        seen = Seen()
        reader = buses.bus("reader")

        @reader.handler(ordered=True)
        async def handle(order: OrderPlaced) -> None:
            seen.add((order.order, int(order.lines[0])))

        forwarders = [buses.bus("shop", store=PostgresqlStore(engine)) for _ in range(3)]
        async with reader:
            for bus in forwarders:
                await bus.start()
            for number in range(60):
                events = [forwarders[2].outgoing.event(OrderPlaced(key, [str(number)])) for key in range(3)]
                store = forwarders[2].store
                assert store is not None
                await store.commit(Step(None, None, events))
                if number in (20, 40):
                    # The service that ends may be the one that forwards.
                    await forwarders[number // 20 - 1].stop()
            found = await seen.count(180)
        await forwarders[2].stop()
        for key in range(3):
            assert [number for each, number in found if each == key] == list(range(60))

    run(law)


def test_what_was_committed_is_forwarded_by_the_next_process(tmp_path: Path, run: Run) -> None:
    async def law(buses: Buses) -> None:
        store = SqliteStore(tmp_path / f"{buses.kind}.db")
        await store.open()
        bus = buses.bus("shop")
        sendings = [bus.outgoing.event(OrderPlaced(number)) for number in range(20)]
        await store.commit(Step(None, None, sendings))
        await store.close()
        seen = Seen()
        again = buses.bus("shop", store=SqliteStore(tmp_path / f"{buses.kind}.db"))

        @again.handler(concurrency=1)
        async def handle(order: OrderPlaced) -> None:
            seen.add(order.order)

        async with again:
            assert await seen.count(20) == list(range(20))

    run(law)


def test_a_message_that_is_refused_for_good_is_set_aside_and_no_error_ends_the_forwarder(
    store: Store,
) -> None:
    async def test() -> None:
        await store.open()
        posted: list[str] = []
        failures = ["lost", "internal"]

        async def post(sending: Sending) -> None:
            if sending.address == "gone":
                raise SendRefusedError("there is no such queue")
            if sending.address == "full" and len(posted) < 1:
                raise SendRefusedError("the queue is full", is_passing=True)
            if failures and failures.pop() == "internal":
                raise RuntimeError("of the client")
            posted.append(sending.address)

        names = ("gone", "good", "full")
        await store.commit(Step(None, None, [Sending(name, Envelope(), None, None) for name in names]))
        forwarder = Forwarder(store, post, Hurried())
        forwarder.start()
        while await store.next(1):  # noqa: ASYNC110 - the forwarder empties it
            await asyncio.sleep(0.001)
        assert sorted(posted) == ["full", "good"]
        assert refused(store) == [("gone", "there is no such queue")]
        await store.commit(Step(None, None, [Sending("good", Envelope(), None, None)]))
        while len(posted) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await forwarder.stop()
        await store.close()

    play(test())


def test_what_is_on_its_way_when_a_forwarder_stops_is_not_sent_again(store: Store) -> None:
    async def test() -> None:
        await store.open()
        posted: list[str] = []
        sending, answered = asyncio.Event(), asyncio.Event()

        async def post(each: Sending) -> None:
            posted.append(each.address)
            sending.set()
            await answered.wait()

        await store.commit(Step(None, None, [Sending("q", Envelope(), None, None)]))
        forwarder = Forwarder(store, post, Hurried())
        forwarder.start()
        await sending.wait()
        stopping = asyncio.create_task(forwarder.stop())
        await asyncio.sleep(0)
        answered.set()
        await stopping
        assert await store.next(10) == []
        assert posted == ["q"]
        await store.close()

    play(test())


def test_a_forwarder_that_stops_waits_for_no_broker_longer_than_the_bound(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "STOP_S", 0.01)

    async def test() -> None:
        await store.open()
        sending = asyncio.Event()

        async def post(each: Sending) -> None:
            sending.set()
            await asyncio.Event().wait()

        await store.commit(Step(None, None, [Sending("q", Envelope(), None, None)]))
        forwarder = Forwarder(store, post, Hurried())
        forwarder.start()
        await sending.wait()
        await forwarder.stop()
        assert len(await store.next(10)) == 1
        await store.close()

    play(test())


def test_a_transaction_that_is_cancelled_while_it_begins_leaves_none_open(
    tmp_path: Path, engine: Engine
) -> None:
    async def test() -> None:
        for store in (SqliteStore(tmp_path / "x.db"), PostgresqlStore(engine)):
            await store.open()
            bus = Bus("amqp://nobody", name="x")

            async def entered(store: Any = store, bus: Bus = bus) -> None:
                received: Any = SimpleNamespace(envelope=Envelope(id="m"))
                context = Context(bus.outgoing, received, None, "h")
                async for _ in store.transaction(context):
                    return

            for turns in range(12):
                work = asyncio.create_task(entered())
                for _ in range(turns):
                    await asyncio.sleep(0)
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            # Nothing is open: the next one begins and ends.
            received: Any = SimpleNamespace(envelope=Envelope(id="m"))
            async with asynccontextmanager(store.transaction)(Context(bus.outgoing, received, None, "h")):
                pass
            assert await store.is_handled("h", "m")
            await store.close()
        assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]

    play(test())


def test_a_store_writes_all_of_a_step_or_nothing(store: Store) -> None:
    async def test() -> None:
        await store.open()
        sending = Sending("q", Envelope(body=b"x"), None, None)
        await store.commit(Step("h", "m", [sending], SagaChange("s", "k", 0, "{}")))
        for step, error in (
            (Step("h", "m", [sending], SagaChange("s", "other", 0, "{}")), AlreadyHandledError),
            (Step("h", "m2", [sending], SagaChange("s", "k", 0, "{}")), ConflictError),
            (Step("h", "m3", [sending], SagaChange("s", "k", 7, "{}")), ConflictError),
            (Step("h", "m4", [sending], SagaChange("s", "k", 7, None)), ConflictError),
        ):
            with pytest.raises(error):
                await store.commit(step)
        assert len(await store.next(10)) == 1
        assert not await store.is_handled("h", "m2")
        assert await store.saga("s", "other") is None
        found = await store.saga("s", "k")
        assert found is not None
        results = await asyncio.gather(
            *(
                store.commit(Step("h", f"n{number}", [], SagaChange("s", "k", found.version, "{}")))
                for number in range(5)
            ),
            return_exceptions=True,
        )
        assert [type(result) for result in results].count(ConflictError) == 4
        await store.commit(Step("h", "z", [], SagaChange("s", "k", found.version + 1, None)))
        assert await store.saga("s", "k") is None
        await store.close()

    play(test())


@pytest.mark.parametrize("fails", [False, True], ids=["answer", "error"])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_answer_of_a_responder_with_a_transaction_is_in_its_commit(
    tmp_path: Path, engine: Engine, kind: str, fails: bool
) -> None:
    """Else it would be lost with a process that dies behind the commit: the request was handled before."""

    async def test() -> None:
        store: Any = SqliteStore(tmp_path / "shop.db") if kind == "sqlite" else PostgresqlStore(engine)
        forwards = store.forwards

        async def later() -> bool:
            return False

        store.forwards = later
        bus = Bus("amqp://nobody", name="billing", store=store)

        @bus.responder
        def bill(request: Bill, context: Context, database: Any = Depends(store.transaction)) -> Invoice:
            if fails:
                raise ValueError("no")
            return Invoice(request.order)

        async with TestBus(bus) as test:
            asking = asyncio.create_task(test.request(Bill(7), Invoice, id="a"))
            await test._changed.wait()
            while not test.handled:
                test._changed.clear()
                await test._changed.wait()
            [waiting] = await store.next(10)
            assert waiting.envelope.correlation_id == "a"
            assert await store.is_handled(test.handled[0].context.handler, "a")  # type: ignore[union-attr]
            store.forwards = forwards
            if fails:
                with pytest.raises(RequestFailedError, match="no"):
                    await asking
            else:
                assert await asking == Invoice(7)
            await test.idle()

    play(test())


def test_an_answer_whose_requester_has_ended_does_not_stay_in_the_outbox(store: Store) -> None:
    async def test() -> None:
        await store.open()
        posted: list[str] = []

        async def post(each: Sending) -> None:
            posted.append(each.address)
            if each.address.startswith("gone"):
                raise SendRefusedError("there is no such node", is_passing=each.address == "gone-for-now")

        answer = Envelope(headers={ANSWER: True})
        sendings = [
            Sending("gone", answer, None, None),
            Sending("gone-for-now", answer, None, None),
            Sending("q", Envelope(), None, None),
        ]
        await store.commit(Step(None, None, sendings))
        forwarder = Forwarder(store, post, Hurried())
        assert not await forwarder._forward(await store.next(10))
        assert [waiting.address for waiting in await store.next(10)] == ["gone-for-now"]
        assert refused(store) == []
        assert sorted(posted) == ["gone", "gone-for-now", "q"]
        await store.close()

    play(test())


def test_a_step_on_a_saga_that_has_ended_does_not_change_its_successor(store: Store) -> None:
    """A process reads a saga; until it writes, the saga ends and another one begins under its key."""

    async def test() -> None:
        await store.open()
        first, second, overwritten = '{"saga": 1}', '{"saga": 2}', '{"saga": 1, "paid": 1}'
        await store.commit(Step(None, None, [], SagaChange("s", "k", 0, first)))
        read = await store.saga("s", "k")
        assert read is not None
        await store.commit(Step(None, None, [], SagaChange("s", "k", read.version, None)))
        await store.commit(Step(None, None, [], SagaChange("s", "k", 0, second)))
        for state in (overwritten, None):
            with pytest.raises(ConflictError):
                await store.commit(Step(None, None, [], SagaChange("s", "k", read.version, state)))
        found = await store.saga("s", "k")
        assert found is not None
        assert found.state == second
        await store.close()

    play(test())


def test_a_table_of_sagas_with_narrow_versions_is_widened(engine: Engine) -> None:
    async def test() -> None:
        store = PostgresqlStore(engine)
        await store.open()
        await store.close()
        with engine.begin() as database:
            database.execute(text("alter table lightrail_sagas alter column version type integer"))
            row = "insert into lightrail_sagas values ('s', 'old', 3, '{}', 0)"
            database.execute(text(row))
        await store.open()
        await store.commit(Step(None, None, [], SagaChange("s", "new", 0, "{}")))
        await store.commit(Step(None, None, [], SagaChange("s", "old", 3, "[]")))
        assert await store.saga("s", "old") == SagaState("[]", 4)
        await store.close()

    play(test())


@pytest.mark.parametrize("step", [False, True], ids=["transactions", "steps"])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_old_entries_of_the_inbox_are_deleted_with_the_commits(
    tmp_path: Path, engine: Engine, kind: str, step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services have handlers with transactions, sagas, or both."""
    module = "lightrail.bus.sqlite" if kind == "sqlite" else "lightrail.bus.postgresql"
    monkeypatch.setattr(f"{module}.PRUNE_EVERY", 3)
    monkeypatch.setattr(f"{module}.PRUNED_MAX", 2, raising=False)

    async def test() -> None:
        engine_of = create_engine(f"sqlite:///{tmp_path / 'shop.db'}") if kind == "sqlite" else engine
        store: Any = SqliteStore(tmp_path / "shop.db") if kind == "sqlite" else PostgresqlStore(engine)
        await store.open()
        rows = [{"message": f"old{number}"} for number in range(5)]
        with engine_of.begin() as database:
            database.execute(text("insert into lightrail_inbox values ('h', :message, 0)"), rows)
        bus = Bus("amqp://nobody", name="x")
        left: list[int] = []
        for number in range(7):
            if step:
                await store.commit(Step("h", f"m{number}", []))
            else:
                received: Any = SimpleNamespace(envelope=Envelope(id=f"m{number}"))
                context = Context(bus.outgoing, received, None, "h")
                async with asynccontextmanager(store.transaction)(context):
                    pass
            with engine_of.begin() as database:
                query = text("select count(*) from lightrail_inbox where message like 'old%'")
                left.append(database.execute(query).scalar_one())
        assert left == [3, 3, 3, 1, 1, 1, 0]
        assert await store.is_handled("h", "m0")
        await store.close()
        if kind == "sqlite":
            engine_of.dispose()

    play(test())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "x.db").write_text("not a database, but long enough to be looked at" * 30)
        with pytest.raises(StoreError, match="expected a database of SQLite"):
            await SqliteStore(tmp_path / "x.db").open()
        with pytest.raises(StoreError, match="expected a store that is open"):
            await SqliteStore(tmp_path / "y.db").saga("s", "k")

    play(test())
