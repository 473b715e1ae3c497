"""Carries a plan out against a gateway of its own, and ends it."""

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gridsched.engine.find import find_engine
from tests.faults.bench import GIB, Bench, Served, serve, settle
from tests.soak import clients, harm
from tests.soak.judge import STALL_SECONDS, Done, Harmed, Result, sample
from tests.soak.plan import BATCH, EMBEDDER, REAL, Ask, Harm, Plan, draw
from tests.support.tiny_model import make_tiny_chat

MOST_AT_ONCE = 200
"""Clients and faults; each is a thread of ours."""

MODELS = {
    "large-a": Served(weights_bytes=10 * GIB),
    "large-b": Served(weights_bytes=10 * GIB, settings={"parallel": 2}),
    "middle": Served(weights_bytes=3 * GIB, settings={"parallel": 2}),
    "fragile": Served(),
    EMBEDDER: Served(embeds=True, settings={"parallel": 2, "class": "background"}),
    BATCH: Served(settings={"class": "batch"}),
}
SETTINGS: dict[str, dict[str, object]] = {
    "devices": {"host_budget": "16GiB"},
    "engine": {"starts_per_minute": 10_000},  # two large models take turns all the time
    "scheduler": {
        "stall_limit": f"{STALL_SECONDS:g}s",
        "hot_window": "2s",
        "min_residency": "1s",
        "background_max_starvation": "1s",
        "batch_max_starvation": "4s",
    },
}


def soak(seed: int, seconds: float) -> Result:
    """A whole run, from the gateway's start to its end."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        real = real_engine()
        bench = gateway(folder, real)
        result = Result()
        try:
            carry_out(bench, draw(seed, seconds, real=bool(real)), result)
            result.leavings += _unwell(bench)
            result.leavings += settle(bench)
            result.leavings += _files_left(bench)
        finally:
            code = bench.gateway.stop()
        if code != 0:
            result.leavings.append(f"the gateway ended with {code}: {bench.gateway.log.read_text()[-2000:]}")
        result.leavings += settle(bench)
        return result


def real_engine() -> dict[str, str]:
    """What the environment of the wheel's engine is; empty where there is none."""
    found = find_engine()
    return {**found.env, "REAL_ENGINE": found.info.path} if found.info.ok else {}


def gateway(folder: Path, real: dict[str, str]) -> Bench:
    """Its engine is the stand-in, but for one model where there is a real one."""
    temporary = folder / "tmp"
    temporary.mkdir()
    models = dict(MODELS)
    if real:
        models[REAL] = Served(env=real, settings={"path": str(make_tiny_chat(folder / "tiny.gguf"))})
    bench = serve(folder, models, settings=SETTINGS, env={"TMPDIR": str(temporary)})
    for model in MODELS:
        bench.tell(model, **harm.USUAL)
    return bench


def carry_out(bench: Bench, plan: Plan, result: Result) -> None:
    """Everything at its time; returns when the last client has its answer."""
    began = time.monotonic()

    def now() -> float:
        return time.monotonic() - began

    def ask(asked: Ask) -> None:
        at = now()
        outcome = clients.ask(bench, asked)
        result.done.append(Done(asked, at, now(), outcome))

    def hurt(planned: Harm) -> None:
        at = now()
        if harm.do(bench, planned):
            result.harmed.append(Harmed(planned, at, now()))
        else:
            result.missed[planned.kind] += 1

    with ThreadPoolExecutor(MOST_AT_ONCE) as pool, sampling(bench, result):
        pause = threading.Event()
        for each in sorted((*plan.asks, *plan.harms), key=lambda item: item.at):
            pause.wait(max(0.0, each.at - now()))
            pool.submit(ask if isinstance(each, Ask) else hurt, each)  # type: ignore[arg-type]
    result.seconds = now()


@contextmanager
def sampling(bench: Bench, result: Result) -> Iterator[None]:
    """Look at the gateway twice a second, as long as the block lasts."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            result.samples.append(sample(bench.gateway.process.pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _unwell(bench: Bench) -> Iterator[str]:
    """What does not answer when all is over, and is not in back-off."""
    failed = bench.status()["failed"]
    for model in MODELS:
        kind = "embeddings" if model == EMBEDDER else "plain"
        outcome = clients.ask(bench, Ask(0.0, model, kind, 3, "whole", 0.0))
        if outcome != clients.ANSWERED and model not in failed:
            yield f"{model} does not answer any more: {outcome}"


def _files_left(bench: Bench) -> Iterator[str]:
    addresses = list((bench.folder / "data" / "run").glob("*.sock"))
    engines = len(bench.status()["instances"])
    if len(addresses) != engines:
        yield f"{len(addresses)} addresses are left for {engines} engines"
    for path in (bench.folder / "tmp").iterdir():
        yield f"{path.name} is left in the folder for temporary files"
