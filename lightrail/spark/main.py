"""The command `lightrail-spark`: jobs on the journal, by name.

`spark-submit .../lightrail/spark/main.py capture ...` runs it as well, on the master that Spark's
configuration names. A job is a module of lightrail/spark/jobs.
"""

import os
import sys

if __name__ == "__main__":
    # The folder of a script stands before all others, and `http` would be lightrail/spark/http.py.
    _here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.realpath(each) != _here]

import argparse
import importlib
import pkgutil
from collections.abc import Sequence
from typing import Final

from lightrail.spark import jobs
from lightrail.spark.command import (
    FAILED,
    INTERRUPTED,
    NOBODY_ANSWERS,
    STATUSES,
    WRONG_USE,
    Failed,
    Unreachable,
    Usage,
    spoken,
)
from lightrail.spark.output import one_line, say

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
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except Usage as error:
        parser.exit(WRONG_USE, f"lightrail-spark {args.command}: {error}\n")
    except Failed as error:
        say(f"lightrail-spark {args.command}: {error}")
        return FAILED
    except Unreachable as error:
        say(f"lightrail-spark {args.command}: {error}")
        return NOBODY_ANSWERS
    except KeyboardInterrupt:
        say(f"lightrail-spark {args.command}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone; what Python still has buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        # A disk or an object store, in the middle of the work; what is begun belongs to no commit.
        say(f"lightrail-spark {args.command}: {one_line(error)}")
        return NOBODY_ANSWERS
    except Exception as error:
        # Spark wraps what its workers say in words of its own.
        if (named := spoken(error)) is None:
            raise
        say(f"lightrail-spark {args.command}: {named}")
        return NOBODY_ANSWERS if isinstance(named, Unreachable) else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightrail-spark",
        description="Jobs on what happened to messages: the archive of the journals, read by Spark.",
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
