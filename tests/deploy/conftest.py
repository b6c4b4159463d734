"""The engine, the images and Compose that the tests of this folder run on; made once, kept in a cache."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy import images
from tests.support.deploy import compose
from tests.support.deploy.docker import Engine, NoEngineError, alone


@dataclass
class Docker:
    """What a test of a container needs."""

    engine: Engine
    program: Path
    """docker compose"""


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """An engine with all images that are not built of this tree, and Compose; skips where none can run."""
    scratch = tmp_path_factory.mktemp("docker")
    try:
        with alone("engine"), Engine(scratch) as engine:
            program = _made(engine, scratch)
            yield Docker(engine, program)
    except NoEngineError as reason:
        pytest.skip(str(reason))


def _made(engine: Engine, scratch: Path) -> Path:
    """Compose is compiled while Debian's packages are fetched."""
    outcome: list[Path | Exception] = []

    def compile() -> None:
        try:
            outcome.append(compose.program())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=compile)
    thread.start()
    try:
        images.make_python(engine, scratch)
        images.make_servers(engine)
    finally:
        thread.join()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
