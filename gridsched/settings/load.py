"""From a file to `Settings`, or to all of its faults at once. Owns the search order, and what is read and how much.

Must never stop at the first fault, and never let a YAML or pydantic exception out.
"""

from collections.abc import Mapping
from pathlib import Path

import platformdirs
from pydantic import ValidationError

from gridsched.settings.document import Problem, read_document
from gridsched.settings.faults import SettingsError, name_clashes, problem_of, sentence_of, starved_models
from gridsched.settings.schema import ServerSettings, Settings
from gridsched.settings.values import Surroundings

FILE_NAME = "gridsched.yaml"
"""What a configuration file is called in a folder."""

VARIABLE = "GRIDSCHED_CONFIG"
"""The environment variable that names a configuration file."""

MAX_FILE_BYTES = 2**18
"""A larger file is no configuration: some other file was named by mistake."""

MAX_FAULTS = 1000
"""Faults of the schema that are put into sentences."""


def find(path_flag: Path | None, environ: Mapping[str, str], cwd: Path, user_folder: Path | None = None) -> Path | None:
    """The configuration file: as told by the flag, as told by GRIDSCHED_CONFIG, in the current folder, in the user's.

    What was told is returned whether it exists or not; None where nothing was told and nothing is there. `user_folder`
    replaces the platform's user configuration folder.
    """
    if path_flag is not None:
        return path_flag
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    folder = user_folder or platformdirs.user_config_path("gridsched")
    return next((path for path in (cwd / FILE_NAME, folder / FILE_NAME) if path.exists()), None)


def defaults() -> Settings:
    """The settings of a machine without a configuration."""
    return Settings()


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read a file. Paths in it are relative to its folder. Raises SettingsError with every fault."""
    source = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(source, (Problem(0, 0, "", f"cannot be read: {error.strerror}"),)) from None
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(source, (Problem(0, 0, "", f"more than {MAX_FILE_BYTES} bytes: no configuration"),))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        sentence = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise SettingsError(source, (Problem(line, column, "", sentence),)) from None
    return parse(text, source, Surroundings(path.absolute().parent, environ))


def parse(text: str, source: str, around: Surroundings) -> Settings:
    """Read a text; `source` names it in sentences. Raises SettingsError with every fault."""
    document = read_document(text)
    problems = [*document.problems, *name_clashes(document)]
    try:
        settings = Settings.model_validate(document.value, context=around)
        problems += starved_models(document, settings)
        if not problems:
            return settings
    except ValidationError as error:
        problems += (problem_of(document, details) for details in error.errors(include_url=False)[:MAX_FAULTS])
    raise SettingsError(source, tuple(sorted(problems, key=lambda each: (each.line, each.column))))


def override(settings: Settings, host: str | None, port: int | None, models_dir: Path | None) -> Settings:
    """The same settings with what the command line said; None where it said nothing. Raises SettingsError."""
    said = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    try:
        checked = ServerSettings.model_validate(said)
    except ValidationError as error:
        problems = (Problem(0, 0, f"--{each['loc'][0]}", sentence_of(each)) for each in error.errors())
        raise SettingsError("command line", tuple(problems)) from None
    server = settings.server.model_copy(update={key: getattr(checked, key) for key in said})
    dirs = settings.library.dirs if models_dir is None else (models_dir.expanduser(),)
    library = settings.library.model_copy(update={"dirs": dirs})
    return settings.model_copy(update={"server": server, "library": library})
