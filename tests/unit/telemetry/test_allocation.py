"""The bounds of the C library on what it gives back: set in a process of the test's own."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from lightrail.telemetry.process import keep_freed_memory
print(keep_freed_memory())
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    bytes(bytearray(1 << 20))
before = faults()
for _ in range(50):
    first = bytearray(1 << 20)
    second = bytes(first)
    third = bytes(first)
    del first, second, third
print(faults() - before)
"""


def run(**environ: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=kept | environ, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_memory_of_one_message_is_there_for_the_next() -> None:
    is_set, faults = run()
    if is_set == "False":
        pytest.skip("expected a C library with mallopt, found none")
    assert int(faults) < 50 * 256, "less than a third of the pages are taken anew"


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"], ids=["trim", "mmap"])
def test_what_the_environment_sets_stays(name: str) -> None:
    assert run(**{name: "131072"})[0] == "False"
    assert run(GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")[0] == "False"
