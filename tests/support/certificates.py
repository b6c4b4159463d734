"""A certificate authority for one test run, and certificates of it, made with the openssl command."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """Paths of PEM files."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; everything lies in one directory."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", "ca.key", "-out", "ca.pem"),
        )
        self.path = str(directory / "ca.pem")

    def sign(self, name: str, *alternative_names: str, days: int = 2) -> Certificate:
        """A certificate whose common name is `name`, for the given names such as ``IP:127.0.0.1``."""
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        extensions = self.directory / f"{name}.extensions"
        names = ",".join(alternative_names)
        extensions.write_text(f"subjectAltName={names}\n" if names else "basicConstraints=CA:FALSE\n")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", str(days), "-extfile", extensions.name, "-out", f"{name}.pem"),
        )
        return Certificate(str(self.directory / f"{name}.pem"), str(self.directory / f"{name}.key"))

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.directory, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
