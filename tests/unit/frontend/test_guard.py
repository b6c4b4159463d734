"""The guard: links lose a name that was deleted, and keep one that the coordinator only lost for a while."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lightrail.cluster.coordinator import Write
from lightrail.cluster.history import begin
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.guard import Guard
from lightrail.model import conditions
from lightrail.model.policy import QUEUE, Policy
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import NAMES, AuthorizationRule, Name, Right, SealedKey
from lightrail.namespace.rights import ANYBODY, Caller, RuleKey


class Connection:
    """Of somebody who may do everything, until a test takes that away."""

    caller = ANYBODY

    def caller_for(self, _: str) -> Caller:
        return self.caller


def test_a_name_that_was_put_back_is_the_same_for_its_links_and_one_that_was_made_again_is_not() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        directory = Directory(coordinator)

        async def make_again() -> None:
            await coordinator.write([Write(NAMES + "q", None)])
            await coordinator.write([Write(NAMES + "q", Name("q", QUEUE).to_value())])

        await make_again()
        directory.refresh()
        guard = Guard(directory, lambda _: None)
        connection: Any = Connection()
        lost: list[str] = []
        guard.hold(connection, Right.SEND, directory.get("q"), lambda _, why: lost.append(why))

        await make_again()
        await begin(coordinator)
        directory.refresh()
        assert lost == []
        # In the new history it is as ever.
        await make_again()
        directory.refresh()
        assert lost == ["q was deleted"]

    asyncio.run(run())


def test_what_an_ended_link_began_is_checked_anew_and_what_an_attached_one_did_by_each_change() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write(NAMES + "q", Name("q", QUEUE).to_value())])
        directory = Directory(coordinator)
        directory.refresh()
        guard = Guard(directory, lambda _: None)
        connection: Any = Connection()
        lost: list[str] = []

        def revoked(condition: str, _why: str) -> None:
            lost.append(condition)
            guard.release(attached)

        ended = guard.hold(connection, Right.SEND, directory.get("q"), revoked)
        attached = guard.hold(connection, Right.SEND, directory.get("q"), revoked)
        guard.release(ended)
        guard.check_hold(ended)
        connection.caller = Caller("nobody")
        guard.recheck(connection, ["other", "q/below"])
        assert lost == []
        guard.recheck(connection, ["other", "q"])
        assert lost == [conditions.UNAUTHORIZED_ACCESS]
        for hold in (ended, attached):
            with pytest.raises(ConditionError) as raised:
                guard.check_hold(hold)
            assert raised.value.condition == conditions.UNAUTHORIZED_ACCESS

    asyncio.run(run())


def test_links_to_dead_letters_of_transfers_lose_them_with_the_protection_of_the_source() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        for name in ("q", "q/$transfer"):
            await coordinator.write([Write(NAMES + name, Name(name, QUEUE).to_value())])
        directory = Directory(coordinator)
        directory.refresh()
        guard = Guard(directory, lambda _: None)
        connection: Any = Connection()
        lost: list[str] = []
        letters = directory.get("q/$transfer/$dlq")
        guard.hold(connection, Right.LISTEN, letters, lambda condition, _: lost.append(condition))
        protected = Policy.parse({"role": "queue", "transport_protection": "tls"})
        record = directory.get("q")
        value = replace(record, policy=protected).to_value()
        await coordinator.write([Write(NAMES + "q", value, record.revision)])
        directory.refresh()
        assert lost == [conditions.UNAUTHORIZED_ACCESS]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "lost"),
    [
        ("disabled", ["send", "listen"]),
        ("send_disabled", ["send"]),
        ("receive_disabled", ["listen"]),
        ("active", []),
    ],
)
def test_links_lose_a_name_whose_status_refuses_them_and_those_of_its_dead_letters_stay(
    status: str, lost: list[str]
) -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write(NAMES + "q", Name("q", QUEUE).to_value())])
        directory = Directory(coordinator)
        directory.refresh()
        guard = Guard(directory, lambda _: None)
        connection: Any = Connection()
        found: list[tuple[str, str]] = []

        def hold(right: Right) -> None:
            guard.hold(
                connection, right, directory.get("q"), lambda condition, _: found.append((right, condition))
            )

        hold(Right.SEND)
        hold(Right.LISTEN)
        guard.hold(connection, Right.LISTEN, directory.get("q/$dlq"), lambda *_: found.append(("dead", "")))
        record = replace(directory.get("q"), policy=Policy.parse({"role": "queue", "status": status}))
        await coordinator.write([Write(NAMES + "q", record.to_value())])
        directory.refresh()
        assert found == [(right, conditions.ENTITY_DISABLED) for right in lost]

    asyncio.run(run())


def test_a_router_refuses_no_listener_by_its_status() -> None:
    guard = Guard(Directory(MemoryCoordinator()), lambda _: None)
    disabled = Name("r", Policy.parse({"role": "router", "status": "disabled"}))
    guard.demand_open(Right.LISTEN, disabled)
    with pytest.raises(ConditionError, match="r is disabled: its status is disabled"):
        guard.demand_open(Right.SEND, disabled)


def test_another_rule_of_a_topic_ends_what_its_key_uses_at_subscriptions_and_nothing_else() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        keys = SealedKey(b"1" * 16, b"x"), SealedKey(b"2" * 16, b"x")
        rules = (AuthorizationRule("listen", frozenset({Right.LISTEN}), *keys),)
        topic = Name("t", Policy.parse({"role": "router"}), authorization_rules=rules)
        queue = "t/Subscriptions/s"
        await coordinator.write(
            [Write(NAMES + "t", topic.to_value()), Write(NAMES + queue, Name(queue, QUEUE).to_value())]
        )
        directory = Directory(coordinator)
        directory.refresh()
        guard = Guard(directory, lambda _: None)
        lost: list[str] = []
        for digest in (b"1" * 16, b"2" * 16, None):
            connection: Any = Connection()
            if digest is not None:
                connection.caller = Caller("key", by_rule=RuleKey("listen", digest, "t"))
            guard.demand(connection, Right.LISTEN, directory.get(queue))
            revoke = partial(_lose, lost, str(digest))
            guard.hold(connection, Right.LISTEN, directory.get(queue), revoke)

        async def change(*rules: AuthorizationRule) -> None:
            changed = replace(topic, authorization_rules=rules)
            await coordinator.write([Write(NAMES + "t", changed.to_value())])
            directory.refresh()

        await change(*rules)
        assert lost == []
        await change(rules[0]._replace(primary=SealedKey(b"3" * 16, b"x")))
        assert lost == [f"{b'1' * 16!s} {conditions.UNAUTHORIZED_ACCESS}"]
        lost.clear()
        await change()
        assert f"{b'2' * 16!s} {conditions.UNAUTHORIZED_ACCESS}" in lost
        assert not any(each.startswith("None") for each in lost)

    asyncio.run(run())


def _lose(lost: list[str], who: str, condition: str, _why: str) -> None:
    lost.append(f"{who} {condition}")
