"""$management: AMQP clients read and change the namespace (AMQP Management 1.0, working draft 15).

Requests have the operation, the type and the name of an entity as application properties, and attributes as a
map in the body; answers have statusCode and statusDescription. Every request calls the same service as HTTP,
with the caller of the connection, so that rights and errors are the same.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import lightrail
from lightrail.amqp.messages import Message
from lightrail.frontend.nodes import entities
from lightrail.frontend.nodes.entities import (
    FIGURES,
    MANAGEMENT,
    NAME,
    ROLE_OF,
    SUBSCRIPTION,
    TYPE_OF,
    Entity,
)
from lightrail.frontend.nodes.queries import Queries
from lightrail.frontend.nodes.requests import OPERATION as RENEW_LOCKS
from lightrail.frontend.nodes.requests import Request, RequestError, error_of, parse, renew_locks, reply
from lightrail.model import limits
from lightrail.model.names import check, is_dead_letter
from lightrail.model.policy import Role
from lightrail.namespace.listing import visible
from lightrail.namespace.records import Name, Right, Subscription
from lightrail.namespace.rights import demand, demand_look
from lightrail.namespace.service import Service
from lightrail.shard_client.peers.requests import ShardDownError, ShardRefusedError
from lightrail.wire.bodies import Answer

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection
    from lightrail.frontend.engine import Frontend

log = logging.getLogger("lightrail.frontend.nodes.management")

ADDRESS: Final = "$management"


class Management:
    """The node; nodes/links.py receives requests and sends answers."""

    large: Final = (b"peek", b"QUERY", b"GET-")

    def __init__(self, service: Service, queues: "Frontend") -> None:
        self._service = service
        self._directory = service.directory
        self._queues = queues
        self._operations: Mapping[str, Callable[[Request], Awaitable[Message]]] = {
            "CREATE": self._create,
            "READ": self._read,
            "UPDATE": self._update,
            "DELETE": self._delete,
            **Queries(service, self._with_figures).operations,
            "purge": self._purge,
            "peek": self._peek,
            "cancel-scheduled": self._cancel,
        }

    def silent(self, payload: bytes) -> bool:
        """False: every request has an answer."""
        return False

    def wait_ms(self, payload: bytes) -> int | None:
        """None: these requests do not say it."""
        return None

    async def answer(self, connection: "ClientConnection", payload: bytes) -> Message:
        """Executes a request; its errors are in the answer."""
        caller_for = connection.client.caller_for
        try:
            request = parse(payload, caller_for, connection.client.owner)
            self._directory.refresh()
            if request.operation == RENEW_LOCKS:
                # This request is about the connection's links, and no name.
                return await renew_locks(connection, request)
            return await self._operations[request.operation](request)
        except Exception as error:
            known = error_of(error, caller_for)
            return reply(known.status, str(known), None)

    # --- entities --------------------------------------------------------------------------------------

    async def _create(self, request: Request) -> Message:
        attributes = entities.body_attributes(request.message.body, request.type, request.name)
        if request.type == SUBSCRIPTION:
            return await self._create_subscription(request, attributes)
        if request.type not in ROLE_OF:
            raise RequestError(400, f"a {request.type} can't be created")
        name = request.name
        if not name:
            raise RequestError(400, "expected the application property name, found none")
        policy = entities.policy_of(request.type, attributes, {})
        owner = request.connection if policy["lifetime"] == "connection" else ""
        record = await self._service.give(request.caller_for(name), name, policy, owner=owner)
        return reply(201, "Created", entities.entity_of(record).attributes)

    async def _create_subscription(self, request: Request, attributes: dict[str, Any]) -> Message:
        fields = entities.subscription_fields(attributes)
        router, _, id = request.name.rpartition("//")
        router = fields.pop("router", None) or router
        id = fields.pop("id", None) or id
        target = fields.pop("target", None)
        if not router or not target:
            raise RequestError(400, "expected the attributes router and target, found none")
        made = await self._service.subscribe(request.caller_for(router), router, target, id=id, **fields)
        shown = entities.subscription_entity(made).attributes
        # The key of the signatures of pushes is shown when the subscription is created, and not again.
        return reply(201, "Created", shown | ({"secret": made.secret} if made.secret else {}))

    async def _read(self, request: Request) -> Message:
        if request.type == MANAGEMENT:
            if request.name not in ("", "self"):
                raise RequestError(404, f"there is no {MANAGEMENT} {request.name!a:.80}; it is called self")
            own = {"name": "self", "identity": "self", "type": MANAGEMENT, "version": lightrail.__version__}
            return reply(200, "OK", own)
        if request.type == SUBSCRIPTION:
            found = self._subscription(request)
            demand(
                self._directory,
                request.caller_for(found.router),
                Right.MANAGE,
                self._directory.get(found.router),
            )
            return reply(200, "OK", entities.subscription_entity(found).attributes)
        entity = entities.entity_of(self._known(request))
        return reply(200, "OK", await self._with_figures(entity))

    async def _update(self, request: Request) -> Message:
        attributes = entities.body_attributes(request.message.body, request.type, request.name)
        if request.type == SUBSCRIPTION:
            found = self._subscription(request)
            revision = request.revision
            if revision is not None and revision != found.revision:
                raise RequestError(
                    412,
                    f"the subscription is at revision {found.revision}, and {revision} was expected; "
                    "read it again",
                )
            fields = entities.subscription_fields(attributes)
            if {fields.pop("router", found.router), fields.pop("id", found.id)} != {found.router, found.id}:
                text = "router and id of a subscription stay as they are; create another one"
                raise RequestError(400, text)
            kept = {key: getattr(found, key) for key in entities.SUBSCRIPTION_FIELDS[1:]} | fields
            made = await self._service.subscribe(
                request.caller_for(found.router),
                found.router,
                str(kept.pop("target") or ""),
                id=found.id,
                replace_it=True,
                **kept,
            )
            return reply(200, "OK", entities.subscription_entity(made).attributes)
        record = self._known(request, Right.MANAGE)
        policy = entities.policy_of(TYPE_OF[record.role], attributes, record.policy.given)
        revision = request.revision
        changed = await self._service.change(
            request.caller_for(record.name),
            record.name,
            policy,
            record.revision if revision is None else revision,
        )
        return reply(200, "OK", entities.entity_of(changed).attributes)

    async def _delete(self, request: Request) -> Message:
        if request.type == SUBSCRIPTION:
            found = self._subscription(request)
            await self._service.unsubscribe(request.caller_for(found.router), found.router, found.id)
        else:
            record = self._known(request, Right.MANAGE)
            await self._service.drop(request.caller_for(record.name), record.name, request.revision)
        return reply(204, "No Content", {})

    # --- queues ----------------------------------------------------------------------------------------

    async def _purge(self, request: Request) -> Message:
        answer = await self._ask(request, Right.MANAGE, {})
        return reply(200, "OK", answer.fields)

    async def _peek(self, request: Request) -> Message:
        """Messages of a queue from a sequence on, without locking or removing them."""
        fields = {
            "from": request.number("from", 0, 1 << 62, 0),
            "count": request.number("count", 1, limits.MANAGEMENT_PAGE_MAX, 20),
            "bytes": limits.MANAGEMENT_PAGE_BYTES,
        }
        answer = await self._ask(request, Right.LISTEN, fields)
        return reply(200, "OK", _peeked(answer))

    async def _cancel(self, request: Request) -> Message:
        sequence = request.number("sequence", 0, 1 << 62, -1)
        if sequence < 0:
            raise RequestError(400, "expected the application property sequence, found none")
        answer = await self._ask(request, Right.SEND, {"sequences": [sequence]})
        if not answer.fields.get("cancelled"):
            raise RequestError(404, f"{request.name} has no scheduled message {sequence} (any more)")
        return reply(200, "OK", answer.fields)

    async def _ask(self, request: Request, right: Right, fields: dict[str, Any]) -> Answer:
        record = self._directory.get(request.name)
        caller = request.caller_for(record.name)
        if right is Right.LISTEN:
            demand_look(self._directory, caller, record)
        else:
            demand(self._directory, caller, right, record)
        if record.role is not Role.QUEUE:
            raise RequestError(404, f"{request.name} has role {record.role}; expected a queue")
        op = "cancel" if request.operation == "cancel-scheduled" else request.operation
        return await self._queues.ask_shard(record.name, op, fields)

    async def _with_figures(self, entity: Entity) -> dict[str, Any]:
        if not entity.queue:
            return entity.attributes
        try:
            answer = await self._queues.ask_shard(entity.identity, "queue", {})
        except (ShardDownError, ShardRefusedError) as error:
            log.info("no figures of %s: %s", entity.identity, error)
            return {**entity.attributes, FIGURES: None}
        return {**entity.attributes, FIGURES: answer.fields}

    # --- inside ----------------------------------------------------------------------------------------

    def _known(self, request: Request, right: Right | None = None) -> Name:
        """The name in a request. Raises RequestError; ForbiddenError: the caller may not see the name."""
        name = request.name
        if not name:
            raise RequestError(400, "expected the application property name or identity, found neither")
        directory = self._directory
        record = directory.find(name)
        if record is None and is_dead_letter(name) and right is None:
            # A dead-letter queue exists as long as its queue does.
            record = directory.get(name) if directory.get(name).role is Role.QUEUE else None
        caller = request.caller_for(name)
        if record is None:
            check(name)
            demand(directory, caller, Right.MANAGE, directory.get(name))
            raise RequestError(404, f"{name} has no role")
        if right is not None or not visible(self._service.directory, caller, record):
            demand(directory, caller, Right.MANAGE, record)
        if request.type != NAME and ROLE_OF.get(request.type) is not record.role:
            raise RequestError(404, f"{name} is a {TYPE_OF[record.role]}, no {request.type}")
        return record

    def _subscription(self, request: Request) -> Subscription:
        router, _, id = request.name.rpartition("//")
        found = self._directory.subscription(router, id) if router else None
        if found is None:
            # To a caller that may not manage the router, its subscriptions are not shown.
            if router:
                check(router)
                demand(self._directory, request.caller_for(router), Right.MANAGE, self._directory.get(router))
            raise RequestError(404, f"there is no subscription {request.name!a:.200}; expected ROUTER//ID")
        return found


def _peeked(answer: Answer) -> dict[str, Any]:
    """The answer of a shard with its messages as binaries: `ends` has the end of each in the blob."""
    fields = dict(answer.fields)
    blob = answer.blob
    messages: list[dict[str, Any]] = []
    start = 0
    for each in fields.get("messages", ()):
        end = start + int(each["size"])
        messages.append({**each, "message": bytes(blob[start:end])})
        start = end
    return {**fields, "messages": messages}
