"""AuthorizationRules of queues and topics: their form in XML, and what a rule may be.

A caller that may manage an entity reads its keys, as in Service Bus. The keys are sealed before anything else
sees them, and are unsealed for the answer alone.
"""

import base64
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as Xml

from lightrail.gateway.bodies import rfc3339
from lightrail.gateway.errors import ProblemError, invalid
from lightrail.gateway.resources.atom import add, element
from lightrail.model.clock import wall_ms
from lightrail.model.names import folded
from lightrail.namespace.records import AuthorizationRule, Right, Rules, SealedKey
from lightrail.namespace.statuses import LimitExceededError
from lightrail.service_bus.administration.entries import INSTANCE, children, local, plain_text, type_of
from lightrail.service_bus.rule_keys import digest_of, seal, unseal

ELEMENT: Final = "AuthorizationRules"
AUTHORIZATION_RULES_MAX: Final[int] = 12
"""Authorization rules of one entity, as in Service Bus."""
RULE_NAME_MAX: Final[int] = 256
"""Characters of a rule's name."""
KEY_CHARACTERS_MIN: Final[int] = 24
"""Characters of a key: as many as 128 bits have in base64. A signature would give a shorter one away."""
KEY_CHARACTERS_MAX: Final[int] = 256
KEY_BYTES: Final = 32
"""Of a key that a client leaves to the broker."""
_RULE: Final = "AuthorizationRule"
_KIND: Final = "SharedAccessAuthorizationRule"
_CLAIM: Final = {"ClaimType": "SharedAccessKey", "ClaimValue": "None"}
_RIGHTS: Final[Mapping[str, Right]] = {
    "Manage": Right.MANAGE,
    "Send": Right.SEND,
    "Listen": Right.LISTEN,
}
_KEYS: Final = ("PrimaryKey", "SecondaryKey")
_PARTS: Final = frozenset(("Rights", "KeyName", "CreatedTime", "ModifiedTime", *_KEYS, *_CLAIM))
_NAME: Final = re.compile(r"[A-Za-z0-9._!*()-]+", re.ASCII)
_KEY: Final = re.compile(r"[!-~]+", re.ASCII)


def shown(secret: bytes, rules: Rules) -> Xml.Element:
    """The element with the rules of an entity. Raises SealedKeyError."""
    made = element(ELEMENT)
    for rule in rules:
        part = element(_RULE, **{"i:type": _KIND, "xmlns:i": INSTANCE})
        for name, value in _CLAIM.items():
            add(part, name, value)
        rights = element("Rights")
        for name, right in _RIGHTS.items():
            if right in rule.rights:
                add(rights, "AccessRights", name)
        part.append(rights)
        add(part, "CreatedTime", rfc3339(rule.created_at_ms))
        add(part, "ModifiedTime", rfc3339(rule.changed_at_ms))
        add(part, "KeyName", rule.name)
        for name, key in zip(_KEYS, (rule.primary, rule.secondary), strict=True):
            add(part, name, unseal(secret, rule.name, key))
        made.append(part)
    return made


def rules_in(found: Xml.Element | None, secret: bytes, present: Rules) -> Rules | None:
    """The rules that a client wants, in their order; None if it does not say.

    A rule without keys keeps those that it has, and a new one gets random ones. One that does not differ from
    the present one is the same.

    Raises ProblemError, LimitExceededError.
    """
    if found is None:
        return None
    if len(found) > AUTHORIZATION_RULES_MAX:
        raise LimitExceededError(
            f"an entity has at most {AUTHORIZATION_RULES_MAX} authorization rules, found {len(found)}; "
            "delete some"
        )
    if not len(found) and plain_text(found):
        raise invalid(ELEMENT, plain_text(found)[:80], f"a list of {_RULE}", 400)
    by_name = {rule.name: rule for rule in present}
    made: dict[str, AuthorizationRule] = {}
    for each in found:
        rule = _Sent.read(each).rule(secret, by_name, wall_ms())
        if folded(rule.name) in made:
            raise ProblemError(
                400, f"two authorization rules have the name {rule.name} without regard to case; rename one"
            )
        made[folded(rule.name)] = rule
    return tuple(made.values())


@dataclass(slots=True, eq=False, repr=False)
class _Sent:
    """One rule as a client sent it; without a representation, as that might be logged."""

    name: str
    rights: frozenset[Right]
    keys: tuple[str, str]
    """Empty for keys that were not sent."""

    @classmethod
    def read(cls, found: Xml.Element) -> "_Sent":
        """Raises ProblemError, which has no key."""
        if local(found) != _RULE or type_of(found) not in ("", _KIND):
            kind = type_of(found) if local(found) == _RULE else local(found)
            raise ProblemError(400, f"{ELEMENT} has a part {kind[:80]!a}; expected {_RULE} of type {_KIND}")
        parts = children(found)
        unknown = next((name for name in parts if name not in _PARTS), None)
        if unknown is not None:
            known = ", ".join(sorted(_PARTS))
            raise ProblemError(400, f"{unknown[:80]!a} is no part of an {_RULE}; it has {known}")
        for name, value in _CLAIM.items():
            if name in parts and plain_text(parts[name]) not in ("", value):
                raise invalid(name, plain_text(parts[name])[:80], f"{value}: rules have keys alone", 400)
        name = plain_text(parts["KeyName"]) if "KeyName" in parts else ""
        if len(name) > RULE_NAME_MAX or _NAME.fullmatch(name) is None:
            raise invalid(
                "KeyName",
                name[:80],
                f"1 to {RULE_NAME_MAX} letters and digits of ASCII and . _ - ! * ( ), since it is a part of "
                "signatures",
                400,
            )
        primary, secondary = (_key(parts[key], key, name) if key in parts else "" for key in _KEYS)
        return cls(name, _rights(parts.get("Rights"), name), (primary, secondary))

    def rule(self, secret: bytes, present: Mapping[str, AuthorizationRule], now_ms: int) -> AuthorizationRule:
        """The rule with sealed keys."""
        known = present.get(self.name)
        former = (None, None) if known is None else (known.primary, known.secondary)
        primary, secondary = (
            self._sealed(secret, key, before) for key, before in zip(self.keys, former, strict=True)
        )
        created_at_ms = now_ms if known is None else known.created_at_ms
        if known is not None and (known.rights, *former) == (self.rights, primary, secondary):
            return known
        return AuthorizationRule(self.name, self.rights, primary, secondary, created_at_ms, now_ms)

    def _sealed(self, secret: bytes, key: str, former: SealedKey | None) -> SealedKey:
        if former is not None and (not key or digest_of(secret, self.name, key) == former.digest):
            return former
        return seal(secret, self.name, key or base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode())


def _rights(found: Xml.Element | None, rule: str) -> frozenset[Right]:
    """Manage includes the others. Raises ProblemError."""
    texts = [] if found is None else [plain_text(each) for each in found]
    if not texts or any(each not in _RIGHTS for each in texts):
        what = ", ".join(texts)[:80] or "none"
        raise invalid("Rights", what, f"one or more of {', '.join(_RIGHTS)} in the rule {rule}", 400)
    rights = frozenset(_RIGHTS[each] for each in texts)
    return frozenset(Right) if Right.MANAGE in rights else rights


def _key(found: Xml.Element, part: str, rule: str) -> str:
    """Raises ProblemError, which does not have the key."""
    text = "" if len(found) else (found.text or "").strip()
    if not text and not len(found):
        return ""
    if not KEY_CHARACTERS_MIN <= len(text) <= KEY_CHARACTERS_MAX or _KEY.fullmatch(text) is None:
        raise ProblemError(
            400,
            f"the {part} of the authorization rule {rule} can't be used: it has {len(text)} characters; "
            f"expected {KEY_CHARACTERS_MIN} to {KEY_CHARACTERS_MAX} printable characters of ASCII without "
            f"blanks, such as {KEY_BYTES} random bytes in base64",
        )
    return text
