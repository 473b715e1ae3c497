"""What is said of llama-server's flags, held against the engine that is installed here."""

import os
import subprocess
from pathlib import Path

import pytest

from gridsched.engine.argv import clean_env
from gridsched.engine.find import find_engine
from gridsched.engine.locate import FoundEngine
from gridsched.library.shards import read_model
from gridsched.vram import flags as tables
from gridsched.vram.context import plan_context
from gridsched.vram.flags import FlagError, parse_flags
from gridsched.vram.geometry import Geometry
from gridsched.vram.refusals import check_launch
from tests.support.tiny_model import make_tiny_chat

pytestmark = pytest.mark.slow

OF_OTHER_BUILDS = frozenset(
    (
        *("-lm", "--load-mode", "-mmdev", "--mmproj-device", "-ncffn", "--n-cpu-ffn", "--kv-unified-per-slot"),
        *("-cd", "--ctx-size-draft", "--spec-draft-ctx-size"),
    )
)
PATIENCE_SECONDS = 60.0
ONE_VALUE = (tables._BY_SPELLING, tables._LISTS, tables._UNCOUNTED, tables._FIT, tables._PROJECTOR_DEVICE)
READ = {
    **{name: 1 for table in ONE_VALUE for name in table},
    **dict.fromkeys(tables._SWITCH_BY_SPELLING, 0),
    **{name: 0 if kind == "experts" else 1 for name, (_, kind) in tables._OVERRIDES.items()},
}
"""Every name of every flag that is read, with the number of its values."""


@pytest.fixture(scope="module")
def engine() -> FoundEngine:
    """The engine that a server would take here."""
    found = find_engine()
    if not found.info.ok:
        pytest.skip(reason=f"no real engine: {found.info.problem}")
    return found


def test_every_flag_that_is_read_is_the_engines_with_as_many_values(engine: FoundEngine) -> None:
    """But for those of newer and older builds."""
    for name, values in READ.items():
        option = engine.options.get(name)
        if option is None:
            assert name in OF_OTHER_BUILDS, name
        else:
            assert option.values == values, name


def test_every_name_of_a_flag_that_is_read_is_read(engine: FoundEngine) -> None:
    """No alias of the engine's is missed: it would move memory unseen."""
    names = {name for option in engine.options.values() for name in option.names if READ.keys() & set(option.names)}
    assert names <= READ.keys()


@pytest.mark.parametrize(
    "words",
    [
        "-ctk q8_0",
        "-fa off -ctv q8_0",
        "-np 257",
        "-np 3 --embedding --pooling mean",
        "-sm tensor",
        "-ot (=CPU",
        "-ot a=CUDA_Host",
        "-c -1x",
        "--swa-full=1",
    ],
)
def test_what_is_refused_the_engine_does_not_start(engine: FoundEngine, tmp_path: Path, words: str) -> None:
    """A tiny model with heads of 16 values, on the processor."""
    model = tmp_path / "tiny.gguf"
    make_tiny_chat(model)
    flags = ("-c", "512", *words.split())
    with pytest.raises(FlagError):  # noqa: PT012 - either of the two may be the one that refuses
        said = parse_flags(flags)
        geometry = Geometry.from_header(read_model(model).header)
        check_launch(geometry, said, plan_context(geometry, said, on_gpu=False), devices=0)
    line = (engine.info.path, "-m", str(model), "--host", str(tmp_path / "x.sock"), "--fit", "off", *flags)
    env = {**clean_env(os.environ), **engine.env}
    done = subprocess.run(line, env=env, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode != 0
