"""AuthorizationRules in XML: as a client sends them, as they are shown, and what they may be."""

import base64
from xml.etree import ElementTree as Xml

import pytest

from lightrail.gateway.errors import ProblemError
from lightrail.namespace.records import Right, Rules
from lightrail.namespace.statuses import LimitExceededError
from lightrail.service_bus.administration.authorization import (
    AUTHORIZATION_RULES_MAX,
    KEY_CHARACTERS_MAX,
    KEY_CHARACTERS_MIN,
    RULE_NAME_MAX,
    rules_in,
    shown,
)
from lightrail.service_bus.administration.entries import DESCRIPTION, INSTANCE, children, local, type_of

SECRET = b"secret"
KEYS = "A" * 43 + "=", "B" * 43 + "="


def sent(*rules: str) -> Xml.Element:
    """As the client for .NET writes it."""
    namespaces = f'xmlns="{DESCRIPTION}" xmlns:i="{INSTANCE}"'
    return Xml.fromstring(f"<AuthorizationRules {namespaces}>{''.join(rules)}</AuthorizationRules>")


def rule(
    name: str = "all",
    rights: str = "<AccessRights>Send</AccessRights>",
    primary: str | None = KEYS[0],
    secondary: str | None = KEYS[1],
    more: str = "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>",
    kind: str = "SharedAccessAuthorizationRule",
) -> str:
    keys = "".join(
        f"<{tag}>{key}</{tag}>"
        for tag, key in (("PrimaryKey", primary), ("SecondaryKey", secondary))
        if key is not None
    )
    return (
        f'<AuthorizationRule i:type="{kind}">{more}<Rights>{rights}</Rights><KeyName>{name}</KeyName>{keys}'
        "</AuthorizationRule>"
    )


def read(*rules: str, present: Rules = ()) -> Rules:
    found = rules_in(sent(*rules), SECRET, present)
    assert found is not None
    return found


def texts(rules: Rules) -> list[dict[str, str]]:
    """The parts of each rule that is shown."""
    made = shown(SECRET, rules)
    # As a client reads it: with its namespaces.
    root = Xml.fromstring(f'<Q xmlns="{DESCRIPTION}">{Xml.tostring(made, encoding="unicode")}</Q>')[0]
    assert local(root) == "AuthorizationRules"
    assert {type_of(each) for each in root} <= {"SharedAccessAuthorizationRule"}
    return [{name: ",".join(part.itertext()) for name, part in children(each).items()} for each in root]


def test_a_rule_is_shown_as_it_was_sent_with_its_times() -> None:
    both = "<AccessRights>Send</AccessRights><AccessRights>Listen</AccessRights>"
    (found,) = texts(read(rule(rights=both)))
    assert found.pop("CreatedTime") == found.pop("ModifiedTime")
    assert found == {
        "ClaimType": "SharedAccessKey",
        "ClaimValue": "None",
        "Rights": "Send,Listen",
        "KeyName": "all",
        "PrimaryKey": KEYS[0],
        "SecondaryKey": KEYS[1],
    }


def test_manage_includes_the_other_rights() -> None:
    (found,) = read(rule(rights="<AccessRights>Manage</AccessRights>"))
    assert found.rights == frozenset(Right)
    assert texts((found,))[0]["Rights"] == "Manage,Send,Listen"


def test_rules_keep_their_order_and_an_absent_list_changes_nothing_and_an_empty_one_is_none() -> None:
    present = read(rule("z"), rule("a"), rule("M"))
    assert [each.name for each in present] == ["z", "a", "M"]
    assert rules_in(None, SECRET, present) is None
    assert read(present=present) == ()


def test_keys_that_are_not_sent_are_those_that_the_rule_has_or_random_ones() -> None:
    (made,) = read(rule(primary=None, secondary=""))
    (first,) = texts((made,))
    assert first["PrimaryKey"] != first["SecondaryKey"]
    assert len(base64.b64decode(first["PrimaryKey"], validate=True)) == 32
    (changed,) = read(rule(primary=None, secondary=KEYS[1]), present=(made,))
    (second,) = texts((changed,))
    assert (second["PrimaryKey"], second["SecondaryKey"]) == (first["PrimaryKey"], KEYS[1])
    assert changed.created_at_ms == made.created_at_ms


def test_a_rule_that_is_sent_again_is_the_same_and_another_key_gives_it_another_time() -> None:
    (made,) = read(rule())
    made = made._replace(created_at_ms=5, changed_at_ms=6)
    assert read(rule(), present=(made,)) == (made,)
    (changed,) = read(rule(primary="C" * 44), present=(made,))
    assert changed.created_at_ms == 5
    assert changed.changed_at_ms > 6
    assert changed.secondary == made.secondary


@pytest.mark.parametrize("key", ["k" * KEY_CHARACTERS_MIN, "k" * KEY_CHARACTERS_MAX])
def test_keys_of_the_least_and_the_most_characters_are_good(key: str) -> None:
    assert texts(read(rule(primary=key)))[0]["PrimaryKey"] == key


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (rule(""), "KeyName"),
        (rule("a b"), "KeyName"),
        (rule("a&amp;skn=b"), "KeyName"),
        (rule("a/b"), "KeyName"),
        (rule("é"), "KeyName"),
        (rule("n" * (RULE_NAME_MAX + 1)), "KeyName"),
        (rule(rights=""), "Rights is 'none'"),
        (rule(rights="<AccessRights>send</AccessRights>"), "Rights"),
        (rule(rights="<AccessRights>EventHubs</AccessRights>"), "one or more of Manage, Send, Listen"),
        (rule(more="<ClaimType>nameidentifier</ClaimType>"), "ClaimType is 'nameidentifier'"),
        (rule(more="<ClaimValue>joe</ClaimValue>"), "ClaimValue"),
        (rule(more="<Unknown/>"), "'Unknown' is no part"),
        (rule(kind="AllowRule"), "'AllowRule'"),
        ("<Other/>", "'Other'"),
        ("text", "a list of AuthorizationRule"),
    ],
)
def test_what_is_no_rule_says_what_was_expected(found: str, text: str) -> None:
    with pytest.raises(ProblemError, match=text) as refused:
        read(found)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "key",
    ["k" * (KEY_CHARACTERS_MIN - 1), "k" * (KEY_CHARACTERS_MAX + 1), "é" * 40, "k" * 20 + " " + "k" * 20],
)
@pytest.mark.parametrize("which", ["primary", "secondary"])
def test_a_key_that_can_not_be_used_is_not_in_the_answer(which: str, key: str) -> None:
    with pytest.raises(
        ProblemError, match=f"{which.capitalize()}Key of the authorization rule all"
    ) as refused:
        read(rule(**{which: key}))
    assert key not in refused.value.detail
    assert key not in str(refused.value.members)


def test_an_entity_has_so_many_rules_and_no_more() -> None:
    many = [rule(f"r{number}") for number in range(AUTHORIZATION_RULES_MAX)]
    assert len(read(*many)) == AUTHORIZATION_RULES_MAX
    with pytest.raises(LimitExceededError, match=f"at most {AUTHORIZATION_RULES_MAX}"):
        read(*many, rule("one-more"))


def test_names_that_differ_in_case_alone_are_refused() -> None:
    with pytest.raises(ProblemError, match="without regard to case"):
        read(rule("send"), rule("Send"))
