"""`gridsched install-service` with a service manager that the test plays: two small programs on PATH."""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from gridsched.cli.main import main
from gridsched.service.units import GATEWAY, WATCHDOG, is_untouched

UNITS = (GATEWAY, WATCHDOG)


@dataclass
class House:
    """A user's folders, and what the two programs were asked."""

    folder: Path
    units: Path
    capsys: pytest.CaptureFixture[str]

    def says(self, program: str, script: str) -> None:
        """What a program does; `$*` are its words. It is asked without a service manager of ours being told."""
        path = self.folder / "bin" / program
        path.write_text(f'#!/bin/sh\necho "{program} $*" >> "{self.folder}/asked"\n{script}\n', encoding="utf-8")
        path.chmod(0o755)

    def run(self, *words: str) -> tuple[int, str]:
        """The command's exit code, and all that it says."""
        (self.folder / "asked").write_text("", encoding="utf-8")
        code = main(["install-service", *words])
        said = self.capsys.readouterr()
        return code, said.out + said.err

    def asked(self) -> list[str]:
        """What the programs were asked by the last run."""
        return (self.folder / "asked").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> House:
    """A user for whom everything goes well."""
    for folder in ("bin", "home", "elsewhere"):
        (tmp_path / folder).mkdir()
    for name in [each for each in os.environ if each.startswith(("GRIDSCHED_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = House(tmp_path, tmp_path / "home" / ".config" / "systemd" / "user", capsys)
    found.says("systemctl", 'case "$*" in *is-active*) exit 3;; esac')
    found.says("loginctl", "echo yes")
    return found


def test_M1_both_services_are_written_enabled_and_started(house: House) -> None:
    """With whole paths to this interpreter, the data directory and the configuration that is found here; a second run
    changes nothing."""
    config = house.folder / "elsewhere" / "gridsched.yaml"
    config.write_text("server: {port: 4321}\nwatchdog: {port: 5321}\n", encoding="utf-8")
    code, said = house.run()
    assert code == 0, said
    data_dir = house.folder / "home" / ".local" / "share" / "gridsched"
    for name, command, more in zip(UNITS, ("serve", "watchdog"), ("", " --port 5321"), strict=True):
        text = (house.units / name).read_text(encoding="utf-8")
        assert is_untouched(text)
        assert f"-m gridsched {command} --data-dir {data_dir} --config {config}{more}\n" in text
        assert f"Environment=PATH={house.folder / 'bin'}:/usr/bin:/bin\n" in text
        assert f"{name} is enabled and runs\n" in said
    assert [line.removeprefix("systemctl --user ") for line in house.asked()[:-1]] == [
        "show-environment",
        "daemon-reload",
        *(f"{verb} {name}" for name in UNITS for verb in ("enable", "is-active --quiet", "start")),
    ]
    assert data_dir.is_dir()
    assert sorted(path.name for path in house.units.iterdir()) == sorted(UNITS)
    code, said = house.run()
    assert (code, said.count("(as it was)")) == (0, 2)


def test_a_service_may_write_where_its_configuration_is_and_nowhere_else_at_home(house: House) -> None:
    """The folder of the file, or the one in which it would be made; not the home folder itself."""

    def opened(*words: str) -> str:
        code, said = house.run(*words)
        assert code == 0, said
        unit = (house.units / GATEWAY).read_text(encoding="utf-8")
        return next(line for line in unit.splitlines() if line.startswith("ReadWritePaths="))

    home = house.folder / "home"
    data, rest = f"ReadWritePaths=-{home / '.local' / 'share' / 'gridsched'}", " -/tmp -/var/tmp"
    assert opened() == f"{data} -{home / '.config' / 'gridsched'}{rest}"
    assert (home / ".config" / "gridsched").is_dir()
    (home / "gridsched.yaml").touch()
    assert opened("--config", str(home / "gridsched.yaml")) == f"{data}{rest}"
    (house.folder / "elsewhere" / "mine.yaml").symlink_to(home / ".config" / "gridsched" / "real.yaml")
    (home / ".config" / "gridsched" / "real.yaml").touch()
    config = str(house.folder / "elsewhere" / "mine.yaml")
    assert opened("--config", config) == f"{data} -{home / '.config' / 'gridsched'}{rest}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_reads_what_is_written(house: House) -> None:
    """Without a warning, for a data directory with a space, a % and a $."""
    house.run("--data-dir", "my data 5% $x")
    for name in UNITS:
        done = subprocess.run(
            ["/usr/bin/systemd-analyze", "--user", "verify", str(house.units / name)],
            env={"PATH": "/usr/bin:/bin", "HOME": str(house.folder), "XDG_RUNTIME_DIR": str(house.folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("script", "doubt"),
    [
        ("echo no", ""),
        ("echo Failed to get user: not logged in; exit 1", " (not known: Failed to get user: not logged in)"),
        (None, " (not known: loginctl cannot be run: No such file or directory)"),
    ],
)
def test_M1_without_lingering_the_exact_command_is_said_and_the_code_is_1(
    house: House, monkeypatch: pytest.MonkeyPatch, script: str | None, doubt: str
) -> None:
    """It is off, loginctl refuses, or there is none: both services run, and would stop at log-out."""
    if script is None:
        (house.folder / "bin" / "loginctl").unlink()
        monkeypatch.setenv("PATH", str(house.folder / "bin"))
        house.says("systemctl", ":")
    else:
        house.says("loginctl", script)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="somebody"))
    code, said = house.run()
    assert code == 1
    assert f"lingering is off for somebody{doubt}: both services stop when you log out" in said
    assert "loginctl enable-linger somebody\n" in said
    assert said.count("is enabled and runs") == 2


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ('case "$*" in *enable*) echo Access denied; exit 1;; esac', f"{GATEWAY} is not enabled: Access denied"),
        (
            'case "$*" in *"start gridsched.s"*) echo Job failed; exit 1;; *show*Status*) echo "port taken";; esac',
            f"{GATEWAY} is enabled, and has not started: port taken.",
        ),
        (
            'case "$*" in *start*) echo Job failed; exit 1;; esac',
            f"{WATCHDOG} is enabled, and has not started: Job failed",
        ),
        (
            'case "$*" in *daemon-reload*) echo Reload denied; exit 1;; esac',
            "systemd does not read its units anew: Reload denied",
        ),
    ],
)
def test_M1_what_was_not_done_is_said(house: House, script: str, sentence: str) -> None:
    """By the service's own words where it has some; never a success."""
    house.says("systemctl", script)
    code, said = house.run()
    assert code == 1
    assert sentence in said


@pytest.mark.parametrize("script", ["echo Failed to connect to bus: No medium found; exit 1", None])
def test_without_a_service_manager_nothing_is_done_and_another_way_is_said(
    house: House, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    """No systemd on this machine, or none for this user."""
    if script is None:
        (house.folder / "bin" / "systemctl").unlink()
        monkeypatch.setenv("PATH", str(house.folder / "bin"))
    else:
        house.says("systemctl", script)
    code, said = house.run()
    assert code == 1
    assert "nothing is done" in said
    assert "gridsched watchdog --run" in said
    assert not house.units.exists()


def test_a_unit_that_somebody_has_edited_is_left_alone(house: House) -> None:
    """Without --force; a masked one too. Nothing else is touched either, by installing or by removing."""
    house.run()
    unit, other = house.units / GATEWAY, house.units / WATCHDOG
    for edit in ("edited", "own", "masked"):
        if edit == "masked":
            unit.unlink()
            unit.symlink_to("/dev/null")
        else:
            unit.write_text("[Service]\n" if edit == "own" else unit.read_text("utf-8") + "Nice=5\n", "utf-8")
        before = other.stat().st_mtime_ns
        for words in ((), ("--uninstall",)):
            code, said = house.run(*words)
            assert (code, house.asked()[1:]) == (1, []), (edit, words)
            assert f"{unit} was not written by this command, or has been edited since" in said
            assert f"systemctl --user edit {GATEWAY}" in said
        assert (other.stat().st_mtime_ns, unit.exists()) == (before, True)
    assert house.run("--force")[0] == 0
    assert is_untouched(unit.read_text(encoding="utf-8"))
    assert not unit.is_symlink()


def test_a_running_service_is_not_ended_for_a_new_unit(house: House) -> None:
    """It goes on with the old one, and what to do is said."""
    house.run()
    house.says("systemctl", ":")
    code, said = house.run("--data-dir", "other")
    assert code == 0
    for name in UNITS:
        assert f"{name} is enabled and runs; with its old unit until: systemctl --user restart {name}\n" in said
    assert not [line for line in house.asked() if "restart" in line]


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_whole_path_is_not_believed(house: House, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """As systemd does not: the unit would lie where it never looks."""
    monkeypatch.setenv("HOME", home)
    code, said = house.run("--dry-run", "--data-dir", str(house.folder))
    assert code == 0
    assert f"# {pwd.getpwuid(os.getuid()).pw_dir}/.config/systemd/user/{GATEWAY}\n" in said


def test_a_dry_run_changes_nothing(house: House) -> None:
    """It prints both units and what would be asked; removing likewise."""
    code, said = house.run("--dry-run")
    assert (code, house.asked(), house.units.exists()) == (0, [], False)
    assert said.count("ExecStart=") == 2
    assert f"# then: systemctl --user enable {WATCHDOG}\n" in said
    house.run()
    code, said = house.run("--dry-run", "--uninstall")
    assert (code, house.asked()) == (0, [])
    assert said.count("would stop, disable and remove") == 2
    assert (house.units / GATEWAY).exists()


def test_both_are_removed_and_the_data_stays(house: House) -> None:
    """Stopped first; where there is none, that is said, and it is no failure."""
    house.run()
    code, said = house.run("--uninstall")
    assert (code, list(house.units.iterdir())) == (0, [])
    asked = [line.removeprefix("systemctl --user ") for line in house.asked()]
    assert asked == [f"disable --now {GATEWAY} {WATCHDOG}", "daemon-reload"]
    assert (house.folder / "home" / ".local" / "share" / "gridsched").is_dir()
    code, said = house.run("--uninstall")
    assert (code, house.asked()) == (0, [])
    assert "there is no service" in said


def test_a_configuration_that_is_wrong_for_a_service_is_told_now(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2, as the service would: a fault, or a variable that only this terminal has."""
    config = house.folder / "c.yaml"
    config.write_text("engine: {path: '${ONLY_HERE}/llama-server'}\n", encoding="utf-8")
    monkeypatch.setenv("ONLY_HERE", "/opt")
    code, said = house.run("--config", str(config))
    assert code == 2
    assert "ONLY_HERE" in said
    assert "A service has only these variables of yours: PATH," in said
    config.write_text("server:\n  prot: 1\n", encoding="utf-8")
    code, said = house.run("--config", str(config))
    assert (code, said) == (2, f"gridsched: {config}:2:3: server.prot: unknown key; did you mean port?\n")
    assert not house.units.exists()


def test_a_folder_that_cannot_be_written_is_said(house: House) -> None:
    """A file where a folder should be; nothing is started."""
    (house.folder / "home" / ".config").write_text("", encoding="utf-8")
    code, said = house.run()
    assert code == 1
    assert str(house.folder / "home" / ".config") in said
    assert not [line for line in house.asked() if "start" in line]
