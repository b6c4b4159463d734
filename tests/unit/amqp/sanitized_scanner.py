"""A plugin of pytest that puts a scanner built with AddressSanitizer in the place of the installed one.

`scripts/fuzz.py` builds it, names its file in LIGHTRAIL_SANITIZED_SCANNER and loads this with `-p`. The run
fails unless that file is what the engine has read transfers with, under a sanitizer that is active.
"""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NAME = "lightrail.amqp._scanner"
PATH = Path(os.environ["LIGHTRAIL_SANITIZED_SCANNER"])
RUNS = [0]
"""How many runs of transfers the module has given."""


def _load() -> ModuleType:
    if "lightrail.amqp.compiled" in sys.modules:
        raise pytest.UsageError("expected no scanner to be loaded yet, found lightrail.amqp.compiled")
    spec = importlib.util.spec_from_file_location(NAME, PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    take = module.take

    def counted(*arguments: Any) -> Any:
        found = take(*arguments)
        RUNS[0] += found is not None
        return found

    module.take = counted  # type: ignore[attr-defined]
    sys.modules[NAME] = module
    return module


MODULE = _load()


def _faults() -> list[str]:
    """What speaks against a run under the sanitizer."""
    from lightrail.amqp import compiled, runs

    faults = []
    used = vars(runs)["scanner"]
    if not (compiled.scanner is used is MODULE and MODULE.__file__ == str(PATH)):
        faults.append(f"expected the engine to use {PATH}, found {used.__file__}")
    if hasattr(MODULE, "_u32"):
        faults.append("expected a module with the types of _scanner.pxd, found one without")
    if b"__asan_report_load" not in PATH.read_bytes():
        faults.append(f"expected a module built with -fsanitize=address, found none of its checks in {PATH}")
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
    terminalreporter.write_line(f"{RUNS[0]} runs of transfers were read by the sanitized scanner {PATH}")
