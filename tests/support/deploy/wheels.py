"""The project's wheel, built from this tree where there is no network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.broker import ROOT

PACKED: Final = ("lightrail", "pyspark_lightrail", "pyproject.toml", "setup.py", "README.md", "LICENSE")
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


def environment_of_pip() -> dict[str, str]:
    """A path of this tree would make pip find the project there, and install nothing."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}


def build(folder: Path, **environ: str) -> Path:
    """Builds the wheel below `folder`, and returns its path.

    Args:
        environ: variables of the build, such as LIGHTRAIL_PURE="1" for a wheel without a compiled part.
    """
    tree = folder / "tree"
    tree.mkdir(parents=True)
    for name in PACKED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    wheels = folder / "wheels"
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "-w", str(wheels))
    command = [*PIP, "wheel", *flags, str(tree)]
    subprocess.run(command, check=True, timeout=120, env=environment_of_pip() | environ)
    (wheel,) = wheels.glob("*.whl")
    return wheel
