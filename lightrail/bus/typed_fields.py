"""Annotations of classes: the types of fields, and of items of collections."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

from lightrail.bus.errors import ConfigurationError


def hints_of(cls: Any) -> dict[str, Any]:
    """Annotations of a class by name. Raises ConfigurationError where one can't be read at run time."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{cls.__qualname__}: expected annotations that can be read at run time, found {error}: "
            "define the class before it is used, at the level of a module"
        ) from error


def plain(hint: Any) -> Any:
    """An annotation without Required and NotRequired."""
    return get_args(hint)[0] if get_origin(hint) in (typing.Required, typing.NotRequired) else hint


def fields_of(annotation: Any) -> Mapping[str, Any] | None:
    """Annotations of the fields of a class, or of the class of an Optional; None for other types."""
    for each in _options(annotation):
        if not isinstance(each, type):
            continue
        if is_typeddict(each):
            return {name: plain(hint) for name, hint in hints_of(each).items()}
        if dataclasses.is_dataclass(each):
            return hints_of(each)
        fields = getattr(each, "model_fields", None) or getattr(each, "__struct_fields__", None)
        if fields:
            hints = hints_of(each)
            return {name: hints.get(name) for name in fields}
    return None


def item_of(annotation: Any) -> Any:
    """Annotation of the items of a list or of the values of a dict; None if it is unknown."""
    for each in _options(annotation):
        arguments = get_args(each)
        if arguments:
            return arguments[-1] if arguments[-1] is not Ellipsis else arguments[0]
    return None


def _options(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)
