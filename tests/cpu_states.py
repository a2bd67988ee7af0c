"""The kubelet's CPU manager state file, as the kubelet writes it."""

import json
from collections.abc import Mapping
from typing import Any

from allocator.vocabulary.cputopology import format_cpuset
from reporter.kubelet import cpustate
from reporter.kubelet.checkpoint import checksum
from reporter.kubelet.cpustate import CpuState, StateLayout


def render(state: CpuState) -> bytes:
    """Write the file as the kubelet does, with the checksum that it expects.

    Raises CheckpointError: a name has half a character.
    """
    entries = {
        uid: {name: format_cpuset(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(state.entries.items())
    }
    pods = {uid: {"cpuSet": format_cpuset(cpus)} if cpus else {} for uid, cpus in sorted(state.pods.items())}
    raw = cpustate._Raw(state.policy, format_cpuset(state.default), entries, pods)
    value: dict[str, Any] = {"policyName": raw.policy, "defaultCpuSet": raw.default}
    if entries:
        value["entries"] = entries
    if state.layout is StateLayout.V4:
        baselines = {
            uid: {name: {"baseline": format_cpuset(cpus)} for name, cpus in sorted(containers.items())}
            for uid, containers in sorted(state.baselines.items())
        }
        more = {key: found for key, found in (("podEntries", pods), ("baselines", baselines)) if found}
        text = _json({**value, **more})
        value["checksum"] = checksum(cpustate._show(raw, StateLayout.V2))
        value |= {"data": text, "dataChecksum": cpustate._sum_of_text(text)}
    else:
        if pods:
            value["podEntries"] = pods
        value["checksum"] = checksum(cpustate._show(raw, state.layout))
    return _json(value).encode()


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
