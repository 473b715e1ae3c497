"""Which model a client's word means.

Owns the resolution of names and nothing else. A name is found as it is written, else without regard to case. Words that
files bring with them (a file name, `publisher/name`) yield to what a person configured, and one that two files would
answer to answers to neither: a wrong model never answers (C15).
"""

import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gridsched.core.ids import ModelName
from gridsched.library.shards import SUFFIX

DEFAULT_WORDS = frozenset(("default", "auto", "local-model", "current"))
CLOSEST = 3
_UNFIT = frozenset(("Cc", "Cs", "Zl", "Zp"))  # categories: controls, bytes that are no UTF-8, line separators
LONGEST_WORD = 1000  # letters: publisher, repository and file have 255 each at the most
MOST_COMPARED = 40
MOST_COUNTED = 20_000
"""Bounds on a search for close names: words compared letter by letter, and pieces counted. Some milliseconds."""

SHORTEST_PART = 3  # letters of a name that are worth a suggestion: one or two are in every name


@dataclass(frozen=True, slots=True)
class Named:
    """One served model's words: its name, what a person added, and what its file brings with it."""

    name: ModelName
    path: Path
    aliases: tuple[str, ...] = ()
    file_words: tuple[str, ...] = ()


def presentable(word: str) -> str:
    """A file's word as it can be listed, logged and sent in a header: one line of UTF-8, no space around it.

    Whatever cannot stand there becomes `_`; dots, quotes, slashes and every other character stay (F10).
    """
    return "".join("_" if unicodedata.category(each) in _UNFIT else each for each in word).strip() or "_"


def printable(sentence: str) -> str:
    """One line that does nothing to a terminal and is UTF-8, whatever path or key of a file it quotes."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in sentence)


def file_words(path: Path, stem: str, publisher: str = "", repo: str = "") -> tuple[str, ...]:
    """What a file may be called: `publisher/repo/file`, `publisher/file`, `publisher/repo`, `file`; each file word with
    its suffix or without. All of them are presentable."""
    own = (stem, path.name, stem + SUFFIX)  # the last is another where a name has a part's number, or its repository
    words = [*own]
    if publisher:
        words += [f"{publisher}/{word}" for word in (stem, repo)]
        words += [f"{publisher}/{repo}/{word}" for word in own]
    return tuple(dict.fromkeys(map(presentable, words)))


def publisher_of(words: Iterable[str]) -> str:
    """The publisher in a file's words, "" where it has none."""
    return next((word.partition("/")[0] for word in words if "/" in word), "")


def _pieces(word: str) -> set[str]:
    """Every three letters in a row, the word's ends counted as letters."""
    marked = f"\n{word}\n"
    return {marked[at : at + 3] for at in range(len(marked) - 2)}


class Names:
    """All words of all models. Built once; `models` in order of preference."""

    def __init__(self, models: Sequence[Named], default: ModelName | None) -> None:
        self._models = tuple(models)
        self._default = default
        self._exact: dict[str, ModelName] = {}
        self._folded: dict[str, ModelName] = {}
        self._claim((model.name, model.name) for model in models)
        self._claim((word, model.name) for model in models for word in model.aliases)
        self._claim(self._file_claims())
        self._keys = {word.removesuffix(SUFFIX): name for word, name in self._folded.items()}
        self._by_piece: dict[str, list[str]] = {}
        for key in self._keys:
            for piece in _pieces(key):
                self._by_piece.setdefault(piece, []).append(key)

    def resolve(self, word: str) -> ModelName | None:
        """The model that is meant, None where nobody answers. The words for the default model yield to real names."""
        word = word.strip()
        folded = word.casefold()
        found = self._exact.get(word) or self._folded.get(folded)
        return found or (self._default if folded in DEFAULT_WORDS else None)

    def aliases(self, name: ModelName) -> tuple[str, ...]:
        """Every other word that a model answers to, in the order in which they were claimed."""
        return tuple(word for word, owner in self._exact.items() if owner == name and word != name)

    def closest(self, word: str) -> tuple[str, ...]:
        """Up to three models whose name, or a word of theirs, is like this one; best first."""
        if len(word) > LONGEST_WORD:
            return ()
        folded = word.strip().casefold().removesuffix(SUFFIX)
        near = difflib.get_close_matches(folded, self._akin(folded), n=2 * CLOSEST, cutoff=0.5)
        within = [key for key in self._keys if len(folded) >= SHORTEST_PART and folded in key]
        return tuple(dict.fromkeys(self._keys[key] for key in (*near, *within)))[:CLOSEST]

    def _akin(self, folded: str) -> list[str]:
        """The words that have most pieces in common with this one, the rarest pieces first.

        The question is asked on the event loop, for any word that a client sends, and to compare it letter by letter
        with all the words of a large library would take a second.
        """
        shared: Counter[str] = Counter()
        for keys in sorted((self._by_piece.get(piece, []) for piece in _pieces(folded)), key=len):
            shared.update(keys)
            if shared.total() > MOST_COUNTED:
                break
        return [key for key, _ in shared.most_common(MOST_COMPARED)]

    def _claim(self, claims: Iterable[tuple[str, ModelName]]) -> None:
        for word, name in claims:
            self._exact.setdefault(word, name)
            self._folded.setdefault(word.casefold(), name)

    def _file_claims(self) -> Iterable[tuple[str, ModelName]]:
        """The words of files that only one file answers to. Two names over one file are one file: the first serves."""
        files: dict[str, set[Path]] = {}
        for model in self._models:
            for word in model.file_words:
                files.setdefault(word.casefold(), set()).add(model.path)
        for model in self._models:
            for word in model.file_words:
                if len(files[word.casefold()]) == 1:
                    yield word, model.name
