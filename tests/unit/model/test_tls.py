"""Certificates: the end that is read is the one that OpenSSL reads."""

import ssl
import subprocess
from pathlib import Path

import pytest

from lightrail.model.tls import not_after
from tests.support.certificates import Authority


def by_openssl(path: str) -> float:
    done = subprocess.run(
        ["openssl", "x509", "-enddate", "-noout", "-in", path], capture_output=True, check=True, text=True
    )
    return ssl.cert_time_to_seconds(done.stdout.strip().removeprefix("notAfter="))


@pytest.mark.parametrize("days", ["2", "20000"])  # from 2050 on the time has another type
def test_the_end_is_the_one_that_openssl_reads(tmp_path: Path, days: str) -> None:
    path = str(tmp_path / "one.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", days, "-subj", "/CN=x"]
    subprocess.run(
        [*command, "-keyout", str(tmp_path / "key"), "-out", path], check=True, capture_output=True
    )
    assert not_after(path) == by_openssl(path)


def test_of_a_chain_the_first_one_counts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    leaf = authority.sign("localhost").certificate
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(leaf).read_text() + Path(authority.path).read_text())
    assert not_after(str(chain)) == by_openssl(leaf)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.pem"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"odd\.pem"):
        not_after(str(path))
