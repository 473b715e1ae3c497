"""The house's own rules, checked: sizes, purity, words, and documentation that names what exists."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = sorted(path for top in ("gridsched", "sim", "loadtest") for path in (ROOT / top).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LONGEST_FILE, LONG_FILE, LONGEST_FUNCTION = 700, 500, 60
"""Lines. A file over LONG_FILE says in its docstring why. Functions aim at 40: the rest is for tables and dispatch."""

PURE = [path for path in SOURCE if path.relative_to(ROOT).parts[:2] in (("gridsched", "core"), ("gridsched", "vram"))]
IMPURE_NAMES = {"time", "datetime", "random", "secrets", "logging", "os", "pathlib", "trio", "socket", "subprocess"}


def label(path: Path) -> str:
    """A path as a test's id."""
    return str(path.relative_to(ROOT))


@dataclass
class Facts:
    """What the rules ask of one file, read and parsed once."""

    text: str
    doc: str
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)
    imported: set[str] = field(default_factory=set)
    calls: list[ast.Call] = field(default_factory=list)


def facts(path: Path) -> Facts:
    """A file taken apart."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = Facts(text, ast.get_docstring(tree) or "")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.append(node)
        elif isinstance(node, ast.Import):
            found.imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.imported.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call):
            found.calls.append(node)
    return found


def test_a_source_file_is_of_a_size_that_can_be_read_and_pure_where_it_must_be() -> None:
    """No file over 700 lines, one over 500 gives its reason, every module says what it owns, no function is over the
    limit; in core and vram no clock, randomness, logging, files or trio."""
    faults = []
    for path in SOURCE:
        found = facts(path)
        lines = found.text.count("\n")
        if not found.doc:
            faults.append(f"{label(path)}: a module says at its top what it owns and what it must never do")
        if lines > LONGEST_FILE or (lines > LONG_FILE and "long" not in found.doc.lower()):
            faults.append(f"{label(path)}: {lines} lines; over {LONG_FILE} the docstring says why it is this long")
        for function in found.functions:
            length = (function.end_lineno or 0) - function.lineno + 1
            if length > LONGEST_FUNCTION:
                faults.append(f"{label(path)}: {function.name} has {length} lines")
        if path in PURE:
            faults += [f"{label(path)}: imports {name}" for name in found.imported & IMPURE_NAMES]
            for call in found.calls:
                if isinstance(call.func, ast.Name) and call.func.id in {"open", "print", "input"}:
                    faults.append(f"{label(path)}:{call.lineno}: {call.func.id}()")
    assert PURE
    assert faults == []


def checks(function: ast.AST) -> bool:
    """Whether a test asserts something, or calls what does."""
    for node in ast.walk(function):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if isinstance(node, ast.Assert) or any(word in name for word in ("raises", "check", "expect", "assert")):
            return True
    return False


def test_a_test_says_what_it_shows_and_does_not_sleep_or_skip_in_silence() -> None:
    """Every test has a docstring and checks something, none sleeps on the wall clock, and one that is skipped gives
    its reason: without it nobody misses the test."""
    faults = []
    for path in TESTS:
        found = facts(path)
        if re.search(r"\btime\.sleep\(", found.text) and path.name != "fake_llama_server.py":
            faults.append(f"{label(path)}: sleeps")
        for function in found.functions:
            if function.name.startswith("test_"):
                if not ast.get_docstring(function):
                    faults.append(f"{label(path)}: {function.name}: one line that says the behaviour")
                if not checks(function):
                    faults.append(f"{label(path)}: {function.name} asserts nothing")
        for call in found.calls:
            skips = isinstance(call.func, ast.Attribute) and call.func.attr in {"skip", "skipif", "xfail"}
            if skips and not any(word.arg == "reason" for word in call.keywords):
                faults.append(f"{label(path)}:{call.lineno}: skips without a reason")
    assert faults == []


def test_the_floors_hold() -> None:
    """import-linter's contracts, over the whole import graph."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def tracked_files() -> list[Path]:
    """What git knows, or every file of ours where there is no git."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607 - git from PATH
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    return [*SOURCE, *TESTS]


def test_the_repository_names_no_machine_and_no_package_index() -> None:
    """No absolute path of somebody's machine, no index address, no binary of an engine or a model."""
    bad = re.compile(
        r"(?:^|[^\w.])/(?:home/[a-z]+|work|root|Users)/|index-url|pypi\.org/simple|files\.pythonhosted", re.MULTILINE
    )
    for path in tracked_files():
        assert path.suffix not in {".gguf", ".safetensors", ".so"}, path
        if path == Path(__file__) or path.suffix in {".gz", ".png"}:
            continue
        found = bad.search(path.read_text(encoding="utf-8", errors="replace"))
        assert found is None, f"{label(path)}: {found[0]!r}" if found else ""


def test_constraints_hold_names_and_versions_only() -> None:
    """A pin is `name==version` and nothing else."""
    for path in (ROOT / "constraints").glob("*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line), f"{path.name}: {line}"


@pytest.mark.parametrize(
    "folder", sorted(p.name for p in (ROOT / "gridsched").iterdir() if (p / "__init__.py").exists())
)
def test_every_folder_has_a_readme_that_names_its_files(folder: str) -> None:
    """A folder's README exists, and does not forget a module."""
    readme = ROOT / "gridsched" / folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    modules = [path.stem for path in (ROOT / "gridsched" / folder).glob("*.py") if path.stem != "__init__"]
    assert [name for name in modules if name not in text] == []
