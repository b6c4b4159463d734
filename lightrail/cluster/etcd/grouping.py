"""Grouping: transactions that wait for etcd at the same time are sent as one.

A transaction costs etcd a sync of its disk, and this process a round trip, whatever its size: thousands of
new names at once would wait for each other. While some calls are under way, later transactions are
collected; the next call has as many of them as fit, with disjoint keys but for checks. If guards of some of
them do not hold, these fail, and the others are sent again.

A transaction has no time limit while etcd answers others. When a call has failed, the transactions that have
waited for longer than the time limit of a call fail with it.

Reading: entries as they are in etcd now, of which calls read many at once.

Strangers make this process look there: a wrong signature may be made with a key that another process has set
a moment ago, for any name. So one call is under way at a time, and one begins ETCD_READ_MS after the one
before at the earliest; each reads all keys for which somebody waits, up to ETCD_READ_KEYS. Who asks meanwhile
waits a moment longer, and is refused only while ETCD_READS_WAITING keys wait. When a call fails, so do all.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lightrail.cluster.coordinator import WRITES_MAX, ConflictError, CoordinatorError, Write
from lightrail.cluster.entries import Entry
from lightrail.model import limits

ETCD_GROUP_BYTES: Final[int] = 512 * 1024
"""Keys and values of writes that are sent as one transaction; etcd takes 1.5 MiB (--max-request-bytes)."""

ETCD_READ_MS: Final[int] = 20
"""Time between the beginnings of two calls: a process makes at most 50 in a second for all requests."""
ETCD_READ_KEYS: Final[int] = WRITES_MAX
"""Keys of one call."""
ETCD_READS_WAITING: Final[int] = 10_000
"""Keys that wait for a call; it takes two seconds to read them."""

Read = Callable[[Sequence[str]], Awaitable[Sequence[Entry | None]]]
"""Makes one call, for different keys. Raises CoordinatorError."""

Answer = tuple[int, bool]
"""The revision, and whether an entry changed."""


class _Waiting(NamedTuple):
    writes: Sequence[Write]
    size: int
    """Bytes of keys and values."""
    since: float
    answer: "asyncio.Future[Answer]"


@dataclass(eq=False, repr=False)
class Grouping:
    """Sends transactions in groups.

    Args:
        send: makes one transaction; raises ConflictError with all keys whose guards do not hold.
        call_s: time limit of a call.
    """

    _send: Callable[[Sequence[Write]], Awaitable[Answer]]
    _loop: asyncio.AbstractEventLoop
    _call_s: float
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    async def write(self, writes: Sequence[Write]) -> Answer:
        """Carries out all of these writes or none.

        Raises ConflictError, and CoordinatorError, also if limits.ETCD_CALLS_WAITING transactions wait.
        """
        if len(self._waiting) >= limits.ETCD_CALLS_WAITING:
            raise CoordinatorError(f"{len(self._waiting)} writes wait for etcd already: nothing was written")
        size = sum(len(each.key) + len(each.value or "") for each in writes)
        waiting = _Waiting(writes, size, self._loop.time(), self._loop.create_future())
        self._waiting.append(waiting)
        self._begin_calls()
        return await waiting.answer

    def _begin_calls(self) -> None:
        while self._waiting and len(self._calls) < limits.ETCD_THREADS:
            group = self._next_group()
            if group:
                call = self._loop.create_task(self._perform(group))
                self._calls.add(call)
                call.add_done_callback(self._ended)

    def _ended(self, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._begin_calls()

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        keys: dict[str, int | None] = {}
        """Those that are written: None; those that are checked: the revision that they must have."""
        count = size = 0
        while self._waiting:
            each = self._waiting[0]
            if not each.answer.done():  # its caller may have been cancelled
                size += each.size
                count += len(each.writes)
                if group and (
                    count > WRITES_MAX
                    or size > ETCD_GROUP_BYTES
                    or any(not _fits(write, keys) for write in each.writes)
                ):
                    break
                keys |= {write.key: write.guard if write.is_check else None for write in each.writes}
                group.append(each)
            self._waiting.popleft()
        return group

    async def _perform(self, group: list[_Waiting]) -> None:
        while group:
            try:
                answer = await self._send([write for each in group for write in each.writes])
            except ConflictError as conflict:
                group = self._without(group, conflict)
            except Exception as error:
                _fail(group, error)
                if isinstance(error, CoordinatorError):
                    self._fail_late()
                return
            else:
                for each in group:
                    if not each.answer.done():
                        each.answer.set_result(answer)
                return

    def _without(self, group: list[_Waiting], conflict: ConflictError) -> list[_Waiting]:
        """Fails the transactions of a group whose guards do not hold; returns the others."""
        others = []
        for each in group:
            key = next((write.key for write in each.writes if write.key in conflict.keys), None)
            if key is None:
                others.append(each)
            else:
                _fail([each], ConflictError(key))
        assert len(others) < len(group), "a conflict is about a key of the transaction"
        return others

    def _fail_late(self) -> None:
        """Fails the transactions that have waited for longer than the time limit of a call."""
        before = self._loop.time() - self._call_s
        while self._waiting and self._waiting[0].since < before:
            late = self._waiting.popleft()
            _fail([late], CoordinatorError("etcd does not answer, or is too slow: nothing was written"))


def _fits(write: Write, keys: Mapping[str, int | None]) -> bool:
    """Whether no other transaction of a group writes the key, or expects another revision of it."""
    return write.key not in keys or (write.is_check and keys[write.key] == write.guard)


def _fail(group: list[_Waiting], error: Exception) -> None:
    for each in group:
        if not each.answer.done():
            each.answer.set_exception(error)


@dataclass(slots=True, eq=False, repr=False)
class GroupedReads:
    """The calls of one process."""

    _read: Read
    _loop: asyncio.AbstractEventLoop
    _sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _waiting: "dict[str, asyncio.Future[Entry | None]]" = field(default_factory=dict)
    _task: "asyncio.Task[None] | None" = None
    _due: float = 0.0
    """When the next call may begin, by the clock of the loop."""

    async def entry(self, key: str) -> Entry | None:
        """The entry of a key, read by a call that begins from now on. Raises CoordinatorError."""
        answer = self._waiting.get(key)
        if answer is None:
            if len(self._waiting) >= ETCD_READS_WAITING:
                raise CoordinatorError(f"{len(self._waiting)} entries wait to be read from etcd; try again")
            answer = self._waiting[key] = self._loop.create_future()
            if self._task is None:
                self._task = self._loop.create_task(self._run())
        # Others may wait for the same key, so that the end of one of them does not cancel it.
        return await asyncio.shield(answer)

    async def _run(self) -> None:
        try:
            while self._waiting:
                pause_s = self._due - self._loop.time()
                if pause_s > 0:
                    await self._sleep(pause_s)
                self._due = self._loop.time() + ETCD_READ_MS / 1000
                keys = list(self._waiting)[:ETCD_READ_KEYS]
                answers = [self._waiting.pop(key) for key in keys]
                try:
                    found = await self._read(keys)
                except BaseException as error:
                    answers += self._waiting.values()
                    self._waiting.clear()
                    _refuse(answers, error)
                    if not isinstance(error, Exception):
                        raise
                else:
                    for answer, entry in zip(answers, found, strict=True):
                        answer.set_result(entry)
        finally:
            self._task = None


def _refuse(answers: "Sequence[asyncio.Future[Entry | None]]", error: BaseException) -> None:
    for answer in answers:
        answer.set_exception(
            error if isinstance(error, CoordinatorError) else CoordinatorError(f"etcd was not read: {error}")
        )
        # The requests that waited may have been cancelled.
        answer.exception()
