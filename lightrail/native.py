"""Machine code of the modules that a message passes, where `make compiled` has made it.

It is made from the same sources (scripts/compiling.py, docs/adr/0081-compiled-modules.md). Only frontends
and shards use it, and all of it or none, because compiled modules call each other in C.
LIGHTRAIL_INTERPRETED=1 in the environment selects the sources, for debuggers.
"""

import hashlib
import logging
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Final

log = logging.getLogger("lightrail.native")

ROOT: Final = Path(__file__).resolve().parent.parent
BUILT: Final = ROOT / "lightrail/_compiled"
LIBRARY: Final = "lightrail__mypyc"
"""The shared library with the code of all modules."""
SUFFIX: Final = EXTENSION_SUFFIXES[0]
MODULES: Final = "modules"
"""File with the paths of the modules, below the root."""
DIGEST: Final = "digest"


def digest_of(root: Path) -> str:
    """Of all sources: compiled modules contain constants of those that are not compiled, too."""
    digest = hashlib.sha256()
    for path in sorted((root / "lightrail").rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


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
    """Makes the imports that follow find the compiled modules of a folder; returns whether there are any.

    Raises RuntimeError: some of them were imported before, as sources.
    """
    if os.environ.get("LIGHTRAIL_INTERPRETED") or "TRACE_SOCKETS" in os.environ:
        # Neither a debugger nor a profile (cli/trace) sees calls in machine code.
        return False
    try:
        paths = (built / MODULES).read_text().split()
        digest = (built / DIGEST).read_text()
    except OSError:
        return False
    if not (built / f"{LIBRARY}{SUFFIX}").exists():
        log.warning("the compiled modules are not used, as they are of another Python: run `make compiled`")
        return False
    if digest_of(ROOT) != digest:
        log.warning("the compiled modules are not used, because sources have changed: run `make compiled`")
        return False
    names = frozenset(path.removesuffix(".py").replace("/", ".") for path in paths)
    if early := sorted(names & sys.modules.keys()):
        raise RuntimeError(
            f"expected to be installed before the modules of a message, found {', '.join(early)}"
        )
    sys.meta_path.insert(0, Finder(built, names | {LIBRARY}))
    return True
