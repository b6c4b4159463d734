"""Spans of OpenTelemetry for a bus; they need opentelemetry-api: pip install 'lightrail[tracing]'.

A span `create TYPE` is made for each message that is sent; its context is in the message's headers
(traceparent). A span `process QUEUE` covers each handler, as a child of the span of the message, so that a
trace covers all services. Attributes follow the semantic conventions for messaging.
"""

from typing import Any, Final

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, TracerProvider

from lightrail.bus.bus import Bus
from lightrail.bus.context import Context
from lightrail.bus.handlers import Next

__all__ = ["Tracing"]

SYSTEM: Final = "lightrail"


class Tracing:
    """Makes spans for the messages that a bus sends and handles.

    Args:
        bus: not started.
        provider: of tracers; by default the global one.
    """

    def __init__(self, bus: Bus, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = trace.get_tracer("lightrail.bus", tracer_provider=provider)
        self._bus = bus.name
        bus.outgoing.on_envelope(self._created)
        # First, so that other middlewares run within the span.
        bus.middlewares.insert(0, self._process)

    def _created(self, address: str, type: str, headers: dict[str, Any], id: str) -> None:
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "create",
            "messaging.operation.name": "create",
            "messaging.destination.name": address,
            "messaging.message.id": id,
        }
        with self._tracer.start_as_current_span(
            f"create {type}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            propagate.inject(headers)

    async def _process(self, context: Context, call_next: Next) -> Any:
        texts = {key: value for key, value in context.headers.items() if isinstance(value, str)}
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": context.queue,
            "messaging.message.conversation_id": context.conversation,
            "messaging.consumer.group.name": self._bus,
            "lightrail.handler": context.handler,
            "lightrail.attempt": context.attempt,
            "lightrail.delivery_count": context.delivery_count,
        }
        if context.id is not None:
            attributes["messaging.message.id"] = context.id
        with self._tracer.start_as_current_span(
            f"process {context.queue}",
            context=propagate.extract(texts),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=True,
            set_status_on_exception=False,
        ) as span:
            try:
                return await call_next()
            except Exception as error:
                span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise
