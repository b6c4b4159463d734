"""An S3 server for tests: moto, in a process of its own (deltalake holds Python's lock while it lists).

It says what it was asked: method, path and the condition of each request, a line each.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from pyarrow import fs

from tests.support.spark.session import ROOT

BUCKET = "lightrail"
SECRET = "never-in-a-plan"


def environment(listener: socket.socket) -> dict[str, str]:
    """What says where a server is, or will be, and who asks; workers of Spark have it from their JVM."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class S3Server:
    """One server on the loopback, with a bucket."""

    def __init__(self, log: Path, listener: socket.socket) -> None:
        """`listener` is bound to the loopback."""
        self._log = log
        self.environment = environment(listener)
        with open(log, "w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.s3_server", str(listener.fileno())],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=[listener.fileno()],
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), log.read_text()
        self.files = fs.S3FileSystem(
            access_key="test",
            secret_key=SECRET,
            endpoint_override=self.environment["AWS_ENDPOINT_URL"],
            allow_bucket_creation=True,
        )
        try:
            self.files.create_dir(BUCKET)
        except OSError:
            self._end()
            raise

    def copy(self, folder: Path, to: str) -> str:
        """A folder with all that is in it, as a tool copies it; its URI."""
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            with self.files.open_output_stream(f"{BUCKET}/{to}/{path.relative_to(folder)}") as stream:
                stream.write(path.read_bytes())
        return f"s3://{BUCKET}/{to}"

    def names(self, under: str) -> list[str]:
        """The objects there; those that stand for folders end with a /."""
        found = self.files.get_file_info(fs.FileSelector(f"{BUCKET}/{under}", recursive=True))
        return [each.path for each in found if each.type == fs.FileType.File]

    def asked(self) -> list[str]:
        """`METHOD PATH CONDITION STATUS` of all requests."""
        return self._log.read_text(encoding="utf-8").splitlines()

    def __enter__(self) -> "S3Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def serve(listener: int) -> None:
    """Until it is terminated; prints a line when it listens."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    application = DomainDispatcherApplication(create_backend_app)

    class Handler(WSGIRequestHandler):
        """Keeps connections, and says what was asked."""

        protocol_version = "HTTP/1.1"

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            condition = self.headers.get("If-None-Match", "-")
            print(self.command, self.path, condition, int(code), file=sys.stderr, flush=True)

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler, fd=listener)
    server.socket.listen(64)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
