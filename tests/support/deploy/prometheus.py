"""A Prometheus under test: a real server with targets and rules of the test, on a free port."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support import wait

LISTENING = re.compile(rb'msg="Listening on" address=(\S+)')
ANSWER_S = 10.0


class Job(NamedTuple):
    """What is scraped under one name."""

    name: str
    targets: list[str]
    path: str = "/metrics"


class Prometheus:
    """A started server; leaving the ``with`` block ends it."""

    def __init__(self, directory: Path, jobs: Iterable[Job], rules: Path, interval: str = "1s") -> None:
        directory.mkdir(parents=True)
        # JSON is YAML.
        config = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": job.name,
                    "metrics_path": job.path,
                    "static_configs": [{"targets": job.targets}],
                }
                for job in jobs
            ],
        }
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(config))
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={file}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._address = ""

    def __enter__(self) -> Self:
        def listening() -> str:
            found = LISTENING.search(self._log.read_bytes())
            assert found or self._process.poll() is None, self._log.read_text()
            return found[1].decode() if found else ""

        try:
            self._address = wait.until(listening, "Prometheus listens")
            wait.until(self._ready, "Prometheus is ready")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=ANSWER_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """What the API answers at /api/v1/PATH; an expression that it refuses fails with its words."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with their health, last error, and alerts."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def alerts(self, state: str) -> set[str]:
        """Names of alerts in a state: pending or firing."""
        return {
            each["labels"]["alertname"] for each in self.get("alerts")["alerts"] if each["state"] == state
        }
