"""$management: each operation over a connection, with the rights and errors that HTTP has, too."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lightrail.amqp.messages import Message, write_message
from lightrail.amqp.sections import Properties
from lightrail.amqp.values import Symbol, UInt
from lightrail.cluster.memory import MemoryCoordinator
from lightrail.model import conditions, limits
from lightrail.model.policy import Policy, Role
from lightrail.namespace.records import Right
from lightrail.namespace.rights import ANYBODY, Caller
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import Answer
from tests.support.amqp.frontend_scene import Scene
from tests.support.amqp.frontend_scene import play as play_scene
from tests.support.amqp.requests import Requester

Check = Callable[[Scene, Requester], Any]


def play(check: Check, user: str = "", **permissions: str) -> None:
    """A client with links to $management; a user has just these permissions (`name="manage send"`)."""

    async def test(scene: Scene) -> None:
        answer_for(scene)
        requester = await Requester.attach(scene.client())
        if user:
            service = scene.frontend.service
            for prefix, rights in permissions.items():
                await service.permit(ANYBODY, user, prefix, frozenset(map(Right, rights.split())))
            (connection,) = scene.frontend.connections
            connection.client.caller = Caller(user)
        await check(scene, requester)

    play_scene(test, push_allow=("127.0.0.1",))


def answer_for(scene: Scene) -> list[tuple[str, str, dict[str, Any]]]:
    """The shard answers requests; what it was asked is written down."""
    asked: list[tuple[str, str, dict[str, Any]]] = []

    async def ask(queue: str, op: str, fields: dict[str, Any]) -> Answer:
        asked.append((queue, op, fields))
        await asyncio.sleep(0)
        if queue == "away":
            raise ShardDownError("shard 0 is not there now; try again")
        if queue == "full":
            raise ShardRefusedError(conditions.RESOURCE_LIMIT_EXCEEDED, "no room")
        found: dict[str, dict[str, Any]] = {
            "queue": {"ready": 3, "in_flight": 1},
            "purge": {"purged": 4},
            "cancel": {"cancelled": int(fields.get("sequences") == [5])},
            "peek": {"messages": [{"sequence": 7, "size": 2}, {"sequence": 9, "size": 3}]},
        }
        return Answer(found[op], memoryview(b"abcde"))

    scene.frontend.ask_shard = ask  # type: ignore[method-assign]
    return asked


async def make(scene: Scene, name: str, role: Role = Role.QUEUE, **given: Any) -> None:
    await scene.frontend.service.give(ANYBODY, name, Policy(role, given))


def status(answer: Message) -> int:
    code = answer.application["statusCode"]
    assert isinstance(answer.application["statusDescription"], str)
    return int(code)


# --- names -----------------------------------------------------------------------------------------------


def test_a_queue_is_created_read_changed_and_deleted() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        entity = {"type": "lightrail.queue", "name": "a/q"}
        made = await requester.ask({"max_length": UInt(5)}, operation="CREATE", **entity)
        assert status(made) == 201
        assert made.body["max_length"] == 5
        assert made.body["identity"] == "a/q"
        read = await requester.ask(operation="READ", **entity)
        assert status(read) == 200
        assert (read.body["given"], read.body["overflow"]) == ({"max_length": 5}, "reject")
        assert read.body["figures"] == {"ready": 3, "in_flight": 1}
        changed = await requester.ask(
            {"overflow": Symbol("discard_existing"), "max_length": None}, operation="UPDATE", **entity
        )
        assert status(changed) == 200
        assert changed.body["given"] == {"overflow": "discard_existing"}
        assert changed.body["revision"] > read.body["revision"]
        gone = await requester.ask(operation="DELETE", **entity)
        assert (status(gone), gone.body) == (204, {})
        assert scene.frontend.directory.find("a/q") is None

    play(check)


@pytest.mark.parametrize(
    ("type", "role", "attributes"),
    [
        ("lightrail.router", Role.ROUTER, {"distribution": "one"}),
        ("lightrail.metadata", Role.METADATA, {"reference": "amqp://elsewhere/q"}),
        ("lightrail.connection-point", Role.CONNECTION_POINT, {}),
        ("lightrail.name", Role.NONE, {"auto_create": False}),
    ],
)
def test_every_role_has_a_type(type: str, role: Role, attributes: dict[str, Any]) -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        made = await requester.ask(attributes, operation="CREATE", type=type, name="n")
        assert status(made) == 201
        assert scene.frontend.directory.get("n").role is role
        read = await requester.ask(operation="READ", type=type, identity="n")
        assert read.body["type"] == type
        assert read.body["given"] == attributes

    play(check)


@pytest.mark.parametrize(
    ("expected", "body", "application"),
    [
        (400, None, {}),
        (400, None, {"operation": 7}),
        (501, None, {"operation": "EXPLODE"}),
        (501, None, {"operation": "purge", "type": "lightrail.router", "name": "q"}),
        (501, None, {"operation": "CREATE", "type": "org.amqp.management", "name": "q"}),
        (400, None, {"operation": "READ", "type": "a.b.c", "name": "q"}),
        (400, None, {"operation": "READ", "type": "lightrail.queue"}),
        (400, None, {"operation": "READ", "name": "a", "identity": "b"}),
        (400, None, {"operation": "READ", "name": "a//b"}),
        (404, None, {"operation": "READ", "type": "lightrail.queue", "name": "nothing"}),
        (404, None, {"operation": "READ", "type": "lightrail.router", "name": "q"}),
        (404, None, {"operation": "READ", "type": "org.amqp.management", "name": "other"}),
        (404, None, {"operation": "UPDATE", "type": "lightrail.queue", "name": "nothing"}),
        (404, None, {"operation": "DELETE", "type": "lightrail.queue", "name": "nothing"}),
        (409, {}, {"operation": "CREATE", "type": "lightrail.queue", "name": "q"}),
        (400, {}, {"operation": "CREATE", "type": "lightrail.queue"}),
        (400, {}, {"operation": "CREATE", "type": "lightrail.queue", "name": "x/$dlq"}),
        (400, {}, {"operation": "CREATE", "type": "lightrail.queue", "name": "$x"}),
        (400, {"max_length": -1}, {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, {"replicas": 2}, {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, {"replicas": 2}, {"operation": "UPDATE", "type": "lightrail.queue", "name": "q"}),
        (400, {"colour": "red"}, {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, {"revision": 1}, {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, {"max_length": b"5"}, {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, {1: 2}, {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, {"name": "m"}, {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, "text", {"operation": "CREATE", "type": "lightrail.queue", "name": "n"}),
        (400, {"max_length": "x"}, {"operation": "UPDATE", "type": "lightrail.queue", "name": "q"}),
        (412, {}, {"operation": "UPDATE", "type": "lightrail.queue", "name": "q", "if-match": 99}),
        (412, {}, {"operation": "DELETE", "type": "lightrail.queue", "name": "q", "if-match": 99}),
        (400, {}, {"operation": "DELETE", "type": "lightrail.queue", "name": "q", "if-match": "x"}),
        (404, None, {"operation": "purge", "name": "router"}),
        (503, None, {"operation": "purge", "name": "away"}),
        (503, None, {"operation": "purge", "name": "full"}),
        (400, None, {"operation": "cancel-scheduled", "name": "q"}),
        (404, None, {"operation": "cancel-scheduled", "name": "q", "sequence": 6}),
        (400, None, {"operation": "peek", "name": "q", "count": 0}),
        (400, "no list", {"operation": "QUERY"}),
        (400, {"attributeNames": [1]}, {"operation": "QUERY"}),
        (400, None, {"operation": "QUERY", "offset": -1}),
        (404, None, {"operation": "QUERY", "entityType": "a.b.c"}),
        (404, None, {"operation": "READ", "type": "lightrail.subscription", "name": "router//x"}),
        (404, None, {"operation": "READ", "type": "lightrail.subscription", "name": "x"}),
        (400, {}, {"operation": "CREATE", "type": "lightrail.subscription", "name": "router//x"}),
        (
            404,
            {"router": "q", "target": "q"},
            {"operation": "CREATE", "type": "lightrail.subscription", "name": "x"},
        ),
        (
            400,
            {"router": "router", "target": "q", "filter": "x"},
            {"operation": "CREATE", "type": "lightrail.subscription", "name": "x"},
        ),
        (
            400,
            {"router": "router", "target": "router"},
            {"operation": "CREATE", "type": "lightrail.subscription", "name": "x"},
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_status(expected: int, body: Any, application: dict[str, Any]) -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        for name in ("q", "away", "full"):
            await make(scene, name)
        await make(scene, "router", Role.ROUTER)
        before = scene.frontend.directory.revision
        answer = await requester.ask(body, **application)
        assert (status(answer), answer.body) == (expected, None)
        assert answer.application["statusDescription"]
        assert scene.frontend.directory.revision == before

    play(check)


def test_a_body_that_can_not_be_read_is_400() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        message = write_message(Message(Properties(reply_to="me"), {"operation": "READ"}))
        requester.sender.send_one(message[:-1] + b"\xa1\x02\xff\xff")
        (answer,) = await requester.answers()
        assert status(answer) == 400

    play(check)


# --- rights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("READ", 200),
        ("UPDATE", 403),
        ("DELETE", 403),
        ("purge", 403),
        ("cancel-scheduled", 403),
        ("peek", 200),
    ],
)
def test_who_may_listen_may_look_and_no_more(operation: str, expected: int) -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "a/q")
        application = {"operation": operation, "type": "lightrail.queue", "name": "a/q", "sequence": 1}
        assert status(await requester.ask(**application)) == expected

    play(check, "eve", a="listen")


def test_who_has_no_right_learns_not_even_whether_a_name_is_there() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "b/q")
        for name in ("b/q", "b/nothing"):
            for operation in ("READ", "UPDATE", "DELETE", "purge"):
                answer = await requester.ask({}, operation=operation, type="lightrail.queue", name=name)
                assert status(answer) == 403
        answer = await requester.ask({}, operation="QUERY")
        assert answer.body["results"] == []

    play(check, "eve", a="manage")


def test_who_did_not_say_a_name_is_401() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        assert status(await requester.ask({}, operation="CREATE", type="lightrail.queue", name="q")) == 401

    play(check, "anonymous")


def test_a_manager_of_a_prefix_manages_what_is_below() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        assert status(await requester.ask({}, operation="CREATE", type="lightrail.queue", name="a/q")) == 201
        assert status(await requester.ask({}, operation="CREATE", type="lightrail.queue", name="b/q")) == 403

    play(check, "eve", a="manage")


# --- queues ----------------------------------------------------------------------------------------------


def test_a_queue_is_purged_looked_into_and_told_to_forget_a_message() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        asked = answer_for(scene)
        await make(scene, "q")
        purged = await requester.ask(operation="purge", name="q", type="lightrail.queue")
        assert (status(purged), purged.body) == (200, {"purged": 4})
        cancelled = await requester.ask(operation="cancel-scheduled", name="q", sequence=UInt(5))
        assert (status(cancelled), cancelled.body) == (200, {"cancelled": 1})
        peeked = await requester.ask(operation="peek", name="q", **{"from": 2, "count": 10})
        assert [(each["sequence"], each["message"]) for each in peeked.body["messages"]] == [
            (7, b"ab"),
            (9, b"cde"),
        ]
        assert asked == [
            ("q", "purge", {}),
            ("q", "cancel", {"sequences": [5]}),
            ("q", "peek", {"from": 2, "count": 10, "bytes": limits.MANAGEMENT_PAGE_BYTES}),
        ]

    play(check)


def test_the_queue_of_dead_letters_is_read_with_its_queue() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "q")
        read = await requester.ask(operation="READ", name="q/$dlq")
        assert (status(read), read.body["figures"]["ready"]) == (200, 3)
        assert status(await requester.ask(operation="purge", name="q/$dlq")) == 200
        assert status(await requester.ask(operation="READ", name="other/$dlq")) == 404

    play(check)


def test_figures_are_null_while_the_shard_is_away() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "away")
        read = await requester.ask(operation="READ", name="away")
        assert (status(read), read.body["figures"]) == (200, None)

    play(check)


# --- subscriptions ---------------------------------------------------------------------------------------


def test_a_subscription_is_created_read_changed_and_deleted() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "r", Role.ROUTER)
        await make(scene, "q")
        await make(scene, "p")
        type = "lightrail.subscription"
        made = await requester.ask({"router": "r", "target": "q"}, operation="CREATE", type=type, name="s")
        assert (status(made), made.body["identity"]) == (201, "r//s")
        again = await requester.ask(
            {"router": "r", "target": "q"}, operation="CREATE", type=type, name="r//s"
        )
        assert status(again) == 409
        changed = await requester.ask({"target": "p"}, operation="UPDATE", type=type, name="r//s")
        assert (status(changed), changed.body["target"]) == (200, "p")
        read = await requester.ask(operation="READ", type=type, identity="r//s")
        assert (status(read), read.body) == (200, changed.body)
        moved = await requester.ask({"router": "x"}, operation="UPDATE", type=type, name="r//s")
        assert status(moved) == 400
        stale = await requester.ask({}, operation="UPDATE", type=type, name="r//s", if_match=1)
        assert status(stale) == 412
        assert status(await requester.ask(operation="DELETE", type=type, name="r//s")) == 204
        assert status(await requester.ask(operation="READ", type=type, name="r//s")) == 404

    play(check)


def test_the_secret_of_a_push_is_shown_to_who_makes_it_and_not_again() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "r", Role.ROUTER)
        body = {"router": "r", "target": "http://127.0.0.1/hook"}
        made = await requester.ask(body, operation="CREATE", type="lightrail.subscription")
        assert status(made) == 201
        secret = scene.frontend.directory.subscriptions("r")[0].secret
        assert made.body["secret"] == secret != ""
        read = await requester.ask(
            operation="READ", type="lightrail.subscription", identity=made.body["identity"]
        )
        assert status(read) == 200
        assert secret not in str(read.body)

    play(check)


# --- the node itself -------------------------------------------------------------------------------------


def test_a_query_gives_the_asked_attributes_in_pages_and_in_order() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        for name in ("b", "a/b", "a", "a!x", "c"):
            await make(scene, name)
        await make(scene, "r", Role.ROUTER)
        seen: list[str] = []
        while True:
            body = {"attributeNames": ["name", "max_length", "nothing"]}
            page = await requester.ask(
                body,
                operation="QUERY",
                type="org.amqp.management",
                name="self",
                entityType="lightrail.queue",
                offset=UInt(len(seen)),
                count=UInt(2),
            )
            assert status(page) == 200
            assert page.body["attributeNames"] == ["name", "max_length", "nothing"]
            rows = page.body["results"]
            assert page.application["count"] == len(rows)
            assert all(row[1:] == [None, None] for row in rows)
            if not rows:
                break
            seen += [row[0] for row in rows]
        assert seen == ["a", "a/b", "a!x", "b", "c"]

    play(check)


def test_a_query_follows_what_comes_and_goes() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        async def names() -> list[str]:
            found = await requester.ask({"attributeNames": ["name"]}, operation="QUERY")
            return [row[0] for row in found.body["results"]]

        await make(scene, "b")
        assert await names() == ["b"]
        await make(scene, "a")
        await make(scene, "r", Role.ROUTER)
        await scene.frontend.service.subscribe(ANYBODY, "r", "a", id="s")
        assert await names() == ["a", "b", "r", "r//s"]
        await scene.frontend.service.drop(ANYBODY, "a")
        assert await names() == ["b", "r"]

    play(check)


def test_a_query_without_names_gives_every_attribute_and_figures() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        await make(scene, "q", max_length=5)
        found = await requester.ask(operation="QUERY", entityType="lightrail.queue")
        (row,) = found.body["results"]
        entity = dict(zip(found.body["attributeNames"], row, strict=True))
        assert (entity["name"], entity["max_length"], entity["figures"]["ready"]) == ("q", 5, 3)

    play(check)


def test_an_answer_to_a_query_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MANAGEMENT_PAGE_BYTES", 3_000)

    async def check(scene: Scene, requester: Requester) -> None:
        for number in range(5):
            await make(scene, f"q{number}", description="x" * 1_000)
        body = {"attributeNames": ["description"]}
        found = await requester.ask(body, operation="QUERY")
        assert found.application["count"] == len(found.body["results"]) == 2
        rest = await requester.ask(body, operation="QUERY", offset=2, count=10**9)
        assert rest.application["count"] == 2

    play(check)


def test_the_node_tells_its_types_attributes_and_operations() -> None:
    async def check(scene: Scene, requester: Requester) -> None:
        types = (await requester.ask(operation="GET-TYPES")).body
        assert types["lightrail.queue"] == ["lightrail.name", "manageableEntity"]
        attributes = (await requester.ask(operation="GET-ATTRIBUTES")).body
        operations = (await requester.ask(operation="GET-OPERATIONS")).body
        assert set(types) == set(attributes) == set(operations)
        assert {"name", "max_length", "figures"} <= set(attributes["lightrail.queue"])
        assert "purge" in operations["lightrail.queue"]
        below = (await requester.ask(operation="GET-TYPES", entityType="lightrail.name")).body
        assert set(below) == {each for each, above in types.items() if "lightrail.name" in above} | {
            "lightrail.name"
        }
        assert (await requester.ask(operation="GET-MGMT-NODES")).body == []
        own = await requester.ask(operation="READ", type="org.amqp.management", name="self")
        assert own.body["name"] == "self"

    play(check)


def test_coordinators_that_fail_are_503(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightrail.cluster.coordinator import CoordinatorError

    def news(self: Any, since: int) -> None:
        raise CoordinatorError("the file is locked")

    async def check(scene: Scene, requester: Requester) -> None:
        monkeypatch.setattr(MemoryCoordinator, "news", news)
        assert status(await requester.ask(operation="READ", name="q")) == 503

    play(check)
