"""How a PCI address is told from other ids, and spelled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.vocabulary.device import pci_address

ADDRESSES = {
    "as NVML spells it": ("00000000:3B:00.0", "0000:3b:00.0"),
    "as sysfs spells it": ("0000:3b:00.0", "0000:3b:00.0"),
    "a domain beyond 16 bits": ("00010001:AF:1F.7", "10001:af:1f.7"),
    "no function": ("0000:3b:00", None),
    "a way out of the folder": ("../../etc", None),
    "a line too many": ("0000:3b:00.0\n", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "expected"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_is_spelled_as_sysfs_does_or_is_none(text, expected) -> None:
    assert pci_address(text) == expected


@given(st.text(alphabet="0123456789abcdefABCDEF:./\n", max_size=20))
def test_whatever_is_taken_for_an_address_is_a_plain_file_name(text) -> None:
    found = pci_address(text)
    assert found is None or ("/" not in found and found == found.strip() and pci_address(found) == found)
