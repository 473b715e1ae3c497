"""The word for what a file's weights are kept as."""

from pathlib import Path

import gguf

from gridsched.library.names import file_words, publisher_of
from gridsched.library.quantizations import quantization

ODD = {"MXFP4_MOE": "MXFP4"}


def test_the_words_are_those_of_the_format() -> None:
    """For every number that the format's own library knows, and none for one that it does not."""
    for kind in gguf.LlamaFileType:
        word = kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        expected = "" if kind is gguf.LlamaFileType.GUESSED else ODD.get(word, word)
        assert quantization({"general.file_type": int(kind)}) == expected
    for unknown in ({}, {"general.file_type": 4}, {"general.file_type": "15"}, {"general.file_type": None}):
        assert quantization(unknown) == ""


def test_a_publisher_is_known_by_the_words_of_a_file() -> None:
    """Where it lies in a publisher's folder."""
    assert publisher_of(file_words(Path("m.gguf"), "m", "org", "repo")) == "org"
    assert publisher_of(file_words(Path("m.gguf"), "m")) == ""
