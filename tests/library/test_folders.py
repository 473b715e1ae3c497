"""Whether the folders hold other files: what counts, what does not yet, and what a look costs."""

import os
import shutil
from pathlib import Path

import pytest

from gridsched.library import folders as module
from gridsched.library.catalog import ModelCatalog
from gridsched.library.folders import Folders
from gridsched.library.planning import Defaults
from gridsched.library.read import Headers
from gridsched.library.sources import read_library
from tests.library.catalogs import HOST
from tests.library.models import write_model

pytestmark = pytest.mark.usefixtures("old_folders")


@pytest.fixture
def old_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of a test are young, and would always be listed again."""
    monkeypatch.setattr(module, "SURE_NS", 0)


class Watch:
    """Folders as a server follows them."""

    def __init__(self, *roots: Path, files: tuple[Path, ...] = ()) -> None:
        self.folders = Folders()
        self._roots, self._files = roots, files
        self.folders.read(self._look())

    def _look(self) -> module.Seen:
        return self.folders.look(self._roots, self._files)

    def changes(self, looks: int = 2) -> list[bool]:
        """What some looks in a row find."""
        return [self.folders.changed(self._look()) for _ in range(looks)]


def test_nothing_changes_where_nothing_does(tmp_path: Path) -> None:
    """Files that are no models come and go unseen."""
    write_model(tmp_path / "a" / "m.gguf")
    watch = Watch(tmp_path)
    (tmp_path / "a" / "notes.txt").write_text("x")
    (tmp_path / "a" / "n.gguf.incomplete").write_text("x")
    (tmp_path / ".hidden.gguf").write_text("x")
    assert watch.changes() == [False, False]


def test_a_new_file_counts_once_it_stands_still(tmp_path: Path) -> None:
    """In a folder that is new, too."""
    watch = Watch(tmp_path)
    write_model(tmp_path / "p" / "r" / "m.gguf")
    assert watch.changes(3) == [False, True, False]


def test_a_file_that_grows_does_not_count_until_it_is_whole(tmp_path: Path) -> None:
    """However long its copy takes; then once."""
    watch, path = Watch(tmp_path), tmp_path / "m.gguf"
    for size in range(1, 5):
        path.write_bytes(bytes(size))
        assert watch.changes(1) == [False]
    assert watch.changes() == [True, False]


def test_a_file_that_was_half_there_when_the_library_was_read_is_read_again(tmp_path: Path) -> None:
    """It is not taken as damaged for ever."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    watch = Watch(tmp_path)
    write_model(path)
    assert watch.changes(3) == [False, True, False]


def test_a_file_that_is_gone_counts_at_once(tmp_path: Path) -> None:
    """And a whole folder."""
    write_model(tmp_path / "a" / "m.gguf")
    write_model(tmp_path / "n.gguf")
    watch = Watch(tmp_path)
    (tmp_path / "n.gguf").unlink()
    assert watch.changes() == [True, False]
    shutil.rmtree(tmp_path / "a")
    assert watch.changes() == [True, False]


def test_a_folder_that_is_away_as_a_whole_has_a_while_to_come_back(tmp_path: Path) -> None:
    """A disk that is not mounted for a moment takes no model away; one that stays away does, and is seen when it is
    back."""
    write_model(tmp_path / "disk" / "m.gguf")
    watch = Watch(tmp_path / "disk", tmp_path)
    (tmp_path / "disk").rename(tmp_path / ".away")
    assert not any(watch.changes(module.AWAY_LOOKS))
    (tmp_path / ".away").rename(tmp_path / "disk")
    assert not any(watch.changes(module.AWAY_LOOKS * 2))
    (tmp_path / "disk").rename(tmp_path / ".away")
    assert watch.changes(module.AWAY_LOOKS + 2) == [False] * module.AWAY_LOOKS + [True, False]
    (tmp_path / ".away").rename(tmp_path / "disk")
    assert watch.changes(3) == [False, True, False]
    (tmp_path / "disk" / "m.gguf").unlink()
    assert watch.changes() == [True, False]


def test_another_file_under_the_same_name_counts(tmp_path: Path) -> None:
    """By a rename, by a link that is set anew, and written over in place, which no folder's time tells."""
    path, link = write_model(tmp_path / "m.gguf"), tmp_path / "l.gguf"
    link.symlink_to("m.gguf")
    watch = Watch(tmp_path)
    write_model(tmp_path / "other.tmp", age_seconds=5).rename(path)
    assert watch.changes() == [False, True]
    write_model(tmp_path / "target.bin", age_seconds=9)
    link.unlink()
    link.symlink_to("target.bin")
    assert watch.changes() == [False, True]
    write_model(path, age_seconds=50)
    assert watch.changes() == [False, True]


def test_a_configured_file_is_looked_at_wherever_it_lies(tmp_path: Path) -> None:
    """And need not be there."""
    path = tmp_path / "elsewhere" / "m.gguf"
    watch = Watch(files=(path,))
    write_model(path)
    assert watch.changes() == [False, True]
    path.unlink()
    assert watch.changes() == [True, False]


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    """A folder is entered once, by whatever name."""
    write_model(tmp_path / "a" / "m.gguf")
    (tmp_path / "a" / "back").symlink_to(tmp_path)
    assert Watch(tmp_path).changes() == [False, False]


def test_a_library_is_read_again_without_the_files_and_plans_that_are_the_same(tmp_path: Path) -> None:
    """Headers are the very same objects, and so are plans; what changed is read and planned."""
    for name in "abc":
        write_model(tmp_path / f"{name}.gguf")
    headers = Headers()

    def read(before: ModelCatalog | None = None) -> ModelCatalog:
        with headers.remembering():
            library = read_library((), (tmp_path,))
        return ModelCatalog(library, (HOST,), {}, defaults=Defaults(), before=before)

    first = read()
    # Files as young as these are not believed to be the same.
    for path in tmp_path.iterdir():
        assert headers.find(path, any_byte_order=False) is None
    again = read(first)
    write_model(tmp_path / "b.gguf", age_seconds=7)
    third = read(again)
    options = [{model.name: model.spec.options for model in each.models() if model.spec} for each in (first, again)]
    assert options[0] == options[1]
    keys = [[model.spec.options[0].key for model in each.models() if model.spec] for each in (again, third)]
    assert [old == new for old, new in zip(*keys, strict=True)] == [True, False, True]


def test_a_header_is_remembered_by_its_stamp_and_forgotten_when_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same file is the same object; another under its name, or of another size, is read."""
    monkeypatch.setattr("gridsched.library.read.SURE_NS", 0)
    path = write_model(tmp_path / "m.gguf")
    headers = Headers()

    def header() -> object:
        with headers.remembering():
            (source,) = read_library((), (tmp_path,)).sources
        assert source.file is not None
        return source.file.header

    first = header()
    assert header() is first
    os.utime(path, (1, 1))
    second = header()
    assert second is not first
    with headers.remembering():
        pass
    assert headers.find(path, any_byte_order=False) is None
