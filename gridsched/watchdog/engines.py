"""The engines of this data directory: found by their own proof, ended without the gateway if need be.

A process is one of ours if its environment carries our token, `GRIDSCHED_ENGINE=1:DEVICE-INODE:PID-STARTTICKS:SPAWN`
(the data directory by device and inode, then the gateway that started it), or if the gateway has noted it in
`run/children.json` with number, start and boot. Must never signal anybody else, nor by a name. The formats are told in
the README of `gridsched/engine`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from gridsched.watchdog import files
from gridsched.watchdog.front import NoAnswer, ask, host_of
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import (
    PROC,
    ProcessId,
    alive,
    end,
    environment_of,
    identify,
    is_ours,
    pids,
    wait_gone,
    words_of,
)
from gridsched.watchdog.watch import Verdict

VARIABLE = "GRIDSCHED_ENGINE"
GRACE_SECONDS = 10.0
"""What an engine gets between SIGTERM and SIGKILL, as from the gateway."""

UNLOAD_SECONDS = 15.0
"""How long the gateway may take over an unload before it is done without it."""

_TOKEN = re.compile(r"1:(\d{1,20}-\d{1,20}):(\d{1,10})-(\d{1,20}):([A-Za-z0-9-]{1,64})")


@dataclass(frozen=True, slots=True)
class Engine:
    """One process of an engine, and the gateway that started it. `model` is empty where nobody says it."""

    process: ProcessId
    model: str
    spawn: str
    owner: ProcessId
    proof: str

    @property
    def is_orphan(self) -> bool:
        """Whether the gateway that started it is gone."""
        return not alive(self.owner)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        words = " ".join(words_of(self.process.pid, "cmdline"))[:300]
        said = {"pid": self.process.pid, "model": self.model or None, "orphan": self.is_orphan}
        return said | {"started_by": self.owner.pid, "proven_by": self.proof, "command": words}


class Engines:
    """Finds and ends the engines of one data directory."""

    def __init__(self, places: Places, grace_seconds: float = GRACE_SECONDS) -> None:
        self._places = places
        self._grace_seconds = grace_seconds

    def find(self) -> list[Engine]:
        """All that live, orphans too, by number."""
        noted = {entry.process: entry for entry in self._noted()}
        by_spawn = {entry.spawn: entry.model for entry in noted.values()}
        found = {engine.process: engine for engine in self._carrying_a_token(by_spawn)}
        for process, entry in noted.items():
            if process not in found and is_ours(process.pid) and alive(process):
                found[process] = entry
        return sorted(found.values(), key=lambda engine: engine.process.pid)

    def kill_model(self, model: str, verdict: Verdict, *, dry_run: bool) -> dict[str, Any]:
        """End the processes of one model: by the gateway where it answers, else, or where they remain, directly."""
        everybody = self.find()
        wanted = [engine for engine in everybody if engine.model.casefold() == model.casefold()]
        if not wanted or dry_run:
            others = sorted({engine.model for engine in everybody if engine.model})
            return _told(wanted, dry_run=dry_run) | {"running_models": others}
        before = _told(wanted, dry_run=False)
        unloaded = self._unload(wanted, verdict)
        return _less(before, self._end(wanted)) | {"by_gateway": unloaded}

    def kill_all(self, *, dry_run: bool, only_orphans: bool = False) -> dict[str, Any]:
        """End every process of an engine of this data directory, or only those whose gateway is gone."""
        wanted = [engine for engine in self.find() if engine.is_orphan or not only_orphans]
        before = _told(wanted, dry_run=dry_run)
        return before if dry_run else _less(before, self._end(wanted))

    def _end(self, engines: Iterable[Engine]) -> list[ProcessId]:
        """End them together; those that still live, because the kernel holds them."""
        return end([engine.process for engine in engines], self._grace_seconds)

    def _unload(self, wanted: Sequence[Engine], verdict: Verdict) -> bool:
        """Ask the gateway first: it drains, and does not take the end for a crash. Whether that has ended them all; it
        says that it has begun (202) long before."""
        if not verdict.healthy or verdict.owner is None:
            return False
        path = f"/api/models/{quote(wanted[0].model, safe='')}/unload"
        try:
            port = verdict.owner.port
            answer = ask(host_of(port), port, "POST", path, UNLOAD_SECONDS, {}, token=self._admin_token())
        except NoAnswer:
            return False
        return answer.status < HTTPStatus.BAD_REQUEST and not wait_gone(
            [each.process for each in wanted], UNLOAD_SECONDS
        )

    def _admin_token(self) -> str:
        """With API keys a gateway asks for a credential on this machine, too; "" where there is none to be read."""
        try:
            return self._places.admin_token.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""

    def _carrying_a_token(self, models: Mapping[str, str]) -> Iterator[Engine]:
        try:
            place = self._places.data.stat()
        except OSError:
            return
        directory = f"{place.st_dev}-{place.st_ino}"
        for pid in pids():
            if not is_ours(pid):
                continue
            process = identify(pid)  # first: who has got the number since is then not taken for the one that was read
            token = _TOKEN.fullmatch(environment_of(pid).get(VARIABLE, ""))
            if token and process and token[1] == directory:
                owner = ProcessId(int(token[2]), int(token[3]))
                model = models.get(token[4]) or _alias(words_of(pid, "cmdline"))
                yield Engine(process, model, token[4], owner, "token")

    def _noted(self) -> Iterator[Engine]:
        """What the gateway has noted and this boot has seen; entries that make no sense are nobody's."""
        said = files.read_object(self._places.children)
        children = said.get("children")
        owner = ProcessId.read(said.get("owner"))
        if said.get("boot_id") != boot_id() or owner is None or not isinstance(children, list):
            return
        for child in children:
            process = ProcessId.read(child)
            if process is not None and isinstance(child.get("model"), str) and isinstance(child.get("spawn"), str):
                yield Engine(process, child["model"], child["spawn"], owner, "children.json")


def boot_id() -> str:
    """The machine's present boot."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _told(wanted: Sequence[Engine], *, dry_run: bool) -> dict[str, Any]:
    """To be asked while they live: who they are is read off them."""
    return {"dry_run": dry_run, "would_end" if dry_run else "ended": [engine.told() for engine in wanted]}


def _less(told: dict[str, Any], survivors: Sequence[ProcessId]) -> dict[str, Any]:
    """The same with those apart that still live."""
    left = {process.pid for process in survivors}
    ended = [engine for engine in told["ended"] if engine["pid"] not in left]
    return told | {"ended": ended, "still_alive": [each for each in told["ended"] if each["pid"] in left]}


def _alias(words: Sequence[str]) -> str:
    """The model's name on an engine's command line."""
    return dict(pairwise(words)).get("--alias", "")
