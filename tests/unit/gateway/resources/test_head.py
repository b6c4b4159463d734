"""The head of a queue over HTTP: who may no longer listen gets no message that he waited for."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp.test_utils import make_mocked_request

from lightrail.amqp.messages import Message, write_message
from lightrail.cluster.coordinator import Write
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.gateway.errors import ProblemError
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
from lightrail.shard_client.receiving.queue_consumer import Delivery

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


def test_a_message_is_answered_when_it_is_removed_and_otherwise_not_at_all() -> None:
    async def run() -> None:
        coordinator = MemoryCoordinator()
        await coordinator.write([Write(NAMES + "q", Name("q", QUEUE).to_value())])
        delivery = Delivery(1, 0, 0, 0, 0, 0, 0, write_message(Message(body=b"body")))
        message = SimpleNamespace(delivery=delivery, remove=None, release=None)

        async def receive(*_: object) -> Any:
            return message

        services: Any = SimpleNamespace(
            directory=Directory(coordinator),
            receivers=SimpleNamespace(receive=receive),
            counts=SimpleNamespace(handed_out={"received": 0, "released": 0}),
        )
        for is_removed in (True, False):
            removal = asyncio.get_running_loop().create_future()
            message.remove = lambda removal=removal: removal
            transport = Mock(is_closing=lambda: False)
            writer = AsyncMock(output_size=0)
            asked = make_mocked_request("DELETE", "/q/!head", writer=writer, transport=transport)
            answer = asyncio.ensure_future(head.receive(Request(services, asked, Caller("", True), "q", ())))
            await asyncio.sleep(0)
            assert not answer.done()
            assert not writer.mock_calls
            removal.set_result(is_removed)
            if is_removed:
                assert (await answer).status == 200
            else:
                with pytest.raises(ProblemError) as refused:
                    await answer
                assert refused.value.status == 503
            assert bool(writer.mock_calls) is is_removed
        assert services.counts.handed_out == {"received": 1, "released": 0}

    asyncio.run(run())
