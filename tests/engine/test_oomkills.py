"""P6a: a kernel that was short of memory is told from a person's kill -9 by what it counts."""

from pathlib import Path

import pytest

from gridsched.engine.oomkills import OomKills


def machine(root: Path, groups: str, **files: str) -> None:
    """A machine's own files: the control groups of this process, and counters by place."""
    places = {
        "v2": root / "sys/fs/cgroup/user/app/memory.events",
        "v1": root / "sys/fs/cgroup/memory/app/memory.oom_control",
        "all": root / "proc/vmstat",
    }
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(groups, encoding="utf-8")
    for name, text in files.items():
        places[name].parent.mkdir(parents=True, exist_ok=True)
        places[name].write_text(text, encoding="utf-8")


EVENTS = "low 0\nhigh 0\nmax 3\noom 2\noom_kill {}\noom_group_kill 9\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "pgfault 12\noom_kill {}\nswap_ra 1\n"


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/user/app\n", {"v2": EVENTS.format(4), "all": VMSTAT.format(7)}, 4),
        ("9:name=systemd:/\n4:cpu,memory:/app\n0::/\n", {"v1": CONTROL.format(5), "all": VMSTAT.format(7)}, 5),
        ("0::/gone\n", {"all": VMSTAT.format(7)}, 7),
        ("", {"all": "pgfault 12\n"}, None),
        ("0::/user/app\n", {"v2": "oom_kill many\n"}, None),
    ],
)
def test_the_closest_counter_is_read(tmp_path: Path, groups: str, files: dict[str, str], count: int | None) -> None:
    """Our own control group's, in either version, before the whole machine's; none where nobody counts."""
    machine(tmp_path, groups, **files)
    assert OomKills(tmp_path).count() == count


def test_this_machine_counts() -> None:
    """Every kernel since 4.13 does."""
    assert OomKills().count() is not None


def test_P6a_each_such_death_is_told_of_one_process(tmp_path: Path) -> None:
    """Two were taken since these three began: two are told, and the third was somebody else's."""
    machine(tmp_path, "", all=VMSTAT.format(1))
    kills = OomKills(tmp_path)
    before = kills.count()
    assert kills.took_one(before) is False
    machine(tmp_path, "", all=VMSTAT.format(3))
    assert [kills.took_one(before) for _ in range(3)] == [True, True, False]
    assert kills.took_one(None) is None
