"""What `import lightrail.client` loads, in a new Python: the engine, constants, and nothing of others."""

import json
import subprocess
import sys
from typing import Any, Final

import pytest

PACKAGES: Final = ("lightrail.client", "lightrail.amqp")
CONSTANTS: Final = {
    "lightrail",
    "lightrail.model",
    "lightrail.model.conditions",
    "lightrail.model.limits",
    "lightrail.model.protocols",
}
"""What the client loads of LightRail beside PACKAGES. Whatever is added here every application loads, too."""
LINES_MAX: Final = 400_000
"""Lines that an import may execute in all modules that it loads; with CPython 3.11 it executes 280,000."""

MEASURED: Final = """
import json, sys
before, spent = set(sys.modules), 0
def trace(frame, event, _):
    global spent
    spent += event == "line"
    return trace
sys.settrace(trace)
import {module}
sys.settrace(None)
print(json.dumps({{"spent": spent, "modules": sorted(set(sys.modules) - before)}}))
"""
MODULES: Final = ("lightrail.client", "lightrail.client.sync")


def loaded(module: str) -> dict[str, Any]:
    """The lines that its import executes, and the names of all modules that were loaded for it."""
    words = [sys.executable, "-I", "-c", MEASURED.format(module=module)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_client_loads_the_engine_constants_and_nothing_else(module: str) -> None:
    names = set(loaded(module)["modules"])
    assert module in names
    ours = {name for name in names if name.partition(".")[0] == "lightrail"}
    packages = {name for name in ours if name.startswith(PACKAGES)}
    assert ours - packages <= CONSTANTS
    # Compiled modules of the standard library have names of their own there, too. Those of the compiled
    # scanner are made in memory by its import, from no file.
    others = {name.partition(".")[0] for name in names - ours}
    made = {name for name in others if name == "cython_runtime" or name.startswith("_cython_")}
    assert others - made <= sys.stdlib_module_names


@pytest.mark.parametrize("module", MODULES)
def test_the_work_of_an_import_is_bounded(module: str) -> None:
    assert loaded(module)["spent"] <= LINES_MAX
