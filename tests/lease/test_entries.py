"""How the guarded entries are read from configurations, and the patches that open and shut them."""

import copy
from typing import Any

import jsonpatch
import pytest

from webhook.lease.entries import Guarded, Stands, opening, shutting, state_of

MUTATING, VALIDATING = Guarded.MUTATING, Guarded.VALIDATING
NOTE = "pods.mutate.koordgate.io since 2026-01-02T03:04:05Z"
OPENED = "koordgate.io/opened"


def config(policy: str | None = "Fail", annotations: dict[str, str] | None = None, **about: Any) -> dict[str, Any]:
    hooks = [
        {"name": "bindings.mutate.koordgate.io", "failurePolicy": "Fail"},
        {"name": MUTATING.entry, "clientConfig": {"caBundle": "QQ=="}},
        {"name": "other.koordgate.io", "failurePolicy": "Ignore"},
    ]
    if policy:
        hooks[1]["failurePolicy"] = policy
    noted = {} if annotations is None else {"annotations": annotations}
    return {"metadata": {"name": "koordgate", "resourceVersion": "7", **noted, **about}, "webhooks": hooks}


@pytest.mark.parametrize(
    ("found", "stands", "since"),
    [
        pytest.param(config(), Stands.SHUT, "", id="as the chart has it"),
        pytest.param(config(None), Stands.SHUT, "", id="by default"),
        pytest.param(config(annotations={"a": "b"}), Stands.SHUT, "", id="with other annotations"),
        pytest.param(config("Ignore", {OPENED: NOTE}), Stands.OPEN, "2026-01-02T03:04:05Z", id="opened by the keeper"),
        pytest.param(config("Ignore"), Stands.FOREIGN, "", id="opened by somebody else"),
        pytest.param(config("Ignore", {OPENED: ""}), Stands.FOREIGN, "", id="an empty note"),
        pytest.param(config("Ignore", {OPENED: "yes"}), Stands.FOREIGN, "", id="a note of something else"),
        pytest.param(
            config("Ignore", {OPENED: NOTE.replace("mutate", "validate")}), Stands.FOREIGN, "", id="of another entry"
        ),
        pytest.param(config(annotations={OPENED: NOTE}), Stands.STALE, "2026-01-02T03:04:05Z", id="shut by an upgrade"),
        pytest.param(config(annotations={OPENED: "x"}), Stands.STALE, "", id="shut, with nonsense"),
        pytest.param(None, Stands.ABSENT, "", id="no configuration"),
        pytest.param({"metadata": {}, "webhooks": None}, Stands.ABSENT, "", id="no entries"),
        pytest.param(config() | {"webhooks": config()["webhooks"][2:]}, Stands.ABSENT, "", id="not this entry"),
    ],
)
def test_an_entry_is_read(found: dict[str, Any] | None, stands: Stands, since: str) -> None:
    state = state_of(MUTATING, found)
    assert (state.stands, state.since) == (stands, since)


@pytest.mark.parametrize("annotations", [None, {}, {"a": "b"}, {OPENED: "x"}])
def test_opening_changes_the_entry_and_its_note_alone_and_shutting_undoes_it(
    annotations: dict[str, str] | None,
) -> None:
    before = config(annotations=annotations)
    opened = jsonpatch.apply_patch(before, opening(MUTATING, state_of(MUTATING, before), "now"))
    expected = copy.deepcopy(before)
    expected["webhooks"][1]["failurePolicy"] = "Ignore"
    expected["metadata"]["annotations"] = {**(annotations or {}), OPENED: "pods.mutate.koordgate.io since now"}
    assert opened == expected
    assert state_of(MUTATING, opened).since == "now"

    shut = jsonpatch.apply_patch(opened, shutting(MUTATING, state_of(MUTATING, opened)))
    left = {key: text for key, text in (annotations or {}).items() if key != OPENED}
    assert shut == config(annotations=left)


def test_a_note_that_is_stale_is_forgotten_and_nothing_else_changes() -> None:
    stale = config(annotations={OPENED: NOTE, "a": "b"})
    patched = jsonpatch.apply_patch(stale, shutting(MUTATING, state_of(MUTATING, stale)))
    assert patched == config(annotations={"a": "b"})


@pytest.mark.parametrize(
    "meanwhile",
    [config(resourceVersion="8"), config() | {"webhooks": config()["webhooks"][::-1][1:]}],
    ids=["changed", "in another order"],
)
def test_a_patch_fails_if_the_configuration_was_changed_meanwhile(meanwhile: dict[str, Any]) -> None:
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(meanwhile, opening(MUTATING, state_of(MUTATING, config()), "now"))


def test_each_kind_of_configuration_has_one_guarded_entry() -> None:
    assert {one.resource.plural: one.entry for one in Guarded} == {
        "mutatingwebhookconfigurations": "pods.mutate.koordgate.io",
        "validatingwebhookconfigurations": "pods.validate.koordgate.io",
    }
