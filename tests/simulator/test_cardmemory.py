"""How much memory a card has by its model."""

import pytest

from console.simulator.assumed import memory_of

MIB, GIB = 1_048_576, 1_073_741_824


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("NVIDIA-A2", 15_356 * MIB),
        ("NVIDIA-A10", 22_731 * MIB),
        ("NVIDIA-A10G", 22_731 * MIB),
        ("NVIDIA-A16", 15_356 * MIB),
        ("NVIDIA-A30", 24_258 * MIB),
        ("NVIDIA-A40", 46_068 * MIB),
        ("NVIDIA-H200", 143_771 * MIB),
        ("NVIDIA-L4", 23_034 * MIB),
        ("NVIDIA-L40", 46_068 * MIB),
        ("NVIDIA-L40S", 46_068 * MIB),
        ("P100", 16_280 * MIB),
        ("Tesla-T4", 15_109 * MIB),
        ("V100M16", 16_160 * MIB),
        ("V100M32", 32_510 * MIB),
        ("A100-SXM4-80GB", 80 * GIB),
        ("a100-80gb", 80 * GIB),
        ("nvidia-tesla-a100", 40_960 * MIB),
        ("NVIDIA-V100", 16_160 * MIB),
        ("t4g", 15_109 * MIB),
        ("1GB", GIB),
        ("H100-9999GB-HBM3", 9999 * GIB),
        ("12345GB", 0),
        ("80GBx", 0),
        ("Odd-9", 0),
        ("", 0),
    ],
)
def test_a_model_has_the_memory_that_its_driver_or_its_name_states(model: str, expected: int) -> None:
    assert memory_of(model) == expected
