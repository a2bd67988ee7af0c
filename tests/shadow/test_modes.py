"""The mode of a namespace: what its label states, or the default."""

import pytest

from allocator.vocabulary.names import Mode, mode_of
from webhook.view.namespaces import NamespaceFeed, NamespaceModes

STATED: dict[str, tuple[dict[str, object], Mode]] = {
    "nothing": ({}, Mode.SHADOW),
    "enforce": ({"koordgate.io/mode": "enforce"}, Mode.ENFORCE),
    "shadow": ({"koordgate.io/mode": "shadow"}, Mode.SHADOW),
    "off": ({"koordgate.io/mode": "off"}, Mode.OFF),
    "a word that is none": ({"koordgate.io/mode": "Enforce"}, Mode.SHADOW),
    "no text": ({"koordgate.io/mode": False}, Mode.SHADOW),
    "another label": ({"koordgate.io/modes": "off"}, Mode.SHADOW),
}


@pytest.mark.parametrize(("labels", "mode"), STATED.values(), ids=STATED)
def test_a_label_states_the_mode(labels: dict[str, object], mode: Mode) -> None:
    assert mode_of(labels, Mode.SHADOW) is mode


def test_an_exempt_namespace_is_off_whatever_it_states() -> None:
    modes = NamespaceModes(Mode.ENFORCE, ("koordgate-system",))
    for name in ("kube-system", "koordgate-system"):
        modes.put(name, {"koordgate.io/mode": "enforce"})
        assert modes.of(name) is Mode.OFF
        assert not modes.enforced(name)


def test_listeners_hear_of_each_change_and_of_nothing_else() -> None:
    heard: list[str] = []
    modes = NamespaceModes(Mode.ENFORCE)
    modes.listen(heard.append)
    feed = NamespaceFeed(modes)

    def put(name: str, mode: str) -> None:
        feed.put({"metadata": {"name": name, "labels": {"koordgate.io/mode": mode}}})

    put("a", "enforce")
    put("a", "shadow")
    put("a", "shadow")
    feed.put({"metadata": {"name": "b"}})
    put("kube-system", "shadow")
    feed.drop({"metadata": {"name": "a"}})
    assert heard == ["a", "a"]
    assert modes.enforced("a")
