"""What the settings tests share: a text in, its settings or its faults out."""

import textwrap
from pathlib import Path

import pytest

from gridsched.settings.faults import SettingsError
from gridsched.settings.load import parse
from gridsched.settings.models import ModelSettings
from gridsched.settings.schema import Settings
from gridsched.settings.values import Surroundings

FOLDER = Path("/etc/grid")
ENVIRON = {"MODELS": "/models of mine", "EMPTY": "", "DOLLAR": "a$b"}


def read(text: str) -> Settings:
    """The settings of a text."""
    return parse(textwrap.dedent(text), "f.yaml", Surroundings(FOLDER, ENVIRON))


def read_model(line: str) -> ModelSettings:
    """The settings of one model, of whose mapping this is the inside."""
    return read(f"models:\n  m: {{path: m.gguf, {line}}}").models["m"]


def faults(text: str) -> list[str]:
    """Every fault of a text, a line each."""
    with pytest.raises(SettingsError) as caught:
        read(text)
    return str(caught.value).splitlines()


def fault(text: str) -> str:
    """The only fault of a text."""
    found = faults(text)
    assert len(found) == 1, found
    return found[0]
