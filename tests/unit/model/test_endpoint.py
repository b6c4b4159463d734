"""Destinations: which URLs may be called, and which spellings of what may not."""

import pytest

from lightrail.model.endpoint import NOWHERE, PUSH_ALLOW_MAX, PUSH_URL_BYTES, Destinations, parse_patterns
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings

HERE = ("http://localhost:9000/x", "http://127.0.0.1/", "https://[::1]:8443/", "http://127.9.9.9/")
AWAY = (
    "http://example.com/",
    "http://10.0.0.1/",
    "http://169.254.169.254/latest/meta-data",
    "http://0.0.0.0/",
    "http://[::ffff:10.0.0.1]/",
    "http://localhost.example.com/",
)
MALFORMED = (
    "ftp://localhost/",
    "http://",
    "http:///path",
    "http://user:secret@localhost/",
    "http://localhost:99999/",
    "http://local host/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://localhost\\@example.com/",
    "http://exämple.com/",
    "http://[::1/",
    "http://localhost/\n",
    "http://localhost/" + "x" * 3_000,
)


def test_without_a_setting_nothing_is_called() -> None:
    for url in (*HERE, *AWAY):
        problem = NOWHERE.problem(url)
        assert problem is not None, url
        assert "push_allow, a setting of lightrail serve, allows no host" in problem, url
    assert not NOWHERE.allows("localhost", "127.0.0.1")


def test_this_machine_is_called_where_the_setting_names_it() -> None:
    here = Destinations(parse_patterns("localhost, 127.0.0.0/8, ::1"))
    for url in HERE:
        assert here.problem(url) is None, url
    for url in AWAY:
        assert "push_allow" in str(here.problem(url)), url


@pytest.mark.parametrize("url", MALFORMED)
def test_what_is_no_proper_url_is_refused_whatever_is_allowed(url: str) -> None:
    everything = Destinations(parse_patterns("*, *.com, 0.0.0.0/0, ::/0, localhost, example.com"))
    assert everything.problem(url) is not None


def test_patterns_allow_names_domains_addresses_and_networks() -> None:
    some = Destinations(parse_patterns("Hooks.Example.com, *.partner.org, 10.1.0.0/16, [2001:db8::7]"))
    for host in ("hooks.example.com", "a.b.partner.org", "10.1.2.3", "2001:db8::7", "::ffff:10.1.2.3"):
        assert some.allows_host(host), host
    for host in ("example.com", "partner.org", "evilpartner.org", "10.2.0.1", "localhost", "127.0.0.1", ""):
        assert not some.allows_host(host), host


def test_a_name_by_a_wildcard_leads_to_public_addresses_only() -> None:
    for patterns in ("*", "*.partner.org, hooks.internal"):
        some = Destinations(parse_patterns(patterns))
        assert some.allows("a.partner.org", "8.8.8.8")
        for address in (
            "10.0.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "::1",
            "fe80::1",
            "::ffff:10.0.0.1",
            "no",
        ):
            assert not some.allows("a.partner.org", address), address
    assert some.allows("hooks.internal", "10.0.0.1")
    assert Destinations(parse_patterns("*, 10.0.0.0/8")).allows("a.partner.org", "10.0.0.1")
    assert Destinations(("*",)).allows_host("8.8.8.8")
    assert not Destinations(("*",)).allows_host("10.0.0.1")


@pytest.mark.parametrize("text", ["a b", "http://host", "10.0.0.0/99", "*x", "a.*", "-x", "x:80"])
def test_a_pattern_that_can_not_be_used_is_refused_by_the_setting(text: str) -> None:
    with pytest.raises(SettingsError, match="push-allow is"):
        Settings.load(flags={"push_allow": text})


def test_the_setting_gets_to_the_children() -> None:
    settings = Settings.load(flags={"push_allow": "a.example.com, *.b.org"})
    assert settings.push_allow == ("a.example.com", "*.b.org")
    assert Settings.from_json(settings.to_json()) == settings
    assert Settings().push_allow == ()


def test_a_url_has_at_most_so_many_letters_and_the_setting_so_many_patterns() -> None:
    allowed = Destinations(("localhost",))
    url = "http://localhost/"
    longest = url + "x" * (PUSH_URL_BYTES - len(url))
    assert allowed.problem(longest) is None
    assert f"more than {PUSH_URL_BYTES}" in (allowed.problem(longest + "x") or "")
    hosts = [f"h{number}.example.com" for number in range(PUSH_ALLOW_MAX + 1)]
    assert len(parse_patterns(",".join(hosts[:-1]))) == PUSH_ALLOW_MAX
    with pytest.raises(ValueError, match="host names"):
        parse_patterns(",".join(hosts))
