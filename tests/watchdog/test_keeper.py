"""`--run`: what becomes of a gateway, however it ends or stands."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import Any

import pytest

from gridsched.watchdog.commands import Commands
from gridsched.watchdog.configuration import digest
from gridsched.watchdog.places import Places
from gridsched.watchdog.processes import identify, state_of
from gridsched.watchdog.starting import Starter
from gridsched.watchdog.units import Units
from gridsched.watchdog.watch import Owner, State, Verdict
from tests.watchdog.conftest import NO_PATIENCE_SECONDS, QUICK, Bench, gateway_command, until

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.Popen[bytes]]


def stop(pid: int) -> None:
    """SIGSTOP, and wait until it stands."""
    os.kill(pid, signal.SIGSTOP)
    process = identify(pid)
    assert process is not None
    until(lambda: state_of(process) == "T")


def restarts(bench: Bench) -> set[str]:
    """Why gateways were started again so far."""
    return {reason for reason, count in bench.keeper.tally.restarts.items() if count}


def test_a_gateway_is_started_and_its_end_of_its_own_will_is_ours(bench: Bench) -> None:
    """Exit code 0 is somebody's wish: the watchdog ends too."""
    bench.configure("")
    bench.turn_until(bench.serves)
    os.kill(bench.pid(), signal.SIGTERM)
    assert bench.turn_until(lambda: bench.has_said("so does its watchdog")) == [0]
    assert bench.has_said("ended well"), "what the gateway prints is passed on"


def test_a_gateway_that_asks_for_a_restart_gets_it_at_once(bench: Bench) -> None:
    """Exit code 75."""
    bench.configure("exit 75")
    bench.turn_until(lambda: bench.has_said("asks to be started again"))
    bench.configure("")
    bench.turn_until(bench.serves)
    assert not bench.has_said("started again in"), "without a pause"
    assert restarts(bench) == {"asked"}


def test_crashes_are_answered_with_ever_longer_pauses(bench: Bench) -> None:
    """One second, two, … a minute; here a tenth and up."""
    bench.configure("exit 1")
    bench.turn_until(lambda: bench.has_said("started again in 0.4 s"))
    pauses = [sentence.rpartition(" in ")[2] for sentence in bench.said if "started again in" in sentence]
    assert pauses[:3] == ["0.1 s", "0.2 s", "0.4 s"]
    assert restarts(bench) == {"crashed"}
    assert bench.keeper.tally.restarts["crashed"] == sum("started the" in sentence for sentence in bench.said) - 1


def test_a_killed_gateway_comes_back(bench: Bench) -> None:
    """Kill -9 is a crash like any other."""
    bench.configure("")
    bench.turn_until(bench.serves)
    before = bench.pid()
    os.kill(before, signal.SIGKILL)
    bench.turn_until(lambda: bench.serves() and bench.pid() != before)
    assert bench.has_said("killed by SIGKILL")


def test_a_taken_port_is_waited_out_until_something_changes(bench: Bench) -> None:
    """Exit code 3: trying again would only print the same; the watchdog stays to be asked."""
    bench.configure("exit 3")
    bench.turn_until(lambda: bench.has_said("exit code 3"))
    for _ in range(20):
        assert bench.keeper.turn() is None
    assert sum("started the gateway" in sentence for sentence in bench.said) == 1
    assert "waiting" in str(bench.keeper.told()["waits"])
    assert restarts(bench) == set()
    bench.configure("")
    bench.turn_until(bench.serves)
    assert restarts(bench) == {"configuration"}


def test_a_data_directory_that_was_in_use_is_tried_again(bench: Bench) -> None:
    """Exit code 4: somebody was faster, and ends some time; nobody has to come and change a file."""
    bench.configure("exit 4")
    bench.turn_until(lambda: bench.has_said("started again when it is free"))
    assert bench.keeper.told()["waits"] is None
    bench.configure("")
    bench.turn_until(bench.serves)
    assert restarts(bench) == {"in_use"}


def test_a_broken_configuration_is_rolled_back_to_the_one_that_ran_well(bench: Bench) -> None:
    """The gateway ends with 2 after a change: the last good file is back, the broken one is kept, and it is said."""
    bench.configure("well")
    bench.turn_until(lambda: bench.has_said("kept as the last good one"))
    bench.configure("exit 2")
    os.kill(bench.pid(), signal.SIGKILL)
    bench.turn_until(lambda: bench.has_said("ROLLED BACK"))
    bench.turn_until(bench.serves)
    path = bench.places.config_flag
    assert path is not None
    assert path.read_text(encoding="utf-8") == "well"
    assert path.with_name("gridsched.yaml.broken-1").read_text(encoding="utf-8") == "exit 2"
    alarm = next(sentence for sentence in bench.said if "ROLLED BACK" in sentence)
    assert alarm.endswith("told to end so"), "the gateway's own words"
    assert "listening" not in alarm, "and none of the one before it"
    assert (restarts(bench), bench.keeper.tally.rollbacks) == ({"crashed", "configuration"}, 1)


def test_a_person_s_file_stays_where_the_last_good_one_does_not_help(bench: Bench) -> None:
    """It was not the configuration: what was rolled back is undone, and nothing goes round in circles."""
    bench.configure("well")
    bench.turn_until(lambda: bench.has_said("kept as the last good one"))
    good = bench.configuration.good()[0].copy
    os.kill(bench.pid(), signal.SIGKILL)
    broken = "exit 2 # good no more"
    renamed = good.with_name(f"{good.stem.partition('-')[0]}-{digest(broken.encode())}.yaml")
    good.unlink()
    renamed.write_text(broken, encoding="utf-8")
    bench.configure("exit 2")
    bench.turn_until(lambda: bench.has_said("does not start either"))
    assert bench.places.config_flag is not None
    assert bench.places.config_flag.read_text(encoding="utf-8") == "exit 2"
    for _ in range(10):
        bench.keeper.turn()
    assert sum("ROLLED BACK" in sentence for sentence in bench.said) == 1


@pytest.mark.parametrize("code", [2, 3])
def test_a_file_that_is_mended_while_the_broken_one_is_tried_is_tried_next(bench: Bench, code: int) -> None:
    """It is not what did not start: it is neither rolled back nor waited for, as if it were."""
    bench.configure("well")
    bench.turn_until(lambda: bench.has_said("kept as the last good one"))
    bench.configure(f"exit {code}")
    os.kill(bench.pid(), signal.SIGKILL)
    bench.turn_until(lambda: bench.has_said("killed by SIGKILL"))
    bench.turn_until(lambda: sum("started the gateway" in sentence for sentence in bench.said) == 2)
    broken = bench.keeper._child
    assert broken is not None
    until(lambda: identify(broken.id.pid) is None)
    bench.configure("mended")
    bench.turn_until(bench.serves)
    assert bench.places.config_flag is not None
    assert bench.places.config_flag.read_text(encoding="utf-8") == "mended"
    assert not bench.has_said("ROLLED BACK")


def test_a_gateway_that_stands_is_noticed_and_restarted(bench: Bench) -> None:
    """SIGSTOP: it lives, holds its lock and its port, and does nothing."""
    bench.configure("")
    bench.turn_until(bench.serves)
    before = bench.pid()
    stop(before)
    bench.stands_until(lambda: bench.has_said("IS WEDGED"))
    assert bench.has_said("stopped by a signal")
    bench.turn_until(bench.serves)
    assert bench.pid() != before
    assert restarts(bench) == {"wedged"}


def test_a_gateway_that_stands_and_ignores_sigterm_is_killed(bench: Bench) -> None:
    """SIGCONT and SIGTERM, then SIGKILL after the grace."""
    bench.configure("stubborn")
    bench.turn_until(bench.serves)
    before = bench.pid()
    stop(before)
    bench.configure("")
    bench.stands_until(lambda: bench.has_said("IS WEDGED"))
    bench.turn_until(lambda: bench.serves() and bench.pid() != before)
    assert identify(before) is None


def test_a_gateway_whose_front_stands_is_said_to_and_restarted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It beats and does not answer."""
    monkeypatch.setattr("gridsched.watchdog.watch.ANSWER_SECONDS", 0.05)
    bench.configure("deaf")
    bench.turn_until(lambda: "does not answer just now" in bench.watch.last().sentence)
    monkeypatch.setattr("gridsched.watchdog.watch._age", lambda *_: 0.1)  # an hour passes, and it beats all the time
    bench.configure("")
    bench.stands_until(lambda: bench.has_said("IS WEDGED"))
    assert bench.has_said("though its scheduler beats")
    monkeypatch.undo()
    bench.turn_until(bench.serves)


def test_a_gateway_that_always_stands_is_not_restarted_for_ever(places: Places) -> None:
    """Three times in ten minutes; then it is said, and left to whoever is asked."""
    bench = Bench(places, limits=replace(QUICK, restarts=1))
    bench.configure("")
    for _ in range(2):
        bench.turn_until(bench.serves)
        stop(bench.pid())
        bench.stands_until(
            lambda: bench.has_said("not restarted again" if bench.has_said("IS WEDGED") else "IS WEDGED")
        )
    assert sum("IS WEDGED" in sentence for sentence in bench.said) == 1
    bench.close()


def test_a_front_that_always_stands_is_left_when_its_time_is_over_and_that_is_said(places: Places) -> None:
    """Once: it has longer to come back than a scheduler."""
    bench = Bench(places, limits=replace(QUICK, restarts=1, front_patience=4.0))
    bench.keeper._unwedged.append(time.monotonic())
    for seconds in range(30, 200):
        bench.keeper._unwedge(Verdict(State.WEDGED, "it stands", half="front", standing_seconds=seconds))
        assert bench.has_said("not restarted again") is (seconds >= 119 + QUICK.wedged_looks)
    assert len(bench.said) == 1


def test_why_a_gateway_that_stands_is_not_restarted_is_said(bench: Bench) -> None:
    """Nobody has asked who could be answered."""
    for _ in range(QUICK.wedged_looks):
        bench.keeper._unwedge(Verdict(State.WEDGED, "it stands", Owner(None, 0), half="scheduler"))
    assert bench.has_said("nobody is signalled who cannot be proven")


def test_somebody_else_s_gateway_is_waited_for(bench: Bench, stranger: Start) -> None:
    """There is one gateway a data directory: ours starts when theirs has ended, and theirs is left alone."""
    theirs = stranger("")
    bench.turn_until(lambda: bench.has_said("owns the data directory already"))
    assert theirs.poll() is None
    assert bench.keeper._pause_before_next(1.0) == 1.0, "it is looked at once a second, not all the time"
    theirs.terminate()
    theirs.wait()
    bench.turn_until(lambda: bench.has_said("started the gateway") and bench.serves())
    assert bench.pid() != theirs.pid


def ask_in_threads(bench: Bench, count: int) -> list[dict[str, Any]]:
    """Several ask for a restart at once, while this thread turns the keeper."""
    outcomes: list[dict[str, Any]] = []
    askers = [
        threading.Thread(target=lambda: outcomes.append(bench.tools.call("restart_server", {"drain_seconds": 60})))
        for _ in range(count)
    ]
    for asker in askers:
        asker.start()
    bench.turn_until(lambda: len(outcomes) == count)
    for asker in askers:
        asker.join()
    return outcomes


def test_a_restart_that_two_ask_for_at_once_is_one(bench: Bench) -> None:
    """Both get the same outcome."""
    bench.configure("")
    bench.turn_until(bench.serves)
    before = bench.pid()
    outcomes = ask_in_threads(bench, 2)
    assert all(outcome["restarted"] for outcome in outcomes)
    assert sum("started the gateway" in sentence for sentence in bench.said) == 2
    assert sorted(outcome["joined_another_request"] for outcome in outcomes) == [False, True]
    assert outcomes[0]["ended"][0] == {"pid": before, "still_alive": False, "how": "exit code 0"}
    assert outcomes[0]["gateway"]["pid"] == bench.pid() != before


def test_a_watchdog_that_is_told_to_end_drains_its_gateway_first(bench: Bench) -> None:
    """One signal to the watchdog is one to the gateway: both end well, and nothing is left."""
    bench.configure("")
    bench.turn_until(bench.serves)
    before = bench.pid()
    bench.keeper.stop()
    assert bench.keeper.run() == 0
    assert identify(before) is None
    assert bench.has_said("told to stop: the gateway drains")
    assert bench.has_said("ended well")


def test_a_third_signal_kills_a_gateway_that_heeds_none(bench: Bench) -> None:
    """Nobody waits for a drain that does not come."""
    bench.configure("stubborn")
    bench.turn_until(bench.serves)
    before = bench.pid()
    for _ in range(3):
        bench.keeper.stop()
    assert bench.keeper.run() == 0
    assert identify(before) is None
    assert bench.has_said("the gateway does not end: killed")


def test_a_gateway_that_cannot_be_ended_is_not_said_to_have_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel holds it, in a driver that has died: whoever reads that looks for it."""

    def refuse(*_: object) -> None:
        raise PermissionError

    bench.configure("")
    bench.turn_until(bench.serves)
    child = bench.keeper._child
    assert child is not None
    monkeypatch.setattr("signal.pidfd_send_signal", refuse)
    monkeypatch.setattr("gridsched.watchdog.keeper.REAP_SECONDS", 0.01)
    for _ in range(3):
        bench.keeper.stop()
    assert bench.keeper.run() == 0
    assert bench.has_said("is left: it cannot be ended")
    assert not bench.has_said("the gateway has ended")
    os.kill(child.id.pid, signal.SIGKILL)
    child._process.wait()


def test_a_second_signal_ends_a_restart_that_drains(places: Places) -> None:
    """Ctrl-C twice while the gateway takes its time: it is killed, and the watchdog ends."""
    bench = Bench(places, limits=replace(QUICK, kill_seconds=NO_PATIENCE_SECONDS))
    bench.configure("stubborn")
    bench.turn_until(bench.serves)
    before = bench.pid()
    asker = threading.Thread(target=lambda: bench.tools.call("restart_server", {"drain_seconds": 600}))
    asker.start()
    until(lambda: bench.keeper._request is not None)
    bench.keeper.stop()
    bench.keeper.stop()
    assert bench.keeper.run() == 0
    asker.join()
    assert identify(before) is None
    assert not bench.has_said("told to stop: the gateway drains"), "there is none left"


def test_a_gateway_of_somebody_else_is_back_when_the_watchdog_is_told_to_stop_meanwhile(
    places: Places, stranger: Start
) -> None:
    """Without --run it was not ours to end for good: the restart that was asked for is finished, and then we end."""
    with closing(Bench(places, runs=False)) as bench:
        theirs = stranger("stubborn")
        asker = threading.Thread(target=lambda: bench.tools.call("restart_server", {"drain_seconds": 600}))
        asker.start()
        until(lambda: bench.keeper._request is not None)
        bench.keeper.stop()
        bench.keeper.stop()
        assert bench.keeper.run() == 0
        asker.join()
        assert theirs.wait(5) == -signal.SIGKILL
        until(lambda: bench.watch.look().process is not None)
        assert bench.pid() != theirs.pid


def test_a_restart_that_fails_says_what_the_gateway_said(bench: Bench) -> None:
    """The exit code and its last words."""
    bench.configure("")
    bench.turn_until(bench.serves)
    bench.configure("exit 2")
    outcome = ask_in_threads(bench, 1)[0]
    assert outcome["restarted"] is False
    assert "exit code 2" in outcome["why"]
    assert "told to end so" in outcome["last_words"]


def test_without_run_nothing_is_started_and_a_restart_keeps_how_it_was_started(places: Places, stranger: Start) -> None:
    """The owner is ended, one that stands too, and started with its own command line and environment, on its own."""
    bench = Bench(places, runs=False)
    for _ in range(5):
        bench.keeper.turn()
    assert bench.said == []
    theirs = stranger("")
    stop(theirs.pid)
    outcome = ask_in_threads(bench, 1)[0]
    assert outcome["restarted"] is True
    assert theirs.wait(30) == 0, "it was continued and heard SIGTERM"
    pid = bench.pid()
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    assert tuple(words) == gateway_command(places)
    assert os.getsid(pid) == pid, "it does not go with the watchdog's terminal"
    os.kill(pid, signal.SIGKILL)
    until(lambda: bench.keeper.turn() is None and bench.has_said("has ended"))


def test_a_restart_that_cannot_even_begin_is_said_to_have_failed(places: Places, stranger: Start) -> None:
    """The folder that it was started in is gone: nobody waits for a gateway that does not come."""
    bench = Bench(places, runs=False, limits=replace(QUICK, settle_seconds=0.1))
    folder = places.cwd / "gone soon"
    folder.mkdir()
    theirs = stranger("", folder)
    folder.rmdir()
    outcome = ask_in_threads(bench, 1)[0]
    assert theirs.wait(30) == 0
    assert outcome["restarted"] is False
    assert "gone soon" in outcome["why"]


def test_a_unit_of_the_service_manager_is_restarted_by_it(places: Places, stranger: Start) -> None:
    """The service manager stays the gateway's parent."""
    bench = Bench(places, runs=False, limits=replace(QUICK, settle_seconds=0.1))
    theirs = stranger("")
    log = places.cwd / "asked"
    systemctl = places.cwd / "bin" / "systemctl"
    show = f"LoadState=loaded\\nActiveState=active\\nUnitFileState=enabled\\nMainPID={theirs.pid}\\n"
    systemctl.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\ncase "$2" in show) printf "{show}";; esac\n', encoding="utf-8"
    )
    systemctl.chmod(0o755)
    bench.keeper.turn()
    outcome = ask_in_threads(bench, 1)[0]
    assert "--user restart gridsched.service" in log.read_text(encoding="utf-8")
    assert outcome["by"] == "systemd unit gridsched.service"
    assert theirs.wait(30) == 0


@pytest.mark.parametrize(
    ("main", "words", "is_asked"),
    [
        (4711, "--data-dir /elsewhere", False),
        (0, "--data-dir /elsewhere", False),
        (4711, "", False),
        (0, "", True),
        (0, "--data-dir HERE", True),
        (4711, "--data-dir HERE", True),
    ],
)
def test_the_unit_of_another_data_directory_is_left_alone(
    places: Places, main: int, words: str, is_asked: bool
) -> None:
    """Nobody runs here, and the user's unit serves well from elsewhere: it is not ours to restart."""
    words = words.replace("HERE", str(places.data))
    show = f"LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID={main}\n"
    show += f"ExecStart={{ path=/usr/bin/python ; argv[]=/usr/bin/python -m gridsched serve {words} ; pid=0 }}\n"
    told = places.cwd / "told"
    told.write_text(show, encoding="utf-8")
    systemctl = places.cwd / "bin" / "systemctl"
    systemctl.write_text(f"#!/bin/sh\nexec cat {told}\n", encoding="utf-8")
    systemctl.chmod(0o755)
    assert bool(Units(Commands(places.environ), places.data).unit_of(0)) is is_asked


def test_a_gateway_that_hangs_before_it_owns_anything_is_killed(places: Places) -> None:
    """An import from a folder on a dead server: no lock, no heartbeat, no port, and no end."""
    bench = Bench(places)
    bench.configure("hang")
    bench.keeper.turn()
    assert bench.keeper._child is not None
    bench.keeper._child.began -= 1000.0
    for _ in range(3):
        bench.keeper._unhang(bench.watch.look())
    assert sum("has not taken its data directory" in sentence for sentence in bench.said) == 1, "once, not every second"
    bench.turn_until(lambda: bench.has_said("killed by SIGKILL"))
    bench.configure("")
    bench.turn_until(bench.serves)
    assert restarts(bench) == {"hung"}
    child = bench.keeper._child
    assert child is not None
    child.began -= 1000.0
    bench.keeper._unhang(Verdict(State.NOT_RUNNING, "it has just given its lock up, and is about to end"))
    bench.keeper.turn()
    assert child.exit_code() is None, "one that has owned it is ending, not hanging"
    bench.close()


def test_a_turn_that_fails_is_not_the_end_of_the_keeper(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who repairs must not be what breaks: it is said, and the next turn is tried."""
    bench.configure("")
    monkeypatch.setattr(bench.watch, "look", lambda: 1 / 0)
    for _ in range(3):
        assert bench.keeper._safe_turn() is None
    assert sum("a turn has failed: ZeroDivisionError" in sentence for sentence in bench.said) == 1, "once, not for ever"
    monkeypatch.undo()
    bench.turn_until(bench.serves)


def test_a_place_where_nothing_can_be_written_does_not_keep_a_gateway_from_starting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints to nobody then; other programs are asked without a folder for what is passing, too."""
    bench.configure("")
    bench.places.gateway_log.mkdir()
    bench.turn_until(bench.serves)
    assert bench.has_said("started the gateway")
    monkeypatch.setattr("tempfile.tempdir", str(bench.places.cwd / "no such folder"))
    assert ask_in_threads(bench, 1)[0]["restarted"] is True


def test_a_unit_that_has_failed_is_started_by_the_service_manager_and_its_refusal_is_said(places: Places) -> None:
    """Nobody runs: the unit that should is restarted, and what systemctl has against it is what whoever asked reads."""
    bench = Bench(places, runs=False, limits=replace(QUICK, settle_seconds=0.1))
    systemctl = places.cwd / "bin" / "systemctl"
    show = 'printf "LoadState=loaded\\nActiveState=failed\\nUnitFileState=enabled\\nMainPID=0\\n"'
    script = f'#!/bin/sh\ncase "$2" in show) {show};; restart) echo "Unit is masked."; exit 5;; esac\n'
    systemctl.write_text(script, encoding="utf-8")
    systemctl.chmod(0o755)
    outcome = ask_in_threads(bench, 1)[0]
    assert outcome["restarted"] is False
    assert "Unit is masked." in outcome["why"]
    assert not bench.has_said("started the gateway")


def test_what_a_gateway_before_has_printed_is_not_said_again(places: Places) -> None:
    """Neither at our start nor among the last words of another: whoever reads them looks for what is wrong now."""
    places.gateway_log.write_text("words of long ago\n", encoding="utf-8")
    with closing(Bench(places)) as bench:
        bench.configure("exit 2")
        bench.turn_until(lambda: bench.has_said("exit code 2"))
        assert bench.has_said("told to end so")
        assert not bench.has_said("words of long ago")
        assert "told to end so" in bench.keeper.told()["last_exit"]["last_words"]
        assert "words of long ago" not in bench.keeper.told()["last_exit"]["last_words"]


class Growing(PosixPath):
    """A file that somebody prints to whenever its size has been asked for."""

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found = super().stat(follow_symlinks=follow_symlinks)
        with self.open("a", encoding="ascii") as file:
            file.write(f"a line after {found.st_size} bytes\n")
        return found


def test_what_is_printed_while_it_is_read_is_passed_on_once(places: Places) -> None:
    """Nothing of it is missing, and nothing comes twice: somebody looks there for what went wrong."""
    places.gateway_log.touch()
    echoed: list[str] = []
    starter = Starter(Growing(places.gateway_log), echoed.append)
    for _ in range(5):
        starter.keep_up()
    printed = places.gateway_log.read_text(encoding="ascii")
    assert printed.startswith("".join(f"{text}\n" for text in echoed))
    assert len(echoed) == 5


def test_a_restart_that_meets_something_unthought_of_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked is not left waiting, and not left without an answer."""
    monkeypatch.setattr(bench.keeper, "_restart", lambda *_: 1 / 0)
    outcomes: list[dict[str, Any]] = []
    asker = threading.Thread(target=lambda: outcomes.append(bench.tools.call("restart_server", {})))
    asker.start()
    until(lambda: bench.keeper._request is not None)
    bench.keeper._safe_turn()
    asker.join()
    assert outcomes[0]["restarted"] is False
    assert "has failed" in outcomes[0]["why"]
