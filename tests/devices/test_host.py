"""The host-memory budget, over a /proc that the test lays out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gridsched.core.ids import InstanceId
from gridsched.devices.headroom import Headroom
from gridsched.devices.host import HostBesideCards, HostMonitor, default_budget_bytes
from gridsched.devices.procfs import (
    MemoryUnreadable,
    available_bytes,
    memory_of,
    memory_pressure,
    process_trees,
    total_bytes,
)
from gridsched.ports import MemoryPressure

GIB = 1 << 30
NO_HEADROOM = Headroom(0.0)


class Machine:
    """A /proc and a control group tree in a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroup = folder / "cgroup"
        self.proc.mkdir()
        self.cgroup.mkdir()

    def free(self, available_bytes: int) -> None:
        """What the kernel says could be had."""
        text = f"MemTotal:       99999999 kB\nMemAvailable:   {available_bytes // 1024} kB\nHugePages_Total:       0\n"
        (self.proc / "meminfo").write_text(text)

    def process(self, pid: int, parent: int = 1, *, rss: int = 0, file: int = 0, closed: bool = False) -> None:
        """A process; `file` is its share of mapped files; `closed`: its smaps_rollup is not there. Bytes."""
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (llama) server (x) S {parent} {pid} {pid} 0\n")
        (folder / "status").write_text(f"Name:\tx\nVmRSS:\t{rss // 1024} kB\nRssFile:\t{file // 1024} kB\n")
        if not closed:
            text = f"Rss: {rss // 1024} kB\nPss: 1 kB\nPss_File: {file // 1024} kB\n"
            (folder / "smaps_rollup").write_text("00400000-7ffff000 ---p 00000000 00:00 0    [rollup]\n" + text)

    def group(self, path: str, limit: str, current: int, inactive_file: int) -> None:
        """A control group with its files."""
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")

    def in_groups(self, *lines: str) -> None:
        """What /proc says of our own groups."""
        (self.proc / "self").mkdir(exist_ok=True)
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def monitor(self, budget_bytes: int, headroom: Headroom = NO_HEADROOM) -> HostMonitor:
        """The monitor of this machine."""
        return HostMonitor(budget_bytes, headroom, self.proc, self.cgroup)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with 16 GiB to be had."""
    machine = Machine(tmp_path)
    machine.free(16 * GIB)
    return machine


def test_the_budget_is_half_of_what_is_free(machine: Machine) -> None:
    """Free is what the kernel says could be had, not what lies idle."""
    assert default_budget_bytes(machine.proc, machine.cgroup) == 8 * GIB


@pytest.mark.parametrize(("limit", "expected"), [(str(6 * GIB), 5 * GIB), ("max", 16 * GIB)])
def test_a_control_group_that_allows_less_counts(machine: Machine, limit: str, expected: int) -> None:
    """In a container the machine's memory is not ours: the limit less the use counts, file pages given back."""
    machine.in_groups("0::/box/app")
    machine.group("box/app", "max", 2 * GIB, GIB)
    machine.group("box", limit, 2 * GIB, GIB)
    assert available_bytes(machine.proc, machine.cgroup) == expected


def test_a_system_that_does_not_tell_is_said(tmp_path: Path) -> None:
    """Another system than Linux: the sentence names the file."""
    with pytest.raises(MemoryUnreadable, match="meminfo"):
        default_budget_bytes(tmp_path, tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 5 kB\n")
    with pytest.raises(MemoryUnreadable, match="no MemAvailable"):
        default_budget_bytes(tmp_path, tmp_path)


def test_the_host_is_one_device_with_headroom(machine: Machine) -> None:
    """L4: the configured part of the budget is never planned."""
    (info,) = machine.monitor(8 * GIB, Headroom(0.05, GIB)).devices()
    assert (info.spec.name, info.spec.total_bytes) == ("host", 8 * GIB)
    assert info.spec.headroom_bytes == round(8 * GIB * 0.05) + GIB
    assert Headroom(0.5, 9 * GIB).of(8 * GIB) == 8 * GIB


async def test_held_is_the_whole_familys_resident_memory(machine: Machine) -> None:
    """An engine behind a wrapper counts; a neighbour does not; what others use outside the budget costs nothing."""
    machine.process(10, rss=GIB)
    machine.process(11, parent=10, rss=2 * GIB)
    machine.process(12, parent=11, rss=GIB // 2)
    machine.process(13, rss=5 * GIB)
    (read,) = await machine.monitor(8 * GIB).read({InstanceId(7): 10})
    assert read.held == ((7, 3 * GIB + GIB // 2),)
    assert read.used_bytes == 3 * GIB + GIB // 2
    assert read.total_bytes == 8 * GIB


async def test_L2_a_shared_file_is_held_in_full_by_each(machine: Machine) -> None:
    """A measurement must be what the engine takes when it is alone with the file; the machine gives the file once."""
    for pid in (10, 11):
        machine.process(pid, rss=3 * GIB, file=GIB)  # 2 GiB of weights, half of them each one's share
    machine.free(5 * GIB)
    (read,) = await machine.monitor(9 * GIB).read({InstanceId(7): 10, InstanceId(8): 11})
    assert read.held == ((7, 3 * GIB), (8, 3 * GIB))
    assert read.used_bytes == 6 * GIB  # the 3 GiB left of the budget could be had: 5 less the weights


async def test_a_closed_smaps_file_falls_back_to_the_status(machine: Machine) -> None:
    """Which any user may read."""
    machine.process(10, rss=3 * GIB, closed=True)
    (read,) = await machine.monitor(8 * GIB).read({InstanceId(7): 10})
    assert read.held == ((7, 3 * GIB),)


async def test_a_process_that_is_gone_is_missing(machine: Machine) -> None:
    """It holds nothing, and no figure is made up for it."""
    (read,) = await machine.monitor(8 * GIB).read({InstanceId(7): 10})
    assert read.held == ()
    assert read.used_bytes == 0


async def test_memory_that_others_take_out_of_the_budget_is_used(machine: Machine) -> None:
    """5 GiB of the budget are unused and only 2 could be had: 3 are somebody else's now (L3)."""
    machine.process(10, rss=3 * GIB)
    machine.free(2 * GIB)
    (read,) = await machine.monitor(8 * GIB).read({InstanceId(7): 10})
    assert read.used_bytes == 3 * GIB + 3 * GIB


async def test_our_mapped_weights_are_not_free_for_the_asking(machine: Machine) -> None:
    """The kernel calls mapped file pages available; the engine needs them where they are."""
    machine.process(10, rss=3 * GIB, file=2 * GIB)
    machine.free(6 * GIB)
    (read,) = await machine.monitor(8 * GIB).read({InstanceId(7): 10})
    assert read.used_bytes == 3 * GIB + (5 - (6 - 2)) * GIB


async def test_a_budget_given_by_hand_needs_no_proc(machine: Machine) -> None:
    """On a system that tells nothing the budget is taken at its word."""
    shutil.rmtree(machine.proc)
    (read,) = await machine.monitor(8 * GIB).read({InstanceId(7): 10})
    assert (read.used_bytes, read.held) == (0, ())


def test_a_half_written_stat_file_is_passed_over(machine: Machine) -> None:
    """A process that ends while we look takes nobody with it."""
    machine.process(10)
    (machine.proc / "10" / "stat").write_text("10 (x")
    machine.process(11, parent=10)
    assert process_trees({10}, machine.proc) == {10: {10, 11}}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the real /proc")
def test_a_real_child_is_measured() -> None:
    """On the machine itself: 64 MiB in a child of a child show as held by the family."""
    size = 64 << 20
    inner = f"import sys; block = b'x' * {size}; print('ready', flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        tree = process_trees({child.pid, os.getpid()})
        memory = memory_of(tree[child.pid])
        child.stdin.close()
    assert len(tree[child.pid]) == 2
    assert tree[child.pid] < tree[os.getpid()]
    assert memory is not None
    assert size <= memory.total_bytes < 3 * size


@pytest.mark.parametrize(("limit", "expected"), [(str(6 * GIB), 6 * GIB), ("max", 99999999 * 1024)])
def test_E24_beside_cards_the_host_has_what_the_machine_or_a_control_group_has(
    machine: Machine, limit: str, expected: int
) -> None:
    """Its size does not depend on what is free; that is read when it is asked for."""
    machine.in_groups("0::/box")
    machine.group("box", limit, GIB, 0)
    host = HostBesideCards(Headroom(0.0, GIB), machine.proc, machine.cgroup)
    assert (host.spec.name, host.spec.total_bytes, host.spec.headroom_bytes) == ("host", expected, GIB)
    assert host.available_bytes() == min(16 * GIB, expected - GIB)
    machine.free(2 * GIB)
    assert host.available_bytes() == 2 * GIB
    (machine.proc / "meminfo").unlink()
    assert host.available_bytes() is None


def test_a_machine_that_is_given_more_memory_has_more(machine: Machine) -> None:
    """A virtual machine grows, a group's limit is moved: the size is read when it is asked for."""
    machine.in_groups("0::/box")
    machine.group("box", "max", GIB, 0)
    host = HostBesideCards(NO_HEADROOM, machine.proc, machine.cgroup)
    machine.group("box", str(4 * GIB), GIB, 0)
    assert host.spec.total_bytes == 4 * GIB
    (machine.proc / "meminfo").unlink()
    assert host.spec.total_bytes == 4 * GIB


@pytest.mark.parametrize(("high", "room"), [("max", 7 * GIB), (str(5 * GIB), 4 * GIB)])
def test_a_group_that_slows_its_processes_down_earlier_counts_from_there(
    machine: Machine, high: str, room: int
) -> None:
    """Beyond `memory.high` the kernel takes pages back all the time: nothing is to be planned there."""
    machine.in_groups("0::/box")
    machine.group("box", str(8 * GIB), GIB, 0)
    (machine.cgroup / "box" / "memory.high").write_text(f"{high}\n")
    assert available_bytes(machine.proc, machine.cgroup) == room


@pytest.mark.parametrize("hidden", [False, True])
def test_a_control_group_of_the_first_version_counts(machine: Machine, hidden: bool) -> None:
    """A number that no machine reaches stands for no limit. In a container our own group is hidden, and the root that
    is seen is it."""
    machine.in_groups("5:cpu,cpuacct:/", "4:memory:/docker/box", "1:name=systemd:/")
    for path, limit in (("docker/box", 6 * GIB), ("docker", 9223372036854771712)):
        folder = machine.cgroup / "memory" / ("" if hidden and path == "docker/box" else path)
        if hidden and path == "docker":
            continue
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{3 * GIB}\n")
        (folder / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {2 * GIB}\n")
    assert total_bytes(machine.proc, machine.cgroup) == 6 * GIB
    assert available_bytes(machine.proc, machine.cgroup) == 5 * GIB


def pressure(some: float, full: float) -> str:
    """A file as the kernel writes it."""
    rest = "avg60=9.00 avg300=9.00 total=123"
    return f"some avg10={some:.2f} {rest}\nfull avg10={full:.2f} {rest}\n"


def test_pressure_is_the_machines_or_our_groups_whichever_is_worse(machine: Machine) -> None:
    """A group that is at its limit waits while the machine has memory. Where nothing is told, nothing is made up."""
    assert memory_pressure(machine.proc, machine.cgroup) is None
    (machine.proc / "pressure").mkdir()
    (machine.proc / "pressure" / "memory").write_text(pressure(12.5, 3.0))
    assert memory_pressure(machine.proc, machine.cgroup) == MemoryPressure(0.125, 0.03)
    machine.in_groups("0::/box")
    machine.group("box", "max", GIB, 0)
    (machine.cgroup / "box" / "memory.pressure").write_text(pressure(4.0, 4.0))
    assert memory_pressure(machine.proc, machine.cgroup) == MemoryPressure(0.125, 0.04)
    (machine.proc / "pressure" / "memory").write_text("some\n")
    assert memory_pressure(machine.proc, machine.cgroup) == MemoryPressure(0.04, 0.04)


def numbered(machine: Machine, name: str, numbers: str, namespace: str) -> None:
    """A process's numbers in the namespaces that it is in, and its own namespace."""
    folder = machine.proc / name
    (folder / "ns").mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\n")
    (folder / "ns" / "pid").symlink_to(f"pid:[{namespace}]")


def test_D4_in_a_container_with_its_hosts_proc_our_processes_are_found_there(machine: Machine) -> None:
    """By their last number, in our own namespace alone: another container has a process 42, too."""
    for pid, parent in ((5042, 5001), (5043, 5042), (6042, 1), (6077, 1), (42, 1)):
        machine.process(pid, parent=parent)
    numbered(machine, "self", "5001\t1", "402")
    for name, numbers, namespace in (
        ("5042", "5042 42", "402"),
        ("5043", "5043 43", "402"),
        ("6042", "6042 42", "777"),
        ("6077", "6077 77", "777"),
        ("42", "42", "1"),
    ):
        numbered(machine, name, numbers, namespace)
    assert process_trees({42, 77}, machine.proc) == {42: {5042, 5043}, 77: frozenset()}
