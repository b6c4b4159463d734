"""As much of a Kubernetes API as Spark needs: it keeps what is made; executors become processes here."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Object = dict[str, Any]


class SparkPods:
    """`made` has every object; leaving the ``with`` block ends the executors."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._lock = threading.Lock()
        self.made: list[Object] = []
        self._pods: dict[str, Object] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, found = api.answer(self.command, self.path.partition("?")[0], body)
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - named by http.server

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.master = f"k8s://http://127.0.0.1:{self._server.server_port}"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Object]:
        """To a request."""
        name = path.rpartition("/")[2]
        with self._lock:
            if method in ("POST", "PATCH", "PUT"):
                return 201, self._make(json.loads(body))
            if method == "DELETE":
                for each in [name] if name in self._pods else list(self._pods):
                    self._end(each)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            if name in self._pods:
                return 200, self._seen(name)
            if name == "pods":
                items = [self._seen(each) for each in self._pods]
                return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
            return 404, {**missing, "code": 404}

    def _make(self, made: Object) -> Object:
        made["metadata"].setdefault("uid", f"uid-{len(self.made)}")
        made["metadata"].setdefault("namespace", "default")
        self.made.append(made)
        if made["kind"] == "Pod":
            name = made["metadata"]["name"]
            self._pods[name] = made
            if made["metadata"]["labels"]["spark-role"] == "executor":
                self._start(name, made["spec"]["containers"][0])
        return made

    def _start(self, name: str, container: Object) -> None:
        fields = {"status.podIP": "127.0.0.1", "metadata.name": name}
        environ = {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
            if each["name"] not in ("SPARK_LOCAL_DIRS", "SPARK_CONF_DIR")
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "lightrail.spark.pod", *container["args"]],
                cwd=self._folder,
                env={**self._environ, **environ, "SPARK_LOCAL_DIRS": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _seen(self, name: str) -> Object:
        process = self._processes.get(name)
        phase = "Running"
        if process is not None and process.poll() is not None:
            phase = "Failed" if process.returncode else "Succeeded"
        return {**self._pods[name], "status": {"phase": phase, "podIP": "127.0.0.1"}}

    def _end(self, name: str) -> None:
        self._pods.pop(name, None)
        process = self._processes.pop(name, None)
        if process is not None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

    def of(self, kind: str, role: str | None = None) -> list[Object]:
        """What was made of a kind, of pods those with a role."""
        return [
            each
            for each in self.made
            if each["kind"] == kind
            and (role is None or each["metadata"].get("labels", {}).get("spark-role") == role)
        ]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for name in list(self._processes):
            self._end(name)
