"""Log-ins: who has to wait and who has not, what is hashed, what is logged; time is the test's."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lightrail.amqp import sasl
from lightrail.cluster import logins
from lightrail.cluster.logins import Logins, TooManyLoginsError
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.cluster.users import UserRecord, stronger
from lightrail.model.endpoint import LOCAL, source_of
from lightrail.namespace import tokens

ROUNDS = 4_096


class Scene:
    """Log-ins with a clock that a sleep moves on."""

    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()
        self.now = 1_000.0
        self.slept: list[float] = []
        self.rings: list[Callable[[], None]] = []
        self.logins = Logins(
            self.coordinator,
            clock=lambda: self.now,
            sleep=self.sleep,
            later=lambda _, call: self.rings.append(call),
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def verify(self, source: str, user: str, password: str) -> bool:
        return await self.logins.verify(source, user, password) is not None


def run(check: Callable[[Scene], Awaitable[None]], *users: str, rounds: int = ROUNDS) -> None:
    async def checked() -> None:
        scene = Scene()
        for user in users:
            await scene.coordinator.add_user(UserRecord.make(user, "good", rounds))
        await scene.logins.refresh()
        await check(scene)

    asyncio.run(checked())


def test_a_good_password_is_hashed_once_and_again_when_it_changes() -> None:
    async def check(scene: Scene) -> None:
        for _ in range(3):
            assert await scene.verify("1.2.3.4", "ann", "good")
        assert scene.logins.hashes == 1
        await scene.coordinator.replace_user(UserRecord.make("ann", "other", ROUNDS))
        assert not await scene.verify("1.2.3.4", "ann", "good")
        assert await scene.verify("1.2.3.4", "ann", "other")

    run(check, "ann")


def test_a_source_with_many_wrong_log_ins_is_checked_slowly() -> None:
    async def check(scene: Scene) -> None:
        for number in range(logins.LOGIN_SOURCE_FREE):
            assert not await scene.verify("6.6.6.6", f"user{number}", "guess")
        assert not scene.slept
        for _ in range(5):
            assert not await scene.verify("6.6.6.6", "ann", "guess")
        assert scene.slept == [pytest.approx(logins.LOGIN_SOURCE_MS / 1000)] * 5

    run(check, "ann")


def test_a_stranger_can_not_lock_a_user_out() -> None:
    async def check(scene: Scene) -> None:
        assert await scene.verify("10.0.0.1", "ann", "good")
        for number in range(3 * logins.LOGIN_USER_FREE):
            assert not await scene.verify(f"6.6.6.{number}", "ann", "guess")
        scene.slept.clear()
        assert await scene.verify("10.0.0.1", "ann", "good")
        scene.logins._good.clear()
        assert await scene.verify("10.0.0.1", "ann", "good")
        assert not scene.slept
        assert await scene.verify("10.0.0.2", "ann", "good")
        assert sum(scene.slept) <= logins.LOGIN_USER_MS / 1000

    run(check, "ann")


def test_what_was_wrong_is_forgotten() -> None:
    async def check(scene: Scene) -> None:
        for _ in range(200):
            scene.logins.wrong("6.6.6.6", "ann")
        scene.now += logins.LOGIN_WRONG_COUNTED * logins.LOGIN_USER_PACE_MS / 1000
        await scene.logins.admit("6.6.6.6", "ann")
        assert not scene.slept
        assert not scene.logins._sources
        assert not scene.logins._users

    run(check)


def test_log_ins_that_wait_are_bounded_and_the_rest_is_refused() -> None:
    async def check(scene: Scene) -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def wait(_: float) -> None:
            await asyncio.shield(never)

        scene.logins._sleep = wait
        for _ in range(logins.LOGIN_SOURCE_FREE):
            scene.logins.wrong("6.6.6.6", "x")
        waiting = [
            asyncio.ensure_future(scene.logins.admit("6.6.6.6", "x")) for _ in range(logins.LOGINS_WAITING)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyLoginsError, match=r"6\.6\.6\.6"):
            await scene.logins.admit("6.6.6.6", "x")
        await scene.logins.admit("10.0.0.1", "ann")
        never.set_result(None)
        await asyncio.gather(*waiting)
        assert not scene.logins._waiting

    run(check)


def test_sources_take_turns_at_the_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(scene: Scene) -> None:
        order: list[str] = []
        held: list[asyncio.Future[bool]] = []

        async def hashed(_: object, __: object, password: str) -> bool:
            order.append(password)
            held.append(asyncio.get_running_loop().create_future())
            return await held[-1]

        monkeypatch.setattr(asyncio, "to_thread", hashed)
        flood = [
            asyncio.ensure_future(scene.logins.verify("6.6.6.6", "ann", f"flood {n}")) for n in range(50)
        ]
        await asyncio.sleep(0)
        good = asyncio.ensure_future(scene.logins.verify("10.0.0.1", "ann", "good"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(order) == logins.LOGIN_HASHES_AT_ONCE
        while not good.done():
            held.pop(0).set_result(order[0] == "good")
            order.pop(0)
            for _ in range(8):
                await asyncio.sleep(0)
        assert sum(each.done() for each in flood) <= 2 * logins.LOGIN_HASHES_AT_ONCE
        assert good.result() is not None
        for each in flood:
            each.cancel()
        await asyncio.gather(*flood, return_exceptions=True)

    run(check, "ann")


def test_an_unknown_user_looks_like_one_of_those_there_are() -> None:
    async def check(scene: Scene) -> None:
        await scene.coordinator.add_user(UserRecord.make("bob", "good", 5_000))
        await scene.logins.refresh()
        found = {scene.logins.unknown(f"nobody{n}", "SCRAM-SHA-256").iterations for n in range(100)}
        assert found == {ROUNDS, 5_000}
        once = scene.logins.unknown("nobody", "SCRAM-SHA-512")
        assert once == scene.logins.unknown("nobody", "SCRAM-SHA-512")

    run(check, "ann")


def test_a_password_with_the_former_rounds_is_hashed_anew_and_its_tokens_stay_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sasl, "ROUNDS", {"sha256": 20_000, "sha512": 20_001})
    monkeypatch.setattr("lightrail.cluster.users.ROUNDS", sasl.ROUNDS)

    async def check(scene: Scene) -> None:
        before = await scene.coordinator.user("ann")
        assert before is not None
        assert await scene.verify("10.0.0.1", "ann", "good")
        await asyncio.gather(*scene.logins._tasks)
        after = await scene.coordinator.user("ann")
        assert after is not None
        assert (after.sha256.iterations, after.sha512.iterations) == (20_000, 20_001)
        assert tokens.key_digest(after) == tokens.key_digest(before)
        assert await scene.verify("10.0.0.1", "ann", "good")
        assert scene.logins.hashes == 1
        assert UserRecord.decode("ann", after.encode()) == after

    run(check, "ann", rounds=15_000)


def test_rounds_that_somebody_asked_for_stay() -> None:
    record = UserRecord.make("ann", "good", 4_096)
    assert not record.is_weak
    assert replace(record, sha256=sasl.derive("good", b"s" * 16, 15_000, "sha256")).is_weak
    assert stronger(record, "good").tokens_of == record.sha256.stored_key


def test_the_log_has_one_line_at_once_and_one_at_the_end_of_the_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check(scene: Scene) -> None:
        with caplog.at_level(logging.WARNING):
            for _ in range(7):
                scene.logins.wrong("6.6.6.6", "ann")
            scene.logins.wrong("7.7.7.7", "bob")
            for number in range(logins.LOGIN_LINES + 20):
                scene.logins.wrong("8.8.8.8", f"user{number}")
            assert len(caplog.messages) == logins.LOGIN_LINES
            [ring] = scene.rings
            caplog.clear()
            ring()
        assert caplog.messages == [
            "6 more wrong log-ins from 6.6.6.6 for user 'ann' in 60 s",
            "22 more wrong log-ins from other sources or for other users in 60 s",
        ]

    run(check)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, LOCAL),
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
    ],
)
def test_a_source_is_an_address_or_the_network_of_a_customer(address: str | None, expected: str) -> None:
    assert source_of(address) == expected


def test_at_most_so_many_sources_and_users_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "LOGIN_SOURCES_MAX", 3)

    async def check(scene: Scene) -> None:
        for number in range(10):
            scene.logins.wrong(f"6.6.6.{number}", f"user{number}")
            scene.logins.good(f"10.0.0.{number}", "ann")
        assert list(scene.logins._sources) == ["6.6.6.7", "6.6.6.8", "6.6.6.9"]
        assert list(scene.logins._users) == ["user7", "user8", "user9"]
        assert len(scene.logins._proven) == 3

    run(check)


def test_of_the_users_so_many_are_read_to_answer_for_unknown_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "LOGIN_USERS_SAMPLED", 2)

    async def check(scene: Scene) -> None:
        read: list[str] = []
        real = scene.coordinator.user

        async def user(name: str) -> UserRecord | None:
            read.append(name)
            return await real(name)

        scene.coordinator.user = user  # type: ignore[method-assign]
        scene.logins._sampled = []
        assert await scene.logins.refresh()
        assert read == ["ann", "ben"]

    run(check, "ann", "ben", "cat", "dan")


def test_a_slow_reading_from_before_the_first_user_takes_none_away() -> None:
    async def check(scene: Scene) -> None:
        gate = asyncio.Event()
        users = scene.coordinator.users

        async def slow() -> list[str]:
            found = await users()
            await gate.wait()
            return found

        scene.coordinator.users = slow  # type: ignore[method-assign]
        before = asyncio.ensure_future(scene.logins.refresh())
        await asyncio.sleep(0)
        scene.coordinator.users = users  # type: ignore[method-assign]
        await scene.coordinator.add_user(UserRecord.make("ann", "good", ROUNDS))
        assert await scene.logins.refresh()
        gate.set()
        assert await before

    run(check)
