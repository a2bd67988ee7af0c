"""The annotations by which other products' Pods choose among cards: placed so, told in refusals, and kept."""

from collections.abc import Mapping
from typing import Any

import pytest
from builders import GIB, container, gpu, node, pod
from dialects.rows import types

from allocator.place import Placement, place
from allocator.request.original import read_asks
from allocator.request.pod import asks_by_metadata
from allocator.vocabulary.asks import Scope
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.names import DIALECT, KUBERNETES_DOMAIN
from webhook import patch
from webhook.admission.translate import TranslationPolicy, translate
from webhook.settings import DialectSettings, WebhookSettings, types_of

MODELS = ["A100-SXM4-80GB", "Tesla-V100-PCIE-32GB", "T4", ""]
CARDS = [gpu(minor, model=model) for minor, model in enumerate(MODELS)]
IDS = [card.id for card in CARDS]
HAMI, VOLCANO = types("hami"), types("volcano")
H, V = "nvidia.com/", "volcano.sh/vgpu-"
ASKS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
VASKS = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1000"}

# Annotations -> the cards that Pods are placed on (HAMi's pkg/device/devices_test.go: TestCheckType, TestCheckUUID)
HAMIS: dict[str, tuple[Mapping[str, str], list[int]]] = {
    "nothing": ({}, [0, 1, 2, 3]),
    "one type": ({f"{H}use-gputype": "A100"}, [0]),
    "small letters": ({f"{H}use-gputype": "a100"}, [0]),
    "either type": ({f"{H}use-gputype": "A100,T4"}, [0, 2]),
    "with the vendor": ({f"{H}use-gputype": "NVIDIA-A100"}, [0]),
    "with the vendor twice": ({f"{H}use-gputype": "NVIDIA-NVIDIA A100"}, [0]),
    "with blanks": ({f"{H}use-gputype": "Tesla V100"}, [1]),
    "the vendor alone": ({f"{H}use-gputype": "NVIDIA"}, [0, 1, 2, 3]),
    "an empty list": ({f"{H}use-gputype": ""}, [0, 1, 2, 3]),
    "blanks only": ({f"{H}use-gputype": "  "}, [0, 1, 2, 3]),
    "a comma at the end": ({f"{H}use-gputype": "T4,"}, [2]),
    "not a type": ({f"{H}nouse-gputype": "A100"}, [1, 2, 3]),
    "not a type, a comma first": ({f"{H}nouse-gputype": ",A100"}, [1, 2, 3]),
    "not an empty type": ({f"{H}nouse-gputype": ""}, [0, 1, 2, 3]),
    "a type and not another": ({f"{H}use-gputype": "100", f"{H}nouse-gputype": "V100"}, [0]),
    "a card": ({f"{H}use-gpuuuid": IDS[3]}, [3]),
    "cards, with blanks": ({f"{H}use-gpuuuid": f" {IDS[3]} , {IDS[1]} "}, [1, 3]),
    "part of an id is none": ({f"{H}use-gpuuuid": IDS[3][:-1]}, []),
    "not a card": ({f"{H}nouse-gpuuuid": IDS[0]}, [1, 2, 3]),
    "a card and not the same": ({f"{H}use-gpuuuid": f"{IDS[0]},{IDS[1]}", f"{H}nouse-gpuuuid": IDS[0]}, [1]),
    "an empty list of cards": ({f"{H}use-gpuuuid": " "}, [0, 1, 2, 3]),
    "a card of a type": ({f"{H}use-gpuuuid": f"{IDS[0]},{IDS[2]}", f"{H}use-gputype": "T4"}, [2]),
}
VOLCANOS: dict[str, tuple[Mapping[str, str], list[int]]] = {
    "a type": ({f"{H}use-gputype": "V100"}, [1]),
    "with a type, the others are not read": ({f"{H}use-gputype": "100", f"{H}nouse-gputype": "V100"}, [0, 1]),
    "not a type": ({f"{H}nouse-gputype": "T4"}, [0, 1, 3]),
    "a card": ({f"{V}use-gpuuuid": f"{IDS[2]}, "}, [2]),
    "not a card": ({f"{V}nouse-gpuuuid": f"{IDS[2]},{IDS[3]}"}, [0, 1]),
    "HAMi's list of cards is not read": ({f"{H}use-gpuuuid": IDS[0]}, [0, 1, 2, 3]),
}


def found(obj: Any, table: DeviceTypes) -> list[int]:
    """The cards on which so many Pods like this are placed that none has room for one more alone."""
    request = read_asks(obj, table).request
    return [card.minor for card in CARDS if isinstance(place(request, node(card)), Placement)]


@pytest.mark.parametrize(("annotations", "cards"), HAMIS.values(), ids=HAMIS)
def test_hamis_annotations_select_cards(annotations: Mapping[str, str], cards: list[int]) -> None:
    obj = pod(container("a", limits=ASKS), annotations=annotations)
    assert found(obj, HAMI) == cards
    policy = TranslationPolicy(KUBERNETES_DOMAIN, HAMI)
    done = patch.apply(obj, translate(obj, policy, 80 * GIB).operations)
    assert found(done, HAMI) == found(done, BUILT_IN) == cards  # also once the dialect is off


@pytest.mark.parametrize(("annotations", "cards"), VOLCANOS.values(), ids=VOLCANOS)
def test_volcanos_annotations_select_cards(annotations: Mapping[str, str], cards: list[int]) -> None:
    obj = pod(container("a", limits=VASKS), annotations=annotations)
    assert found(obj, VOLCANO) == cards
    both = types_of(WebhookSettings(dialects={n: DialectSettings(enabled=True) for n in ("hami", "volcano")}))
    assert found(obj, both) == cards  # a Pod in Volcano's names follows Volcano's rules


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": "1"}, {"koordinator.sh/gpu": "50"}], ids=str)
def test_whole_cards_are_selected_too_and_only_where_the_dialect_is_on(limits: Mapping[str, str]) -> None:
    obj = pod(container("a", limits=limits), annotations={f"{H}use-gputype": "A100"})
    assert found(obj, HAMI) == [0]
    assert found(obj, BUILT_IN) == [0, 1, 2, 3]
    policy = TranslationPolicy(KUBERNETES_DOMAIN, HAMI)
    done = patch.apply(obj, translate(obj, policy, None).operations)
    assert done["metadata"]["annotations"][DIALECT] == "hami; memory unit 1Mi"
    assert found(done, BUILT_IN) == [0]


def test_a_refusal_counts_the_cards_that_are_not_selected() -> None:
    obj = pod(container("a", limits=ASKS), annotations={f"{H}use-gputype": "H100"})
    refusal = place(read_asks(obj, HAMI).request, node(*CARDS))
    assert not isinstance(refusal, Placement)
    assert "0 of 4 GPUs (4 not selected) can hold it" in refusal.message
    assert not refusal.permanent


def test_a_numa_node_is_a_scope_and_a_hint_of_the_pod_counts_more() -> None:
    def scope(**annotations: str) -> Scope | None:
        made = pod(container("a", limits=ASKS), annotations={f"{H}numa-bind": "true", **annotations})
        hint = read_asks(made, HAMI).request.wishes.hint("gpu")
        return hint.scope if hint else None

    hint = "scheduling.koordinator.sh/device-allocate-hint"
    assert scope() is Scope.NUMA_NODE
    assert scope(**{f"{H}numa-bind": "false"}) is None
    assert scope(**{f"{H}numa-bind": "perhaps"}) is None
    assert scope(**{hint: '{"gpu":{"requiredTopologyScope":"PCIe"}}'}) is Scope.PCIE


def test_a_selection_that_is_too_long_is_refused() -> None:
    for text in (",".join(map(str, range(65))), "x" * 9000):
        obj = pod(container("a", limits=ASKS), annotations={f"{H}use-gpuuuid": text})
        assert "must be a list of at most 64 values" in str(read_asks(obj, HAMI).problems[0])


def test_selections_may_change_while_a_pod_waits() -> None:
    plain = pod(container("a", limits=ASKS), annotations={"example.com/x": "y"})
    chosen = pod(container("a", limits=ASKS), annotations={f"{H}use-gputype": "A100"})
    assert not asks_by_metadata(plain, HAMI)
    assert asks_by_metadata(chosen, HAMI)
    assert asks_by_metadata(chosen, BUILT_IN)  # of a Pod that was translated while the dialect was on
