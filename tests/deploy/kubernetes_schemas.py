"""The schemas of Kubernetes, strict ones: what is not in them is wrong.

The package has them as files, and a check that reads all of them anew for every object; here each is read
once.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

FOREIGN = {"monitoring.coreos.com/v1", "cert-manager.io/v1"}
"""Kinds that operators bring: Kubernetes has no schema of them."""


@cache
def _folder(version: str) -> Any:
    return files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"


@cache
def _registry(version: str) -> Any:
    definitions = json.loads((_folder(version) / "_definitions.json").read_text())
    resource = Resource.from_contents(definitions, default_specification=DRAFT202012)
    return Registry().with_resource("_definitions.json", resource)


@cache
def _validator(version: str, api: str, kind: str) -> Draft202012Validator:
    group, _, of_group = api.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0] + '-' if group else ''}{of_group}.json"
    schema = json.loads((_folder(version) / name).read_text())
    return Draft202012Validator(schema, registry=_registry(version))


def wrong(manifest: dict[str, Any], version: str) -> str:
    """What is wrong with an object for Kubernetes of a version such as 1.37; empty when nothing is."""
    if manifest["apiVersion"] in FOREIGN:
        return ""
    found = best_match(_validator(version, manifest["apiVersion"], manifest["kind"]).iter_errors(manifest))
    if found is None:
        return ""
    where = ".".join(str(step) for step in found.absolute_path)
    return f"{manifest['kind']} {manifest['metadata']['name']}: {where}: {found.message[:300]}"
