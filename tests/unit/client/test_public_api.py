"""The public API: names and signatures that applications may use, as a text that a change of them changes.

Renew public_api.txt beside this file by `python tests/unit/client/test_public_api.py`, and read its diff as
an application does: a name or parameter that is lost, renamed or moved breaks it.
"""

import enum
import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, is_typeddict

import pytest

import lightrail.client
import lightrail.client.sync
from lightrail.client.link import Link
from lightrail.client.link_factory import LinkFactory

GOLDEN: Final = Path(__file__).with_name("public_api.txt")

OF_THE_LIBRARY: Final = {
    "Connection": {
        "check_loop",
        "connected",
        "fileno",
        "forget",
        "is_token_missing",
        "link_attached",
        "link_lost",
        "locks",
        "loop",
        "node",
        "offers",
        "open",
        "report",
    },
    "Delivery": {"is_of", "lose", "settle"},
    "Receiver": {
        "attach",
        "attached",
        "closed",
        "detached",
        "end",
        "flush",
        "flush_outcomes",
        "handle",
        "keeper",
        "lost",
        "on_lost",
        "put_back",
        "refuse_to_lose",
        "renew",
        "settle",
        "was_opened",
        "what",
    },
    "Sender": {
        "attach",
        "attached",
        "closed",
        "delayed",
        "detached",
        "end",
        "flush",
        "handle",
        "lost",
        "send_with",
        "was_opened",
        "what",
    },
}
"""What the client's own modules call of one another: not for applications, and in no list of theirs."""
MADE_BY_METHODS: Final = {"Delivery", "Management", "Receiver", "Requester", "Sender", "Transaction"}
"""No application calls these classes. Nor `Connection`, but its parameters are the options of `connect`."""
PROTOCOLS: Final = ("__aenter__", "__aiter__", "__anext__", "__enter__", "__iter__", "__await__")
"""Methods that the language calls: `async with`, `for`, and so on."""
PASS_ON: Final = {"Connection.sender", "Connection.receiver"}
"""These of `sync` hand all keywords to the asynchronous method, which refuses what it does not know."""


def exports(module: ModuleType) -> dict[str, Any]:
    """What a module offers: `__all__`, or what it defines itself."""
    names = getattr(module, "__all__", None) or [
        name
        for name, each in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(each) or inspect.isfunction(each))
        and each.__module__ == module.__name__
    ]
    return {name: getattr(module, name) for name in sorted(names)}


def attributes(kind: type) -> dict[str, Any]:
    """Those that `__init__` sets, which a class does not list."""
    if "__init__" not in vars(kind) or is_dataclass(kind):
        return {}
    source = inspect.getsource(vars(kind)["__init__"])
    return dict.fromkeys(re.findall(r"^ +self\.([a-z]\w*)(?:: [^=]+)? = ", source, re.MULTILINE))


def members(kind: type) -> dict[str, Any]:
    """Public members that LightRail defines, inherited ones included, in the order of the alphabet."""
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("lightrail."):
            found |= attributes(each) | vars(each)
    hidden = OF_THE_LIBRARY.get(kind.__name__, set())
    return {
        name: each
        for name, each in sorted(found.items())
        if name in PROTOCOLS or not (name.startswith("_") or name in hidden)
    }


def short(text: str) -> str:
    """Of dotted names the last word, for the reader knows or finds where it is."""
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text)


def signature(function: Any) -> str:
    """Parameters and result."""
    text = short(str(inspect.signature(function)))
    # One version of Python writes the keywords of a TypedDict in this way, the others as they stand.
    text = re.sub(r"\*<class (?:'?)(\w+)(?:'?)>", r"Unpack[\1]", text)
    # Names in quotes are classes that are defined later; an object has another address in each process.
    return re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"(['\"])([A-Z][^'\"]*)\1", r"\2", text))


def lines_of(kind: type) -> Iterator[str]:
    bases = [
        each.__name__
        for each in kind.__bases__
        if each not in (object, Link, LinkFactory) and not each.__name__.startswith("_")
    ]
    yield f"class {kind.__name__}({', '.join(bases)})" if bases else f"class {kind.__name__}"
    if is_typeddict(kind):
        shown = {name: inspect.formatannotation(each) for name, each in kind.__annotations__.items()}
        yield from (f"    {name}: {short(each)}" for name, each in shown.items())
        return
    if issubclass(kind, enum.Enum):
        yield from (f"    {each.name} = {each.value!r}" for each in kind)
        return
    made = kind.__name__ in MADE_BY_METHODS or kind is lightrail.client.sync.Connection
    if "__init__" in vars(kind) and not made:
        yield f"    __init__{signature(kind.__init__)}"
    for name, each in members(kind).items():
        if isinstance(each, classmethod | staticmethod):
            yield f"    {type(each).__name__} {name}{signature(each.__func__)}"
        elif inspect.isfunction(each):
            prefix = "async " if inspect.iscoroutinefunction(each) else ""
            yield f"    {prefix}{name}{signature(each)}"
        elif isinstance(each, property):
            result = signature(each.fget).partition(" -> ")[2] if each.fget else "Any"
            yield f"    {name}: {result}"
        else:
            yield f"    {name}"


def listed() -> str:
    """The text of public_api.txt."""
    lines = ["# Written by tests/unit/client/test_public_api.py, which says how to renew it."]
    for module in (lightrail.client, lightrail.client.sync):
        lines += ["", "", module.__name__]
        for name, each in exports(module).items():
            lines.append("")
            if inspect.isclass(each):
                lines += lines_of(each)
            else:
                lines.append(f"{name}{signature(each)}")
    return "\n".join(lines) + "\n"


def test_the_public_names_and_signatures_are_those_of_the_list() -> None:
    assert listed() == GOLDEN.read_text(), "read the head of this test: it says how to renew the list"


def test_every_public_name_has_a_docstring() -> None:
    """Those without await point to their namesakes by that of their class."""
    lacking = []
    for name, each in exports(lightrail.client).items():
        if not each.__doc__:
            lacking.append(name)
        for member, found in members(each).items() if inspect.isclass(each) else ():
            function = getattr(found, "fget", None) or getattr(found, "__func__", found)
            if inspect.isfunction(function) and member not in PROTOCOLS and not function.__doc__:
                lacking.append(f"{name}.{member}")
    lacking += [name for name, each in exports(lightrail.client.sync).items() if not each.__doc__]
    assert not lacking


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each: what a caller relies on. Results differ: other classes, futures."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(
    "name", sorted(set(exports(lightrail.client)) & set(exports(lightrail.client.sync)) - {"connect"})
)
def test_without_await_classes_have_the_same_names_and_parameters(name: str) -> None:
    awaited = members(getattr(lightrail.client, name))
    plain = members(getattr(lightrail.client.sync, name))
    special = set(PROTOCOLS)
    assert set(awaited) - special == set(plain) - special
    for member, each in plain.items():
        if member in special or not inspect.isfunction(each):
            continue
        if f"{name}.{member}" in PASS_ON:
            *own, (_, kind, _) = parameters(each)
            assert kind is inspect.Parameter.VAR_KEYWORD, member
            expected = parameters(awaited[member])
            assert own == expected[: len(own)], member
            assert {kind for _, kind, _ in expected[len(own) :]} == {inspect.Parameter.KEYWORD_ONLY}, member
        else:
            assert parameters(each) == parameters(awaited[member]), member


def test_connect_has_the_same_parameters_without_await() -> None:
    """Of the asynchronous one, which is a class for `await` and `async with`, those after `self`."""
    awaited = [each for each in parameters(lightrail.client.connect) if each[0] != "self"]
    assert parameters(lightrail.client.sync.connect) == awaited


if __name__ == "__main__":
    GOLDEN.write_text(listed())
