"""Engine builds side by side: whole or not there, one pinned, and a way back."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gridsched.engine.builds import BuildError, Builds, Installed


def add(builds: Builds, name: str) -> Installed:
    """A build with a program in it."""
    with builds.staging() as place:
        program = place / "tree" / "bin" / "llama-server"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        return builds.add(place / "tree", Installed(name, program, "there", "0" * 64, "v1", "cpu", "2026-11-30"))


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path / "engines")


def test_builds_lie_side_by_side_and_one_is_pinned(builds: Builds) -> None:
    """With where they came from; what was pinned before is what rollback pins, over and over."""
    first, second = add(builds, "b1"), add(builds, "b2")
    assert builds.all() == (first, second)
    assert builds.pinned() is None
    builds.pin(first.program)
    builds.pin(second.program)
    assert builds.pinned() == second.program
    assert builds.rollback() == first.program
    assert builds.pinned() == first.program
    assert builds.rollback() is None
    with pytest.raises(BuildError, match="nothing to go back to"):
        builds.rollback()


def test_no_pin_is_remembered_like_one(builds: Builds, tmp_path: Path) -> None:
    """`use auto` after a pin can be taken back, too."""
    builds.pin(tmp_path / "elsewhere" / "llama-server")
    builds.pin(None)
    assert builds.pinned() is None
    assert builds.rollback() == tmp_path / "elsewhere" / "llama-server"


def test_a_data_directory_that_was_moved_keeps_its_pin(builds: Builds, tmp_path: Path) -> None:
    """The pin is told by its place among the builds."""
    builds.pin(add(builds, "b1").program)
    builds.folder.rename(tmp_path / "moved")
    moved = Builds(tmp_path / "moved")
    assert moved.pinned() == tmp_path / "moved" / "b1" / "bin" / "llama-server"
    assert moved.all()[0].program == moved.pinned()


def test_what_a_killed_installation_left_is_no_build_and_goes(builds: Builds) -> None:
    """The next one takes it away."""
    left = builds.folder / ".new-left" / "tree"
    left.mkdir(parents=True)
    assert builds.all() == ()
    add(builds, "b1")
    assert not left.exists()
    assert [build.name for build in builds.all()] == ["b1"]


def test_one_installation_at_a_time(builds: Builds) -> None:
    """Two would take each other's folders away."""
    with builds.staging(), pytest.raises(BuildError, match="at work"), builds.staging():
        pass


@pytest.mark.parametrize(
    "name", ["", "../up", ".hidden", "a b", "x" * 101, "a/b", "auto", "pinned.json", "pinned.json.new"]
)
def test_a_name_that_is_none_is_refused(builds: Builds, name: str) -> None:
    """It becomes a folder."""
    with pytest.raises(BuildError, match="no name"):
        builds.check_name(name)


def test_a_build_is_never_replaced(builds: Builds) -> None:
    """A running server may hold it."""
    add(builds, "b1")
    with pytest.raises(BuildError, match=r"already: gridsched engine use \S+ pins it"):
        add(builds, "b1")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pins": 3}', "\x00", "[" * 100_000])
def test_a_damaged_pin_is_told_and_not_guessed(builds: Builds, text: str) -> None:
    """Another engine than the pinned one would be a surprise."""
    builds.folder.mkdir()
    (builds.folder / "pinned.json").write_text(text)
    with pytest.raises(BuildError, match=r"pinned\.json cannot be read"):
        builds.pinned()
    builds.pin(Path("/opt/llama-server"))
    assert builds.pinned() == Path("/opt/llama-server"), "as the sentence says: pin an engine anew"


def test_pins_of_many_at_once_are_all_kept(builds: Builds) -> None:
    """Each reads what was pinned before and writes it back with its own."""
    programs = {Path(f"/opt/{number}/llama-server") for number in range(8)}
    with ThreadPoolExecutor(len(programs)) as pool:
        list(pool.map(lambda program: Builds(builds.folder).pin(program), programs))
    assert {builds.pinned(), *(builds.rollback() for _ in programs)} == {*programs, None}


@pytest.mark.parametrize("text", ["", "{}", '{"program": "x"}', "[1]"])
def test_a_folder_that_is_no_build_is_passed_over(builds: Builds, text: str) -> None:
    """People keep things wherever there is a folder."""
    (builds.folder / "notes").mkdir(parents=True)
    (builds.folder / "notes" / "build.json").write_text(text)
    assert builds.all() == ()
