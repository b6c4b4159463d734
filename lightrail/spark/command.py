"""The common part of all commands of lightrail-spark: options, errors, the session of Spark."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lightrail.spark.journals.journal import Journal

OLDEST: Final = 17
"""Spark 4 is compiled for it."""

_ADVICE: Final = (
    f"Spark needs Java {OLDEST} or newer. On Debian: apt-get install openjdk-17-jre-headless; "
    "or set JAVA_HOME to the folder of a Java"
)
DONE: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
NOBODY_ANSWERS: Final = 3
BEHIND: Final = 4
"""Of `verify`: only records that were written after the last capture are not in the table."""
INTERRUPTED: Final = 130
_QUERIES: Final = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
"""Spark's logger of the errors that end queries."""

Subparsers = Any
"""The result of add_subparsers, whose type argparse does not publish."""


def java_missing() -> str | None:
    """Why Spark's Java can't be used, and what to do, before Spark fails with a traceback; None if it can."""
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


class CommandError(Exception):
    """A command was refused or failed, or a check found errors; the message says what to do. Exit 1."""


class UsageError(Exception):
    """The command line is wrong; the message says what was expected. Exit 2."""


class NotInstalledError(Exception):
    """A required package is missing; the message says how to install it. Exit 2."""


class UnreachableError(Exception):
    """A gateway, a broker or a store does not answer; the message says which one and what to check. Exit
    3."""


def add_command(
    subparsers: Subparsers, name: str, help: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """A command's parser, with the common options --json, --master and --conf.

    Args:
        help: one line for the list of commands.
        description: what the command does, in one to three sentences.
        examples: command lines, each indented by two spaces.
    """
    lines = examples.strip("\n")
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"examples:\n{lines}\n\n{STATUSES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation would read --password SECRET as --password-file SECRET.
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as one JSON document on standard output"
    )
    return parser


STATUSES: Final = (
    "Exit status: 0 done, 1 failed, or a check found errors, 2 wrong use, or a package is\n"
    "missing, 3 a gateway, broker or store does not answer, 4 a table is complete up to the\n"
    "last capture."
)


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that starts Spark."""
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        metavar="URL",
        help="such as local[2], spark://HOST:7077, k8s://https://HOST:443 (default: spark.master of Spark's "
        "configuration or of spark-submit, else local[*])",
    )
    group.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of Spark; may be repeated. spark.log.level=INFO shows Spark's log",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the journals to read, see `source_options`."""
    group = parser.add_argument_group("source")
    group.add_argument(
        "--from",
        dest="archive",
        metavar="ARCHIVE",
        action="append",
        default=[],
        help="folder of an archive, such as /var/lib/lightrail/archive or s3://BUCKET/it; may be repeated",
    )
    group.add_argument(
        "--gateway",
        metavar="URL",
        help="http://HOST:PORT of a running broker: all committed records, those in --from from the archive",
    )
    add_gateway_user(group)
    group.add_argument("--queues", metavar="NAMES", help="only these queues, separated by commas")
    group.add_argument("--queue-pattern", metavar="REGEX", help="only queues whose whole name matches")


def add_allow_loss(group: Any, then: str) -> None:
    """Adds the option to continue without lost records; `then` says how to find them."""
    group.add_argument(
        "--allow-loss", action="store_true", help=f"continue without missing or damaged records; {then}"
    )


def add_gateway_user(group: Any) -> None:
    """Adds the options of the gateway's credentials; secrets are in files, never on command lines."""
    group.add_argument("--user", metavar="NAME", default=os.environ.get("LIGHTRAIL_USER"))
    group.add_argument(
        "--password-file",
        metavar="FILE",
        default=os.environ.get("LIGHTRAIL_PASSWORD_FILE"),
        help="file whose first line is the password",
    )
    group.add_argument(
        "--token-file", metavar="FILE", default=os.environ.get("LIGHTRAIL_TOKEN_FILE"), help="of a token"
    )
    group.add_argument(
        "--ca",
        metavar="FILE",
        default=os.environ.get("LIGHTRAIL_CA"),
        help="PEM file with the certificates that verify the gateway's",
    )


def access_options(args: argparse.Namespace, gateway: str | None) -> dict[str, str]:
    """The options of a gateway and of the credentials for it, as `Access.of_options` reads them."""
    given = {
        "gateway": gateway,
        "user": args.user,
        "passwordFile": args.password_file,
        "tokenFile": args.token_file,
        "caFile": args.ca,
    }
    return {name: value for name, value in given.items() if value}


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of the data source `lightrail` for those of `add_source` and `add_allow_loss`.

    Raises:
        UsageError: neither an archive nor a gateway is named.
    """
    if not args.archive and not args.gateway:
        raise UsageError("expected --from ARCHIVE or --gateway URL, or both; found neither")
    given = {
        "path": ",".join(args.archive) or None,
        **(access_options(args, args.gateway) if args.gateway else {}),
        "queues": args.queues,
        "queuePattern": args.queue_pattern,
        "failOnDataLoss": "false" if getattr(args, "allow_loss", False) else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def listed(options: Mapping[str, str], streaming: bool = False) -> "dict[str, Journal]":
    """The existing journals, by disk.

    They are listed before Spark starts, because Spark needs seconds to start and reports errors as
    tracebacks.

    Args:
        options: the options of the data source.

    Raises:
        UnreachableError: an archive or gateway does not answer.
        UsageError: an option has a wrong value.
    """
    from lightrail.spark.journals.journal import SourceError
    from lightrail.spark.journals.listing import Listing
    from lightrail.spark.reading.options import OptionError, read_options

    try:
        read = read_options(options, streaming)
        return Listing(read.paths, read.access).journals()
    except OptionError as error:
        raise UsageError(str(error)) from error
    except SourceError as error:
        raise UnreachableError(str(error)) from error


def session(args: argparse.Namespace, name: str) -> "SparkSession":
    """The session of Spark, started if there is none; times are in UTC.

    Args:
        name: the name of the application on Spark's pages.

    Raises:
        NotInstalledError: there is no Java for Spark.
        UsageError: a --conf is not KEY=VALUE.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is None:
        problem = java_missing()
        if problem is not None:
            raise NotInstalledError(problem)

    if is_local(args.master or dict(_pairs(args.conf)).get("spark.master")):
        # Pages and ports of Spark on this machine alone; its own default is every address.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Executors of a local master run the Python of this process, not the first one on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"lightrail {name}").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if args.master:
        builder = builder.master(args.master)
    for key, value in _pairs(args.conf):
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if spark.conf.get("spark.log.level", None) is None:
        _quiet(spark)
    return spark


def _quiet(spark: "SparkSession") -> None:
    """Only errors are logged, and not the end of a query: the command reports its error in one line."""
    spark.sparkContext.setLogLevel("ERROR")
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_QUERIES, log4j.Level.OFF)


def _pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise UsageError(f"--conf {each!a}: expected KEY=VALUE, such as spark.executor.memory=2g")
        pairs.append((key, value))
    return pairs
