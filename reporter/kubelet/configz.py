"""The kubelet's configuration in force, requested through the API server."""

import orjson

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES
from reporter.kubelet import configuration
from reporter.kubelet.configuration import ConfigurationError, KubeletConfiguration
from reporter.kubelet.watched import FileReading

Answer = FileReading[KubeletConfiguration]


async def ask(kube: KubeClient, node: str, before: KubeletConfiguration | None = None) -> Answer:
    """Ask a kubelet's /configz.

    `kube`: the open client, with the right to the Node's `proxy`. `before`: its last answer, which is kept if it does
    not answer.
    """
    try:
        answer = await kube.get(NODES.path(node, subresource="proxy") + "/configz")
        return FileReading(configuration.parse(orjson.dumps(answer)), None)
    except (KubeError, ConfigurationError) as error:
        return FileReading(before, f"the kubelet's /configz: {error}; its previous answer is kept")
