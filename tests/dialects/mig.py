"""What koordgate gives to nobody: MIG devices, replicas, slices and Ascend devices of vendors' plugins.

The names are those of NVIDIA/k8s-device-plugin, nebuly-ai/nos and Huawei's plugin; koordgate leaves them to these.
"""

from dialects.rows import Row

MIG, SHARED, SLICE = "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/gpu-10gb"
ASCEND = "huawei.com/Ascend910"
_PLUGIN = "NVIDIA/k8s-device-plugin: resource naming of the MIG strategy mixed"
_LEFT = "which koordgate does not give"
_BESIDE = "ask for them in a Pod of their own"

ROWS = (
    Row("a MIG device", ({MIG: 1},), warned=f"{MIG} counts MIG devices, {_LEFT}", source=_PLUGIN),
    Row("of another profile", ({"nvidia.com/mig-3g.40gb": 2},), warned="nvidia.com/mig-3g.40gb", source=_PLUGIN),
    Row("with media engines", ({"nvidia.com/mig-1g.10gb.me": 1},), warned="nvidia.com/mig-1g.10gb.me", source=_PLUGIN),
    Row("two profiles", ({MIG: 1}, {"nvidia.com/mig-2g.10gb": 1}), warned="nvidia.com/mig-2g.10gb", source=_PLUGIN),
    Row("none", ({MIG: 0},), source=_PLUGIN),
    Row("in an init container", ({},), init=({MIG: 1},), warned="spec.initContainers[0]", source="ours"),
    Row("replicas", ({SHARED: 1},), warned=f"{SHARED} counts replicas of a card", source=_PLUGIN),
    Row("a slice", ({SLICE: 1},), warned=SLICE, source="nebuly-ai/nos: slices by MPS"),
    Row("an Ascend device", ({ASCEND: 1},), warned=ASCEND, source="Huawei's device plugin"),
    Row("beside a card", ({"nvidia.com/gpu": 1, MIG: 1},), refused=_BESIDE, source="ours"),
    Row("beside a share of a card", ({"koordinator.sh/gpu": 50}, {MIG: 1}), refused=_BESIDE, source="ours"),
    Row("beside an RDMA device", ({"koordinator.sh/rdma": 50}, {MIG: 1}), refused=_BESIDE, source="ours"),
    Row("replicas beside a card", ({"nvidia.com/gpu": 1}, {SHARED: 1}), refused=_BESIDE, source="ours"),
    Row("an Ascend device beside a card", ({"nvidia.com/gpu": 1}, {ASCEND: 1}), refused=_BESIDE, source="ours"),
)
