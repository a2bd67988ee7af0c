"""Policies of a cluster's own about resource names, on a real API server: doctor names them, and the cure works."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from controlplane.gpu_cluster import pod, pods_path

from console.doctor.policies import search_policies
from koordgate.kube.client import KubeClient
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.replicas import Replicas
from localplane.waiting import until
from webhook.settings import WebhookSettings, types_of

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
PAGE = Path(__file__).parents[2] / "docs" / "install" / "migrate.md"
OUTDATED = "object.spec.containers.all(c, !has(c.resources.limits) || !('nvidia.com/gpu' in c.resources.limits))"
DOCUMENTED: JsonObject = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])


@pytest_asyncio.fixture(loop_scope="session")
async def policies(admin: AdminClient, namespace: str) -> AsyncIterator[None]:
    """A policy that names what translation removes, and the one that the page shows; both hold in the namespace."""
    outdated = {**DOCUMENTED, "metadata": {"name": "no-cards"}}
    outdated["spec"] = {**DOCUMENTED["spec"], "validations": [{"expression": OUTDATED}]}
    for made in (outdated, DOCUMENTED):
        name = made["metadata"]["name"]
        await admin.create(POLICIES, made)
        scope = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
        spec = {"policyName": name, "validationActions": ["Deny"], "matchResources": scope}
        version = "admissionregistration.k8s.io/v1"
        about = {"apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}}
        await admin.create(BINDINGS, {**about, "spec": spec})
    yield
    for name in ("no-cards", DOCUMENTED["metadata"]["name"]):
        await admin.delete(f"{BINDINGS}/{name}")
        await admin.delete(f"{POLICIES}/{name}")


async def test_the_documented_policy_counts_what_authors_ask_for_in_every_name(
    webhook: Replicas, admin: AdminClient, namespace: str, policies: None
) -> None:
    def asking(asks: dict[str, str]) -> Any:
        return admin.create(pods_path(namespace), pod("p", namespace, asks), dryRun="All")

    async def refused() -> bool:
        try:
            await asking({"nvidia.com/gpu": "3"})
        except ApiError as error:
            return "two cards at most" in error.message
        return False

    await until(refused, "the API server goes by the new policies")
    for more in ({"kubernetes.io/gpu": "300"}, {"koordinator.sh/gpu-core": "300", "koordinator.sh/gpu-memory": "9Gi"}):
        with pytest.raises(ApiError, match="two cards at most"):
            await asking(more)
    for fewer in ({"nvidia.com/gpu": "2"}, {"kubernetes.io/gpu": "50"}, {"cpu": "1"}):
        await asking(fewer)  # the policy that forbids every card is not heard


@pytest.mark.usefixtures("as_administrator")
async def test_doctor_finds_the_policy_that_no_longer_applies_and_no_other(
    installed: list[JsonObject], policies: None
) -> None:
    settings = WebhookSettings()
    async with KubeClient.autodetect() as kube:
        found = await search_policies(kube, types_of(settings), settings.domain)
    assert [(one.kind, one.name, one.names) for one in found.outdated] == [
        ("ValidatingAdmissionPolicy", "no-cards", ("nvidia.com/gpu",))
    ]
    assert found.problems == ()
