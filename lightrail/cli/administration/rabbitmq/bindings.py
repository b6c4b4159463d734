"""The filter of a subscription for a binding in RabbitMQ."""

from collections.abc import Mapping
from typing import Any

from lightrail.cli.administration.rabbitmq.entries import shown
from lightrail.filters.subject import compile_pattern, split_words


def binding_filter(type: str, key: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The filter of a binding, None for every message. Raises ValueError where no filter is the same."""
    if type == "headers":
        return _headers_filter(arguments)
    if type == "fanout" or (type == "topic" and key == "#"):
        return None
    words = key.split(".")
    if type == "topic" and ("*" in words or "#" in words):
        if "/" in key:
            raise ValueError("'/' separates words of a subject here, and does not in a routing key")
        return {"subject": key}
    equal: dict[str, Any] = {"properties": {"subject": key}}
    # RabbitMQ reads a message without a subject as one with an empty routing key.
    return equal if key else {"any": [equal, {"properties": {"subject": None}}]}


def _headers_filter(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    match = arguments.get("x-match", "all")
    if match not in ("all", "any", "all-with-x", "any-with-x"):
        raise ValueError(f"x-match is {match!a}; expected all, any, all-with-x or any-with-x")
    parts: list[dict[str, Any]] = []
    for key, value in arguments.items():
        if key == "x-match" or (key.startswith("x-") and not match.endswith("-with-x")):
            continue
        if isinstance(value, (dict, list)):
            raise ValueError(f"header {shown(key)} is a table or list; expected a text, number or boolean")
        equal: dict[str, Any] = {"properties": {f"application-properties.{key}": value}}
        # A header without a value is one that only has to be there.
        parts.append({"not": equal} if value is None else equal)
    if len(parts) < 2:
        if not parts and match.startswith("any"):
            raise ValueError("it names no header, any of which would have to match: it matches no message")
        return parts[0] if parts else None
    return {match[:3]: parts}


def fits(found: Mapping[str, Any] | None, key: str) -> bool:
    """Whether a filter of `binding_filter` matches a routing key."""
    if found is None:
        return True
    if "subject" in found:
        return compile_pattern(found["subject"])(split_words(key))
    first = found["any"][0] if "any" in found else found
    return bool(first["properties"]["subject"] == key)
