"""What a reload comes to: every setting has its effect, each change is told, and nothing secret is."""

from pathlib import Path

import pytest

from gridsched.settings.load import parse
from gridsched.settings.reference import settings_there_are
from gridsched.settings.reload import EFFECTS, Effect, ReloadPlan, compare, running, with_table
from gridsched.settings.schema import Settings
from gridsched.settings.values import Surroundings

README = Path(__file__).parents[2] / "gridsched" / "settings" / "README.md"


def settings(text: str) -> Settings:
    """The settings of a file that says this."""
    return parse(text, "c.yaml", Surroundings(Path("/models"), {}))


def plan(before: str, after: str, *served: str) -> ReloadPlan:
    """What one text to the other comes to."""
    return compare(settings(before), settings(after), served)


def test_every_setting_has_its_effect_and_there_is_no_other() -> None:
    """Whoever adds a setting says what a change of it takes."""
    assert {".".join(each.key) for each in settings_there_are()} == set(EFFECTS)


def test_the_table_of_effects_is_the_codes() -> None:
    """`python -m gridsched.settings.reload` writes it."""
    readme = README.read_text("utf-8")
    assert with_table(readme) == readme


@pytest.mark.parametrize("text", ["", "scheduler: {eviction: lru}", "models: {m: {path: m.gguf}, v: {base: m}}"])
def test_the_same_settings_change_nothing(text: str) -> None:
    """Whatever they are."""
    assert plan(text, text).is_empty
    assert plan(text, text).text == "nothing has changed"


VALUES = [
    ("scheduler: {eviction: lru}", "scheduler.eviction", "cost", "lru"),
    ("scheduler: {abort_after: 3s}", "scheduler.abort_after", "null", "3s"),
    ("scheduler: {interactive_turn: 0s}", "scheduler.interactive_turn", "auto", "0s"),
    ("scheduler: {background_pause: on}", "scheduler.background_pause", "off", "on"),
    ("scheduler: {queues: {batch: {max_length: 7}}}", "scheduler.queues.batch.max_length", "1024", "7"),
    ("devices: {headroom: 512MiB}", "devices.headroom", "5%", "512MiB"),
    ("server: {max_body: 1MB}", "server.max_body", "64MiB", "1000000B"),
    ("server: {trusted_proxies: [10.0.0.0/8]}", "server.trusted_proxies", "[]", "[10.0.0.0/8]"),
    ("defaults: {idle_ttl: never}", "defaults.idle_ttl", "1800s", "never"),
    ("library: {dirs: [auto, /m]}", "library.dirs", "[auto]", "[auto, /m]"),
    ("batches: {window: '22:00-07:00'}", "batches.window", "null", "22:00-07:00"),
]


@pytest.mark.parametrize(("after", "key", "old", "new"), VALUES)
def test_a_change_is_told_as_a_person_would_write_it(after: str, key: str, old: str, new: str) -> None:
    """Key, what it was, what it becomes."""
    (change,) = plan("", after).changes
    assert (change.key, change.before, change.after, change.effect) == (key, old, new, Effect.NOW)


def test_a_models_own_launch_concerns_it_alone() -> None:
    """Flags do, an alias or how long it is kept does not."""
    before = "models: {m: {path: m.gguf}, n: {path: n.gguf}}"
    after = "models: {m: {path: m.gguf, flags: [--no-mmap]}, n: {path: n.gguf, aliases: [x], idle_ttl: 5m}}"
    assert plan(before, after).restarts == ("m",)


def test_a_default_of_launches_concerns_those_who_do_not_say_it_themselves() -> None:
    """Models from folders too; not names over others, which have no process."""
    models = "models: {m: {path: m.gguf}, n: {path: n.gguf, parallel: 3}, v: {base: m}}"
    found = plan(models, f"{models}\ndefaults: {{parallel: 2}}", "m", "n", "from/a/folder")
    assert found.restarts == ("m", "from/a/folder")


def test_models_and_families_come_and_go_as_a_whole() -> None:
    """One line each."""
    found = plan("models: {a: {path: a.gguf}}", "models: {b: {path: b.gguf}}\nfamilies: {f: {compact: b}}")
    assert [(each.key, each.before, each.after) for each in found.changes] == [
        ("models.a", "there", None),
        ("models.b", None, "there"),
        ("families.f", None, "there"),
    ]
    assert found.restarts == ()


def test_what_takes_a_start_stays_as_it_was_and_is_said() -> None:
    """The rest of the file holds."""
    before = settings("server: {port: 1, host: 127.0.0.1}")
    after = settings("server: {port: 2, max_body: 1MiB, tls: {certificate: c.pem}}\nengine: {path: /e, stop_grace: 3s}")
    found, kept = compare(before, after), running(before, after)
    assert found.needs_restart == ("server.port", "server.tls.certificate", "engine.path")
    assert (kept.server.port, kept.server.tls.certificate, kept.engine.path) == (1, None, None)
    assert (kept.server.max_body_bytes, kept.engine.stop_grace_seconds) == (2**20, 3.0)
    assert compare(before, kept).needs_restart == ()


def test_no_secret_is_told() -> None:
    """Of the environment the names, of flags not what follows a key or a token; that they changed is."""
    before = "models: {m: {path: m.gguf, env: {TOKEN: one1}, flags: [--hf-token, one2, --lora-key=one3, --x, y]}}"
    found = plan(before, before.replace("one", "two"))
    said = repr(found) + found.text
    assert not any(f"{word}{number}" in said for word in ("one", "two") for number in "123")
    assert [(each.key, each.after) for each in found.changes] == [
        ("models.m.flags", "[--hf-token, ***, --lora-key=***, --x, y] (changed)"),
        ("models.m.env", "{TOKEN: ***} (changed)"),
    ]
