"""Where cgroups are: the paths that kubelets and runtimes make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporter.cgroup.layout import Driver, Layout, LayoutError, QosClass, cgroup_uid

UID = "9f0c2b1e-11aa-4000-8000-0000000000ff"
ID = "c0ffee" * 10 + "beef"
SLICE = "9f0c2b1e_11aa_4000_8000_0000000000ff"

PATHS = {
    "cgroupfs, containerd, Guaranteed": (
        Layout(Driver.CGROUPFS),
        QosClass.GUARANTEED,
        f"containerd://{ID}",
        f"kubepods/pod{UID}/{ID}",
    ),
    "cgroupfs, Docker, Burstable": (
        Layout(Driver.CGROUPFS),
        QosClass.BURSTABLE,
        f"docker://{ID}",
        f"kubepods/burstable/pod{UID}/{ID}",
    ),
    "cgroupfs, CRI-O, BestEffort": (
        Layout(Driver.CGROUPFS),
        QosClass.BEST_EFFORT,
        f"cri-o://{ID}",
        f"kubepods/besteffort/pod{UID}/crio-{ID}",
    ),
    "systemd, containerd, Guaranteed": (
        Layout(Driver.SYSTEMD),
        QosClass.GUARANTEED,
        f"containerd://{ID}",
        f"kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    ),
    "systemd, CRI-O, Burstable": (
        Layout(Driver.SYSTEMD),
        QosClass.BURSTABLE,
        f"cri-o://{ID}",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/crio-{ID}.scope",
    ),
    "systemd, Docker, BestEffort": (
        Layout(Driver.SYSTEMD),
        QosClass.BEST_EFFORT,
        f"docker://{ID}",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/docker-{ID}.scope",
    ),
    "cgroupfs with a root of its own": (
        Layout(Driver.CGROUPFS, "/koordgate-node"),
        QosClass.BURSTABLE,
        f"containerd://{ID}",
        f"koordgate-node/kubepods/burstable/pod{UID}/{ID}",
    ),
    "systemd with a root of its own, as in kind": (
        Layout(Driver.SYSTEMD, "/kubelet"),
        QosClass.GUARANTEED,
        f"containerd://{ID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope",
    ),
    "systemd escapes dashes of the root": (
        Layout(Driver.SYSTEMD, "/my-node/inner"),
        QosClass.GUARANTEED,
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
    assert Layout(Driver.CGROUPFS).tier(QosClass.GUARANTEED) == "kubepods"
    assert Layout(Driver.SYSTEMD).tier(QosClass.GUARANTEED) == "kubepods.slice"


def test_a_static_pods_cgroup_is_named_by_the_hash_of_its_file() -> None:
    assert cgroup_uid(UID, {"kubernetes.io/config.hash": "0123abcd"}) == "0123abcd"
    assert cgroup_uid(UID, {"other": "x"}) == UID


HOSTILE = ["", ".", "..", "../x", "a/b", "/", "a\0b", "a\nb", "-a", "a" * 129, "é", "a.slice", "%n"]


@pytest.mark.parametrize("uid", HOSTILE)
def test_a_uid_that_would_leave_the_folder_is_refused(uid) -> None:
    for driver in Driver:
        with pytest.raises(LayoutError):
            Layout(driver).pod(QosClass.GUARANTEED, uid)


@pytest.mark.parametrize("name", [*HOSTILE, "rkt://abc", "containerd://", "containerd://../x", "containerd://a/b"])
def test_a_container_id_that_is_none_is_refused(name) -> None:
    with pytest.raises(LayoutError):
        Layout(Driver.CGROUPFS).container(QosClass.GUARANTEED, UID, name)


@pytest.mark.parametrize("root", ["/..", "/a/../b", "/a/./b", "a\nb", "/a\0", "/.hidden"])
def test_a_cgroup_root_that_would_leave_the_hierarchy_is_refused(root) -> None:
    with pytest.raises(LayoutError):
        Layout(Driver.CGROUPFS, root)


@given(st.text(max_size=40), st.sampled_from(Driver), st.sampled_from(QosClass))
def test_no_text_makes_a_path_that_climbs(text, driver, qos) -> None:
    layout = Layout(driver)
    for make in (lambda: layout.pod(qos, text), lambda: layout.container(qos, UID, f"cri-o://{text}")):
        try:
            path = make()
        except LayoutError:
            continue
        assert path.startswith(f"{layout.kubepods}/")
        assert not {"", ".", ".."} & set(path.split("/"))
