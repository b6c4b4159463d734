"""The SASL layer: the order of its frames (security 5.3). The caller authenticates, for example with sasl.py.

The peer's frames become events; after an event that needs an answer nothing more is read until the caller has
answered it. An error closes the socket: there is no performative for it yet (5.3.2).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp import frames
from lightrail.amqp.errors import LocalError
from lightrail.amqp.events import SaslChallenged, SaslFailed, SaslOffered, SaslSucceeded
from lightrail.amqp.events import SaslInit as SaslInitEvent
from lightrail.amqp.events import SaslResponse as SaslResponseEvent
from lightrail.amqp.performatives import (
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_performative,
    encode_performative,
)
from lightrail.amqp.values import DecodeError, Symbol
from lightrail.model import conditions

if TYPE_CHECKING:
    from lightrail.amqp.connection_endpoint import ConnectionEndpoint

INIT: Final = 0
RESPONSE: Final = 1
DECISION: Final = 2
"""The caller's answer is awaited."""
MECHANISMS: Final = 3
OUTCOME: Final = 4

OK: Final = 0
AUTH: Final = 1
"""Values of sasl-code (5.3.3.6)."""

_UNPACK = frames.FRAME_HEADER.unpack_from


@dataclass(slots=True, eq=False, repr=False)
class SaslLayer:
    """Reads the frames of one negotiation, one at a time."""

    connection: "ConnectionEndpoint"
    step: int

    def take(self, body: Any, end: int) -> int | None:
        """Act on a frame body; returns `end` for an error of the peer, otherwise None."""
        raise NotImplementedError

    def _write(self, body: Any) -> None:
        self.connection.output.append(frames.sasl_frame(encode_performative(body)))

    def read(self, data: bytes, position: int, end: int) -> int:
        """Read one whole frame unless the caller's answer is due; returns the position after it."""
        if self.step == DECISION or end - position < frames.FRAME_HEADER_BYTES:
            return position
        connection = self.connection
        size, offset, kind, _ = _UNPACK(data, position)
        most = connection.settings.max_sasl_frame_size
        if kind != frames.SASL_FRAME or offset < 2 or size < offset * 4 or size > most:
            return self._refuse(
                end,
                conditions.FRAMING_ERROR,
                f"expected a SASL frame (type 1) of at most {most} bytes, found type {kind}, data offset"
                f" {offset}, {size} bytes",
            )
        stop: int = position + size
        if stop > end:
            connection.needed = size
            return position
        try:
            body, after = decode_performative(data, position + offset * 4, stop)
        except DecodeError as error:
            return self._refuse(end, conditions.DECODE_ERROR, str(error))
        if after != stop:
            return self._refuse(
                end,
                conditions.DECODE_ERROR,
                f"expected one value in a SASL frame, found {stop - after} bytes more",
            )
        refused = self.take(body, end)
        return stop if refused is None else refused

    def _refuse(self, end: int, condition: str, description: str) -> int:
        self.connection.terminate(condition, description)
        return end


class SaslServer(SaslLayer):
    """The negotiation of a server, which receives sasl-init and sasl-response."""

    __slots__ = ()

    def __init__(self, connection: "ConnectionEndpoint") -> None:
        super().__init__(connection, INIT)
        mechanisms = [Symbol(mechanism) for mechanism in connection.settings.sasl_mechanisms]
        connection.output.append(frames.SASL_HEADER)
        self._write(SaslMechanisms(sasl_server_mechanisms=mechanisms))

    def challenge(self, challenge: bytes) -> None:
        """Ask the peer for a response."""
        self._decide()
        self.step = RESPONSE
        self._write(SaslChallenge(challenge=challenge))

    def outcome(self, code: int, additional_data: bytes | None) -> None:
        """Send the outcome."""
        self._decide()
        self._write(SaslOutcome(code=code, additional_data=additional_data))

    def _decide(self) -> None:
        if self.step != DECISION:
            raise LocalError("a SASL answer is due after SaslInit and SaslResponse only, and once")

    def take(self, body: Any, end: int) -> int | None:
        connection = self.connection
        if self.step == INIT and type(body) is SaslInit:
            mechanism = str(body.mechanism)
            if mechanism not in connection.settings.sasl_mechanisms:
                self._write(SaslOutcome(code=AUTH))
                offered = ", ".join(connection.settings.sasl_mechanisms)
                return self._refuse(
                    end,
                    conditions.UNAUTHORIZED_ACCESS,
                    f"expected a mechanism of {offered}, found {mechanism!r}",
                )
            self.step = DECISION
            connection.events.append(SaslInitEvent(mechanism, body.initial_response, body.hostname))
        elif self.step == RESPONSE and type(body) is SaslResponse:
            self.step = DECISION
            connection.events.append(SaslResponseEvent(body.response))
        else:
            expected = "sasl-init" if self.step == INIT else "sasl-response"
            return self._refuse(
                end, conditions.NOT_ALLOWED, f"expected {expected}, found {type(body).__name__}"
            )
        return None


class SaslClient(SaslLayer):
    """The negotiation of a client, which receives sasl-mechanisms, challenges and the outcome."""

    __slots__ = ()

    def __init__(self, connection: "ConnectionEndpoint") -> None:
        super().__init__(connection, MECHANISMS)

    def init(self, mechanism: str, response: bytes | None, hostname: str | None) -> None:
        """Choose a mechanism."""
        self._decide()
        self._write(SaslInit(mechanism=Symbol(mechanism), initial_response=response, hostname=hostname))

    def respond(self, response: bytes) -> None:
        """Answer a challenge."""
        self._decide()
        self._write(SaslResponse(response=response))

    def _decide(self) -> None:
        if self.step != DECISION:
            raise LocalError("a SASL answer is due after SaslOffered and SaslChallenged only, and once")
        self.step = OUTCOME

    def take(self, body: Any, end: int) -> int | None:
        connection = self.connection
        if self.step == MECHANISMS and type(body) is SaslMechanisms:
            self.step = DECISION
            connection.events.append(SaslOffered(tuple(map(str, body.sasl_server_mechanisms))))
        elif self.step == OUTCOME and type(body) is SaslChallenge:
            self.step = DECISION
            connection.events.append(SaslChallenged(body.challenge))
        elif self.step == OUTCOME and type(body) is SaslOutcome:
            if body.code == OK:
                connection.sasl_succeeded()
                connection.events.append(SaslSucceeded(body.additional_data))
            else:
                connection.sasl_failed()
                connection.events.append(SaslFailed(body.code))
        else:
            expected = "sasl-mechanisms" if self.step == MECHANISMS else "sasl-challenge or sasl-outcome"
            return self._refuse(
                end, conditions.NOT_ALLOWED, f"expected {expected}, found {type(body).__name__}"
            )
        return None
