"""$cbs: clients bring tokens for what they want to do (AMQP Claims-based Security 1.0).

Two ways are there. `put-token`, of the working drafts and of Azure's clients, is a request with the token in
its body and the audience as the property name, answered with status-code. `set-token`, of the committee
draft that the capability AMQP_CBS_V1_0 stands for, is answered by its outcome alone, and its token is for
everything. Tokens are JSON web tokens that POST /!tokens gives (namespace/tokens.py).
"""

import logging
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.messages import Message, read_message
from lightrail.amqp.sections import decode_properties
from lightrail.amqp.types import DecodeError, Int, Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.auth import Authenticator
from lightrail.frontend.claims import Claim, Claims, TooMany
from lightrail.frontend.routes import Refused
from lightrail.model import conditions, limits
from lightrail.model.names import InvalidName, queue_name
from lightrail.namespace import tokens
from lightrail.namespace.rights import Caller

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.cbs")

ADDRESS: Final = "$cbs"
CAPABILITY: Final = "AMQP_CBS_V1_0"
SET_TOKEN: Final = "set-token"
TYPES: Final = frozenset({"jwt", "amqp:jwt"})
SCHEMES: Final = frozenset({"amqp", "amqps", "sb", "http", "https"})
"""Of audiences that are URIs; only their path counts."""
CONDITION_OF: Final = {
    401: conditions.UNAUTHORIZED_ACCESS,
    403: conditions.UNAUTHORIZED_ACCESS,
    404: conditions.NOT_FOUND,
    501: conditions.NOT_IMPLEMENTED,
    503: conditions.INTERNAL_ERROR,
}
"""Error condition beside a status; invalid-field for all others."""


class _Fault(Exception):
    """What is wrong with a request: its status, and a sentence."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.condition = CONDITION_OF.get(status, conditions.INVALID_FIELD)


class Cbs:
    """The node. See frontend/nodes.py for how requests and answers get here and away."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def silent(self, payload: bytes) -> bool:
        """A set-token has an outcome and no answer."""
        return decode_properties(payload).subject == SET_TOKEN

    async def answer(self, connection: "ClientConnection", payload: bytes) -> Message | None:
        """Takes a token, or says why not. Raises Refused for a set-token."""
        if self.silent(payload):
            try:
                message = _read(payload)
                kind = message.application.get("token-type")
                await self._take(connection, "", kind, message.body)
            except _Fault as fault:
                raise Refused(fault.condition, str(fault)) from None
            return None
        try:
            return await self._operate(connection, _read(payload))
        except _Fault as fault:
            reply = _reply(fault.status, str(fault))
            reply.application["error-condition"] = Symbol(fault.condition)
            return reply

    async def _operate(self, connection: "ClientConnection", message: Message) -> Message:
        operation = message.application.get("operation")
        audience = _audience(message.application.get("name"))
        if operation == "put-token":
            await self._take(connection, audience, message.application.get("type"), message.body)
            return _reply(202, "Accepted")
        if operation == "delete-token":
            claims = connection.claims
            if claims is None or not claims.delete(audience):
                raise _Fault(404, f"no token was put for {audience!a:.200}")
            return _reply(202, "Accepted")
        raise _Fault(501, f"operation is {operation!r:.80}; expected put-token or delete-token")

    async def _take(self, connection: "ClientConnection", audience: str, kind: Any, body: Any) -> None:
        if not isinstance(kind, str) or kind.lower() not in TYPES:
            raise _Fault(400, f"the type of the token is {kind!r:.80}; expected jwt")
        if isinstance(body, bytes):
            body = body.decode("ascii", "replace")
        if not isinstance(body, str):
            raise _Fault(400, f"the body is of type {type(body).__name__}; expected the token as a string")
        settings = self._authenticator.settings
        if not (connection.tls or connection.loopback or settings.plain_without_tls):
            raise _Fault(
                403,
                "tokens are taken beyond this machine over TLS only; connect by amqps, or set "
                "plain_without_tls where something else protects the line",
            )
        try:
            said = tokens.read(self._authenticator.secret, str(body), connection.frontend.now_ms())
            record = await self._authenticator.coordinator.user(said.user)
        except tokens.InvalidToken as error:
            raise _Fault(401, str(error)) from None
        except CoordinatorError as error:
            raise _Fault(503, str(error)) from None
        if record is None or tokens.key_digest(record) != said.key_digest:
            raise _Fault(401, "the token's user is gone or has another password now")
        if connection.amqp is None:
            # It went meanwhile: nobody is left to be anybody.
            return
        caller = Caller(said.user, scope=said.scope, tls=connection.tls)
        claims = connection.claims
        if claims is None:
            claims = connection.claims = Claims(connection)
        try:
            claims.put(audience, Claim(caller, said.expires_s * 1000))
        except TooMany:
            raise _Fault(
                400,
                f"this connection has tokens for {limits.CBS_TOKENS_MAX} audiences, which is the most",
            ) from None
        log.info("%s acts as user %a at %a from now on", connection.peer, said.user, audience or "all names")


def _read(payload: bytes) -> Message:
    try:
        return read_message(payload)
    except DecodeError as error:
        raise _Fault(400, str(error)) from None


def _audience(value: Any) -> str:
    """The name that a token is for: the path of a URI, or the name itself; empty for everything."""
    if not isinstance(value, str):
        raise _Fault(
            400, f"the property name is {value!r:.80}; expected an audience such as amqp://HOST/NAME"
        )
    path = str(value)
    scheme, separator, rest = path.partition("://")
    if separator and scheme.lower() in SCHEMES:
        path = rest.partition("/")[2]
    path = path.strip("/")
    if not path:
        return ""
    try:
        return queue_name("/" + path)
    except InvalidName as error:
        raise _Fault(400, f"the audience can't be used: {error}") from None


def _reply(status: int, description: str) -> Message:
    message = Message()
    message.application["status-code"] = Int(status)
    message.application["status-description"] = description
    return message
