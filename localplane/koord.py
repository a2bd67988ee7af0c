"""koord-scheduler on the local control plane, with the chart's configuration and ServiceAccount, at our address."""

import base64
from collections.abc import Iterable
from pathlib import Path

import yaml

from localplane.admin import JsonObject
from localplane.chart import CONFIG_KEY, NAMESPACE, find
from localplane.plane import ControlPlane

NAME = "koord-scheduler"
_SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
_VOLUME = "tls"


async def start_koord_scheduler(
    plane: ControlPlane, objects: Iterable[JsonObject], address: tuple[str, int] | None = None, *, elect: bool = False
) -> None:
    """Start kube-scheduler as the chart's Deployment would.

    Args:
        plane: The control plane.
        objects: The rendered chart; a webhook must already have made the Secret that is mounted.
        address: The extender's address, since there is no cluster DNS (the certificate is still verified by the
            Service's name); None if the chart names an external URL.
        elect: Whether it must win the chart's lease first; an ended process keeps it for seconds.
    """
    objects = list(objects)
    config = yaml.safe_load(find(objects, "ConfigMap", NAME)["data"][CONFIG_KEY])
    mounted = await _mounted(plane, find(objects, "Deployment", NAME))
    for extender in config["extenders"]:
        extender["tlsConfig"] = {key: str(mounted / Path(file).name) for key, file in extender["tlsConfig"].items()}
        if address is not None:
            extender["urlPrefix"] = f"https://{address[0]}:{address[1]}/scheduler"
            extender["tlsConfig"]["serverName"] = f"koordgate.{NAMESPACE}.svc"
    if not elect:
        config["leaderElection"] = {"leaderElect": False}
    kubeconfig = await plane.service_account_kubeconfig(NAMESPACE, NAME)
    await plane.start_scheduler(NAME, yaml.safe_dump(config), kubeconfig)


async def _mounted(plane: ControlPlane, deployment: JsonObject) -> Path:
    """Write the files of the Secret that the kubelet would mount for the Deployment; returns the folder."""
    (volume,) = (one for one in deployment["spec"]["template"]["spec"]["volumes"] if one["name"] == _VOLUME)
    async with plane.admin() as admin:
        secret = await admin.get(f"{_SECRETS}/{volume['secret']['secretName']}")
    folder = plane.workdir / NAME / _VOLUME
    folder.mkdir(parents=True, exist_ok=True)
    for item in volume["secret"]["items"]:
        file = folder / item["path"]
        file.touch(mode=0o600)
        file.write_bytes(base64.b64decode(secret["data"][item["key"]]))
    return folder
