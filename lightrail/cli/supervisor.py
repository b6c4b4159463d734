"""Supervisor: starts, restarts and stops the processes of one machine in order.

Shards come first, frontends and the gateway together when all shards serve. A process that dies, or is not
ready in time, is started again after a pause that doubles from RESTART_PAUSE_MIN_S to RESTART_PAUSE_MAX_S. At
the end frontends and the gateway stop first: they close their clients' connections and disconnect from the
shards; then the shards sync and stop. Each child has one end of a socket pair: when the supervisor ends, for
whatever reason, the children end, too.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from lightrail.model.settings import Settings
from lightrail.telemetry.channel import Channel, ChannelClosedError, Message
from lightrail.telemetry.process import UNHEALED

RESTART_PAUSE_MIN_S: Final = 0.1
RESTART_PAUSE_MAX_S: Final = 5.0
HEALTHY_TIME_S: Final = 10.0
"""A child that served for this time starts again with the shortest pause."""
START_ATTEMPTS_MAX: Final = 5
"""Failed starts of a child that has never served after which the supervisor gives up."""
READY_TIME_MAX_S: Final = {"shard": 900.0, "frontend": 300.0, "gateway": 300.0}
"""From start to ready. A shard reads its journal in this time, about 3 s per million small messages; all of
them read the names and placements, 3 s of CPU for limits.NAMES_MAX, on a machine that may be busy."""
STOP_TIME_MAX_S: Final = 30.0
"""From SIGTERM to SIGKILL; a role's own watchdog ends it a little earlier."""
START_ORDER: Final = (("shard",), ("frontend", "gateway"))
STOP_ORDER: Final = (("frontend", "gateway"), ("shard",))

log = logging.getLogger(__name__)


class ChildError(Exception):
    """A child can't be started; the message names the child, whose log has the reason.

    Attributes:
        status: exit status for `lightrail serve`; UNHEALED if no other start helps.
    """

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to keep running; ``command`` gets ``--supervisor-fd N --id ID`` behind it."""

    role: str
    id: int
    command: Sequence[str]
    auto: bool = False
    """Whether the process chooses its number; then `id` only distinguishes the plans."""
    member: int = 0
    """Number of a member of a shard with replicas, from 1; they have the shard's number as `id`."""
    settings: Settings | None = None
    """Settings of the process, if they differ from those of the supervisor."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of the process beside those of the supervisor."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.number}"

    @property
    def number(self) -> str:
        """Distinguishes plans of one role."""
        return f"{self.id}/{self.member}" if self.member else str(self.id)


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of the supervisor in seconds; tests shorten them."""

    pause_min: float = RESTART_PAUSE_MIN_S
    pause_max: float = RESTART_PAUSE_MAX_S
    ready: float | None = None
    """None: by role, READY_TIME_MAX_S."""
    stop: float = STOP_TIME_MAX_S


class Child:
    """One process, its restarts, and its last report."""

    def __init__(self, plan: ProcessPlan, supervisor: "Supervisor") -> None:
        self.plan = plan
        self.details: Message | None = None
        """Report that the process sent when it became ready; None while it does not serve."""
        self.restarts = 0
        self.pid = 0
        self.number: int | None = None if plan.auto else plan.id
        """The number that the process reported last."""
        self.boot: int | None = None
        """Report of the last process that was ready."""
        self.waiting = False
        """Whether the process reported that it waits for a service, such as etcd."""
        self._supervisor = supervisor
        self._channel: Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._changed = asyncio.Event()

    def describe(self) -> Message:
        """The description for the gateway and ``serve --json``."""
        details = self.details or {}
        return {
            "role": self.plan.role,
            "id": self.plan.id if self.number is None else self.number,
            "member": self.plan.member,
            "follows": bool(details.get("follows")),
            "pid": self.pid,
            "ready": self.details is not None,
            "restarts": self.restarts,
            "metrics": details.get("metrics"),
            "control": details.get("control"),
        }

    async def keep(self) -> None:
        """Run the process, again and again, until the supervisor stops. Raises ChildError."""
        pause = self._supervisor.limits.pause_min
        vain = 0
        loop = asyncio.get_running_loop()
        while not self._supervisor.stopping.is_set():
            ready_at: float | None = None
            status = 1
            try:
                await self._start()
                if await self._until_ready():
                    ready_at = loop.time()
                status = await self._until_exit()
                end = self._described(status)
            except OSError as error:
                end = f"could not be started: {error}"
            finally:
                self._forget()
            if self._supervisor.stopping.is_set():
                return
            if ready_at is not None:
                vain = 0
                if loop.time() - ready_at >= HEALTHY_TIME_S:
                    pause = self._supervisor.limits.pause_min
            else:
                vain += 1
                if status == UNHEALED and not self._supervisor.served:
                    raise ChildError(
                        f"{self.plan.name} {end}: its last line has the reason, and no other start helps",
                        status,
                    )
                if vain >= START_ATTEMPTS_MAX and not self._supervisor.served:
                    raise ChildError(f"{self.plan.name} {end}; it has been started {vain} times in vain")
            log.warning("%s %s; starting it again in %.1f s", self.plan.name, end, pause)
            self.restarts += 1
            self._supervisor.changed()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._supervisor.stopping.wait(), pause)
            pause = min(pause * 2, self._supervisor.limits.pause_max)

    async def until_serving(self) -> None:
        """Wait until the process has reported ready."""
        while self.details is None:
            self._changed.clear()
            await self._changed.wait()

    def send(self, message: Message) -> None:
        """Send the process a message, if it runs."""
        if self._channel is not None and self.details is not None:
            with suppress(ChannelClosedError):  # it has just ended, or does not read: keep() handles its exit
                self._channel.send(message)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after `Limits.stop`."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._supervisor.limits.stop)
        except TimeoutError:
            log.error("%s did not end in %.0f s and is killed", self.plan.name, self._supervisor.limits.stop)
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """SIGKILL, at once."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._channel = channel = Channel(ours)
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.plan.command,
                "--supervisor-fd",
                str(theirs.fileno()),
                "--id",
                self.plan.number,
                stdin=subprocess.DEVNULL,
                env=os.environ | self.plan.environ,
                stdout=2,  # stdout is the supervisor's, for its report to the caller
                pass_fds=(theirs.fileno(), *self._supervisor.inherited),
                process_group=0,  # a signal to the whole group, as of timeout(1), must not undo the order
            )
        finally:
            theirs.close()
        self.pid = process.pid
        with suppress(ChannelClosedError):  # it has ended already, and keep() handles its exit
            channel.send(self._supervisor.first_message(self))
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._from_child, channel)
        if self._supervisor.stopping.is_set():
            self.kill()  # stop() may have been called while the process was being started

    def _from_child(self, channel: Channel) -> None:
        try:
            for message in channel.receive():
                if message.get("waiting"):
                    self.waiting = True
                if message.get("ready"):
                    self.waiting = False
                    self.details = message
                    self.number = message.get("id", self.plan.id)
                    self.boot = message.get("boot")
                    self._changed.set()
                    self._supervisor.changed()
        except ChannelClosedError:
            asyncio.get_running_loop().remove_reader(channel.socket)

    async def _until_ready(self) -> bool:
        """Returns True when the process serves, False if it ended before, or was killed after the time."""
        assert self._process is not None
        limit = self._supervisor.limits.ready or READY_TIME_MAX_S[self.plan.role]
        tasks = [asyncio.ensure_future(self._process.wait()), asyncio.ensure_future(self.until_serving())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            while not done and self.waiting:
                # A waiting process is not restarted: it would only wait again.
                self.waiting = False
                done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not done:
            log.error("%s was not ready in %.0f s and is killed", self.plan.name, limit)
            self.kill()
        return self.details is not None

    async def _until_exit(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    def _described(self, status: int) -> str:
        """The end of the process; a negative status is the signal that ended it."""
        if status >= 0:
            return f"(pid {self.pid}) ended with status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"(pid {self.pid}) was ended by {name}"

    def _forget(self) -> None:
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel.socket)
            self._channel.close()
            self._channel = None
        self.kill()
        self._process = None
        self.details = None
        self.pid = 0
        self.waiting = False


class Supervisor:
    """All children of one machine. ``run`` returns after ``stop``, when all children have ended."""

    def __init__(
        self,
        plans: Sequence[ProcessPlan],
        settings: Settings,
        sockets: str,
        *,
        inherited: Sequence[int] = (),
        limits: Limits | None = None,
    ) -> None:
        self.settings = settings
        self.sockets = sockets
        self.inherited = tuple(inherited)
        """File descriptors that the children inherit, such as the lock of the data directory."""
        self.limits = limits or Limits()
        self.stopping = asyncio.Event()
        self.served = False
        """Whether all children have been ready at the same time."""
        self.children = [Child(plan, self) for plan in plans]

    async def run(self, on_ready: Callable[[list[Message]], None]) -> None:
        """Start, call ``on_ready`` once with every child's description, keep them running, stop them.

        Raises ChildError if a child can't be started at all; then the others have ended.
        """
        keepers: list[asyncio.Task[None]] = []
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            for roles in START_ORDER:
                batch = [child for child in self.children if child.plan.role in roles]
                keepers += [asyncio.create_task(child.keep()) for child in batch]
                serving = asyncio.gather(*(child.until_serving() for child in batch))
                try:
                    await self._first(serving, stopping, *keepers)
                finally:
                    serving.cancel()
                    await asyncio.gather(serving, return_exceptions=True)
                if self.stopping.is_set():
                    return
            self.served = True
            # First the gateway: a client that reads the report may send requests at once.
            self.changed()
            on_ready([child.describe() for child in self.children])
            await self._first(stopping, *keepers)
        finally:
            self.stopping.set()
            await self._stop_in_order()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(stopping, *keepers, return_exceptions=True)

    def stop(self, reason: str) -> None:
        """Stop the children in order; a second call kills those that still run."""
        if self.stopping.is_set():
            log.warning("%s again: killing what still runs", reason)
            for child in self.children:
                child.kill()
            return
        log.info("stopping: %s", reason)
        self.stopping.set()

    def changed(self) -> None:
        """Send the gateway the list of children after a change."""
        if self.served:
            processes = [child.describe() for child in self.children]
            for child in self.children:
                if child.plan.role == "gateway":
                    child.send({"processes": processes})

    def first_message(self, child: Child) -> Message:
        return {
            "role": child.plan.role,
            # A shard has the number of its directory; other roles keep the number of the former process.
            "id": None if child.plan.auto and child.plan.role == "shard" else child.number,
            "replaces": child.boot,
            "member": child.plan.member,
            "settings": (child.plan.settings or self.settings).to_json(),
            "sockets": self.sockets,
        }

    async def _first(self, *futures: "asyncio.Future[Any]") -> None:
        """Wait until the first of these is done, and raise its exception."""
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()

    async def _stop_in_order(self) -> None:
        for roles in STOP_ORDER:
            await asyncio.gather(*(child.stop() for child in self.children if child.plan.role in roles))
