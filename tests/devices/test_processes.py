"""Host memory of our processes (M11), over a /proc that the test lays out, and of a real one."""

import subprocess
import sys
from pathlib import Path

import trio

from gridsched.core.ids import InstanceId
from gridsched.devices.processes import HostHeld

ONE, TWO, THREE = InstanceId(1), InstanceId(2), InstanceId(3)
MIB = 1 << 20


def process(proc: Path, pid: int, parent: int, *, anon: int | None, swap: int = 0) -> None:
    """One process; `anon` None: a zombie, which tells nothing. MiB."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} (x) S {parent} {pid} {pid} 0\n")
    held = (
        ""
        if anon is None
        else f"VmRSS:\t99999 kB\nRssAnon:\t{anon * 1024} kB\nRssFile:\t88888 kB\nVmSwap:\t{swap * 1024} kB\n"
    )
    (folder / "status").write_text(f"Name:\tx\nState:\tS (sleeping)\n{held}")


async def test_M11_it_is_what_nobody_else_can_have_of_the_whole_family(tmp_path: Path) -> None:
    """Anonymous pages and what is swapped out, of a wrapper and what it has started; no mapped weights. A process that
    has ended, or that tells nothing, is missing."""
    process(tmp_path, 10, 1, anon=1)
    process(tmp_path, 11, 10, anon=200, swap=30)
    process(tmp_path, 12, 11, anon=4)
    process(tmp_path, 20, 1, anon=None)
    assert await HostHeld(tmp_path)({ONE: 10, TWO: 20, THREE: 30}) == {ONE: 235 * MIB}


def test_M11_a_process_that_grows_is_seen_to() -> None:
    """A real one that has taken 64 MiB for itself."""
    script = "import sys; kept = b'x' * (64 << 20); print('taken', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"taken\n"
        held = trio.run(HostHeld(), {ONE: child.pid})
        child.communicate(timeout=10)
    assert 64 * MIB < held[ONE] < 128 * MIB
