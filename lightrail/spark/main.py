"""The command `lightrail-spark`: jobs on the journal, by name.

`spark-submit .../lightrail/spark/main.py capture ...` runs it as well, on the master that Spark's
configuration names. A job is a module of lightrail/spark/jobs.
"""

import os
import sys

if __name__ == "__main__":
    # A script's folder comes first on sys.path, where `http` would be lightrail/spark/http.py.
    _here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.realpath(each) != _here]

import argparse
import importlib
import pkgutil
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from lightrail.console.pipe import piped
from lightrail.console.terminal import one_line, say
from lightrail.spark import jobs
from lightrail.spark.command import (
    FAILED,
    INTERRUPTED,
    NOBODY_ANSWERS,
    STATUSES,
    WRONG_USE,
    NotInstalledError,
    UnreachableError,
    UsageError,
)
from lightrail.spark.failures import user_error

EXTRA: Final = ("pyspark", "pyarrow", "numpy", "deltalake", "jinja2")
"""The extra `spark` of the package; reports are made with jinja2, which the extra `broker` has as well."""

EXAMPLES: Final = f"""examples:
  lightrail-spark capture --from /var/lib/lightrail/archive --to /lake/messages --available-now
  lightrail-spark verify /lake/messages --from /var/lib/lightrail/archive
  lightrail-spark compact /lake/messages --retention 90
  lightrail-spark COMMAND --help                        every command with its examples
  spark-submit --master spark://HOST:7077 .../lightrail/spark/main.py capture ...

{STATUSES}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return piped(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        # Checked before the job starts, which would fail later otherwise.
        modules = "module" if len(missing) == 1 else "modules"
        say(f"lightrail-spark: missing {modules} {', '.join(missing)}: pip install 'lightrail[spark]'")
        return WRONG_USE
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except (UsageError, NotInstalledError) as error:
        parser.exit(WRONG_USE, f"lightrail-spark {args.command}: {error}\n")
    except KeyboardInterrupt:
        say(f"lightrail-spark {args.command}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # No failure of the work: the reader of the output closed the pipe.
        raise
    except Exception as error:
        found = user_error(error)
        if found is None and isinstance(error, OSError):
            # A disk or an object store failed during the work, which is not committed.
            found = UnreachableError(one_line(error))
        if found is None:
            raise
        say(f"lightrail-spark {args.command}: {found}")
        return NOBODY_ANSWERS if isinstance(found, UnreachableError) else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrail-spark",
        description="Jobs on the events of messages: the archive of the journals, read by Spark.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in sorted(pkgutil.iter_modules(jobs.__path__), key=lambda each: each.name):
        if not module.ispkg:
            job = importlib.import_module(f"{jobs.__name__}.{module.name}")
            job.add_parser(subparsers).set_defaults(run=job.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
