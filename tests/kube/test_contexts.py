"""What is wrong with a kubeconfig, told with what to do."""

import os
from pathlib import Path

import pytest

from koordgate.kube.contexts import mistake
from koordgate.kube.errors import KubeError
from koordgate.kube.kubeconfig import kubeconfig_access

TWO = "contexts: [{name: a, context: {cluster: c}}, {name: b}, {}, 7, {name: 5}]\n"

CASES = {
    "an empty file": ("", None, "has no context, so no cluster is known; name a kubeconfig in $KUBECONFIG"),
    "no contexts": ("contexts: null\ncurrent-context: ''", None, "has no context, so no cluster is known"),
    "no current context": (TWO, None, "names no current context; choose one with --context: a, b"),
    "an empty current context": (f"{TWO}current-context: ''", None, "names no current context"),
    "a current context that is not there": (f"{TWO}current-context: z", None, "has no context 'z'; choose one"),
    "another context that is not there": (f"{TWO}current-context: a", "z", "has no context 'z'; choose one"),
    "a list": ("[]", None, "is not a kubeconfig; name another file in $KUBECONFIG"),
    "contexts that are no list": ("contexts: {a: b}", None, "has no context, so no cluster is known"),
    "no YAML": ("{", None, "cannot be read as a kubeconfig (while parsing a flow node)"),
    "control characters": ("\x00", None, "cannot be read as a kubeconfig"),
    "too deep": ("[" * 100_000, None, "cannot be read as a kubeconfig"),
    "nothing": (f"{TWO}current-context: a", None, ""),
    "nothing with another context": (f"{TWO}current-context: a", "b", ""),
}


@pytest.mark.parametrize(("text", "context", "told"), CASES.values(), ids=CASES)
def test_what_is_wrong_with_a_kubeconfig_is_told(tmp_path: Path, text: str, context: str | None, told: str) -> None:
    path = tmp_path / "config"
    path.write_text(text, encoding="utf-8")
    found = mistake(str(path), context)
    assert told in found
    assert bool(found) is bool(told)


def test_a_file_that_is_absent_or_no_text_is_told(tmp_path: Path) -> None:
    assert mistake(str(tmp_path / "absent")).startswith(f"there is no file {tmp_path}/absent; write the kubeconfig")
    assert f"{tmp_path} cannot be read as a kubeconfig (Is a directory); name another" in mistake(str(tmp_path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    assert "cannot be read as a kubeconfig" in mistake(str(binary))


def test_contexts_of_several_files_count_and_the_first_current_one(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("contexts: [{name: a}]\ncurrent-context: b", encoding="utf-8")
    second.write_text("contexts: [{name: b}]\ncurrent-context: z", encoding="utf-8")
    assert mistake(os.pathsep.join(map(str, (first, second, tmp_path / "absent")))) == ""
    assert "has no context 'b'" in mistake(str(first))


@pytest.mark.parametrize(
    ("contexts", "end"), [(15, "c13, c14"), (16, "c14, c15"), (17, "c14, c15 and 1 more"), (40, "c14, c15 and 24 more")]
)
def test_sixteen_contexts_are_named_at_most(tmp_path: Path, contexts: int, end: str) -> None:
    path = tmp_path / "config"
    path.write_text("\n".join(["contexts:", *(f"- name: c{at:02}" for at in range(contexts))]), encoding="utf-8")
    assert mistake(str(path)).endswith(f", {end}")


def test_a_file_of_four_mebibytes_is_read_and_a_longer_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"\x00" * 4 * 1024 * 1024)
    assert "cannot be read as a kubeconfig" in mistake(str(path))
    with path.open("ab") as file:
        file.write(b"\x00")
    assert mistake(str(path)) == f"{path} is too large for a kubeconfig; name another file in $KUBECONFIG"


async def test_whoever_connects_is_told_it(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(TWO, encoding="utf-8")
    with pytest.raises(KubeError, match="names no current context; choose one with --context: a, b") as caught:
        await kubeconfig_access(path)
    assert caught.value.reason == "Configuration"
