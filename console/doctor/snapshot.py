"""What was read of a cluster: the checks judge this value alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.vocabulary.names import Mode
from console.cluster import Cluster, ReadCluster
from console.doctor.policies import PolicyFindings
from console.doctor.trials import TrialOutcome
from console.reading import ReadList
from koordgate.kube.resource import Resource
from webhook.settings import WebhookSettings

Raw = dict[str, Any]

REPORTER: Final = "koordgate-reporter"
REPORTERS: Final = (REPORTER, f"{REPORTER}-gpu")  # DaemonSets: the second where nodes with cards have one of their own


SEEN: Final = {"nodes": "Node", "devices": "Device", "runtimes": "RuntimeClass"}
"""What a replica sees of nodes: where it is in what was read, and its kind."""
NOT_READ: Final = ReadList(error="it was not read")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment."""

    namespace: str
    read: Mapping[str, ReadList] = field(default_factory=dict)  # key -> what was read, as `Wanted` names it
    settings: WebhookSettings = field(default_factory=WebhookSettings)  # the defaults if they could not be read
    settings_problem: str = ""  # why not; "" if they could
    reporter: Mapping[str, Any] = field(default_factory=dict)  # the reporter's settings, as they stand in its ConfigMap
    version: str = ""  # the API server's, such as v1.36.3; "" if it could not be read
    # seconds by which the API server's clock is ahead of this machine's; None if no answer stated its time
    offset: float | None = None
    now: float = 0.0  # seconds since 1970, by the API server's clock
    # rights of our accounts, and whether RBAC gives them; None for those that could not be asked
    rights: Mapping["Right", bool | None] = field(default_factory=dict)
    outcomes: tuple[TrialOutcome, ...] = ()  # what became of each trial
    # definitions of custom resources that the chart ships: name -> object
    crds: Mapping[str, Raw] = field(default_factory=dict)
    # the cluster's own that no longer apply to Pods; None if they were not searched
    policies: PolicyFindings | None = None
    modes: Mapping[str, Mode] = field(default_factory=dict)  # of the namespaces in which something was tried

    def of(self, key: str) -> ReadList:
        """What was read under a key."""
        return self.read.get(key, NOT_READ)

    def seen(self) -> ReadCluster:
        """The nodes and their devices, as a replica would see them; made anew at each call."""
        objects = {kind: list(self.of(key).items) for key, kind in SEEN.items()}
        return ReadCluster(Cluster(objects, settings=self.settings, classes=True))


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A right that one of our accounts needs."""

    account: str  # name of the ServiceAccount
    verb: str  # as in RBAC rules
    group: str  # API group
    resource: str  # with its subresource, such as `nodes/status`
    name: str = ""  # of the only object; "" for any
    namespace: str = ""  # "" for the cluster

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {what}{f' {self.name}' if self.name else ''}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Something to read."""

    key: str  # under which it is found in a snapshot
    resource: Resource
    namespace: str | None = None  # where; None for everywhere
    keep: Callable[[Raw], Raw] = dict  # what to keep of an object
    selector: str = ""
    fields: str = ""  # a selector of fields
    names: tuple[str, ...] = ()  # get these objects instead of a list


def metadata_of(obj: Mapping[str, Any]) -> Raw:
    """Keep of an object's metadata its name, namespace and labels."""
    about = obj["metadata"]
    return {"name": about["name"], "namespace": about.get("namespace", ""), "labels": about.get("labels") or {}}


def enforcing(binding: Mapping[str, Any]) -> bool:
    """Whether a policy's binding is that of enforced namespaces, named as its policy; observed ones have another."""
    return bool(binding["metadata"]["name"] == binding["spec"].get("policyName"))


def taints_of(node: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The taints of a Node."""
    return (node.get("spec") or {}).get("taints") or ()
