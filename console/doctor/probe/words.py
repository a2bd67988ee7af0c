"""What is said of probes: what each outcome means, and what to do about it (pure)."""

from collections.abc import Sequence
from typing import Final

from allocator.vocabulary.delivery import DELIVERY_LABEL, Delivery
from console.doctor.checks.delivery import way_of
from console.doctor.findings import Finding, Level, named_nodes
from console.doctor.probe.outcome import LEFT_ALONE, NO_IMAGE, Outcome, Verdict
from console.doctor.probe.pod import SHELL

AREA: Final = "probe"
_LET_REPORT: Final = "let koordgate's reporter of this version run there, which tells version and mode"
# What the messages of runtimes have, and what to do.
_NOT_CREATED: Final = {
    "management.nvidia.com/gpu=": f"the runtime is in mode cdi, and a bare UUID is no name there: {_LET_REPORT}",
    "unresolvable CDI devices": "no CDI specification there has this name: write it again (nvidia-ctk cdi generate, or "
    "restart NVIDIA's device plugin)",
    "no runtime for": "the node has no runtime handler of this name: configure NVIDIA's runtime there (nvidia-ctk "
    "runtime configure), and restart the container runtime",
    "unknown device": "the runtime does not know the card in this form, as in mode legacy and before NVIDIA Container "
    f"Toolkit 1.15: {_LET_REPORT}",
    "nvidia-container-cli": "run nvidia-smi on the node: its driver does not work, or does not fit the toolkit",
}
_WITHOUT: Final = {
    Delivery.ENVIRONMENT: "the node's default runtime does not heed NVIDIA_VISIBLE_DEVICES: create RuntimeClass nvidia "
    "for NVIDIA's runtime, or turn on NVIDIA's NRI plugin; koordgate's reporter then tells which, or the Node's label "
    f"{DELIVERY_LABEL} states it",
    Delivery.RUNTIME_CLASS: "the handler of that RuntimeClass is not NVIDIA's runtime, or its config.toml has "
    "accept-nvidia-visible-devices-envvar-when-unprivileged = false: correct it, or turn on NVIDIA's NRI plugin",
    Delivery.NVIDIA_NRI: "NVIDIA's NRI plugin is not at work there: see that its Pod runs, and that NRI is enabled in "
    f"the container runtime; or state another way by the Node's label {DELIVERY_LABEL}",
}
_OTHERS: Final = (
    "something else than koordgate shows containers cards there: look for a runtime that is configured to show them to "
    "everybody, for webhooks that make Pods privileged or mount /dev, and for another NRI plugin"
)
_TODO: Final = {
    Verdict.RIGHT: "",
    Verdict.OTHERS: _OTHERS,
    Verdict.NOT_CREATED: "see the logs of kubelet and container runtime there",
    Verdict.NOT_GIVEN: "see which scheduler bound it, and the log of deployment/koordgate",
    Verdict.NOT_PLACED: "if the node is full or reserved, that is no fault; else do what the message says, and probe "
    "again",
    Verdict.NOT_RUN: "see kubectl describe node NAME, and probe again",
}
_SAID: Final = {
    Verdict.RIGHT: (Level.OK, "a container got the card that it was given, and no other, on {}, by {}"),
    Verdict.MISSING: (Level.FAILURE, "a container runs without its card on {}, by {}"),
    Verdict.OTHERS: (Level.FAILURE, "a container sees other cards too on {}, by {}"),
    Verdict.NOT_CREATED: (Level.FAILURE, "a container could not be created on {}, by {}"),
    Verdict.NOT_GIVEN: (Level.FAILURE, "a Pod was bound without a card on {}"),
    Verdict.NOT_PLACED: (Level.UNKNOWN, "no Pod could be placed on {}"),
    Verdict.NOT_RUN: (Level.UNKNOWN, "a Pod did not run on {}"),
}


def cure(one: Outcome) -> str:
    """What to do about an outcome; "" if it is right."""
    way = one.found.way
    known = ""
    if one.verdict is Verdict.MISSING and way.delivery is not None:
        known = _WITHOUT[way.delivery]
    elif one.verdict is Verdict.NOT_CREATED:
        known = next((todo for words, todo in _NOT_CREATED.items() if words in one.why), "")
    elif one.verdict is Verdict.NOT_PLACED and way.delivery is None:
        known = way.why_not.partition(": ")[2]
    elif one.verdict is Verdict.NOT_RUN and LEFT_ALONE in one.why:
        known = "name a namespace that koordgate enforces with --try-in (label koordgate.io/mode; exemptNamespaces)"
    elif one.verdict is Verdict.NOT_RUN and SHELL in one.why:
        known = f"name an image that has {SHELL}, such as busybox"
    elif one.verdict is Verdict.NOT_RUN and any(reason in one.why for reason in NO_IMAGE):
        known = "name an image that the node can pull with the rights of this namespace"
    return known or _TODO[one.verdict]


def findings(outcomes: Sequence[Outcome]) -> list[Finding]:
    """Say what the probes showed, alike ones in one line, with what the first of them said."""
    lines: dict[tuple[Verdict, str, str], list[Outcome]] = {}
    for one in outcomes:
        lines.setdefault((one.verdict, way_of(one.found), cure(one)), []).append(one)
    found = []
    for (verdict, way, todo), alike in lines.items():
        level, text = _SAID[verdict]
        what = text.format(named_nodes([one.node for one in alike]), way)
        found.append(Finding(AREA, level, f"{what}: {alike[0].why}" if alike[0].why else what, todo))
    return found
