"""Joining: how a process of any role opens the coordinator, gets its number, and registers.

    joining = await Joining.begin(process)              # waits for etcd without a time limit
    await joining.take_number(FRONTENDS)                # a shard chooses its number by its disk instead
    await joining.register(address="tcp://10.0.0.1:5680")
    ...
    await joining.leave()

Calls to the coordinator before the process serves are retried until they succeed. Later the
coordinator may fail and recover at any time: the registration is written again automatically.
"""

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any, Final, TypeVar

from lightrail.cluster import membership
from lightrail.cluster.coordinator import Coordinator, CoordinatorError, CoordinatorRefusedError
from lightrail.cluster.living import Living
from lightrail.cluster.map import Member
from lightrail.cluster.membership import MemberRefusedError
from lightrail.cluster.opening import may_list, open_coordinator, open_to_strangers, where
from lightrail.model import limits
from lightrail.model.endpoint import Endpoint, is_loopback
from lightrail.model.settings import Settings
from lightrail.telemetry.process import CannotServeError, Process, StoppedError
from lightrail.telemetry.wire import WIRE_FAMILIES
from lightrail.wire.sockets import keys
from lightrail.wire.sockets.counts import WireCounts
from lightrail.wire.sockets.keys import WireKey, WireKeyError
from lightrail.wire.sockets.wiring import Wiring

ETCD_OPEN_MS_MAX: Final[int] = 60_000
"""The same for one attempt of a process."""

log = logging.getLogger("lightrail.cluster.joining")

Answer = TypeVar("Answer")
FIRST_OPENINGS_S: Final = (2.0, 5.0, 10.0)
"""Time-outs of the first attempts to open etcd: the first one fails soon, so that the reason can be shown,
and later ones have time to read a large key space."""
LEAVE_TIME_MAX_S: Final = 2.0
"""How long the end waits until the registration is deleted; without etcd the lease expires."""


class Joining:
    """One process that joins the cluster, is a member, and leaves it."""

    def __init__(self, process: Process, coordinator: Coordinator, key: WireKey | None) -> None:
        self.process = process
        self.coordinator = coordinator
        self._key = key
        """Of the wire; None without a key, and without etcd."""
        self._counts = WireCounts()
        process.running.show(WIRE_FAMILIES, self._counts)
        self.own = Member(
            id=max(process.id, 0),
            boot=process.boot,
            host=process.settings.replica_host or socket.gethostname(),
            zone=process.settings.zone or "",
            version=version("lightrail"),
            started_ms=time.time_ns() // 1_000_000,
        )
        self._entry: str | None = None
        self._dead: int | None = None
        """The boot of a process that has ended, and may still be registered under this number."""
        self._living = None if process.settings.etcd else Living(process.settings.data)

    @classmethod
    async def begin(cls, process: Process) -> "Joining":
        """Opens the coordinator. Raises CannotServeError, StoppedError."""
        settings = process.settings
        try:
            key = keys.read(settings.wire_key) if settings.etcd else None
        except WireKeyError as error:
            raise CannotServeError(str(error)) from None
        if settings.etcd and key is None and not settings.wire.loopback:
            if not settings.insecure_wire:
                raise CannotServeError(
                    f"the wire {settings.wire} can be reached from other machines and has no key: "
                    "every program in the network could send, settle and export all messages. Make a key "
                    "with `lightrail wire-key FILE`, and start all "
                    "processes with --wire-key FILE, or set --insecure-wire if no other program is in "
                    "that network"
                )
            log.warning(
                "the wire %s has no key (insecure_wire): every program that reaches it has access",
                settings.wire,
            )
        process.waiting = f"waiting for {where(settings)}"
        wait_s = itertools.chain(FIRST_OPENINGS_S, itertools.repeat(ETCD_OPEN_MS_MAX / 1000))
        coordinator = await patiently(process, lambda: open_coordinator(settings, next(wait_s)))
        process.may_list = partial(may_list, coordinator)
        return cls(process, coordinator, key)

    # --- addresses -------------------------------------------------------------------------------------

    @property
    def wire(self) -> str | None:
        """The ZeroMQ address to bind; None for one in the directory of sockets."""
        settings = self.process.settings
        return f"tcp://{settings.wire}" if settings.etcd else None

    @cached_property
    def wiring(self) -> Wiring:
        """Makes the sockets of this process."""
        return self.new_wiring()

    def new_wiring(self) -> Wiring:
        """For sockets that end together: ZeroMQ has a thread for all that one Wiring makes."""
        on_loop = self.process.settings.wire_sockets == "loop"
        return Wiring(asyncio.get_running_loop(), self._key, on_loop=on_loop, counts=self._counts)

    def reachable(self, bound: str) -> str:
        """The address that is published for a bound one."""
        if not bound.startswith("tcp://"):
            return bound
        return f"tcp://{Endpoint(advertised(self.process.settings), int(bound.rpartition(':')[2]))}"

    def cannot_bind(self, error: OSError) -> CannotServeError:
        """Why the wire can't be served."""
        wire = self.process.settings.wire
        return CannotServeError(
            f"the wire can't be served on {wire}: {error.strerror}; choose another with --wire HOST:PORT"
        )

    # --- number and registration -----------------------------------------------------------------------

    async def take_number(self, prefix: str) -> None:
        """For processes that store nothing: the number of the settings, or the smallest free one.

        Raises CannotServeError, StoppedError.
        """
        process = self.process
        if process.auto:
            await self._take_any(prefix)
        elif process.settings.etcd:
            try:
                await self._take(prefix)
            except MemberRefusedError as error:
                if process.replaces is None:
                    raise CannotServeError(str(error)) from None
                await self._take_any(prefix)
        else:
            self._entry = f"{prefix}{process.id}"

    async def until_free(self, key: str, dead: int | None = None) -> None:
        """See membership.until_free. Raises CannotServeError, MemberRefusedError, StoppedError.

        Args:
            dead: the boot of a process that has ended, as the caller knows.
        """
        # The supervisor's former process with this number has ended, too.
        self._dead = self.process.replaces if dead is None else dead
        if self.process.settings.etcd:
            await patiently(self.process, lambda: self._until_free(key))
        # Otherwise no process that was registered in the file of this data directory is alive.

    async def _until_free(self, key: str) -> int:
        process = self.process

        def waiting(what: str) -> None:
            if process.waiting != what:
                log.info("%s", what)
            process.wait_for(what)

        return await membership.until_free(
            self.coordinator,
            key,
            self.own,
            lease_ms=limits.ETCD_LEASE_MS,
            replaces=self._dead,
            clock=time.monotonic,
            waiting=waiting,
        )

    async def _take(self, prefix: str) -> None:
        key = f"{prefix}{self.process.id}"
        if self.process.replaces is not None:

            async def holder() -> Member | None:
                found = membership.member_of(await self.coordinator.entry(key))
                return membership.holder(found, self.own, self.process.replaces)

            if await patiently(self.process, holder) is not None:
                raise MemberRefusedError("another process has the number now")
        self._entry, self._dead = key, self.process.replaces
        await patiently(self.process, lambda: self._register(key))

    async def _take_any(self, prefix: str) -> None:
        value = self.own.encode()
        id = await patiently(
            self.process, lambda: membership.take_number(self.coordinator, prefix, value, self._displaced)
        )
        self._entry = f"{prefix}{id}"
        self.adopt(id)

    def adopt(self, id: int) -> None:
        """Sets the number of the process."""
        self.process.adopt(id)
        self.own = replace(self.own, id=id)

    async def register(self, key: str | None = None, *, displaces: bool = False, **fields: Any) -> None:
        """Registers the process with these fields of a Member.

        Args:
            displaces: in place of a process that may live; the fence decides who may register.

        Raises CannotServeError, StoppedError.
        """
        self._entry = key or self._entry
        self.own = replace(self.own, **fields)
        entry = self._entry
        assert entry is not None, "the process has its number already"
        if self._living is not None:
            try:
                self._living.begin(entry, self.own.boot)
            except OSError as error:
                raise CannotServeError(f"the process can't be marked as living: {error}") from None
        try:
            await patiently(self.process, lambda: self._register(entry, displaces=displaces))
        except MemberRefusedError as error:
            raise CannotServeError(str(error)) from None

    async def _register(self, entry: str, *, displaces: bool = False) -> None:
        if displaces or not self.process.settings.etcd:
            # In a file the entry of a killed process stays, and nothing that it has sent arrives later.
            return await self.coordinator.register(entry, self.own.encode(), self._displaced)
        await membership.register(
            self.coordinator, entry, self.own, self._displaced, lambda: self._until_free(entry)
        )

    def _displaced(self, value: str) -> None:
        assert self._entry is not None
        reason = membership.displaced_by(self._entry, value, self.own)
        if reason is not None:
            self._entry = None
            self.process.fail(reason)

    async def leave(self) -> None:
        """Deletes the registration, if the coordinator can be reached, and ends; all sockets are closed."""
        if self._entry is not None:
            with suppress(CoordinatorError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIME_MAX_S):
                    await self.coordinator.unregister(self._entry)
                    if self._living is not None:
                        self._living.end()
        await self.coordinator.close()
        if "wiring" in vars(self):
            self.wiring.close()

    def refuse_strangers(self, has_users: bool) -> None:
        """Raises CannotServeError if every client in the network had access, unless the settings allow it.

        A supervisor has checked this already.
        """
        settings = self.process.settings
        reason = open_to_strangers(settings, has_users)
        if reason is not None and settings.etcd and not self.process.supervised:
            raise CannotServeError(reason)


def advertised(settings: Settings) -> str:
    """The name or address by which other machines reach this one."""
    if settings.advertise:
        return settings.advertise
    host = settings.wire.host
    return socket.gethostname() if host in ("0.0.0.0", "::") else host


def reachable_metrics(settings: Settings, bound: Endpoint) -> str:
    """``HOST:PORT`` of this process's /metrics for other machines; loopback works only on this machine."""
    if not settings.etcd:
        return str(bound.reachable)
    if bound.reachable != bound:  # the wildcard address
        host = advertised(settings)
        return str(Endpoint("127.0.0.1" if is_loopback(host) else host, bound.port))
    return str(bound)


async def patiently(process: Process, work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeats `work` until the coordinator has answered; meanwhile /readyz has the reason of the wait.

    Raises:
        CannotServeError: the coordinator refuses; without etcd any error, because waiting does not repair
        a file. StoppedError: the process has to end.
    """
    pause_s = limits.COORDINATOR_PAUSE_MS / 1000
    waited_for: str | None = None
    while True:
        try:
            answer = await _unless_stopped(process, work())
        except CoordinatorRefusedError as error:
            raise CannotServeError(str(error)) from None
        except CoordinatorError as error:
            if not process.settings.etcd:
                raise CannotServeError(str(error)) from None
            if waited_for != str(error):
                waited_for = str(error)
                log.warning("waiting for %s: %s", where(process.settings), error)
            process.wait_for(f"waiting for {where(process.settings)}: {error}")
        else:
            if waited_for is not None:
                log.info("%s has answered", where(process.settings))
            process.waiting = None
            return answer
        await _unless_stopped(process, asyncio.sleep(pause_s))
        pause_s = min(2 * pause_s, limits.COORDINATOR_PAUSE_MS_MAX / 1000)


async def _unless_stopped(process: Process, work: Awaitable[Answer]) -> Answer:
    task = asyncio.ensure_future(work)
    stop = asyncio.ensure_future(process.until_stop())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise StoppedError
        return task.result()
    finally:
        for each in (task, stop):
            each.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)
