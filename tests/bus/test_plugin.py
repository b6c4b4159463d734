"""The plugin of pytest gives tests of applications a real broker, and ends it with them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.broker import ROOT

TESTS = """
import asyncio, os, urllib.request
from dataclasses import dataclass
from lightrail.bus import Bus, message

@message("plugin.rung")
@dataclass
class Rung:
    times: int

def test_messages_go_through_the_broker(lightrail_broker):
    async def test():
        heard = asyncio.get_running_loop().create_future()
        bus = Bus(lightrail_broker.url, name="bell")

        @bus.handler
        async def hear(rung: Rung) -> None:
            heard.set_result(rung)

        async with bus:
            await bus.publish(Rung(3))
            assert await heard == Rung(3)

    asyncio.run(test())

def test_it_is_the_same_broker(lightrail_broker, request):
    assert urllib.request.urlopen(lightrail_broker.http + "/healthz").status == 200
    with open("data", "w") as file:
        file.write(str(lightrail_broker.data))
"""


def test_a_test_of_an_application_has_a_broker_that_ends_with_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    data = Path((tmp_path / "data").read_text())
    assert not data.exists()
    running = subprocess.run(["ps", "ax", "-o", "command"], capture_output=True, text=True).stdout
    assert str(data) not in running
