"""What was read of a cluster: the checks judge this value alone."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from console.doctor.policies import PolicyFindings
from console.doctor.trials import TrialOutcome
from koordgate.kube.resource import Resource
from webhook.settings import WebhookSettings

Raw = dict[str, Any]

REPORTER: Final = "koordgate-reporter"
REPORTERS: Final = (REPORTER, f"{REPORTER}-gpu")  # DaemonSets: the second where nodes with cards have one of their own
RELEASE: Final = "koordgate"


@dataclass(frozen=True, slots=True)
class ReadList:
    """What was read of one resource.

    Attributes:
        items: the objects, as far as the checks need them.
        error: why they could not be read; "" if they could.
        absent: the API server does not serve the resource.
        cut: there are more objects than were read.
    """

    items: tuple[Raw, ...] = ()
    error: str = ""
    absent: bool = False
    cut: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The names of the objects."""
        return frozenset(one["metadata"]["name"] for one in self.items)

    def named(self, name: str) -> Raw | None:
        """The object of a name; None if there is none."""
        return next((one for one in self.items if one["metadata"]["name"] == name), None)


NOT_READ: Final = ReadList(error="it was not read")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment.

    Attributes:
        namespace: of the release.
        read: key -> what was read, as `Wanted` names it.
        settings: the webhook's settings, from its ConfigMap; None if they could not be read.
        settings_problem: why not.
        reporter: the reporter's settings, as they stand in its ConfigMap.
        version: the API server's, such as v1.36.3; "" if it could not be read.
        offset: seconds by which the API server's clock is ahead of this machine's; None if no answer stated its time.
        now: seconds since 1970, by the API server's clock.
        rights: rights of our accounts, and whether RBAC gives them; None for those that could not be asked.
        outcomes: what became of each trial.
        crds: definitions of custom resources that the chart ships: name -> object.
        policies: the cluster's own that no longer apply to Pods; None if they were not searched.
    """

    namespace: str
    read: Mapping[str, ReadList] = field(default_factory=dict)
    settings: WebhookSettings | None = None
    settings_problem: str = ""
    reporter: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    offset: float | None = None
    now: float = 0.0
    rights: Mapping["Right", bool | None] = field(default_factory=dict)
    outcomes: tuple[TrialOutcome, ...] = ()
    crds: Mapping[str, Raw] = field(default_factory=dict)
    policies: PolicyFindings | None = None

    def of(self, key: str) -> ReadList:
        """What was read under a key."""
        return self.read.get(key, NOT_READ)


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A right that one of our accounts needs.

    Attributes:
        account: name of the ServiceAccount.
        verb: as in RBAC rules.
        group: API group.
        resource: with its subresource, such as `nodes/status`.
        name: of the only object; "" for any.
        namespace: "" for the cluster.
    """

    account: str
    verb: str
    group: str
    resource: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {what}{f' {self.name}' if self.name else ''}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Something to read.

    Attributes:
        key: under which it is found in a snapshot.
        resource: what to list.
        namespace: where; None for everywhere.
        keep: what to keep of an object.
        selector: of labels.
        fields: a selector of fields.
        names: get these objects instead of a list.
    """

    key: str
    resource: Resource
    namespace: str | None = None
    keep: Callable[[Raw], Raw] = dict
    selector: str = ""
    fields: str = ""
    names: tuple[str, ...] = ()


def metadata_of(obj: Mapping[str, Any], *, annotations: Iterable[str] = ()) -> Raw:
    """Keep of an object's metadata its name, namespace, labels, owner, and some annotations."""
    about = obj["metadata"]
    noted = about.get("annotations") or {}
    return {
        "name": about["name"],
        "namespace": about.get("namespace", ""),
        "labels": about.get("labels") or {},
        "annotations": {key: noted[key] for key in annotations if key in noted},
    }


def enforcing(binding: Mapping[str, Any]) -> bool:
    """Whether a policy's binding is that of enforced namespaces, named as its policy; observed ones have another."""
    return bool(binding["metadata"]["name"] == binding["spec"].get("policyName"))
