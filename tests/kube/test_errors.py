import pytest
from fake_kube import FakeKube, answer, drop

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, KubeError, TooManyRequests, Unreachable
from koordgate.kube.resource import NODES


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        pytest.param(KubeError("?"), 0, "", id="any"),
        pytest.param(Unreachable("?"), 0, "", id="no answer"),
        pytest.param(Forbidden("?"), 403, "Forbidden", id="forbidden"),
        pytest.param(TooManyRequests("?"), 429, "TooManyRequests", id="too many requests"),
    ],
)
def test_an_error_has_the_status_of_its_kind_and_none_where_there_was_no_answer(
    error: KubeError, status: int, reason: str
) -> None:
    assert (error.status, error.reason) == (status, reason)


async def test_a_connection_that_breaks_has_no_status_and_a_5xx_has_its_own(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("create", "nodes", drop(), answer(500))
    statuses = []
    for _ in range(2):
        with pytest.raises(Unreachable) as caught:
            await kube.create(NODES.path(), {"metadata": {"name": "n1"}})
        statuses.append(caught.value.status)
    assert statuses == [0, 500]
