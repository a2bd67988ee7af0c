"""The kubelet's configuration: its file (KubeletConfiguration as YAML or JSON), or the answer of its /configz.

Missing fields have the kubelet's defaults. /configz reports what is in force; the file lacks flags and drop-ins (CPU
proposal, "Create/Update NodeResourceTopology"; Koordinator, pkg/koordlet/statesinformer).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson
import yaml

from allocator.quantity import QuantityError, to_milli
from allocator.vocabulary.cputopology import CpusetError, CpuTopology, format_cpuset, members
from allocator.vocabulary.cputopology import parse as parse_cpuset
from allocator.vocabulary.outcome import excerpt
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES
from reporter.files import FileReading
from reporter.kubelet.checkpoint import HALF_CHARACTER, has_half_character


def take_reserved(topology: CpuTopology, count: int, *, spread: bool = False) -> int:
    """Take the CPUs that the kubelet reserves if only their number is configured.

    The order is the kubelet's on a machine with all CPUs free (Kubernetes v1.37, pkg/kubelet/cm/cpumanager,
    takeByTopologyNUMAPacked): whole NUMA nodes and sockets that fit, then whole cores, then single threads beside those
    already taken. On two sockets with 12 CPUs in all, 2 reserved CPUs are 0,6 and 3 are 0,2,6.
    `spread`: as with the kubelet's option distribute-cpus-across-cores: no whole cores first. Returns the set; all CPUs
    if there are fewer.
    """
    # The larger of the two goes first: a NUMA node holds one socket or several, or a socket several NUMA nodes.
    numa_first = len(topology.sockets) >= len(topology.nodes)
    outer, inner = (topology.nodes, topology.sockets) if numa_first else (topology.sockets, topology.nodes)
    free = topology.all
    taken = _whole(_sorted(outer.items(), free), free, count)
    free &= ~taken
    taken |= _whole(_nested(outer, inner, free), free, count - taken.bit_count())
    free &= ~taken
    if spread:
        rest = _nested(outer, inner, free) if numa_first else iter(_sorted(topology.sockets.items(), free))
    else:
        taken |= _whole(_cores(topology, outer, inner, free), free, count - taken.bit_count())
        free &= ~taken
        rest = _cores(topology, outer, inner, free)
    threads = (cpu for group in rest for cpu in members(group & free))
    for cpu in islice(threads, count - taken.bit_count()):
        taken |= 1 << cpu
    return taken


def _whole(groups: Iterable[int], free: int, needed: int) -> int:
    """Take each group that is wholly free and no larger than what is still needed, in the given order."""
    taken = 0
    for group in groups:
        if not group & ~free and group.bit_count() <= needed:
            taken |= group
            needed -= group.bit_count()
    return taken


def _sorted(groups: Iterable[tuple[int, int]], free: int) -> list[int]:
    """Groups that have a free CPU: those with the fewest free CPUs first, then by number."""
    found = [(group & free, number, group) for number, group in groups if group & free]
    return [group for _, _, group in sorted(found, key=lambda item: (item[0].bit_count(), item[1]))]


def _nested(outer: Mapping[int, int], inner: Mapping[int, int], free: int) -> Iterator[int]:
    """The inner groups of each outer one, both in their order."""
    for whole in _sorted(outer.items(), free):
        yield from _sorted([(number, group) for number, group in inner.items() if group & whole & free], free)


def _cores(topology: CpuTopology, outer: Mapping[int, int], inner: Mapping[int, int], free: int) -> Iterator[int]:
    """The cores of each inner group; the kubelet numbers a core by its lowest CPU."""
    for group in _nested(outer, inner, free):
        yield from _sorted([(next(members(core)), core) for core in topology.cores if core & group & free], free)


MAX_BYTES: Final = 256 * 1024
STATIC: Final = "static"
_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
_ACROSS_CORES: Final = "distribute-cpus-across-cores"
_BY_CACHE: Final = "prefer-align-cpus-by-uncorecache"
_KIND: Final = "KubeletConfiguration"
_TOPOLOGY: Final = {"best-effort": "BestEffort", "restricted": "Restricted", "single-numa-node": "SingleNUMANode"}
_SCOPES: Final = {"container": "ContainerLevel", "pod": "PodLevel"}


class ConfigurationError(ValueError):
    """A kubelet configuration that cannot be used; the message names the field and what is wrong."""


@dataclass(frozen=True, slots=True)
class KubeletConfiguration:
    """The fields of a KubeletConfiguration that matter here, with the kubelet's defaults."""

    cpu_policy: str = "none"  # `none` or `static`
    cpu_options: Mapping[str, str] | None = None  # options of the policy, for example `full-pcpus-only` to `true`
    reserved_list: int = 0  # set of the CPUs reserved by number; 0 if none are
    reserved_milli: int = 0  # thousandths of a CPU reserved for the system and for Kubernetes together
    topology_policy: str = "none"  # `none`, `best-effort`, `restricted` or `single-numa-node`
    topology_scope: str = "container"  # `container` or `pod`
    memory_policy: str = "None"  # `None`, `Static` or `BestEffort`
    # `cgroupfs` or `systemd`; empty if none is stated. A kubelet that asks its runtime may use another driver than it
    # states.
    cgroup_driver: str = ""
    cgroup_root: str = "/"  # the cgroup above `kubepods`; `/` or a path

    def option(self, name: str) -> bool:
        """Whether an option of the CPU manager's policy is on."""
        return (self.cpu_options or {}).get(name, "").lower() in {"true", "1", "t"}

    @property
    def topology_policies(self) -> tuple[str, ...]:
        """The NodeResourceTopology's topologyPolicies: None, or a policy with its scope."""
        policy = _TOPOLOGY.get(self.topology_policy)
        return ("None",) if policy is None else (policy + _SCOPES[self.topology_scope],)


def parse(data: bytes) -> KubeletConfiguration:
    """Read a configuration file, or the answer of /configz.

    Raises ConfigurationError: it is not a configuration, or a field that matters here has a wrong value.
    """
    top = _decode(data)
    fields = top.get("kubeletconfig", top)
    if not isinstance(fields, dict):
        raise ConfigurationError("kubeletconfig is not an object")
    kind = fields.get("kind", _KIND)
    if kind != _KIND:
        raise ConfigurationError(f"its kind is {excerpt(kind)!r}, not {_KIND}")
    return KubeletConfiguration(
        cpu_policy=_choice(fields, "cpuManagerPolicy", ("none", STATIC)),
        cpu_options=_texts(fields, "cpuManagerPolicyOptions"),
        reserved_list=_cpus(fields, "reservedSystemCPUs"),
        reserved_milli=_reserved_milli(fields, "systemReserved") + _reserved_milli(fields, "kubeReserved"),
        topology_policy=_choice(fields, "topologyManagerPolicy", ("none", *_TOPOLOGY)),
        topology_scope=_choice(fields, "topologyManagerScope", tuple(_SCOPES)),
        memory_policy=_choice(fields, "memoryManagerPolicy", ("None", "Static", "BestEffort")),
        cgroup_driver=_choice(fields, "cgroupDriver", ("cgroupfs", "systemd"), default=""),
        cgroup_root=_text(fields, "cgroupRoot") or "/",
    )


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of nested aliases could fill the memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it uses an alias (*name); write what it stands for")
        return super().compose_node(parent, index)


def _decode(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{len(data)} bytes; a configuration may have at most {MAX_BYTES}")
    try:
        text = data.decode()
        value = json.loads(text) if text.lstrip().startswith("{") else yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise ConfigurationError("neither YAML nor JSON that can be read: nested too deeply") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:  # the last for odd scalars
        raise ConfigurationError(f"neither YAML nor JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ConfigurationError("not an object")
    if has_half_character(value):
        raise ConfigurationError(HALF_CHARACTER)
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    """A text, or the number or boolean that YAML read in its place."""
    value = fields.get(key)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 2**63:
        return str(value)
    if not isinstance(value, str):
        raise ConfigurationError(f"{excerpt(key)} is not a text")
    return value


def _texts(fields: Mapping[str, Any], key: str) -> dict[str, str]:
    value = fields.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ConfigurationError(f"{key} is not an object of texts")
    return {name: _text(value, name) for name in sorted(value)}


def _choice(fields: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str | None = None) -> str:
    """One of the allowed words; the first is the default unless `default` names another."""
    word = _text(fields, key)
    if not word:
        return choices[0] if default is None else default
    if word not in choices:
        raise ConfigurationError(f"{key} is {excerpt(word)!r}; known are {', '.join(choices)}")
    return word


def _cpus(fields: Mapping[str, Any], key: str) -> int:
    try:
        return parse_cpuset(_text(fields, key))
    except CpusetError as error:
        raise ConfigurationError(f"{key}: {error}") from error


def _reserved_milli(fields: Mapping[str, Any], key: str) -> int:
    cpu = _texts(fields, key).get("cpu")
    try:
        return to_milli(cpu) if cpu else 0
    except QuantityError as error:
        raise ConfigurationError(f"{key}.cpu: {error}") from error


def reserved_cpus(configuration: KubeletConfiguration, topology: CpuTopology) -> tuple[int, str | None]:
    """The CPUs that the kubelet reserves for the system and gives to no container.

    Only the static policy reserves any. A list takes precedence over quantities; for quantities, whole CPUs are taken
    in the kubelet's own order.
    Returns the set, and what is uncertain about it (None if nothing is).
    """
    if configuration.cpu_policy != STATIC:
        return 0, None
    if configuration.reserved_list:
        missing = configuration.reserved_list & ~topology.all
        note = f"reservedSystemCPUs names CPUs {format_cpuset(missing)}, which this machine lacks" if missing else None
        return configuration.reserved_list & topology.all, note
    count = -(-configuration.reserved_milli // 1000)
    cpus = take_reserved(topology, count, spread=configuration.option(_ACROSS_CORES))
    sizes = {node.bit_count() for node in topology.nodes.values()}
    unsure = configuration.option(_ACROSS_NUMA) and (len(sizes) > 1 or count > min(sizes, default=count))
    if count and (unsure or configuration.option(_BY_CACHE)):
        return cpus, (
            f"{count} CPUs are reserved by number, and the kubelet's option {_ACROSS_NUMA if unsure else _BY_CACHE} may"
            f" have taken others than {format_cpuset(cpus)}; state them in reservedSystemCPUs"
        )
    return cpus, None


async def ask_configz(
    kube: KubeClient, node: str, before: KubeletConfiguration | None = None
) -> FileReading[KubeletConfiguration]:
    """Ask a kubelet's /configz.

    `kube`: the open client, with the right to the Node's `proxy`. `before`: its last answer, which is kept if it does
    not answer.
    """
    try:
        answer = await kube.get(NODES.path(node, subresource="proxy") + "/configz")
        return FileReading(parse(orjson.dumps(answer)), None)
    except (KubeError, ConfigurationError) as error:
        return FileReading(before, f"the kubelet's /configz: {error}; its previous answer is kept")
