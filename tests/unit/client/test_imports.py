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
CPU_S_MAX: Final = 0.150
RUNS: Final = 5

MEASURED: Final = """
import json, sys, time
before, began = set(sys.modules), time.process_time()
import {module}
spent = time.process_time() - began
print(json.dumps({{"spent": spent, "modules": sorted(set(sys.modules) - before)}}))
"""
MODULES: Final = ("lightrail.client", "lightrail.client.sync")


def loaded(module: str) -> dict[str, Any]:
    """CPU seconds of its import, and the names of all modules that were loaded for it."""
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
def test_the_import_takes_less_than_150_ms_of_cpu(module: str) -> None:
    """The least of several runs: other work on the machine makes a run slower, and none faster."""
    assert min(loaded(module)["spent"] for _ in range(RUNS)) <= CPU_S_MAX
