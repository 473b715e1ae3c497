"""What an engine would refuse of the configuration, before any process is started: flags and environments of models.

Owns these sentences, each with its place in the file.
"""

from collections.abc import Iterator, Mapping

from gridsched.engine.argv import refused_flags
from gridsched.engine.locate import FoundEngine
from gridsched.engine.options import Option, flag_faults, settings_of
from gridsched.settings.document import Loc, dotted
from gridsched.settings.schema import Settings
from gridsched.vram.environment import environment_fault
from gridsched.vram.flags import FlagError, parse_flags


def our_flags(settings: Settings) -> Iterator[str]:
    """The flags that are ours to give (address, model, slots' doors) may not be configured: a sentence each."""
    for name, model in settings.models.items():
        for flag in refused_flags(model.flags):
            place = ("models", name, "flags", _place_of(flag, model.flags))
            yield settings.told(
                place, f"{flag}: what is loaded, where it listens and what it tells is gridsched's to say; remove it"
            )


def unchecked(settings: Settings) -> Iterator[str]:
    """What nobody can say of the models' flags without an engine."""
    if any(model.flags for model in settings.models.values()):
        yield "whether the engine knows the flags of the models was not checked: there is none to ask"


def launch_faults(settings: Settings, options: Mapping[str, Option]) -> Iterator[tuple[str, Loc, str]]:
    """What an engine would refuse of the models' flags and environments, or what cannot be planned: model, key, why."""
    variables = settings_of(options)
    for name, model in settings.models.items():
        faults = [(fault.index, fault.sentence) for fault in flag_faults(model.flags, options)]
        if not faults:
            try:
                parse_flags(model.flags)
            except FlagError as error:
                faults.append((_place_of(error.flag, model.flags), str(error)))
        for index, sentence in faults:
            yield name, ("models", name, "flags", index), sentence
        for variable in model.env:
            if fault := environment_fault(variable, variables):
                yield name, ("models", name, "env", variable), fault


def engine_faults(settings: Settings, engine: FoundEngine) -> list[str]:
    """What an engine would refuse of the configuration: a sentence each, with its place in the file."""
    return [settings.told(key, sentence) for _, key, sentence in launch_faults(settings, engine.options)]


def setting_of(key: Loc) -> str:
    """A fault's setting among those of its model."""
    return dotted(key[2:] if key[2] == "env" else key[2:3])


def _place_of(flag: str, flags: tuple[str, ...]) -> int:
    """Where a flag was given last."""
    return max((index for index, word in enumerate(flags) if word.partition("=")[0] == flag), default=0)
