"""Request: one HTTP request, its caller, its name, and methods that read its parts."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from lightrail.gateway.errors import ProblemError, invalid
from lightrail.gateway.messages.sending import Room
from lightrail.gateway.rights import demand_all, demand_name
from lightrail.model import limits
from lightrail.model.names import InvalidNameError, check_spelling
from lightrail.model.policy import Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right
from lightrail.namespace.rights import Caller

if TYPE_CHECKING:
    from lightrail.gateway.services import Services

HTTP_BODY_MS: Final[int] = 60_000
"""Time for the body of a request; then the request ends and frees its share of memory."""


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """The argument of a handler.

    Args:
        name: of the path, checked; empty for the root of all names.
        rest: decoded segments of the path behind the part, such as SEQUENCE and LOCK.
    """

    services: "Services"
    http: web.Request
    caller: Caller
    name: str
    rest: tuple[str, ...]

    @property
    def directory(self) -> Directory:
        return self.services.directory

    @property
    def content_type(self) -> str:
        """Content type of the body, without parameters; empty without one."""
        return self.http.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def wants(self, media_type: str) -> bool:
        """Whether the Accept header names this type; wildcards don't count."""
        accept = self.http.headers.get("Accept", "")
        return any(each.partition(";")[0].strip().lower() == media_type for each in accept.split(","))

    # --- the query -------------------------------------------------------------------------------------

    def seconds(self, key: str, default: float, most: float) -> float:
        """A number of seconds from 0 to `most`."""
        text = self.http.query.get(key)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise invalid(key, text, f"seconds from 0 to {most:g}", 400)
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        """A whole number from the query."""
        text = self.http.query.get(key)
        return default if text is None else whole_number(key, text, low, high)

    def flag(self, key: str) -> bool:
        """True for `?key=true`."""
        text = self.http.query.get(key, "false").lower()
        if text not in ("true", "false", "1", "0", ""):
            raise ProblemError(
                400, f"{key} is {text[:40]!a}; expected true or false", field=key, allowed="true or false"
            )
        return text in ("true", "1", "")

    def revision(self) -> int | None:
        """The revision in If-Match, or None."""
        text = self.http.headers.get("If-Match")
        if text is None or text.strip() == "*":
            return None
        tag = text.strip().removeprefix("W/").strip('"')
        if not tag.isascii() or not tag.isdigit() or len(tag) > 18:
            raise ProblemError(
                412,
                f'If-Match is {text[:40]!a}; expected the ETag that a GET gave, such as "17"',
                field="If-Match",
            )
        return int(tag)

    # --- the body --------------------------------------------------------------------------------------

    async def body(
        self, most: int = limits.HTTP_JSON_BYTES, received: Callable[[int], None] | None = None
    ) -> bytes:
        """The body, of at most `most` bytes and within HTTP_BODY_MS; `received` is called with the size of
        each part."""
        length = self.http.content_length
        if length is not None and length > most:
            raise too_large(length, most)
        parts = []
        size = 0
        try:
            async with asyncio.timeout(HTTP_BODY_MS / 1000):
                async for part in self.http.content.iter_any():
                    size += len(part)
                    if size > most:
                        raise too_large(size, most)
                    if received is not None:
                        received(len(part))
                    parts.append(part)
        except TimeoutError:
            seconds = HTTP_BODY_MS / 1000
            raise ProblemError(
                408,
                f"the body was not complete after {seconds:g} s; {size} bytes of it had arrived",
                headers={"Connection": "close"},
            ) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def body_in(self, room: Room, most: int) -> bytes:
        """The body. Its memory is reserved before it is read, or with each part if its length is unknown."""
        size = min(self.http.content_length or 0, most)
        room.take(size)
        return await self.body(most, None if size else room.take)

    async def json(self, most: int = limits.HTTP_JSON_BYTES) -> Any:
        """The body as JSON, whatever its content type."""
        return self.decoded(await self.body(most))

    def decoded(self, text: bytes) -> Any:
        """Decodes the JSON of a body."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProblemError(400, f"the body is no JSON: {error}") from None

    async def json_object(self, *known: str, most: int = limits.HTTP_JSON_BYTES) -> dict[str, Any]:
        """The body as a JSON object with these members and no others."""
        value = await self.json(most)
        if not isinstance(value, dict):
            raise ProblemError(422, f"the body is {str(value)[:80]!a}; expected a JSON object")
        for key in value:
            if key not in known:
                raise ProblemError(
                    422,
                    f"{key[:80]!a} is no member of this object; it has {', '.join(known)}",
                    field=key,
                    allowed=list(known),
                )
        return value

    # --- rights ----------------------------------------------------------------------------------------

    def record(self, right: Right) -> Name:
        """The record of the name. Raises ForbiddenError without the right, ProblemError without a role."""
        record = demand_name(self.directory, self.caller, self.name, right)
        if record.role is Role.NONE:
            raise nothing_at(self.name)
        return record

    def manager(self) -> None:
        """Raises ForbiddenError unless the caller may manage all names."""
        demand_all(self.directory, self.caller)


def whole_number(what: str, text: str, low: int, high: int) -> int:
    """A number in a path or query. Raises ProblemError."""
    if not text.isascii() or not text.isdigit() or len(text) > 20 or not low <= int(text) <= high:
        raise invalid(what, text, f"a whole number from {low} to {high}", 400)
    return int(text)


def nothing_at(name: str) -> ProblemError:
    """For a name without a role, in a request that does not define its role."""
    text = f"{name} has no role; POST a policy or a message to it first"
    try:
        check_spelling(name)
    except InvalidNameError as error:
        text = f"{text}. Also, {error}"
    return ProblemError(404, text, role="none")


def too_large(size: int, most: int) -> ProblemError:
    return ProblemError(413, f"the body has {size} bytes or more; at most {most} are accepted here")
