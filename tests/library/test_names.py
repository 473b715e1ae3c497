"""Which model a client's word means."""

import difflib
from collections.abc import Sequence
from pathlib import Path

import pytest

from gridsched.core.ids import ModelName
from gridsched.library.names import Named, Names, file_words

QWEN = Named(
    ModelName("bartowski/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M"),
    Path("/m/qwen.gguf"),
    (),
    file_words(Path("Qwen3-8B-Q4_K_M.gguf"), "Qwen3-8B-Q4_K_M", "bartowski", "Qwen3-8B-GGUF"),
)
GEMMA = Named(ModelName("gemma4:12b"), Path("/m/g.gguf"), ("gpt-4o", "m:batch"), file_words(Path("g.gguf"), "g"))
GEMMA_TOO = Named(ModelName("gemma-writer"), Path("/m/g.gguf"), (), file_words(Path("g.gguf"), "g"))
NAMES = Names((GEMMA, GEMMA_TOO, QWEN), GEMMA.name)


@pytest.mark.parametrize(
    ("word", "model"),
    [
        ("gemma4:12b", GEMMA),
        ("GEMMA4:12B", GEMMA),
        (" gemma4:12b ", GEMMA),
        ("GPT-4o", GEMMA),
        ("m:batch", GEMMA),
        ("g.gguf", GEMMA),
        ("gemma-writer", GEMMA_TOO),
        ("bartowski/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M", QWEN),
        ("bartowski/qwen3-8b-gguf/qwen3-8b-q4_k_m.gguf", QWEN),
        ("Qwen3-8B-Q4_K_M.gguf", QWEN),
        ("Qwen3-8B-Q4_K_M", QWEN),
        ("bartowski/Qwen3-8B-Q4_K_M", QWEN),
        ("bartowski/Qwen3-8B-GGUF", QWEN),
        ("local-model", GEMMA),
        ("Default", GEMMA),
        ("auto", GEMMA),
        ("current", GEMMA),
    ],
)
def test_every_way_to_name_a_model_finds_it(word: str, model: Named) -> None:
    """Name, alias, file id, file name, publisher and name, a word for the default; in any case (H13)."""
    assert NAMES.resolve(word) == model.name


@pytest.mark.parametrize("word", ["", "qwen", "gemma4", "bartowski", "Qwen3-8B-Q4_K_M.ggu", "defaults"])
def test_half_a_name_is_nobody(word: str) -> None:
    """Nothing is cut off and nothing is guessed."""
    assert NAMES.resolve(word) is None


def test_the_name_as_written_wins_over_another_case() -> None:
    """Two models that differ only in case are both reachable."""
    names = Names((Named(ModelName("Model"), Path("a")), Named(ModelName("model"), Path("b"))), None)
    assert names.resolve("Model") == "Model"
    assert names.resolve("model") == "model"
    assert names.resolve("MODEL") == "Model"


def test_a_configured_word_wins_over_a_files() -> None:
    """A file that happens to be called like an alias does not take it."""
    names = Names((Named(ModelName("x"), Path("a"), (), ("gpt",)), Named(ModelName("y"), Path("b"), ("gpt",))), None)
    assert names.resolve("gpt") == "y"


def test_a_word_that_two_files_answer_to_answers_to_neither() -> None:
    """The same file name from two publishers: only the longer names tell which is meant (C15)."""
    one, two = (
        Named(ModelName(f"{who}/r/phi"), Path(who), (), file_words(Path("phi.gguf"), "phi", who, "r"))
        for who in ("a", "b")
    )
    names = Names((one, two), None)
    assert names.resolve("phi.gguf") is None
    assert names.resolve("a/phi") == "a/r/phi"
    assert set(names.closest("phi.gguf")) == {"a/r/phi", "b/r/phi"}


def test_a_model_called_like_a_word_for_the_default_is_meant_itself() -> None:
    """A real name is never shadowed; without a default the words mean nobody."""
    names = Names((Named(ModelName("auto"), Path("a")), Named(ModelName("b"), Path("b"))), ModelName("b"))
    assert names.resolve("auto") == "auto"
    assert names.resolve("default") == "b"
    assert Names((), None).resolve("default") is None


def test_the_closest_names_are_models_by_any_of_their_words() -> None:
    """A slip of the pen, a part of the name, an old alias; nothing like it is nothing."""
    assert NAMES.closest("gemma4-12b")[0] == "gemma4:12b"
    assert NAMES.closest("qwen3-8b-q4_k_s") == (QWEN.name,)
    assert NAMES.closest("gpt-4") == ("gemma4:12b",)
    assert NAMES.closest("Qwen3-8B") == (QWEN.name,)
    assert NAMES.closest("zzzzzzzz") == ()
    assert NAMES.closest("") == ()


def test_few_words_are_compared_letter_by_letter_whatever_a_client_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a wrong name must not hold up a chat, however large the library and however long the name."""
    compared: list[int] = []
    really = difflib.get_close_matches

    def counting(word: str, words: Sequence[str], n: int, cutoff: float) -> list[str]:
        compared.append(len(words) * len(word))
        return really(word, words, n, cutoff)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    many = [
        Named(ModelName(f"pub{n}/Qwen-{n}-GGUF/Qwen-{n}-Q4_K_M"), Path(str(n)), (), (f"Qwen-{n}-Q4_K_M.gguf",))
        for n in range(2000)
    ]
    names = Names(many, None)
    assert "pub1234/Qwen-1234-GGUF/Qwen-1234-Q4_K_M" in names.closest("qwen-1234-q4_k_s")
    for word in ("qwen-q4_k_m", "pub/qwen-12345-gguf/qwen-12345-q4_k_m", "x" * 1000, "qwen" * 10**6):
        names.closest(word)
    assert len(compared) == 4  # the longest is not looked for at all
    assert max(compared) <= 40 * 40


def test_aliases_are_the_words_that_really_resolve() -> None:
    """What is shown to clients works; the second name over a file has none of the file's words."""
    assert NAMES.aliases(GEMMA.name) == ("gpt-4o", "m:batch", "g", "g.gguf")
    assert NAMES.aliases(GEMMA_TOO.name) == ()
    assert all(NAMES.resolve(word) == QWEN.name for word in NAMES.aliases(QWEN.name))
