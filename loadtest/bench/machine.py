"""Where a benchmark runs: processor, memory, kernel, versions, load. Must never tell a host's name or a path."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from loadtest.bench.processes import ROOT, printed
from loadtest.bench.result import BenchFault, Machine

OURS = ("trio", "hypercorn", "h11", "msgspec")
"""Packages whose versions decide how fast we are."""
_FOLDERS = re.compile(r"(?<![\w:/.])/([^\s/'\",:;()]+)/(?:[^\s/'\",:;()]+/)*")


def machine(versions: Mapping[str, str]) -> Machine:
    """The machine as it is now. `versions`: of programs under test, beside those of our own packages."""
    return Machine(
        cpu=_cpu(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={**{name: _version(name) for name in OURS}, **versions},
        load_before=load(),
    )


def without_paths(text: str) -> str:
    """What a program said, in one line, with only the last part of each file's path; a URL's path is left as it is."""
    line = " ".join(text.split())
    return _FOLDERS.sub(lambda found: ".../" if Path("/", found[1]).exists() else found[0], line)


def load() -> float:
    """How many wanted a processor, on average over the last minute."""
    return os.getloadavg()[0]


def revision(tree: Path = ROOT) -> str:
    """The tree's commit, with + where its files differ from it; "" where that is not known."""
    try:
        commit = printed(("git", "rev-parse", "--short=12", "HEAD"), cwd=tree)
        changed = printed(("git", "status", "--porcelain", "--untracked-files=no"), cwd=tree)
    except BenchFault:
        return ""
    return f"{commit}+" if changed else commit


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = next((line for line in lines if line.startswith("model name")), f": {platform.machine()}")
    return named.partition(":")[2].strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
