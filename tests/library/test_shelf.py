"""The folder for downloads: where files go, what is ours, what may be deleted."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from gridsched.library.hub import Found, HubFile, Repo
from gridsched.library.shelf import NotOurs, Shelf

REPO = "someone/tiny-GGUF"


def repo(*files: HubFile) -> Repo:
    """A repository of these files."""
    return Repo(Found(REPO, 0, 0, "", "", False, (), "", None), "1f" * 20, files)


def file(path: str, data: bytes = b"data") -> HubFile:
    """A file as the hub lists it."""
    return HubFile(path, len(data), sha256(data).hexdigest(), "")


def bring(shelf: Shelf, *files: HubFile, data: bytes = b"data") -> None:
    """Have these files on the shelf."""
    for each in files:
        partial = shelf.partial(REPO, each)
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
    shelf.put(repo(*files), files)


def test_files_lie_as_in_their_repository(tmp_path: Path) -> None:
    """Under its publisher and its name, and the same version is not fetched twice."""
    shelf, one = Shelf(tmp_path / "models"), file("Q8_0/tiny-Q8_0.gguf")
    assert not shelf.has(repo(one), one)
    bring(shelf, one)
    assert (tmp_path / "models" / REPO / "Q8_0" / "tiny-Q8_0.gguf").read_bytes() == b"data"
    assert shelf.has(repo(one), one)
    assert shelf.partials() == ()


def test_what_has_the_name_already_is_not_written_over(tmp_path: Path) -> None:
    """Another version of it, or a file that somebody put there."""
    shelf, one = Shelf(tmp_path), file("tiny.gguf")
    bring(shelf, one)
    with pytest.raises(NotOurs, match=r"tiny\.gguf is there already, and is another version"):
        shelf.has(repo(), file("tiny.gguf", b"DATA"))
    theirs = shelf.target(REPO, "theirs.gguf")
    theirs.write_bytes(b"data")
    with pytest.raises(NotOurs, match="did not download"):
        shelf.has(repo(), file("theirs.gguf"))


def test_parts_of_two_versions_are_not_mixed(tmp_path: Path) -> None:
    """What came of one is not the beginning of another; both are listed under the file's name."""
    shelf = Shelf(tmp_path)
    for data in (b"old", b"new"):
        partial = shelf.partial(REPO, file("tiny.gguf", data))
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
    assert [(each.id, each.size_bytes) for each in shelf.partials()] == [(f"{REPO}/tiny.gguf", 3)] * 2
    assert shelf.drop_partials(f"{REPO}/tiny.gguf") == 6
    assert list(tmp_path.iterdir()) == []


def test_downloads_of_one_repository_that_end_together_are_all_noted(tmp_path: Path) -> None:
    """Each in a thread of its own: nobody's line of the record is lost, or another's file in its way."""
    shelf, files = Shelf(tmp_path), [file(f"tiny-{number}.gguf") for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda each: bring(shelf, each), files))
    assert all(shelf.has(repo(*files), each) for each in files)
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda each: shelf.remove([shelf.target(REPO, each.path)]), files))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["../x.gguf", "/etc/x.gguf", "a//x.gguf", "a/../../x.gguf", ".x.gguf", "a\\x.gguf", "x\n"]
)
def test_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    """Whatever the hub says a file is called."""
    with pytest.raises(NotOurs):
        Shelf(tmp_path).target(REPO, path)


def test_only_what_was_downloaded_is_deleted(tmp_path: Path) -> None:
    """Not what a person put beside it, not what lies elsewhere, not by a link; and then not a part of it either."""
    shelf, one = Shelf(tmp_path / "models"), file("tiny.gguf")
    bring(shelf, one)
    ours = shelf.target(REPO, "tiny.gguf")
    beside, elsewhere, link = ours.with_name("mine.gguf"), tmp_path / "x.gguf", ours.with_name("link.gguf")
    beside.write_bytes(b"mine")
    elsewhere.write_bytes(b"mine")
    link.symlink_to(ours)
    for path in (beside, elsewhere, link, tmp_path / "models" / REPO / ".." / ".." / ".." / "x.gguf"):
        with pytest.raises(NotOurs, match=path.name):
            shelf.remove([ours, path])
    assert ours.exists()
    assert shelf.remove([ours]) > 0
    assert not ours.exists()
    assert beside.exists()
    assert sorted(path.name for path in shelf.home(REPO).iterdir()) == ["link.gguf", "mine.gguf"]


def test_nothing_is_left_of_a_repository_that_is_deleted(tmp_path: Path) -> None:
    """Its projector goes with the last of its models, and so do its folders."""
    shelf = Shelf(tmp_path / "models")
    q4, q8, eyes = file("m-Q4.gguf"), file("Q8/m-Q8.gguf"), file("mmproj-F16.gguf")
    bring(shelf, q4, q8, eyes)
    first = [shelf.target(REPO, q4.path)]
    assert shelf.projectors_left_alone(first) == ()
    shelf.remove(first)
    last = [shelf.target(REPO, q8.path)]
    assert shelf.projectors_left_alone(last) == (shelf.target(REPO, eyes.path),)
    shelf.remove([*last, shelf.target(REPO, eyes.path)])
    assert list((tmp_path / "models").iterdir()) == []


def test_a_record_that_cannot_be_read_makes_nothing_ours(tmp_path: Path) -> None:
    """Then nothing is deleted."""
    shelf, one = Shelf(tmp_path), file("tiny.gguf")
    bring(shelf, one)
    (shelf.home(REPO) / ".gridsched.json").write_text("{")
    with pytest.raises(NotOurs):
        shelf.remove([shelf.target(REPO, "tiny.gguf")])
