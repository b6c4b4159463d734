"""``lightrail bench`` as a process, and its figures."""

import json
import subprocess
import sys
from typing import Any

from tests.benchmarks.machine import ROOT

TIME_MAX_S = 900.0


class LoadError(Exception):
    """The load generator could not run, or found messages lost, doubled or out of order."""


def bench(url: str, flags: str, pids: tuple[int, ...] = ()) -> dict[str, Any]:
    """One run; its --json value. Raises LoadError unless every message came once and in order."""
    command = [sys.executable, "-m", "lightrail.bench", "--url", url, "--json", "--quiet", *flags.split()]
    if pids:
        command += ["--pids", ",".join(map(str, pids))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=TIME_MAX_S)
    if done.returncode not in (0, 1):
        raise LoadError(done.stderr.strip()[-500:] or f"bench ended with status {done.returncode}")
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if done.returncode:
        raise LoadError(
            f"lost {value['lost']}, duplicates {value['duplicates']}, out of order {value['out_of_order']}: "
            + "; ".join(value["faults"][:3])
        )
    if value["sent"] != value["accepted"]:
        raise LoadError(f"of {value['sent']} sent were not accepted: {value['not_accepted']}")
    return value
