"""Call: one request of an administration client, its caller, and the parts of its answers.

Places: the parsed paths of administration requests.

    /$namespaceinfo                              the installation
    /$Resources/queues, /$Resources/topics       lists
    /NAME                                        a queue or a topic
    /$temporary/KEY                              a dynamic node, which is read alone
    /TOPIC/subscriptions[/NAME]                  subscriptions of a topic, or one of them

    /TOPIC/subscriptions/NAME/rules[/RULE]       rules of a subscription, or one of them
Fixed words of the path are compared without regard to case. Percent-encoding is decoded once.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode
from xml.etree import ElementTree as Xml

from aiohttp import web

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources.atom import text_of
from lightrail.gateway.resources.queues import rows_of
from lightrail.gateway.rights import demand_name
from lightrail.model.names import (
    InvalidNameError,
    SystemNameError,
    check,
    dead_letter_name,
    folded,
    is_dynamic_node,
    is_system,
    queue_name,
    transfer_name,
)
from lightrail.model.policy import Policy, Role
from lightrail.namespace.directory import Directory
from lightrail.namespace.records import Name, Right, Rules, Subscription
from lightrail.namespace.rights import Caller, may
from lightrail.namespace.rules import rules_of
from lightrail.namespace.statuses import MissingError
from lightrail.namespace.transfer_queues import transfer_queue
from lightrail.service_bus.administration import authorization, entries
from lightrail.service_bus.administration.entries import Entry
from lightrail.service_bus.administration.properties import Server
from lightrail.service_bus.rule_keys import SealedKeyError
from lightrail.service_bus.spelling import PART_CHARACTERS_MAX

if TYPE_CHECKING:
    from lightrail.gateway.request import Request
    from lightrail.gateway.services import Services

_NAMESPACE: Final = "$namespaceinfo"
_RESOURCES: Final = "$resources"


class Kind(Enum):
    """Kind of the resource at a place."""

    NAMESPACE = auto()
    QUEUES = auto()
    TOPICS = auto()
    ENTITY = auto()
    TEMPORARY = auto()
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

    def resolved(self, directory: Directory) -> "Place":
        """The place with the spelling of what exists there: case makes no difference to these clients.

        Raises InvalidNameError: case alone distinguishes several names.
        """
        if not self.name:
            return self
        name = directory.resolve(self.name)
        id = directory.resolve_subscription(name, self.subscription)
        found = directory.subscription(name, id)
        rules = () if found is None or not self.rule else rules_of(found)
        rule = self.rule
        if rule not in rules:
            rule = next((each for each in rules if folded(each) == folded(rule)), rule)
        return self._replace(name=name, subscription=id, rule=rule)


def place_of(raw_path: str) -> Place:
    """Reads a path that is still percent-encoded. Raises InvalidNameError; MissingError for a name with a $.

    No entity has such a name, but clients look for one: so NServiceBus finds out whether it may administer.
    """
    path = raw_path.strip("/")
    words = path.lower().split("/")
    if words == [_NAMESPACE]:
        return Place(Kind.NAMESPACE)
    if words[0] == _RESOURCES and words[1:] in (["queues"], ["topics"]):
        return Place(Kind.QUEUES if words[1] == "queues" else Kind.TOPICS)
    if words[0].startswith("$") and not is_dynamic_node(path):
        raise MissingError(
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
    name = _name(segments)
    return Place(Kind.TEMPORARY if is_dynamic_node(name) else Kind.ENTITY, name)


def _name(segments: list[str]) -> str:
    try:
        return queue_name("/" + "/".join(segments))
    except SystemNameError as error:
        raise MissingError(str(error)) from None


def _segment(text: str, *, is_rule: bool = False) -> str:
    """The name of a subscription or a rule; names of rules may begin with a $."""
    found = unquote(text)
    if "/" in found:
        raise InvalidNameError(f"{found[:80]!a} has a slash; expected the name of a subscription or a rule")
    check(found.removeprefix("$") if is_rule else found)
    return found


ADMINISTRATION_PAGE_MAX: Final[int] = 100
"""Most entities in one answer to an administration client of Azure Service Bus, as there."""
NAME_CHARACTERS_MAX: Final[int] = 260
"""Characters of the name of a new queue or topic, as in Service Bus."""
T = TypeVar("T")
Figures = dict[str, dict[str, Any]]
"""Figures of queues by name (gateway/resources/queues.py)."""
COUNTS: Final = (
    "ActiveMessageCount",
    "DeadLetterMessageCount",
    "ScheduledMessageCount",
    "TransferMessageCount",
    "TransferDeadLetterMessageCount",
)


class Call:
    """The argument of this package's handlers."""

    __slots__ = ("caller", "place", "request", "services")

    def __init__(self, request: "Request", place: Place) -> None:
        self.request = request
        self.place = place
        self.services: Services = request.services
        self.caller: Caller = request.caller

    @property
    def directory(self) -> Directory:
        return self.services.directory

    @property
    def server(self) -> Server:
        settings = self.services.settings
        host = self.request.http.host
        return Server(host, settings.max_delivery_count, settings.max_message_bytes)

    # --- entities --------------------------------------------------------------------------------------

    def entity(self) -> Name:
        """The queue or topic that the caller manages. Raises MissingError, ForbiddenError."""
        record = demand_name(self.directory, self.caller, self.place.name, Right.MANAGE)
        if record.role not in (Role.QUEUE, Role.ROUTER):
            raise MissingError(f"there is no queue or topic {self.place.name!a:.200}")
        return record

    def topic(self) -> Name:
        """The topic of the place. Raises MissingError, ForbiddenError."""
        record = self.entity()
        if record.role is not Role.ROUTER:
            raise MissingError(f"{record.name} is a queue; expected a topic")
        return record

    def subscription(self) -> Subscription:
        """The subscription of the place. Raises MissingError, ForbiddenError."""
        topic = self.topic()
        found = self.directory.subscription(topic.name, self.place.subscription)
        if found is None or not self.is_shown(found):
            raise MissingError(f"{topic.name} has no subscription {self.place.subscription!a:.200}")
        self.caller = self.caller.at(found.target)
        return found

    def subscriptions(self, topic: str) -> list[Subscription]:
        """The subscriptions that are shown, by their names."""
        found = [each for each in self.directory.subscriptions(topic) if self.is_shown(each)]
        return sorted(found, key=lambda each: each.id)

    def is_shown(self, subscription: Subscription) -> bool:
        """Whether a subscription is shown: it sends to a queue, and no receiver created it for its link."""
        target = subscription.target
        if subscription.push or is_system(target):
            return False
        return self.directory.get(target).role is Role.QUEUE

    def manages(self, record: Name) -> bool:
        return may(self.directory, self.caller, Right.MANAGE, record)

    def demand_present(self, is_there: bool, what: str) -> bool:
        """Whether the request changes an entity that exists; False: it creates one. Raises ProblemError."""
        updates = self.request.http.headers.get("If-Match") is not None
        if updates and not is_there:
            raise ProblemError(404, f"{what} does not exist, so it can't be changed")
        if is_there and not updates:
            raise ProblemError(409, f"{what} exists already; a change has the header If-Match: *")
        if not is_there:
            name, most = self.place.rule or self.place.subscription, PART_CHARACTERS_MAX
            name, most = (name, most) if name else (self.place.name, NAME_CHARACTERS_MAX)
            if len(name) > most:
                raise ProblemError(400, f"{what}: expected a name of at most {most} characters")
        return updates

    def forwarding(self, policy: Policy, before: Policy | None = None) -> Policy:
        """The policy; names to which messages and dead letters are forwarded are spelled as those that exist.

        A policy that another client has given stays as it is. Raises ProblemError for a name that does not
        exist, InvalidNameError.
        """
        found: dict[str, str] = {}
        for name, field in (("ForwardTo", "forward_to"), ("ForwardDeadLetteredMessagesTo", "dead_letter")):
            given = policy[field]
            if given is None or (before is not None and before[field] == given):
                continue
            target = found[field] = self.directory.resolve(given)
            if self.directory.get(target).role is Role.NONE:
                raise ProblemError(
                    400,
                    f"SubCode=40400. {name}: the auto forwarding destination entity {target!a:.200} does not "
                    "exist; create it first",
                )
        return Policy.parse({"role": str(policy.role), **policy.given, **found}) if found else policy

    async def change(self, record: Name, policy: Policy, rules: Rules | None = None) -> Name:
        """Gives a name another policy, which was made from that of the record, and perhaps other rules.

        Raises ChangedError if the name was changed since, or is not at the revision that the client has read.
        """
        revision = self.request.revision()
        if revision is None:
            # The policy has fields that no property shows: those of a change in between would be lost.
            revision = record.revision
        changed = await self.services.namespace.change(self.caller, record.name, policy, revision, rules)
        return await self._with_transfers(changed)

    async def give(self, name: str, policy: Policy, rules: Rules = ()) -> Name:
        """Creates a queue or topic. Raises TakenError, ForbiddenError, ServiceError and others."""
        made = await self.services.namespace.give(self.caller, name, policy, rules=rules)
        return await self._with_transfers(made)

    async def _with_transfers(self, record: Name) -> Name:
        """The record of a queue; if it forwards, clients find the dead letters of transfers at once."""
        if record.policy["forward_to"] is not None:
            await transfer_queue(self.services.namespace, record.name)
        return record

    def rules_in(self, wanted: dict[str, Xml.Element], present: Rules) -> Rules | None:
        """Takes the authorization rules out of the properties that a client sends; None without any.

        Raises ProblemError, LimitExceededError.
        """
        return authorization.rules_in(wanted.pop(authorization.ELEMENT, None), self._secret, present)

    def rules_shown(self, record: Name) -> Xml.Element:
        """The authorization rules of an entity, with their keys. Raises ProblemError."""
        try:
            return authorization.shown(self._secret, record.authorization_rules)
        except SealedKeyError as error:
            raise ProblemError(500, f"{record.name}: {error}") from None

    @property
    def _secret(self) -> bytes:
        return self.services.callers.secret

    # --- answers ---------------------------------------------------------------------------------------

    def url(self, *segments: str) -> str:
        """The URL of an entity."""
        path = "/".join(quote(each, safe="/$") for each in segments)
        return f"{self.request.http.scheme}://{self.request.http.host}/{path}"

    def shown(self, entry: Entry, status: int = 200, revision: int = 0) -> web.Response:
        """The answer with one entry."""
        headers = {"ETag": f'"{revision}"'} if revision else {}
        return entries.answer(text_of(entry.element()), "entry", status, headers)

    def page(self, found: list[T]) -> tuple[list[T], str | None]:
        """The part of a list that $skip and $top request, and the URL of the next part."""
        skip = self.request.whole("$skip", 0, 0, 1 << 31)
        most = ADMINISTRATION_PAGE_MAX
        top = min(self.request.whole("$top", most, 1, 1 << 31), most)
        if skip + top >= len(found):
            return found[skip : skip + top], None
        query = urlencode({"$skip": skip + top, "$top": top, "api-version": self.version}, safe="$")
        return found[skip : skip + top], f"{self.here}?{query}"

    @property
    def version(self) -> str:
        return self.request.http.query.get("api-version", "")

    @property
    def here(self) -> str:
        """The URL of the request without its query."""
        http = self.request.http
        return f"{http.scheme}://{http.host}{http.rel_url.raw_path}"

    def feed(self, made: list[Entry], following: str | None) -> web.Response:
        changed_at_ms = max((each.changed_at_ms for each in made), default=0)
        title = {Kind.QUEUES: "Queues", Kind.TOPICS: "Topics", Kind.RULES: "Rules"}
        text = entries.feed(
            self.here, title.get(self.place.kind, "Subscriptions"), made, changed_at_ms, following
        )
        return entries.answer(text, "feed")

    # --- figures ---------------------------------------------------------------------------------------

    async def figures(self, queues: list[str]) -> Figures:
        """Figures of queues, their dead-letter queues, and those of what they could not forward."""
        names = [
            each for name in queues for each in (name, dead_letter_name(name), *self._transfers_of(name))
        ]
        return {row["name"]: row for row in await rows_of(self.services, names)} if names else {}

    def _transfers_of(self, queue: str) -> list[str]:
        """The queue with the dead letters of a queue's transfers, if it has one."""
        name = transfer_name(queue)
        return [dead_letter_name(name)] if self.directory.find(name) is not None else []

    def counted(self, queue: str, figures: Figures) -> dict[str, str | Xml.Element]:
        """MessageCount, CountDetails and SizeInBytes of a queue; empty while its shard does not answer."""
        row = figures.get(queue, {})
        if row.get("ready") is None:
            return {}
        dead = figures.get(dead_letter_name(queue), {})
        # As in Service Bus, a deferred message is an active one, and what is in a queue that forwards is
        # about to be transferred.
        there = row["ready"] + row["in_flight"] + (row.get("deferred") or 0)
        forwards = self.directory.get(queue).policy["forward_to"] is not None
        active, transfers = (0, there) if forwards else (there, 0)
        letters = _letters(dead)
        refused = sum(_letters(figures.get(name, {})) for name in self._transfers_of(queue))
        values = (active, letters, row["delayed"], transfers, refused)
        return {
            "SizeInBytes": str(row["bytes"] + (dead.get("bytes") or 0)),
            "MessageCount": str(sum(values)),
            "CountDetails": entries.counts(dict(zip(COUNTS, values, strict=True))),
        }


def _letters(dead: Mapping[str, Any]) -> int:
    """Messages of a dead-letter queue, by its figures."""
    return sum(dead.get(state) or 0 for state in ("ready", "delayed", "in_flight", "deferred"))
