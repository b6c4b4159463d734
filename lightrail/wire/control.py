"""Control socket: requests of a gateway to a frontend, to list and to close connections.

A frontend listens, in the directory of sockets, which only the installation's user may enter,
or on the wire between machines, where a client has to prove that it has the key (keys.py); a gateway connects
to each frontend. Messages are REQUEST and RESPONSE frames as between a gateway and a shard
(docs/formats/wire.md): a number, JSON, no blob. No request is repeated: a request without an answer in time
fails, and the gateway may send it again.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from lightrail.model import conditions
from lightrail.wire.bodies import decode_request, encode_request
from lightrail.wire.frames import HEADER, Kind, Part, WireError, frame
from lightrail.wire.sockets.wiring import Wiring

CONTROL_MS: Final[int] = 2_000
"""How long a gateway waits for a frontend's answer about its connections."""
CONTROL_REQUESTS_MAX: Final[int] = 1_000
"""Requests that wait for one frontend's answer."""

log = logging.getLogger("lightrail.wire.control")

Operation = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns the fields of the answer to the fields of a request. Raises ControlRefusedError."""


class ControlDownError(Exception):
    """The process does not run, or did not answer in time: the request may or may not have been executed."""


class ControlRefusedError(Exception):
    """The answer is an error: its condition and a sentence."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


def address(sockets: str, frontend: int) -> str:
    """The ZeroMQ address of a frontend's control socket in the directory of sockets."""
    return f"ipc://{sockets}/frontend-{frontend}.control.sock"


class ControlServer:
    """The end that answers."""

    def __init__(self, wiring: Wiring, address: str, operations: Mapping[str, Operation]) -> None:
        """Binds. Raises OSError if the address can't be bound."""
        self._operations = operations
        # Answers to a gateway that has ended, or does not read, are dropped.
        most = CONTROL_REQUESTS_MAX
        self._socket = wiring.listen(address, self._receive, send_max=most, receive_max=most)

    @property
    def address(self) -> str:
        """The bound address, with the port that the system chose."""
        return self._socket.address

    def close(self) -> None:
        self._socket.close()

    def _receive(self, peer: bytes, parts: list[bytes]) -> None:
        if len(parts) != 1 or len(parts[0]) < HEADER.size:
            log.warning("expected a request of one part on the control socket, found %d", len(parts))
            return
        (part,) = parts
        kind, _, _, _, _, _, number = HEADER.unpack_from(part)
        if kind != Kind.REQUEST:
            log.warning("expected a request on the control socket, found a frame of kind %d", kind)
            return
        body = encode_request(self._answer(part))
        self._socket.send(peer, [frame(Kind.RESPONSE, number=number, body=body)])

    def _answer(self, part: bytes) -> dict[str, Any]:
        try:
            fields, _ = decode_request(memoryview(part)[HEADER.size :])
            name = fields.pop("op", None)
            operation = self._operations.get(name) if isinstance(name, str) else None
            if operation is None:
                known = ", ".join(sorted(self._operations))
                raise ControlRefusedError(
                    conditions.NOT_IMPLEMENTED, f"expected one of {known}, found {name!r}"
                )
            return operation(fields)
        except ControlRefusedError as refused:
            return _error(refused.condition, refused.description)
        except WireError as error:
            return _error(conditions.DECODE_ERROR, str(error))
        except Exception:
            log.exception("a request on the control socket could not be answered")
            return _error(conditions.INTERNAL_ERROR, "internal error: the log of the broker has the details")


class ControlClient:
    """The end that sends requests; the other process may end and start again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wiring: Wiring, address: str) -> None:
        self._loop = loop
        self.address = address
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        most = CONTROL_REQUESTS_MAX
        self._open = asyncio.Event()
        self._socket = wiring.connect(
            address, self._receive, send_max=most, receive_max=most, on_open=self._open.set
        )

    def close(self) -> None:
        """Fails the requests that wait."""
        self._socket.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ControlDownError("this process is ending; ask another gateway"))

    async def request(
        self, op: str, fields: Mapping[str, Any], *, wait_ms: int = CONTROL_MS
    ) -> dict[str, Any]:
        """Send a request, and wait for the answer.

        Raises:
            ControlDownError: the frontend is down, or does not answer within `wait_ms`.
            ControlRefusedError: the answer is an error.
        """
        if len(self._waiting) >= CONTROL_REQUESTS_MAX:
            raise ControlDownError(f"{CONTROL_REQUESTS_MAX} requests wait for an answer already; try again")
        number = self._next = self._next + 1
        waiting: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[number] = waiting
        part = frame(Kind.REQUEST, number=number, body=encode_request({"op": op, **fields}))
        try:
            async with asyncio.timeout(wait_ms / 1000):
                # A new socket, or one whose frontend was restarted, needs time to connect.
                while not self._socket.send([part]):
                    self._open.clear()
                    await self._open.wait()
                answer = await waiting
        except TimeoutError:
            raise ControlDownError(f"no answer from {self.address} within {wait_ms} ms; try again") from None
        finally:
            self._waiting.pop(number, None)
        error = answer.get("error")
        if error is not None:
            raise ControlRefusedError(str(error["condition"]), str(error["description"]))
        return answer

    def _receive(self, parts: list[Part]) -> None:
        part = parts[-1]
        kind, _, _, _, _, _, number = HEADER.unpack_from(part)
        waiting = self._waiting.get(number)
        if kind == Kind.RESPONSE and waiting is not None and not waiting.done():
            waiting.set_result(decode_request(memoryview(part)[HEADER.size :])[0])


def _error(condition: str, description: str) -> dict[str, Any]:
    return {"error": {"condition": condition, "description": description}}
