"""Queries of AMQP management: pages of entities, and the types, attributes and operations that exist."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from lightrail.amqp.encoder import encode
from lightrail.amqp.messages import Message
from lightrail.amqp.values import Int
from lightrail.frontend.nodes import entities
from lightrail.frontend.nodes.entities import (
    FIGURES,
    NAME,
    OPERATIONS,
    ROLE_OF,
    SUBSCRIPTION,
    SUPERTYPES,
    TYPE_OF,
    Entity,
)
from lightrail.frontend.nodes.requests import Request, RequestError, reply
from lightrail.model import limits
from lightrail.namespace.listing import every_name
from lightrail.namespace.records import Name, Right, Subscription
from lightrail.namespace.rights import may
from lightrail.namespace.service import Service

MANAGEMENT_FIGURES_AT_ONCE: Final[int] = 50
"""Queues whose figures are asked for at a time."""
EVERYTHING = ("", entities.ENTITY)


class Queries:
    """The operations of the management node itself.

    Args:
        with_figures: returns an entity's attributes, those of a queue with the figures of its shard.
    """

    def __init__(self, service: Service, with_figures: Callable[[Entity], Awaitable[dict[str, Any]]]) -> None:
        self._service = service
        self._directory = service.directory
        self._with_figures = with_figures
        self.operations: Mapping[str, Callable[[Request], Awaitable[Message]]] = {
            "QUERY": self._query,
            "GET-TYPES": self._get_types,
            "GET-ATTRIBUTES": self._get_attributes,
            "GET-OPERATIONS": self._get_operations,
            "GET-MGMT-NODES": self._get_nodes,
        }

    async def _query(self, request: Request) -> Message:
        wanted = _entity_type(request)
        offset = request.number("offset", 0, 1 << 62, 0)
        count = request.number("count", 0, 1 << 62, limits.MANAGEMENT_PAGE_MAX)
        count = min(count, limits.MANAGEMENT_PAGE_MAX)
        names = _attribute_names(request.message.body)
        if not names:
            types = (wanted,) if wanted else tuple(OPERATIONS)
            names = list(dict.fromkeys(name for type in types for name in entities.attributes_of(type)))
        found: list[Entity] = []
        async for record in self._records(request, wanted):
            if offset:
                offset -= 1
                continue
            if len(found) >= count:
                break
            found.append(
                entities.entity_of(record)
                if isinstance(record, Name)
                else entities.subscription_entity(record)
            )
        rows: list[list[Any]] = []
        size = 0
        step = MANAGEMENT_FIGURES_AT_ONCE
        for start in range(0, len(found), step):
            some = found[start : start + step]
            if FIGURES in names:
                read = await asyncio.gather(*(self._with_figures(entity) for entity in some))
            else:
                read = [entity.attributes for entity in some]
            for attributes in read:
                row = [attributes.get(name) for name in names]
                size += len(encode(row))
                if rows and size > limits.MANAGEMENT_PAGE_BYTES:
                    break
                rows.append(row)
            if size > limits.MANAGEMENT_PAGE_BYTES:
                break
        answer = reply(200, "OK", {"attributeNames": names, "results": rows})
        answer.application["count"] = Int(len(rows))
        return answer

    async def _records(self, request: Request, wanted: str) -> AsyncIterator[Name | Subscription]:
        """The entities of a type, or of its subtypes, that the caller may see: names, then subscriptions."""
        directory = self._directory
        if wanted in (*EVERYTHING, NAME) or wanted in ROLE_OF:
            async for record in every_name(directory, request.caller_for):
                if wanted in (*EVERYTHING, NAME) or TYPE_OF[record.role] == wanted:
                    yield record
        if wanted in (*EVERYTHING, SUBSCRIPTION):
            everything = sorted(directory.every_subscription(), key=lambda each: (each.router, each.id))
            for index, each in enumerate(everything):
                if index % limits.NAMES_AT_ONCE == limits.NAMES_AT_ONCE - 1:
                    await asyncio.sleep(0)
                router = directory.get(each.router)
                if may(directory, request.caller_for(each.router), Right.MANAGE, router):
                    yield each

    async def _get_types(self, request: Request) -> Message:
        types = _types(_entity_type(request))
        return reply(200, "OK", {type: list(SUPERTYPES[type]) for type in types})

    async def _get_attributes(self, request: Request) -> Message:
        types = _types(_entity_type(request))
        return reply(200, "OK", {type: list(entities.attributes_of(type)) for type in types})

    async def _get_operations(self, request: Request) -> Message:
        types = _types(_entity_type(request))
        known = {
            type: {operation: list(arguments) for operation, arguments in OPERATIONS[type].items()}
            for type in types
        }
        return reply(200, "OK", known)

    async def _get_nodes(self, request: Request) -> Message:
        """Other management nodes: none, since every frontend answers for the whole installation."""
        return reply(200, "OK", [])


def _entity_type(request: Request) -> str:
    type = request.text("entityType")
    if type and type not in SUPERTYPES and type != entities.ENTITY:
        raise RequestError(404, f"entityType is {type!a:.80}; expected one of {', '.join(SUPERTYPES)}")
    return type


def _types(wanted: str) -> list[str]:
    """A type and its subtypes; all types for an empty one."""
    return [type for type, above in SUPERTYPES.items() if not wanted or wanted == type or wanted in above]


def _attribute_names(body: Any) -> list[str]:
    """The attributes that a QUERY requests; empty for all. Raises RequestError."""
    if body is None:
        return []
    names = body.get("attributeNames") if isinstance(body, dict) else body
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError(400, "expected the body to be a map with attributeNames, a list of texts")
    return [str(name) for name in names]
