"""Places: what the path of an administration request is about."""

import pytest

from lightrail.model.names import InvalidNameError
from lightrail.namespace.statuses import MissingError
from lightrail.service_bus.administration.call import Kind, Place, place_of


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/$namespaceinfo", Place(Kind.NAMESPACE)),
        ("/$NamespaceInfo", Place(Kind.NAMESPACE)),
        ("/$Resources/queues", Place(Kind.QUEUES)),
        ("/$Resources/Topics", Place(Kind.TOPICS)),
        ("/q", Place(Kind.ENTITY, "q")),
        ("/a%2Fb%20c", Place(Kind.ENTITY, "a/b c")),
        ("/a/b", Place(Kind.ENTITY, "a/b")),
        ("/subscriptions", Place(Kind.ENTITY, "subscriptions")),
        ("/$temporary/Kxy", Place(Kind.TEMPORARY, "$temporary/Kxy")),
        ("/%24temporary/Kxy", Place(Kind.TEMPORARY, "$temporary/Kxy")),
        ("/a/t/Subscriptions/", Place(Kind.SUBSCRIPTIONS, "a/t")),
        ("/a%2Ft/subscriptions/s%20x", Place(Kind.SUBSCRIPTION, "a/t", "s x")),
        ("/t/Subscriptions/s/Rules/", Place(Kind.RULES, "t", "s")),
        ("/t/subscriptions/s/rules/%24Default", Place(Kind.RULE, "t", "s", "$Default")),
        ("/t/subscriptions/rules", Place(Kind.SUBSCRIPTION, "t", "rules")),
        ("/t/subscriptions/subscriptions", Place(Kind.SUBSCRIPTIONS, "t/subscriptions")),
    ],
)
def test_a_path_leads_to_a_place(path: str, place: Place) -> None:
    assert place_of(path) == place


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/", InvalidNameError),
        ("/$Resources/rules", MissingError),
        ("/$nservicebus-verification-queue", MissingError),
        ("/%24nservicebus-verification-queue", MissingError),
        ("/$temporary", MissingError),
        ("/$temporary/a/b", MissingError),
        ("/t/subscriptions/a%2Fb", InvalidNameError),
        ("/t/subscriptions/$x", InvalidNameError),
        ("/a//b", InvalidNameError),
    ],
)
def test_other_paths_are_refused(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        place_of(path)
