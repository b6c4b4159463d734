"""The Java for Spark: whether one is installed, and whether it is new enough."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OLDEST: Final = 17
"""Spark 4 is compiled for it."""

_ADVICE: Final = (
    f"Spark needs Java {OLDEST} or newer. On Debian: apt-get install openjdk-17-jre-headless; "
    "or set JAVA_HOME to the folder of a Java"
)


def missing() -> str | None:
    """The error and its remedy, before Spark fails with a traceback; None if Java is usable."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or _spark_env().exists():
        # spark-submit has started the JVM already; spark-env.sh may set JAVA_HOME itself.
        return None
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(f"{home}/bin/java" if home else "java")
    if program is None:
        where = f"in JAVA_HOME, {home}: it has no bin/java" if home else "on PATH, and JAVA_HOME is not set"
        return f"found no Java {where}. {_ADVICE}"
    version = _version(program)
    if version is not None and version < OLDEST:
        return f"found Java {version}, {program}. {_ADVICE}"
    return None


def is_local(master: str | None) -> bool:
    """Whether Spark runs in a process that this command starts, and has no executors elsewhere.

    Args:
        master: of the command's options; None if Spark's own configuration decides.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started the JVM already.
        return False
    if master is None:
        try:
            text = (_configuration() / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        found = re.search(r"^\s*spark\.master[\s=:]+(\S+)", text, re.MULTILINE)
        master = found[1] if found else "local"
    return master.startswith("local")


def _spark_env() -> Path:
    """The file that Spark's own scripts read first, if it exists."""
    return _configuration() / "spark-env.sh"


def _configuration() -> Path:
    """The folder of Spark's configuration."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder:
        return Path(folder)
    home = os.environ.get("SPARK_HOME")
    if not home:
        found = find_spec("pyspark")
        home = os.path.dirname(found.origin) if found and found.origin else ""
    return Path(home, "conf")


def _version(program: str) -> int | None:
    """17 for `17.0.15`, 8 for `1.8.0_402`; None if it is unknown, in which case Spark tries it."""
    try:
        output = subprocess.run(
            [program, "-version"], capture_output=True, text=True, errors="replace"
        ).stderr
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None
