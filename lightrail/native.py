"""Machine code of the modules that a message passes, where it was made.

It is made from the same sources (scripts/compiling.py, docs/adr/0081-compiled-modules.md): in a checkout by
`make compiled`, in wheels and images when they are built. Only frontends and shards use it, and all of it or
none, because compiled modules call each other in C. LIGHTRAIL_INTERPRETED=1 in the environment selects the
sources, for debuggers.
"""

import hashlib
import os
import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
BUILT: Final = ROOT / "lightrail/_compiled"
LIBRARY: Final = "lightrail__mypyc"
"""The shared library with the code of all modules."""
SUFFIX: Final = EXTENSION_SUFFIXES[0]
MODULES: Final = "modules"
"""File with the paths of the modules, below the root."""
DIGEST: Final = "digest"
"""File with the digests of all sources, in the form of sha256sum."""
ROLES: Final = ("frontend", "shard")
"""Processes that messages pass: those that use machine code."""
COMPILER: Final = ROOT / "scripts/compiling.py"
"""A checkout has it, and an installation has not."""


class MachineCode(NamedTuple):
    """Whether there is machine code that fits the sources and this Python."""

    why_not: str
    """Why it is not used, with what to do, for the log; "" where it is used."""
    is_wrong: bool = False
    """Whether something is wrong: there is machine code, and it does not fit."""

    @property
    def fits(self) -> bool:
        return not self.why_not


def digest_of(root: Path, paths: Iterable[str] | None = None) -> str:
    """A line for each source: its digest and its path. Of all sources of the package, where none are named:
    compiled modules contain constants of those that are not compiled, too.

    A source that is not there has its path alone. Raises OSError for one that can't be read.
    """
    if paths is None:
        paths = sorted(path.relative_to(root).as_posix() for path in (root / "lightrail").rglob("*.py"))
    return "".join(f"{_sum(root / path)}  {path}\n" for path in paths)


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def find(built: Path = BUILT) -> MachineCode:
    """Looks for machine code in a folder, and compares its sources with those that are there: 20 ms."""
    if os.environ.get("LIGHTRAIL_INTERPRETED") or "TRACE_SOCKETS" in os.environ:
        # Neither a debugger nor a profile (cli/trace) sees calls in machine code.
        return MachineCode("LIGHTRAIL_INTERPRETED is set")
    is_checkout = COMPILER.exists()
    try:
        (built / MODULES).stat()
        recorded = (built / DIGEST).read_text()
    except OSError:
        how = "`make compiled`" if is_checkout else "LIGHTRAIL_COMPILED=1 when LightRail is installed"
        return MachineCode(
            f"{how} makes machine code of them, once, in some minutes (docs/operate/running.md)"
        )
    again = "run `make compiled`" if is_checkout else "install LightRail again"
    if not (built / f"{LIBRARY}{SUFFIX}").exists():
        return MachineCode(f"their machine code is of another Python: {again}", is_wrong=True)
    changed = _changed(recorded)
    if changed is not None:
        return MachineCode(f"{changed} has changed since they were compiled: {again}", is_wrong=True)
    return MachineCode("")


def _changed(recorded: str) -> str | None:
    """A source that is not as it was; None if all are. Files that were not there then do not matter.

    An installation without sources has bytecode in their place, which came with the machine code.
    """
    paths = [line.split("  ", 1)[-1] for line in recorded.splitlines()]
    now = digest_of(ROOT, paths)
    if now == recorded:
        return None
    for path, line, before in zip(paths, now.splitlines(), recorded.splitlines(), strict=True):
        if line != before and ((ROOT / path).exists() or not (ROOT / f"{path}c").exists()):
            return path
    return None


class Finder:
    """Finds compiled modules of a folder, ahead of their sources."""

    def __init__(self, built: Path, names: frozenset[str]) -> None:
        self.built = built
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        if name not in self.names:
            return None
        file = str(self.built / f"{name}{SUFFIX}")
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, file))


def install(built: Path = BUILT) -> bool:
    """Makes the imports that follow find the compiled modules of a folder; returns whether there are any that
    fit.

    Raises RuntimeError: some of them were imported before, as sources.
    """
    if not find(built).fits:
        return False
    paths = (built / MODULES).read_text().split()
    names = frozenset(path.removesuffix(".py").replace("/", ".") for path in paths)
    if early := sorted(names & sys.modules.keys()):
        raise RuntimeError(
            f"expected to be installed before the modules of a message, found {', '.join(early)}"
        )
    sys.meta_path.insert(0, Finder(built, names | {LIBRARY}))
    return True


def is_used() -> bool:
    """Whether the modules of a message that this process has loaded are machine code, one at least."""
    finder = next((each for each in sys.meta_path if isinstance(each, Finder)), None)
    if finder is None:
        return False
    loaded = (finder.names - {LIBRARY}) & sys.modules.keys()
    origins = [getattr(sys.modules[name].__spec__, "origin", None) for name in loaded]
    # What a compiled module imports is in the library, and has a path in its folder where there is no file:
    # the finder is not asked for it.
    return bool(loaded) and all(str(each).startswith(f"{finder.built}/") for each in origins)


def described() -> str:
    """A line for the log of a process that has loaded these modules."""
    return f"what a message passes is {'machine code' if is_used() else 'interpreted'}"
