"""Protocols that one class of the product implements.

A class implements a protocol if it inherits from it, or if it has every member of the protocol (its bases
in the product included), and its methods accept the parameters of the protocol's. Protocols with `__call__`
are left out, since functions implement them. Types are not compared, so a protocol of few and common
members may seem to have more implementers than it has.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from scripts.counts.imports import origin
from scripts.counts.lines import is_protocol
from scripts.counts.product import Function, Module, Product

Members = Mapping[str, Function | None]
"""By name: the method, or None for anything else."""
OWN: Final = ("__slots__", "__match_args__", "__hash__")
"""Members that say nothing of what a class is used for."""


@dataclass(frozen=True)
class Class:
    """One class and the file that it is in."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return f"{self.module.name}.{self.node.name}"


def with_one_implementer(product: Product) -> list[tuple[str, str]]:
    """Pairs of a protocol and its only implementer, by full names."""
    return [(protocol.name, found[0].name) for protocol, found in implementers(product) if len(found) == 1]


def implementers(product: Product) -> Iterator[tuple[Class, list[Class]]]:
    """Each protocol with the classes of the product that implement it."""
    named = by_name(product)
    classes = [Class(module, node) for module in product for node in module.classes]

    @cache
    def bases(each: Class) -> tuple[Class, ...]:
        found = (resolve(named, each.module, base) for base in each.node.bases)
        return tuple(base for base in found if base is not None and base is not each)

    @cache
    def ancestors(each: Class) -> frozenset[Class]:
        return frozenset(bases(each)).union(*(ancestors(base) for base in bases(each)))

    @cache
    def members(each: Class) -> Members:
        found: dict[str, Function | None] = {}
        for base in reversed(bases(each)):
            found |= members(base)
        return found | own_members(each.node)

    concrete = [each for each in classes if not is_protocol(each.node)]
    for protocol in classes:
        if is_protocol(protocol.node) and "__call__" not in members(protocol):
            yield (
                protocol,
                [
                    each
                    for each in concrete
                    if protocol in ancestors(each) or fits(members(protocol), members(each))
                ],
            )


def by_name(product: Product) -> dict[str, Class | str]:
    """By module and name: a class of the module, or the full name of what it imports under that name."""
    found: dict[str, Class | str] = {}
    for module in product:
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[f"{module.name}.{alias.asname or alias.name}"] = (
                        f"{origin(module, node)}.{alias.name}"
                    )
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.split(".")[0]
                    found[f"{module.name}.{name}"] = alias.name if alias.asname else name
        found |= {f"{module.name}.{each.name}": Class(module, each) for each in module.classes}
    return found


def resolve(named: Mapping[str, Class | str], module: Module, base: ast.expr) -> Class | None:
    """The class of the product that a base class is; None for others."""
    if isinstance(base, ast.Subscript):
        return resolve(named, module, base.value)
    name = f"{module.name}.{ast.unparse(base).strip(chr(39) + chr(34))}"
    for _ in range(8):  # one for each module that hands the name on
        target = named.get(name)
        if target is None and "." in name:
            owner, _, last = name.rpartition(".")
            aliased = named.get(owner)
            target = f"{aliased}.{last}" if isinstance(aliased, str) else None
        if not isinstance(target, str):
            return target
        name = target
    return None


def own_members(node: ast.ClassDef) -> dict[str, Function | None]:
    """What the body of a class defines, and what its methods assign to `self`."""
    found: dict[str, Function | None] = {}
    for member in node.body:
        match member:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found[member.name] = member
                for name in assigned(member):
                    found.setdefault(name, None)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.setdefault(name, None)
            case ast.Assign(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, None)
    return {name: member for name, member in found.items() if name not in OWN}


def assigned(method: Function) -> Iterator[str]:
    """Attributes of `self` that a method sets."""
    for node in ast.walk(method):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                yield name


def fits(protocol: Members, members: Members) -> bool:
    """Whether a class with these members has those of a protocol."""
    return all(name in members and accepts(wanted, members[name]) for name, wanted in protocol.items())


def accepts(wanted: Function | None, member: Function | None) -> bool:
    """Whether a method can be called as the protocol's can; a property stands for any attribute."""
    if wanted is None or member is None or is_property(wanted) or is_property(member):
        return True
    if member.args.vararg or member.args.kwarg:
        return True
    passed, accepted = names(wanted), names(member)
    required = accepted[: len(accepted) - len(member.args.defaults)]
    return len(required) <= len(passed) <= len(accepted) and {
        argument.arg for argument in wanted.args.kwonlyargs
    } <= {argument.arg for argument in (*member.args.kwonlyargs, *member.args.args)}


def names(method: Function) -> list[str]:
    """Its positional parameters, without `self` or `cls`."""
    is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in method.decorator_list)
    return [argument.arg for argument in (*method.args.posonlyargs, *method.args.args)][not is_static :]


def is_property(method: Function) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in method.decorator_list)
