"""Log-ins: checks of the passwords that clients send to one process: hashing, delays, log lines.

A password's hash is slow by design. Correct log-ins are cached under a keyed digest, so that repeating one
costs nothing; others are hashed a few at a time, and sources (addresses) take turns, so that a flood from one
source does not delay the others. Wrong log-ins slow down their source:

- log-ins of a source with more than LOGIN_SOURCE_FREE wrong ones are checked one by one, LOGIN_SOURCE_MS
  apart;
- after more than LOGIN_USER_FREE wrong passwords of a user, from any sources, each check for that user
  takes LOGIN_USER_MS longer, except for sources that this user has logged in from before.

No user is locked out: a correct password is accepted, at worst some seconds later. Wrong log-ins are
forgotten one by one, at the same pace. The log has one line for the first wrong log-in of a source and user,
and after LOGIN_LOG_MS one with the number of further ones.
"""

import asyncio
import hmac
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_bytes
from time import monotonic
from typing import Any, Final, TypeVar

from lightrail.amqp import sasl
from lightrail.cluster.coordinator import Coordinator, CoordinatorError
from lightrail.cluster.users import UserRecord, stronger
from lightrail.model import limits

LOGIN_HASHES_AT_ONCE: Final[int] = 2
"""Passwords that a process hashes at a time."""
LOGIN_SOURCE_FREE: Final[int] = 10
"""Wrong log-ins of one address after which its next log-ins have to wait."""
LOGIN_SOURCE_MS: Final[int] = 1_000
"""Time between two checks of log-ins from such an address; one wrong log-in is forgotten in this time."""
LOGIN_USER_FREE: Final[int] = 20
"""Wrong log-ins for one user, from whatever addresses, before those from new addresses take longer."""
LOGIN_USER_MS: Final[int] = 2_000
"""How much longer such a log-in takes."""
LOGIN_USER_PACE_MS: Final[int] = 6_000
"""Time in which one wrong log-in for a user is forgotten."""
LOGIN_WRONG_COUNTED: Final[int] = 100
"""Most wrong log-ins that are remembered of an address or a user, which bounds the time to forget them."""
LOGINS_WAITING: Final[int] = 100
"""Log-ins of one address that wait for their check; more are refused."""
LOGIN_SOURCES_MAX: Final[int] = 10_000
"""Addresses, and users, whose wrong log-ins a process counts; the longest silent are dropped first."""
LOGIN_LINES: Final[int] = 100
"""Lines in the log about wrong log-ins per LOGIN_LOG_MS; one line at the end counts the others."""
LOGIN_LOG_MS: Final[int] = 60_000
LOGIN_USERS_SAMPLED: Final[int] = 50
"""Users whose numbers of rounds a process remembers, to answer for unknown users in the same way."""

log = logging.getLogger("lightrail.cluster.logins")

T = TypeVar("T")
Keys = Callable[[bytes, UserRecord], Iterable[str]]
"""Texts that a user may give in the place of its password, by the coordinator's secret and its record."""


class TooManyLoginsError(Exception):
    """The log-in was not checked, because too many log-ins of its source wait already."""


@dataclass(slots=True, eq=False, repr=False)
class _Wrong:
    """A number of wrong log-ins that falls by one every `pace_s`."""

    _pace_s: float
    _at: float
    _count: float = 0.0

    def count(self, now: float) -> float:
        self._count = max(0.0, self._count - (now - self._at) / self._pace_s)
        self._at = now
        return self._count

    def add(self, now: float) -> None:
        self._count = min(self.count(now) + 1, LOGIN_WRONG_COUNTED)


@dataclass(eq=False, repr=False)
class _Turns:
    """A bounded number of hashes at a time; sources take turns."""

    _free: int
    _lines: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)

    async def begin(self, source: str) -> None:
        if self._free:
            self._free -= 1
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(source, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self.end()
            raise

    def end(self) -> None:
        while self._lines:
            source, line = next(iter(self._lines.items()))
            next_one = line.popleft()
            if line:
                self._lines.move_to_end(source)
            else:
                del self._lines[source]
            if not next_one.done():
                next_one.set_result(None)
                return
        self._free += 1


class Logins:
    """All log-ins of one process.

    Args:
        keys: further passwords of a user, which nobody guesses: they are neither hashed nor delayed.
        clock: monotonic seconds.
        sleep: waits for a number of seconds.
        later: makes a call after a number of seconds.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        keys: Keys = lambda *_: (),
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._keys = keys
        self._clock = clock
        self._sleep = sleep
        self._later = later
        self._key = token_bytes(32)
        self._turns = _Turns(LOGIN_HASHES_AT_ONCE)
        self._sources: OrderedDict[str, _Wrong] = OrderedDict()
        self._users: OrderedDict[str, _Wrong] = OrderedDict()
        self._next_s: dict[str, float] = {}
        """Time from which the next log-in of a slow source may be checked."""
        self._waiting: dict[str, int] = {}
        self._good: OrderedDict[bytes, bytes] = OrderedDict()
        """Stored keys that were matched, by digest of user and password."""
        self._derived: OrderedDict[bytes, sasl.ScramKeys] = OrderedDict()
        """Keys of SCRAM for the further passwords of users, by digest."""
        self._proven: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Sources that users have logged in from."""
        self._counted: dict[tuple[str, str], int] = {}
        """Wrong log-ins since the line in the log, by source and user."""
        self._unlogged = 0
        self._logging = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._sampled: list[str] = []
        self._begun = self._ended = 0
        """Numbers of the reading that began last, and of the latest one that has ended."""
        self._has_users = False
        self.secret = b""
        """The coordinator's secret, from the first refresh on; salts of unknown users are derived from it."""
        self.rounds: tuple[int, ...] = (sasl.ROUNDS["sha256"],)
        """Numbers of rounds of some existing users; unknown users are answered with the same."""
        self.rounds_512: tuple[int, ...] = (sasl.ROUNDS["sha512"],)
        self.hashes = 0
        """Passwords that were hashed."""

    async def refresh(self) -> bool:
        """Reads the users again; returns whether any is defined, by the latest reading that has ended."""
        self._begun += 1
        number = self._begun
        has_users = await self._read()
        if number > self._ended:
            self._ended, self._has_users = number, has_users
        return self._has_users

    async def _read(self) -> bool:
        """Reads the users; returns whether any is defined."""
        if not self.secret:
            self.secret = await self._coordinator.secret()
        names = await self._coordinator.users()
        sample = names[:LOGIN_USERS_SAMPLED]
        if sample == self._sampled:
            return bool(names)
        try:
            found = [await self._coordinator.user(name) for name in sample]
        except (CoordinatorError, OSError) as error:
            # It is still known that there are users; log-ins fail with the error of reading them.
            log.warning("the users can't be read: %s", error)
            return bool(names)
        self._sampled = sample
        records = [record for record in found if record is not None]
        if records:
            self.rounds = tuple(record.sha256.iterations for record in records)
            self.rounds_512 = tuple(record.sha512.iterations for record in records)
        return bool(names)

    # --- delays --------------------------------------------------------------------------------------------

    async def admit(self, source: str, user: str) -> None:
        """Waits for the delay of this source and of this user's log-ins. Raises TooManyLoginsError."""
        now = self._clock()
        wait_s = 0.0
        if self._wrong_of(self._sources, source, now) >= LOGIN_SOURCE_FREE:
            due = max(now, self._next_s.get(source, 0.0)) + LOGIN_SOURCE_MS / 1000
            self._next_s[source] = due
            wait_s = due - now
        if (source, user) not in self._proven and self._wrong_of(self._users, user, now) >= LOGIN_USER_FREE:
            wait_s = max(wait_s, LOGIN_USER_MS / 1000)
        if not wait_s:
            return
        waiting = self._waiting.get(source, 0)
        if waiting >= LOGINS_WAITING:
            self._next_s[source] = self._next_s.get(source, now) - LOGIN_SOURCE_MS / 1000
            raise TooManyLoginsError(
                f"{waiting} log-ins from {source} wait because many from there were wrong; try again later"
            )
        self._waiting[source] = waiting + 1
        try:
            await self._sleep(wait_s)
        finally:
            self._waiting[source] -= 1
            if not self._waiting[source]:
                del self._waiting[source]

    def _wrong_of(self, table: OrderedDict[str, _Wrong], key: str, now: float) -> float:
        wrong = table.get(key)
        if wrong is None:
            return 0.0
        count = wrong.count(now)
        if not count:
            del table[key]
            self._next_s.pop(key, None)
        return count

    # --- passwords -----------------------------------------------------------------------------------------

    async def verify(
        self, source: str, user: str, password: str, is_awaited: Callable[[], bool] = lambda: True
    ) -> UserRecord | None:
        """The record of the user if the password is correct, otherwise None. Raises TooManyLoginsError,
        CoordinatorError.

        Args:
            is_awaited: whether the client still waits; nothing is hashed for a client that has disconnected.
        """
        record = await self._coordinator.user(user)
        if record is not None and self.is_key(record, password):
            return record
        digest = blake2b(f"{user}\0{password}".encode(errors="surrogateescape"), key=self._key).digest()
        if record is not None and self._good.get(digest) == record.sha256.stored_key:
            self._good.move_to_end(digest)
            return record
        await self.admit(source, user)
        # The same work for an unknown name, so that the time does not reveal which names exist.
        keys = record.sha256 if record is not None else self.unknown(user, "SCRAM-SHA-256")
        good = await self._hashed(source, is_awaited, sasl.verify_plain, keys, password)
        if good is None:
            return None
        if record is None or not good:
            self.wrong(source, user)
            return None
        self._remember(digest, record)
        self.good(source, user)
        if record.is_weak:
            self._strengthen(record, password, digest)
        return record

    def is_key(self, record: UserRecord, password: str) -> bool:
        """Whether a text is a key of this user, and not its password."""
        given = password.encode(errors="surrogateescape")
        return any(hmac.compare_digest(key.encode(), given) for key in self._keys(self.secret, record))

    async def scram_keys(
        self, source: str, record: UserRecord | None, offered: sasl.ScramKeys, is_awaited: Callable[[], bool]
    ) -> list[sasl.ScramKeys]:
        """What a client of SCRAM proves whose password is a key of the user; empty for a user without keys.

        They are derived once, which takes as long as a check of a password. For an unknown user (None) and
        one without keys the same work is done: the time does not reveal who has one.

        Args:
            offered: keys with the salt and the rounds that the client got.
        """
        texts = [] if record is None else list(self._keys(self.secret, record))
        found = [await self._scram_key(source, text, offered, is_awaited) for text in texts or ["nobody's"]]
        return [keys for keys in found if keys is not None] if texts else []

    async def _scram_key(
        self, source: str, text: str, offered: sasl.ScramKeys, is_awaited: Callable[[], bool]
    ) -> sasl.ScramKeys | None:
        label = f"{offered.hash} {offered.salt!r} {offered.iterations} {text}"
        digest = blake2b(label.encode(), key=self._key).digest()
        if digest in self._derived:
            return self._derived[digest]
        arguments = text, offered.salt, offered.iterations, offered.hash
        keys = await self._hashed(source, is_awaited, sasl.derive, *arguments)
        if keys is not None:
            self._derived[digest] = keys
        if len(self._derived) > limits.CALLERS_MAX:
            self._derived.popitem(last=False)
        return keys

    async def _hashed(
        self, source: str, is_awaited: Callable[[], bool], work: Callable[..., T], *arguments: Any
    ) -> T | None:
        """The result of slow work, in its turn; None if the client has not waited for it."""
        await self._turns.begin(source)
        try:
            if not is_awaited():
                return None
            self.hashes += 1
            return await asyncio.to_thread(work, *arguments)
        finally:
            self._turns.end()

    def unknown(self, user: str, mechanism: str) -> sasl.ScramKeys:
        """Keys that match no password, so that the answer does not reveal that the user is unknown."""
        rounds = self.rounds if mechanism == "SCRAM-SHA-256" else self.rounds_512
        number = int.from_bytes(blake2b(user.encode(), key=self.secret[:64], digest_size=8).digest())
        return sasl.unknown_user_keys(self.secret, user, mechanism, rounds[number % len(rounds)])

    def _remember(self, digest: bytes, record: UserRecord) -> None:
        self._good[digest] = record.sha256.stored_key
        while len(self._good) > limits.CALLERS_MAX:
            self._good.popitem(last=False)

    def _strengthen(self, record: UserRecord, password: str, digest: bytes) -> None:
        """Hashes the password again, while it is known, if its record has fewer rounds than new records."""

        async def strengthen() -> None:
            try:
                made = await asyncio.to_thread(stronger, record, password)
                if await self._coordinator.user(record.name) == record:
                    await self._coordinator.replace_user(made)
                    self._remember(digest, made)
            except CoordinatorError as error:
                log.warning("the password of %a could not be hashed again: %s", record.name, error)

        task = asyncio.get_running_loop().create_task(strengthen())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- results -----------------------------------------------------------------------------------

    def good(self, source: str, user: str) -> None:
        """A user has logged in from a source."""
        self._proven[source, user] = None
        self._proven.move_to_end((source, user))
        while len(self._proven) > LOGIN_SOURCES_MAX:
            self._proven.popitem(last=False)

    def wrong(self, source: str, user: str) -> None:
        """A password was wrong, or there is no such user."""
        now = self._clock()
        for table, key, pace_ms in (
            (self._sources, source, LOGIN_SOURCE_MS),
            (self._users, user, LOGIN_USER_PACE_MS),
        ):
            wrong = table.setdefault(key, _Wrong(pace_ms / 1000, now))
            wrong.add(now)
            table.move_to_end(key)
            while len(table) > LOGIN_SOURCES_MAX:
                self._next_s.pop(table.popitem(last=False)[0], None)
        self._log(source, user)

    def _log(self, source: str, user: str) -> None:
        each = source, user
        if each in self._counted:
            self._counted[each] += 1
        elif len(self._counted) < LOGIN_LINES:
            self._counted[each] = 0
            log.warning("wrong password, or no such user: %.80a from %s", user, source)
        else:
            self._unlogged += 1
        if not self._logging:
            self._logging = True
            later = self._later or asyncio.get_running_loop().call_later
            later(LOGIN_LOG_MS / 1000, self._sum_up)

    def _sum_up(self) -> None:
        """Logs one line for each source and user with more wrong log-ins than the first, after a minute."""
        self._logging = False
        counted, self._counted = self._counted, {}
        others, self._unlogged = self._unlogged, 0
        seconds = LOGIN_LOG_MS // 1000
        for (source, user), count in counted.items():
            if count:
                more = "%d more wrong log-ins from %s for user %.80a in %d s"
                log.warning(more, count, source, user, seconds)
        if others:
            more = "%d more wrong log-ins from other sources or for other users in %d s"
            log.warning(more, others, seconds)
