"""The certificate that a process serves TLS with: it is loaded anew when its files change."""

import asyncio
import logging
import os
from typing import Final

from lightrail.model.certificates import not_after
from lightrail.model.setting_values import SettingsError
from lightrail.model.settings import Settings
from lightrail.model.tls import tls_context

log = logging.getLogger("lightrail.telemetry.certificate")

LOOK_S: Final = 10.0
"""Pause between two looks at the files."""


class ServedCertificate:
    """The TLS context of a process's listeners, which follows the files of the settings.

    New connections get the certificate that was loaded last. Files that do not belong together, such as a new
    certificate whose key is not written yet, are not loaded until one of them changes again. Authorities of
    clients are added; one that is removed from its file is trusted until the process starts again.

    Args:
        settings: with a certificate.

    Raises SettingsError for files that can't be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = [
            each for each in (settings.tls_certificate, settings.tls_key, settings.tls_client_ca) if each
        ]
        self._seen = self._states()
        self.context: Final = tls_context(settings)
        self.ends_s = not_after(settings.tls_certificate or "")
        """Expiry time of the certificate, in seconds since 1970."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks at the files from now on."""
        loop.call_later(LOOK_S, self._watch, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look()
        self.watch(loop)

    def look(self) -> None:
        """Loads the certificate anew if a file has changed."""
        states = self._states()
        if states == self._seen:
            return
        self._seen = states
        settings = self._settings
        certificate = settings.tls_certificate or ""
        try:
            # In a context of its own first: one that fails in between has a certificate without its key.
            tls_context(settings)
            self.ends_s = not_after(certificate)
            self.context.load_cert_chain(certificate, settings.tls_key)
            if settings.tls_client_ca is not None:
                self.context.load_verify_locations(settings.tls_client_ca)
        except (SettingsError, OSError, ValueError) as error:
            log.warning("the former certificate is served until its files can be used: %s", error)
            return
        log.info("the certificate %s has changed, and is served to new connections", certificate)

    def _states(self) -> list[tuple[int, int, int] | None]:
        """What changes with the contents of each file; None for a file that can't be read now."""
        found: list[tuple[int, int, int] | None] = []
        for each in self._files:
            try:
                state = os.stat(each)
                found.append((state.st_ino, state.st_size, state.st_mtime_ns))
            except OSError:
                found.append(None)
        return found
