"""As much of a Kubernetes API as helm needs to look something up: discovery, and objects, one or all."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

NAMESPACE: Final = "ns"
VERSION: Final = {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
GROUPS: Final = {
    "v1": {
        "configmaps": "ConfigMap",
        "pods": "Pod",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "batch/v1": {"jobs": "Job"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
}
"""{API version: {name in paths: kind}}"""


def released(api: str, kind: str, name: str, **rest: Any) -> dict[str, Any]:
    """An object that release `rel` in namespace `ns` has made."""
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": "rel", "meta.helm.sh/release-namespace": NAMESPACE},
    }
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


HELM: Final = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver")
"""Has helm look things up at the URL that follows."""


@contextmanager
def serving(objects: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The URL of an API that has these objects, as long as the block lasts."""
    answers = _discovery()
    plural = {kind: (api, name) for api, kinds in GROUPS.items() for name, kind in kinds.items()}
    for each in objects:
        api, name = plural[each["kind"]]
        data = each["metadata"]
        answers[f"{_prefix(api)}/namespaces/{data['namespace']}/{name}/{data['name']}"] = each
    for kind, (api, name) in plural.items():
        items = [each for each in objects if each["kind"] == kind]
        found = {"apiVersion": api, "kind": f"{kind}List", "metadata": {}, "items": items}
        answers[f"{_prefix(api)}/namespaces/{NAMESPACE}/{name}"] = found

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            missing = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _prefix(api: str) -> str:
    return f"/apis/{api}" if "/" in api else f"/api/{api}"


def _discovery() -> dict[str, Mapping[str, Any]]:
    groups = []
    for api in GROUPS:
        group, slash, version = api.rpartition("/")
        if slash:
            known = {"groupVersion": api, "version": version}
            groups.append({"name": group, "versions": [known], "preferredVersion": known})
    answers: dict[str, Mapping[str, Any]] = {
        "/version": VERSION,
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for api, kinds in GROUPS.items():
        resources = [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
            for name, kind in kinds.items()
        ]
        answers[_prefix(api)] = {"kind": "APIResourceList", "groupVersion": api, "resources": resources}
    return answers
