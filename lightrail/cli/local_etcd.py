"""Local etcd: the server that ``lightrail serve --replicas`` starts for itself, on loopback, below its data.

    DATA/etcd             its data
    DATA/etcd.address     HOST:PORT of its clients, while it runs
    DATA/etcd.log         what it prints, since the last start of ``lightrail serve``

It ends with the supervisor, whatever ends that: the supervisor starts this module as a program
(``python -m lightrail.cli.local_etcd PARENT PROGRAM ARGUMENT ...``), which asks the kernel to end it with its
parent, and then becomes etcd.
"""

import asyncio
import ctypes
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from lightrail.model.endpoint import Endpoint
from lightrail.telemetry.directories import ETCD_ADDRESS

PROGRAM: Final = "etcd"
START_TIME_MAX_S: Final = 30.0
"""From its start until it accepts connections."""
STOP_TIME_MAX_S: Final = 10.0
RESTART_PAUSE_S: Final = 1.0
LOOK_S: Final = 0.05
_HOST: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
"""prctl(2): the signal that a process gets when its parent ends."""

log = logging.getLogger(__name__)


class LocalEtcdError(Exception):
    """etcd can't be started; the message has what was expected, what was found and what to do."""


def directory(data: str) -> str:
    """The directory of its data."""
    return os.path.join(data, "etcd")


def _write_address(data: str, at: Endpoint) -> None:
    path = os.path.join(data, ETCD_ADDRESS)
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(f"{at}\n")
    os.replace(f"{path}.new", path)


class LocalEtcd:
    """One server, started again if it ends, until the block is left.

    Args:
        data: of ``lightrail serve``; the caller has locked it.
        inherited: file descriptors that it keeps open, such as that lock.

    Raises LocalEtcdError: there is no such program.
    """

    def __init__(self, data: str, *, inherited: Sequence[int] = (), program: str = PROGRAM) -> None:
        found = shutil.which(program)
        if found is None:
            raise LocalEtcdError(
                "expected --etcd HOST:PORT,... or a program `etcd` on PATH, found neither: a shard with "
                "replicas needs etcd, which has the name of its owner. Install one to start it on this "
                "machine (Debian and Ubuntu: apt-get install etcd-server), or start without --replicas"
            )
        self._program = found
        self._data = data
        self._inherited = tuple(inherited)
        client, peer = _free_ports(2)
        self.endpoint: Final = Endpoint(_HOST, client)
        self._peer = Endpoint(_HOST, peer)
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def log(self) -> str:
        """Path of its log."""
        return os.path.join(self._data, "etcd.log")

    async def __aenter__(self) -> Self:
        with suppress(FileNotFoundError):
            os.truncate(self.log, 0)
        try:
            await self._start()
            await self._until_answering()
        except BaseException:
            await self._stop()
            raise
        _write_address(self._data, self.endpoint)
        self._keeper = asyncio.create_task(self._keep())
        log.info("etcd of this machine alone serves at %s; its log is %s", self.endpoint, self.log)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._stop()
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._data, ETCD_ADDRESS))

    def command(self) -> list[str]:
        """What starts it."""
        client, peer = f"http://{self.endpoint}", f"http://{self._peer}"
        return [
            *(sys.executable, "-m", "lightrail.cli.local_etcd", str(os.getpid())),
            *(self._program, "--name", "local", "--data-dir", directory(self._data)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"local={peer}", "--logger", "zap", "--auto-compaction-retention", "1h"),
        ]

    async def _start(self) -> None:
        with open(self.log, "ab") as output:  # noqa: ASYNC230 - a local file, at a start
            self._process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=self._inherited,
                process_group=0,  # Ctrl-C reaches the supervisor alone, which ends the shards first
            )

    async def _until_answering(self) -> None:
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIME_MAX_S
        while True:
            if process.returncode is not None:
                raise LocalEtcdError(
                    f"expected etcd ({self._program}) to serve at {self.endpoint}, found that it ended with "
                    f"status {process.returncode}: the last lines of {self.log} have the reason"
                )
            with suppress(OSError):
                _, writer = await asyncio.open_connection(self.endpoint.host, self.endpoint.port)
                writer.close()
                return
            if loop.time() > deadline:
                raise LocalEtcdError(
                    f"expected etcd ({self._program}) to serve at {self.endpoint} within "
                    f"{START_TIME_MAX_S:g} s, found that it accepts no connection: see {self.log}"
                )
            await asyncio.sleep(LOOK_S)

    async def _keep(self) -> None:
        """Starts it again whenever it has ended: the processes of the broker know its address."""
        while True:
            assert self._process is not None
            status = await self._process.wait()
            log.error("etcd ended with status %d, see %s; it is started again", status, self.log)
            await asyncio.sleep(RESTART_PAUSE_S)
            await self._start()

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIME_MAX_S)
        except TimeoutError:
            log.error("etcd did not end in %.0f s and is killed", STOP_TIME_MAX_S)
            process.kill()
            await process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now; another process may take one before etcd does, which then
    ends with the reason."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def main(argv: Sequence[str]) -> None:
    """Becomes a program that ends with its parent, of which the number is the first argument."""
    parent, program, *arguments = argv
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent has ended already")
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
