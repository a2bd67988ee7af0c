"""Sets of CPUs and Linux' list format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.vocabulary.cputopology import CpusetError, format_cpuset, members, parse

MAX_CPU = 4095

SETS = st.sets(st.integers(0, MAX_CPU), max_size=200)

READ = {
    "nothing": ("", set()),
    "an empty file of the kernel": ("\n", set()),
    "one CPU": ("0", {0}),
    "a range": ("0-3", {0, 1, 2, 3}),
    "ranges and CPUs": ("0-3,8,10-11\n", {0, 1, 2, 3, 8, 10, 11}),
    "a range of one": ("5-5", {5}),
    "out of order": ("9,1-2,4", {1, 2, 4, 9}),
    "overlapping": ("1-3,2-4,2", {1, 2, 3, 4}),
    "zeros in front": ("007", {7}),
    "the largest CPU": (f"{MAX_CPU}", {MAX_CPU}),
    "all": (f"0-{MAX_CPU}", set(range(MAX_CPU + 1))),
}

REFUSED = {
    "a word": "all",
    "a comma alone": ",",
    "a comma at the end": "1,",
    "two commas": "1,,2",
    "a negative CPU": "-1",
    "an open range": "1-",
    "a range that descends": "3-1",
    "three ends": "1-2-3",
    "a stride": "0-8:2/4",
    "a space inside": "1, 2",
    "a sign": "+1",
    "an underscore": "1_0",
    "a fraction": "1.5",
    "a hexadecimal number": "0x1",
    "digits of another script": "\u0661\u0662",
    "a null byte": "1\0",
    "one above the largest": f"{MAX_CPU + 1}",
    "a range beyond the largest": "0-99999999",
    "a number of many digits": "9" * 30_000,
    "a list too long to be one": "1," * 20_000,
}


@pytest.mark.parametrize(("text", "cpus"), READ.values(), ids=READ)
def test_a_list_is_read(text, cpus) -> None:
    assert set(members(parse(text))) == cpus


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_no_list_is_refused_in_few_words(text) -> None:
    with pytest.raises(CpusetError) as caught:
        parse(text)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("length", [40, 41])
def test_forty_characters_of_what_is_no_cpu_are_told(length) -> None:
    with pytest.raises(CpusetError, match=f"^not a CPU or a range of CPUs: '{'x' * 40}'$"):
        parse(f"1,{'x' * length}")


@given(SETS)
def test_what_is_written_reads_the_same(cpus) -> None:
    mask = sum(1 << cpu for cpu in cpus)
    assert parse(format_cpuset(mask)) == mask
    assert list(members(mask)) == sorted(cpus)


@given(st.text(alphabet="0123456789-, \n:/", max_size=40))
def test_any_text_is_read_or_refused(text) -> None:
    try:
        mask = parse(text)
    except CpusetError:
        return
    assert parse(format_cpuset(mask)) == mask


def test_a_negative_number_is_no_set() -> None:
    with pytest.raises(ValueError, match="a set of CPUs is not negative"):
        format_cpuset(-1)
    with pytest.raises(ValueError, match="a set of CPUs is not negative"):
        list(members(-1))
