"""The form of the modules that a message passes, in the process of the tests: sources, or machine code.

`LIGHTRAIL_TEST_FORM=compiled` selects what `python -m scripts.compiling --for-tests` has made (ADR 81).
Compiled code calls functions of its modules in C, has their constants in it, and its classes can't be
changed: a test that replaces one of these is left out. Processes that tests start choose for themselves.
`python -m tests.support.form MODULE ARGUMENTS` runs another module in this form, such as a simulation.
"""

import importlib
import inspect
import os
import re
import runpy
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from lightrail import native

BUILT: Final = Path(__file__).parents[2] / "build/compiled_for_tests"
IS_COMPILED: Final = os.environ.get("LIGHTRAIL_TEST_FORM") == "compiled"
TRAITS: Final = ("lightrail.shard_client.links",)
"""Modules with classes from which interpreted ones can't derive; others stand in their place."""
_ROOMS: Final = {
    "tests/simulation/": {
        "test_members.py::test_a_broken_law_is_seen": "methods of compiled classes are replaced",
        "test_members.py::test_every_broken_law_is_seen": "the same",
    },
    "tests/unit/shard/": {
        "queue/timed/test_ended_links.py::test_an_ended_link_costs": "objects of C are larger",
        "queue/timed/test_ended_links.py::test_a_packed": "examples by annotations, which C has not",
        "queue/timed/test_ended_links.py::test_nothing_visits": "methods are replaced by mock",
        "queue/values/test_effects.py::test_the_performer": "it reads the source of a function",
        "test_kept_locks.py": "a thread is replaced (tests/support/shard/kept_locks.py)",
        "test_lock_file.py": "the same",
        "test_pacing.py::test_what_nobody_takes": "a filter that is no map",
        "test_receiving_link.py": "a link without a queue",
        "test_restored_locks.py": "locks are a mock",
        "test_shares_of_memory.py::test_a_queue_counts": "objects of C are larger",
        "transactions/test_transactions.py::test_a_disk_without_room": "a record without its batch",
    },
    "tests/unit/frontend/": {
        "test_batched.py": "events without a link",
        "test_jms.py::test_capabilities_say": "a symbol where the decoder gives a list of one",
    },
}
LEFT_OUT: Final = {room + name: why for room, tests in _ROOMS.items() for name, why in tests.items()}
"""Tests that can't run on compiled modules, by the beginnings of their ids, and why."""


def install() -> None:
    """Before lightrail's modules are imported. Raises pytest.UsageError: this form is not there."""
    if not IS_COMPILED:
        return
    if not native.install(BUILT):
        raise pytest.UsageError(
            "expected compiled modules of these sources, found none: python -m scripts.compiling --for-tests"
        )
    for module in map(importlib.import_module, TRAITS):
        for name, kind in list(vars(module).items()):
            if name.startswith("Derivable"):
                setattr(module, name.removeprefix("Derivable"), kind)


@cache
def compiled() -> frozenset[str]:
    """The names of the modules that are machine code."""
    paths = (BUILT / native.MODULES).read_text().split()
    return frozenset(path.removesuffix(".py").replace("/", ".") for path in paths)


def is_fixed(owner: Any, name: str) -> bool:
    """Whether compiled code does not see that an attribute of a module, class or object is replaced."""
    if inspect.ismodule(owner):
        # Constants of other modules are in the code, too.
        return owner.__name__ in compiled() or (owner.__name__.startswith("lightrail.") and name.isupper())
    kind = owner if isinstance(owner, type) else type(owner)
    return any(each.__module__ in compiled() and name in vars(each) for each in kind.__mro__)


FAKED: Final = re.compile(
    r"object expected; got (tests\.|types\.SimpleNamespace|unittest\.mock)"
    r"|^'\w+' object attribute '\w+' is read-only"
)
"""Errors of compiled code to which a test gives a fake that has not the type, or whose method it replaces."""


def is_faked(error: Exception) -> bool:
    """Whether a test has failed because of its fakes, which compiled code does not take."""
    return FAKED.search(str(error)) is not None


def watch_replacements() -> None:
    """From now on tests that replace what compiled code does not look up are skipped at that line."""
    setattr_of_pytest = pytest.MonkeyPatch.setattr

    def setattr_or_skip(self: pytest.MonkeyPatch, target: Any, name: Any, *rest: Any, **options: Any) -> None:
        if isinstance(target, str):
            module, _, attribute = target.rpartition(".")
            owner: Any = importlib.import_module(module)
        else:
            owner, attribute = target, name
        if is_fixed(owner, attribute):
            pytest.skip(f"replaces {attribute} of {owner!r}, which compiled code does not look up")
        setattr_of_pytest(self, target, name, *rest, **options)

    pytest.MonkeyPatch.setattr = setattr_or_skip  # type: ignore[method-assign]


if __name__ == "__main__":
    install()
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
