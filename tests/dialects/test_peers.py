"""What each product's names mean, in figures, and the rules by which its Pods ask."""

from typing import Any

import pytest

from allocator.vocabulary.dialects import Dialect, Term
from webhook.settings import DialectSettings, dialects_on

# Each name: what it states, its units in one of the name, and what else holds of the number.
TERMS: dict[str, dict[str, tuple[object, ...]]] = {
    "hami": {
        "nvidia.com/gpu": ("gpu.shared", 1),
        "nvidia.com/gpumem": ("gpu-memory", 1_048_576, "each", "sized"),
        "nvidia.com/gpumem-percentage": ("gpu-memory-ratio", 1, "each"),
        "nvidia.com/gpucores": ("gpu-core", 1, "each", "clamped"),
        "nvidia.com/priority": ("", 1),
    },
    "volcano": {
        "volcano.sh/vgpu-number": ("gpu.shared", 1),
        "volcano.sh/vgpu-memory": ("gpu-memory", 1_048_576, "each", "sized"),
        "volcano.sh/vgpu-memory-percentage": ("gpu-memory-ratio", 1, "each"),
        "volcano.sh/vgpu-cores": ("gpu-core", 1, "each"),
    },
    "volcano-share": {
        "volcano.sh/gpu-memory": ("gpu-memory", 1_048_576, "sized"),
        "volcano.sh/gpu-number": ("gpu", 1, "counts"),
    },
    "gpushare": {"aliyun.com/gpu-mem": ("gpu-memory", 1_073_741_824, "sized"), "aliyun.com/gpu-count": ("", 1)},
    "kai": {
        "gpu-fraction": ("gpu", 100, "each", "decimal", "below 100"),
        "gpu-memory": ("gpu-memory", 1_048_576, "each", "sized"),
        "gpu-fraction-num-devices": ("gpu.shared", 1),
        "gpu-fraction.limit": ("", 1, "decimal", "limits gpu-memory-ratio", "beside gpu-fraction"),
        "gpu-memory.limit": ("", 1, "quantity", "limits gpu-memory", "beside gpu-memory"),
        "nvidia.com/container.CONTAINER.gpu-memory.request": ("gpu-memory", 1, "each", "quantity"),
        "nvidia.com/container.CONTAINER.gpu-memory.limit": ("", 1, "quantity", "limits gpu-memory"),
        "kai.scheduler/container.CONTAINER.gpu-memory.portion.limit": (
            "",
            1,
            "decimal",
            "limits gpu-memory-ratio",
            "beside gpu-fraction",
        ),
    },
    "tencent": {
        "tencent.com/vcuda-core": ("gpu-core", 1),
        "tencent.com/vcuda-memory": ("gpu-memory", 268_435_456),
    },
    "elastic-gpu": {
        "elasticgpu.io/gpu-core": ("gpu-core", 1),
        "elasticgpu.io/gpu-memory": ("gpu-memory", 16, "sized"),
        "elasticgpu.com/gpu-core": ("gpu-core", 1),
        "elasticgpu.com/gpu-memory": ("gpu-memory", 16, "sized"),
        "tke.cloud.tencent.com/qgpu-core": ("gpu-core", 1),
        "tke.cloud.tencent.com/qgpu-memory": ("gpu-memory", 16, "sized"),
        "nano-gpu/gpu-percent": ("gpu", 1),
    },
    "amd": {"amd.com/gpu": ("gpu", 1, "counts")},
    "dcu": {"dcu.com/gpu": ("gpu", 1, "counts")},
}
# The rules that differ from product to product; what is not named is off, or 0.
RULES: dict[str, dict[str, Any]] = {
    "hami": {"whole": True, "memory": 100, "defaulted": True, "both": "gpu-memory", "vendor": "nvidia"},
    "volcano": {"memory": 100, "both": "gpu-memory-ratio", "vendor": "nvidia"},
    "volcano-share": {"one_device": True, "vendor": "nvidia"},
    "gpushare": {"one_device": True, "vendor": "nvidia"},
    "kai": {},
    "tencent": {"full_core": True, "vendor": "nvidia"},
    "elastic-gpu": {"full_core": True, "vendor": "nvidia"},
    "amd": {"vendor": "amd"},
    "dcu": {"vendor": "hygon"},
}
FLAGS = ("own", "whole", "memory", "size", "core", "defaulted", "one_device", "full_core", "both", "vendor")


def installed(name: str) -> Dialect:
    unit = "16" if name == "elastic-gpu" else ""  # the one that has no default
    ((dialect,), _) = dialects_on({name: DialectSettings(enabled=True, memory_unit=unit)})
    return dialect


def meaning(term: Term) -> tuple[object, ...]:
    flags = [flag for flag in ("counts", "each", "sized", "clamped", "decimal", "quantity") if getattr(term, flag)]
    flags += [f"below {term.below}"] if term.below else []
    flags += [f"limits {term.limits}"] if term.limits else []
    return (term.states, term.factor, *flags, *([f"beside {term.beside}"] if term.beside else []))


@pytest.mark.parametrize("name", TERMS)
def test_a_products_names_mean_these_amounts(name: str) -> None:
    assert {key: meaning(term) for key, term in installed(name).by_name.items()} == TERMS[name]


@pytest.mark.parametrize("name", RULES)
def test_a_products_pods_ask_by_these_rules(name: str) -> None:
    dialect = installed(name)
    assert {flag: value for flag in FLAGS if (value := getattr(dialect, flag))} == RULES[name]
    assert dialect.equal


def test_volcanos_list_of_models_comes_before_that_of_models_to_avoid_and_hamis_beside_it() -> None:
    assert [installed(name).selects.models_first for name in ("volcano", "hami")] == [True, False]
