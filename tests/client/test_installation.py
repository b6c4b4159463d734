"""An installation without the extra `broker`: the wheel alone, in an environment that has nothing else."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from lightrail.cli import extra
from tests.support.broker import ROOT, Broker
from tests.support.deploy.wheels import build, environment_of_pip


class Installed:
    """A virtual environment with the wheel."""

    def __init__(self, wheel: Path, home: Path) -> None:
        self.wheel = wheel
        self.bin = home / "bin"
        self._folder = home.parent
        # Without a pip of its own, which would take longer than all the rest: it is that of the tests.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)

    def pip(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Pip, for the environment."""
        python = str(self.bin / "python")
        return subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, *words],
            cwd=self._folder,
            env=environment_of_pip(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def run(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, outside of this tree and without its variables."""
        environ = {name: text for name, text in environment_of_pip().items() if "LIGHTRAIL" not in name}
        return subprocess.run(
            [str(self.bin / program), *words],
            cwd=self._folder,
            env=environ | {"PATH": f"{self.bin}{os.pathsep}{environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    made = Installed(build(folder / "built"), folder / "venv")
    # With its dependencies, and without a network: that works because there are none.
    done = made.pip("install", "--no-index", "--no-cache-dir", str(made.wheel))
    assert done.returncode == 0, done.stderr
    return made


def first_message() -> str:
    """The first piece of Python in the README."""
    section = (ROOT / "README.md").read_text().partition("## A first message")[2]
    found = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


HOW = "from lightrail.amqp.compiled import COMPILED; import lightrail.client; print(COMPILED)"


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def test_the_scanner_is_compiled_and_the_client_has_types(installed: Installed) -> None:
    files = {"lightrail/py.typed", "lightrail/client/sync.py", "lightrail/cli/trace/hook/sitecustomize.py"}
    assert files <= files_of(installed.wheel)
    assert installed.run("python", "-c", HOW).stdout == "True\n"


def test_a_wheel_without_the_compiled_part_fits_every_platform(tmp_path: Path) -> None:
    wheel = build(tmp_path, LIGHTRAIL_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = ("compiled", "redelivery", "scanner", "transfers")
    assert {f"lightrail/amqp/{name}.py" for name in names} <= files_of(wheel)
    assert not [name for name in files_of(wheel) if name.endswith(".so")]


def test_without_a_compiler_the_installation_succeeds_and_is_interpreted(tmp_path: Path) -> None:
    made = Installed(build(tmp_path / "built", CC="false"), tmp_path / "venv")
    done = made.pip("install", "--no-index", "--no-cache-dir", str(made.wheel))
    assert done.returncode == 0, done.stderr
    assert made.run("python", "-c", HOW).stdout == "False\n"


def test_nothing_is_installed_beside_it(installed: Installed) -> None:
    assert installed.pip("list", "--format=freeze").stdout.split() == ["lightrail==0.1.0"]


def test_the_first_message_of_the_readme(installed: Installed, broker: Broker, tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    text = first_message()
    assert "127.0.0.1:5672" in text
    script.write_text(text.replace("127.0.0.1:5672", broker.amqp))
    done = installed.run("python", "-W", "error", str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("from Python\n", "", 0)


def test_the_version_and_the_help_need_nothing(installed: Installed) -> None:
    assert installed.run("lightrail", "--version").stdout == "lightrail 0.1.0\n"
    for program in ("lightrail", "lightrail-admin"):
        done = installed.run(program, "--help")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        "lightrail serve",
        "lightrail frontend",
        "lightrail shard",
        "lightrail gateway",
        "lightrail wire-key",
        "lightrail bench",
        "lightrail trace",
        "lightrail-admin user list",
        "lightrail-admin journal repair",
    ],
)
def test_what_needs_the_broker_names_the_extra_in_one_line(installed: Installed, words: str) -> None:
    program, *rest = words.split()
    operands = {"wire-key": ["key"], "repair": ["data"]}.get(rest[-1], [])
    done = installed.run(program, *rest, *operands)
    line = f"{words} needs the broker's packages: pip install 'lightrail[broker]'"
    assert done.stderr == f"{line} (missing: {', '.join(extra.MODULES)})\n"
    assert (done.stdout, done.returncode) == ("", 2)


def test_the_pipeline_names_its_own_extra(installed: Installed) -> None:
    done = installed.run("lightrail-spark", "--help")
    assert done.stderr.endswith("pip install 'lightrail[spark]'\n")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 2


def test_commands_that_ask_a_gateway_work_without_the_broker(installed: Installed, broker: Broker) -> None:
    gateway = ("--url", f"http://{broker.http}")
    sent = installed.run("lightrail-admin", *gateway, "send", "by-hand", "hello")
    assert (sent.returncode, sent.stderr) == (0, "")
    received = installed.run("lightrail-admin", *gateway, "receive", "by-hand", "--timeout", "10")
    assert received.returncode == 0, received.stderr
    assert "hello" in received.stdout


def test_the_bus_works_without_the_brokers_packages(
    installed: Installed, broker: Broker, tmp_path: Path
) -> None:
    script = tmp_path / "service.py"
    script.write_text(
        "import asyncio\n"
        "from dataclasses import dataclass\n"
        "from lightrail.bus import Bus, message\n"
        '@message("installed.rung")\n'
        "@dataclass\n"
        "class Rung:\n"
        "    times: int\n"
        f'bus = Bus("amqp://{broker.amqp}", name="installed")\n'
        "heard = []\n"
        "@bus.handler\n"
        "async def hear(rung: Rung) -> None:\n"
        "    heard.append(rung)\n"
        "async def main() -> None:\n"
        "    async with bus:\n"
        "        await bus.publish(Rung(3))\n"
        "        while not heard:\n"
        "            await asyncio.sleep(0.01)\n"
        "    print(heard)\n"
        'if __name__ == "__main__":\n'
        "    asyncio.run(main())\n"
    )
    done = installed.run("python", "-W", "error", str(script))
    assert (done.stdout, done.stderr, done.returncode) == ("[Rung(times=3)]\n", "", 0)
    done = installed.run("lightrail", "bus", "errors", "list", "--url", f"amqp://{broker.amqp}", "--json")
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_type_checker_knows_the_client(installed: Installed, tmp_path: Path) -> None:
    script = tmp_path / "typed.py"
    script.write_text(
        "import lightrail.client.sync\n"
        'with lightrail.client.sync.connect("amqp://h") as connection:\n'
        '    reveal_type(connection.sender("q").send("m").accepted)\n'
        "    connection.sender(1)\n"
    )
    readme = tmp_path / "readme.py"
    readme.write_text(first_message())
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed.bin / "python")]
    done = subprocess.run(
        [
            *check,
            "--config-file",
            os.devnull,
            "--cache-dir",
            str(tmp_path / "cache"),
            str(script),
            str(readme),
        ],
        cwd=tmp_path,
        env=environment_of_pip(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    note, error, _ = done.stdout.splitlines()
    assert re.search(r'typed\.py:3: note: Revealed type is "(builtins\.)?bool"$', note)
    assert "typed.py:4: error:" in error
    assert "[arg-type]" in error


def test_the_extra_is_what_the_commands_look_for() -> None:
    """Each package of the extra is looked for by one module, or the line above would leave it out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    modules = {"pyzmq": "zmq", "python-qpid-proton": "cproton", "grpcio": "grpc", "PyJWT": "jwt"}
    named = [re.split(r"[^\w-]", each)[0] for each in project["optional-dependencies"]["broker"]]
    assert sorted(modules.get(name, name.replace("-", "_")) for name in named) == list(extra.MODULES)
