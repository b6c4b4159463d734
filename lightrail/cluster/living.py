"""Living: which registered processes of one machine have ended, where no etcd ends their leases.

In a file a registration stays after kill -9. So each process has a file of its own, `living/ROLE-ID-BOOT` in
the data directory, which it keeps locked with flock: the kernel unlocks it when the process ends, whatever
ends it.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from typing import Final

from lightrail.cluster.coordinator import ConflictError, Coordinator, Write
from lightrail.cluster.map import FRONTENDS, GATEWAYS, Map, Member
from lightrail.cluster.membership import member_of
from lightrail.model.settings import Settings

FOLDER: Final = "living"


class Living:
    """The processes of one data directory that are registered in a file.

    Args:
        data: the directory.
    """

    def __init__(self, data: str) -> None:
        self._folder = os.path.join(data, FOLDER)
        self._lock: int | None = None
        self._path = ""

    def begin(self, key: str, boot: int) -> None:
        """Marks this process as living under its registration, until its end. Raises OSError."""
        if self._lock is None:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._path = self._path_of(key, boot)
            self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._forget_predecessors(key, boot)

    def _forget_predecessors(self, key: str, boot: int) -> None:
        """Deletes the files of ended processes under the same key, whose entry this process replaces."""
        start = self._path_of(key, boot).rpartition("-")[0] + "-"
        for each in os.scandir(self._folder):
            former = each.path.removeprefix(start)
            if (
                each.path.startswith(start)
                and each.path != self._path
                and self.has_ended(key, int(former, 16))
            ):
                with suppress(FileNotFoundError):
                    os.unlink(each.path)

    def end(self) -> None:
        """Deletes the mark: the registration has been deleted."""
        if self._lock is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._lock)
            self._lock = None

    def has_ended(self, key: str, boot: int) -> bool:
        """Whether a process has certainly ended; False without its file, as for one of an earlier version."""
        try:
            lock = os.open(self._path_of(key, boot), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    async def forget_ended(self, coordinator: Coordinator, map: Map) -> list[str]:
        """Deletes the registrations of frontends and gateways that have ended; returns their keys.

        Raises CoordinatorError.
        """
        ended = [
            (f"{prefix}{id}", each.boot)
            for prefix, members in ((FRONTENDS, map.frontends), (GATEWAYS, map.gateways))
            for id, each in members.items()
            if self.has_ended(f"{prefix}{id}", each.boot)
        ]
        for key, boot in ended:
            entry = await coordinator.entry(key)
            found = member_of(entry)
            if entry is not None and found is not None and found.boot == boot:
                # After a conflict the registration is that of a successor.
                with suppress(ConflictError):
                    await coordinator.write([Write(key, None, entry.revision)])
            with suppress(FileNotFoundError):
                os.unlink(self._path_of(key, boot))
        return [key for key, _ in ended]

    def clear(self) -> None:
        """Deletes all marks, when no process of the data directory runs."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path_of(self, key: str, boot: int) -> str:
        return os.path.join(self._folder, f"{key.replace('/', '-')}-{boot:08x}")


class Registered:
    """The registrations as they are now, where those of the map may be a moment old."""

    def __init__(self, coordinator: Coordinator, settings: Settings) -> None:
        self._coordinator = coordinator
        self._living = None if settings.etcd else Living(settings.data)

    async def frontend(self, number: int) -> Member | None:
        """The frontend that is registered under a number and has not ended. Raises CoordinatorError."""
        key = f"{FRONTENDS}{number}"
        found = member_of(await self._coordinator.entry(key))
        if found is not None and self._living is not None and self._living.has_ended(key, found.boot):
            return None
        return found
