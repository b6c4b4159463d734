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

from lightrail.namespace.rights import ANYBODY
from lightrail.namespace.service import policy_from
from tests.support.broker import Broker
from tests.support.namespace import with_service

HERE = Path(__file__).parent / "jms"
LAWS = tuple(
    law
    for source in sorted((HERE / "src").glob("*.java"))
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


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two frontends and two shards: connections and names are apart."""
    with Broker(tmp_path_factory.mktemp("jms") / "data", "--frontends", "2", "--shards", "2") as started:
        yield started


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
def outcomes(request: pytest.FixtureRequest, broker: Broker, classpath: str) -> dict[str, Outcome]:
    """What became of each law that was asked for."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = [str(item.callspec.params["law"]) for item in items if item.path == request.path]
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command = ["java", *options, "-cp", classpath, "Suite", broker.amqp, *wanted]
    with (
        open(f"{broker.data}.jms.log", "wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            return _followed(process, broker)
        finally:
            process.kill()


def _followed(process: "subprocess.Popen[bytes]", broker: Broker) -> dict[str, Outcome]:
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
                process.stdin.write(_do(broker, text).encode() + b"\n")
                process.stdin.flush()
            else:
                law, seconds, *why = text.split(" ", 2)
                shown = "".join(why).replace("\\n", "\n").replace("\\\\", "\\")
                found[law] = Outcome(word, float(seconds), shown)


def _do(broker: Broker, what: str) -> str:
    word, _, rest = what.partition(" ")
    if word == "policy":
        name, _, policy = rest.partition(" ")
        with_service(broker.data, lambda service: service.give(ANYBODY, name, policy_from(policy)))
    elif word == "kill":
        for id in (0, 1):
            os.kill(broker.pid(rest, id), signal.SIGKILL)
    else:
        return f"error: {word} is nothing that can be asked for"
    return "done"


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str, outcomes: dict[str, Outcome]) -> None:
    assert law in outcomes, "the process of the laws ended before this one"
    assert outcomes[law].verdict == "passed", outcomes[law].text
