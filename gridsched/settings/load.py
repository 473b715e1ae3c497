"""From a file to `Settings`, or to all of its faults at once. Owns the search order, and what is read and how much.

Must never stop at the first fault, and never let a YAML or pydantic exception out.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import platformdirs
from pydantic import ValidationError

from gridsched.settings.document import Problem, read_document
from gridsched.settings.faults import (
    SettingsError,
    chained,
    name_clashes,
    problem_of,
    sentence_of,
    starved_models,
    unfit_variants,
)
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
    replaces the platform's user configuration folder. A user without a home folder has none.
    """
    if path_flag is not None:
        return path_flag
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    folders = [cwd]
    with suppress(RuntimeError):
        folders.append(user_folder or platformdirs.user_config_path("gridsched"))
    # Asked so that a folder which is closed to us is one without a file.
    return next((folder / FILE_NAME for folder in folders if os.access(folder / FILE_NAME, os.F_OK)), None)


def place(
    path_flag: Path | None, environ: Mapping[str, str], cwd: Path, user_folder: Path | None = None
) -> Path | None:
    """Where the configuration file is, or would be made: then in the user's folder. None for a user without one."""
    found = find(path_flag, environ, cwd, user_folder)
    if found is not None:
        return found
    try:
        return (user_folder or platformdirs.user_config_path("gridsched")) / FILE_NAME
    except RuntimeError:
        return None


def defaults() -> Settings:
    """The settings of a machine without a configuration."""
    return Settings()


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read a file. Paths in it are relative to its folder. Raises SettingsError with every fault."""
    return parse(read_text(path), str(path), Surroundings(path.absolute().parent, environ))


def read_text(path: Path) -> str:
    """What a file of ours says, as text. Raises SettingsError for one that cannot be such a file."""
    source = str(path)
    try:
        data = _read(path)
    except OSError as error:
        raise SettingsError(source, (Problem(0, 0, "", f"cannot be read: {error.strerror}"),)) from None
    if len(data) > MAX_FILE_BYTES:
        raise SettingsError(source, (Problem(0, 0, "", f"more than {MAX_FILE_BYTES} bytes: no configuration"),))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        sentence = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise SettingsError(source, (Problem(line, column, "", sentence),)) from None


def _read(path: Path) -> bytes:
    """As much of a file as may be a configuration. Never waits for somebody to write into a pipe. Raises OSError."""
    # Through an opener: `fdopen` of a folder raises and leaves the descriptor open.
    with open(path, "rb", opener=lambda name, _: os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.ESPIPE, "it is a pipe, not a file")
        os.set_blocking(file.fileno(), True)
        return file.read(MAX_FILE_BYTES + 1)


def looked_at(path: Path) -> object:
    """What is another when a file says something else, or cannot be read for another reason; None where it is not
    there. Of its content only: the same again is no change, whichever way it came."""
    try:
        return hashlib.sha256(_read(path)).digest()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.errno


def parse(text: str, source: str, around: Surroundings) -> Settings:
    """Read a text; `source` names it in sentences. Raises SettingsError with every fault."""
    document = read_document(text)
    problems = [*document.problems, *name_clashes(document)]
    try:
        settings = Settings.model_validate(document.value, context=around)
        problems += [*starved_models(document, settings), *unfit_variants(document, settings)]
        problems += chained(document, settings)
        if not problems:
            settings.remember(source, document)
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
    dirs = settings.library.dirs if models_dir is None else (_expanded(models_dir),)
    library = settings.library.model_copy(update={"dirs": dirs})
    return settings.model_copy(update={"server": server, "library": library})


def _expanded(models_dir: Path) -> Path:
    """`~` is the home folder, where the shell has left it. Raises SettingsError."""
    try:
        return models_dir.expanduser()
    except RuntimeError:
        problem = Problem(0, 0, "--models-dir", f"there is no home folder for {models_dir.parts[0]}")
        raise SettingsError("command line", (problem,)) from None
