"""Values that the chart is tried with: each switch on and off, each choice, and whole installations."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, Final

import yaml

from tests.support.deploy.helm import CHART

Values = dict[str, Any]

FIXED: Final[Values] = {
    "users": {"existingSecret": "given-users"},
    "wire": {"keySecret": "given-wire"},
    "tls": {"source": "secret", "secret": "given-tls"},
}
"""Nothing is drawn by chance."""

EVERYWHERE: Final[Values] = {
    "podLabels": {"team": "rail"},
    "podAnnotations": {"example.org/note": "a note"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "broker", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "high",
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
}
_QUICK: Final = {"matchExpressions": [{"key": "slow", "operator": "DoesNotExist"}]}
ANYWHERE_BUT: Final = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_QUICK]}}
}
SHOP: Final = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}]

INSTALLATIONS: Final[Mapping[str, Values]] = {
    "usual": FIXED,
    "everything": {
        "commonLabels": {"cost-centre": "4711"},
        "clusterDomain": "example.internal",
        "image": {"registry": "registry.example.org:5000", "digest": "sha256:" + "0" * 64},
        "pullSecrets": ["registry-password"],
        "cluster": "orders",
        "config": {
            "memory_mark": 1073741824,
            "segment_bytes": "64MiB",
            "max_message_bytes": "16MB",
            "idle_timeout": "30s",
            "max_delivery_count": 5,
            "auto_create": False,
            "sasl_mechanisms": "SCRAM-SHA-512,PLAIN",
            "push_allow": "*.example.org,10.0.0.0/8",
            "allow_anonymous": True,
        },
        "users": {
            "existingSecret": "given-users",
            "create": [
                {"name": "admin", "rights": "all", "prefix": "/"},
                {"name": "shop.web", "rights": "send,listen", "prefix": "shop/orders"},
            ],
            "resetPasswords": True,
        },
        "wire": {"keySecret": "given-wire"},
        "tls": {
            "source": "certManager",
            "names": ["broker.example.org", "203.0.113.7"],
            "clientCaSecret": "given-client-ca",
            "certManager": {"issuer": {"name": "internal", "kind": "ClusterIssuer"}},
        },
        "frontends": {
            **EVERYWHERE,
            "affinity": ANYWHERE_BUT,
            "autoscaling": {"enabled": True, "min": 3, "max": 12},
            "amqp": False,
            "service": {
                "type": "LoadBalancer",
                "annotations": {"example.org/balancer": "internal"},
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "loadBalancerClass": "example.org/fast",
                "externalTrafficPolicy": "Local",
            },
            "pdb": {"maxUnavailable": "25%"},
            "spread": {"zones": "DoNotSchedule", "hosts": "none"},
        },
        "shards": {
            **EVERYWHERE,
            "affinity": ANYWHERE_BUT,
            "replicas": 5,
            "scaleIn": "drain",
            "persistence": {"storageClass": "fast", "annotations": {"example.org/backup": "daily"}},
        },
        "gateway": {
            **EVERYWHERE,
            "affinity": ANYWHERE_BUT,
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
                "host": "broker.example.org",
                "tlsSecret": "ingress-tls",
            },
        },
        "etcd": {**EVERYWHERE, "affinity": ANYWHERE_BUT, "persistence": {"storageClass": "-"}},
        "jobs": {**EVERYWHERE, "affinity": ANYWHERE_BUT},
        "analytics": {
            **EVERYWHERE,
            "affinity": ANYWHERE_BUT,
            "enabled": True,
            "lake": {
                "persistence": {"storageClass": "fast", "annotations": {"example.org/backup": "weekly"}}
            },
            "compact": {"retentionDays": 90},
            "plan": {"enabled": True, "rebalance": True},
        },
        "rebalance": {"afterUpgrade": {"enabled": True}, "throttle": "50MB"},
        "networkPolicy": {"amqpFrom": SHOP, "httpFrom": SHOP, "metricsFrom": SHOP},
        "serviceAccounts": {"annotations": {"example.org/role": "broker"}},
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "LightRail"}},
        },
    },
    "replicas": {
        **FIXED,
        "shards": {"replicas": 2, "members": 3, "scaleIn": "drain", "affinity": ANYWHERE_BUT},
        "rebalance": {"afterUpgrade": {"enabled": True}},
    },
    "external": {
        **FIXED,
        "nameOverride": "broker",
        "tls": {"source": "none"},
        "config": {"plain_without_tls": True},
        "wire": {"encrypted": False},
        "frontends": {"replicas": 1, "pdb": {"enabled": False}},
        "shards": {"replicas": 1, "persistence": {"enabled": False}, "pdb": {"enabled": False}},
        "gateway": {"replicas": 1, "pdb": {"enabled": False}},
        "etcd": {
            "enabled": False,
            "external": {
                "endpoints": ["etcd-0.example.org:2379", "[2001:db8::1]:2379"],
                "tls": {"secret": "given-etcd-tls", "clientCertificate": True},
                "user": "lightrail",
                "passwordSecret": "given-etcd-password",
            },
        },
        "tests": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccounts": {"create": False, "name": "broker"},
        "monitoring": {"serviceMonitor": {"enabled": True}},
        "analytics": {
            "enabled": True,
            "lake": {
                "table": "s3://lake/messages",
                "checkpoint": "s3a://lake/checkpoint",
                "persistence": {"enabled": False},
            },
            "plan": {"enabled": True},
        },
    },
}

NEEDS: Final[Mapping[tuple[str, Any], Values]] = {
    ("tls.source", "none"): {"tls": {"secret": ""}, "config": {"plain_without_tls": True}},
    ("tls.source", "generated"): {"tls": {"secret": ""}},
    ("tls.source", "certManager"): {"tls": {"secret": "", "certManager": {"issuer": {"name": "internal"}}}},
    ("shards.founders", True): {"shards": {"members": 3}},
    **{("shards.antiAffinity", value): {"shards": {"members": 3}} for value in ("preferred", "required")},
    ("etcd.enabled", False): {"etcd": {"external": {"endpoints": ["10.0.0.1:2379"]}}},
    ("etcd.external.tls.clientCertificate", True): {
        "etcd": {
            "enabled": False,
            "external": {"endpoints": ["10.0.0.1:2379"], "tls": {"secret": "given-etcd-tls"}},
        }
    },
    **{
        (f"analytics.{path}", value): {"analytics": {"enabled": True}}
        for path, value in (
            *(("capture.enabled", False), ("compact.enabled", False)),
            *(("plan.enabled", True), ("lake.persistence.enabled", True)),
        )
    },
    ("analytics.plan.rebalance", True): {"analytics": {"enabled": True, "plan": {"enabled": True}}},
    ("analytics.lake.persistence.enabled", False): {
        "analytics": {"enabled": True, "lake": {"table": "s3://lake/messages"}}
    },
    ("gateway.ingress.enabled", True): {"gateway": {"ingress": {"host": "broker.example.org"}}},
}
"""What a value asks for besides itself."""


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> Values:
    """As helm merges values: tables by key, the rest replaced."""
    made = deepcopy(dict(values))
    for key, value in more.items():
        old = made.get(key)
        made[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return made


def at(path: str, value: Any) -> Values:
    """{"a": {"b": value}} of a.b."""
    made: Any = value
    for key in reversed(path.split(".")):
        made = {key: made}
    return dict(made)


@cache
def schema() -> Values:
    """values.schema.json"""
    return dict(json.loads((CHART / "values.schema.json").read_text()))


@cache
def defaults() -> Values:
    """values.yaml"""
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


def resolved(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of the schema, or what it refers to."""
    name = part.get("$ref", "").rpartition("/")[2]
    return dict(schema()["definitions"][name]) if name else part


def parts(of: Mapping[str, Any] | None = None, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, part) of every value that the schema names."""
    for key, part in (schema() if of is None else of).get("properties", {}).items():
        here = f"{path}.{key}" if path else key
        found = resolved(part)
        yield here, found
        yield from parts(found, here)


def choices() -> Iterator[tuple[str, Any]]:
    """(path, value) of every switch, on and off, and of everything with a list of allowed values."""
    for path, part in parts():
        for value in part.get("enum", (True, False) if part.get("type") == "boolean" else ()):
            yield path, value


def chosen(path: str, value: Any) -> Values:
    """Values that differ from the usual in one choice and what it needs."""
    return merged(merged(FIXED, NEEDS.get((path, value), {})), at(path, value))
