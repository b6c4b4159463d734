"""``docker compose`` on the tests' own engine, with the real docker-compose.yml of the repository."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support.deploy.docker import Engine, NoEngineError, alone, cache_directory, search_path
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[3]
VERSION = "v2.29.7"
"""Of Docker Compose. Debian 12 has version 1 alone, which reads other files; version 2 is a module of Go."""
PLUGINS = ("/usr/libexec/docker/cli-plugins", "/usr/local/lib/docker/cli-plugins")
BUILD_S = 900.0
UP_S = 180


def program() -> Path:
    """The real Compose: a plugin that is installed, else built from its Go module, once. Raises
    NoEngineError."""
    for directory in PLUGINS:
        if os.access(f"{directory}/docker-compose", os.X_OK):
            return Path(directory, "docker-compose")
    built = cache_directory() / f"compose-{VERSION}" / "docker-compose"
    with alone("compose"):
        if not built.exists():
            _build(built)
    return built


def _build(built: Path) -> None:
    go = shutil.which("go", path=search_path())
    if go is None:
        raise NoEngineError("neither Docker's compose plugin nor Go to build it is installed")
    built.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, "install", "-ldflags=-s -w", f"github.com/docker/compose/v2/cmd@{VERSION}"],
        env={**os.environ, "GOBIN": str(built.parent)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise NoEngineError(f"Docker Compose can't be built here: {done.stderr[-300:]}")
    (built.parent / "cmd").rename(built)


class Compose:
    """One project: the file of the repository, on ports of this run, built with the network of the host."""

    def __init__(self, engine: Engine, program: Path, scratch: Path, **variables: str) -> None:
        self.engine = engine
        self.program = program
        self.ports = dict(zip(("AMQP", "HTTP", "PROMETHEUS", "GRAFANA"), free_ports(4), strict=True))
        self.environ = {f"LIGHTRAIL_{name}_PORT": str(port) for name, port in self.ports.items()} | variables
        # Bridges of this engine lead nowhere; what is built fetches packages as this machine does.
        self.override = scratch / "compose.override.json"
        self.override.write_text("{}")
        services = self.configuration()["services"]
        built = {name: {"build": {"network": "host"}} for name, each in services.items() if "build" in each}
        self.override.write_text(json.dumps({"services": built}))

    @property
    def amqp(self) -> str:
        """``HOST:PORT`` of the frontends, as published."""
        return f"127.0.0.1:{self.ports['AMQP']}"

    @property
    def http(self) -> str:
        """``HOST:PORT`` of the gateways."""
        return f"127.0.0.1:{self.ports['HTTP']}"

    def __call__(self, *arguments: str, check: bool = True, time_s: float = 300) -> str:
        """What ``docker compose ARGUMENTS`` prints, stderr included."""
        return self.engine.run(
            str(self.program), "--file", "docker-compose.yml", "--file", str(self.override), *arguments,
            check=check, time_s=time_s, environ=self.environ, directory=ROOT,
        )  # fmt: skip

    def up(self, *arguments: str) -> str:
        """Starts what is described, and waits until all of it is healthy."""
        try:
            return self(
                "up", "--detach", "--wait", "--wait-timeout", str(UP_S), *arguments, time_s=UP_S + 300
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self('ps', '--all')}\n{self('logs', '--tail=15')}") from None

    def configuration(self) -> dict[str, Any]:
        """The file as Compose has understood it, with all profiles."""
        found: dict[str, Any] = json.loads(self("--profile", "*", "config", "--format", "json"))
        return found

    def containers(self, service: str) -> list[dict[str, Any]]:
        """What the engine says about each container of a service."""
        names = self("ps", "--all", "--quiet", service).split()
        found: list[dict[str, Any]] = json.loads(self.engine.docker("inspect", *names)) if names else []
        return found

    def healthy(self, service: str) -> int:
        """How many containers of a service are healthy now."""
        states = [each["State"] for each in self.containers(service)]
        return sum(state.get("Health", {}).get("Status") == "healthy" for state in states)
