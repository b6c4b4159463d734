"""$cbs: clients put tokens, which grant rights at names (AMQP Claims-based Security 1.0).

There are two ways. `put-token`, of the working drafts and of Azure's clients, is a request with the token in
its body and the audience as the property name, answered with status-code. `set-token`, of the committee
draft with the capability AMQP_CBS_V1_0, is answered only by its outcome, and its token is for every name.
Tokens are JSON web tokens that POST /!tokens issues (namespace/tokens.py), or of a kind that a hook verifies.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lightrail.amqp.messages import Message, read_message
from lightrail.amqp.sections import decode_properties
from lightrail.amqp.values import DecodeError, Int, Symbol
from lightrail.cluster.coordinator import CoordinatorError
from lightrail.frontend.auth import Authenticator
from lightrail.frontend.client import CLAIMS_BYTES_MAX, Claim, Claims, TooManyTokensError
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions
from lightrail.model.names import InvalidNameError, SystemNameError, owner, queue_name
from lightrail.namespace import tokens
from lightrail.namespace.rights import MANAGEMENT_SUFFIX, SCHEMES, Caller

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

log = logging.getLogger("lightrail.frontend.nodes.cbs")

ADDRESS: Final = "$cbs"
CAPABILITY: Final = "AMQP_CBS_V1_0"
SET_TOKEN: Final = "set-token"
TYPES: Final = ("jwt", "amqp:jwt")
"""Types of JSON web tokens."""
CONDITION_OF: Final = {
    401: conditions.UNAUTHORIZED_ACCESS,
    403: conditions.UNAUTHORIZED_ACCESS,
    404: conditions.NOT_FOUND,
    501: conditions.NOT_IMPLEMENTED,
    503: conditions.INTERNAL_ERROR,
}
"""Error condition beside a status; invalid-field for all others."""


class _TokenError(Exception):
    """A request is refused: a status and a sentence."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.condition = CONDITION_OF.get(status, conditions.INVALID_FIELD)


@dataclass(eq=False, repr=False)
class Cbs:
    """The node; nodes/links.py receives requests and sends answers."""

    _authenticator: Authenticator
    large: tuple[bytes, ...] = ()

    def silent(self, payload: bytes) -> bool:
        """Whether a request has only an outcome, as a set-token."""
        return decode_properties(payload).subject == SET_TOKEN

    def wait_ms(self, payload: bytes) -> int | None:
        """None: these requests do not say it."""
        return None

    async def answer(self, connection: "ClientConnection", payload: bytes) -> Message | None:
        """Stores a token, or answers with an error. Raises ConditionError for a set-token."""
        if self.silent(payload):
            try:
                message = _read(payload)
                kind = message.application.get("token-type")
                await self._put(connection, "", kind, message.body, "")
            except _TokenError as error:
                raise ConditionError(error.condition, str(error)) from None
            return None
        try:
            return await self._operate(connection, _read(payload))
        except _TokenError as error:
            reply = _reply(error.status, str(error))
            reply.application["error-condition"] = Symbol(error.condition)
            return reply

    async def _operate(self, connection: "ClientConnection", message: Message) -> Message:
        operation = message.application.get("operation")
        audience = _audience(message.application.get("name"))
        claimed = _claimed(connection, audience, message.application.get("type"))
        if operation == "put-token":
            kind = message.application.get("type")
            await self._put(connection, audience, kind, message.body, claimed)
            return _reply(202, "Accepted")
        if operation == "delete-token":
            claims = connection.client.claims
            if claims is None or not claims.delete(claimed):
                raise _TokenError(404, f"no token was put for {audience!a:.200}")
            return _reply(202, "Accepted")
        raise _TokenError(501, f"operation is {operation!r:.80}; expected put-token or delete-token")

    async def _put(
        self, connection: "ClientConnection", audience: str, kind: Any, body: Any, claimed: str
    ) -> None:
        client, frontend = connection.client, connection.frontend
        further = frontend.hooks.token_types
        if not isinstance(kind, str) or kind.lower() not in (*TYPES, *further):
            expected = " or ".join((TYPES[0], *further))
            raise _TokenError(400, f"the type of the token is {kind!r:.80}; expected {expected}")
        if isinstance(body, bytes):
            body = body.decode("ascii", "replace")
        if not isinstance(body, str):
            found = type(body).__name__
            raise _TokenError(400, f"the body is of type {found}; expected the token as a string")
        settings = self._authenticator.settings
        if not (client.tls or client.loopback or settings.plain_without_tls):
            raise _TokenError(
                403,
                "tokens are accepted beyond this machine over TLS only; connect by amqps, or set "
                "plain_without_tls if something else protects the connection",
            )
        text, now_ms = str(body), frontend.now_ms()
        try:
            # Some clients send tokens of either kind under the type jwt.
            hook, directory = frontend.hooks.token, frontend.directory
            verified = await hook(self._authenticator, directory, text, audience, now_ms)
            token = verified.claims if verified else await self._token(text, now_ms)
        except tokens.InvalidTokenError as error:
            raise _TokenError(401, str(error)) from None
        except CoordinatorError as error:
            raise _TokenError(503, str(error)) from None
        if not connection.is_open:
            # The connection closed while the token was being checked; discard the result.
            return
        resource = verified.resource if verified else None
        caller = Caller(
            token.user,
            everything=verified is not None and verified.everything and client.caller.everything,
            scope=token.scope,
            tls=client.tls,
            resource=resource,
            by_rule=verified.by_rule if verified else None,
        )
        if claimed != audience or (resource is not None and not resource.opens(claimed)):
            caller = caller.at(owner(claimed))
        level = logging.INFO if client.claims is None else logging.DEBUG
        if client.claims is None:
            client.claims = Claims(frontend, partial(frontend.tokens_changed, connection))
        try:
            client.claims.put(claimed, Claim(caller, token.expires_s * 1000))
        except TooManyTokensError:
            log.warning(
                "%s has tokens of %d bytes, the maximum, and is refused one for %a",
                *(client.peer, CLAIMS_BYTES_MAX, audience),
            )
            raise _TokenError(
                400,
                f"expected tokens of at most {CLAIMS_BYTES_MAX:,} bytes on a connection; delete some, or "
                "open another connection",
            ) from None
        # Azure's clients put a token for each entity, and each anew before its end: one line is enough.
        log.log(
            level, "%s acts as user %a at %a from now on", client.peer, token.user, audience or "all names"
        )

    async def _token(self, text: str, now_ms: int) -> tokens.Claims:
        """The claims of a JSON web token. Raises InvalidTokenError, CoordinatorError."""
        token = tokens.read(self._authenticator.secret, text, now_ms)
        record = await self._authenticator.coordinator.user(token.user)
        if record is None or tokens.key_digest(record) != token.key_digest:
            raise tokens.InvalidTokenError("the token's user no longer exists, or has a new password")
        return token


def _read(payload: bytes) -> Message:
    try:
        return read_message(payload)
    except DecodeError as error:
        raise _TokenError(400, str(error)) from None


def _audience(value: Any) -> str:
    """The name in a token's audience: the path of a URI, or the name itself; empty for every name."""
    if not isinstance(value, str):
        raise _TokenError(
            400, f"the property name is {value!r:.80}; expected an audience such as amqp://HOST/NAME"
        )
    path = str(value)
    scheme, separator, rest = path.partition("://")
    if separator and scheme.lower() in SCHEMES:
        path = rest.partition("/")[2]
    path = path.strip("/").removesuffix(MANAGEMENT_SUFFIX)
    if not path:
        return ""
    try:
        return queue_name("/" + path)
    except SystemNameError as error:
        raise _TokenError(404, f"nothing is at the audience: {error}") from None
    except InvalidNameError as error:
        raise _TokenError(400, f"the audience can't be used: {error}") from None


def _claimed(connection: "ClientConnection", audience: str, kind: Any) -> str:
    """The name at which a token of a type grants rights that is put for an audience."""
    directory, hooks = connection.frontend.directory, connection.frontend.hooks
    folds = isinstance(kind, str) and kind.lower() in hooks.token_types
    if not folds and connection.amqp is not None:
        folds = hooks.names_entities(connection.amqp.peer_open, None)
    # Administration clients use a subscription as soon as they have created it.
    directory.refresh()
    try:
        return hooks.name_at(directory, audience, folds)
    except (ConditionError, InvalidNameError):
        return audience


def _reply(status: int, description: str) -> Message:
    message = Message()
    message.application["status-code"] = Int(status)
    message.application["status-description"] = description
    return message
