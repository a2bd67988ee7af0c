"""Which name somebody meant: near names are found, others are not, whatever was written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.vocabulary.meant import did_you_mean, meant

TAILS = ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio", "gpu.shared", "rdma", "fpga")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("gpus", "gpu"),
        ("gup", "gpu"),
        ("GPU", "gpu"),
        ("gp", "gpu"),
        ("gpu-cores", "gpu-core"),
        ("gpu_core", "gpu-core"),
        ("gpucore", "gpu-core"),
        ("core", "gpu-core"),
        ("gpu-mem", "gpu-memory"),
        ("gpumem", "gpu-memory"),
        ("gpu-memroy", "gpu-memory"),
        ("gpu-mem-ratio", "gpu-memory-ratio"),
        ("gpu-shared", "gpu.shared"),
        ("rdmas", "rdma"),
        ("fgpa", "fpga"),
        ("cpu", ""),
        ("tpu", ""),
        ("memory", ""),
        ("batch-cpu", ""),
        ("gpu-percentage", ""),
        ("", ""),
        ("gpu" * 99, ""),
    ],
)
def test_a_near_name_is_meant_and_no_other(written: str, name: str) -> None:
    assert meant(written, TAILS) == name
    assert did_you_mean(written, TAILS) == (f"; did you mean {name}?" if name else "")


@pytest.mark.parametrize(("written", "name"), [("nri", "nvidia-nri"), ("runtimeclass", "runtimeClass"), ("xyz", "")])
def test_a_part_of_one_name_only_means_it(written: str, name: str) -> None:
    assert meant(written, ("environment", "runtimeClass", "nvidia-nri")) == name


@settings(max_examples=examples(200))
@given(st.sampled_from(TAILS), st.data())
def test_one_letter_too_many_or_too_few_after_the_first_is_understood(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(name) - 1))
    letter = data.draw(st.sampled_from("aeioxyz"))
    assert meant(name[:at] + letter + name[at:], TAILS) == name


@settings(max_examples=examples(100))
@given(st.text(max_size=300), st.lists(st.text(max_size=80), max_size=20))
def test_what_is_meant_is_one_of_the_known_names_or_nothing(written: str, known: list[str]) -> None:
    assert meant(written, known) in {"", *known}
    if written in known and written.strip("-_. /") and len(written) <= 128:
        assert meant(written, known).casefold()
