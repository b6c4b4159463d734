"""A plugin of pytest: `lightrail_broker` is a real broker on free ports, for the tests of applications.

    async def test_billing(lightrail_broker):
        async with Bus(lightrail_broker.url, name="billing") as bus: ...

It needs the broker's packages: pip install 'lightrail[broker]'.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

__all__ = ["RunningBroker", "lightrail_broker"]

STOP_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker.

    Attributes:
        url: of AMQP, as amqp://127.0.0.1:41234.
        http: of the gateway, as http://127.0.0.1:41235.
        data: folder of its data, which ends with the tests.
    """

    url: str
    http: str
    data: Path


@pytest.fixture(scope="session")
def lightrail_broker() -> Iterator[RunningBroker]:
    """A broker of this test session; tests use names of their own on it."""
    with tempfile.TemporaryDirectory(prefix="lightrail-") as folder:
        data = Path(folder) / "data"
        command = [sys.executable, "-m", "lightrail.cli.main", "serve", "--data", str(data), "--json"]
        with open(Path(folder) / "log", "wb+") as log:
            process = subprocess.Popen(
                [*command, "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                if not line:
                    log.seek(0)
                    printed = log.read().decode(errors="replace")[-2_000:]
                    pytest.fail(f"the broker ended before it was ready:\n{printed}", pytrace=False)
                ready = json.loads(line)
                yield RunningBroker(f"amqp://{ready['amqp']}", f"http://{ready['http']}", data)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                process.stdout.close()
