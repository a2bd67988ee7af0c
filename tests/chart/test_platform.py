"""What platform teams expect of a chart: certificates of cert-manager, network policies, seccomp, columns, versions."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.conftest import Render

from console.doctor.checks.installed import NEWEST, OLDEST
from localplane import chart, versions
from localplane.admin import JsonObject
from localplane.binaries import Binaries
from localplane.chart import find, settings_text
from webhook import settings

ISSUERS = {"issuer": {"name": "ca"}, "clientIssuer": {"name": "own", "kind": "ClusterIssuer"}}
CERT_MANAGER = {"certificate": {"certManager": {"enabled": True, **ISSUERS}, "certificateDays": 90}}
INJECT = "cert-manager.io/inject-ca-from"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
README = Path(chart.__file__).parents[1] / "README.md"


def volumes(objects: list[JsonObject], deployment: str) -> dict[str, JsonObject]:
    spec = find(objects, "Deployment", deployment)["spec"]["template"]["spec"]
    return {volume["name"]: volume for volume in spec["volumes"]}


def certificates(objects: list[JsonObject]) -> dict[str, JsonObject]:
    return {item["metadata"]["name"]: item["spec"] for item in objects if item["kind"] == "Certificate"}


# Certificates


def test_cert_manager_makes_the_secrets_that_the_pods_mount(render: Render) -> None:
    rendered = render(CERT_MANAGER)
    made = certificates(rendered)
    secrets = {name: spec["secretName"] for name, spec in made.items()}
    assert volumes(rendered, "koordgate")["tls"]["secret"]["secretName"] == secrets["koordgate"]
    assert volumes(rendered, "koordgate")["client-ca"]["secret"]["secretName"] == secrets["koord-scheduler"]
    sources = volumes(rendered, "koord-scheduler")["tls"]["projected"]["sources"]
    assert [source["secret"]["name"] for source in sources] == [secrets["koordgate"], secrets["koord-scheduler"]]
    read = settings.parse(settings_text(rendered)).certificate
    assert read.files is not None
    assert read.client_authority is not None


def test_its_certificates_are_for_the_names_that_callers_use_and_from_the_issuers_of_the_values(render: Render) -> None:
    external = {"externalURL": "https://gate.example.com", "externalExtenderURL": "https://10.0.0.7:9444"}
    made = certificates(render(CERT_MANAGER | {"webhook": external}))
    ours, theirs = made["koordgate"], made["koord-scheduler"]
    assert {"koordgate.koordgate-system.svc", "gate.example.com"} <= set(ours["dnsNames"])
    assert ours["ipAddresses"] == ["10.0.0.7"]
    assert ours["issuerRef"] == {"name": "ca", "kind": "Issuer", "group": "cert-manager.io"}
    assert theirs["issuerRef"] == {"name": "own", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert (theirs["commonName"], "dnsNames" in theirs) == ("koord-scheduler", False)
    assert (ours["usages"][-1], theirs["usages"][-1]) == ("server auth", "client auth")
    assert ours["duration"] == theirs["duration"] == "2160h"


def test_without_a_second_issuer_one_makes_both(render: Render) -> None:
    values = {"certificate": {"certManager": {"enabled": True, "issuer": {"name": "ca"}}}}
    assert [spec["issuerRef"]["name"] for spec in certificates(render(values)).values()] == ["ca", "ca"]
    alone = certificates(render(values | {"scheduler": {"clientCertificates": False}}))
    assert list(alone) == ["koordgate"]


def test_cert_manager_puts_its_ca_into_the_webhooks_unless_that_is_stated(render: Render) -> None:
    def annotations(values: dict[str, Any]) -> list[dict[str, str]]:
        rendered = render(values)
        return [find(rendered, kind, "koordgate")["metadata"].get("annotations", {}) for kind in WEBHOOKS]

    inject = {INJECT: "koordgate-system/koordgate"}
    assert annotations(CERT_MANAGER) == [inject] * 2
    assert annotations(CERT_MANAGER | {"webhook": {"annotations": {"note": "x"}}}) == [inject | {"note": "x"}] * 2
    assert annotations(CERT_MANAGER | {"webhook": {"caBundle": "TUE9PQ=="}}) == [{}] * 2


def test_cert_manager_leaves_no_right_to_secrets_to_the_webhook(render: Render) -> None:
    roles = [item for item in render(CERT_MANAGER) if item["kind"] in {"Role", "ClusterRole"}]
    assert not [rule for role in roles for rule in role["rules"] if "secrets" in rule["resources"]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"enabled": True}, "set certificate.certManager.issuer.name", id="no issuer"),
        pytest.param({"enabled": True, "issuer": {"name": "ca"}}, "leave existingSecret", id="and a Secret"),
    ],
)
def test_what_cert_manager_lacks_is_refused_with_what_to_set(
    render: Render, values: dict[str, Any], message: str
) -> None:
    given = {"existingSecret": "mine"} if "issuer" in values else {}
    with pytest.raises(chart.ChartError, match=re.escape(message)):
        render({"certificate": {"certManager": values, **given}})


# Network policies and seccomp


def ingress(objects: list[JsonObject]) -> dict[str, list[JsonObject]]:
    return {item["metadata"]["name"]: item["spec"]["ingress"] for item in objects if item["kind"] == "NetworkPolicy"}


@pytest.mark.parametrize(
    ("values", "policies"),
    [
        pytest.param({}, 0, id="no address is known"),
        pytest.param({"callers": [{"podSelector": {}}]}, 0, id="callers alone are no API servers"),
        pytest.param({"apiServers": ["10.0.0.1/32", "fd00::1/128"]}, 3, id="the API servers' addresses are given"),
        pytest.param({"apiServers": ["10.0.0.1/32"], "enabled": False}, 0, id="turned off all the same"),
        pytest.param({"enabled": True}, 3, id="turned on without addresses"),
    ],
)
def test_network_policies_are_on_where_the_api_servers_addresses_are_given(
    render: Render, values: dict[str, Any], policies: int
) -> None:
    assert len(ingress(render({"networkPolicy": values}))) == policies


def test_the_api_servers_and_the_callers_alone_reach_the_webhook(render: Render) -> None:
    prometheus = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    addresses = ["10.0.0.1/32", "fd00::1/128"]
    rules = ingress(render({"networkPolicy": {"apiServers": addresses, "callers": [prometheus]}}))
    sources = [prometheus, *({"ipBlock": {"cidr": address}} for address in addresses)]
    assert rules["koordgate"][0] == {"ports": [{"port": 9443, "protocol": "TCP"}], "from": sources}
    assert rules["koordgate-reporter"] == [{"ports": [{"port": 9446, "protocol": "TCP"}], "from": sources}]


def test_every_pod_has_the_runtimes_seccomp_profile_and_no_container_another(binaries: Binaries) -> None:
    rendered = chart.render(binaries, {}, tests=True)
    specs = [item["spec"] for item in rendered if item["kind"] == "Pod"]
    specs += [item["spec"]["template"]["spec"] for item in rendered if item["kind"] in {"Deployment", "DaemonSet"}]
    assert len(specs) == 4
    for spec in specs:
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert "seccompProfile" not in container["securityContext"]


# Versions of Kubernetes


def test_the_oldest_kubernetes_is_the_same_wherever_it_is_stated(objects: list[JsonObject]) -> None:
    described = yaml.safe_load((chart.chart_folder() / "Chart.yaml").read_text())
    (stated,) = re.findall(r"^>=1\.(\d+)\.0-0$", described["kubeVersion"])
    (in_readme,) = re.findall(r"Kubernetes 1\.(\d+) or newer", README.read_text())
    (in_chart,) = re.findall(r"\(1\.(\d+) or newer\)", (chart.chart_folder() / "README.md").read_text())
    assert {int(stated), int(in_readme), int(in_chart)} == {OLDEST[1]}
    assert versions.number(versions.versions()[0])[:2] <= OLDEST, "make test-matrix tries it, or an older one"


@pytest.mark.parametrize(
    ("version", "tag", "image"),
    [
        pytest.param("v1.34.2", "", "v1.34.2", id="a stock Kubernetes"),
        pytest.param("v1.34.4-gke.1106006", "", "v1.34.4", id="a vendor's version"),
        pytest.param("v1.34.1+k3s1", "", "v1.34.1", id="a distribution's version"),
        pytest.param("v1.36.3", "v1.35.1", "v1.35.1", id="the value's"),
    ],
)
def test_the_scheduler_is_of_the_api_servers_version_unless_the_values_state_one(
    binaries: Binaries, version: str, tag: str, image: str
) -> None:
    rendered = chart.render(Binaries(binaries.paths, version), {"scheduler": {"image": {"tag": tag}}})
    (container,) = find(rendered, "Deployment", "koord-scheduler")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.k8s.io/kube-scheduler:{image}"


def test_the_newest_kubernetes_that_doctor_knows_is_the_one_that_make_test_runs() -> None:
    assert versions.number(versions.KUBERNETES)[:2] == NEWEST
    assert versions.versions()[-1] == versions.KUBERNETES


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("1.36", "v1.36.3", id="a minor version"),
        pytest.param("v1.36.3", "v1.36.3", id="in full"),
        pytest.param("1.36.3", "v1.36.3", id="without the v"),
    ],
)
def test_a_version_may_be_named_in_short(text: str, version: str) -> None:
    assert versions.chosen(text) == version


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("1.99", "cannot be built here: there are v1", id="not there"),
        pytest.param("1.36.99", "cannot be built here", id="another patch"),
        pytest.param("newest", "is no version of Kubernetes: write it as 1.36", id="no version"),
        pytest.param("1.3", "cannot be built here", id="the beginning of one"),
    ],
)
def test_an_unknown_version_is_refused_with_those_that_there_are(text: str, message: str) -> None:
    with pytest.raises(versions.VersionError, match=re.escape(message)):
        versions.chosen(text)


def test_the_variable_names_the_version_where_no_argument_does(monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = versions.versions()[0]
    monkeypatch.setenv(versions.VARIABLE, oldest)
    assert (versions.chosen(), versions.chosen("1.36")) == (oldest, "v1.36.3")
    monkeypatch.setenv(versions.VARIABLE, "")
    assert versions.chosen() == versions.KUBERNETES
