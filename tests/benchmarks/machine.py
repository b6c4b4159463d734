"""The machine that a measurement was made on, in words that say what could make it differ from another."""

import os
import platform
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


def describe(scratch: str) -> dict[str, str]:
    """Processor, memory, system, interpreter, disk and the state of the tree."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{_memory_bytes() / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "disk": f"{file_system(scratch)} on {_disk_kind(scratch)}",
        "commit": _commit(),
    }


def default_scratch() -> str:
    """A directory on a disk: on a file system in memory a sync would cost nothing."""
    for folder in (tempfile.gettempdir(), "/var/tmp", str(ROOT)):
        if (
            os.path.isdir(folder)
            and os.access(folder, os.W_OK)
            and file_system(folder) not in MEMORY_FILE_SYSTEMS
        ):
            return folder
    return tempfile.gettempdir()


def file_system(path: str) -> str:
    """The type of the file system that holds ``path``."""
    return _mount(path)[1]


def load() -> float:
    """Processes that wanted to run in the last minute: what else the machine does."""
    return os.getloadavg()[0]


def _mount(path: str) -> tuple[str, str]:
    """(device, type) of the mount with the longest common path."""
    path = os.path.realpath(path)
    best, found = "", ("?", "?")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, point, kind = line.split()[:3]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, found = point, (device, kind)
    return found


def _disk_kind(path: str) -> str:
    device = os.path.basename(_mount(path)[0]).rstrip("0123456789")
    if device.startswith(("vd", "xvd", "nbd")):
        return "a virtual disk"
    try:
        rotational = Path(f"/sys/block/{device}/queue/rotational").read_text().strip()
    except OSError:
        return "a device of unknown kind"
    return "a rotating disk" if rotational == "1" else "a solid-state disk"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    try:
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
