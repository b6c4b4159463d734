"""The head of a queue over HTTP: who may no longer listen gets no message that he waited for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from lightrail.cluster.coordinator import Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.request import Request
from lightrail.gateway.resources import head
from lightrail.model.policy import QUEUE
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import (
    NAMES,
    AuthorizationRule,
    Name,
    Permission,
    Right,
    SealedKey,
)
from lightrail.namespace.rights import Caller, ForbiddenError, RuleKey

KEY = SealedKey(b"d" * 16, b"sealed")
RULE = AuthorizationRule("listen", frozenset({Right.LISTEN}), KEY, KEY)
HOLDER = Caller("key", by_rule=RuleKey("listen", KEY.digest, "q"))


@pytest.mark.parametrize("caller", [HOLDER, Caller("ann")])
@pytest.mark.parametrize("method", [head.receive, head.lock])
def test_a_right_that_ends_while_a_request_waits_leaves_the_message_in_the_queue(
    caller: Caller, method: Any
) -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        right = Permission("ann", "", frozenset({Right.LISTEN}))
        before = Name("q", QUEUE, authorization_rules=(RULE,))
        await coordinator.write([Write(NAMES + "q", before.to_value()), Write(right.key, right.to_value())])
        directory, released = Directory(coordinator), list[str]()

        async def receive(*_: object) -> Any:
            # The message arrives after the caller has lost its right.
            await coordinator.write([Write(NAMES + "q", Name("q", QUEUE).to_value()), Write(right.key, None)])
            return SimpleNamespace(release=lambda: released.append("message"))

        services: Any = SimpleNamespace(directory=directory, receivers=SimpleNamespace(receive=receive))
        asked = make_mocked_request("DELETE", "/q/!head?timeout=5")
        with pytest.raises(ForbiddenError, match="no right to listen"):
            await method(Request(services, asked, caller, "q", ()))
        assert released == ["message"]

    asyncio.run(run())
