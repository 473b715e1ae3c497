"""What an engine's help says of its flags, and which command lines fit it."""

import pytest

from gridsched.engine.options import Option, flag_faults, read_options, settings_of

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                        (env: LLAMA_ARG_CTX_SIZE)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to offload the cache, see --no-such-flag (default: enabled)
                                        (env: LLAMA_ARG_KV_OFFLOAD)
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, bf16, q8_0,
                                        q4_0
                                        (default: f16)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
-sm,   --split-mode {none,layer,row,tensor}
                                        how to split the model, one of:
                                        - none: use one GPU only
                                        - layer (default): split layers
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
--control-vector-layer-range START END
                                        layer range
--spec-type none,draft-simple,draft-mtp
                                        comma-separated list
--fim-qwen-1.5b-default                 use a model
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max or
                                        --spec-ngram-mod-n-max
                                        (env: LLAMA_ARG_DRAFT_MAX)
--temp N                                temperature
"""
OPTIONS = read_options(HELP)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("--usage", Option(("-h", "--help", "--usage"))),
        ("-c", Option(("-c", "--ctx-size"), 1, environment="LLAMA_ARG_CTX_SIZE")),
        (
            "-nkvo",
            Option(("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"), environment="LLAMA_ARG_KV_OFFLOAD"),
        ),
        ("-ctk", Option(("-ctk", "--cache-type-k"), 1, ("f32", "f16", "bf16", "q8_0", "q4_0"))),
        ("-fa", Option(("-fa", "--flash-attn"), 1)),
        ("-sm", Option(("-sm", "--split-mode"), 1, ("none", "layer", "row", "tensor"))),
        ("-ot", Option(("-ot", "--override-tensor"), 1)),
        ("--control-vector-layer-range", Option(("--control-vector-layer-range",), 2)),
        ("--spec-type", Option(("--spec-type",), 1, ("none", "draft-simple", "draft-mtp"), several=True)),
        ("--fim-qwen-1.5b-default", Option(("--fim-qwen-1.5b-default",))),
    ],
)
def test_names_values_words_and_variables_are_read(name: str, option: Option) -> None:
    """In the help's own layout; a flag that is only mentioned is none."""
    assert OPTIONS[name] == option
    assert "--no-such-flag" not in OPTIONS


@pytest.mark.parametrize(
    "words",
    [
        "",
        "-c 512 --ctx_size=512 -nkvo",
        "--temp -1 -ctk q4_0 -fa 1",
        "-ot a=CPU --control-vector-layer-range 1 2 -c 512",
        "--spec-type draft-mtp,none",
    ],
)
def test_what_the_help_knows_is_no_fault(words: str) -> None:
    """Short and long, with an underscore or a sign, with negative values."""
    assert list(flag_faults(words.split(), OPTIONS)) == []


@pytest.mark.parametrize(
    ("words", "index", "sentence"),
    [
        ("-c 512 --ctxsize 9 -nkvo", 2, "this llama-server's help has no --ctxsize; did you mean --ctx-size?"),
        ("-zzz", 0, "this llama-server's help has no -zzz"),
        ("-nkvo 1", 1, "'1' is no flag, and no flag before it takes it as a value"),
        ("-c", 0, "-c needs a value"),
        ("--control-vector-layer-range 1", 0, "--control-vector-layer-range needs 2 values"),
        ("--no-kv-offload=1", 0, "--no-kv-offload takes no value"),
        ("-c 1 -ctk q8", 2, "-ctk: this llama-server does not know 'q8'; did you mean q8_0?"),
        ("-sm sideways", 0, "-sm: this llama-server does not know 'sideways' (none, layer, row, tensor)"),
        ("--spec-type none,draft", 0, "--spec-type: this llama-server does not know 'draft'; did you mean draft-mtp?"),
        (
            "--draft-max 16",
            0,
            "this llama-server has no --draft-max any more: use --spec-draft-n-max or --spec-ngram-mod-n-max",
        ),
    ],
)
def test_what_it_does_not_know_is_a_fault_at_its_word(words: str, index: int, sentence: str) -> None:
    """With the nearest name or word that there is."""
    (fault,) = flag_faults(words.split(), OPTIONS)
    assert (fault.index, fault.sentence) == (index, sentence)


def test_every_fault_is_told_and_an_unknown_flags_values_are_none() -> None:
    """What follows a flag that nobody knows may be its value."""
    faults = list(flag_faults(["--new", "7", "8", "--newer", "-3", "-c"], OPTIONS))
    assert [fault.index for fault in faults] == [0, 3, 5]


def test_without_an_engine_nothing_is_said() -> None:
    """Its help is the only source."""
    assert list(flag_faults(("--anything",), {})) == []


def test_the_engines_variables_are_known_by_their_flags() -> None:
    """Also the form that switches off."""
    known = settings_of(OPTIONS)
    assert known["LLAMA_ARG_CTX_SIZE"] == "--ctx-size"
    assert known["LLAMA_ARG_NO_KV_OFFLOAD"] == "--no-kv-offload"


@pytest.mark.parametrize("text", ["", "no help at all", "---", "-", "- \n  x", "--fit x", "-9"])
def test_a_text_that_is_no_help_has_few_flags_or_none(text: str) -> None:
    """It is never an error."""
    assert set(read_options(text)) <= {"--fit"}
