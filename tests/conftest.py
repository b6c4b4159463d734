"""What holds for every test: the same examples in every run, unless somebody looks for new ones.

`LIGHTRAIL_EXAMPLES=new` draws fresh Hypothesis examples; a failing one prints the line that repeats it.
`LIGHTRAIL_TEST_FORM=compiled` runs tests on compiled modules (tests/support/form.py).
"""

import gc
import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import settings

from tests.support import form
from tests.support.broker import Broker

# This file is loaded ahead of those that import lightrail's modules.
form.install()
settings.register_profile("same", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("new", deadline=None, print_blob=True)
settings.load_profile("new" if os.environ.get("LIGHTRAIL_EXAMPLES") == "new" else "same")


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One for all tests that name it: they neither stop nor freeze it, and use names of their own."""
    with Broker(tmp_path_factory.mktemp("shared") / "data") as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def _seldom_collected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Models and simulations look for cycles as seldom as a frontend does: a twentieth of their time."""
    before = gc.get_threshold()
    if request.node.nodeid.startswith(("tests/model/", "tests/simulation/")):
        gc.set_threshold(50_000, 20, 100)
    yield
    gc.set_threshold(*before)


def pytest_configure() -> None:
    if form.IS_COMPILED:
        form.watch_replacements()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skips a test whose fakes compiled code does not take."""
    try:
        return (yield)
    except (AttributeError, TypeError) as error:
        if form.IS_COMPILED and form.is_faked(error):
            pytest.skip(str(error))
        raise


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that can't run on compiled modules are left out where they are used."""
    if form.IS_COMPILED:
        left_out = [item for item in items if item.nodeid.startswith(tuple(form.LEFT_OUT))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


CONTAINERS: Final = frozenset(
    f"tests/deploy/test_{name}.py" for name in ("compose", "emulator_image", "image")
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadfile: one process runs all tests of containers, as there is one engine for them."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)

    def scope(nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "containers" if file in CONTAINERS else file

    scheduling._split_scope = scope
    return scheduling
