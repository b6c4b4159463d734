"""Process: the common parts of every role's process, from its settings to its orderly end.

A role is one coroutine::

    async def serve(process: Process) -> None:
        server = await Server.open(process.settings, process.id)
        process.report_ready(metrics="127.0.0.1:9001")
        await process.until_stop()          # SIGTERM, SIGINT, or the supervisor ended
        await server.close()

    if __name__ == "__main__":
        sys.exit(main("shard", serve))
"""

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import logging
import os
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import uvloop

from lightrail.model import limits
from lightrail.model.settings import Settings
from lightrail.telemetry import logs
from lightrail.telemetry.channel import Channel, ChannelClosedError, Message
from lightrail.telemetry.directories import socket_directory
from lightrail.telemetry.running import Running

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Free memory at the end of a heap; glibc's own bound rises to twice this with the sizes of freed blocks."""
MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024
"""Blocks of this size and more are mapped separately; glibc allows no larger value, its own bound rises to
it."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
STOP_TIME_MAX_S: Final = 25
"""Time for an orderly end; a process that hangs ends itself after it, with its stack on stderr.
Kubernetes and Docker wait 30 s and 10 s before they kill."""

BOOT_BITS: Final = 31
"""Producer ids are boot << 32 | link; the highest bit marks producers that clients name."""
UNNUMBERED: Final = -1
"""The number of a process that has none yet."""
UNHEALED: Final = os.EX_CONFIG
"""Exit status (78 of sysexits.h) of a process that no other start helps."""
OPEN_FILES_MAX: Final = limits.CONNECTIONS_MAX + 1_024
"""Sockets of clients, and some files for other uses."""

log = logging.getLogger(__name__)


def keep_freed_memory() -> bool:
    """Lets the C library keep freed memory instead of returning it to the kernel at once.

    By default glibc returns the memory of a message of a mebibyte to the kernel and allocates it again for
    the next one: 256 pages, each of which the kernel clears and maps. That cost as much CPU as the remaining
    copies of messages (ADR 36).

    Returns:
        False if the C library has no such bounds, or the environment sets them.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Each of the two calls ends glibc's adjustment of both bounds, so both have to be set.
    kept = mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    mapped = mallopt(_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
    return bool(kept and mapped)


class CannotServeError(Exception):
    """A process can't serve and ends; the message says what was expected, what was found, and what to do.

    Args:
        heals: whether another start may succeed, without a change by an operator.
    """

    def __init__(self, text: str, *, heals: bool = True) -> None:
        super().__init__(text)
        self.heals = heals


class StoppedError(Exception):
    """The process was stopped before it served, which is no error."""


class Process:
    """One running process of a role: its identity, its settings, and whether it has to stop."""

    def __init__(
        self, role: str, id: int | None, settings: Settings, sockets: str, channel: Channel | None = None
    ) -> None:
        self.role = role
        self.id = id if id is not None else UNNUMBERED
        """Its number; UNNUMBERED until `adopt` sets it."""
        self.member = 0
        """Number of a member of a shard with replicas that a supervisor runs, from 1; only shown."""
        self.auto = id is None
        """Whether the process finds a free number itself."""
        self.boot = secrets.randbits(BOOT_BITS)
        """Distinguishes this process from earlier and later processes with the same number."""
        self.replaces: int | None = None
        """The boot of the dead process that the supervisor replaces by this one."""
        self.settings = settings
        self.sockets = sockets
        """Directory of this installation's sockets: those of shards, and the frontends' control sockets."""
        self.ready: Message | None = None
        """The details of report_ready, or None as long as the process does not serve."""
        self.waiting: str | None = None
        """The condition that the process waits for before it can serve."""
        self.check: Callable[[], str | None] = lambda: None
        """Why the process no longer serves after it reported ready, or None."""
        self.notice: Callable[[], str | None] = lambda: None
        """A remark for operators on a process that serves, or None; /readyz adds it to its 200."""
        self.may_list: Callable[[str], Awaitable[bool]] = _nobody
        """Whether a request with this header Authorization may read the names of queues."""
        self.failure: str | None = None
        """The error that ends the process, or None."""
        self.stopping = asyncio.Event()
        self.on_message: Callable[[Message], None] | None = None
        """Called with every later line from the supervisor."""
        self.running = Running(role, lambda: self.id)
        """This process's metrics about itself."""
        self._channel = channel

    @property
    def name(self) -> str:
        member = f"/{self.member}" if self.member else ""
        return self.role if self.id == UNNUMBERED else f"{self.role}-{self.id}{member}"

    def adopt(self, id: int) -> None:
        """Use this number from now on."""
        self.id = id
        logs.configure(self.name, self.settings.log_level, self.settings.log_format)

    @property
    def supervised(self) -> bool:
        """False for a process that was started by hand."""
        return self._channel is not None

    def shard_address(self, shard: int) -> str:
        """The ZeroMQ address on which frontends find a shard."""
        return f"ipc://{self.sockets}/shard-{shard}.sock"

    def report_ready(self, **details: Any) -> None:
        """Report to the supervisor that this process serves, with its addresses, as amqp="127.0.0.1:5672"."""
        self.waiting = None
        self.ready = {"ready": True, "pid": os.getpid(), "id": self.id, "boot": self.boot, **details}
        if self._channel is None:
            log.info("ready: %s", ", ".join(f"{key} {value}" for key, value in self.ready.items()))
            return
        try:
            self._channel.send(self.ready)
        except ChannelClosedError:
            self.stop("the supervisor has ended")

    def not_ready(self) -> str | None:
        """Why /readyz should refuse, or None."""
        if self.stopping.is_set():
            return "stopping"
        if self.ready is None:
            return f"starting: {self.waiting}" if self.waiting else "starting"
        return self.check()

    def wait_for(self, what: str) -> None:
        """Report what the start waits for, at /readyz and to the supervisor, which then waits longer."""
        self.waiting = what
        if self._channel is not None:
            with contextlib.suppress(ChannelClosedError):  # the reader of the channel finds that out as well
                self._channel.send({"waiting": what})

    def fail(self, reason: str) -> None:
        """Begin the orderly end because of an error: the exit status will be 1."""
        if self.failure is None and not self.stopping.is_set():
            self.failure = reason
            self.stop(reason)

    def stop(self, reason: str) -> None:
        """Begin the orderly end; further calls do nothing."""
        if self.stopping.is_set():
            return
        log.info("stopping: %s", reason)
        self.stopping.set()
        # A watchdog in a thread of C: it also ends a process whose loop hangs.
        faulthandler.dump_traceback_later(STOP_TIME_MAX_S, exit=True)

    async def until_stop(self) -> None:
        """Wait until the process has to stop."""
        await self.stopping.wait()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen to signals and to the supervisor on a running loop."""
        loop.add_signal_handler(signal.SIGTERM, self.stop, "SIGTERM")
        if self._channel is None:
            loop.add_signal_handler(signal.SIGINT, self.stop, "SIGINT")
            return
        # Ctrl-C reaches all processes of the terminal's group; the supervisor ends its children in order.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The kernel sends SIGHUP to stopped children of a dead supervisor; the closed channel shows it as
        # well.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._channel.socket.setblocking(False)
        loop.add_reader(self._channel.socket, self._from_supervisor, loop)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Undo watch, so that the loop can close."""
        loop.remove_signal_handler(signal.SIGTERM)
        if self._channel is None:
            loop.remove_signal_handler(signal.SIGINT)
        else:
            loop.remove_reader(self._channel.socket)
            self._channel.close()
        faulthandler.cancel_dump_traceback_later()

    def _from_supervisor(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._channel is not None
        try:
            for message in self._channel.receive():
                if self.on_message is not None:
                    self.on_message(message)
        except ChannelClosedError as error:
            loop.remove_reader(self._channel.socket)
            self.stop(f"the supervisor has ended ({error})")


async def _nobody(_: str) -> bool:
    return False


Serve = Callable[[Process], Awaitable[None]]


def main(role: str, serve: Serve, argv: Sequence[str] | None = None) -> int:
    """Entry of ``python -m lightrail.ROLE.main --supervisor-fd N``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"lightrail.{role}", description=f"A {role} under a supervisor; alone: lightrail {role}"
    )
    parser.add_argument("--supervisor-fd", type=int, required=True, help="inherited end of the channel")
    parser.add_argument("--id", help="only shown in the process list")
    channel = Channel(socket.socket(fileno=parser.parse_args(argv).supervisor_fd))
    try:
        first, *_ = channel.receive()
    except ChannelClosedError as error:
        print(f"lightrail {role}: no settings came from the supervisor: {error}", file=sys.stderr)
        return 1
    settings = Settings.from_json(first["settings"])
    process = Process(role, first["id"], settings, first["sockets"], channel)
    process.replaces = first.get("replaces")
    process.member = first.get("member", 0)
    return run(process, serve)


def alone(role: str, id: int | None, settings: Settings, serve: Serve) -> int:
    """Run one process of a role without a supervisor; ``settings`` must be resolved, ``id`` None: a free
    one."""
    return run(Process(role, id, settings, socket_directory(settings.data)), serve)


def raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed: a frontend has more clients than the usual 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(process: Process, serve: Serve) -> int:
    """Run the role on uvloop until it ends; returns the exit status.

    0: in order; UNHEALED: after an error that no other start helps; 1: after another. Errors are logged.
    """
    logs.configure(process.name, process.settings.log_level, process.settings.log_format)

    async def turn() -> None:
        loop = asyncio.get_running_loop()
        process.watch(loop)
        process.running.watch(loop)
        try:
            await serve(process)
        finally:
            process.running.unwatch()
            process.unwatch(loop)

    raise_file_limit()
    keep_freed_memory()
    with contextlib.suppress(ValueError, OSError):
        faulthandler.enable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(turn())
    except StoppedError:
        return 0
    except CannotServeError as error:
        log.error("%s can't serve: %s", process.name, error)
        return 1 if error.heals else UNHEALED
    except Exception as error:
        if isinstance(error, OSError) and process.ready is None:
            # A port that is taken, or a file system without locks: the place in the code says nothing more.
            log.error("%s can't serve: %s", process.name, error)
        else:
            log.exception("%s failed", process.name)
        return 1
    if process.failure is not None:
        log.error("%s has ended: %s", process.name, process.failure)
        return 1
    if not process.stopping.is_set():
        log.error("%s ended without a request to stop", process.name)
        return 1
    return 0
