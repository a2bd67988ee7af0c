"""What the enforcer asks of an MPS daemon, by the commands that reach it."""

from pathlib import Path

import pytest
from mps_standin import PATH, Daemon

from reporter.enforcer.limits import namespace
from reporter.enforcer.model import MpsShare
from reporter.enforcer.mps import Mps, MpsServer, read_servers

ONE, TWO = (f"GPU-a1000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
LIST = "server list --format=csv,noheader"
SERVERS = f"""\
little, 0, 11, ACTIVE, /run/nvidia-mps/little, {ONE}
both, 0, 12, ACTIVE, /run/nvidia-mps/both, {ONE};{TWO}, 0
"""
FIRST, SECOND = "0123456789abcdef" * 4, "fedcba9876543210" * 4


def door(pipe: Path, seconds: float = 30.0) -> Mps:
    return Mps(str(pipe), seconds, PATH)


@pytest.mark.parametrize("servers", ["", "4711\n", "4711\n4712\n"], ids=["none yet", "one", "two users"])
async def test_a_daemon_of_protocol_2_makes_no_namespaces(tmp_path, servers) -> None:
    daemon = Daemon(tmp_path / "mps", 2, servers)
    mps = door(daemon.pipe)
    assert await mps.look([ONE, TWO]) == ("", "")
    assert daemon.asked() == [LIST, "get_server_list"]
    assert await mps.share(MpsShare("", 50)) == ""
    await mps.sweep([])
    assert daemon.asked() == ["get_server_list"]


async def test_of_several_servers_the_one_that_may_use_all_cards_has_the_namespaces(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 3, SERVERS)
    mps = door(daemon.pipe)
    assert await mps.look([ONE, TWO, "MIG-x"]) == ("", str(daemon.pipe / "both"))
    assert await mps.look([ONE]) == ("", str(daemon.pipe / "little"))
    assert daemon.asked() == [LIST, LIST]


async def test_a_container_has_a_namespace_with_its_percentage_until_it_is_removed(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 3, SERVERS)
    mps = door(daemon.pipe)
    await mps.look([ONE, TWO])
    daemon.asked()
    name = namespace(FIRST)
    assert await mps.share(MpsShare(name, 25)) == ""
    assert daemon.asked() == [
        f"namespace create {name} --server=both",
        f"namespace set {name} --server=both --active-thread-percentage=25",
    ]
    assert await mps.share(MpsShare(name, 40)) == ""  # a larger share
    assert daemon.namespaces("both") == {name: 40}
    await mps.delete(name)
    assert daemon.asked()[-1] == f"namespace delete {name} --server=both"
    assert daemon.namespaces("both") == {}
    await mps.delete(name)  # it is not there any more


async def test_namespaces_of_containers_that_are_no_more_are_deleted_and_nobody_elses(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 3, SERVERS)
    earlier, mps = door(daemon.pipe), door(daemon.pipe)
    for one in (earlier, mps):
        await one.look([ONE, TWO])
    for name in (namespace(FIRST), namespace(SECOND), "trainers", "my_koordgate_x"):
        assert await earlier.share(MpsShare(name, 10)) == ""
    await mps.sweep([SECOND])
    assert daemon.namespaces("both").keys() == {namespace(SECOND), "trainers", "my_koordgate_x"}


async def test_namespaces_that_a_killed_enforcer_left_are_deleted_once_the_server_is_known(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 3, SERVERS)
    killed = door(daemon.pipe)
    await killed.look([ONE, TWO])
    for name in (namespace(FIRST), namespace(SECOND)):
        assert await killed.share(MpsShare(name, 10)) == ""
    mps = door(daemon.pipe)
    await mps.sweep([SECOND])
    assert daemon.namespaces("both").keys() == {namespace(FIRST), namespace(SECOND)}

    await mps.look([ONE, TWO])
    assert daemon.namespaces("both").keys() == {namespace(SECOND)}


async def test_a_sweep_that_the_daemon_did_not_answer_is_done_later_and_spares_what_was_made_since(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 3, SERVERS)
    mps = door(daemon.pipe)
    await mps.look([ONE, TWO])
    assert await mps.share(MpsShare(namespace(FIRST), 10)) == ""
    await mps.delete(namespace(FIRST))
    (daemon.pipe / "both" / namespace(FIRST)).mkdir()  # as if an earlier process had made it
    (daemon.state / "protocol").write_text("2")
    await mps.sweep([])
    assert {one.name for one in (daemon.pipe / "both").iterdir()} == {namespace(FIRST)}
    (daemon.state / "protocol").write_text("3")
    assert await mps.share(MpsShare(namespace(SECOND), 20)) == ""

    await mps.look([ONE, TWO])
    assert daemon.namespaces("both") == {namespace(SECOND): 20}


def test_names_are_as_nvidia_takes_them() -> None:
    assert namespace(FIRST) == "koordgate_0123456789abcdef0123456789abcdef0123456789abcdef012345"
    assert len(namespace(FIRST)) == 64


NO_DAEMON = (
    "the MPS daemon at {pipe} does not do `get_server_list`: 'Cannot find MPS control daemon process' (status 1); see "
    "that it runs"
)


async def test_a_daemon_that_does_not_run_is_told_with_its_cure(tmp_path) -> None:
    told, folder = await door(tmp_path).look([ONE])
    assert (told, folder) == (NO_DAEMON.format(pipe=tmp_path), "")


async def test_a_daemon_that_stops_is_told_before_a_container_relies_on_it(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 2)
    mps = door(daemon.pipe)
    assert await mps.look([ONE]) == ("", "")
    daemon.state.rename(tmp_path / "stopped")
    assert await mps.share(MpsShare("", 50)) == NO_DAEMON.format(pipe=daemon.pipe)


async def test_a_daemon_that_is_silent_is_told_after_half_a_second(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 3, SERVERS)
    daemon.hang()
    mps = Mps(str(daemon.pipe), path=PATH)
    silent = (f"the MPS daemon at {daemon.pipe} did not answer within 0.5 s: restart it", "")
    assert await mps.look([ONE]) == silent
    assert await mps.share(MpsShare("", 50)) == silent[0]
    daemon.hang(on=False)
    assert await door(daemon.pipe).look([ONE]) == ("", str(daemon.pipe / "little"))


async def test_a_daemon_of_protocol_3_without_a_server_that_may_use_the_cards_is_told_with_its_cure(tmp_path) -> None:
    told, _ = await door(Daemon(tmp_path / "none", 3).pipe).look([TWO])
    assert "unrecognized command" in told
    told, _ = await door(Daemon(tmp_path / "mps", 3, SERVERS.splitlines()[0]).pipe).look([ONE, TWO])
    assert told.endswith(f"make one, with `server create NAME --allowed-devices={ONE},{TWO} --uid=0`")


async def test_a_server_that_has_gone_and_a_pipe_directory_of_another_daemon_are_told(tmp_path) -> None:
    daemon = Daemon(tmp_path / "mps", 3, SERVERS)
    mps = door(daemon.pipe)
    await mps.look([ONE, TWO])
    (daemon.pipe / "both").rmdir()
    told = await mps.share(MpsShare(namespace(FIRST), 25))
    assert "Error: there is no koordgate_" in told


async def test_without_nvidias_program_the_enforcer_says_what_it_needs(tmp_path) -> None:
    told, _ = await Mps(str(tmp_path), 30.0, str(tmp_path)).look([ONE])
    assert told == (
        "nvidia-cuda-mps-control cannot be started (No such file or directory): the enforcer needs NVIDIA's driver "
        "capability compute"
    )


def test_servers_are_read_from_lines_that_tell_of_one() -> None:
    assert read_servers(SERVERS) == (MpsServer("little", frozenset({ONE})), MpsServer("both", frozenset({ONE, TWO})))
    assert read_servers('"all", 0, 7, ACTIVE, /run/nvidia-mps/all, ""\n') == (MpsServer("all", frozenset()),)
    assert read_servers(f'x,0,7,ACTIVE,/p,"{ONE},{TWO}"') == (MpsServer("x", frozenset({ONE, TWO})),)
    as_documented = f"training,1000,48201,Ready,/run/nvidia-mps/training,{ONE},{TWO},-\n"
    assert read_servers(as_documented) == (MpsServer("training", frozenset({ONE, TWO})),)
    assert read_servers("4711\n\nname, uid, pid, status\nError, no, no, no\n") == ()
