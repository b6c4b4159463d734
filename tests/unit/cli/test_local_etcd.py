"""The etcd that `lightrail serve --replicas` starts for itself."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightrail.cli.local_etcd import LocalEtcd, LocalEtcdError
from lightrail.telemetry.directories import etcd_address
from tests.support import wait


def test_without_a_program_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        LocalEtcdError, match=r"expected --etcd.*found neither.*etcd-server.*without --replicas"
    ):
        LocalEtcd(str(tmp_path), program="no-such-etcd")


def test_a_program_that_ends_at_once_is_an_error_with_its_log(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(LocalEtcdError, match=r"ended with status 1: the last lines of .*etcd.log"):
            async with LocalEtcd(str(tmp_path), program="false"):
                pass

    asyncio.run(story())
    assert etcd_address(str(tmp_path)) is None


def test_it_serves_at_one_address_is_started_again_and_leaves_no_process(tmp_path: Path) -> None:
    async def story() -> None:
        data = str(tmp_path)
        async with LocalEtcd(data) as etcd:
            assert etcd_address(data) == etcd.endpoint
            first = _process(etcd)
            os.kill(first, signal.SIGKILL)
            await asyncio.to_thread(wait.until, lambda: _process(etcd) != first, "it is started again")
            await etcd._until_answering()
            second = _process(etcd)
        assert wait.gone(first)
        assert wait.gone(second)
        assert etcd_address(data) is None

    asyncio.run(story())


def _process(etcd: LocalEtcd) -> int:
    assert etcd._process is not None
    return etcd._process.pid


def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    # The parent starts a program through this module, prints its number, and waits.
    parent = (
        "import subprocess, sys, os\n"
        "module = [sys.executable, '-m', 'lightrail.cli.local_etcd', str(os.getpid())]\n"
        "command = [*module, '/bin/sleep', '1000']\n"
        "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        name = Path(f"/proc/{child}/comm")
        wait.until(lambda: name.read_text().strip() == "sleep", "it has become the program")
        process.kill()
    wait.until(lambda: wait.gone(child), "it ends")
