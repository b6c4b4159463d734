"""Atom entries: the form that the clients compare, and bodies that are none."""

from collections.abc import Callable

import pytest

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources.atom import NAMESPACE, policy_of, text_of
from lightrail.service_bus.administration import entries
from lightrail.service_bus.administration.entries import Entry, counts, described, description_in, feed

KINDS = ("QueueDescription", "TopicDescription")


def body(inner: str) -> bytes:
    return f'<entry xmlns="{NAMESPACE}">{inner}</entry>'.encode()


def test_namespaces_are_declared_where_the_clients_look_for_them() -> None:
    description = described("QueueDescription", {"Status": "Active", "CountDetails": counts({"X": 1})})
    entry = Entry("https://h/a&b", "a&b", 0, 1_000, description)
    text = text_of(entry.element())
    assert f'<entry xmlns="{NAMESPACE}"><id>https://h/a&amp;b</id>' in text
    assert f'<QueueDescription xmlns="{entries.DESCRIPTION}" xmlns:i="{entries.INSTANCE}">' in text
    assert f'<CountDetails xmlns:d2p1="{entries.COUNTS}"><d2p1:X>1</d2p1:X></CountDetails>' in text
    kind, properties = description_in(text.encode(), KINDS)
    assert (kind, list(properties), properties["Status"].text) == (
        "QueueDescription",
        ["Status", "CountDetails"],
        "Active",
    )


def test_the_next_page_is_the_second_link() -> None:
    text = feed("https://h/", "Queues", [], 0, "https://h/?$skip=1")
    assert text.index('rel="self"') < text.index('href="https://h/?$skip=1"')
    assert 'rel="next"' not in feed("https://h/", "Queues", [], 0, None)


def test_an_error_has_the_form_of_service_bus() -> None:
    assert entries.error(404, "a <b>").endswith("<Error><Code>404</Code><Detail>a &lt;b&gt;</Detail></Error>")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"<entry/>",
        body(""),
        body("<content/>"),
        body("<content>text</content>"),
        body("<content><Other/></content>"),
        body("<content><QueueDescription/><QueueDescription/></content>"),
        b"<feed><content><QueueDescription/></content></feed>",
        body("<content><QueueDescription><Status>&y;</Status></QueueDescription></content>"),
        body("<content><QueueDescription><A/><A/></QueueDescription></content>"),
        b'<?xml version="1.0" encoding="nonsense"?><entry/>',
    ],
)
def test_a_body_that_is_no_entry_is_refused(text: bytes) -> None:
    with pytest.raises(ProblemError) as refused:
        description_in(text, KINDS)
    assert refused.value.status == 400


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-7", "iso-8859-1"])
@pytest.mark.parametrize("read", [lambda text: description_in(text, KINDS), policy_of])
def test_no_entity_is_expanded_whatever_the_encoding(read: Callable[[bytes], object], encoding: str) -> None:
    content = (
        "<content type='application/json'><QueueDescription><Status>&y;</Status></QueueDescription></content>"
    )
    declared = "utf-16" if "utf-16" in encoding else encoding
    text = f"""<?xml version="1.0" encoding="{declared}"?><!DOCTYPE x [<!ENTITY y "z">]>
        <entry xmlns="{NAMESPACE}">{content}</entry>"""
    with pytest.raises(ProblemError) as refused:
        read(text.encode(encoding))
    assert refused.value.status == 400
    if not encoding.startswith(("utf-7", "iso")):
        assert "document type" in refused.value.detail
