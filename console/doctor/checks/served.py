"""What becomes of Pods: dry-run requests, policies, other products, the cluster's own policies, quotas."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.delivery import Keeping
from allocator.vocabulary.names import AGREEMENT, NVIDIA_GPU, REPORTER_MANAGER, TYPE_GPU, Mode
from allocator.wire.noderuntime import MEMORY_LIMITS, read_uses
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, as_object, parse_json
from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.policies import cure, removed, what
from console.doctor.snapshot import REPORTER, Snapshot, enforcing
from console.doctor.trials import Came, Expect, TrialOutcome, translated_by, untouched
from console.terminal import counted
from webhook.quotas.mirror import Quota, is_right, mirror_name, mirrored, read_quota, written_names
from webhook.settings import WebhookSettings, types_of

_MAX_MESSAGE: Final = 300  # characters of another's message
_NO_REPLICA_BEHIND: Final = (
    "what is between API server and webhook reaches no replica: kubectl -n koordgate-system get pods"
)
_CAUSES: Final = (  # what the API server's message has, and what to do
    (
        "certificate signed by unknown authority",
        "the CA in the webhook configuration is another: see the webhook's log",
    ),
    ("certificate has expired", "see the webhook's log: clocks, or rights to its Secrets"),
    ("certificate is not valid", "see the webhook's log: clocks, or rights to its Secrets"),
    ("certificate is valid for", "add the name to certificate.extraDNSNames"),
    ("no endpoints available", "no replica is ready: kubectl -n koordgate-system get pods"),
    ("connection refused", "no replica listens there: kubectl -n koordgate-system get pods"),
    ("EOF", _NO_REPLICA_BEHIND),
    ("connection reset", _NO_REPLICA_BEHIND),
    ("deadline exceeded", "open the way from the API server to the Service's port (firewall, NetworkPolicy)"),
    ("no such host", "see that the Service koordgate exists"),
    ("no route to host", "open the way from the API server to the Service's port (firewall, NetworkPolicy)"),
    ("it presented no certificate", "configure the API server's certificate for webhooks, or webhook.clientAuthority"),
)
_UNSEEN: Final = "koordgate's mutating webhook did not see this Pod"  # as its validating webhook says it
_SEE_LOG: Final = "see the log of deployment/koordgate"


def answers(snapshot: Snapshot) -> Iterator[Finding]:
    """Judge each dry-run request."""
    schedulers = snapshot.settings.scheduler.names
    passed = Counter[str]()
    for outcome in snapshot.outcomes:
        where = outcome.trial.namespace
        scheduler = schedulers.of(where)
        if snapshot.modes.get(where, Mode.ENFORCE) is not Mode.ENFORCE and _passes(outcome, scheduler):
            passed[where] += 1
        else:
            yield _judge(outcome, scheduler)
    for where, number in passed.items():
        what = f"{where} is in mode {snapshot.modes[where]}: koordgate lets pass {counted(number, 'request')} there"
        todo = "name a namespace in mode enforce with --try-in, once there is one, to see what becomes of such Pods"
        yield unknown(f"{what} that it would change or refuse in mode enforce", todo)


def _passes(outcome: TrialOutcome, scheduler: str) -> bool:
    """Whether that came through unchanged which koordgate changes or refuses where it enforces."""
    if outcome.trial.expect is Expect.REFUSED:
        return outcome.came in {Came.STORED, Came.NOT_THERE}  # no Binding is about a Pod that exists
    translating = outcome.trial.expect is Expect.TRANSLATED
    return translating and outcome.came is Came.STORED and not translated_by(outcome.body, scheduler)


def _judge(outcome: TrialOutcome, scheduler: str) -> Finding:
    trial, came = outcome.trial, outcome.came
    about = f"{trial.about} ({trial.namespace})"
    message = _short(outcome.message)
    if came is Came.NO_RIGHT:
        todo = "run this as a user who may create Pods and pods/binding there, and impersonate the scheduler"
        return unknown(f"{about}: not tried: {message}", todo)
    if came is Came.NO_ANSWER:
        return unknown(f"{about}: {message}", "run the command again")
    if came is Came.WEBHOOK_FAILED:
        ours = "koordgate.io" in outcome.message
        todo = _cause(outcome.message) if ours else "that webhook is not koordgate's: look at its product"
        return failure(f"{about}: {message}", todo)
    if trial.expect is Expect.ANSWERED:  # what webhooks say about something that does not exist is no matter
        return ok(f"{about}: the webhooks answer")
    if trial.expect is Expect.REFUSED and came is not Came.REFUSED:
        return failure(f"{about}: it is accepted", "restore the policies and the webhook configurations: helm upgrade")
    return _refused(outcome, about) if came is not Came.STORED else _stored(outcome, about, scheduler)


def _refused(outcome: TrialOutcome, about: str) -> Finding:
    """Judge what would not be stored, by who refuses it."""
    expect, message = outcome.trial.expect, outcome.message
    if expect is Expect.REFUSED and any(word in message for word in outcome.trial.by):
        return ok(f"{about}: it is refused")
    if expect is Expect.TRANSLATED and outcome.came is Came.REFUSED and _UNSEEN in message:
        todo = "restore the mutating webhook configuration: helm upgrade; or see which webhook changes the Pod after it"
        return failure(f"{about}: koordgate's validating webhook refuses it, because it is not translated", todo)
    exempt = expect is Expect.UNTOUCHED
    todo = (
        "nothing, if these Pods are to be left alone"
        if exempt
        else "name a namespace with --try-in in which such Pods are admitted"
    )
    return unknown(f"{about}: something else refuses it: {_short(message)}", todo)


def _stored(outcome: TrialOutcome, about: str, scheduler: str) -> Finding:
    if outcome.trial.expect is Expect.TRANSLATED:
        if translated_by(outcome.body, scheduler):
            return ok(f"{about}: it is sent to {scheduler}")
        todo = (
            "see that the webhook configurations exist and match the namespace (exemptNamespaces, dialects), and that "
            "its mode is enforce (label koordgate.io/mode)"
        )
        return failure(f"{about}: koordgate leaves it alone", todo)
    if untouched(outcome.body, scheduler):
        return ok(f"{about}: it is left alone")
    todo = "restore the namespaceSelector and matchConditions of the webhook configurations: helm upgrade"
    return failure(f"{about}: koordgate changes it", todo)


def _cause(message: str) -> str:
    return next((todo for words, todo in _CAUSES if words in message), _SEE_LOG)


def _short(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 4]} ..."


_POLICIES: Final = (
    "koordgate-allocations",
    "koordgate-bindings",
    "koordgate-modes",
    "koordgate-preset-node",
    "koordgate-visible-devices",
)
_PEER_RESULTS: Final = "koordgate-peer-results"  # where other products' Pods count, or are imitated


def enforced(snapshot: Snapshot) -> Iterator[Finding]:
    """The actions of the chart's policies."""
    installed, bindings = snapshot.of("policies").names, snapshot.of("policyBindings").items
    peers = bool(snapshot.settings.adopt.peers or snapshot.settings.mirror)
    denied: list[str] = []
    for name in (*_POLICIES, _PEER_RESULTS) if peers else _POLICIES:
        found = [
            one["spec"].get("validationActions") or []
            for one in bindings
            if one["spec"].get("policyName") == name and enforcing(one)
        ]
        if name not in installed or not found:
            todo = f"set policies.{_value(name)}.action, unless you turned it off on purpose"
            yield warning(f"the policy {name} is not installed", todo)
        elif "Deny" not in found[0]:
            todo = f"set policies.{_value(name)}.action: Deny once no Pod of your own is warned about"
            yield warning(f"the policy {name} refuses nothing ({', '.join(found[0])})", todo)
        else:
            denied.append(name)
    if denied:
        yield ok(f"the API server itself refuses what these policies name: {listed(denied)}")


def _value(name: str) -> str:
    """The chart's value of a policy: koordgate-preset-node -> presetNode."""
    first, *more = name.removeprefix("koordgate-").split("-")
    return first + "".join(word.capitalize() for word in more)


def cpusets(snapshot: Snapshot) -> Iterator[Finding]:
    """Whether the reporter writes cpusets."""
    if (snapshot.reporter.get("cpus") or {}).get("enforce") is False:
        yield warning("cpusets are not written", "set reporter.cpus.enforce: true, or let koordlet write them")
    else:
        yield ok("the reporter writes cpusets")


def agreement(snapshot: Snapshot) -> Iterator[Finding]:
    """What reporters saw of the Pods of their nodes; a Pod of which nothing was seen is not among them."""
    if (snapshot.reporter.get("proof") or {}).get("enabled") is False:
        todo = "set reporter.proof.enabled: true"
        yield unknown("Pods are not compared with their allocations", todo)
        return
    agree, wrong, unread = 0, [], []
    for device in snapshot.of("devices").items:
        text = device["metadata"]["annotations"].get(AGREEMENT)
        if text is None:
            continue
        rows = _rows(text)
        if rows is None:
            unread.append(device["metadata"]["name"])
            continue
        for row in rows:
            agree += row.get("agrees") is True
            if row.get("agrees") is False:
                wrong.append(str(row.get("pod", "?")))
    if unread:
        yield warning(f"annotation {AGREEMENT} cannot be read on {listed(unread)}", "see the reporters' logs")
    if wrong:
        todo = "see the Events AllocationMismatch on these Pods"
        yield failure(f"Pods with other devices or CPUs than allocated ({len(wrong)}): {listed(wrong)}", todo)
    elif agree:
        yield ok(f"Pods with what was allocated to them, as far as reporters see it: {agree}")


def memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Whether containers are kept to their memory of cards, as far as that was decided."""
    kept, injected, missing, over = 0, 0, set(), set()
    for device in snapshot.of("devices").items:
        uses, _ = read_uses(device["metadata"]["annotations"].get(MEMORY_LIMITS))
        for use in uses:
            kept += use.keeping is Keeping.ENFORCED
            injected += use.keeping is Keeping.INJECTED
            if use.keeping is Keeping.MISSING:
                missing.add(f"{use.namespace}/{use.pod}")
            if use.exceeds:
                over.add(f"{use.namespace}/{use.pod}")
    if missing:
        todo = "see the Events LimitMissing on these Pods"
        yield failure(
            f"Pods not kept to their memory of cards ({len(missing)}): {listed(sorted(missing))}",
            todo,
        )
    if kept and not missing:
        yield ok(f"containers that the driver keeps to their memory of cards: {kept}")
    if injected:
        yield ok(f"containers started with what keeps well-behaved programs to their part of a card: {injected}")
    if over:
        todo = "see the Events ShareExceeded on these Pods; memory limits keep them to what they hold"
        yield warning(f"Pods that use more memory of cards than they hold ({len(over)}): {listed(sorted(over))}", todo)


def _rows(text: str) -> list[dict[str, Any]] | None:
    try:
        rows = as_object(parse_json(text, MAX_OF_NODE))
    except UNREADABLE:
        return None
    return [row for row in rows.values() if isinstance(row, dict)]


@dataclass(frozen=True, slots=True)
class OtherProduct:
    """Another product."""

    title: str  # as people name it
    images: tuple[str, ...]  # parts of the names of its images
    webhooks: tuple[str, ...] = ()  # parts of the names of its webhooks that change Pods
    writer: bool = False  # its DaemonSet writes Device objects
    todo: str = ""  # what to do where it runs beside koordgate


_ONE_PER_NODE: Final = "let each node be given by one product: label nodes, and set both products' nodeSelector"
PRODUCTS: Final = (
    OtherProduct(
        "NVIDIA's device plugin",
        ("nvidia/k8s-device-plugin", "nvidia-device-plugin"),
        todo="keep it off koordgate's nodes: label nvidia.com/gpu.deploy.device-plugin=false, or devicePlugin.enabled",
    ),
    OtherProduct(
        "HAMi",
        ("projecthami/hami", "4pdosc/k8s-vdevice", "hami-device-plugin"),
        ("vgpu.hami.io",),
        todo=_ONE_PER_NODE,
    ),
    OtherProduct(
        "Volcano's vGPU device plugin",
        ("volcano-vgpu-device-plugin", "volcanosh/volcano-device-plugin"),
        todo=_ONE_PER_NODE,
    ),
    OtherProduct("Volcano", ("volcanosh/vc-scheduler",), ("mutatepod.volcano.sh",), todo=_ONE_PER_NODE),
    OtherProduct("Alibaba Cloud gpushare", ("gpushare-device-plugin", "k8s-gpushare-plugin"), todo=_ONE_PER_NODE),
    OtherProduct("Tencent gpu-manager", ("tkestack/gpu-manager",), todo=_ONE_PER_NODE),
    OtherProduct("KAI Scheduler", ("kai-scheduler/binder",), ("kai-admission", "binder.run.ai"), todo=_ONE_PER_NODE),
    OtherProduct(
        "Koordinator's koordlet",
        ("koordlet",),
        writer=True,
        todo="let only one of the two report: reporter.enabled=false, or turn off koordlet's Devices and NodeTopology",
    ),
    OtherProduct(
        "Koordinator's koord-manager",
        ("koord-manager",),
        ("koordinator.sh",),
        todo="turn off its Pod webhooks for device resources (feature gates), or koordgate's namespaces",
    ),
)


def clashes(snapshot: Snapshot) -> Iterator[Finding]:
    """Look for other products by their images and webhooks, and for nodes that two products give."""
    sets, runs, hooks = (snapshot.of(key) for key in ("daemonsets", "deployments", "mutating"))
    names = [one["name"] for read in hooks.items for one in read["webhooks"]]
    met = False
    for product in PRODUCTS:
        agents = [_name(one) for one in sets.items if _runs(one, product)]
        others = [_name(one) for one in runs.items if _runs(one, product)]
        entries = [name for name in names if any(part in name for part in product.webhooks)]
        entries = [name for name in entries if not name.endswith(".koordgate.io")]
        if not (agents or others or entries):
            continue
        met = True
        where = listed([*agents, *others, *(f"webhook {name}" for name in entries)])
        yield _clash(snapshot, product, agents, where)
    if not met and not any(read.error for read in (sets, runs, hooks)):
        yield ok(f"none of {len(PRODUCTS)} known products runs here")


def _clash(snapshot: Snapshot, product: OtherProduct, agents: list[str], where: str) -> Finding:
    what = f"{product.title} runs: {where}"
    if product.writer and agents and snapshot.reporter:
        return failure(f"{what}; two writers of Device objects overwrite each other", product.todo)
    if product.writer and agents:
        return ok(f"{what}; koordgate reads its objects")
    return warning(what, product.todo)


def _runs(workload: Mapping[str, Any], product: OtherProduct) -> bool:
    """By the image's name without its tag: a registry's port has a colon too."""
    return any(part in image for image in workload["images"] for part in product.images)


def _name(workload: Mapping[str, Any]) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"


def given_twice(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes whose cards a device plugin offers and our reporter lists."""
    devices, nodes = snapshot.of("devices").items, snapshot.of("nodes").items
    ours = {one["metadata"]["name"] for one in devices if REPORTER_MANAGER in one["managers"] and _has_gpu(one)}
    offered = {one["metadata"]["name"] for one in nodes if _plugin_offers(one)}
    both = sorted(ours & offered)
    if both:
        todo = f"turn off the device plugin there; {REPORTER} holds what it gave to Pods until these end"
        what = f"a device plugin offers {NVIDIA_GPU} on {counted(len(both), 'node')} of koordgate's: {listed(both)}"
        yield warning(what, todo)
    elif ours:
        yield ok(
            f"no device plugin offers {NVIDIA_GPU} on the {counted(len(ours), 'node')} whose cards koordgate gives",
        )


def _plugin_offers(node: Mapping[str, Any]) -> bool:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return bool(allocatable.get(NVIDIA_GPU, "0") != "0")


def _has_gpu(device: Mapping[str, Any]) -> bool:
    return any(one.get("type") == TYPE_GPU for one in (device.get("spec") or {}).get("devices") or ())


_MAX_TOLD: Final = 20


def policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Tell which policies name what translation removes."""
    found = snapshot.policies
    if found is None:
        return
    for problem in found.problems[:_MAX_TOLD]:
        yield unknown(problem, "run this as a user who may list policies, or search it yourself")
    gone = removed(types_of(snapshot.settings), snapshot.settings.domain)
    for one in found.outdated[:_MAX_TOLD]:
        yield warning(what(one), cure(one.names, gone))
    if len(found.outdated) > _MAX_TOLD:
        yield warning(f"policies like these: {len(found.outdated)}", "koordgate adopt check -o json names all")
    if not (found.outdated or found.problems):
        yield ok(f"policies that were searched and name nothing that translation removes: {found.searched}")


def quotas(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare the quotas that name devices with their mirrors."""
    covered, open_ = _compared(snapshot.of("quotas").items, snapshot.settings)
    if open_ and not snapshot.settings.quota.enabled:
        what = f"quotas that name devices and count no translated Pod ({len(open_)}): {listed(open_)}"
        yield warning(what, "set quota.enabled: true (docs/use/quotas.md)")
    elif open_:
        what = f"quotas that name devices and have no right mirror ({len(open_)}): {listed(open_)}"
        yield failure(what, "see Events on the quotas: the mirror's name is taken, or an amount cannot be read")
    elif covered:
        yield ok(f"all quotas that name devices have their mirrors ({covered})")
    else:
        yield ok("no quota names a resource that translation removes")


def _serves(mirror: Quota, quota: Quota, limits: Mapping[str, int]) -> bool:
    """Whether a mirror limits what it should; its limits are less by what Pods hold that are older than the quota."""
    try:
        less = {name: min(most, to_int(mirror.hard.get(f"requests.{name}", "0"))) for name, most in limits.items()}
    except QuantityError:
        return False
    return is_right(mirror, quota, less)


def _compared(items: Iterable[Mapping[str, Any]], settings: WebhookSettings) -> tuple[int, list[str]]:
    """Count the quotas that have a right mirror, and name those that need one and have none."""
    types = types_of(settings)
    written = written_names(types, settings.domain)
    exempt = {*settings.quota.exempt_namespaces, "kube-system", settings.identity.namespace}
    quotas = [quota for obj in items if (quota := read_quota(obj, types)) is not None]
    known = {(one.namespace, one.name): one for one in quotas if one.namespace not in exempt}
    covered, open_ = 0, []
    for quota in known.values():
        mirror = known.get((quota.namespace, mirror_name(quota.name)))
        try:
            limits = {} if quota.mirror else mirrored(quota, types, written)
        except QuantityError:
            open_.append(f"{quota.namespace}/{quota.name}")
            continue
        if limits and settings.quota.enabled and mirror is not None and _serves(mirror, quota, limits):
            covered += 1
        elif limits:
            open_.append(f"{quota.namespace}/{quota.name}")
    return covered, open_
