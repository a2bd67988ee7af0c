"""What a RuntimeClass adds to a Pod, as the API server's plugin RuntimeClass writes it, once more after the webhooks.

The source of the rules is Kubernetes, plugin/pkg/admission/runtimeclass.
"""

from typing import Any, Final

from webhook.view.cluster import ClusterView
from webhook.view.feed import RuntimeClassFeed

Raw = dict[str, Any]

KIND: Final = "RuntimeClass"


class RuntimeClassPlugin:
    """The RuntimeClasses of a cluster.

    Args:
        cluster: hears of them as well.
    """

    def __init__(self, cluster: ClusterView) -> None:
        self._feed = RuntimeClassFeed(cluster)
        self._classes: dict[str, Raw] = {}

    def put(self, obj: Raw) -> None:
        """A RuntimeClass is there."""
        self._feed.put(obj)
        self._classes[obj["metadata"]["name"]] = obj

    def write(self, pod: Raw) -> str:
        """Write overhead, nodeSelector and tolerations of its class into a new Pod.

        Returns:
            Why the API server would refuse it; "" if it would not. A class that is not in the input adds nothing.
        """
        found = self._classes.get(pod["spec"].get("runtimeClassName") or "")
        if found is None:
            return ""
        spec, name = pod["spec"], f"Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        overhead = (found.get("overhead") or {}).get("podFixed")
        if overhead:
            if spec.get("overhead") not in (None, {}, overhead):
                return f"{name} is rejected: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
            spec["overhead"] = dict(overhead)
        scheduling = found.get("scheduling") or {}
        selector = scheduling.get("nodeSelector") or {}
        stated = spec.get("nodeSelector") or {}
        if any(stated.get(key, value) != value for key, value in selector.items()):
            return f"{name} is rejected: conflict: runtimeClass.scheduling.nodeSelector and the Pod's"
        if selector:
            spec["nodeSelector"] = {**stated, **selector}
        for toleration in scheduling.get("tolerations") or ():
            if toleration not in (listed := spec.get("tolerations") or []):
                spec["tolerations"] = [*listed, toleration]
        return ""
