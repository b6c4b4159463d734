"""Starts the shop: its three services, and a customer who places orders. Ctrl-C ends all of it."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SERVICES = ("orders", "billing", "shipping")


def main() -> int:
    run = [sys.executable, "-m", "lightrail.cli.main", "bus", "run"]
    services = [subprocess.Popen([*run, f"{name}:bus"], cwd=HERE) for name in SERVICES]
    try:
        customer = subprocess.run([sys.executable, "place.py", *sys.argv[1:]], cwd=HERE)
        return customer.returncode
    except KeyboardInterrupt:
        return 130
    finally:
        for service in services:
            service.terminate()
        for service in services:
            service.wait()


if __name__ == "__main__":
    sys.exit(main())
