"""Records and files of batches on disk: what survives what, and what is left behind."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from gridsched.store.batches import BatchRecord, BatchStore, FileRecord, LineError, Status, StoreError
from gridsched.store.folder import Folder
from tests.store.test_full_disk import Disk, limit, tmpfs
from tests.store.test_stores import Said

FILE = FileRecord("file-1", "me", "in.jsonl", "batch", 3, 1_800_000_000)
BATCH = BatchRecord(
    "batch_1",
    "me",
    "/v1/embeddings",
    "file-1",
    "24h",
    86400.0,
    "batch",
    1_800_000_000,
    metadata={"a": "b"},
    errors=(LineError("invalid_json_line", "no", 3),),
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder of files."""
    found = Folder(tmp_path / "files")
    found.open(())
    return found


def answer(number: int, text: str = "") -> bytes:
    """A line about an answer."""
    return b'{"id":"batch_req_1_%d","text":"%s"}\n' % (number, text.encode())


async def test_records_are_there_again_in_their_order(tmp_path: Path) -> None:
    """New, changed and dropped ones."""
    said = Said()
    with closing(BatchStore(tmp_path, said)) as store:
        await store.change([FILE, BATCH])
        changed = BatchRecord(**{**{name: getattr(BATCH, name) for name in BATCH.__struct_fields__}, "total": 7})
        await store.change([changed], drop=["file-none"])
    with closing(BatchStore(tmp_path, said)) as store:
        assert (store.files(), store.batches()) == ((FILE,), (changed,))
        assert (store.file("batch_1"), store.batch("file-1")) == (None, None)
        assert store.by_status()[Status.VALIDATING] == 1
        await store.change(drop=["file-1"])
    with closing(BatchStore(tmp_path, said)) as store:
        assert store.files() == ()
    assert said == []


async def test_a_damaged_file_is_set_aside_and_nothing_of_clients_is_removed(tmp_path: Path) -> None:
    """It is said; the files of batches that nobody knows any more stay where they are."""
    with closing(BatchStore(tmp_path, Said())) as store:
        await store.change([FILE])
        (tmp_path / "files" / "file-1").write_bytes(b"abc")
    (tmp_path / "batches.sqlite3").write_bytes(b"this is no database" * 400)
    said = Said()
    with closing(BatchStore(tmp_path, said)) as store:
        assert (store.files(), store.why_closed) == ((), None)
        await store.change([FILE])
    assert len(said) == 2
    assert "damaged" in said[0]
    assert "has 1 files that no record names" in said[1]
    assert (tmp_path / "batches.sqlite3.damaged").exists()
    assert (tmp_path / "files" / "file-1").read_bytes() == b"abc"


async def test_a_row_that_makes_no_sense_costs_only_itself(tmp_path: Path) -> None:
    """It is said, and the others are there."""
    with closing(BatchStore(tmp_path, Said())) as store:
        await store.change([FILE, BATCH])
    with closing(sqlite3.connect(tmp_path / "batches.sqlite3")) as connection, connection:
        connection.execute("UPDATE record SET body = '{\"kind\": \"batch\"}' WHERE id = 'batch_1'")
        connection.execute("INSERT INTO record (id, body) VALUES ('x', x'fffe')")
    said = Said()
    with closing(BatchStore(tmp_path, said)) as store:
        assert (store.files(), store.batches()) == ((FILE,), ())
    assert len(said) == 1
    assert said[0].startswith("2 files or batches")


async def test_a_file_of_a_newer_version_is_left_alone_and_files_are_refused(tmp_path: Path) -> None:
    """And the reason can be told."""
    with closing(sqlite3.connect(tmp_path / "batches.sqlite3")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with closing(BatchStore(tmp_path, Said())) as store:
        assert "newer version" in str(store.why_closed)
        with pytest.raises(StoreError, match="closed"):
            await store.change([FILE])


@pytest.mark.parametrize("disk", [tmpfs, limit])
async def test_a_full_disk_refuses_a_change_whole_and_takes_the_next(tmp_path: Path, disk: Disk) -> None:
    """Nothing of it has happened, on disk or in memory."""
    with disk(tmp_path) as (place, fill, empty), closing(BatchStore(place, Said())) as store:
        await store.change([FILE])
        fill()
        big = [FileRecord(f"file-{number}", "me", "x" * 900, "batch", 1, 1) for number in range(2, 900)]
        with pytest.raises(StoreError, match="cannot be written"):
            await store.change(big, drop=["file-1"])
        assert store.files() == (FILE,)
        empty()
        await store.change(big, drop=["file-1"])
        assert len(store.files()) == 898
        store.close()
        with closing(BatchStore(place, Said())) as again:
            assert len(again.files()) == 898


@pytest.mark.parametrize("disk", [tmpfs, limit])
def test_a_full_disk_takes_an_answer_whole_or_not_at_all(tmp_path: Path, disk: Disk) -> None:
    """What was half written is cut off, and the next is behind the last whole one."""
    with disk(tmp_path) as (place, fill, empty):
        folder = Folder(place / "files")
        folder.open(())
        answers = folder.answers("batch_1")
        assert answers.open() == (set(), set())
        answers.well.append(answer(1))
        fill()
        with pytest.raises(OSError, match=r"space|large"):
            answers.well.append(answer(2, "x" * 100_000))
        empty()
        assert folder.path("batch_1.output").read_bytes() == answer(1)
        answers.well.append(answer(3))
        assert folder.path("batch_1.output").read_bytes() == answer(1) + answer(3)
        answers.close()


TORN = [b'{"id":"batch_req_1_3","te', b"\0" * 50, b'{"id":"batch_req_1_3"}', b"{}\n", b'{"id":"nothing"}\n', b"\xff\n"]


@pytest.mark.parametrize("tail", TORN)
def test_what_is_behind_the_last_whole_answer_is_cut_off(folder: Folder, tail: bytes) -> None:
    """A server that was killed in mid-write, or a machine that lost its power: that line runs again."""
    path = folder.path("batch_1.output")
    path.write_bytes(answer(1) + answer(2) + tail + answer(4))
    answers = folder.answers("batch_1")
    assert answers.open() == ({1, 2}, set())
    assert path.read_bytes() == answer(1) + answer(2)
    answers.close()


def test_the_end_of_a_batch_is_done_once_wherever_it_was_cut_off(folder: Folder) -> None:
    """Between the two renames, or after both; an empty one is no file."""
    answers = folder.answers("batch_1")
    answers.open()
    answers.well.append(answer(1))
    assert answers.well.finish(folder.path("file-2")) == len(answer(1))
    again = folder.answers("batch_1")
    assert again.well.finish(folder.path("file-2")) == len(answer(1))
    assert again.badly.finish(folder.path("file-3")) == 0
    assert {path.name for path in folder.path("").iterdir()} == {"file-2"}


async def test_a_file_that_had_come_when_the_server_was_killed_is_whole_or_gone(tmp_path: Path) -> None:
    """Its record is first, so nothing is left on disk that nobody knows; what was half removed is removed again."""
    other = msgspec.structs.replace(FILE, id="file-2")
    with closing(BatchStore(tmp_path, Said())) as store:
        await store.change([FILE, other])
        (tmp_path / "files" / "file-1.part").write_bytes(b"abc")
    said = Said()
    with closing(BatchStore(tmp_path, said)) as store:
        assert [(path.name, path.read_bytes()) for path in (tmp_path / "files").iterdir()] == [("file-1", b"abc")]
        await store.forget(["file-1", "file-2"])
        assert (store.files(), list((tmp_path / "files").iterdir())) == ((), [])
        with pytest.raises(FileNotFoundError):
            await store.keep(FILE)
        assert store.files() == ()
    assert said == []


@pytest.mark.parametrize("disk", [tmpfs, limit])
async def test_a_file_is_removed_from_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    """It is what makes the room."""
    with disk(tmp_path) as (place, fill, _empty), closing(BatchStore(place, Said())) as store:
        with store.folder.begin("file-1") as file:
            file.write(b"x" * 50_000)
        await store.keep(FILE)
        fill()
        with suppress(StoreError):
            await store.forget(["file-1"])
        assert list((place / "files").iterdir()) == []


async def test_a_start_removes_half_an_upload_and_tells_of_what_nobody_knows(tmp_path: Path) -> None:
    """A file without a record stays: the records may have been lost. The answers of a batch that runs are known."""
    over = BatchRecord("batch_2", "", "/v1/embeddings", "file-1", "24h", 1.0, "batch", 1, status=Status.COMPLETED)
    with closing(BatchStore(tmp_path, Said())) as store:
        await store.change([FILE, BATCH, over])
    kept = {"file-1", "batch_1.output", "batch_1.errors", "file-8", "batch_2.output"}
    for name in kept | {"file-9.part"}:
        (tmp_path / "files" / name).write_bytes(b"x")
    said = Said()
    with closing(BatchStore(tmp_path, said)):
        assert {path.name for path in (tmp_path / "files").iterdir()} == kept
    assert len(said) == 1
    assert "has 2 files that no record names" in said[0]


def test_a_folder_that_cannot_be_made_refuses_files(tmp_path: Path) -> None:
    """With the reason."""
    (tmp_path / "files").write_bytes(b"in the way")
    said = Said()
    with closing(BatchStore(tmp_path, said)) as store:
        assert "files and batches are refused" in str(store.why_closed)
    assert len(said) == 1
