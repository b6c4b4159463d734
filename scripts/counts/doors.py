"""Places that reach past a door, and names that mean several things."""

import ast
from collections import Counter
from collections.abc import Iterable

from scripts.counts.product import Module, Product


def places(found: Iterable[tuple[Module, ast.expr]]) -> list[str]:
    """In order, as an editor opens them."""
    lines = sorted((module.path, node.lineno) for module, node in found)
    return [f"{path}:{number}" for path, number in lines]


def reaching_contents(product: Product) -> list[str]:
    """Expressions `machine.contents`, or `X.machine.contents`, outside of the package of queues."""
    inside = {module.name for module in product.below("shard.queue")}
    return places(
        (module, node)
        for module in product
        if module.name not in inside
        for node in module.nodes
        if isinstance(node, ast.Attribute) and node.attr == "contents" and is_machine(node.value)
    )


def is_machine(node: ast.expr) -> bool:
    match node:
        case ast.Name(id="machine") | ast.Attribute(attr="machine"):
            return True
    return False


def marking_touched(product: Product) -> list[str]:
    """Assignments `X.touched[...] = ...`, where X is not the object that has the table (`self`)."""
    return places(
        (module, target)
        for module in product
        for node in module.nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and is_touched(target.value)
    )


def is_touched(node: ast.expr) -> bool:
    """The table of another object, or a name for it."""
    match node:
        case ast.Attribute(attr="touched", value=ast.Name(id="self")):
            return False
        case ast.Name(id="touched") | ast.Attribute(attr="touched"):
            return True
    return False


def shared_class_names(product: Product) -> dict[str, int]:
    """Names that several classes have, with the number of these classes."""
    counted = Counter(each.name for module in product for each in module.classes)
    return {name: number for name, number in sorted(counted.items()) if number > 1}


def contract_lines(configuration: str) -> int:
    """Lines of pyproject.toml's tables [tool.importlinter...] without blank ones."""
    counted = 0
    inside = False
    for line in configuration.splitlines():
        if line.startswith("["):
            inside = line.strip("[] ").startswith("tool.importlinter")
        counted += inside and bool(line.strip())
    return counted
