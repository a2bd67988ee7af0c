"""Definitions of others whose kinds the chart makes, as they publish them: Prometheus' operator and cert-manager."""

import yaml

from localplane.admin import JsonObject
from localplane.binaries import module_folder

# Each module of `SOURCES` with its folder of definitions, and the files of the kinds that the chart makes.
_FILES = {
    "prometheus-operator": (
        "example/prometheus-operator-crd",
        [f"monitoring.coreos.com_{plural}.yaml" for plural in ("servicemonitors", "podmonitors", "prometheusrules")],
    ),
    "cert-manager": ("deploy/crds", ["cert-manager.io_certificates.yaml"]),
}


def of_others() -> list[JsonObject]:
    """The CustomResourceDefinitions, whole.

    Raises:
        BuildError: There is no Go, or their modules cannot be fetched.
    """
    return [
        yaml.safe_load((module_folder(module) / folder / name).read_text())
        for module, (folder, names) in _FILES.items()
        for name in names
    ]
