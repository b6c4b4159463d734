"""The broker as Qpid JMS sees it: laws of JMS 2.0 in Java (tests/interop/jms), all run by one process."""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lightrail.namespace.records import policy_from
from lightrail.namespace.rights import ANYBODY
from tests.support import wait
from tests.support.broker import Broker
from tests.support.namespace import with_service

HERE = Path(__file__).parent / "jms"
WAITING: frozenset[str] = frozenset()
"""Laws of what the broker does not do yet: they are compiled, and run when LIGHTRAIL_JMS_WAITING=1 is set."""
LAWS = tuple(
    law
    for source in sorted((HERE / "src").glob("*.java"))
    if source.name not in WAITING or os.environ.get("LIGHTRAIL_JMS_WAITING") == "1"
    for law in re.findall(r"@Law\s+void (\w+)\(", source.read_text())
)
SUITE_S = 200.0
"""In which all laws end, each of which has its own bound in Suite.java; they take an eighth of it."""

# The first test waits for all of them.
pytestmark = pytest.mark.timeout(SUITE_S + 60)


class Outcome(NamedTuple):
    verdict: str
    seconds: float
    text: str


class Keeper:
    """Keeps a broker of two frontends and two shards, where connections and names are apart."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.broker = self._started()

    def _started(self, *flags: str) -> Broker:
        return Broker(self._data, "--frontends", "2", "--shards", "2", *flags).until_ready()

    def _processes(self, role: str = "") -> list[int]:
        """The processes that the supervisor has now; those of its first line may have been killed."""
        supervisor = self.broker.process.pid
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
        return [pid for pid, command in commands.items() if f"lightrail.{role}" in command]

    def do(self, what: str) -> str:
        """Does what a law asks for, and returns the line that is its answer."""
        word, _, rest = what.partition(" ")
        if word == "policy":
            name, _, policy = rest.partition(" ")
            with_service(self._data, lambda service: service.give(ANYBODY, name, policy_from(policy)))
        elif word == "kill":
            # One that an earlier law killed may not be started again yet.
            wait.until(lambda: len(self._processes(rest)) == 2, f"there are two processes of role {rest}")
            for pid in self._processes(rest):
                os.kill(pid, signal.SIGKILL)
        elif word == "restart":
            address = self.broker.amqp
            wait.freeze(self.broker.process.pid)
            for pid in self._processes():
                os.kill(pid, signal.SIGKILL)
            self.broker.kill()
            self.broker.stop()
            self.broker = self._started("--amqp", address)
        else:
            return f"error: {word} is nothing that can be asked for"
        return "done"


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    started = Keeper(tmp_path_factory.mktemp("jms") / "data")
    yield started
    started.broker.stop()


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The client and the laws, compiled."""
    libraries = sorted((HERE / "target" / "lib").glob("*.jar"))
    assert libraries, "Qpid JMS is not there: run scripts/setup.sh test"
    classes = tmp_path_factory.mktemp("classes")
    path = os.pathsep.join(map(str, libraries))
    sources = map(str, sorted((HERE / "src").glob("*.java")))
    command = ["javac", "--release", "17", "-Xlint:all", "-Werror", "-cp", path, "-d", str(classes), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return os.pathsep.join([str(classes), path])


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, keeper: Keeper, classpath: str) -> dict[str, Outcome]:
    """What became of each law that was asked for."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = [str(item.callspec.params["law"]) for item in items if item.path == request.path]
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command = ["java", *options, "-cp", classpath, "Suite", keeper.broker.amqp, *wanted]
    with (
        open(f"{keeper.broker.data}.jms.log", "wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            return _followed(process, keeper)
        finally:
            process.kill()


def _followed(process: "subprocess.Popen[bytes]", keeper: Keeper) -> dict[str, Outcome]:
    """Reads outcomes, and does what laws ask for."""
    assert process.stdin is not None
    assert process.stdout is not None
    found: dict[str, Outcome] = {}
    deadline = time.monotonic() + SUITE_S
    rest = b""
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"the laws took more than {SUITE_S} s; done are {sorted(found)}"
        data = os.read(process.stdout.fileno(), 65_536)
        if not data:
            return found
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            word, _, text = line.decode().partition(" ")
            if word == "ask":
                process.stdin.write(keeper.do(text).encode() + b"\n")
                process.stdin.flush()
            else:
                law, seconds, *why = text.split(" ", 2)
                shown = "".join(why).replace("\\n", "\n").replace("\\\\", "\\")
                found[law] = Outcome(word, float(seconds), shown)


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, outcomes: dict[str, Outcome]) -> None:
    assert law in outcomes, "the process of the laws ended before this one"
    assert outcomes[law].verdict == "passed", outcomes[law].text
