"""The units for systemd: what is written is what systemd reads, and agrees with the product's own figures."""

import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from gridsched import app
from gridsched.control.ending import RESTART
from gridsched.runtime.heartbeat import BEAT_SECONDS
from gridsched.service import units
from gridsched.service.systemd import START_SECONDS
from gridsched.service.units import GATEWAY, KEPT, WATCHDOG, UnitError, Words, is_untouched, kept, quoted, rendered
from gridsched.settings.load import defaults

README = Path(__file__).parents[2] / "systemd" / "README.md"
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")

ODD = "odd 100% 'dir' \"of\" \\mine $HOME ${HOME} é"


def words(folder: Path, interpreter: Path = Path("/usr/bin/env"), data_dir: Path | None = None) -> Words:
    """Words for a machine on which everything is under `folder`."""
    return Words(
        interpreter, data_dir or folder / "data", folder / "gridsched.yaml", {"PATH": "/usr/bin:/my %h/bin"}, 1235
    )


def settings_of(text: str) -> dict[str, list[str]]:
    """Every setting of a unit, whatever section it is in."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def analyze(folder: Path, *words: str) -> str:
    """What systemd's own checker says of a unit; it exits with 0."""
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "--user", "--no-pager", *words],
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_systemd
@pytest.mark.parametrize("name", [GATEWAY, WATCHDOG])
def test_systemd_reads_a_unit_without_a_warning(tmp_path: Path, name: str) -> None:
    """Whatever its words are: spaces, %, $, quotes and backslashes in a folder; the interpreter is found there."""
    program = tmp_path / "odd 100% $HOME ${HOME} é" / "python"
    program.parent.mkdir()
    program.symlink_to("/bin/sh")
    unit = tmp_path / name
    unit.write_text(rendered(name, words(tmp_path, program, tmp_path / ODD)), encoding="utf-8")
    assert analyze(tmp_path, "verify", str(unit)) == ""


@needs_systemd
@pytest.mark.parametrize("name", [GATEWAY, WATCHDOG])
def test_a_unit_is_as_closed_as_its_readme_says(tmp_path: Path, name: str) -> None:
    """The exposure that systemd works out; each version looks at other things, and old ones at no file."""
    readme = README.read_text(encoding="utf-8")
    measured = re.search(
        r"`systemd-analyze security` \((\d+); .*?\) rates it ([0-9.]+) and the watchdog ([0-9.]+)", readme
    )
    assert measured is not None
    version = analyze(tmp_path, "--version").split()[1]
    if version != measured[1]:
        pytest.skip(reason=f"the README's figures are those of systemd {measured[1]}, this is {version}")
    unit = tmp_path / name
    unit.write_text(rendered(name, words(tmp_path)), encoding="utf-8")
    said = analyze(tmp_path, "security", "--offline=true", str(unit))
    figure = re.search(r"Overall exposure level for \S+ ([0-9.]+)", said)
    assert figure is not None, said
    assert figure[1] == measured[2 if name == GATEWAY else 3]


def test_the_gateways_limits_are_longer_than_what_they_bound(tmp_path: Path) -> None:
    """An end with all its graces, many heartbeats, and systemd's word on a start before ours on systemd."""
    said = settings_of(rendered(GATEWAY, words(tmp_path)))
    assert float(said["TimeoutStopSec"][0]) > app.longest_end_seconds(defaults())
    assert float(said["WatchdogSec"][0]) >= 20 * BEAT_SECONDS
    assert float(said["TimeoutStartSec"][0]) < START_SECONDS
    assert float(said["RestartSec"][0]) * int(said["StartLimitBurst"][0]) < float(said["StartLimitIntervalSec"][0])


def test_M10_the_exit_codes_of_the_unit_are_the_products(tmp_path: Path) -> None:
    """A restart that was asked for is begun and no failure; what trying again cannot mend is not tried again."""
    said = settings_of(rendered(GATEWAY, words(tmp_path)))
    assert said["RestartForceExitStatus"] == said["SuccessExitStatus"] == [str(RESTART)]
    codes = (app.CONFIGURATION, app.PORT_TAKEN, app.DATA_DIR_IN_USE)
    assert said["RestartPreventExitStatus"] == [" ".join(map(str, codes))]
    assert (said["Type"], said["Restart"]) == (["notify"], ["on-failure"])
    assert (said["KillMode"], said["OOMPolicy"]) == (["mixed"], ["continue"])


def test_the_watchdog_hangs_on_nothing(tmp_path: Path) -> None:
    """It lives without the gateway, is started again for ever, and can read whose an engine is."""
    said = settings_of(rendered(WATCHDOG, words(tmp_path)))
    assert (said["Restart"], said["StartLimitIntervalSec"]) == (["always"], ["0"])
    bonds = {"BindsTo", "PartOf", "Requires", "Requisite", "After", "Wants", "Conflicts"}
    namespaces = {
        key for key in said if key.startswith(("Protect", "Private", "Inaccessible", "ReadOnly", "ReadWrite"))
    }
    assert not said.keys() & bonds
    assert not namespaces


def test_the_card_is_not_taken_away(tmp_path: Path) -> None:
    """Nothing of what hides devices, keeps drivers from compiling, or fails in a user's manager."""
    said = settings_of(rendered(GATEWAY, words(tmp_path)))
    fatal = {"PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock", "MemoryDenyWriteExecute"}
    fatal |= {"ProtectKernelModules", "ProtectKernelLogs", "CapabilityBoundingSet", "User", "Group", "PrivateTmp"}
    assert not said.keys() & fatal
    assert "AF_NETLINK" in said["RestrictAddressFamilies"][0]


def test_the_command_names_everything_by_its_whole_path(tmp_path: Path) -> None:
    """Quoted where that is needed; systemd would expand % and $, but not $ in the program's own path."""
    odd = Words(Path("/a $b/python"), Path("/d $x 5%"), None, {}, 1235)
    assert odd.command("serve") == ('"/a $b/python" -P -X faulthandler -m gridsched serve --data-dir "/d $$x 5%%"')
    said = settings_of(rendered(GATEWAY, words(tmp_path)))
    places = f"--data-dir {tmp_path / 'data'} --config {tmp_path / 'gridsched.yaml'}"
    assert said["ExecStart"] == [f"/usr/bin/env -P -X faulthandler -m gridsched serve {places}"]
    assert said["Environment"][0] == '"PATH=/usr/bin:/my %%h/bin"'
    assert said["ReadWritePaths"] == [f"-{tmp_path / 'data'} -/tmp -/var/tmp"]


def test_a_service_can_change_its_own_configuration_and_read_it_again(tmp_path: Path) -> None:
    """PATCH /api/config writes beside the file, and systemctl reload is the signal for it."""
    own = replace(words(tmp_path), config_folders=(tmp_path / "my config",))
    said = settings_of(rendered(GATEWAY, own))
    assert said["ReadWritePaths"] == [f'-{tmp_path / "data"} "-{tmp_path / "my config"}" -/tmp -/var/tmp']
    assert said["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


@pytest.mark.parametrize("word", ["a\nb", "a\0b", "a\x1bb", "a\udcffb"])
def test_what_a_unit_cannot_hold_is_refused(word: str) -> None:
    """A line that ends early would be another setting. Of the environment such a variable is left out."""
    with pytest.raises(UnitError, match="cannot stand in a unit"):
        quoted(word)
    with pytest.raises(UnitError, match="starts no program"):
        Words(Path("/it's/python"), Path("/d"), None, {}, 1235).command("serve")
    assert kept({"PATH": word, "HF_HOME": "/hub", "HF_TOKEN": "secret"}) == {"HF_HOME": "/hub"}


def test_the_templates_come_with_the_package() -> None:
    """A wheel has them where they are looked for, a source tree at its top."""
    project = tomllib.loads((README.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    inside = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]["systemd"]
    assert Path(inside) == Path("gridsched/service/templates")
    assert units._folder() in (README.parent, README.parents[1] / inside)


def test_no_secret_is_taken_over() -> None:
    """A unit can be read by others."""
    assert not [name for name in KEPT if re.search("TOKEN|KEY|SECRET|PASS", name)]


def test_an_edited_unit_is_known(tmp_path: Path) -> None:
    """By its seal, whatever words it was made with; one without a seal is somebody's own."""
    text = rendered(GATEWAY, words(tmp_path))
    assert is_untouched(text)
    assert not is_untouched(text.replace("WatchdogSec=30", "WatchdogSec=3"))
    assert not is_untouched(text + "\n")
    assert not is_untouched(text.partition("\n")[2])
    assert not is_untouched("")
