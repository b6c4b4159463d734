"""Shared access signatures: what they say, and whether a key made them."""

import base64
import hmac
from urllib.parse import quote_plus

import pytest

from lightrail.namespace.rights import Resource
from lightrail.namespace.tokens import TOKEN_BYTES_MAX, InvalidTokenError
from lightrail.service_bus.signatures import Signature, is_signature, read

NOW_MS = 1_000_000_000_000
END_S = NOW_MS // 1000 + 60


def signed(key: str, resource: str = "sb://host/orders", end: int = END_S, name: str = "shop") -> str:
    """As Azure's documentation makes it."""
    sr = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{sr}\n{end}".encode(), "sha256")
    sig = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={end}&skn={quote_plus(name)}"


def test_a_signature_names_its_user_its_resource_and_its_end() -> None:
    token = signed("key")
    assert is_signature(token)
    found = read(token, NOW_MS)
    assert (found.name, found.resource, found.expires_s) == ("shop", Resource("orders"), END_S)
    assert found.verify("key")
    assert not found.verify("kez")


def test_any_other_octet_of_the_signed_text_breaks_the_signature() -> None:
    token = signed("key")
    for changed in (token.replace("orders", "orderz"), token.replace(f"se={END_S}", f"se={END_S + 1}")):
        assert not read(changed, NOW_MS).verify("key")


@pytest.mark.parametrize(
    ("token", "description"),
    [
        (signed("key", end=NOW_MS // 1000), "has expired"),
        (signed("key").replace("&se=", "&se=-"), "in seconds since 1970"),
        (signed("key").replace("&se=", "&se=" + "9" * 20), "in seconds since 1970"),
        (signed("key") + "&skn=other", "once each"),
        (signed("key") + "&more=1", "once each"),
        (signed("key").partition("&skn")[0], "lacks skn"),
        ("SharedAccessSignature ", "once each"),
        (signed("key").replace("&skn=", "&skn=\udcff"), "in UTF-8"),
        (signed("key").replace("orders", "orders\udcff"), "in UTF-8"),
        (signed("key", "sb://host/" + "x" * TOKEN_BYTES_MAX), f"at most {TOKEN_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_signature_says_what_was_expected(token: str, description: str) -> None:
    with pytest.raises(InvalidTokenError, match=description):
        read(token, NOW_MS)


def test_a_signature_of_other_characters_is_wrong_and_no_error() -> None:
    assert not Signature("shop", Resource(""), END_S, b"", "\ud800é").verify("key")
