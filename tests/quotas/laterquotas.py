"""A model of quotas that come later: an API server, its quota controller, and replicas that see what happens late.

Each replica is the product's own tables, sums and gate. The API server and the quota controller are as Kubernetes has
them: a creation is charged by what the quota's status enforces, and a sync counts the Pods that exist.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from builders import container, pod

from allocator.vocabulary.devicetype import BUILT_IN
from koordgate.breaks import at_once
from koordgate.kube.client import KubeClient
from webhook.quotas.gate import QuotaGate
from webhook.quotas.mirror import is_right, mirror_body, mirror_name, read_quota, written_names
from webhook.quotas.table import LimitTable
from webhook.quotas.unstated import Unstated
from webhook.view.changes import Changes
from webhook.view.loads import NodeLoads
from webhook.view.podinfo import PodInfo, read_pod_info
from webhook.view.pods import PodTable

Raw = dict[str, Any]
NAMESPACE: Final = "default"
CARDS: Final = "quota.koordgate.io/gpu"
KEY: Final = f"requests.{CARDS}"
NVIDIA: Final = "requests.nvidia.com/gpu"


@dataclass
class Cluster:
    """The API server: objects by name, and every change in order."""

    pods: dict[str, Raw] = field(default_factory=dict)
    quotas: dict[str, Raw] = field(default_factory=dict)
    pod_changes: list[tuple[int, str, Raw | None]] = field(default_factory=list)
    quota_changes: list[tuple[str, Raw | None]] = field(default_factory=list)
    revision: int = 0

    def put_pod(self, obj: Raw) -> None:
        self.revision += 1
        name = obj["metadata"]["name"]
        self.pods[name] = obj
        self.pod_changes.append((self.revision, name, obj))

    def end_pod(self, name: str) -> None:
        self.revision += 1
        del self.pods[name]
        self.pod_changes.append((self.revision, name, None))

    def put_quota(self, name: str, spec: Raw, status: Raw, /, **metadata: Any) -> None:
        self.revision += 1
        about = {"namespace": NAMESPACE, "uid": f"uid-{name}", **metadata}
        about |= {"name": name, "resourceVersion": str(self.revision)}
        self.quotas[name] = {"metadata": about, "spec": spec, "status": status}
        self.quota_changes.append((name, self.quotas[name]))

    def drop_quota(self, name: str) -> None:
        if self.quotas.pop(name, None) is not None:
            self.revision += 1
            self.quota_changes.append((name, None))

    def sync(self, name: str) -> None:
        """What the quota controller does: it counts the Pods that exist, and enforces what is written."""
        obj = self.quotas.get(name)
        if obj is None:
            return
        hard = obj["spec"]["hard"]
        used = sum(stated(one) for one in self.pods.values())
        status = {"hard": dict(hard), "used": {key: str(used if key == KEY else 0) for key in hard}}
        if status != obj["status"]:
            self.put_quota(name, obj["spec"], status, **obj["metadata"])

    def create(self, obj: Raw) -> bool:
        """What the API server does with a new Pod: every quota that is enforced is charged, or the Pod is refused."""
        amount = stated(obj)
        charged = {name: one for name, one in self.quotas.items() if amount and KEY in one["status"].get("hard", {})}
        for one in charged.values():
            if int(one["status"]["used"][KEY]) + amount > int(one["status"]["hard"][KEY]):
                return False
        for name, one in charged.items():
            used = {**one["status"]["used"], KEY: str(int(one["status"]["used"][KEY]) + amount)}
            self.put_quota(name, one["spec"], {**one["status"], "used": used}, **one["metadata"])
        self.put_pod(obj)
        return True


def make_pod(name: str, percent: int, *, states: bool, node: str = "") -> Raw:
    asks = {"kubernetes.io/gpu": str(percent)} | ({CARDS: str(percent)} if states else {})
    made = pod(container(limits=asks, requests=asks), name=name, uid=f"uid-{name}")
    made["metadata"]["namespace"] = NAMESPACE
    if node:
        made["spec"]["nodeName"] = node
    return made


def percent_of(obj: Raw) -> int:
    return int(obj["spec"]["containers"][0]["resources"]["requests"]["kubernetes.io/gpu"])


def stated(obj: Raw) -> int:
    return int(obj["spec"]["containers"][0]["resources"]["requests"].get(CARDS, "0"))


class Replica:
    """What one replica has seen, and what it decides."""

    def __init__(self, cluster: Cluster, is_held: Callable[[str], bool]) -> None:
        self.cluster = cluster
        self.table = LimitTable(BUILT_IN)
        self.pods = PodTable(Changes(), NodeLoads())
        self.pods.revision = lambda: self._seen
        written = written_names(BUILT_IN, "kubernetes.io")
        self.unstated = Unstated(self.table, self.pods, written, lambda _namespace: True, lambda: None, catch_up=0)
        self.gate = QuotaGate(
            cast("KubeClient", None),  # it is given what it would read
            self.table,
            self.unstated,
            self.pods,
            is_held,
            lambda _namespace: True,
        )
        self._seen = 0
        self._pods_at = self._quotas_at = 0

    def see_pod(self) -> bool:
        if self._pods_at == len(self.cluster.pod_changes):
            return False
        self._seen, name, obj = self.cluster.pod_changes[self._pods_at]
        self._pods_at += 1
        if obj is None:
            self.pods.drop(NAMESPACE, name)
        else:
            read = read_pod_info(obj)
            assert read is not None
            self.pods.put(read)
        return True

    def see_quota(self) -> bool:
        if self._quotas_at == len(self.cluster.quota_changes):
            return False
        name, obj = self.cluster.quota_changes[self._quotas_at]
        self._quotas_at += 1
        self.table.put_quota((NAMESPACE, name), None if obj is None else read_quota(obj, BUILT_IN))
        return True

    def states(self) -> bool:
        """Whether it has new Pods state what quotas count."""
        return CARDS in self.unstated.counted(NAMESPACE)

    def mend(self, name: str) -> None:
        """What its controller does for one quota, with one write that is bound to what it has seen."""
        at_once(self.unstated.fill())
        quota, known = (self.table.quota((NAMESPACE, of)) for of in (name, mirror_name(name)))
        plan = None if quota is None else self.unstated.plan(quota, known)
        if quota is None or plan is None:
            return
        limits, listed = plan
        stored = self.cluster.quotas.get(mirror_name(name))
        if (stored or {"metadata": {"resourceVersion": None}})["metadata"]["resourceVersion"] != (
            None if known is None else known.revision
        ):
            return  # it lost the race
        if not limits:
            self.cluster.drop_quota(mirror_name(name))
        elif known is None or not is_right(known, quota, limits) or known.listed.pods != listed.pods:
            body = mirror_body(quota, limits, known, listed)
            status = stored["status"] if stored is not None else {}
            self.cluster.put_quota(mirror_name(name), body["spec"], status, **body["metadata"])

    def bind(self, name: str) -> PodInfo | str:
        """Decide a bind, by the quotas as they are now."""
        read = read_pod_info(self.cluster.pods[name])
        assert read is not None
        if not self.gate.judges(read):
            return read
        live = {of: found for of, obj in self.cluster.quotas.items() if (found := read_quota(obj, BUILT_IN))}
        return self.gate.judge(read, live)


class Run:
    """One random run; checks after each step what must hold at every moment.

    Attributes:
        prompt: whether replicas see quotas and the ledger at once, and have seen what Pods held before the first quota;
            apart from that, each sees Pods when it happens to.
        before: the Pods whose bind was decided by a replica that knew of no quota.
        given: the Pods whose bind a gate let pass.
    """

    def __init__(self, seed: int, key: str, *, prompt: bool) -> None:
        self.random = random.Random(seed)
        self.key, self.prompt = key, prompt
        self.cluster = Cluster()
        self.replicas = [Replica(self.cluster, self.is_held) for _ in range(2)]
        self.before: set[str] = set()
        self.given: set[str] = set()
        self.bound: set[str] = set()
        self.most = 0  # the greatest limit that there was
        self._numbers = 0

    def is_held(self, uid: str) -> bool:
        """What the ledger says; replicas that lag know nothing of it."""
        return self.prompt and uid.removeprefix("uid-") in self.before | self.given | self.bound

    def step(self) -> None:
        actions: Mapping[Callable[[], object], int] = {
            self.create: 4,
            self.decide: 6,
            self.perform: 4,
            self.end: 2,
            self.quota: 2,
            self.see: 14,
            self.mend: 4,
            self.sync: 4,
        }
        self.random.choices(list(actions), list(actions.values()))[0]()
        if self.prompt:
            for one in self.replicas:
                while one.see_quota():
                    pass
        self.check()

    def create(self) -> None:
        self._numbers += 1
        states = self.random.choice(self.replicas).states()
        name, percent = f"p{self._numbers}", self.random.choice([50, 100, 200])
        self.cluster.create(make_pod(name, percent, states=states))

    def waiting(self) -> list[str]:
        return [name for name in self.cluster.pods if name not in self.before | self.given | self.bound]

    def decide(self) -> None:
        if waiting := self.waiting():
            self.try_bind(self.random.choice(waiting))

    def try_bind(self, name: str) -> None:
        obj = self.cluster.pods[name]
        answer = self.random.choice(self.replicas).bind(name)
        if isinstance(answer, str):
            return
        if stated(obj):
            self.bound.add(name)
        elif answer.request.most:
            assert dict(answer.request.most)[CARDS] == percent_of(obj)
            self.given.add(name)
        else:
            self.before.add(name)

    def perform(self) -> None:
        decided = [name for name in self.cluster.pods if name in self.before | self.given | self.bound]
        unbound = [name for name in decided if not self.cluster.pods[name]["spec"].get("nodeName")]
        if unbound:
            name = self.random.choice(unbound)
            obj = self.cluster.pods[name]
            self.cluster.put_pod(make_pod(name, percent_of(obj), states=bool(stated(obj)), node="node"))

    def end(self) -> None:
        if self.cluster.pods:
            self.cluster.end_pod(self.random.choice(list(self.cluster.pods)))

    def quota(self) -> None:
        known = self.cluster.quotas.get("q")
        cards = self.random.choice([2, 3, 4])
        limit = str(cards if self.key == NVIDIA else 100 * cards)
        self.most = max(self.most, 100 * cards)
        self.cluster.put_quota("q", {"hard": {self.key: limit}}, known["status"] if known else {})
        if self.prompt and known is None:  # as `Unstated.catch_up` has it
            for one in self.replicas:
                while one.see_pod():
                    pass

    def see(self) -> None:
        one = self.random.choice(self.replicas)
        self.random.choice([one.see_pod, one.see_quota])()

    def mend(self) -> None:
        self.random.choice(self.replicas).mend("q")

    def sync(self) -> None:
        self.cluster.sync(self.random.choice(["q", mirror_name("q")]))

    def sums(self) -> tuple[int, int]:
        """What Pods hold whose binder knew of no quota, and what all others state or were given."""
        there = self.cluster.pods
        before = sum(percent_of(there[name]) for name in self.before & there.keys())
        given = sum(percent_of(there[name]) for name in self.given & there.keys())
        return before, given + sum(map(stated, there.values()))

    def check(self) -> None:
        before, counted = self.sums()
        if not self.most:
            return
        assert counted <= self.most, f"{counted} are counted, {before} were there before, of {self.most}"
        if self.prompt:
            assert before + counted <= max(self.most, before), f"{counted} beside {before} of {self.most}"

    def first(self) -> int:
        """What the Pod asks for whose turn it is; 0 where none waits."""
        listed = read_quota(self.cluster.quotas[mirror_name("q")], BUILT_IN) if self.waiting() else None
        turn = [uid.removeprefix("uid-") for uid in listed.listed.pods] if listed is not None else []
        return next((percent_of(self.cluster.pods[name]) for name in turn if name in self.waiting()), 0)

    def limit(self) -> int:
        amount = int(self.cluster.quotas["q"]["spec"]["hard"][self.key])
        return 100 * amount if self.key == NVIDIA else amount

    def settle(self) -> None:
        """Let everything that is under way happen, and bind all that may be bound."""
        for _ in range(6):
            for one in self.replicas:
                while one.see_pod() or one.see_quota():
                    pass
                one.mend("q")
            for name in ("q", mirror_name("q")):
                self.cluster.sync(name)
        for name in self.waiting() * 2:
            if name in self.waiting():
                self.try_bind(name)
                self.check()
        for one in self.replicas:
            one.unstated.check_invariants()
            one.pods.check_invariants()
