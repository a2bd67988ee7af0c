"""Annotations by which the author of a Pod says that nobody is to evict it."""

import pytest

from allocator.vocabulary.evictions import stays

STAYS: dict[str, tuple[dict[str, str], str]] = {
    "none": ({}, ""),
    "not movable": ({"koordgate.io/movable": "false"}, "koordgate.io/movable: false"),
    "movable": ({"koordgate.io/movable": "true"}, ""),
    "movable, or not, by an empty text": ({"koordgate.io/movable": ""}, ""),
    "not safe": (
        {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        "cluster-autoscaler.kubernetes.io/safe-to-evict: false",
    ),
    "safe": ({"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}, ""),
    "safe, or not, by an empty text": ({"cluster-autoscaler.kubernetes.io/safe-to-evict": ""}, ""),
    "not to be disrupted": ({"karpenter.sh/do-not-disrupt": "true"}, "karpenter.sh/do-not-disrupt: true"),
    "not to be disrupted for a time": ({"karpenter.sh/do-not-disrupt": "30m"}, "karpenter.sh/do-not-disrupt: 30m"),
    "to be disrupted": ({"karpenter.sh/do-not-disrupt": "false"}, ""),
    "not to be evicted": ({"karpenter.sh/do-not-evict": "true"}, "karpenter.sh/do-not-evict: true"),
    "not to be evicted, by an empty text": ({"karpenter.sh/do-not-evict": ""}, "karpenter.sh/do-not-evict: "),
    "to be evicted": ({"karpenter.sh/do-not-evict": "false"}, ""),
    "preferably not, whatever is said": (
        {"descheduler.alpha.kubernetes.io/prefer-no-eviction": "false"},
        "descheduler.alpha.kubernetes.io/prefer-no-eviction: false",
    ),
    "at the highest cost": (
        {"scheduling.koordinator.sh/eviction-cost": "2147483647"},
        "scheduling.koordinator.sh/eviction-cost: 2147483647",
    ),
    "at a lower cost": ({"scheduling.koordinator.sh/eviction-cost": "2147483646"}, ""),
    "at a cost of fewer digits": ({"scheduling.koordinator.sh/eviction-cost": "99"}, ""),
    "the first of two": (
        {"karpenter.sh/do-not-evict": "true", "koordgate.io/movable": "false"},
        "koordgate.io/movable: false",
    ),
}


@pytest.mark.parametrize(("annotations", "told"), STAYS.values(), ids=STAYS)
def test_a_pod_stays_where_its_author_says_so(annotations: dict[str, str], told: str) -> None:
    assert stays(annotations) == told
