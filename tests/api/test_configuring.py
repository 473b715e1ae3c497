"""The configuration, the keys and the audit log over HTTP, on a server that has them."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gridsched.app.beside import Beside
from gridsched.control.audit import Audit
from gridsched.control.authority import Authority
from gridsched.control.keyring import Keyring
from gridsched.settings.api_keys import KeyFile
from gridsched.settings.configuration import Configuration
from gridsched.store.journal import Journal
from tests.support.fakes import StandingClock
from tests.support.front import ADMIN_WORD, Answer, House, serving

TEXT = """\
# mine
server: {port: 1234}    # as it was

models:
  tiny:
    path: tiny.gguf     # beside this file
    env: {HF_TOKEN_FILE: marker-environment}
    flags: [--seed, 1]
"""
TOKEN = {"Authorization": f"Bearer {ADMIN_WORD}"}


class Managed:
    """A server with a configuration file, keys and an audit log, and its folder."""

    def __init__(self, house: House, folder: Path) -> None:
        self.house = house
        self.path = folder / "gridsched.yaml"
        self.folder = folder

    async def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] = TOKEN) -> Answer:
        """One exchange, by the admin where nobody else is named."""
        return await self.house.ask(method, path, body, headers)

    async def set(self, **given: object) -> Answer:
        """A change of the configuration."""
        return await self.ask("PATCH", "/api/config", given)

    async def audited(self, query: str = "") -> list[dict[str, object]]:
        """The rows of the audit log, newest first."""
        rows = (await self.ask("GET", f"/api/audit{query}")).json["rows"]
        assert isinstance(rows, list)
        return rows


@asynccontextmanager
async def managed(clock: MockClock, folder: Path, text: str | None = TEXT) -> AsyncIterator[Managed]:
    """Such a server for the length of a block. A thread's work takes no time of the jumping clock."""
    clock.autojump_threshold = 0.01  # files are written by threads, which that clock knows nothing of
    data = folder / "data"
    data.mkdir()
    if text is not None:
        (folder / "gridsched.yaml").write_text(text)
    authority = Authority(ADMIN_WORD)
    said: list[str] = []
    with closing(Journal(data / "audit.jsonl", said.append)) as journal:
        configuration = Configuration(folder / "gridsched.yaml", {})
        keyring = Keyring(data, KeyFile(data, said.append), authority)
        kept = Beside(None, None, None, configuration, keyring, Audit(journal, StandingClock()))
        async with serving(clock, authority=authority, beside=kept) as house:
            yield Managed(house, folder)
    assert said == []


async def test_the_configuration_is_told_with_its_defaults_and_without_its_secrets(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """As a person would write it; the text is for admins, and says that it is not whole."""
    async with managed(autojump_clock, tmp_path) as server:
        told = (await server.ask("GET", "/api/config")).json
        anybody = (await server.ask("GET", "/api/config", headers={})).json
    settings = told["settings"]
    assert isinstance(settings, dict)
    assert settings["server"]["port"] == 1234
    assert settings["scheduler"]["fit_wait"] == "10s"
    assert settings["models"]["tiny"]["env"] == {"HF_TOKEN_FILE": "[hidden]"}
    assert settings["models"]["tiny"]["flags"] == ["--seed", "1"]
    assert (told["exists"], told["runs_as_written"], told["error"]) == (True, True, None)
    assert told["text"] == TEXT.replace("marker-environment", '"[hidden]"')
    assert told["text_is_whole"] is False
    assert anybody["text"] is None
    assert anybody["settings"] == settings


async def test_a_change_is_one_line_of_the_file(autojump_clock: MockClock, tmp_path: Path) -> None:
    """With a copy of the old one, and an answer that says what is another, secrets hidden."""
    async with managed(autojump_clock, tmp_path) as server:
        server.path.chmod(0o640)
        read = (await server.ask("GET", "/api/config")).json
        change = {"server": {"port": 4321}, "models": {"tiny": {"env": {"NEW": "marker-new"}}}}
        answer = await server.set(set=change, expected_sha256=read["sha256"])
        stale = await server.set(set={"server": {"port": 1}}, expected_sha256=read["sha256"])
        again = await server.set(set=change)
    assert answer.status == 200
    assert answer.json["changes"] == [
        {"key": "server.port", "before": 1234, "after": 4321},
        {"key": "models.tiny.env.NEW", "before": None, "after": "[hidden]"},
    ]
    wanted = TEXT.replace("1234", "4321").replace("marker-environment", "marker-environment, NEW: marker-new")
    assert server.path.read_text() == wanted
    assert server.path.stat().st_mode & 0o777 == 0o640
    backup = tmp_path / "gridsched.yaml.before-1"
    assert (answer.json["backup"], backup.read_text()) == (str(backup), TEXT)
    assert (stale.status, stale.error["code"]) == (409, "conflict")
    assert (again.json["written"], again.json["backup"]) == (False, None)


async def test_what_a_start_would_refuse_is_not_written(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Every fault is told with its place; so is what does not go together, and a secret that was hidden."""
    async with managed(autojump_clock, tmp_path) as server:
        bad = await server.set(set={"models": {"tiny": {"paralel": 2}}, "server": {"port": "x"}})
        refused = [
            await server.set(text="server: {port: 1}\n", set={"server": {}}),
            await server.set(),
            await server.set(text='models: {tiny: {path: a, env: {A: "[hidden]"}}}'),
            await server.set(set={"models": {"tiny": {"env": {"A": "[hidden]"}}}}),
            await server.set(unset=[[]]),
            await server.set(set={"scheduler.fit_wait": "5s"}),
            await server.set(set={"server": {"port": {"a": 1}}}),
            await server.set(text="server: {port: 1}\ud800"),
        ]
        broken = await server.set(text="server:\n\tport: 1\n")
    assert (bad.status, bad.error["code"]) == (422, "config_invalid")
    detail = bad.error["gridsched"]
    assert isinstance(detail, dict)
    faults = [line.removeprefix(f"{server.path}:") for line in detail["faults"]]
    assert [line.split(" ")[1] for line in faults] == ["server.port:", "models.tiny.paralel:"]
    assert "did you mean parallel?" in faults[1]
    assert [answer.status for answer in refused] == [400] * 8
    assert "write {scheduler: {fit_wait: …}}" in str(refused[5].error["message"])
    assert broken.status == 422
    assert server.path.read_text() == TEXT
    assert sorted(os.listdir(tmp_path)) == ["data", "gridsched.yaml"]  # noqa: PTH208 - names


async def test_a_plan_writes_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """It says what would be another."""
    async with managed(autojump_clock, tmp_path) as server:
        plan = await server.ask("PATCH", "/api/config?dry_run=1", {"set": {"server": {"port": 1}}})
    if plan.status == 200:  # else nobody takes the word yet
        assert plan.json["harms"] is True
        assert "would be changed: server.port" in str(plan.json["text"])
    assert server.path.read_text() == TEXT


async def test_a_file_is_made_where_there_is_none(autojump_clock: MockClock, tmp_path: Path) -> None:
    """For its user's eyes only; there is nothing to keep."""
    async with managed(autojump_clock, tmp_path, text=None) as server:
        before = (await server.ask("GET", "/api/config")).json
        answer = await server.set(set={"scheduler": {"fit_wait": "5s"}}, expected_sha256="")
    assert (before["exists"], before["sha256"]) == (False, "")
    assert (answer.status, answer.json["backup"]) == (200, None)
    assert server.path.read_text() == "scheduler:\n  fit_wait: 5s\n"
    assert server.path.stat().st_mode & 0o777 == 0o600


async def test_two_writers_at_once_lose_nothing(autojump_clock: MockClock, tmp_path: Path) -> None:
    """One after the other, whoever comes first."""
    async with managed(autojump_clock, tmp_path) as server:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(lambda n=number: server.set(set={"models": {f"m{n}": {"path": "a.gguf"}}}))
        told = (await server.ask("GET", "/api/config")).json["settings"]
    assert isinstance(told, dict)
    assert sorted(told["models"]) == [*(f"m{number}" for number in range(8)), "tiny"]
    assert len(os.listdir(tmp_path)) == 8 + 2  # noqa: PTH208 - names


async def test_a_key_is_made_used_and_revoked_at_once(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Its secret is in one answer; a model that is not there is told; the last one gone, nobody needs one."""
    async with managed(autojump_clock, tmp_path) as server:
        made = await server.ask("POST", "/api/keys", {"name": "agent", "scopes": ["read", "admin"], "models": ["none"]})
        secret = {"x-api-key": str(made.json["secret"])}
        twice = await server.ask("POST", "/api/keys", {"name": "AGENT"})
        wrong = await server.ask("POST", "/api/keys", {"name": "a b"})
        without = await server.ask("GET", "/api/status", headers={})
        listed = await server.ask("GET", "/api/keys", headers=secret)
        gone = await server.ask("DELETE", "/api/keys/agent", headers=secret)
        after = await server.ask("GET", "/api/status", headers=secret)
        nobody = await server.ask("DELETE", "/api/keys/agent")
        rows = await server.audited()
    assert made.status == 201
    assert [word in str(made.json["warnings"]) for word in ("every request needs a key", "no model 'none'")] == [
        True
    ] * 2
    assert (twice.status, wrong.status, without.status) == (409, 400, 401)
    assert listed.json["keys"] == [{k: v for k, v in made.json.items() if k not in {"secret", "warnings"}}]
    assert (gone.json["left"], after.status, nobody.status) == (0, 200, 404)
    assert [(row["verb"], row["who"], row["outcome"]) for row in reversed(rows)] == [
        ("add_key", "admin token", "done"),
        ("add_key", "admin token", "refused"),
        ("add_key", "admin token", "refused"),
        ("revoke_key", "key agent", "done"),
        ("revoke_key", "admin token", "refused"),
    ]
    assert str(made.json["secret"]) not in json.dumps(rows)


async def test_every_change_and_every_refused_attempt_is_in_the_audit_log(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """With who, from where, by which request; what only looks is not; pages go on where the last one ended."""
    async with managed(autojump_clock, tmp_path) as server:
        await server.ask("POST", "/api/models/sim-chat-2b/pin", {}, {"X-Request-Id": "mine"})
        await server.ask("GET", "/api/status")
        await server.ask("POST", "/api/drain", {}, {})
        await server.ask("POST", "/api/drain", {}, {"Host": "elsewhere.example"})
        await server.set(set={"models": {"tiny": {"env": {"A": "marker-value"}}}})
        await server.set(text=TEXT.replace("1234", "1"))
        rows = await server.audited()
        first = (await server.ask("GET", "/api/audit?limit=2")).json
        second = (await server.ask("GET", f"/api/audit?limit=9&cursor={first['next_cursor']}")).json
        refused = await server.ask("GET", "/api/audit", headers={})
    assert [(row["verb"], row["who"], row["outcome"], row["code"]) for row in reversed(rows)] == [
        ("pin_model", "anybody on this machine", "done", None),
        ("drain", "anybody on this machine", "refused", "remote_admin_requires_credential"),
        ("POST /api/drain", "nobody", "refused", "cross_origin"),
        ("set_config", "admin token", "done", None),
        ("set_config", "admin token", "done", None),
    ]
    assert (rows[-1]["request_id"], rows[-1]["address"], rows[-1]["via"]) == ("mine", "127.0.0.1", "rest")
    assert rows[-1]["arguments"] == {"model": "sim-chat-2b"}
    assert all(str(row["request_id"]).startswith("req-") for row in rows[:2])
    assert "marker" not in json.dumps(rows)
    assert [*first["rows"], *second["rows"]] == rows  # type: ignore[misc]  # lists, of JSON
    assert second["next_cursor"] is None
    assert refused.status == 403
    kept = (tmp_path / "data" / "audit.jsonl").read_text()
    assert (len(kept.splitlines()), "marker" in kept) == (5, False)
    assert (tmp_path / "data" / "audit.jsonl").stat().st_mode & 0o777 == 0o600


async def test_a_long_verb_has_a_row_at_its_beginning_and_one_at_its_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Both name the operation."""
    async with managed(autojump_clock, tmp_path) as server:
        begun = await server.ask("POST", "/api/models/sim-chat-2b/load", {}, {})
        await server.house.until_logged("ready")
        for _ in range(100):
            if len(rows := await server.audited()) > 1:
                break
    assert begun.status == 202
    assert [(row["verb"], row["outcome"], row["operation"]) for row in reversed(rows)] == [
        ("load_model", "started", begun.json["id"]),
        ("load_model", "done", begun.json["id"]),
    ]


async def test_no_secret_is_in_any_answer_or_log(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Planted in the configuration's every place for one, among them a URL's user and a comment; asked for by every
    route that looks, and by wrong changes."""
    text = TEXT.replace("[--seed, 1]", "[--seed, 1, --hf-token, marker-flag, '--api-key=marker-inline']").replace(
        "# mine", "# mine: --api-key marker-comment, https://marker-user:marker-word@host/"
    )
    async with managed(autojump_clock, tmp_path, text=text) as server:
        key = await server.ask(
            "POST", "/api/keys", {"name": "k", "scopes": ["inference", "read", "residency", "admin"]}
        )
        secret = str(key.json["secret"])
        headers = {"x-api-key": secret}
        answers = [
            await server.ask("GET", path, headers=headers)
            for path in (
                *("/api/config", "/api/config/schema", "/api/keys", "/api/audit", "/api/status", "/api/models"),
                *("/api/models/sim-chat-2b", "/api/jobs", "/api/connection", "/health", "/metrics", "/v1/models"),
                *("/api/events?follow=0", "/api/nothing", "/api/downloads"),
            )
        ]
        answers += [
            await server.ask(
                "PATCH", "/api/config", {"set": {"models": {"tiny": {"env": {"B": "marker-b"}}}}}, headers
            ),
            await server.ask("PATCH", "/api/config", {"set": {"models": {"tiny": {"env": ["marker-c"]}}}}, headers),
            await server.ask("PATCH", "/api/config", {"text": "models: {tiny: {path: a, env: marker-e}}"}, headers),
            await server.ask("PATCH", "/api/config", {"text": text + "x: {env: {A: marker-d}}"}, headers),
            await server.ask("GET", "/api/audit", headers=headers),
            await server.ask("GET", "/api/config", headers=headers),
        ]
        said = b"\n".join(answer.body for answer in answers).decode() + caplog.text
        said += (tmp_path / "data" / "audit.jsonl").read_text() + json.dumps(server.house.lines, default=str)
    assert {200, 404, 422} < {answer.status for answer in answers} <= {200, 400, 404, 409, 422}
    for word in ("marker", secret, ADMIN_WORD):
        assert word not in said, said[max(0, said.find(word) - 200) : said.find(word) + 60]


async def test_J5_what_a_process_was_started_with_is_shown(autojump_clock: MockClock) -> None:
    """Of one model, by any of its names; nothing while it has none."""
    async with serving(autojump_clock) as house:
        before = (await house.ask("GET", "/api/models/sim-chat-2b")).json["argv"]
        await house.ask("POST", "/api/models/sim-chat-2b/load")
        await house.until_logged("ready")
        after = (await house.ask("GET", "/api/models/sim-chat-2b")).json["argv"]
    assert before == []
    assert isinstance(after, list)
    assert after[0] == "simulated"
