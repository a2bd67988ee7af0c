"""koord-scheduler on the local control plane: the chart's own configuration, its own ServiceAccount, our address."""

import base64
from collections.abc import Iterable

import yaml

from koordgate.localplane.admin import JsonObject
from koordgate.localplane.chart import CONFIG_KEY, NAMESPACE, find
from koordgate.localplane.plane import ControlPlane

NAME = "koord-scheduler"
_SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/koordgate-tls"


async def start_koord_scheduler(
    plane: ControlPlane, objects: Iterable[JsonObject], address: tuple[str, int] | None = None
) -> None:
    """Start kube-scheduler as the chart's Deployment would, but for a mounted Secret and the election of a leader.

    Args:
        plane: Where to.
        objects: What the chart rendered; a webhook must have made its Secret by now.
        address: Where the webhooks' Service is reached, as there is no cluster DNS (the certificate is verified by the
            Service's name all the same); None where the chart names an external URL.
    """
    config = yaml.safe_load(find(objects, "ConfigMap", NAME)["data"][CONFIG_KEY])
    async with plane.admin() as admin:
        secret = await admin.get(_SECRET)
    authority = plane.workdir / "koordgate-ca.crt"
    authority.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    for extender in config["extenders"]:
        extender["tlsConfig"] = {"caFile": str(authority)}
        if address is not None:
            extender["urlPrefix"] = f"https://{address[0]}:{address[1]}/scheduler"
            extender["tlsConfig"]["serverName"] = f"koordgate.{NAMESPACE}.svc"
    config["leaderElection"] = {"leaderElect": False}
    kubeconfig = await plane.service_account_kubeconfig(NAMESPACE, NAME)
    await plane.start_scheduler(NAME, yaml.safe_dump(config), kubeconfig)
