"""Callers whose keys and users are in etcd: what wrong signatures cost, and who logs in without etcd."""

import asyncio
import base64
import hmac
from typing import Any
from urllib.parse import quote_plus

import pytest

from lightrail.cluster.coordinator import CoordinatorError
from lightrail.cluster.etcd.client import EtcdClient
from lightrail.frontend.auth import Authenticator
from lightrail.gateway.callers import Callers
from lightrail.model.policy import Policy
from lightrail.model.settings import Settings
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import AuthorizationRule, Right
from lightrail.namespace.rights import ANYBODY, RuleKey
from lightrail.namespace.service import Service
from lightrail.namespace.tokens import InvalidTokenError
from lightrail.service_bus import rule_keys, signatures
from lightrail.service_bus.signatures import PREFIX
from tests.contracts.etcd_scene import opened, run
from tests.support.deploy.etcd import EtcdCluster


def signature(name: str, key: str, resource: str) -> str:
    sr = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{sr}\n99999999999".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"{PREFIX}sr={sr}&sig={sig}&se=99999999999&skn={name}"


def test_strangers_with_wrong_signatures_make_few_calls_and_a_new_key_is_good_at_once(
    one: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    ranges = EtcdClient.get_all

    def counted(client: EtcdClient, keys: Any, until: float) -> Any:
        calls.append(len(keys))
        return ranges(client, keys, until)

    monkeypatch.setattr(EtcdClient, "get_all", counted)

    async def check() -> None:
        here, there = await opened(*one.endpoints), await opened(*one.endpoints)
        directory, secret = Directory(here), await here.secret()
        service = Service(there, Directory(there))

        async def sign(name: str, resource: str) -> Any:
            found = signatures.read(signature(name, "k" * 44, resource), 0)
            return await signatures.signer(here, directory, secret, found)

        strangers = [
            asyncio.create_task(sign("stranger", f"sb://broker/{name}{number}"))
            for number in range(150)
            for name in ("q", "unknown", "unknown")
        ]
        key = rule_keys.seal(secret, "send", "k" * 44)
        rule = AuthorizationRule("send", frozenset({Right.SEND}), key, key)
        await service.give(ANYBODY, "new", Policy.parse({"role": "router"}), rules=(rule,))
        found = await sign("send", "sb://broker/new")
        assert isinstance(found, RuleKey)
        for each in await asyncio.gather(*strangers, return_exceptions=True):
            assert isinstance(each, InvalidTokenError)
        assert sum(calls) <= 2 * 150 + 1
        assert len(calls) <= 6
        one.servers[0].kill()
        assert isinstance(await sign("send", "sb://broker/new"), RuleKey), "what is known needs no reading"
        with pytest.raises(CoordinatorError, match="does not answer"):
            await sign("other", "sb://broker/new")
        await there.close()
        await here.close()

    run(check())


def test_without_users_clients_of_this_machine_log_in_while_etcd_is_away(one: EtcdCluster) -> None:
    async def check() -> None:
        coordinator = await opened(*one.endpoints)
        authenticator = Authenticator(coordinator, Settings())
        await authenticator.refresh()
        one.servers[0].kill()
        for mechanism, response in (("ANONYMOUS", b""), ("PLAIN", b"\0user\0any password")):
            step = await authenticator.begin_for("127.0.0.1", tls=False).start(mechanism, response)
            assert step.user is not None, step
        callers = Callers(coordinator, Settings())
        await callers.refresh()
        assert not callers.has_users
        await coordinator.close()

    run(check())


def test_signatures_for_what_can_be_no_name_are_wrong_however_large_they_are(one: EtcdCluster) -> None:
    """Etcd takes no request that has 150 of these texts, and a process that is refused takes it for full."""

    async def check() -> None:
        here = await opened(*one.endpoints)
        directory, secret = Directory(here), await here.secret()

        async def sign(number: int) -> None:
            text = f"{PREFIX}sr=sb://b/{chr(0x1F600) * 8000}{number}&sig=x&se=99999999999&skn=n"
            with pytest.raises(InvalidTokenError):
                await signatures.signer(here, directory, secret, signatures.read(text, 0))

        await asyncio.gather(*map(sign, range(150)))
        assert here.full is None
        await here.close()

    run(check())
