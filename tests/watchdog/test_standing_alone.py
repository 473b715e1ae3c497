"""The watchdog needs nothing of what it repairs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from tests.support.gateway import clean_environment

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / "gridsched" / "watchdog").glob("*.py"))
ON_THE_WAY = [ROOT / "gridsched" / name for name in ("__init__.py", "__main__.py")] + [
    ROOT / "gridsched" / "cli" / name for name in ("__init__.py", "main.py", "streams.py", "watchdog.py")
]


def imported(path: Path) -> set[str]:
    """The full names of what a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_the_watchdog_imports_the_standard_library_and_itself() -> None:
    """No library that has to be installed, and of gridsched nothing but the version."""
    for path in OWN:
        strange = {
            name
            for name in imported(path)
            if name.partition(".")[0] not in sys.stdlib_module_names
            and not name.startswith("gridsched.watchdog")
            and name != "gridsched.__version__"
        }
        assert strange == set(), path.name


def test_the_way_to_the_watchdog_imports_nothing_that_can_be_broken() -> None:
    """From the console script to its command: the standard library, the version, and the watchdog."""
    allowed = ("gridsched.watchdog", "gridsched.cli.streams", "gridsched.cli.main", "gridsched.__version__")
    for path in ON_THE_WAY:
        names = {name for name in imported(path) if name.partition(".")[0] not in sys.stdlib_module_names}
        assert {name for name in names if not name.startswith(allowed)} <= {"gridsched.cli.streams"}, path.name


def test_its_command_runs_without_any_installed_package() -> None:
    """An interpreter that has no third-party package at all knows `gridsched watchdog`."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "gridsched", "watchdog", "--help"],
        env=clean_environment() | {"PYTHONPATH": os.fspath(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--run" in done.stdout
