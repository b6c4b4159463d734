"""Fuzzes what reads AMQP and ZMTP: with a compiled scanner, the interpreted one, one under AddressSanitizer.

`make fuzz` runs it. Each of the three goes through the generated-input tests with fresh examples, and spends
LIGHTRAIL_SOAK_SECONDS (60 unless set) on mutated conversations with one engine, and as long on those with the
reader of ZMTP and on comparing the readers of transfers. What fails says its seed:
`LIGHTRAIL_SOAK_SECONDS=0 make fuzz ARGS="--seed N"` plays it.

Under AddressSanitizer its modules are built in a temporary directory; the installed ones stay. A small one
that is built in the same way and reads beyond a buffer has to be caught first.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lightrail.amqp.compiled import NAMES

ROOT = Path(__file__).resolve().parent.parent
TESTS = [
    "tests/unit/amqp/test_scanner.py",
    "tests/unit/amqp/test_shapes.py",
    "tests/unit/amqp/test_fuzz_feed.py",
    "tests/unit/amqp/test_fuzz_long.py",
    "tests/unit/amqp/test_fuzz_readers.py",
    "tests/unit/wire/sockets/test_fuzz_zmtp.py",
]
STAGES = ("compiled", "interpreted", "sanitized")
SECONDS = 60
SANITIZED = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g", "-O1"]
OPTIONS = {
    # Python frees little of what it has at its end. An abort lets faulthandler name the test.
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    # Python's own allocator would hide where a buffer ends.
    "PYTHONMALLOC": "malloc",
}

PROBE = """\
# cython: language_level=3, boundscheck=False, wraparound=False


def octet(bytes data, Py_ssize_t at):
    return data[at]
"""
# A bytes object has one octet of its own behind the last: 64 is still inside, 65 is foreign.
READ_PROBE = """\
import sys
sys.path.append(sys.argv[1])
import probe
probe.octet(bytes(64), int(sys.argv[2]))
"""
INSIDE, BEYOND = "63", "65"
REPORT = "AddressSanitizer: heap-buffer-overflow"


class FuzzError(Exception):
    """What keeps the run from being one, or a finding; for the person who started it."""


def libasan() -> str:
    """The path of gcc's runtime of AddressSanitizer."""
    if shutil.which("gcc") is None:
        raise FuzzError("expected gcc, found none: install it (Debian: apt-get install gcc libc6-dev)")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise FuzzError("expected Python.h, found none: install it (Debian: apt-get install python3-dev)")
    command = ["gcc", "-print-file-name=libasan.so"]
    path = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    # gcc repeats the name of what it does not have.
    if not Path(path).is_absolute() or not Path(path).is_file():
        raise FuzzError(
            "expected gcc's libasan.so, found none: install it (Debian: apt-get install libgcc-12-dev, with"
            " the major version of gcc; Fedora: dnf install libasan)"
        )
    return path


def build(source: Path, module: str, directory: Path) -> None:
    """Compile one Cython source with AddressSanitizer, to an extension module in the directory."""
    name = module.rpartition(".")[2]
    c = directory / f"{name}.c"
    extension = directory / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    cython = [sys.executable, "-m", "cython", "--module-name", module, "-o", str(c), str(source)]
    include = f"-I{sysconfig.get_path('include')}"
    gcc = ["gcc", "-shared", "-fPIC", *SANITIZED, include, "-o", str(extension), str(c)]
    for command in (cython, gcc):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise FuzzError(f"expected {' '.join(command)} to succeed, found:\n{done.stdout}{done.stderr}")


def prove_that_overruns_are_caught(directory: Path, environment: dict[str, str]) -> None:
    """The sanitizer has to end a process that reads beyond a buffer, and no other."""
    source = directory / "probe.pyx"
    source.write_text(PROBE)
    build(source, "probe", directory)
    for at, caught in ((INSIDE, False), (BEYOND, True)):
        command = [sys.executable, "-c", READ_PROBE, str(directory), at]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if (done.returncode != 0) is not caught or (REPORT in done.stderr) is not caught:
            raise FuzzError(
                f"expected {'a report' if caught else 'no report'} of AddressSanitizer for octet {at} of 64,"
                f" found exit status {done.returncode} and:\n{done.stderr}"
            )
    print("fuzz: AddressSanitizer reports a deliberate read beyond a buffer", flush=True)


def run_tests(environment: dict[str, str], options: list[str]) -> None:
    """The tests in a process of their own; raises for what they find."""
    with tempfile.TemporaryDirectory(prefix="lightrail-fuzz-") as directory:
        base = Path(directory, "tests")
        # What a sanitizer writes before it ends the process must not be captured.
        usual = ["--timeout=0", "--capture=sys", f"--basetemp={base}", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *usual, *options, *TESTS]
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        if status:
            seeds = {path.parent.name: int(path.read_text()) for path in base.rglob("seed")}
            raise FuzzError(
                f"the tests ended with status {status}; seeds that were played last: {seeds or 'none'};"
                ' LIGHTRAIL_SOAK_SECONDS=0 make fuzz ARGS="--seed N" plays one'
            )


def run_stage(stage: str, environment: dict[str, str], options: list[str]) -> None:
    """One of STAGES, with options of pytest."""
    print(f"fuzz: {stage}", flush=True)
    if stage == "interpreted":
        run_tests(environment | {"LIGHTRAIL_INTERPRETED": "1"}, options)
    elif stage == "compiled":
        check = "import sys; from lightrail.amqp.compiled import COMPILED; sys.exit(not COMPILED)"
        if subprocess.run([sys.executable, "-c", check], cwd=ROOT, env=environment).returncode:
            raise FuzzError(
                "expected a compiled scanner, found none: install gcc and run scripts/setup.sh test again"
            )
        run_tests(environment, options)
    else:
        with tempfile.TemporaryDirectory(prefix="lightrail-sanitized-") as folder:
            environment = environment | OPTIONS | {"LD_PRELOAD": libasan()}
            prove_that_overruns_are_caught(Path(folder), environment)
            for name in NAMES:
                build(ROOT / f"lightrail/amqp/{name}.py", f"lightrail.amqp._{name}", Path(folder))
            environment["LIGHTRAIL_SANITIZED"] = folder
            run_tests(environment, ["-p", "tests.unit.amqp.sanitized_scanner", *options])


def main() -> int:
    arguments = argparse.ArgumentParser(description="Fuzz what reads AMQP and ZMTP.")
    arguments.add_argument("--seed", type=int, help="seed to begin with; no test without seeds is run")
    arguments.add_argument("--only", choices=STAGES, action="append", help="run this stage, not all three")
    chosen = arguments.parse_args()
    environment = {"LIGHTRAIL_SOAK_SECONDS": str(SECONDS)} | os.environ | {"LIGHTRAIL_EXAMPLES": "new"}
    # pytest finds its plugin by it, and the check for COMPILED this tree.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment.pop("LIGHTRAIL_INTERPRETED", None)
    if chosen.seed is not None:
        environment["LIGHTRAIL_FUZZ_SEED"] = str(chosen.seed)
    options = [] if chosen.seed is None else ["-m", "soak"]
    try:
        for stage in chosen.only or STAGES:
            run_stage(stage, environment, options)
    except FuzzError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
