"""The data directory of a shard, and with it the number of the shard.

``DATA/shard-N`` has the messages of shard N; the process that serves them has locked ``DATA/shard-N.lock``. A
process without a configured number uses the first directory that is not locked; if there is none it requests
a new number from the coordinator. The id of the disk for this request is stored in ``DATA/shard-new.json``,
so that a process that ends before it creates the directory leaves no unused number.
"""

import fcntl
import json
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightrail.cluster.generations import Mark
from lightrail.model.endpoint import Endpoint
from lightrail.shard.journal import identity
from lightrail.shard.journal.files import RealFiles
from lightrail.shard.journal.segment import numbers
from lightrail.shard.journal.store import NewerFormatError, StoreRefusedError
from lightrail.telemetry.directories import etcd_address

NAME: Final = re.compile(r"shard-(0|[1-9][0-9]{0,8})")
DISK_FILE: Final = "disk.json"
"""File with the id of the disk, for stores without an identity file."""
MEMBER_FILE: Final = "member.json"
"""File with the id of a member of a shard with replicas that has no journal yet."""
MARK_FILE: Final = "generation.json"
MARK_FORMAT: Final = 1
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""Random id that Linux makes at each boot; the same in all containers of a machine."""
MOUNTS: Final = "/proc/self/mountinfo"
NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "beegfs"),
        *("fuse.glusterfs", "fuse.ceph-fuse", "fuse.sshfs"),
    }
)
"""Kinds of file systems that are on other machines."""
DRAFT: Final = "shard-new.json"

Allocate = Callable[[str], Awaitable[tuple[int, bool]]]
"""Returns the number of a shard for a disk id, and whether the journal is made on this disk; otherwise it is
another member's, and the id is that of the member."""


def network_storage(mounts: str, path: str) -> str:
    """The server of the network file system that has a path; empty for a path on another file system.

    Args:
        mounts: lines of MOUNTS (proc_pid_mountinfo(5)): the mount point is the fifth field, and kind and
            source follow a field of "-".
    """
    longest, kind, source = "", "", ""
    for line in mounts.splitlines():
        first, _, last = line.partition(" - ")
        fields, names = first.split(), last.split()
        if len(fields) < 5 or len(names) < 2:
            continue
        point = fields[4].replace(r"\040", " ").rstrip("/")
        # Of two mounts on one point the later one is seen.
        if f"{path}/".startswith(f"{point}/") and len(point) >= len(longest):
            longest, (kind, source) = point, names[:2]
    if kind not in NETWORK:
        return ""
    server, separator, _ = source.partition(":/")
    return server if separator else source.removeprefix("//").partition("/")[0]


@dataclass(slots=True)
class DataDirectory:
    """A directory that this process has locked as long as it lives."""

    shard: int
    directory: str
    lock: int
    """File descriptor."""

    def leave(self) -> None:
        os.close(self.lock)

    @property
    def disk(self) -> str | None:
        """The id of the disk; None for an empty directory. Raises StoreRefusedError."""
        if not os.path.isdir(self.directory):
            return None
        files = RealFiles(self.directory)
        try:
            found = identity.load_identity(files)
            if found is not None:
                return found.disk
            data = files.load(DISK_FILE)
        finally:
            files.unlock()
        if data is None:
            return None
        try:
            return str(json.loads(data)["disk"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreRefusedError(
                f"expected the id of a disk in {self.directory}/{DISK_FILE}, found {data[:80]!r} ({error}): "
                "restore the file from a copy"
            ) from error

    @property
    def journal(self) -> tuple[str | None, int]:
        """Id and salt of the journal; (None, 0) for a directory without one. Raises StoreRefusedError."""
        found = self._identity()
        return (None, 0) if found is None else (found.disk, found.salt)

    def _identity(self) -> identity.Identity | None:
        if not os.path.isdir(self.directory):
            return None
        files = RealFiles(self.directory)
        try:
            return identity.load_identity(files)
        finally:
            files.unlock()

    def member(self, drawn: str = "") -> str:
        """The id of this directory among the members of its shard; a new directory gets `drawn`, or a random
        one.

        Raises StoreRefusedError, OSError.
        """
        found = self._identity()
        if found is not None:
            return found.member
        os.makedirs(self.directory, exist_ok=True)
        files = RealFiles(self.directory)
        try:
            data = files.load(MEMBER_FILE)
            if data is not None:
                return str(json.loads(data)["member"])
            member = drawn or secrets.token_hex(16)
            files.replace(MEMBER_FILE, json.dumps({"format": 1, "member": member}).encode() + b"\n")
            return member
        except (ValueError, KeyError, TypeError) as error:
            raise StoreRefusedError(
                f"expected the id of a member in {self.directory}/{MEMBER_FILE}, found {data!r}: remove the "
                "file"
            ) from error
        finally:
            files.unlock()

    @property
    def inode(self) -> int:
        """Inode of the directory: a copy has another one, another mount of the volume has the same."""
        return os.stat(self.directory).st_ino

    @property
    def lock_id(self) -> str:
        """The identity of this lock on this running kernel; only one living process can have it.

        Empty if the kernel has no boot id.
        """
        try:
            with open(BOOT_ID, encoding="ascii") as file:
                boot = file.read().strip()
        except OSError:
            return ""
        found = os.fstat(self.lock)
        return f"{boot}:{found.st_dev}:{found.st_ino}"

    @property
    def storage(self) -> str:
        """The server of the network file system that has the directory; empty for one of this machine, and
        where the kernel does not say it."""
        try:
            with open(MOUNTS, encoding="utf-8", errors="replace") as file:
                return network_storage(file.read(), os.path.realpath(self.directory))
        except OSError:
            return ""

    @property
    def mark(self) -> Mark | None:
        """The mark of the last start on this directory; None if there is none. Raises StoreRefusedError."""
        path = os.path.join(self.directory, MARK_FILE)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        try:
            fields: dict[str, Any] = json.loads(data)
            if int(fields["format"]) > MARK_FORMAT:
                raise NewerFormatError(
                    f"{path} has format version {fields['format']}, this program knows {MARK_FORMAT}: start "
                    "it with the newer program that wrote it"
                )
            previous = tuple(str(token) for token in fields["previous"])
            return Mark(int(fields["generation"]), str(fields["token"]), previous)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreRefusedError(
                f"expected the generation of a shard in {path}, found {data[:80]!r} ({error}): restore the "
                "file from a copy"
            ) from error

    def write_mark(self, mark: Mark) -> None:
        """Writes and syncs the mark. Raises OSError."""
        fields = {
            "format": MARK_FORMAT,
            "generation": mark.number,
            "token": mark.token,
            "previous": mark.previous,
        }
        files = RealFiles(self.directory)
        try:
            files.replace(MARK_FILE, json.dumps(fields).encode() + b"\n")
        finally:
            files.unlock()

    def settle(self, store: str, cluster: str, disk: str | None = None) -> str:
        """Gives the directory a disk id, `disk` or a random one, unless it has one. Raises StoreRefusedError.

        A directory of a store in memory gets a new id each time, because it never has the same messages
        again.
        """
        if store == "memory":
            os.makedirs(self.directory, exist_ok=True)
            return disk or secrets.token_hex(16)
        found = self.disk
        if found is not None:
            return found
        disk = disk or secrets.token_hex(16)
        files = RealFiles(self.directory)
        try:
            if store != "journal":
                files.replace(DISK_FILE, json.dumps({"disk": disk}).encode() + b"\n")
            elif not numbers(files):
                # A directory with segments has lost its identity file, which the journal makes again from
                # them.
                identity.settle(files, cluster, self.shard, disk=disk)
        finally:
            files.unlock()
        return disk


def is_beside_etcd(data: str, etcd: Sequence[Endpoint]) -> bool:
    """Whether this etcd belongs to the installation on one machine of which `data` has a member: a copy of it
    as a whole is one installation."""
    return [etcd_address(os.path.dirname(os.path.abspath(data)))] == [*etcd]


def known(data: str) -> list[int]:
    """Shards that have a directory, by number."""
    try:
        names = os.listdir(data)
    except FileNotFoundError:
        return []
    found = (NAME.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match and os.path.isdir(os.path.join(data, match[0])))


def hold(data: str, shard: int) -> DataDirectory | None:
    """Locks the directory of a shard and creates it if missing; None if another process has locked it."""
    directory = os.path.join(data, f"shard-{shard}")
    lock = _lock(f"{directory}.lock")
    return None if lock is None else DataDirectory(shard, directory, lock)


def held_by_other(data: str, shard: int) -> str:
    """The error text if another process has locked the directory of a shard."""
    return (
        f"{os.path.join(data, f'shard-{shard}')} is locked by another process, which serves shard {shard}: "
        "end it, or give this one another directory with --data, or another number with --id"
    )


async def find(data: str, store: str, cluster: str, allocate: Allocate) -> DataDirectory | None:
    """The first directory that is not locked, or a new one; None while another process creates one.

    Raises:
        StoreRefusedError: an existing directory can't be used.
    """
    found = _first(data)
    if found is not None:
        return found
    looking = _lock(os.path.join(data, "shard-new.lock"))
    if looking is None:
        return None
    try:
        # Search again: another process may have created a directory and ended since the first search.
        found = _first(data)
        if found is not None:
            return found
        disk = _draft(data)
        shard, is_first = await allocate(disk)
        found = hold(data, shard)
        if found is None:
            raise StoreRefusedError(held_by_other(data, shard))
        if is_first:
            found.settle(store, cluster, disk)
        else:
            found.member(disk)
        os.unlink(os.path.join(data, DRAFT))
        return found
    finally:
        os.close(looking)


def _first(data: str) -> DataDirectory | None:
    return next((found for shard in known(data) if (found := hold(data, shard)) is not None), None)


def _draft(data: str) -> str:
    """The disk id for a new directory; the same id until the directory is created."""
    path = os.path.join(data, DRAFT)
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = json.loads(file.read())
            return str(found["disk"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass  # Missing or incomplete: no number was requested with it.
    files = RealFiles(data)
    try:
        disk = secrets.token_hex(16)
        files.replace(DRAFT, json.dumps({"disk": disk}).encode() + b"\n")
        return disk
    finally:
        files.unlock()


def _lock(path: str) -> int | None:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
