"""The command: ``lightrail bench``, and ``python -m lightrail.bench``."""

import json
import sys
from collections.abc import Sequence

from lightrail.bench.options import parse_options
from lightrail.bench.plan import RunProgress
from lightrail.bench.report import as_text, as_value
from lightrail.bench.run import LoadRun, RunError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 when the checks found a fault, 2 when it failed."""
    options = parse_options(sys.argv[1:] if argv is None else argv)
    try:
        outcome = LoadRun(options, RunProgress(options)).execute()
    except RunError as error:
        print(f"lightrail bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(as_value(options, outcome)) if options.json else as_text(options, outcome), flush=True)
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
