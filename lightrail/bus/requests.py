"""Requests: commands with the address of the bus's own node, and their answers by correlation id."""

import asyncio
import json
import logging
from typing import Any, Final

from lightrail.bus.context import REQUEST
from lightrail.bus.errors import (
    NotReadableError,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
    UnexpectedAnswerError,
)
from lightrail.bus.fault import PREFIX
from lightrail.bus.formats import Formats
from lightrail.bus.messages import Sending, message_type
from lightrail.bus.outgoing import FAULT
from lightrail.bus.typed import converter
from lightrail.transport import (
    Broker,
    Envelope,
    Handler,
    Received,
    Transport,
    TransportClosedError,
    TransportError,
)

log = logging.getLogger("lightrail.bus")

PAUSE_S: Final = 0.1


class Requests:
    """Requests of one bus; its node is opened with the first one."""

    def __init__(self, broker: Broker, formats: Formats) -> None:
        self._broker = broker
        self._formats = formats
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[Envelope]] = {}

    async def open(self) -> str:
        """The address for answers."""
        async with self._opening:
            if self._transport is None:
                self._transport = await self._broker.temporary(self._lost)
                self._task = asyncio.create_task(self._listen(self._transport), name="answers")
            return self._transport.address

    async def answer(
        self,
        sending: Sending,
        answers: tuple[Any, ...],
        post: Any,
        timeout: float,  # noqa: ASYNC109
    ) -> Any:
        """Sends a request to whose correlation id `open` is the address, and returns the answer as one of
        the classes.

        Raises the errors of `Bus.request`.
        """
        id = sending.envelope.correlation_id
        assert id is not None
        future: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        try:
            async with asyncio.timeout(timeout):
                await post(sending)
                found = await future
        except TimeoutError:
            raise RequestTimeoutError(
                f"{sending.address}: no answer within {timeout:g} s, and it is not known whether the request "
                "was carried out: is a responder running?"
            ) from None
        finally:
            self._waiting.pop(id, None)
            future.cancel()
        return self._read(found, answers)

    async def close(self) -> None:
        """Closes the node; requests without an answer raise RequestError."""
        self._fail("the bus was stopped before the answer came")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            await self._transport.close()

    def _read(self, envelope: Envelope, answers: tuple[Any, ...]) -> Any:
        if envelope.headers.get(FAULT):
            try:
                fault = json.loads(envelope.body)
                failed = RequestFailedError(fault["exception"], fault["text"], fault["host"])
            except (ValueError, TypeError, KeyError) as error:
                raise UnexpectedAnswerError(
                    f"the answer is an error without a description: {error!r}", ""
                ) from error
            raise failed
        try:
            read = self._formats.read(envelope)
            if read.types and read.types[0].startswith(PREFIX):
                raise RequestFailedError(read.data["exception"], read.data["text"], read.data["host"])
            for cls in answers:
                if not read.types or message_type(cls).wire_name in read.types:
                    return converter(cls).load(read.data)
        except (NotReadableError, KeyError, TypeError) as error:
            raise UnexpectedAnswerError(f"the answer is not readable: {error}", "") from error
        names = ", ".join(message_type(cls).wire_name for cls in answers)
        found = ", ".join(read.types)
        raise UnexpectedAnswerError(f"expected an answer of {names}, found one of {found}", found, read.data)

    async def _listen(self, transport: Transport) -> None:
        def handle(received: Received) -> None:
            envelope = received.envelope
            waiting = self._waiting.get(envelope.correlation_id or "") or self._waiting.get(
                self._request_of(envelope)
            )
            if waiting is not None and not waiting.done():
                waiting.set_result(envelope)
            else:
                log.info("an answer to no request that waits came: %s", envelope.correlation_id)

        def select(envelope: Envelope) -> Handler:
            return handle

        while True:
            try:
                await transport.receive(select)
            except TransportClosedError:
                return
            except TransportError as error:
                log.warning("answers can't be received now: %s", error)
                await asyncio.sleep(PAUSE_S)

    def _request_of(self, envelope: Envelope) -> str:
        """The id of the request that an envelope answers, where its format has the id in the body."""
        try:
            return str(self._formats.read(envelope).envelope.headers.get(REQUEST, ""))
        except NotReadableError as error:
            log.warning("an answer is not readable: %s", error)
            return ""

    def _lost(self) -> None:
        self._fail("the connection was lost before the answer came; the request may have been carried out")

    def _fail(self, text: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RequestError(text))
                waiting.exception()
