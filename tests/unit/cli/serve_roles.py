"""``lightrail serve`` with the programs of tests/support/roles in place of the roles, and short times."""

import argparse
import sys

from lightrail.cli import serve, supervisor
from lightrail.model.settings import Settings


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("data", "amqp", "http", "frontends", "shards"):
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ready", type=float, default=30.0)
    parser.add_argument("--stop", type=float, default=30.0)
    flags = vars(parser.parse_args())
    times = {"ready": flags.pop("ready"), "stop": flags.pop("stop")}
    limits = supervisor.Limits(pause_min=0.01, pause_max=0.05, **times)
    as_json = flags.pop("json")
    modules = {role: f"tests.support.roles.{role}" for role in ("shard", "frontend", "gateway")}
    return serve.serve(Settings.load(flags=flags), as_json=as_json, modules=modules, limits=limits)


if __name__ == "__main__":
    sys.exit(main())
