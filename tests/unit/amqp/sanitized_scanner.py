"""A plugin of pytest that puts modules built with AddressSanitizer in the place of the compiled ones.

`scripts/fuzz.py` builds them, names their folder in LIGHTRAIL_SANITIZED and loads this with `-p`. The run
fails unless these files are what the engine has read transfers with, under a sanitizer that is active.
"""

import ctypes
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NAMES = ("transfers", "scanner", "redelivery")
"""Those of lightrail.amqp.compiled, which must not be loaded before them."""
FOLDER = Path(os.environ["LIGHTRAIL_SANITIZED"])
PATHS = {name: FOLDER / f"_{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in NAMES}
RUNS = [0]
"""How many runs of transfers the scanner has given."""


def _load(name: str) -> ModuleType:
    full = f"lightrail.amqp._{name}"
    spec = importlib.util.spec_from_file_location(full, PATHS[name])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The next one imports it by this name.
    sys.modules[full] = module
    return module


def _load_all() -> dict[str, ModuleType]:
    if "lightrail.amqp.compiled" in sys.modules:
        raise pytest.UsageError("expected no scanner to be loaded yet, found lightrail.amqp.compiled")
    modules = {name: _load(name) for name in NAMES}
    take = modules["scanner"].take

    def counted(*arguments: Any) -> Any:
        found = take(*arguments)
        RUNS[0] += found is not None
        return found

    modules["scanner"].take = counted  # type: ignore[attr-defined]
    return modules


MODULES = _load_all()


def _faults() -> list[str]:
    """What speaks against a run under the sanitizer."""
    from lightrail.amqp import compiled, runs

    faults = []
    for name, module in MODULES.items():
        path = PATHS[name]
        used = vars(compiled)[name]
        if used is not module or module.__file__ != str(path):
            faults.append(f"expected the engine to use {path}, found {used.__file__}")
        if any(hasattr(module, typed) for typed in ("u32", "_near", "_shorten")):
            faults.append(f"expected a module with the types of _{name}.pxd, found one without")
        if b"__asan_report_load" not in path.read_bytes():
            faults.append(f"expected a module built with -fsanitize=address, found no check of it in {path}")
    if vars(runs)["scanner"] is not compiled.scanner:
        faults.append("expected runs of transfers by the compiled scanner, found another one in runs.py")
    if not hasattr(ctypes.CDLL(None), "__asan_init"):
        faults.append("expected AddressSanitizer in this process, found none (LD_PRELOAD)")
    if os.environ.get("PYTHONMALLOC") != "malloc":
        faults.append("expected PYTHONMALLOC=malloc, without which the bounds of buffers are not known")
    return faults


def pytest_sessionstart() -> None:
    if faults := _faults():
        raise pytest.UsageError("; ".join(faults))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    faults = _faults()
    if not RUNS[0]:
        faults.append("expected runs of transfers from the sanitized scanner, found none")
    if faults:
        print("sanitized scanner:", "; ".join(faults), file=sys.stderr)
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"{RUNS[0]} runs of transfers were read by the sanitized scanner in {FOLDER}")
