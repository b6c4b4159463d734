"""TLS of all servers of an installation: one certificate, the same versions.

Certificates: the end of their validity, read from PEM files (RFC 5280 section 4.1).
"""

import ssl
from datetime import UTC, datetime
from typing import Final

from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings


def tls_context(settings: Settings) -> ssl.SSLContext:
    """TLS 1.2 and up with the certificate of the settings; client certificates are optional, and verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_certificate or "", settings.tls_key)
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(
            f"TLS can't be set up with certificate {settings.tls_certificate}, key {settings.tls_key} and "
            f"client CA {settings.tls_client_ca}: {error}; expected PEM files that belong together"
        ) from error
    return context


_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def not_after(path: str) -> float:
    """The end of the first certificate in a file, in seconds since 1970.

    Raises ValueError for a file without one, and OSError.
    """
    with open(path, encoding="ascii", errors="replace") as file:
        text = file.read()
    if _BEGIN not in text or _END not in text:
        raise ValueError(f"{path} holds no certificate: expected a PEM file with {_BEGIN}")
    first = text[text.index(_BEGIN) : text.index(_END) + len(_END)]
    try:
        return _end(ssl.PEM_cert_to_DER_cert(first))
    except (ValueError, IndexError) as error:
        raise ValueError(f"the certificate in {path} can't be read: {error}") from error


def _end(der: bytes) -> float:
    certificate = _field(der, 0)[1]
    at = 0
    fields: list[bytes] = []
    signed = _field(certificate, 0)[1]
    while at < len(signed) and len(fields) < 5:
        tag, value, at = _field(signed, at)
        if tag != _VERSION:  # absent in version 1
            fields.append(value)
    _serial, _algorithm, _issuer, validity, *_ = fields
    _, _, second = _field(validity, 0)
    tag, value, _ = _field(validity, second)
    text = value.decode("ascii")
    if tag == _UTC_TIME:  # a year of two digits: 50 and up are 19xx
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _field(der: bytes, at: int) -> tuple[int, bytes, int]:
    """(tag, contents, offset of the next field) of the field at an offset (X.690 section 8.1)."""
    tag, length, at = der[at], der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[at : at + size])
        at += size
    if at + length > len(der):
        raise ValueError("it ends in the middle of a field")
    return tag, der[at : at + length], at + length
