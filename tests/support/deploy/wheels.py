"""The project's wheel, built from this tree where there is no network."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from scripts.compiling import WORK
from tests.support.broker import ROOT

PACKED: Final = (
    "lightrail",
    "pyspark_lightrail",
    "scripts/compiled_checks.py",
    "scripts/compiled_sources.py",
    "scripts/compiling.py",
    "stubs",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
)
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
COMPILE_S: Final = 1_800
"""For mypy and 450 files of C, on a machine that is busy with other tests; 3 minutes on one that is not."""


def environment_of_pip() -> dict[str, str]:
    """A path of this tree would make pip find the project there, and install nothing."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


def build(folder: Path, **environ: str) -> Path:
    """Builds the wheel below `folder`, and returns its path.

    Args:
        environ: variables of the build, such as LIGHTRAIL_PURE="1" for a wheel without a compiled part.
    """
    return _wheel(copied(folder), folder, 120, environ)


def build_compiled(folder: Path) -> Path:
    """Builds the wheel with machine code below `folder`, from the archive of sources; returns its path.

    What `make compiled`, or an earlier call, has left in this checkout is used, so that what has not changed
    since is not compiled again. Nothing of the checkout that a broker would use is changed.
    """
    packing = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(folder / "archive")]
    environ = environment_of_pip() | {"LIGHTRAIL_PURE": "1"}
    subprocess.run(packing, cwd=copied(folder), check=True, timeout=120, env=environ)
    (archive,) = (folder / "archive").glob("*.tar.gz")
    unpacked = folder / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(unpacked)], check=True, timeout=120)
    (tree,) = unpacked.iterdir()
    work = ROOT / WORK
    work.mkdir(parents=True, exist_ok=True)
    (tree / WORK).parent.mkdir()
    (tree / WORK).symlink_to(work)
    return _wheel(tree, folder, COMPILE_S, {"LIGHTRAIL_COMPILED": "1"})


def install_alone(wheel: Path, home: Path) -> Path:
    """Makes a virtual environment with nothing but the wheel, which finds what it depends on in this one.

    Returns its Python.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    python = home / "bin/python"
    install = ("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    subprocess.run([*PIP, *install], check=True, timeout=120, env=environment_of_pip())
    (site,) = (home / "lib").glob("python*/site-packages")
    # A plain entry of the path: installed packages only, not this tree, which is installed there for editing.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def copied(folder: Path) -> Path:
    """A copy of what the wheel is made of, below `folder`."""
    tree = folder / "tree"
    for name in PACKED:
        source, target = ROOT / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "_compiled"))
        else:
            shutil.copy(source, target)
    return tree


def _wheel(tree: Path, folder: Path, time_max_s: int, environ: dict[str, str]) -> Path:
    wheels = folder / "wheels"
    # Pip would keep the wheel of a folder that is called like an archive, for a later one of the same path.
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "-w", str(wheels))
    command = [*PIP, "wheel", *flags, str(tree)]
    subprocess.run(command, check=True, timeout=time_max_s, env=environment_of_pip() | environ)
    (wheel,) = wheels.glob("*.whl")
    return wheel
