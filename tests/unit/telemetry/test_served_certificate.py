"""A renewed certificate is served without a restart; files that can't be used leave the former one."""

import asyncio
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from lightrail.model.endpoint import Endpoint
from lightrail.model.settings import Settings
from lightrail.model.tls import not_after
from lightrail.telemetry.running import LOOK_S, Running, ServedCertificate
from tests.support.certificates import Authority, Certificate


def served_name(context: ssl.SSLContext, authority: Authority) -> str:
    """The common name of the certificate that a new client gets."""
    client_context = ssl.create_default_context(cafile=authority.path)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    waiting = {client, server}
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                continue
    certificate: Any = client.getpeercert()
    names: dict[str, str] = {key: value for entry in certificate["subject"] for key, value in entry}
    return names["commonName"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def test_a_renewed_certificate_is_served_once_its_files_belong_together(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    first = authority.sign("first", "DNS:localhost")
    second = authority.sign("second", "DNS:localhost", days=9)
    here = Certificate(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    shutil.copy(first.certificate, here.certificate)
    shutil.copy(first.key, here.key)
    served = ServedCertificate(Settings(tls_certificate=here.certificate, tls_key=here.key))

    def replace(source: str, path: str) -> None:
        shutil.copy(source, f"{path}.new")
        Path(f"{path}.new").rename(path)
        served.load_changed()

    assert served_name(served.context, authority) == "first"
    replace(second.certificate, here.certificate)
    assert "the former certificate is served" in caplog.text
    assert served_name(served.context, authority) == "first"
    caplog.clear()
    served.load_changed()
    assert not caplog.records, "once for each change"
    replace(second.key, here.key)
    assert served_name(served.context, authority) == "second"
    assert served.ends_s == not_after(second.certificate)
    Path(here.key).unlink()
    served.load_changed()
    assert served_name(served.context, authority) == "second"
    replace(first.certificate, here.certificate)
    replace(first.key, here.key)
    assert served_name(served.context, authority) == "first"


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time the test sets."""

    now = 0.0

    def time(self) -> float:
        return self.now


def test_a_process_looks_at_its_files_again_and_again(tmp_path: Path, authority: Authority) -> None:
    certificates = [authority.sign(name, "DNS:localhost") for name in ("one", "two", "three")]
    here = Certificate(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))

    def serve(found: Certificate) -> None:
        for source, path in zip(found, here, strict=True):
            shutil.copy(source, f"{path}.new")
            Path(f"{path}.new").rename(path)

    serve(certificates[0])
    settings = Settings(amqps=Endpoint("127.0.0.1", 0), tls_certificate=here.certificate, tls_key=here.key)
    loop = Clock()
    context = Running("frontend", lambda: 0).serve_tls(settings, loop)
    for certificate, name in zip(certificates[1:], ("two", "three"), strict=True):
        serve(certificate)
        loop.now += LOOK_S + 0.01
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert served_name(context, authority) == name
    loop.close()
