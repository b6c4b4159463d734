"""PostgreSQL from Debian: one server in a process of its own, on a socket in a folder."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from tests.support import wait

USER = "postgres"


class PostgreSQL:
    """A server with an empty database; it ends with the block.

    Args:
        fsync: whether it writes to the disk before it answers; only what measures it needs that.

    Attributes:
        url: for SQLAlchemy.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = fsync
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
        assert found, "PostgreSQL is not there: run scripts/setup.sh test"
        self._bin = found[-1].parent
        # Below /tmp itself: the server does not run as root, and may not enter the folders of other users.
        self.folder = Path(tempfile.mkdtemp(prefix="lightrail-postgresql-"))
        self.url = f"postgresql+psycopg://{USER}@/postgres?host={self.folder}"

    def __enter__(self) -> Self:
        entry = pwd.getpwnam(USER) if os.getuid() == 0 else None
        options: dict[str, Any] = {}
        if entry is not None:
            options = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        data = self.folder / "data"
        command = [str(self._bin / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **options)
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [
                    str(self._bin / "postgres"),
                    "-D",
                    str(data),
                    "-k",
                    str(self.folder),
                    "-c",
                    "listen_addresses=",
                    "-c",
                    f"fsync={'on' if self._fsync else 'off'}",
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **options,
            )
        ready = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder)]
        wait.until(lambda: subprocess.run(ready).returncode == 0, "PostgreSQL serves", 30)
        return self

    def __exit__(self, *exc: object) -> None:
        # Not SIGTERM, which waits for connections: a test that failed may have left one.
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        shutil.rmtree(self.folder)
