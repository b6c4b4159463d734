"""Sole connections: clients whose container is to have only one connection to all frontends.

AMQP Enforcing Connection Uniqueness 1.0 (soleconn): a client desires the capability
`sole-connection-for-container`. If its container has such a connection already, the new one is refused, or
the former one is closed, depending on the client's policy. Only connections that desire it are compared: the
detection policy is weak, and other connections have no costs.

Each claim is an entry of the coordinator, `containers/HASH`, with its connection: of two clients that connect
at the same time, at any frontends, one writes the entry first. A claim of a process that has ended, or of a
connection that this process no longer has, is replaced. A claim is deleted at the client's close, before the
close is answered; another frontend waits a short time for its deletion. A claim of another user is never
replaced, because that would allow a user to close connections of others.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from lightrail.amqp.performatives import Open
from lightrail.amqp.phases import DECIDING
from lightrail.amqp.values import Symbol, UInt
from lightrail.cluster.coordinator import ATTEMPTS_MAX, ConflictError, Coordinator, CoordinatorError, Write
from lightrail.cluster.entries import Entry
from lightrail.cluster.map import Member
from lightrail.frontend.errors import ConditionError
from lightrail.model import conditions, limits

if TYPE_CHECKING:
    from lightrail.frontend.connection import ClientConnection

SOLE_CONNECTION_END_MS: Final[int] = 500
"""A connection that is refused for another one of its container waits so long for the end of that one: its
client may have the answer to its close while its frontend deletes the claim."""

log = logging.getLogger("lightrail.frontend.sole_connections")

CAPABILITY: Final = "sole-connection-for-container"
ENFORCEMENT: Final = Symbol("sole-connection-enforcement-policy")
DETECTION: Final = Symbol("sole-connection-detection-policy")
REFUSE_CONNECTION: Final = 0
CLOSE_EXISTING: Final = 1
WEAK: Final = 1
PREFIX: Final = "containers/"


@dataclass(slots=True)
class Claim:
    """The claim of a connection of this process.

    Attributes:
        revision: of its entry.
    """

    connection: "ClientConnection"
    revision: int


@dataclass(eq=False, repr=False)
class SoleConnections:
    """The claims of one frontend.

    Args:
        name: of the frontend.
        frontend: the frontend that serves under a number, as registered now; None without one.
        sleep: seconds; tests inject it.
    """

    _coordinator: Coordinator
    _name: str
    _boot: int
    _frontend: Callable[[int], Awaitable[Member | None]]
    _spawn: Callable[[Coroutine[Any, Any, None]], None]
    _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _claims: dict[str, Claim] = field(default_factory=dict)
    """By key."""
    _keys: dict[str, str] = field(default_factory=dict)
    """Claims by id of the connection."""
    _deciding: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Locks by key: this process decides on one connection of a container at a time."""
    _seen: int = 0
    """Revision up to which changes of claims were read."""

    async def decide(self, connection: "ClientConnection", open: Open) -> None:
        """Answers the open of a connection that desires to be the only one."""
        refusal: ConditionError | None = None
        try:
            if connection.sasl_exchange is not None and connection.sasl_exchange.awaits_token:
                # A stranger could claim the containers of others.
                text = f"expected a user for {CAPABILITY}, found a client that says by a token who it is"
                raise ConditionError(conditions.UNAUTHORIZED_ACCESS, text)
            await self.claim(connection, open, connection.client.user_name)
        except ConditionError as error:
            refusal = error
        except CoordinatorError as error:
            log.warning("the connections of a container can't be determined now: %s", error)
            text = "the connections of the container can't be determined now; try again"
            refusal = ConditionError(conditions.INTERNAL_ERROR, text)
        amqp = connection.amqp
        if amqp is None or amqp.phase != DECIDING:
            # The client has closed, or the time to open has expired.
            return
        if refusal is None:
            amqp.accept_open({DETECTION: UInt(WEAK)})
        else:
            log.info("the connection from %s is refused: %s", connection.client.peer, refusal)
            amqp.refuse_open(refusal.condition, refusal.description, refusal.info)
        connection.data_received(b"")

    async def claim(self, connection: "ClientConnection", open: Open, user: str) -> None:
        """Makes a connection the only one of its container that desires to be.

        Raises:
            ConditionError: another connection has the claim, or the policy is invalid.
            CoordinatorError: the coordinator can't be reached now.
        """
        policy = (open.properties or {}).get(ENFORCEMENT, REFUSE_CONNECTION)
        if isinstance(policy, bool) or policy not in (REFUSE_CONNECTION, CLOSE_EXISTING):
            raise ConditionError(
                conditions.INVALID_FIELD,
                f"{ENFORCEMENT} is {policy!r:.80}; expected 0 (refuse-connection) or 1 (close-existing)",
                {Symbol("invalid-field"): Symbol("properties")},
            )
        key = PREFIX + sha256(open.container_id.encode(errors="surrogatepass")).hexdigest()
        value = json.dumps({"connection": connection.id, "user": user}, separators=(",", ":"))
        lock = self._deciding.setdefault(key, asyncio.Lock())
        async with lock:
            revision = await self._write(key, value, user, policy)
            self._displace(key)
            self._claims[key] = Claim(connection, revision)
            self._keys[connection.id] = key
            self._seen = self._seen or revision
            if not connection.is_open:
                # The connection closed while the claim was written.
                self.ended(connection)

    async def _write(self, key: str, value: str, user: str, policy: int) -> int:
        """Writes a claim; returns its revision. Raises as `claim`."""
        for _ in range(ATTEMPTS_MAX):
            entry = await self._coordinator.entry(key)
            if entry is not None and await self._keeps(key, entry, user, policy):
                entry = await self._ended(key, entry)
                if entry is not None and await self._keeps(key, entry, user, policy):
                    raise _in_use()
            with suppress(ConflictError):
                return await self._coordinator.write([Write(key, value, entry.revision if entry else 0)])
        raise _in_use()

    def ended(self, connection: "ClientConnection") -> None:
        """A connection has closed: deletes its claim, now or as soon as the coordinator allows."""
        key = self._keys.pop(connection.id, None) if self._keys else None
        if key is not None:
            self._spawn(self._delete(key, self._claims.pop(key).revision))
            if not self._claims:
                self._seen = 0

    def poll(self) -> None:
        """Closes connections whose claim belongs to another connection now. Costs nothing without claims."""
        if not self._claims:
            return
        news = self._coordinator.news(self._seen)
        if news is None:
            return
        self._seen = news.revision
        for entry in news.entries:
            claim = self._claims.get(entry.key)
            if claim is not None and entry.revision > claim.revision and entry.value is not None:
                self._displace(entry.key)

    def _displace(self, key: str) -> None:
        """Closes the connection that has had a claim, with the error of soleconn 3.2.1."""
        claim = self._claims.pop(key, None)
        if claim is not None:
            del self._keys[claim.connection.id]
            claim.connection.close(
                conditions.RESOURCE_LOCKED,
                "another connection of the container is its only one now",
                {Symbol("sole-connection-enforcement"): True},
            )

    async def sweep(self) -> None:
        """Deletes claims of a former process with this frontend's name."""
        for entry in await self._coordinator.entries(PREFIX):
            name, boot, _ = _parts(entry)
            if name == self._name and boot != f"{self._boot:08x}":
                await self._delete(entry.key, entry.revision)

    async def _delete(self, key: str, revision: int) -> None:
        while True:
            try:
                await self._coordinator.write([Write(key, None, revision)])
            except ConflictError:
                return  # another connection has it
            except CoordinatorError as error:
                log.warning("a claim on a container can't be deleted now: %s", error)
                await asyncio.sleep(limits.EXPIRE_AGAIN_MS / 1000)
            else:
                return

    async def _holds(self, key: str, entry: Entry) -> bool:
        """Whether the connection of an entry may exist, as far as this process can determine."""
        name, boot, _ = _parts(entry)
        if (name, boot) == (self._name, f"{self._boot:08x}"):
            claim = self._claims.get(key)
            return claim is not None and claim.connection.is_open
        _, _, number = name.rpartition("-")
        member = await self._frontend(int(number))
        return member is not None and f"{member.boot:08x}" == boot

    async def _keeps(self, key: str, entry: Entry, user: str, policy: int) -> bool:
        """Whether the connection of an entry exists, and keeps its claim."""
        assert entry.value is not None
        is_closed = policy == CLOSE_EXISTING and json.loads(entry.value)["user"] == user
        return not is_closed and await self._holds(key, entry)

    async def _ended(self, key: str, entry: Entry) -> Entry | None:
        """The entry after a time in which another frontend may have deleted it with its connection."""
        name, boot, _ = _parts(entry)
        found: Entry | None = entry
        if (name, boot) != (self._name, f"{self._boot:08x}"):
            pause_ms = SOLE_CONNECTION_END_MS // 10
            for _ in range(10):
                await self._sleep(pause_ms / 1000)
                found = await self._coordinator.entry(key)
                if found is None or found.revision != entry.revision:
                    break
        return found


def _parts(entry: Entry) -> tuple[str, str, str]:
    """(name of the frontend, its boot, number of the connection) of an entry."""
    assert entry.value is not None
    name, boot, number = json.loads(entry.value)["connection"].split(".")
    return name, boot, number


def _in_use() -> ConditionError:
    """The error of soleconn 3.2.1 for a connection that is refused."""
    return ConditionError(
        conditions.INVALID_FIELD,
        "the container has a connection that is to be its only one",
        {Symbol("invalid-field"): Symbol("container-id")},
    )
