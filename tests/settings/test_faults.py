"""A faulty file: every fault at once, each with its place, its key, and a sentence that helps."""

import pytest

from gridsched.settings.document import MAX_NODES, Problem
from gridsched.settings.faults import MAX_SHOWN, SettingsError
from tests.settings.reading import fault, faults, read


def test_all_faults_are_told_at_once_in_the_files_order() -> None:
    """Different kinds of faults in one file do not hide each other."""
    assert faults(
        """\
        server:
          port: "8080"
        shceduler: {}
        scheduler:
          fit_wait: 5
          fit_wait: 6s
        models:
          a: {path: x, aliases: [B], ctx_size: 1, ctx_per_slot: 1}
          b: {parallel: 0}
        defaults: {ctx_target: 10, ctx_floor: 11}
        """
    ) == [
        'f.yaml:2:9: server.port: expected a whole number from 0 to 65535, got "8080" in quotes',
        "f.yaml:3:1: shceduler: unknown key; did you mean scheduler?",
        "f.yaml:5:13: scheduler.fit_wait: expected a duration such as 300ms, 2s, 5m or 1h, got 5",
        "f.yaml:6:3: scheduler.fit_wait: this key is already set on line 5",
        "f.yaml:8:57: models.a.ctx_per_slot: give either ctx_size or ctx_per_slot, not both",
        "f.yaml:9:3: models.b: the name b is taken by models.a.aliases[0] on line 8 (case makes no difference)",
        "f.yaml:9:3: models.b: `path` is missing",
        "f.yaml:9:17: models.b.parallel: must be from 1 to 256, got 0",
        "f.yaml:10:39: defaults.ctx_floor: must not be above ctx_target, which is 10",
    ]


# --- J7: unknown keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ctx_size: 4096", "f.yaml:1:1: ctx_size: unknown key here; `ctx_size` belongs in models.NAME"),
        ("parallel: 4", "f.yaml:1:1: parallel: unknown key here; `parallel` belongs in defaults or models.NAME"),
        ("models: {m: {path: a, ctxsize: 1}}", "f.yaml:1:23: models.m.ctxsize: unknown key; did you mean ctx_size?"),
        ("prot: 8080", "f.yaml:1:1: prot: unknown key; did you mean server.port?"),
        (
            "engine: {zzz: 1}",
            (
                "f.yaml:1:10: engine.zzz: unknown key; here can be path, startup_timeout, stop_grace,"
                " starts_per_minute, host_memory_limit"
            ),
        ),
        (
            "scheduler: {queues: {interactive: {max_len: 1}}}",
            "f.yaml:1:36: scheduler.queues.interactive.max_len: unknown key; did you mean max_length?",
        ),
        (
            "scheduler: {fit_wait_seconds: 1}",
            "f.yaml:1:13: scheduler.fit_wait_seconds: unknown key; did you mean fit_wait?",
        ),
    ],
)
def test_J7_an_unknown_key_is_told_the_nearest_or_its_place(text: str, line: str) -> None:
    """A setting one level too high, or misspelt, is never ignored."""
    assert fault(text) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("models: [a]", "f.yaml:1:1: models: expected a mapping of names to models, got a list"),
        ("models: x", "f.yaml:1:9: models: expected a mapping of names to models, got x"),
        ("models: {m: a.gguf}", "f.yaml:1:13: models.m: expected a mapping of settings, got a.gguf"),
        ("models: {m: }", "f.yaml:1:12: models.m: `path` is missing"),
        ("server: 8080", "f.yaml:1:9: server: expected a mapping of settings, got 8080"),
        ("scheduler: {queues: 3}", "f.yaml:1:21: scheduler.queues: expected a mapping of settings, got 3"),
        ("- server", "f.yaml:1:1: expected lines of the form `key: value`"),
        ("just text", "f.yaml:1:1: expected lines of the form `key: value`"),
    ],
)
def test_J7_what_must_be_a_mapping_is_one(text: str, line: str) -> None:
    """At the top, of a section, of the models and of one model."""
    assert fault(text) == line


# --- names over other models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "place", "words"),
    [
        ("v: {base: m, path: a}", "2:13: models.v.base", "give either path or base, not both"),
        ("v: {base: m, parallel: 2}", "2:26: models.v.parallel", "served by the process of its base: say it of m"),
        ("v: {base: m, flags: [-fa]}", "2:16: models.v.flags", "served by the process of its base: say it of m"),
        ("v: {base: V}", "2:13: models.v.base", "a name cannot be its own base"),
        ("v: {base: w}\n  w: {base: M}", "2:13: models.v.base", "w is a name over a model itself: name its base, M"),
        ("w: {base: M, aliases: [x]}\n  v: {base: X}", "3:13: models.v.base", "name its base, M"),
        ("v: {base: m, limits: {max_tokens: 0}}", "2:37: models.v.limits.max_tokens", "must be from 1 to"),
        ("v: {base: m, limits: {max_token: 1}}", "2:25: models.v.limits.max_token", "did you mean max_tokens?"),
        ("v: {base: m, reasoning_format: aut}", "2:34: models.v.reasoning_format", "did you mean auto?"),
        ("v: {base: m, sampling: 1}", "2:26: models.v.sampling", "expected a mapping of a request's members to values"),
        ("v: {base: m, sampling: {n_predict: 9}}", "2:16: models.v.sampling", "n_predict cannot be added here: it is"),
        ("v: {base: m, sampling: {stream: on}}", "2:16: models.v.sampling", "stream cannot be added here: that is"),
        ("v: {base: m, sampling: {top_p: .5}}", "2:16: models.v.sampling", "a number as JSON has it, such as 0.5"),
        ("v: {base: m, sampling: {top_p: 1e999}}", "2:16: models.v.sampling", "a number as JSON has it"),
        ("v: {path: m, system_prompt: a}", "2:31: models.v.system_prompt", "this is for a name over another model"),
        ("v: {path: m, limits: {max_tokens: 3}}", "2:16: models.v.limits", "this is for a name over another model"),
        ("v: {path: , base: }", "2:20: models.v.base", "`path` is missing"),
        ("v: {base: m, aliases: [V]}", "2:26: models.v.aliases[0]", "the name V is taken by models.v on line 2"),
        ("'m@Batch': {path: a}", "2:3: models.m@Batch", "a name cannot end in @Batch"),
    ],
)
def test_H13_a_name_over_another_model_that_cannot_be_is_told(models: str, place: str, words: str) -> None:
    """What belongs to its base, what is no base, and what cannot be added to a request."""
    told = fault(f"models:\n  {models}")
    assert told.startswith(f"f.yaml:{place}: ")
    assert words in told


def test_R10_a_family_is_of_models_with_files() -> None:
    """The nearest is named."""
    text = "models: {m: {path: a}, v: {base: m}}\nfamilies: {f: {preferred: v}}"
    assert fault(text) == "f.yaml:2:27: families.f.preferred: v is a name over another model: name its base, m"


# --- J2: the same thing twice -----------------------------------------------------------------------------------


def test_J2_every_duplicate_key_names_both_lines() -> None:
    """A model, and a setting of a model; the third one too."""
    assert faults("models:\n  m: {path: a}\n  n: {path: b, path: c}\n  m: {path: c}\n  m: {path: d}\n") == [
        "f.yaml:3:16: models.n.path: this key is already set on line 3",
        "f.yaml:4:3: models.m: this key is already set on line 2",
        "f.yaml:5:3: models.m: this key is already set on line 2",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "models:\n  Chat: {path: a}\n  chat: {path: b}\n",
        "models:\n  a: {path: a, aliases: [CHAT]}\n  b: {path: b, aliases: [chat]}\n",
        "models:\n  Chat: {path: a}\n  b: {path: b, aliases: [chat]}\n",
        "models:\n  Straße: {path: a}\n  b: {path: b, aliases: [STRASSE]}\n",
    ],
)
def test_J2_names_differ_in_more_than_case(text: str) -> None:
    """Clients' names are found without regard to case: both lines are named."""
    found = fault(text)
    assert found.startswith("f.yaml:3:")
    assert " on line 2 (case makes no difference)" in found


def test_J2_a_merge_key_may_be_overridden() -> None:
    """`<<` brings in what a mapping does not say itself, also from several, the first first."""
    models = read(
        """\
        models:
          a: &a {path: a, parallel: 2, class: batch}
          b: &b {path: b, tier: pinned}
          c: {parallel: 3, <<: [*b, *a]}
        """
    ).models
    merged = models["c"]
    assert (merged.path.name, merged.parallel, merged.tier) == ("b", 3, "pinned")
    assert merged.job_class == models["a"].job_class


def test_a_fault_that_was_merged_in_is_told_where_it_stands() -> None:
    """The line is that of the faulty text, for each model that it reaches."""
    assert faults("models:\n  a: &a {path: a, parallel: 0}\n  b:\n    <<: *a\n    path: b\n") == [
        "f.yaml:2:29: models.a.parallel: must be from 1 to 256, got 0",
        "f.yaml:2:29: models.b.parallel: must be from 1 to 256, got 0",
    ]


STARVED = (
    "scheduler.interactive_reserved_slots keeps 2 slots for interactive work, and this model has 2: other work would"
    " never run; give it more slots, or capabilities: [chat]"
)


# --- S6 ---------------------------------------------------------------------------------------------------------


def test_S6_reserving_every_slot_of_a_model_is_a_fault() -> None:
    """Unless the model is for chat only; a model whose slots are automatic is planned with the figure in mind."""
    assert faults(
        """\
        scheduler: {interactive_reserved_slots: 2}
        models:
          chat: {path: a, parallel: 2, capabilities: [chat]}
          roomy: {path: a, parallel: 3}
          own: {path: a}
          full: {path: a, parallel: 2}
        """
    ) == [f"f.yaml:6:19: models.full.parallel: {STARVED}"]
    assert fault(
        "scheduler: {interactive_reserved_slots: 1}\ndefaults: {parallel: 1}\nmodels:\n  m: {path: a}"
    ).startswith("f.yaml:4:3: models.m: scheduler.interactive_reserved_slots keeps 1")


# --- R10 --------------------------------------------------------------------------------------------------------


def test_R10_what_is_wrong_with_a_family_is_told_at_its_place() -> None:
    """Unknown models, a name that is taken, one model twice, one that cannot chat, none at all."""
    assert faults(
        """\
        models:
          big: {path: a, aliases: [large]}
          small: {path: b}
          embed: {path: c, capabilities: [embedding]}
        families:
          one: {preferred: bog, compact: zzz}
          small: {preferred: big}
          LARGE: {preferred: big}
          two:
            preferred: big
            balanced: embed
            compact: big
          three: {}
          four: {prefered: big}
          five: {preferred: 7, compact: [small]}
        """
    ) == [
        "f.yaml:7:3: families.small: the name small is taken by models.small on line 3 (case makes no difference)",
        (
            "f.yaml:8:3: families.LARGE: the name LARGE is taken by models.big.aliases[0] on line 2"
            " (case makes no difference)"
        ),
        "f.yaml:14:10: families.four.prefered: unknown key; did you mean preferred?",
        "f.yaml:15:24: families.five.compact: expected text, got a list",
    ]
    assert faults(
        """\
        models:
          big: {path: a}
          small: {path: b}
          embed: {path: c, capabilities: [embedding]}
        families:
          one: {preferred: bog, compact: zzz}
          two:
            preferred: big
            balanced: embed
            compact: big
          three: {}
        """
    ) == [
        "f.yaml:6:20: families.one.preferred: there is no model bog under models; did you mean big?",
        "f.yaml:6:34: families.one.compact: there is no model zzz under models; there are big, small, embed",
        "f.yaml:9:15: families.two.balanced: embed does not chat, and a family is for chats and completions",
        "f.yaml:10:14: families.two.compact: big is the preferred variant already",
        "f.yaml:11:3: families.three: a family names at least one model: preferred, balanced or compact",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("families: [a]", "f.yaml:1:1: families: expected a mapping of names to families, got a list"),
        ("families: {f: a}", "f.yaml:1:15: families.f: expected a mapping of settings, got a"),
        (
            "scheduler: {eviction: lfu}",
            "f.yaml:1:23: scheduler.eviction: expected cost or lru, got lfu; did you mean lru?",
        ),
        ("scheduler: {background_pause: yes}", "f.yaml:1:31: scheduler.background_pause: expected on or off, got yes"),
        (
            "scheduler: {interactive_turn: 5}",
            "f.yaml:1:31: scheduler.interactive_turn: expected a duration such as 300ms, 2s, 5m or 1h, got 5",
        ),
    ],
)
def test_the_rules_switches_and_families_say_what_they_expect(text: str, line: str) -> None:
    """Wrong words and shapes."""
    assert fault(text) == line


# --- YAML itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [\n", "f.yaml:2:1: this is not YAML: while parsing a flow node, expected the node content, but found"),
        ("server:\n\tport: 1", "f.yaml:2:1: a tab cannot indent YAML; use spaces"),
        ("server: {}\n---\nserver: {}", "f.yaml:2:1: this is not YAML: expected a single document"),
        ("server: *none", "f.yaml:1:9: this is not YAML: found undefined alias"),
        ("server: {}\nx: '\x00'", "f.yaml:2:5: the character U+0000 is not allowed in YAML"),
        ("server: !big {}", "f.yaml:1:9: server: the tag !big means nothing here; quote the value if it is text"),
        ("? [a]\n: 1", "f.yaml:1:3: a key must be text"),
        ("<<: 5", "f.yaml:1:5: `<<` needs a mapping, or a list of mappings"),
        ("[" * 2000, "f.yaml: lists or mappings are nested too deeply, or in themselves"),
        ("server: &a\n  <<: *a\n", "f.yaml: lists or mappings are nested too deeply, or in themselves"),
    ],
    ids=range(10),
)
def test_what_is_not_yaml_is_told_with_its_place(text: str, line: str) -> None:
    """One sentence, and no traceback, for anything a text can hold."""
    assert fault(text).startswith(line)


def test_aliases_that_multiply_are_refused() -> None:
    """Five short lines that stand for more values than memory should hold."""
    lines = ["a: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"b{n}: &l{n + 1} [{', '.join([f'*l{n}'] * 10)}]" for n in range(4)]
    assert f"f.yaml: more than {MAX_NODES} values, each use of an alias counted" in faults("\n".join(lines))


def test_a_used_anchor_may_be_named_again() -> None:
    """That is YAML: the nearer one counts, and nobody is warned."""
    models = read("models:\n  a: {path: &p a}\n  b: {path: &p b}\n  c: {path: *p}\n").models
    assert models["c"].path.name == "b"


@pytest.mark.parametrize("text", ["", "# a comment\n", "null", "server:\nmodels:\n", "models: null", "server: {}"])
def test_nothing_said_is_the_defaults(text: str) -> None:
    """An empty file, or a section of which everything is commented out."""
    assert read(text) == read("")


def test_a_name_cannot_write_on_a_terminal() -> None:
    """What a key holds is shown, not obeyed."""
    assert fault('"a\\e[31m\\nb": 1').startswith("f.yaml:1:1: a\\x1b[31m\\nb: unknown key")


def test_so_many_faults_are_counted() -> None:
    """A file that is wrong throughout does not fill the screen."""
    lines = faults("".join(f"zz{n}: 1\n" for n in range(MAX_SHOWN + 5)))
    assert len(lines) == MAX_SHOWN + 1
    assert lines[-1] == "f.yaml: and 5 more"


def test_a_settings_error_has_its_problems_as_values() -> None:
    """For those who show them otherwise than as lines."""
    with pytest.raises(SettingsError) as caught:
        read("a: 1")
    (problem,) = caught.value.problems
    assert (caught.value.source, problem.line, problem.column, problem.key) == ("f.yaml", 1, 1, "a")
    assert isinstance(problem, Problem)
