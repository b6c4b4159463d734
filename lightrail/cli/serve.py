"""``lightrail serve``: a whole broker on this machine, from its data directory to the first message."""

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

from lightrail import native
from lightrail.cli import local_replicas
from lightrail.cli.local_etcd import LocalEtcd, LocalEtcdError
from lightrail.cli.local_replicas import LocalReplicasError
from lightrail.cli.supervisor import ChildError, Limits, ProcessPlan, Supervisor
from lightrail.cluster.coordinator import Coordinator, CoordinatorError, CoordinatorRefusedError, Write
from lightrail.cluster.living import Living
from lightrail.cluster.map import FRONTENDS, GATEWAYS, SHARDS
from lightrail.cluster.opening import OUTSIDE, open_coordinator, open_to_strangers, where
from lightrail.model.endpoint import Endpoint
from lightrail.model.limits import COORDINATOR_PAUSE_MS, COORDINATOR_PAUSE_MS_MAX
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings
from lightrail.shard.startup import data_directory
from lightrail.telemetry import directories, logs
from lightrail.telemetry.channel import Message
from lightrail.telemetry.interpreter import OPTIMISED, UNOPTIMISED

MODULES: Final[Mapping[str, str]] = {
    "shard": "lightrail.shard.main",
    "frontend": "lightrail.frontend.main",
    "gateway": "lightrail.gateway.main",
}
ORPHANS_TIME_MAX_S: Final = 30.0
"""How long a start waits until the children of a killed instance have ended."""
ORPHANS_POLL_S: Final = 0.1

ONE_MACHINE: Final = (
    "all %d members of each shard are on this machine: they show a take-over, and protect from the loss of a "
    "directory alone. For machines, start `lightrail shard --replicas %d` on each of them"
)

log = logging.getLogger(__name__)


class ServeError(Exception):
    """The broker can't start; the message has what was expected, what was found and what to do."""


REFUSALS: Final = (
    ServeError,
    ChildError,
    CoordinatorError,
    LocalEtcdError,
    LocalReplicasError,
    directories.DirectoryRefusedError,
)


def say_if_interpreted(compiled: native.MachineCode) -> None:
    """A line in the log where the machine code of this installation does not fit its frontends and shards."""
    if compiled.is_wrong:
        log.warning("what a message passes is interpreted, for up to twice the CPU: %s", compiled.why_not)


def greeting(settings: Settings, has_users: bool) -> str:
    """The addresses, and three lines for a shell that send and receive a first message."""
    http = settings.http.reachable
    who = "NAME:PASSWORD@" if has_users and not settings.allow_anonymous else ""
    proton = "from proton import Message; from proton.utils import BlockingConnection as C; c = C('$URL')"
    send = "c.create_sender('first').send(Message(body='Hello')); c.close()"
    receive = "r = c.create_receiver('first'); print(r.receive(5).body); r.accept(); c.close()"
    lines = [
        "LightRail is ready.",
        f"  AMQP 1.0  amqp://{settings.amqp.reachable}",
        *([f"  over TLS  amqps://{settings.amqps.reachable}"] if settings.amqps else []),
        f"  HTTP      http://{http}/",
        *([f"  over TLS  https://{settings.https.reachable}/"] if settings.https else []),
        f"  metrics   http://{http}/metrics",
        f"  data      {settings.data} ({settings.frontends} frontends, {settings.shards} shards"
        + (f" of {settings.replicas} members)" if settings.replicas > 1 else ")"),
        "",
        "Send and receive a first message, in another shell:",
        "",
        f"URL=amqp://{who}{settings.amqp.reachable}",
        f'{sys.executable} -c "{proton}; {send}"',
        f'{sys.executable} -c "{proton}; {receive}"',
        "",
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Variant:
    """What a command says that serves a whole broker."""

    command: str = "serve"
    greeting: Callable[[Settings, bool], str] = greeting
    """What is printed when all processes serve; the second argument says whether users are defined."""
    ready: str = ""
    """A line for the log at that time, where the greeting is not printed."""
    hint: str = ""
    """Added to the reason why the broker does not serve other machines without users."""


def serve(
    settings: Settings,
    *,
    as_json: bool = False,
    modules: Mapping[str, str] = MODULES,
    limits: Limits | None = None,
    optimised: bool = OPTIMISED,
    compiled: native.MachineCode | None = None,
    variant: Variant | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status.

    Args:
        compiled: whether there is machine code for the processes; None: it is looked for.
        variant: what another command than ``lightrail serve`` says in its place.

    0: after an orderly end; UNHEALED: no other start helps, as with a store of a newer format; 1: otherwise.
    """
    variant = variant or Variant()
    logs.configure(variant.command, settings.log_level, settings.log_format)
    if not optimised:
        log.warning(UNOPTIMISED)
    say_if_interpreted(compiled or native.find())
    try:
        directories.make_data_directory(settings.data)
        lock = lock_data_directory(os.path.abspath(settings.data))
        try:
            return asyncio.run(_serve(settings, lock, as_json, modules, limits, variant))
        except KeyboardInterrupt:
            return 0  # while waiting for etcd; SIGINT has a handler later
        finally:
            os.close(lock)
    except REFUSALS as error:
        print(f"lightrail {variant.command}: {error}", file=sys.stderr)
        return error.status if isinstance(error, ChildError) else 1


async def _serve(
    settings: Settings,
    lock: int,
    as_json: bool,
    modules: Mapping[str, str],
    limits: Limits | None,
    variant: Variant,
) -> int:
    local_replicas.check(settings)
    async with AsyncExitStack() as outlives:
        # The processes of the broker end first.
        if settings.replicas > 1:
            log.warning(ONE_MACHINE, settings.replicas, settings.replicas)
            if not settings.etcd:
                etcd = LocalEtcd(settings.data, inherited=[lock])
                settings = replace(settings, etcd=(etcd.endpoint,))
                await outlives.enter_async_context(etcd)
        settings, has_users = await prepare(settings)
        refuse_without_users(settings, has_users, variant.hint)
        reserved = outlives.enter_context(ExitStack())
        settings = reserve_all(settings, reserved)
        sockets = directories.socket_directory(settings.data)
        supervisor = Supervisor(plans(settings, modules), settings, sockets, inherited=[lock], limits=limits)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, supervisor.stop, "SIGTERM")
        loop.add_signal_handler(signal.SIGINT, supervisor.stop, "SIGINT")
        loop.add_signal_handler(signal.SIGHUP, supervisor.stop, "SIGHUP")

        def on_ready(processes: list[Message]) -> None:
            text = as_line(settings, processes) if as_json else variant.greeting(settings, has_users)
            if as_json and variant.ready:
                log.info(variant.ready)
            with suppress(BrokenPipeError):  # the parent does not read the output; serve all the same
                print(text, flush=True)

        await supervisor.run(on_ready)
    return 0


async def prepare(settings: Settings) -> tuple[Settings, bool]:
    """Settings with the numbers of processes, which the data directory keeps; whether users are defined."""
    if settings.etcd:
        settings = of_this_machine(settings)
        coordinator = await _when_there(settings)
    else:
        coordinator = await open_coordinator(settings)
    try:
        if not settings.etcd:
            settings = settings.resolved(await coordinator.shards())
            await coordinator.set_shards(settings.shards)
            await forget_members(coordinator)
            Living(settings.data).clear()
        elif settings.replicas > 1:
            await local_replicas.reserve_shards(settings, coordinator)
        return settings, await coordinator.has_users()
    finally:
        await coordinator.close()


def of_this_machine(settings: Settings) -> Settings:
    """Numbers of processes of this machine of a cluster. Raises ServeError, SettingsError."""
    for name in ("metrics", "wire"):
        found: Endpoint = getattr(settings, name)
        if found.port:
            raise SettingsError(
                f"{name} is {found}, but `serve` runs several processes here, and each needs its own port: "
                "leave the port to the system (0), or start the processes one by one"
            )
    shards = (local_replicas if settings.replicas > 1 else data_directory).known(settings.data)
    if 0 < settings.shards < len(shards):
        raise ServeError(
            f"{settings.shards} shards were requested, but {settings.data} has the directories of "
            f"{len(shards)} (shards {', '.join(map(str, shards))}): start with --shards {len(shards)}, or "
            "drain and remove a shard first, and then remove its directory"
        )
    return settings.resolved(len(shards))


async def _when_there(settings: Settings) -> Coordinator:
    """Waits until etcd is reachable; a refusal by etcd is final."""
    pause_s = COORDINATOR_PAUSE_MS / 1000
    logged = False
    while True:
        try:
            return await open_coordinator(settings)
        except CoordinatorRefusedError:
            raise
        except CoordinatorError as error:
            if not logged:
                log.warning("waiting for %s: %s", where(settings), error)
            logged = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, COORDINATOR_PAUSE_MS_MAX / 1000)


async def forget_members(coordinator: Coordinator) -> None:
    """Deletes registrations of a killed instance from the file; this process owns its lock."""
    for prefix in (SHARDS, FRONTENDS, GATEWAYS):
        for entry in await coordinator.entries(prefix):
            await coordinator.write([Write(entry.key, None)])


def plans(settings: Settings, modules: Mapping[str, str]) -> list[ProcessPlan]:
    """The processes of this machine."""
    numbers = {"shard": settings.shards, "frontend": settings.frontends, "gateway": 1}
    members = []
    if settings.replicas > 1:
        del numbers["shard"]
        members = [*local_replicas.plans(settings, modules["shard"])]
    return members + [
        ProcessPlan(role, id, (sys.executable, "-m", modules[role]), auto=bool(settings.etcd))
        for role, number in numbers.items()
        for id in range(number)
    ]


def lock_data_directory(data: str) -> int:
    """Lock DATA/lock for this process and the children that inherit the descriptor. Raises ServeError.

    The directory of a killed instance is free as soon as its children have ended.
    """
    path = os.path.join(data, "lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + ORPHANS_TIME_MAX_S
    waited = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            running = _is_running(holder)
            if running or time.monotonic() > deadline:
                os.close(lock)
                what = f"another instance (pid {holder})" if running else "processes of an ended instance"
                raise ServeError(
                    f"the data directory {data} is in use by {what}: end it, or choose another with --data"
                ) from None
            if not waited:
                log.warning("waiting for the processes of an instance that ended (pid %s)", holder)
                waited = True
            time.sleep(ORPHANS_POLL_S)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _is_running(pid: str) -> bool:
    if not pid.isascii() or not pid.isdigit() or int(pid) == os.getpid():
        return False  # in a restarted container this process has the pid of the first process before
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def refuse_without_users(settings: Settings, has_users: bool, hint: str = "") -> None:
    """Raise ServeError if any host of the network could send and receive, unless insecure_no_users is set."""
    reason = open_to_strangers(settings, has_users)
    if reason is not None:
        raise ServeError(reason + hint)
    if has_users:
        return
    outside = [each for name in OUTSIDE if (each := getattr(settings, name)) and not each.loopback]
    if outside:
        log.warning(
            "no user is defined and %s can be reached from outside: every client has all rights", outside[0]
        )
    else:
        log.info("no user is defined: clients need no password, on loopback only")


def reserve_all(settings: Settings, reserved: ExitStack) -> Settings:
    """Reserve all ports while the stack is open; returns the settings with the ports."""

    def bound(endpoint: Endpoint, name: str) -> Endpoint:
        listener, found = reserve(endpoint, name)
        reserved.enter_context(listener)
        return found

    return replace(
        settings,
        amqp=bound(settings.amqp, "amqp"),
        amqps=bound(settings.amqps, "amqps") if settings.amqps else None,
        http=bound(settings.http, "http"),
        https=bound(settings.https, "https") if settings.https else None,
    )


def reserve(endpoint: Endpoint, name: str) -> tuple[socket.socket, Endpoint]:
    """Bind without listening, so that the port stays reserved while the processes that listen restart.

    Returns the socket and the endpoint with its port. Raises ServeError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if endpoint.port:
            # First without SO_REUSEPORT, with which this broker would share clients with another broker of
            # the same user.
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServeError(_bind_failed(endpoint, name, error)) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ServeError(_bind_failed(endpoint, name, error)) from None
    return listener, Endpoint(endpoint.host, listener.getsockname()[1])


def _bind_failed(endpoint: Endpoint, name: str, error: OSError) -> str:
    return f"{name} can't be served on {endpoint}: {error.strerror}; choose another with --{name} HOST:PORT"


def as_line(settings: Settings, processes: list[Message]) -> str:
    """The line that ``--json`` prints once all processes serve."""
    return json.dumps(
        {
            "ready": True,
            "amqp": str(settings.amqp.reachable),
            "amqps": str(settings.amqps.reachable) if settings.amqps else None,
            "http": str(settings.http.reachable),
            "https": str(settings.https.reachable) if settings.https else None,
            "metrics": f"http://{settings.http.reachable}/metrics",
            "pid": os.getpid(),
            "processes": processes,
        }
    )
