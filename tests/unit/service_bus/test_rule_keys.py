"""Keys of authorization rules: what is stored says nothing without the secret, and finds who shows a key."""

import asyncio

import pytest

from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model.policy import QUEUE, Policy, Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import AuthorizationRule, Right, SealedKey
from lightrail.namespace.rights import ANYBODY, Caller, rights_of
from lightrail.namespace.service import Service
from lightrail.service_bus.rule_keys import RuleKeys, SealedKeyError, entity_at, is_current, seal, unseal

SECRET = b"secret of one installation"
KEY = "k" * 43 + "="
OTHER = "o" * 43 + "="


def rule(name: str, primary: str, secondary: str = OTHER, *rights: Right) -> AuthorizationRule:
    one, other = (seal(SECRET, name, each) for each in (primary, secondary))
    return AuthorizationRule(name, frozenset(rights or Right), one, other, 1, 1)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 256])
def test_a_key_of_any_length_is_read_again_and_is_not_in_what_is_stored(length: int) -> None:
    key = (KEY * 6)[:length]
    sealed = seal(SECRET, "send", key)
    assert unseal(SECRET, "send", sealed) == key
    assert SealedKey.read(sealed.text) == sealed
    assert len(sealed.cipher) == length
    if length > 4:
        assert key.encode() not in sealed.digest + sealed.cipher


def test_equal_keys_of_rules_of_other_names_have_nothing_in_common() -> None:
    one, other = seal(SECRET, "send", KEY), seal(SECRET, "listen", KEY)
    assert one.digest != other.digest
    assert one.cipher != other.cipher
    assert seal(SECRET, "send", KEY) == one, "a key that is set again is the same"


def test_a_sealed_key_that_was_changed_or_is_of_another_installation_is_no_key() -> None:
    sealed = seal(SECRET, "send", KEY)
    flipped = bytes([sealed.cipher[0] ^ 1]) + sealed.cipher[1:]
    for changed, secret, name in (
        (sealed._replace(cipher=flipped), SECRET, "send"),
        (sealed._replace(digest=bytes(16)), SECRET, "send"),
        (sealed, b"another secret", "send"),
        (sealed, SECRET, "listen"),
    ):
        with pytest.raises(SealedKeyError, match="set the rule's keys again"):
            unseal(secret, name, changed)


def test_who_shows_a_key_has_the_rights_of_its_rules_while_they_have_it() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        directory = Directory(coordinator)
        service = Service(coordinator, directory)
        await service.give(ANYBODY, "a", QUEUE, rules=(rule("send", KEY, OTHER, Right.SEND),))
        keys = RuleKeys(directory)
        await service.give(ANYBODY, "b", QUEUE, rules=(rule("send", KEY, OTHER, Right.LISTEN),))
        assert keys.caller(SECRET, "send", KEY[:-1]) is None
        assert keys.caller(SECRET, "other", KEY) is None
        assert keys.caller(b"another", "send", KEY) is None

        def rights(caller: Caller | None) -> list[set[Right]]:
            assert caller is not None
            return [set(rights_of(directory, caller, name)) for name in ("a", "b")]

        primary, secondary = keys.caller(SECRET, "send", KEY), keys.caller(SECRET, "send", OTHER)
        assert primary is not None
        assert primary.user == "key send of a"
        assert rights(primary) == rights(secondary) == [{Right.SEND}, {Right.LISTEN}]

        await service.change(ANYBODY, "a", QUEUE, rules=(rule("send", "n" * 44, OTHER, Right.SEND),))
        assert rights(primary) == [set(), {Right.LISTEN}]
        assert rights(secondary) == [{Right.SEND}, {Right.LISTEN}]
        assert primary.by_rule is not None
        assert not is_current(directory, primary.by_rule)
        await service.change(ANYBODY, "a", Policy.parse({"role": "queue", "max_length": 5}))
        assert rights(secondary) == [{Right.SEND}, {Right.LISTEN}], "another policy leaves the rules"
        await service.drop(ANYBODY, "a")
        await service.drop(ANYBODY, "b")
        assert keys.caller(SECRET, "send", OTHER) is None
        assert rights(secondary) == [set(), set()]
        await service.give(ANYBODY, "a", QUEUE)
        assert rights(secondary) == [set(), set()], "an entity that is made anew has no former rule"

    asyncio.run(run())


TOPIC_NAMES = (
    "t",
    "t/Subscriptions/s",
    "t/Subscriptions/s/$dlq",
    "t/$subscriptions/k",
    "t/$subscriptions/k/$dlq",
)
QUEUE_NAMES = ("q", "q/$dlq", "q/$transfer/$dlq")
BROKERS_OWN = ("t/$scheduled", "t/$scheduled/$dlq", "q/$transfer", "t/Subscriptions/s/$transfer")


def test_without_manage_nobody_sends_to_subscriptions_and_names_of_the_system_are_closed() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        directory = Directory(coordinator)
        service = Service(coordinator, directory)
        rules = (
            rule("send", KEY, OTHER, Right.SEND),
            rule("listen", KEY, OTHER, Right.LISTEN),
            rule("manage", KEY, OTHER, *Right),
        )
        await service.give(ANYBODY, "t", Policy.parse({"role": "router"}), rules=rules)
        await service.give(ANYBODY, "q", QUEUE, rules=rules)
        keys = RuleKeys(directory)

        def reached(name: str, right: Right) -> set[str]:
            caller = keys.caller(SECRET, name, KEY)
            assert caller is not None
            every = (*TOPIC_NAMES, *QUEUE_NAMES, *BROKERS_OWN)
            return {each for each in every if right in rights_of(directory, caller, each)}

        assert reached("send", Right.SEND) == {"t", "q"}
        assert reached("listen", Right.LISTEN) == {*TOPIC_NAMES, *QUEUE_NAMES}
        assert reached("send", Right.LISTEN) == reached("listen", Right.SEND) == set()
        for right in Right:
            assert reached("manage", right) == {*TOPIC_NAMES, *QUEUE_NAMES, *BROKERS_OWN}

    asyncio.run(run())


def test_the_entity_of_a_path_is_the_nearest_whatever_the_case() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.set_shards(1)
        directory = Directory(coordinator)
        service = Service(coordinator, directory)
        for name, role in (
            ("Shop", Role.QUEUE),
            ("Shop/Orders", Role.ROUTER),
            ("Shop/Orders/Subscriptions/Billing", Role.QUEUE),
        ):
            await service.give(ANYBODY, name, Policy.parse({"role": str(role)}))
        await service.subscribe(ANYBODY, "Shop/Orders", "Shop/Orders/Subscriptions/Billing", id="Billing")
        for path, entity in {
            "": None,
            "shop": "Shop",
            "SHOP/$dlq": "Shop",
            "Shop/$transfer/$dlq": "Shop",
            "shop/none": "Shop",
            "shop/orders": "Shop/Orders",
            "shop/orders/subscriptions/billing": "Shop/Orders",
            "shop/orders/subscriptions/billing/$dlq": "Shop/Orders",
            "shop/orders/subscriptions/billing/rules/r": "Shop/Orders",
            "shop/orders/subscriptions/none": "Shop/Orders",
            "shop/orders/$scheduled": "Shop/Orders",
            "shopping": None,
            "$Resources/queues": None,
            "!status": None,
        }.items():
            found = entity_at(directory, path)
            assert (found and found.name) == entity, path
        await service.give(ANYBODY, "sHOP", QUEUE)
        assert entity_at(directory, "shop") is None, "two names that differ in case alone"
        assert entity_at(directory, "sHOP") == directory.get("sHOP")

    asyncio.run(run())
