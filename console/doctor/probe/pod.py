"""The Pod of a probe: the least of a card, on one node, and a command that writes down which cards it sees (pure)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.vocabulary.names import GPU_MEMORY_RATIO, KUBERNETES_DOMAIN
from webhook.trialpod import CONTAINER, trial_pod

Raw = dict[str, Any]

NAME: Final = "koordgate-probe"
RUN: Final = "koordgate.io/probe"
"""The label by which the Pods of one run are known."""
SHELL: Final = "/bin/sh"
LONGEST: Final = 4096  # characters of a container's message, as the kubelet cuts it
_LEAST: Final = {f"{KUBERNETES_DOMAIN}/{GPU_MEMORY_RATIO}": "1"}  # memory alone: a card whose compute is all taken does
_BEGIN, _MIDDLE, _END = "koordgate-probe-begin", "koordgate-probe-devices", "koordgate-probe-end"
# What busybox has suffices. `ls -ln` has the minor number in its sixth word; the message holds 4096 characters.
_SCRIPT: Final = f"""\
{{
echo {_BEGIN}
if command -v nvidia-smi >/dev/null 2>&1; then timeout 30 nvidia-smi -L 2>&1 | head -c 2000; echo; fi
echo {_MIDDLE}
for one in /dev/nvidia[0-9]*; do
  [ -c "$one" ] || continue
  set -- $(ls -ln "$one")
  echo "$one $6"
done
echo {_END}
}} >/dev/termination-log
cat /dev/termination-log
"""
_NODE: Final = re.compile(r"/dev/nvidia\d{1,9} (\d{1,9})")
_CARD: Final = re.compile(r"GPU \d+: .*\(UUID: (GPU-[0-9A-Za-z-]{1,64})\)")


def probe_pod(name: str, node: Mapping[str, Any], image: str, run: str, seconds: float) -> Raw:
    """Write the Pod that probes a node.

    Args:
        name: of the Pod.
        node: what is kept of the Node: its name and its taints, which the Pod tolerates.
        image: with a shell.
        run: the value of its label `RUN`.
        seconds: after which the kubelet ends it, though nobody may be left who would delete it.
    """
    made = trial_pod(
        NAME,
        _LEAST,
        labels={"app.kubernetes.io/name": NAME, RUN: run},
        restartPolicy="Never",
        activeDeadlineSeconds=max(1, int(seconds)),
        terminationGracePeriodSeconds=1,
        enableServiceLinks=False,
        tolerations=list(_tolerations(node["taints"])),
        affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _only(node["metadata"]["name"])}},
    )
    del made["metadata"]["generateName"]
    made["metadata"]["name"] = name
    made["spec"]["containers"][0] |= {"image": image, "command": [SHELL, "-c", _SCRIPT]}
    return made


def _only(node: str) -> Raw:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {"nodeSelectorTerms": terms}


def _tolerations(taints: Iterable[Mapping[str, Any]]) -> Iterable[Raw]:
    for one in taints:
        yield {"key": one.get("key", ""), "operator": "Exists", "effect": one.get("effect", "")}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a container saw.

    Attributes:
        minors: the minor numbers of the cards' device nodes, in order.
        uuids: of the cards that nvidia-smi lists; none where the image has no nvidia-smi that works.
    """

    minors: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()


def read_seen(message: str) -> Seen | None:
    """Read what the command wrote; None if it did not run to its end."""
    lines = message[:LONGEST].splitlines()
    if _MIDDLE not in lines or lines[-1:] != [_END]:
        return None
    middle = lines.index(_MIDDLE)
    minors = {int(found[1]) for line in lines[middle:] if (found := _NODE.fullmatch(line))}
    uuids = {found[1] for line in lines[:middle] if (found := _CARD.match(line))}
    return Seen(tuple(sorted(minors)), tuple(sorted(uuids)))


def container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of the Pod's only container; empty while the kubelet has written none."""
    listed = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((one for one in listed if one.get("name") == CONTAINER), {})
