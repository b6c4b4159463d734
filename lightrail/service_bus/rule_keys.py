"""Rule keys: the keys of authorization rules, sealed for their entries, and who has signed with one.

A client chooses these keys, and reads them again, so that they can't be derived as those of users are
(ADR 39). They are stored under the installation's secret: the digest of a key is an HMAC of it, and its text
is added to a stream of HMACs of the digest (the construction of RFC 5297, with HMAC for both parts). There is
no nonce that could be used twice; a sealed key that was changed, or sealed by another secret, is an error and
no wrong key; and a key that somebody shows is found by its digest, whatever number of entities there is.
"""

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lightrail.model.names import InvalidNameError, above, folded, owner
from lightrail.model.policy import Role
from lightrail.namespace.directory import Changes, Directory
from lightrail.namespace.records import DIGEST_BYTES, AuthorizationRule, Name, SealedKey
from lightrail.namespace.rights import Caller, RuleKey, entity_of
from lightrail.service_bus.spelling import SUBSCRIPTIONS, Spelled

_DIGEST: Final = b"lightrail digest of a rule's key 1\0"
_STREAM: Final = b"lightrail stream of a rule's key 1\0"


class SealedKeyError(ValueError):
    """A stored key can't be read: it was changed, or another installation has sealed it."""


def digest_of(secret: bytes, rule: str, key: str) -> bytes:
    """The digest of a key of a rule of this name, at whatever entity."""
    text = b"\0".join(part.encode(errors="surrogatepass") for part in (rule, key))
    return hmac.digest(secret, _DIGEST + text, "sha256")[:DIGEST_BYTES]


def seal(secret: bytes, rule: str, key: str) -> SealedKey:
    """The stored form of a key, which shows how long the key is."""
    digest = digest_of(secret, rule, key)
    return SealedKey(digest, _added(secret, digest, key.encode()))


def unseal(secret: bytes, rule: str, sealed: SealedKey) -> str:
    """The text of a key. Raises SealedKeyError."""
    text = _added(secret, sealed.digest, sealed.cipher).decode(errors="replace")
    if not hmac.compare_digest(digest_of(secret, rule, text), sealed.digest):
        raise SealedKeyError(
            f"a key of the authorization rule {rule} can't be read: its entry was changed, or is from "
            "another installation; set the rule's keys again"
        )
    return text


def _added(secret: bytes, digest: bytes, text: bytes) -> bytes:
    blocks = (
        hmac.digest(secret, _STREAM + digest + number.to_bytes(4), "sha256")
        for number in range(-(-len(text) // 32))
    )
    return bytes(one ^ other for one, other in zip(text, b"".join(blocks), strict=False))


def keys_of(secret: bytes, rule: AuthorizationRule) -> Iterator[tuple[SealedKey, str]]:
    """Both keys of a rule, with their texts. Raises SealedKeyError."""
    return ((each, unseal(secret, rule.name, each)) for each in (rule.primary, rule.secondary))


def is_current(directory: Directory, key: RuleKey) -> bool:
    """Whether a rule has the key still."""
    directory.refresh()
    entity = directory.find(key.entity)
    rule = None if entity is None else entity.authorization_rule(key.rule)
    return rule is not None and rule.has_key(key.digest)


def entity_at(directory: Directory, path: str) -> Name | None:
    """The entity whose rules sign for a path: the queue or topic there, or the nearest above.

    Case makes no difference.
    """
    try:
        known = Spelled.read(directory, path).path
        candidates = (known, *(directory.resolve(each) for each in above(known)))
    except InvalidNameError:
        return None
    found = (entity_of(directory, each) for each in candidates)
    return next((each for each in found if each is not None), None)


def written_entity(directory: Directory, path: str) -> str:
    """The name of the entity at a path, as it exists, or as it is written in the path."""
    found = entity_at(directory, path)
    if found is not None:
        return found.name
    head = folded(path).partition(f"/{SUBSCRIPTIONS}/")[0]
    return owner(path[: len(head)])


@dataclass(slots=True, eq=False, repr=False)
class RuleKeys:
    """Finds the rule of a key that a client shows, at all entities. Made once for each directory."""

    _directory: Directory
    _by_digest: dict[bytes, set[str]] = field(default_factory=dict)
    """Names of entities that have the key."""

    def __post_init__(self) -> None:
        for each in self._directory.below(""):
            self._add(each)
        self._directory.listen(self._changed)

    def caller(self, secret: bytes, rule: str, key: str) -> Caller | None:
        """The caller who shows the name of a rule and one of its keys; None if no rule has it.

        It has the rights of all rules of this name with this key. Raises CoordinatorError.
        """
        self._directory.refresh()
        digest = digest_of(secret, rule, key)
        entities = self._by_digest.get(digest)
        if not entities:
            return None
        found = RuleKey(rule, digest, min(entities))
        return Caller(found.user, by_rule=found)

    def _changed(self, changes: Changes) -> None:
        for name, before in changes.names.items():
            for digest in () if before is None else _digests(before):
                entities = self._by_digest.get(digest, set())
                entities.discard(name)
                if not entities:
                    self._by_digest.pop(digest, None)
            now = self._directory.find(name)
            if now is not None:
                self._add(now)

    def _add(self, record: Name) -> None:
        for digest in _digests(record):
            self._by_digest.setdefault(digest, set()).add(record.name)


def _digests(record: Name) -> Iterator[bytes]:
    if record.role in (Role.QUEUE, Role.ROUTER):
        for rule in record.authorization_rules:
            yield rule.primary.digest
            yield rule.secondary.digest
