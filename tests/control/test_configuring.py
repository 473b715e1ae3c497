"""A change of the configuration under a reloader: what it looks at, and what the answer says of it."""

from pathlib import Path

import pytest
from trio.testing import MockClock

from gridsched.control.asker import by_hand
from gridsched.control.configuring import ConfigurationSet, ConfigurationTold
from gridsched.control.problems import RequestError
from gridsched.control.reloading import Prepared, Reloader
from gridsched.control.services import Services
from gridsched.control.use import use
from gridsched.control.verb import Call
from gridsched.control.verbs import BY_NAME
from gridsched.settings.configuration import Configuration
from gridsched.settings.file import digest
from gridsched.settings.reload import ReloadPlan, compare
from gridsched.settings.schema import Settings
from tests.support.front import House, serving

TEXT = "models:\n  tiny: {path: tiny.gguf}   # mine\n"


class Refusing:
    """A world in which one of a configuration's models cannot be had."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._looks = 0

    def look(self) -> object:
        """Nothing changes by itself."""
        return None

    def read(self) -> Settings:
        """What the file says."""
        return self._configuration.settings_of(self._configuration.text())

    def compare(self, before: Settings, after: Settings) -> ReloadPlan:
        """As it is."""
        return compare(before, after, [])

    def running(self, _: Settings, after: Settings) -> Settings:
        """All of it."""
        return after

    def try_start(self, before: Settings, after: Settings) -> None:
        """It would."""

    def prepare(self, settings: Settings, *, anew: bool) -> Prepared:
        """A fault that was there before, wherever it stands by now, and one for each model with flags."""
        assert not anew
        self._looks += 1
        old = f"f.yaml:{self._looks}:3: models.old: its file is gone"
        new = [f"f.yaml:9:3: models.{name}: no such flag" for name, model in settings.models.items() if model.flags]
        return Prepared(lambda: None, (), (old, *new))

    def folders_changed(self) -> bool:
        """They do not."""
        return False


async def asked(house: House, configuration: Configuration, verb: str, **given: object) -> object:
    """The verb's answer, on a server whose engine knows no flags."""
    said: list[str] = []
    reloader = Reloader(house.runtime, Refusing(configuration), configuration.settings_of(TEXT), said.append)
    services = Services(house.runtime, house.authority, reloader=reloader, configuration=configuration)
    return await use(services, BY_NAME[verb], given, Call(by_hand("rest")))


async def test_what_the_engine_would_refuse_is_not_written(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Of one model, as a start would leave it out; what was wrong before keeps nobody from changing something else."""
    autojump_clock.autojump_threshold = 0.01  # files are read by threads, which that clock knows nothing of
    path = tmp_path / "f.yaml"
    path.write_text(TEXT)
    configuration = Configuration(path, {})
    async with serving(autojump_clock) as house:
        done = await asked(house, configuration, "set_config", set={"models": {"tiny": {"parallel": 2}}})
        with pytest.raises(RequestError) as refused:
            await asked(house, configuration, "set_config", set={"models": {"tiny": {"flags": ["-x"]}}})
    assert isinstance(done, ConfigurationSet)
    assert done.written
    assert "models.tiny.parallel: auto" in done.text
    assert refused.value.problem.code == "config_invalid"
    assert refused.value.problem.detail == {"faults": ["f.yaml:9:3: models.tiny: no such flag"]}
    assert path.read_text() == TEXT.replace("gguf}", "gguf, parallel: 2}")


async def test_what_waits_for_a_start_of_the_server_is_told(autojump_clock: MockClock, tmp_path: Path) -> None:
    """By the answer, and from then on by whoever asks for the configuration."""
    autojump_clock.autojump_threshold = 0.01
    path = tmp_path / "f.yaml"
    path.write_text(TEXT)
    configuration = Configuration(path, {})
    async with serving(autojump_clock) as house:
        before = await asked(house, configuration, "get_config")
        done = await asked(house, configuration, "set_config", set={"server": {"port": 4321}})
        after = await asked(house, configuration, "get_config")
    assert isinstance(before, ConfigurationTold)
    assert isinstance(done, ConfigurationSet)
    assert isinstance(after, ConfigurationTold)
    assert (before.runs_as_written, before.needs_restart) == (True, ())
    assert done.needs_restart == ("server.port",)
    assert (after.runs_as_written, after.needs_restart) == (False, ("server.port",))


async def test_a_change_has_a_bound(autojump_clock: MockClock, tmp_path: Path) -> None:
    """The file is read anew for each key."""
    configuration = Configuration(tmp_path / "f.yaml", {})
    many = {f"k{number}": "v" for number in range(60_000)}
    async with serving(autojump_clock) as house:
        with pytest.raises(RequestError, match="give the whole file as text"):
            await asked(house, configuration, "set_config", set=many)


async def test_keys_are_changed_in_what_somebody_else_has_saved_meanwhile(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Both are in the file then; whoever has said of which file he thinks is told instead."""
    autojump_clock.autojump_threshold = 0.01
    path = tmp_path / "f.yaml"
    path.write_text(TEXT)
    by_another = ["# theirs\n", "# theirs, again\n"]

    def while_it_is_checked(settings: Settings) -> Settings:
        if by_another and settings.server.port != 1234:
            path.write_text(by_another.pop(0) + path.read_text())
        return settings

    configuration = Configuration(path, {}, while_it_is_checked)
    async with serving(autojump_clock) as house:
        done = await asked(house, configuration, "set_config", set={"server": {"port": 4321}})
        by_another.append("# the last\n")
        sha256 = digest(path.read_bytes())
        with pytest.raises(RequestError) as refused:
            await asked(house, configuration, "set_config", set={"server": {"port": 4322}}, expected_sha256=sha256)
    assert isinstance(done, ConfigurationSet)
    assert refused.value.problem.code == "conflict"
    assert path.read_text() == f"# the last\n# theirs, again\n# theirs\n{TEXT}server:\n  port: 4321\n"
