"""Signing: the header by which an endpoint checks that a push is genuine and fresh.

`LightRail-Signature: t=UNIX,v1=HEX`, where HEX is HMAC-SHA-256 over `UNIX.BODY`. The key is the
subscription's secret, as the text that was shown when the subscription was made. Stripe uses the same format,
so code that checks it is easy to find; docs/operate/forwarding.md has an example.
"""

import hmac
from hashlib import sha256
from typing import Final

HEADER: Final = "LightRail-Signature"


def signature(secret: str, body: bytes, now_s: int) -> str:
    """The value of the header for a body sent now."""
    signed = b"%d." % now_s + body
    return f"t={now_s},v1={hmac.new(secret.encode(), signed, sha256).hexdigest()}"
