"""Whether a workload selects the Pods that it creates, in the words of the API server (pure).

The source is Kubernetes: pkg/apis/apps/validation, pkg/apis/batch/validation and ValidatePodTemplateSpecForRC of
pkg/apis/core/validation. An object for which this finds something cannot be created.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from webhook.view.nodeselection import label_selects

Raw = Mapping[str, Any]
_NAMED: Final = {"Deployment": "deployment", "ReplicaSet": "deployment", "StatefulSet": "statefulset"}
"""How the API server names a kind whose selector is empty: a ReplicaSet's message is a Deployment's there too."""

_GENERATED: Final = frozenset({"controller-uid", "batch.kubernetes.io/controller-uid"})
_JOB_NAMES: Final = ("job-name", "batch.kubernetes.io/job-name")
_WITH_VALUES: Final = frozenset({"In", "NotIn"})
_WITHOUT: Final = frozenset({"Exists", "DoesNotExist"})
_UNMATCHED: Final = "`selector` does not match template `labels`"


def wrong_selector(kind: str, obj: Raw) -> str:
    """Why the API server refuses the selector of one of Kubernetes' own workloads; "" if it does not.

    Args:
        kind: of the object; one without a selector has nothing wrong.
        obj: of a shape that the API server accepts.
    """
    find = {
        **dict.fromkeys((*_NAMED, "DaemonSet"), _of_set),
        "ReplicationController": _of_controller,
        "Job": _of_job,
        "CronJob": _of_cron_job,
    }.get(kind)
    return "; ".join(find(kind, obj)) if find is not None else ""


def _of_set(kind: str, obj: Raw) -> Iterator[str]:
    spec = obj["spec"]
    selector = spec.get("selector")
    if selector is None:
        yield "spec.selector: Required value"
        return
    wrong = list(_wrong_requirements(selector))
    yield from wrong
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        about = _NAMED.get(kind, kind.lower())
        yield f"spec.selector: Invalid value: {_json(selector)}: empty selector is invalid for {about}"
    elif not wrong:
        yield from _unmatched(selector, _labels(spec["template"]))


def _of_controller(_kind: str, obj: Raw) -> Iterator[str]:
    """A ReplicationController selects by labels alone, and by those of its template where it states none."""
    spec = obj["spec"]
    labels = _labels(spec["template"])
    selector = spec.get("selector") or labels
    if not selector:
        yield "spec.selector: Required value"
        return
    yield from _unmatched({"matchLabels": selector}, labels)


def _of_job(_kind: str, obj: Raw) -> Iterator[str]:
    """A Job's selector and the labels that it matches are generated, unless `manualSelector` is set."""
    spec = obj["spec"]
    selector, labels = spec.get("selector") or {}, _labels(spec["template"])
    wrong = list(_wrong_requirements(selector))
    yield from wrong
    if wrong:
        return
    if spec.get("manualSelector"):
        if spec.get("selector") is None:
            yield "spec.selector: Required value"
        else:
            yield from _unmatched(selector, labels)
        return
    exact = selector.get("matchLabels") or {}
    generated = {key: exact.get(key, "") for key in _GENERATED} | dict.fromkeys(_JOB_NAMES, obj["metadata"]["name"])
    yield from _unmatched(selector, {**generated, **labels}, labels)


def _of_cron_job(_kind: str, obj: Raw) -> Iterator[str]:
    spec = obj["spec"]["jobTemplate"]["spec"]
    at = "spec.jobTemplate.spec"
    if spec.get("selector") is not None:
        yield f"{at}.selector: Invalid value: {_json(spec['selector'])}: `selector` will be auto-generated"
    if spec.get("manualSelector"):
        yield f'{at}.manualSelector: Unsupported value: true: supported values: "nil", "false"'


def _wrong_requirements(selector: Raw) -> Iterator[str]:
    for index, one in enumerate(selector.get("matchExpressions") or ()):
        at, operator = f"spec.selector.matchExpressions[{index}]", one["operator"]
        if operator in _WITH_VALUES:
            if not one.get("values"):
                yield f"{at}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
        elif operator in _WITHOUT:
            if one.get("values"):
                yield f"{at}.values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        else:
            yield f'{at}.operator: Invalid value: "{operator}": not a valid selector operator'


def _unmatched(selector: Raw, labels: Mapping[str, str], stated: Mapping[str, str] | None = None) -> Iterator[str]:
    """Say that a selector does not match these labels; `stated` are those to name, if they are others."""
    if not label_selects(selector, labels):
        told = labels if stated is None else stated
        yield f"spec.template.metadata.labels: Invalid value: {_json(told or None)}: {_UNMATCHED}"


def _labels(template: Raw) -> Mapping[str, str]:
    """The labels of a template; of one whose metadata has no such shape none, as that is reported elsewhere."""
    metadata = template.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels if isinstance(labels, dict) else {}


def _json(value: Raw | Sequence[Any] | None) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
