"""Where cgroups are: the paths that kubelets and runtimes make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporter.cgroup.layout import (
    CgroupLayout,
    Driver,
    KubernetesQos,
    LayoutError,
    cgroup_uid,
    from_runtime,
    qos_of,
)

UID = "9f0c2b1e-11aa-4000-8000-0000000000ff"
ID = "c0ffee" * 10 + "beef"
SLICE = "9f0c2b1e_11aa_4000_8000_0000000000ff"

PATHS = {
    "cgroupfs, containerd, Guaranteed": (
        CgroupLayout(Driver.CGROUPFS),
        KubernetesQos.GUARANTEED,
        f"containerd://{ID}",
        f"kubepods/pod{UID}/{ID}",
    ),
    "cgroupfs, Docker, Burstable": (
        CgroupLayout(Driver.CGROUPFS),
        KubernetesQos.BURSTABLE,
        f"docker://{ID}",
        f"kubepods/burstable/pod{UID}/{ID}",
    ),
    "cgroupfs, CRI-O, BestEffort": (
        CgroupLayout(Driver.CGROUPFS),
        KubernetesQos.BEST_EFFORT,
        f"cri-o://{ID}",
        f"kubepods/besteffort/pod{UID}/crio-{ID}",
    ),
    "systemd, containerd, Guaranteed": (
        CgroupLayout(Driver.SYSTEMD),
        KubernetesQos.GUARANTEED,
        f"containerd://{ID}",
        f"kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    ),
    "systemd, CRI-O, Burstable": (
        CgroupLayout(Driver.SYSTEMD),
        KubernetesQos.BURSTABLE,
        f"cri-o://{ID}",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/crio-{ID}.scope",
    ),
    "systemd, Docker, BestEffort": (
        CgroupLayout(Driver.SYSTEMD),
        KubernetesQos.BEST_EFFORT,
        f"docker://{ID}",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/docker-{ID}.scope",
    ),
    "cgroupfs with a root of its own": (
        CgroupLayout(Driver.CGROUPFS, "/koordgate-node"),
        KubernetesQos.BURSTABLE,
        f"containerd://{ID}",
        f"koordgate-node/kubepods/burstable/pod{UID}/{ID}",
    ),
    "systemd with a root of its own, as in kind": (
        CgroupLayout(Driver.SYSTEMD, "/kubelet"),
        KubernetesQos.GUARANTEED,
        f"containerd://{ID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    ),
    "systemd escapes dashes of the root": (
        CgroupLayout(Driver.SYSTEMD, "/my-node/inner"),
        KubernetesQos.GUARANTEED,
        f"containerd://{ID}",
        (
            "my_node.slice/my_node-inner.slice/my_node-inner-kubepods.slice/"
            f"my_node-inner-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope"
        ),
    ),
}


@pytest.mark.parametrize(("layout", "qos", "container", "path"), PATHS.values(), ids=PATHS)
def test_a_containers_cgroup_is_where_its_runtime_puts_it(layout, qos, container, path) -> None:
    assert layout.container(qos, UID, container) == path
    assert path.startswith(f"{layout.pod(qos, UID)}/")
    assert layout.pod(qos, UID).startswith(f"{layout.tier(qos)}/")
    assert layout.tier(qos).startswith(layout.kubepods)


def test_guaranteed_pods_are_in_kubepods_itself() -> None:
    assert CgroupLayout(Driver.CGROUPFS).tier(KubernetesQos.GUARANTEED) == "kubepods"
    assert CgroupLayout(Driver.SYSTEMD).tier(KubernetesQos.GUARANTEED) == "kubepods.slice"


def test_a_static_pods_cgroup_is_named_by_the_hash_of_its_file() -> None:
    assert cgroup_uid(UID, {"kubernetes.io/config.hash": "0123abcd"}) == "0123abcd"
    assert cgroup_uid(UID, {"other": "x"}) == UID


HOSTILE = ["", ".", "..", "../x", "a/b", "/", "a\0b", "a\nb", "-a", "a" * 129, "é", "a.slice", "%n"]


@pytest.mark.parametrize("uid", HOSTILE)
def test_a_uid_that_would_leave_the_folder_is_refused(uid) -> None:
    for driver in Driver:
        with pytest.raises(LayoutError):
            CgroupLayout(driver).pod(KubernetesQos.GUARANTEED, uid)


@pytest.mark.parametrize("name", [*HOSTILE, "rkt://abc", "containerd://", "containerd://../x", "containerd://a/b"])
def test_a_container_id_that_is_none_is_refused(name) -> None:
    with pytest.raises(LayoutError):
        CgroupLayout(Driver.CGROUPFS).container(KubernetesQos.GUARANTEED, UID, name)


@pytest.mark.parametrize("root", ["/..", "/a/../b", "/a/./b", "a\nb", "/a\0", "/.hidden"])
def test_a_cgroup_root_that_would_leave_the_hierarchy_is_refused(root) -> None:
    with pytest.raises(LayoutError):
        CgroupLayout(Driver.CGROUPFS, root)


@given(st.text(max_size=40), st.sampled_from(Driver), st.sampled_from(KubernetesQos))
def test_no_text_makes_a_path_that_climbs(text, driver, qos) -> None:
    layout = CgroupLayout(driver)
    for make in (lambda: layout.pod(qos, text), lambda: layout.container(qos, UID, f"cri-o://{text}")):
        try:
            path = make()
        except LayoutError:
            continue
        assert path.startswith(f"{layout.kubepods}/")
        assert not {"", ".", ".."} & set(path.split("/"))


# as container runtimes name them

ROOTS = st.sampled_from(["/", "/kubelet", "/my-node/inner"])
UIDS = st.one_of(st.uuids().map(str), st.text("0123456789abcdef", min_size=32, max_size=32))


@given(st.sampled_from(Driver), ROOTS, st.sampled_from(KubernetesQos), UIDS, st.sampled_from(["containerd", "cri-o"]))
def test_what_a_runtime_names_is_where_the_kubelet_puts_it(driver, root, qos, uid, runtime) -> None:
    """containerd, internal/cri/server (getCgroupsPath); CRI-O, internal/config/cgmgr."""
    layout = CgroupLayout(driver, root)
    pod, path = layout.pod(qos, uid), layout.container(qos, uid, f"{runtime}://{ID}")
    prefix = {"containerd": "cri-containerd", "cri-o": "crio"}[runtime]
    last = pod.rpartition("/")[2]
    named = [f"{last}:{prefix}:{ID}"] if driver is Driver.SYSTEMD else [f"/{path}", path]
    assert {from_runtime(one) for one in named} == {path}
    assert {from_runtime(one) for one in ([f"/{pod}", last] if driver is Driver.SYSTEMD else [f"/{pod}", pod])} == {pod}
    assert qos_of(pod) is qos


@pytest.mark.parametrize(
    "named",
    [
        *["", "/", "..", "/kubepods/../x", "/kubepods//x", "kubepods/./x", "/kubepods/a\nb", "-.slice", "a--b.slice"],
        *[
            "a.slice:",
            "a.slice:cri-containerd",
            "a.slice:cri-containerd:",
            "a.slice::x",
            "a.slice:x:../y",
            "a.slice:x:y/z",
        ],
    ],
)
def test_what_is_no_path_of_a_cgroup_is_refused(named) -> None:
    with pytest.raises(LayoutError, match="no path of one"):
        from_runtime(named)


@given(st.text(st.sampled_from("a./:-slice\\@ \0"), max_size=30))
def test_no_name_leads_out_of_the_hierarchy(named) -> None:
    try:
        path = from_runtime(named)
    except LayoutError:
        return
    assert not {"", ".", ".."} & set(path.split("/"))
