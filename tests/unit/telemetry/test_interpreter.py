"""Interpreter: which builds of Python count as optimised, and what says so."""

import subprocess
import sys

import pytest

from lightrail.telemetry.interpreter import OPTIMISED, optimised
from lightrail.telemetry.running import Running
from tests.support.broker import ROOT


def test_an_interpreter_is_optimised_by_its_option_or_by_its_distribution() -> None:
    assert optimised("/opt/python", "'--prefix=/opt/python' '--enable-optimizations' '--with-lto'")
    assert optimised("/usr", "'--enable-shared'")
    assert not optimised("/opt/python", "'--prefix=/opt/python' '--enable-shared'")
    assert not optimised("/usr/local", "")


def test_the_set_up_asks_the_same_file_without_an_installation() -> None:
    file = ROOT / "lightrail" / "telemetry" / "interpreter.py"
    done = subprocess.run([sys.executable, "-I", "-S", str(file)], check=False)
    assert done.returncode == (0 if OPTIMISED else 1)
    assert "-I lightrail/telemetry/interpreter.py" in (ROOT / "scripts" / "setup.sh").read_text()


@pytest.mark.parametrize("value", [False, True])
def test_every_process_has_a_metric_of_it(value: bool) -> None:
    text = Running("shard", lambda: 0, optimised=value).text()
    assert f'lightrail_python_optimised{{role="shard",id="0"}} {float(value)}' in text
