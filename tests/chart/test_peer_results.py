"""The policy about other products' results names what the product reads of them; tests/controlplane tries it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from allocator.vocabulary import adopted
from allocator.vocabulary.adopted import Product
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from localplane.admin import JsonObject
from localplane.chart import find

Render = Callable[..., list[JsonObject]]
NAME = "koordgate-peer-results"
WRITER = "system:serviceaccount:kube-system:hami-scheduler"
REQUESTS = {"gpu-fraction", "gpu-memory", "scheduling.koordinator.sh/device-allocated"}  # nobody's result
KEYS = {
    Product.HAMI: {adopted.HAMI_ALLOCATED},
    Product.VOLCANO: {adopted.VOLCANO_VGPU, adopted.VOLCANO_INDEX},
    Product.GPUSHARE: {adopted.GPUSHARE_IDX, adopted.GPUSHARE_POD, adopted.GPUSHARE_DEV},
    Product.KAI: {adopted.KAI_RESERVED},
}


class Recorded(dict[str, str]):
    """Annotations that remember which of them were asked for."""

    asked: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def read_of(product: Product) -> set[str]:
    """The annotations that are read of a product's Pods."""
    resources = ("volcano.sh/gpu-memory", "aliyun.com/gpu-mem")
    asked: set[str] = set()
    for namespace in ("team", "reserved"):
        annotations = Recorded({adopted.VOLCANO_INDEX: "0", adopted.GPUSHARE_IDX: "0"})
        annotations.asked = asked
        labels = {adopted.KAI_GROUP: "g"}
        metadata = {"uid": "u", "name": "p", "namespace": namespace, "labels": labels, "annotations": annotations}
        limits = {"resources": {"limits": dict.fromkeys(resources, "1")}}
        pod = {"metadata": metadata, "spec": {"nodeName": "n", "containers": [limits]}}
        read_foreign_pod(pod, Adoption(frozenset({product}), reservations=frozenset({"reserved"})))
    return asked - REQUESTS


def guarded(objects: list[JsonObject]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = find(objects, "ValidatingAdmissionPolicy", NAME)["spec"]
    return spec


def keys_of(spec: Mapping[str, Any]) -> set[str]:
    text: str = spec["validations"][0]["expression"]
    return set(text[text.index("[") + 1 : text.index("]")].replace("'", "").split(", "))


def rules(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for rule in spec["matchConstraints"]["resourceRules"]:
        yield from ((operation, name) for operation in rule["operations"] for name in rule["resources"])


@pytest.mark.parametrize("product", Product)
def test_every_annotation_that_is_read_of_a_product_is_guarded_and_no_other(render: Render, product: Product) -> None:
    spec = guarded(render({"adopt": {"peers": [product.value]}}))
    assert keys_of(spec) == KEYS[product] == read_of(product)
    about_labels = [one["expression"] for one in spec["validations"][1:]]
    assert [adopted.KAI_GROUP in one for one in about_labels] == ([True] if product is Product.KAI else [])


def test_without_products_there_is_no_policy(render: Render, objects: list[JsonObject]) -> None:
    policies: list[JsonObject] = [
        *objects,
        *render({"adopt": {"peers": ["hami"]}, "policies": {"peerResults": {"action": "off"}}}),
    ]
    assert NAME not in {one["metadata"]["name"] for one in policies}


def test_what_is_only_mirrored_is_guarded_too(render: Render) -> None:
    assert keys_of(guarded(render({"mirror": ["hami"]}))) == KEYS[Product.HAMI]


def test_updates_and_bindings_are_guarded_once_the_writers_are_known(render: Render) -> None:
    without = guarded(render({"adopt": {"peers": ["hami"]}}))
    with_writers = guarded(render({"adopt": {"peers": ["hami"], "writers": [WRITER]}}))
    assert list(rules(without)) == [("CREATE", "pods")]
    assert "matchConditions" not in without
    assert set(rules(with_writers)) == {
        ("CREATE", "pods"),
        ("UPDATE", "pods"),
        ("UPDATE", "pods/status"),
        ("CREATE", "bindings"),
        ("CREATE", "pods/binding"),
    }
    assert f'["{WRITER}"]' in with_writers["matchConditions"][0]["expression"]
