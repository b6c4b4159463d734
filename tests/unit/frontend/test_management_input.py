"""Whatever a client sends to $management or $cbs is answered, with a status or an outcome."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import DecodeError, Symbol, UInt
from lightrail.frontend.errors import ConditionError
from lightrail.frontend.nodes.entities import OPERATIONS
from lightrail.frontend.nodes.management import Management
from lightrail.model.policy_fields import FIELDS
from lightrail.namespace.rights import ANYBODY, Caller
from lightrail.wire.bodies import Answer
from tests.support.amqp.frontend_scene import Scene

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from(["q", "r", "r//s", "a//b", "q/$dlq", "", "queue", "router", "lightrail.queue"]),
    st.builds(UInt, st.integers(0, 2**32 - 1)),
    st.just(Symbol("symbol")),
)
NAMES = [field.name for field in FIELDS] + ["name", "given", "figures", "router", "target", "attributeNames"]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=5)), inner, max_size=4),
    ),
    max_leaves=8,
)
KEYS = ["name", "identity", "entityType", "offset", "count", "from", "sequence", "if-match"]
KNOWN = [name for group in OPERATIONS.values() for name in group]
APPLICATION = st.fixed_dictionaries(
    {},
    optional={
        "operation": st.one_of(st.sampled_from(KNOWN), SCALARS),
        "type": st.one_of(st.sampled_from(list(OPERATIONS)), SCALARS),
        **dict.fromkeys(KEYS, SCALARS),
    },
)


class Owner:
    owner = "frontend-0/1/1"

    def caller_for(self, name: str) -> Caller:
        return ANYBODY


class Connection:
    client = Owner()


class Queues:
    async def ask_shard(self, queue: str, op: str, fields: dict[str, Any]) -> Answer:
        return Answer({"purged": 0, "cancelled": 1, "messages": []}, memoryview(b""))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(APPLICATION, VALUES), max_size=5))
def test_every_request_has_a_status(requests: list[tuple[dict[str, Any], Any]]) -> None:
    async def run() -> None:
        scene = await Scene.start()
        service = scene.frontend.service
        queues: Any = Queues()
        node = Management(service, queues)
        connection: Any = Connection()
        for application, body in requests:
            payload = write_message(Message(Properties(), application, body))
            answer = await node.answer(connection, payload)
            status = answer.application["statusCode"]
            assert status in (200, 201, 204, 400, 404, 409, 412, 501), answer
            assert isinstance(answer.application["statusDescription"], str)
            write_message(answer)
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(run())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), APPLICATION, VALUES)
def test_every_token_message_has_a_status_or_an_outcome(data: bytes, application: Any, body: Any) -> None:
    async def run() -> None:
        scene = await Scene.start()
        node = scene.frontend.nodes._by_address["$cbs"]
        connection = scene.client().protocol
        whole = write_message(Message(Properties(), {**application, "operation": "put-token"}, body))
        set_token = write_message(Message(Properties(subject="set-token"), application, body))
        for payload in (whole, set_token, data, whole[:-1] + data):
            try:
                answer = await node.answer(connection, payload)
            except (ConditionError, DecodeError):
                continue
            assert answer is not None
            assert answer.application["status-code"] in (400, 401, 501)
        connection.abort()
        await scene.settle()
        scene.frontend.shard_connections.wiring.close()

    asyncio.run(run())
