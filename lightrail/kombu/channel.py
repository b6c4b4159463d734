"""Channels: Kombu's verbs of AMQP 0-9-1 on queues, routers and links of LightRail.

Queues are queues, exchanges are routers, bindings are subscriptions: all of them are names of the broker,
which every process sees, and nothing is emulated here.
"""

import itertools
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.message import Message as KombuMessage
from kombu.transport.base import StdChannel, to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from lightrail.client import ClientError, ManagementError, NotFoundError, SendError
from lightrail.client.management import NAME, QUEUE, ROUTER, SUBSCRIPTION
from lightrail.client.sync import Delivery
from lightrail.kombu import letters
from lightrail.kombu.consumer import Consumer
from lightrail.kombu.names import binding_filter, binding_id, exchange_policy, queue_policy
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.kombu.connection import Connection

GET_S: Final = 0.2
"""How long `basic_get` waits: AMQP 1.0 has no answer for an empty queue, which just sends nothing."""
_DECLARED: Final = re.compile("kombu (.+) exchange")
_THERE: Final = 409
_MISSING: Final = 404


class Channel(StdChannel):  # type: ignore[misc, unused-ignore]
    """A channel. Transport options: `delay` (True), `queue_policy` ({}), `get_timeout` (seconds)."""

    Message = KombuMessage

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.closed = False
        self.prefetch_count = 0
        options = connection.client.transport_options
        self._delay = bool(options.get("delay", True))
        self._queue_policy: Mapping[str, Any] = options.get("queue_policy") or {}
        self._get_s = float(options.get("get_timeout", GET_S))
        self._renew_s = float(options.get("renew_for", 0.0))
        self._names = connection.names
        self._consumers: dict[str, Consumer] = {}
        self._cancelled: list[Consumer] = []
        self._unsettled: dict[int, tuple[Delivery, Consumer | None, Callable[[], None]]] = {}
        self._tags = itertools.count(1)
        self._declared: dict[str, Mapping[str, Any]] = {}
        """Policies of queues that were declared here and are deleted with their last consumer."""
        self._lock = threading.Lock()
        connection.channels.append(self)

    @property
    def has_consumers(self) -> bool:
        return bool(self._consumers)

    # --- declarations ------------------------------------------------------------------------------------

    def _create(self, type: str, name: str, attributes: Mapping[str, Any]) -> None:
        """Creates an entity; an existing one is left unchanged."""
        try:
            self.connection.management.create(type, name, attributes)
        except ManagementError as error:
            if error.status != _THERE:
                raise

    def _host(self) -> None:
        """Creates the virtual host, below which only declared names are queues: replies create none."""
        self._create(NAME, self._names.host, {"auto_create": False})

    def _known(self, what: str, name: str, address: str) -> dict[str, Any]:
        try:
            return self.connection.management.read(address)
        except ManagementError as error:
            if error.status == _MISSING:
                raise ChannelError(
                    f"NOT_FOUND - no {what} {name!r} in {self._names.host!r}", (0, 0), "", 404
                ) from error
            raise

    def exchange_declare(
        self,
        exchange: str = "",
        type: str = "direct",
        durable: bool = False,
        passive: bool = False,
        **_: Any,
    ) -> None:
        address = self._names.exchange(exchange)
        if passive:
            self._known("exchange", exchange, address)
            return
        self._host()
        # The router's description has the type, which bindings need.
        policy = exchange_policy(type or "direct", durable) | {
            "description": f"kombu {type or 'direct'} exchange"
        }
        self._create(ROUTER, address, policy)

    def exchange_delete(self, exchange: str, if_unused: bool = False, **_: Any) -> None:
        self._delete(self._names.exchange(exchange))

    def exchange_bind(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("exchanges are bound to queues only: bind the queue to both exchanges")

    exchange_unbind = exchange_bind

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = True,
        arguments: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        """Returns (queue, message_count, consumer_count); the counts of a passive declaration only."""
        queue = queue or f"amq.gen-{uuid()}"
        address = self._names.queue(queue)
        if passive:
            figures = self._known("queue", queue, address).get("figures") or {}
            return queue_declare_ok_t(
                queue, int(figures.get("ready", 0)), len(figures.get("consumers") or ())
            )
        self._host()
        policy = queue_policy(
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            delay=self._delay,
            arguments=arguments or {},
            more=self._queue_policy,
        )
        self._create(QUEUE, address, policy)
        if auto_delete:
            self._declared[queue] = policy
        return queue_declare_ok_t(queue, 0, 0)

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **options: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **options)

    def queue_bind(self, queue: str, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        if not exchange:
            return
        address = self._names.exchange(exchange)
        description = str(self._known("exchange", exchange, address).get("description") or "")
        declared = _DECLARED.fullmatch(description)
        if declared is None:
            raise ChannelError(
                f"PRECONDITION_FAILED - expected {address} to be an exchange that Kombu declared, with a "
                f"description like 'kombu topic exchange', found {description!r}: give the router such a "
                "description, or the exchange another name",
                (0, 0),
                "",
                406,
            )
        type = declared[1]
        attributes: dict[str, Any] = {
            "router": address,
            "target": self._names.queue(queue),
            "id": binding_id(queue, routing_key),
        }
        found = binding_filter(type, routing_key)
        if found is not None:
            attributes["filter"] = found
        subscription = f"{address}//{attributes['id']}"
        try:
            self._create(SUBSCRIPTION, subscription, attributes)
        except ManagementError as error:
            if error.status != _MISSING or queue not in self._declared:
                raise
            # The queue was deleted with the last consumer of another process after its declaration here.
            self._create(QUEUE, attributes["target"], self._declared[queue])
            self._create(SUBSCRIPTION, subscription, attributes)

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", **_: Any) -> None:
        self._delete(f"{self._names.exchange(exchange)}//{binding_id(queue, routing_key)}", SUBSCRIPTION)

    def queue_purge(self, queue: str, **_: Any) -> int:
        return self.connection.management.purge(self._names.queue(queue))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        address = self._names.queue(queue)
        if if_unused or if_empty:
            figures = self._known("queue", queue, address).get("figures") or {}
            if (if_unused and figures.get("consumers")) or (if_empty and figures.get("messages")):
                raise ChannelError(
                    f"PRECONDITION_FAILED - queue {queue!r} is in use or not empty", (0, 0), "", 406
                )
        self._delete(address)

    def _delete(self, name: str, type: str = NAME) -> None:
        try:
            self.connection.management.delete(name, type=type)
        except ManagementError as error:
            if error.status != _MISSING:
                raise

    # --- sending -----------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        placed = dict(properties or {})
        if priority is not None:
            placed["priority"] = priority
        return {
            "body": body,
            "content-type": content_type,
            "content-encoding": content_encoding,
            "headers": dict(headers or {}),
            "properties": placed,
        }

    def basic_publish(
        self,
        message: Mapping[str, Any],
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        **_: Any,
    ) -> None:
        """Returns when the broker has accepted the message, on disk if it is persistent.

        Raises:
            SendError: the broker refused it. A transient message for a queue that does not exist is dropped,
                such as the reply to a client that has disconnected.
        """
        sent = letters.encode(message, exchange, routing_key, self._names, delay=self._delay)
        try:
            self.connection.send(sent)
        except SendError as error:
            no_queue = error.outcome.condition == conditions.NOT_FOUND and not exchange
            if not no_queue or sent.durable or mandatory:
                raise

    # --- receiving ---------------------------------------------------------------------------------------

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Largest number of unsettled messages of each consumer; 0: no limit."""
        self.prefetch_count = prefetch_count
        for consumer in list(self._consumers.values()):
            consumer.prefetch(prefetch_count)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Callable[[Any], Any] | None = None,
        consumer_tag: str | None = None,
        **_: Any,
    ) -> str:
        """Raises LinkError if the broker refuses, as for a queue that does not exist."""
        self.connection.check()
        if callback is None:
            raise ValueError("expected a callback for the messages, found None")
        tag = consumer_tag or uuid()
        renew_for = 0.0 if no_ack else self._renew_s
        receiver = self.connection.broker.receiver(self._names.queue(queue), credit=0, renew_for=renew_for)
        consumer = Consumer(
            receiver, tag, callback, deliver=self.deliver, no_ack=no_ack, prefetch=self.prefetch_count
        )
        consumer.start(self.connection.inbox)
        self._consumers[tag] = consumer
        return tag

    def basic_cancel(self, consumer_tag: str, **_: Any) -> None:
        """Stops receiving; delivered messages can still be settled."""
        consumer = self._consumers.pop(consumer_tag, None)
        if consumer is not None and self.connection.connected:
            self._cancelled = [each for each in self._cancelled if not each.closed]
            self._cancelled.append(consumer)
            consumer.cancel()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> KombuMessage | None:
        """One message, or None if there is none within `get_timeout`."""
        self.connection.check()
        receiver = self.connection.broker.receiver(self._names.queue(queue), credit=0)
        try:
            receiver.opened()
        except NotFoundError as error:
            raise ChannelError(
                f"NOT_FOUND - no queue {queue!r} in {self._names.host!r}", (0, 0), "", 404
            ) from error
        receiver.grant(1)
        found = receiver.receive(1, timeout=self._get_s)
        if not found:
            receiver.close()
            return None
        (delivery,) = found
        if no_ack:
            delivery.accept()
            receiver.close()
        return self._message(delivery, None, receiver.close, no_ack)

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        """Calls the consumer's callback."""
        if consumer.no_ack:
            delivery.accept()
        message = self._message(delivery, consumer, _nothing, consumer.no_ack)
        consumer.delivered()
        consumer.callback(message)

    def _message(
        self, delivery: Delivery, consumer: Consumer | None, done: Callable[[], None], no_ack: bool
    ) -> KombuMessage:
        tag = next(self._tags)
        if not no_ack:
            self._unsettled[tag] = (delivery, consumer, done)
        return KombuMessage(channel=self, delivery_tag=tag, **letters.decode(delivery.message, self._names))

    def message_to_python(self, message: KombuMessage) -> KombuMessage:
        return message

    # --- settling ----------------------------------------------------------------------------------------

    def _settle(self, tag: int, how: Callable[[Delivery], None]) -> None:
        """Raises ConnectionGoneError or LostError: the message is delivered again, to any consumer.

        A message whose lock expired makes room for the next one, like a settled message.
        """
        found = self._unsettled.pop(tag, None)
        if found is None:
            self.connection.check()
            raise ChannelError(f"PRECONDITION_FAILED - unknown delivery tag {tag}", (0, 0), "", 406)
        delivery, consumer, done = found
        self.connection.check()
        try:
            how(delivery)
        finally:
            if delivery.settled or delivery.lost:
                done()
                if consumer is not None:
                    consumer.settled()

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        for tag in self._upto(delivery_tag) if multiple else (delivery_tag,):
            self._settle(tag, Delivery.accept)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Releases the message, uncounted, with `requeue`; otherwise it is a dead letter in QUEUE/$dlq."""
        self._settle(delivery_tag, Delivery.release if requeue else Delivery.reject)

    def basic_recover(self, requeue: bool = False) -> None:
        for tag in list(self._unsettled):
            self._settle(tag, Delivery.release)

    def _upto(self, last: int) -> list[int]:
        return [tag for tag in list(self._unsettled) if tag <= last]

    def flow(self, active: bool = True) -> None:
        raise NotImplementedError(
            "expected a prefetch_count to bound the messages: the flow of consumers can't be stopped"
        )

    def close(self) -> None:
        """Ends the consumers; unsettled messages return to their queue.

        They are released: a worker fetches ahead, and its end is no failure of these messages (ADR 5).
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
        if self in self.connection.channels:
            self.connection.channels.remove(self)
        consumers, self._consumers = self._consumers, {}
        unsettled, self._unsettled = self._unsettled, {}
        if not self.connection.connected:
            return
        for delivery, _, _ in unsettled.values():
            with suppress(ClientError):
                delivery.release()
        for consumer in (*consumers.values(), *self._cancelled):
            consumer.close()
        for _, _, done in unsettled.values():
            done()


def _nothing() -> None:
    """Does nothing: a consumer's link stays attached."""
