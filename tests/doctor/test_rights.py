"""The rights that `koordgate doctor` asks for, account by account, under settings that use all and few of them."""

from collections import defaultdict

import pytest

from console.doctor.rights import needed
from webhook.settings import parse

ALL = """
gangs: {allOrNothing: true}
dra: {taints: true}
headroom: {mode: taint}
map: {enabled: true}
scheduler: {clientCertificates: true}
"""
FEW = """
quota: {enabled: false}
dra: {enabled: false}
scheduler: {clientCertificates: false}
"""


def told(settings: str, *, reporter: bool, configz: bool, policies: bool = False) -> dict[str, str]:
    """The verbs of each account by resource, name and namespace."""
    found = defaultdict(list)
    for right in needed(parse(settings), reporter=reporter, configz=configz, policies=policies):
        resource = f"{right.resource}.{right.group}" if right.group else right.resource
        name = f" {right.name}" if right.name else ""
        where = f" in {right.namespace}" if right.namespace else ""
        found[f"{right.account}: {resource}{name}{where}"].append(right.verb)
    return {of: " ".join(verbs) for of, verbs in sorted(found.items())}


OF_ALL = {
    "koordgate-reporter: clusterpolicies.nvidia.com": "list",
    "koordgate-reporter: devices.scheduling.koordinator.sh": "create get list patch watch",
    "koordgate-reporter: events": "create patch",
    "koordgate-reporter: noderesourcetopologies.topology.node.k8s.io": "create get list patch watch",
    "koordgate-reporter: nodes": "get list watch",
    "koordgate-reporter: nodes/proxy": "get",
    "koordgate-reporter: nodes/status": "patch",
    "koordgate-reporter: pods": "list watch",
    "koordgate: devices.scheduling.koordinator.sh": "list watch",
    "koordgate: devicetaintrules.resource.k8s.io": "create delete list watch",
    "koordgate: events": "create",
    "koordgate: limitranges": "list watch",
    "koordgate: mutatingwebhookconfigurations.admissionregistration.k8s.io koordgate": "get patch",
    "koordgate: namespaces": "list watch",
    "koordgate: nodeallocations.koordgate.io": "create delete get list update watch",
    "koordgate: noderesourcetopologies.topology.node.k8s.io": "list watch",
    "koordgate: nodes": "get list patch watch",
    "koordgate: nodes/status": "patch",
    "koordgate: podgroups.scheduling.k8s.io": "list watch",
    "koordgate: podgroups.scheduling.sigs.k8s.io": "list watch",
    "koordgate: podgroups.scheduling.x-k8s.io": "list watch",
    "koordgate: pods": "get list patch watch",
    "koordgate: resourceclaims.resource.k8s.io": "get list watch",
    "koordgate: resourcequotas": "create delete get list update watch",
    "koordgate: resourceslices.resource.k8s.io": "list watch",
    "koordgate: runtimeclasses.node.k8s.io": "list watch",
    "koordgate: secrets in koordgate-system": "create",
    "koordgate: secrets koordgate-extender-tls in koordgate-system": "get update",
    "koordgate: secrets koordgate-scheduler-tls in koordgate-system": "get update",
    "koordgate: secrets koordgate-tls in koordgate-system": "get update",
    "koordgate: subjectaccessreviews.authorization.k8s.io": "create",
    "koordgate: tokenreviews.authentication.k8s.io": "create",
    "koordgate: validatingwebhookconfigurations.admissionregistration.k8s.io koordgate": "get patch",
}
OF_FEW = {
    "koordgate-reporter: devices.scheduling.koordinator.sh": "create get list patch watch",
    "koordgate-reporter: events": "create patch",
    "koordgate-reporter: noderesourcetopologies.topology.node.k8s.io": "create get list patch watch",
    "koordgate-reporter: nodes": "get list watch",
    "koordgate-reporter: nodes/status": "patch",
    "koordgate-reporter: pods": "list watch",
    "koordgate: devices.scheduling.koordinator.sh": "list watch",
    "koordgate: events": "create",
    "koordgate: mutatingwebhookconfigurations.admissionregistration.k8s.io koordgate": "get patch",
    "koordgate: namespaces": "list watch",
    "koordgate: nodeallocations.koordgate.io": "create delete get list update watch",
    "koordgate: noderesourcetopologies.topology.node.k8s.io": "list watch",
    "koordgate: nodes": "list watch",
    "koordgate: nodes/status": "patch",
    "koordgate: podgroups.scheduling.k8s.io": "list watch",
    "koordgate: podgroups.scheduling.sigs.k8s.io": "list watch",
    "koordgate: podgroups.scheduling.x-k8s.io": "list watch",
    "koordgate: pods": "get list watch",
    "koordgate: runtimeclasses.node.k8s.io": "list watch",
    "koordgate: secrets in koordgate-system": "create",
    "koordgate: secrets koordgate-extender-tls in koordgate-system": "get update",
    "koordgate: secrets koordgate-tls in koordgate-system": "get update",
    "koordgate: validatingwebhookconfigurations.admissionregistration.k8s.io koordgate": "get patch",
}


def test_all_that_settings_may_need_is_asked_for() -> None:
    assert told(ALL, reporter=True, configz=True, policies=True) == OF_ALL


def test_no_more_than_the_settings_need_is_asked_for() -> None:
    assert told(FEW, reporter=True, configz=False) == OF_FEW
    ours = {of: verbs for of, verbs in OF_FEW.items() if of.startswith("koordgate: ")}
    assert told(FEW, reporter=False, configz=True) == ours


@pytest.mark.parametrize(
    ("settings", "name", "asked"),
    [
        ("", "koordgate-scheduler-tls", True),
        ("scheduler: {clientCertificates: false}", "koordgate-scheduler-tls", False),
        ("certificate: {files: {certificate: /a, key: /b, authority: /c}}", "koordgate-tls", False),
    ],
)
def test_a_secret_is_asked_for_where_the_webhook_makes_it(settings: str, name: str, *, asked: bool) -> None:
    found = told(settings, reporter=False, configz=False)
    assert (found.get(f"koordgate: secrets {name} in koordgate-system") == "get update") is asked
