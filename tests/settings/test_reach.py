"""Every setting can be set, and arrives where it is used."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridsched.app import StartError, certificate_of, figures_of, open_ports
from gridsched.core.job import JobClass, Quality
from gridsched.core.policy import Eviction, Policy, QueueLimits
from gridsched.daytime import Window
from gridsched.ports import Capability, ModelEntry, VirtualEntry
from gridsched.settings.load import defaults
from gridsched.settings.reference import settings_there_are
from gridsched.settings.schema import Settings
from gridsched.settings.values import Amount
from tests.settings.reading import FOLDER, read


@dataclass(frozen=True)
class Case:
    """What is written, and where which value must arrive."""

    written: str
    arrives: Callable[[Settings], object]
    value: object


def queue(job_class: JobClass) -> Callable[[Settings], QueueLimits]:
    """A class's bounds in the policy."""
    return lambda settings: settings.policy().queues[job_class]


def entry(settings: Settings) -> ModelEntry:
    """The one model."""
    (only,) = settings.entries()
    return only


def virtual(settings: Settings) -> VirtualEntry:
    """The one name over another model."""
    (only,) = settings.virtual_entries()
    return only


def family(settings: Settings) -> tuple[tuple[Quality, str], ...]:
    """The variants of the one family."""
    (only,) = settings.family_entries()
    return only.variants


def trusted(settings: Settings) -> list[str]:
    """The proxies that the front believes."""
    return [str(network) for network in figures_of(settings).trusted_proxies]


def refused_certificate(settings: Settings) -> str | None:
    """What is said of a certificate that is not there."""
    try:
        certificate_of(settings)
    except StartError as error:
        return str(error).partition("tls.")[2]
    return None


def panel_port(settings: Settings) -> bool:
    """Whether a second port is opened, on another number than the first."""
    with open_ports(settings.model_copy(update={"server": settings.server.model_copy(update={"port": 0})})) as opened:
        return len({each.getsockname()[1] for each in opened}) == 2


CASES = {
    "server.host": Case("::1", lambda s: s.server.host, "::1"),
    "server.port": Case("0", lambda s: s.server.port, 0),
    "server.max_body": Case("1.5MiB", lambda s: s.server.max_body_bytes, 3 * 2**19),
    "server.cors_origins": Case("['http://A.example:80']", lambda s: figures_of(s).cors_origins, {"http://a.example"}),
    "server.tls.certificate": Case(
        "/nowhere/a.pem", refused_certificate, "certificate: /nowhere/a.pem cannot be read: No such file or directory"
    ),
    "server.tls.key": Case("b.pem", lambda s: s.server.tls.key, FOLDER / "b.pem"),
    "server.trusted_proxies": Case("[::1, 10.0.0.0/8]", trusted, ["::1/128", "10.0.0.0/8"]),
    "server.stream_comments": Case("off", lambda s: figures_of(s).comments, False),
    "server.comment_interval": Case("15s", lambda s: figures_of(s).comment_seconds, 15.0),
    "server.write_stall": Case("30s", lambda s: figures_of(s).write_stall_seconds, 30.0),
    "server.image_urls": Case("refuse", lambda s: figures_of(s).fetches_images, False),
    "server.image_max": Case("1MiB", lambda s: figures_of(s).image_max_bytes, 2**20),
    "server.image_timeout": Case("3s", lambda s: figures_of(s).image_seconds, 3.0),
    "server.image_hosts": Case(
        "['NAS.local:8080', '[::1]:81']", lambda s: figures_of(s).image_hosts, frozenset(("nas.local:8080", "[::1]:81"))
    ),
    "scheduler.interactive_cooldown": Case("300ms", lambda s: s.policy().interactive_cooldown_seconds, 0.3),
    "scheduler.background_max_starvation": Case("0s", lambda s: s.policy().background_max_starvation_seconds, 0.0),
    "scheduler.background_share": Case("0.25", lambda s: s.policy().background_share, 0.25),
    "scheduler.relief_slots": Case("7", lambda s: s.policy().relief_slots, 7),
    "scheduler.batch_max_starvation": Case("1h", lambda s: s.policy().batch_max_starvation_seconds, 3600.0),
    "scheduler.embedding_chunk": Case("8", lambda s: s.scheduler.embedding_chunk, 8),
    "scheduler.hot_window": Case("1m", lambda s: s.policy().hot_window_seconds, 60.0),
    "scheduler.min_residency": Case("1.5m", lambda s: s.policy().min_residency_seconds, 90.0),
    "scheduler.interactive_turn": Case("0s", lambda s: s.policy().interactive_turn_seconds, 0.0),
    "scheduler.eviction": Case("lru", lambda s: s.policy().eviction, Eviction.LRU),
    "scheduler.hot_yield_after": Case("10m", lambda s: s.policy().hot_yield_after_seconds, 600.0),
    "scheduler.fit_wait": Case("4s", lambda s: s.policy().fit_wait_seconds, 4.0),
    "scheduler.abort_after": Case("20s", lambda s: s.policy().abort_after_seconds, 20.0),
    "scheduler.background_pause": Case("on", lambda s: s.policy().background_pause, True),
    "scheduler.pause_limit": Case("1s", lambda s: s.policy().pause_limit_seconds, 1.0),
    "scheduler.interactive_reserved_slots": Case("2", lambda s: s.scheduler.interactive_reserved_slots, 2),
    "scheduler.stall_limit": Case("5s", lambda s: s.scheduler.stall_limit_seconds, 5.0),
    "scheduler.queues.interactive.max_length": Case("9", queue(JobClass.INTERACTIVE), QueueLimits(9, None)),
    "scheduler.queues.interactive.max_wait": Case("9s", queue(JobClass.INTERACTIVE), QueueLimits(256, 9.0)),
    "scheduler.queues.background.max_length": Case("9", queue(JobClass.BACKGROUND), QueueLimits(9, 86400.0)),
    "scheduler.queues.background.max_wait": Case("null", queue(JobClass.BACKGROUND), QueueLimits(1024, None)),
    "scheduler.queues.batch.max_length": Case("9", queue(JobClass.BATCH), QueueLimits(9, 86400.0)),
    "scheduler.queues.batch.max_wait": Case("9s", queue(JobClass.BATCH), QueueLimits(1024, 9.0)),
    "devices.headroom": Case("2GB", lambda s: s.devices.headroom, Amount(size_bytes=2 * 10**9)),
    "devices.host_budget": Case("8GiB", lambda s: s.devices.host_budget_bytes, 8 * 2**30),
    "devices.ignore": Case("[gpu1, 41:00.0, 3]", lambda s: s.devices.ignore, ("gpu1", "41:00.0", "3")),
    "devices.total": Case("{gpu0: 24GiB}", lambda s: s.devices.total_bytes, {"gpu0": 24 * 2**30}),
    "engine.path": Case("bin/llama-server", lambda s: s.engine.path, FOLDER / "bin/llama-server"),
    "engine.startup_timeout": Case("20m", lambda s: s.engine.startup_timeout_seconds, 1200.0),
    "engine.stop_grace": Case("3s", lambda s: s.policy().stop_grace_seconds, 3.0),
    "engine.starts_per_minute": Case("5", lambda s: s.policy().starts_per_minute, 5),
    "engine.host_memory_limit": Case("4GiB", lambda s: s.policy().host_memory_limit_bytes, 4 * 2**30),
    "library.dirs": Case("[auto, /m, m]", lambda s: s.library.dirs, ("auto", Path("/m"), FOLDER / "m")),
    "library.default_model": Case("1.10", lambda s: s.library.default_model, "1.10"),
    "defaults.ctx_target": Case("9000", lambda s: s.defaults.ctx_target, 9000),
    "defaults.ctx_floor": Case("512", lambda s: s.defaults.ctx_floor, 512),
    "defaults.parallel": Case("3", lambda s: s.defaults.parallel, 3),
    "defaults.cache_type": Case("q8_0", lambda s: s.defaults.cache_type, ("q8_0", "q8_0")),
    "defaults.reasoning_format": Case("none", lambda s: s.defaults.reasoning_format, "none"),
    "defaults.idle_ttl": Case("never", lambda s: s.defaults.idle_ttl_seconds, math.inf),
    "models.NAME.path": Case("/a b.gguf", lambda s: entry(s).path, Path("/a b.gguf")),
    "models.NAME.base": Case("b", lambda s: virtual(s).base, "b"),
    "models.NAME.ctx_size": Case("4096", lambda s: entry(s).ctx_size, 4096),
    "models.NAME.ctx_per_slot": Case("1024", lambda s: entry(s).ctx_per_slot, 1024),
    "models.NAME.parallel": Case("4", lambda s: entry(s).parallel, 4),
    "models.NAME.cache_type": Case("q8_0/q4_0", lambda s: entry(s).cache_types, ("q8_0", "q4_0")),
    "models.NAME.tier": Case("pinned", lambda s: entry(s).pinned, True),
    "models.NAME.class": Case("batch", lambda s: entry(s).default_class, JobClass.BATCH),
    "models.NAME.idle_ttl": Case("90s", lambda s: entry(s).idle_ttl_seconds, 90.0),
    "models.NAME.aliases": Case("[gpt-4o, on]", lambda s: entry(s).aliases, ("gpt-4o", "on")),
    "models.NAME.flags": Case("[-c, 4096]", lambda s: entry(s).flags, ("-c", "4096")),
    "models.NAME.device": Case("gpu0", lambda s: entry(s).device, "gpu0"),
    "models.NAME.mmproj": Case("p.gguf", lambda s: entry(s).mmproj, FOLDER / "p.gguf"),
    "models.NAME.capabilities": Case(
        "[chat, vision]", lambda s: entry(s).capabilities, frozenset((Capability.CHAT, Capability.VISION))
    ),
    "models.NAME.env": Case("{A: on, B: 007}", lambda s: entry(s).env, {"A": "on", "B": "007"}),
    "models.NAME.system_prompt": Case('"Be\\tkind."', lambda s: virtual(s).system_prompt, "Be\tkind."),
    "models.NAME.sampling": Case(
        "{temperature: 0.20, stop: [a, '1'], cache_prompt: True, top_k: }",
        lambda s: virtual(s).members,
        {"temperature": b"0.20", "stop": b'["a","1"]', "cache_prompt": b"true"},
    ),
    "models.NAME.reasoning_format": Case("none", lambda s: virtual(s).members, {"reasoning_format": b'"none"'}),
    "models.NAME.limits.max_tokens": Case("1024", lambda s: virtual(s).max_tokens, 1024),
    "families.NAME.preferred": Case("m", family, ((Quality.PREFERRED, "m"),)),
    "families.NAME.balanced": Case("m", family, ((Quality.BALANCED, "m"),)),
    "families.NAME.compact": Case("m", family, ((Quality.COMPACT, "m"),)),
    "batches.in_flight": Case("9", lambda s: figures_of(s).batches.in_flight, 9),
    "batches.window": Case("22:00–7:00", lambda s: figures_of(s).batches.window, Window(22 * 60, 7 * 60)),  # noqa: RUF001
    "batches.max_file": Case("1KiB", lambda s: figures_of(s).batches.max_file_bytes, 1024),
    "batches.keep": Case("2d", lambda s: figures_of(s).batches.keep_seconds, 2 * 86400.0),
    "panel.port": Case("0", panel_port, True),
    "watchdog.port": Case("4321", lambda s: s.watchdog.port, 4321),
}


OVER_A_BASE = {"base", "system_prompt", "sampling", "reasoning_format", "max_tokens"}


def configuration(key: str, written: str) -> str:
    """A file in which one setting is said, and nothing else that need not be."""
    path, *_, leaf = key.split(".")
    if path == "models":
        source = {"base": "b"} if leaf in OVER_A_BASE else {"path": "m.gguf"}
        said = source | ({leaf: written} if leaf != "max_tokens" else {"limits": f"{{{leaf}: {written}}}"})
        return "models: {m: {" + ", ".join(f"{name}: {text}" for name, text in said.items()) + "}}"
    if leaf == "key":
        return f"server: {{tls: {{certificate: a.pem, key: {written}}}}}"
    if path == "families":
        return f"models: {{m: {{path: m.gguf}}}}\nfamilies: {{f: {{{leaf}: {written}}}}}"
    return "{".join(f"{part}: " for part in key.split(".")) + written + "}" * key.count(".")


@pytest.mark.parametrize(("key", "case"), CASES.items(), ids=CASES)
def test_a_setting_arrives_where_it_is_used(key: str, case: Case) -> None:
    """What is written in the file is what the policy, the model's entry or the section says."""
    assert case.arrives(read(configuration(key, case.written))) == case.value


@pytest.mark.parametrize(("key", "case"), CASES.items(), ids=CASES)
def test_a_case_shows_something(key: str, case: Case) -> None:
    """The value is not the default: else the test above could not fail."""
    if key.rpartition(".")[2] in OVER_A_BASE:
        assert case.arrives(read("models: {m: {base: other}}")) != case.value
    elif key.startswith("models."):
        assert case.arrives(read("models: {m: {path: m.gguf}}")) != case.value
    elif key.startswith("families."):
        assert defaults().family_entries() == ()
    else:
        assert case.arrives(defaults()) != case.value


def test_every_setting_has_a_case() -> None:
    """A new setting must show where it arrives."""
    assert list(CASES) == [".".join(setting.key) for setting in settings_there_are()]


def test_the_defaults_are_the_rules_own() -> None:
    """Without a file the core runs with the figures of its rules, and no model is configured."""
    assert defaults().policy() == Policy()
    assert defaults().entries() == ()


def test_a_model_that_says_nothing_leaves_everything_automatic() -> None:
    """Only the path is needed; None means automatic. Or the base: then nothing is added."""
    assert read("models: {m: {path: m.gguf}}").entries() == (ModelEntry("m", FOLDER / "m.gguf"),)
    both = read("models: {m: {path: m.gguf}, v: {base: m, tier: auto, flags: []}}")
    assert both.entries() == (ModelEntry("m", FOLDER / "m.gguf"),)
    assert both.virtual_entries() == (VirtualEntry("v", "m"),)


def test_S6_reserved_slots_reach_every_model() -> None:
    """The scheduler's figure is each model's."""
    settings = read("scheduler: {interactive_reserved_slots: 0}\nmodels: {m: {path: a}, n: {path: b}}")
    assert [each.reserved_slots for each in settings.entries()] == [0, 0]


def test_models_keep_the_order_of_the_file() -> None:
    """The order is the person's."""
    settings = read("models: {z: {path: z}, a: {path: a}, m: {path: m}}")
    assert [each.name for each in settings.entries()] == ["z", "a", "m"]


def test_settings_cannot_be_changed() -> None:
    """What was read is what holds until the next reading."""
    with pytest.raises(ValueError, match="frozen"):
        defaults().server.port = 1


@pytest.mark.parametrize(
    ("line", "figure", "value"),
    [
        ("interactive_turn: auto", "interactive_turn_seconds", None),
        ("eviction: cost", "eviction", Eviction.COST),
        ("hot_yield_after: null", "hot_yield_after_seconds", None),
        ("abort_after: null", "abort_after_seconds", None),
        ("background_pause: off", "background_pause", False),
    ],
)
def test_a_switch_can_be_written_as_its_default(line: str, figure: str, value: object) -> None:
    """The word of the default is one that a person may write."""
    assert getattr(read(f"scheduler: {{{line}}}").policy(), figure) == value


def test_R10_a_familys_variants_go_from_the_best_to_the_smallest() -> None:
    """Whatever the order of the file."""
    models = "models: {a: {path: a}, b: {path: b}, c: {path: c}}"
    settings = read(f"{models}\nfamilies: {{f: {{compact: a, preferred: b, balanced: c}}}}")
    assert [name for _, name in family(settings)] == ["b", "c", "a"]
