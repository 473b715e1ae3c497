"""The file of API keys: never half written, never mistaken for no keys (H6)."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gridsched.core.job import JobClass
from gridsched.credentials import ApiKey, Scope
from gridsched.settings.api_keys import (
    FILE,
    MOST_KEYS,
    PREFIX,
    KeyFile,
    KeysError,
    NoSuchChange,
    add_key,
    check_key,
    digest_of,
    new_secret,
    read_keys,
    revoke_key,
)

FULL = ApiKey(
    name="tom",
    sha256=digest_of("gs-tom"),
    scopes=(Scope.INFERENCE, Scope.ADMIN),
    created="2026-12-01T00:00:00Z",
    default_class=JobClass.BATCH,
    highest_class=JobClass.BACKGROUND,
    models=("a", "b/c@d"),
    concurrency=3,
    queue_share=0.25,
)


def key(name: str) -> ApiKey:
    """The least that a key may be."""
    return ApiKey(name, digest_of(name), (Scope.READ,))


def write(data_dir: Path, text: str | bytes, mode: int = 0o600) -> None:
    """Put a text in the file's place."""
    path = data_dir / FILE
    path.unlink(missing_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)


def test_H6_a_key_comes_back_as_it_was_kept_and_its_secret_is_nowhere(tmp_path: Path) -> None:
    """For this user's eyes only; a secret has 32 random bytes and a prefix by which it is known."""
    assert read_keys(tmp_path) == ()
    secret = new_secret()
    assert secret.startswith(PREFIX)
    assert len(secret) == len(PREFIX) + 43
    assert new_secret() != secret
    mine = replace(key("ann"), sha256=digest_of(secret))
    add_key(tmp_path, FULL)
    add_key(tmp_path, mine)
    assert read_keys(tmp_path) == (FULL, mine)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert secret not in (tmp_path / FILE).read_text(encoding="utf-8")
    assert revoke_key(tmp_path, "tom") == 1
    assert read_keys(tmp_path) == (mine,)


def test_H6_a_name_is_used_once_and_can_be_a_label(tmp_path: Path) -> None:
    """In any case of letters; what is refused changes nothing."""
    add_key(tmp_path, FULL)
    with pytest.raises(NoSuchChange, match="there is a key Tom already"):
        add_key(tmp_path, key("Tom"))
    with pytest.raises(NoSuchChange, match="there is no key 'ann'"):
        revoke_key(tmp_path, "ann")
    for name in ("", "a b", "ü", "-a", "a\n", "a" * 65, 'a"', "a/b", "{a}"):
        with pytest.raises(KeysError, match="a name has"):
            add_key(tmp_path, key(name))
    assert read_keys(tmp_path) == (FULL,)


WRONG = [
    {"sha256": "A" * 64},
    {"scopes": ()},
    {"concurrency": 0},
    {"queue_share": 0.0},
    {"queue_share": 1.01},
    {"queue_share": float("nan")},
    {"default_class": JobClass.INTERACTIVE},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_H6_a_key_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    """Before it is kept."""
    check_key(FULL)
    with pytest.raises(KeysError):
        check_key(replace(FULL, **wrong))  # type: ignore[arg-type]  # fields by name


ROW = '{"name": "a", "sha256": "%s", "scopes": ["read"]}' % ("0" * 64)
DAMAGED = {
    "empty": "",
    "cut off": '{"gridsched_keys": 1, "keys": [{"name"',
    "no object": "[]",
    "null": "null",
    "not UTF-8": b'{"gridsched_keys": 1, "keys": [\xff]}',
    "another format": '{"gridsched_keys": 2, "keys": []}',
    "without format": '{"keys": []}',
    "an unknown bound": f'{{"gridsched_keys": 1, "keys": [{ROW[:-1]}, "only_on_mondays": true}}]}}',
    "an unknown scope": f'{{"gridsched_keys": 1, "keys": [{ROW.replace("read", "all")}]}}',
    "an unknown class": f'{{"gridsched_keys": 1, "keys": [{ROW[:-1]}, "highest_class": "slow"}}]}}',
    "a name that is none": f'{{"gridsched_keys": 1, "keys": [{ROW.replace("a", "a b", 1)}]}}',
    "twice": f'{{"gridsched_keys": 1, "keys": [{ROW}, {ROW}]}}',
    "deep": b'{"gridsched_keys":' + b"[" * 100_000,
    "long": b" " * (5 * 2**20),
    "a share of infinity": f'{{"gridsched_keys": 1, "keys": [{ROW[:-1]}, "queue_share": 1e999}}]}}',
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_H6_a_damaged_file_is_told_of_and_left_as_it_is(tmp_path: Path, kind: str) -> None:
    """Nobody's keys are lost by a command, and no server takes it for no keys."""
    write(tmp_path, DAMAGED[kind])
    for attempt in (
        lambda: read_keys(tmp_path),
        lambda: add_key(tmp_path, FULL),
        lambda: revoke_key(tmp_path, "a"),
    ):
        with pytest.raises(KeysError, match=FILE):
            attempt()
    said: list[str] = []
    assert KeyFile(tmp_path, said.append).keys is None
    assert "no API key is taken until that is mended" in said[0]
    text = DAMAGED[kind]
    assert (tmp_path / FILE).read_bytes() == (text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("kind", ["readable", "writable", "a link", "a pipe", "a folder"])
def test_H6_a_file_that_others_may_have_is_not_believed(tmp_path: Path, kind: str) -> None:
    """Neither is one that leads elsewhere; nobody waits for a pipe."""
    add_key(tmp_path, FULL)
    path = tmp_path / FILE
    match kind:
        case "readable":
            path.chmod(0o604)
        case "writable":
            path.chmod(0o620)
        case "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to("elsewhere")
        case "a pipe":
            path.unlink()
            os.mkfifo(path, 0o600)
        case _:
            path.unlink()
            path.mkdir(0o700)
    with pytest.raises(KeysError, match=FILE):
        read_keys(tmp_path)
    with pytest.raises(KeysError):
        add_key(tmp_path, key("ann"))


def test_H6_there_are_not_more_keys_than_are_compared_with_each_request(tmp_path: Path) -> None:
    """The next is refused, and the file is as before."""
    rows = [json.loads(ROW) | {"name": f"k{n}", "sha256": digest_of(str(n))} for n in range(MOST_KEYS)]
    write(tmp_path, json.dumps({"gridsched_keys": 1, "keys": rows}))
    with pytest.raises(KeysError, match=f"at most {MOST_KEYS}"):
        add_key(tmp_path, FULL)
    assert len(read_keys(tmp_path)) == MOST_KEYS


def test_H6_a_running_server_notices_a_change_and_keeps_its_keys_where_it_cannot_read(tmp_path: Path) -> None:
    """Each fault is said once; a file that is gone opens nothing; a last key that is revoked does."""
    said: list[str] = []
    file = KeyFile(tmp_path, said.append)
    assert (file.keys, file.look()) == ((), False)
    add_key(tmp_path, FULL)
    assert (file.look(), file.keys, file.look()) == (True, (FULL,), False)
    whole = (tmp_path / FILE).read_bytes()
    for text in (b"{", b"{"):
        write(tmp_path, text)
        assert (file.look(), file.keys) == (False, (FULL,))
    assert len(said) == 1
    assert "the API keys from before hold" in said[0]
    (tmp_path / FILE).unlink()
    assert (file.look(), file.look(), file.keys) == (False, False, (FULL,))
    assert "is gone" in said[1]
    write(tmp_path, whole)
    assert (file.look(), file.keys) == (False, (FULL,))
    write(tmp_path, b"{")
    assert (file.look(), len(said)) == (False, 3)
    write(tmp_path, whole)
    revoke_key(tmp_path, "tom")
    assert (file.look(), file.keys) == (True, ())


def test_H6_a_server_that_began_without_readable_keys_takes_them_when_they_are_mended(tmp_path: Path) -> None:
    """And is not opened by somebody who throws the file away."""
    write(tmp_path, b"{")
    file = KeyFile(tmp_path, lambda sentence: None)  # noqa: ARG005 - said elsewhere
    (tmp_path / FILE).unlink()
    assert (file.look(), file.keys) == (False, None)
    add_key(tmp_path, FULL)
    assert (file.look(), file.keys) == (True, (FULL,))


def test_H6_a_key_that_was_revoked_while_the_file_could_not_be_read_is_known_no_longer_when_it_can(
    tmp_path: Path,
) -> None:
    """What failed was the machine (no descriptor was left), and nothing changes the file afterwards."""
    add_key(tmp_path, FULL)
    said: list[str] = []
    file = KeyFile(tmp_path, said.append)
    revoke_key(tmp_path, "tom")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        looks = [file.look() for _ in range(3)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (looks, file.keys, len(said)) == ([False] * 3, (FULL,), 1)
    assert (file.look(), file.keys) == (True, ())


CHANGES = """
import sys, itertools
from pathlib import Path
from gridsched.credentials import ApiKey, Scope
from gridsched.settings.api_keys import add_key, digest_of, revoke_key
for n in itertools.count():
    name = f"{sys.argv[2]}{n}"
    add_key(Path(sys.argv[1]), ApiKey(name, digest_of(name), (Scope.READ,)))
    print(n, flush=True)
    if n > 3:
        revoke_key(Path(sys.argv[1]), f"{sys.argv[2]}{n - 3}")
"""


@pytest.mark.slow
def test_H6_kill_9_leaves_whole_keys_and_commands_take_turns(tmp_path: Path) -> None:
    """Two programs change the file at once and are killed in the midst of it: what was said to be there is."""
    add_key(tmp_path, FULL)
    for attempt in range(4):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", CHANGES, str(tmp_path), f"{letter}{attempt}-"], stdout=subprocess.PIPE, text=True
            )
            for letter in "ab"
        ]
        told = []
        for writer in writers:
            assert writer.stdout is not None
            told.append([writer.stdout.readline() for _ in range(3 + attempt)])
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        names = {each.name for each in read_keys(tmp_path)}
        assert "tom" in names
        assert {f"{letter}{attempt}-0" for letter in "ab"} <= names, told
    add_key(tmp_path, key("after"))
    assert {path.name for path in tmp_path.iterdir()} == {FILE}
