"""The house's own rules, checked: sizes, purity, words, and documentation that names what exists."""

import ast
import re
import subprocess
import sys
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


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCE, ids=label)
def test_a_source_file_is_of_a_size_that_can_be_read(path: Path) -> None:
    """No file over 700 lines; one over 500 gives its reason; every module says what it owns."""
    text = path.read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert doc, "a module says at its top what it owns and what it must never do"
    lines = text.count("\n")
    assert lines <= LONGEST_FILE
    assert lines <= LONG_FILE or "long" in doc.lower(), "over 500 lines: the docstring says why it is this long"


@pytest.mark.parametrize("path", SOURCE, ids=label)
def test_a_function_is_of_a_size_that_can_be_read(path: Path) -> None:
    """No function over the limit."""
    too_long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path) if f.end_lineno is not None}
    assert {name: lines for name, lines in too_long.items() if lines > LONGEST_FUNCTION} == {}


@pytest.mark.parametrize("path", PURE, ids=label)
def test_the_pure_floors_import_nothing_that_acts(path: Path) -> None:
    """No clock, randomness, logging, files or trio in core and vram."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}, f"line {node.lineno}"
    assert imported & IMPURE_NAMES == set()


@pytest.mark.parametrize("path", TESTS, ids=label)
def test_a_test_says_what_it_shows_and_does_not_sleep(path: Path) -> None:
    """Every test has a docstring and checks something; none sleeps on the wall clock."""
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\btime\.sleep\(", text) or path.name == "fake_llama_server.py"
    for function in functions(path):
        if not function.name.startswith("test_"):
            continue
        assert ast.get_docstring(function), f"{function.name}: one line that says the behaviour"
        body = ast.dump(function)
        assert any(word in body for word in ("Assert(", "raises", "check", "expect", "assert")), (
            f"{function.name} asserts nothing"
        )


def test_every_skip_gives_its_reason() -> None:
    """A skipped test that does not say why is a test that nobody misses."""
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in {"skip", "skipif", "xfail"}:
                reasons = [word.arg for word in node.keywords if word.arg == "reason"]
                assert reasons, f"{label(path)}:{node.lineno}"


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
