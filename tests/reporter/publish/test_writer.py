"""Objects are applied again after a conflict, four times in all."""

import pytest
from fake_kube import FakeKube, Fault

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, Forbidden
from koordgate.kube.resource import NODES
from reporter.publish.keep import Target, apply

BODY = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}}}


@pytest.mark.parametrize("conflicts", [0, 1, 3])
async def test_after_up_to_three_conflicts_it_is_written(fake: FakeKube, kube: KubeClient, conflicts: int) -> None:
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})
    fake.faults.add("patch", "nodes", *[Fault(status=409)] * conflicts)

    written = await apply(kube, Target(NODES), BODY)

    assert written["metadata"]["labels"] == fake.get(NODES.path("n1"))["metadata"]["labels"] == {"a": "b"}
    by_force = {"fieldManager": "koordgate-reporter", "force": "true"}
    assert [request.query for request in fake.seen("patch", "nodes")] == [by_force] * (conflicts + 1)


@pytest.mark.parametrize(
    ("statuses", "error"),
    [([409] * 4, Conflict), ([409, 409, 403], Forbidden)],
    ids=["four conflicts", "no right after two conflicts"],
)
async def test_what_is_still_refused_is_raised(
    fake: FakeKube, kube: KubeClient, statuses: list[int], error: type[Exception]
) -> None:
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})
    fake.faults.add("patch", "nodes", *(Fault(status=status) for status in statuses))

    with pytest.raises(error):
        await apply(kube, Target(NODES), BODY)

    assert "labels" not in fake.get(NODES.path("n1"))["metadata"]
