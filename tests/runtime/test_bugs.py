"""A bug of the scheduler ends the server: the story is told, the code is not 0, and no process stays."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from trio.testing import MockClock

from gridsched.core.errors import IllegalMove, InvariantViolation
from gridsched.core.events import GrantReturned
from gridsched.core.ids import GrantId, ModelName
from tests.stories.world import BACKGROUND, World, model, option
from tests.support.front import serving

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def test_INV_a_bug_ends_the_server_and_its_processes(autojump_clock: MockClock) -> None:
    """The event that makes no sense goes through every nursery; a loaded model's process has been ended by then."""
    house = None
    bug = pytest.RaisesExc(IllegalMove, match="grant 99 is not outstanding")
    with pytest.RaisesGroup(bug, flatten_subgroups=True):
        async with serving(autojump_clock) as house:
            await house.ask("POST", CHAT, HELLO)
            assert house.world.engine.processes()
            house.runtime.post(GrantReturned(GrantId(99)))
            await house.ended.wait()
    assert house is not None
    assert not house.world.engine.processes()


@pytest.mark.slow
def test_INV_serve_tells_the_story_and_ends_with_1(tmp_path: Path) -> None:
    """The command itself, with a slot that is given twice; the tape ends with the event that met it."""
    script = textwrap.dedent("""\
        import contextlib, http.client, sys, threading
        from gridsched.cli import main, serve
        from gridsched.core.residency import Instance

        begin = Instance.__post_init__

        def with_a_slot_too_many(self):
            begin(self)
            self.parallel += 1

        said = serve.tell

        def tell(line):
            said(line)
            if line.startswith("listening"):
                for _ in range(6):
                    threading.Thread(target=ask, args=(line.split("/")[2],), daemon=True).start()

        def ask(host):
            body = b'{"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 500}'
            connection = http.client.HTTPConnection(host)
            connection.request("POST", "/v1/chat/completions", body)
            with contextlib.suppress(Exception):
                connection.getresponse()

        Instance.__post_init__ = with_a_slot_too_many
        serve.tell = tell
        sys.exit(main.main(["serve", "--sim", "--port", "0", "--record", sys.argv[1]]))
        """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "gridsched: the scheduler has met a bug and ends, its processes with it:" in done.stderr
    assert "gridsched: INV-2: instance 1: 5 steps" in done.stderr
    assert "dispatch interactive job 1 step 1/1 -> sim-chat-4b" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "t").read_bytes().splitlines()[-1].endswith(b'"did":null,"digest":""}')


def test_INV_the_guard_sees_a_slot_that_is_not_there() -> None:
    """In the very step, although nobody checks everything."""
    world = World((model("m", option(6, 1)),))
    world.warm("m")
    scheduler = world.scheduler
    scheduler._check_invariants, scheduler._guarded = False, True
    instance = scheduler.state.models[ModelName("m")].instance
    assert instance is not None
    instance.parallel = 2
    world.submit("m")
    with pytest.raises(InvariantViolation, match="INV-2"):
        world.submit("m")


def test_INV_the_guard_sees_memory_that_nobody_holds() -> None:
    """A load whose reservation is gone, looked at when processes come and go."""
    world = World((model("m", option(6, 1)), model("n", option(6, 1))))
    world.warm("m")
    scheduler = world.scheduler
    scheduler._check_invariants, scheduler._guarded = False, True
    scheduler.state.ledger.release(world.instance("m"), world.now)
    with pytest.raises(InvariantViolation, match="INV-3"):
        world.submit("n", BACKGROUND)
