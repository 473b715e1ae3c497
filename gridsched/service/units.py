"""The unit files that systemd gets: our templates with the words of this machine filled in, and a seal.

Owns systemd's quoting. A sealed text says whether a person has edited it since. Reads the templates and nothing else.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GATEWAY, WATCHDOG = "gridsched.service", "gridsched-watchdog.service"

KEPT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "LLAMA_CACHE",
)
"""Variables of whoever installs that say where programs, libraries and models are: a service is started without them,
and would find less than the same command in a terminal. Secrets are none of them."""

_PLAIN = re.compile(r"[A-Za-z0-9_./:=+-]+")
_SEAL = re.compile(r"# Written by gridsched install-service \(sum ([0-9a-f]{64})\)\. .*\n")


class UnitError(Exception):
    """What cannot be written into a unit; one sentence."""


@dataclass(frozen=True, slots=True)
class Words:
    """What the templates are filled with. Paths are absolute; `config` None leaves the search to each start. In
    `config_folders` the server may change its configuration: a copy and the new file are written beside the old one."""

    interpreter: Path
    data_dir: Path
    config: Path | None
    environment: Mapping[str, str]
    watchdog_port: int
    config_folders: tuple[Path, ...] = ()

    def command(self, name: str, *more: str) -> str:
        """One of gridsched's own commands as a unit starts it. Modules come from where gridsched is installed (-P): a
        service begins in the home folder, where a file may be called as one of them. Raises UnitError."""
        if refused := set(str(self.interpreter)) & set("\"'\\"):
            raise UnitError(f"systemd starts no program with {min(refused)} in its path: {self.interpreter}")
        words = ["-P", "-X", "faulthandler", "-m", "gridsched", name, "--data-dir", str(self.data_dir)]
        if self.config is not None:
            words += ["--config", str(self.config)]
        words += more
        # systemd expands no variable in the program's own path, and takes a doubled $ there as two.
        return " ".join((quoted(str(self.interpreter)), *(quoted(word).replace("$", "$$") for word in words)))


def rendered(name: str, words: Words) -> str:
    """The text of a unit, sealed. Raises UnitError."""
    filled = {
        "SERVE": lambda: words.command("serve"),
        "WATCHDOG": lambda: words.command("watchdog", "--port", str(words.watchdog_port)),
        "WRITABLE": lambda: " ".join(quoted(f"-{path}") for path in (words.data_dir, *words.config_folders)),
        "ENVIRONMENT": lambda: "\n".join(
            f"Environment={quoted(f'{variable}={value}')}" for variable, value in sorted(words.environment.items())
        ),
    }
    _, _, template = (_folder() / name).read_text(encoding="utf-8").partition("\n\n")
    return _sealed(name, re.sub("@([A-Z_]+)@", lambda found: filled[found[1]](), template))


def kept(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a unit takes over."""
    return {name: environ[name] for name in KEPT if environ.get(name) and _can_be_written(environ[name])}


def quoted(word: str) -> str:
    """A word as systemd reads it back. Raises UnitError."""
    if not _can_be_written(word):
        raise UnitError(f"{word!r} cannot stand in a unit: a service's paths have no control characters and are UTF-8")
    if _PLAIN.fullmatch(word):
        return word
    for special, instead in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        word = word.replace(special, instead)
    return f'"{word}"'


def is_untouched(text: str) -> bool:
    """Whether a unit is as `rendered` made it, whatever it was made of."""
    seal = _SEAL.match(text)
    return seal is not None and seal[1] == _sum(text[seal.end() :])


def _sealed(name: str, text: str) -> str:
    advice = f"Changes of your own: systemctl --user edit {name}"
    return f"# Written by gridsched install-service (sum {_sum(text)}). {advice}\n{text}"


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _can_be_written(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return not any(letter < " " or letter == "\x7f" for letter in word)


def _folder() -> Path:
    """The templates: inside this package where it was built, at the top of a source tree."""
    inside = Path(__file__).with_name("templates")
    return inside if inside.is_dir() else Path(__file__).parents[2] / "systemd"
