"""TLS of all servers of an installation: one certificate, the same versions."""

import ssl

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
