"""Keywords: options of links and fields of messages as types, for functions that pass them on.

Each type has the parameters of the function that its docstring names; a test compares the two.
"""

import uuid
from collections.abc import Mapping
from typing import Any, TypedDict

MessageId = int | uuid.UUID | bytes | str
"""Types of a message-id or correlation-id in AMQP."""


class SenderOptions(TypedDict, total=False):
    """Keywords of `Connection.sender`, which describes them."""

    window: int
    name: str | None
    presettled: bool
    resume: int | None
    durable: bool


class ReceiverOptions(TypedDict, total=False):
    """Keywords of `Connection.receiver`, which describes them."""

    credit: int
    browse: bool
    presettled: bool
    name: str | None
    selector: str | None
    sql: str | None
    subject: str | None
    group: str | None
    properties: Mapping[str, Any] | None
    filters: Mapping[str, Any] | None
    subscription: str | None
    shared: bool
    dynamic: bool
    renew_for: float
    resume: int | None
    durable: bool


class MessageFields(TypedDict, total=False):
    """Keywords of `Message`, which describes them."""

    id: MessageId | None
    subject: str | None
    to: str | None
    reply_to: str | None
    correlation_id: MessageId | None
    content_type: str | None
    content_encoding: str | None
    group: str | None
    group_sequence: int | None
    reply_to_group: str | None
    user_id: bytes | None
    expires_at: float | None
    created_at: float | None
    durable: bool
    priority: int
    ttl: float | None
    properties: Mapping[str, Any] | None
    annotations: Mapping[str, Any] | None
    delivery_annotations: Mapping[str, Any] | None
    footer: Mapping[str, Any] | None


class MessageChanges(MessageFields, total=False):
    """Keywords of `Message.replace`: all arguments of `Message`."""

    body: Any
