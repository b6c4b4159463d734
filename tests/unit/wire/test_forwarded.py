"""What a gateway adds to a request: only gateways of the installation write it, for one request, for now."""

import pytest

from lightrail.wire.forwarded import FORWARDED_AGE_MS, Forwarded

SECRET, NONCE, NOW_MS = b"s" * 32, b"bm9uY2U=", 1_000_000
CLIENT = Forwarded("2001:db8::1", 50_000, tls=True)


def test_a_frontend_reads_what_a_gateway_wrote() -> None:
    for at_ms in (NOW_MS - FORWARDED_AGE_MS, NOW_MS + FORWARDED_AGE_MS):
        assert Forwarded.read(CLIENT.sign(SECRET, NONCE, at_ms), SECRET, NONCE, NOW_MS) == CLIENT


@pytest.mark.parametrize(
    ("value", "secret", "nonce", "now_ms"),
    [
        (CLIENT.sign(SECRET, NONCE, NOW_MS), b"t" * 32, NONCE, NOW_MS),
        (CLIENT.sign(SECRET, NONCE, NOW_MS), SECRET, b"b3RoZXI=", NOW_MS),
        (CLIENT.sign(SECRET, NONCE, NOW_MS), SECRET, NONCE, NOW_MS + FORWARDED_AGE_MS + 1),
        (CLIENT.sign(SECRET, NONCE, NOW_MS).replace("2001:db8::1", "127.0.0.1"), SECRET, NONCE, NOW_MS),
        ("", SECRET, NONCE, NOW_MS),
        ("\ud800 é", SECRET, NONCE, NOW_MS),
    ],
)
def test_what_another_wrote_or_changed_or_kept_is_refused(
    value: str, secret: bytes, nonce: bytes, now_ms: int
) -> None:
    with pytest.raises(ValueError, match="LightRail-Forwarded"):
        Forwarded.read(value, secret, nonce, now_ms)
