"""Directories of one installation: its data, the sockets of its processes, and where its etcd is."""

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from lightrail.model.endpoint import Endpoint, endpoint

SOCKET_PATH_BYTES_MAX: Final = 107
"""sockaddr_un holds 108 bytes with the closing zero (unix(7)); ZeroMQ refuses longer ipc:// addresses."""
ETCD_ADDRESS: Final = "etcd.address"
"""File in the data directory of ``lightrail serve`` that runs an etcd, with its HOST:PORT."""
LONGEST_SOCKET: Final = "/frontend-999.control.sock"


class DirectoryRefusedError(Exception):
    """A directory that can't be used; the message names it, the reason, and the remedy."""


def make_data_directory(path: str) -> None:
    """Make the data directory for its owner only, unless it exists. Raises DirectoryRefusedError."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise DirectoryRefusedError(
            f"the data directory {path} can't be made: {error.strerror}; choose another with --data"
        ) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise DirectoryRefusedError(f"the data directory {path} can't be written by user {os.geteuid()}")


def etcd_address(data: str) -> Endpoint | None:
    """Where the etcd of a data directory accepts clients; None if ``lightrail serve`` runs none there."""
    try:
        with open(os.path.join(data, ETCD_ADDRESS), encoding="ascii") as file:
            return endpoint(file.read().strip())
    except (FileNotFoundError, ValueError):
        return None


def socket_directory(data: str) -> str:
    """The directory of the ``shard-N.sock`` and ``frontend-N.control.sock`` files; it is made when absent.

    It is ``DATA/run``. If that is too long for a socket's address, it is a short directory under
    XDG_RUNTIME_DIR or /tmp, whose name is derived from the path of the data, so that processes that were
    started separately find each other.

    Raises:
        DirectoryRefusedError: the short directory belongs to another user, or others may enter it.
    """
    wanted = os.path.join(os.path.abspath(data), "run")
    if len(os.fsencode(wanted + LONGEST_SOCKET)) <= SOCKET_PATH_BYTES_MAX:
        os.makedirs(wanted, mode=0o700, exist_ok=True)
        return wanted
    digest = hashlib.sha256(os.fsencode(os.path.realpath(data))).hexdigest()[:16]
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    short = Path(base) / f"lightrail-{os.geteuid()}-{digest}"
    if len(os.fsencode(str(short) + LONGEST_SOCKET)) > SOCKET_PATH_BYTES_MAX:
        short = Path("/tmp") / short.name
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    private = stat.S_ISDIR(found.st_mode) and found.st_mode & 0o077 == 0
    if not private or found.st_uid != os.geteuid():
        raise DirectoryRefusedError(
            f"{short} is used for sockets because {wanted} is too long for them, but it is not a directory "
            f"that only user {os.geteuid()} may enter: remove it, or choose a shorter --data"
        )
    return str(short)
