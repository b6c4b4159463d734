"""Places: the parsed paths of administration requests.

    /$namespaceinfo                              the installation
    /$Resources/queues, /$Resources/topics       lists
    /NAME                                        a queue or a topic
    /TOPIC/subscriptions[/NAME]                  subscriptions of a topic, or one of them

    /TOPIC/subscriptions/NAME/rules[/RULE]       rules of a subscription, or one of them
Fixed words of the path are compared without regard to case. Percent-encoding is decoded once.
"""

from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import unquote

from lightrail.model.names import InvalidNameError, check, queue_name

_NAMESPACE: Final = "$namespaceinfo"
_RESOURCES: Final = "$resources"


class Kind(Enum):
    """Kind of the resource at a place."""

    NAMESPACE = auto()
    QUEUES = auto()
    TOPICS = auto()
    ENTITY = auto()
    SUBSCRIPTIONS = auto()
    SUBSCRIPTION = auto()
    RULES = auto()
    RULE = auto()


class Place(NamedTuple):
    """A parsed path."""

    kind: Kind
    name: str = ""
    """Name of the queue or the topic."""
    subscription: str = ""
    rule: str = ""


def place_of(raw_path: str) -> Place:
    """Reads a path that is still percent-encoded. Raises InvalidNameError."""
    path = raw_path.strip("/")
    words = path.lower().split("/")
    if words == [_NAMESPACE]:
        return Place(Kind.NAMESPACE)
    if words[0] == _RESOURCES and words[1:] in (["queues"], ["topics"]):
        return Place(Kind.QUEUES if words[1] == "queues" else Kind.TOPICS)
    if words[0].startswith("$"):
        raise InvalidNameError(
            f"nothing is administered at {raw_path[:80]!a}; expected /$namespaceinfo, /$Resources/queues, "
            "/$Resources/topics, or the name of a queue or topic"
        )
    segments = path.split("/")
    if len(segments) > 1 and words[-1] == "subscriptions":
        return Place(Kind.SUBSCRIPTIONS, _name(segments[:-1]))
    if len(segments) > 2 and words[-2] == "subscriptions":
        return Place(Kind.SUBSCRIPTION, _name(segments[:-2]), _segment(segments[-1]))
    if len(segments) > 3 and words[-1] == "rules" and words[-3] == "subscriptions":
        return Place(Kind.RULES, _name(segments[:-3]), _segment(segments[-2]))
    if len(segments) > 4 and words[-2] == "rules" and words[-4] == "subscriptions":
        rule = _segment(segments[-1], is_rule=True)
        return Place(Kind.RULE, _name(segments[:-4]), _segment(segments[-3]), rule)
    return Place(Kind.ENTITY, _name(segments))


def _name(segments: list[str]) -> str:
    return queue_name("/" + "/".join(segments))


def _segment(text: str, *, is_rule: bool = False) -> str:
    """The name of a subscription or a rule; names of rules may begin with a $."""
    found = unquote(text)
    if "/" in found:
        raise InvalidNameError(f"{found[:80]!a} has a slash; expected the name of a subscription or a rule")
    check(found.removeprefix("$") if is_rule else found)
    return found
