"""One fault done to one model: a signal to its processes, or another way of its engine for a while.

Owns which errors each fault explains, and for how long after it.
"""

import os
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress

from tests.faults.bench import Bench
from tests.soak.plan import EMBEDDER, Harm

USUAL: Mapping[str, object] = {"tokens": 4, "tokens_per_second": 60, "record": ""}
"""What the stand-in does when nothing is wrong."""

ASKED = "what is asked of the model"

SWITCHES: Mapping[str, Mapping[str, object]] = {
    "exit while loading": {"exit_at": "start", "start_delay_seconds": 0.05},
    "exit at a request": {"exit_at": "request"},
    "hang": {"hang_at": ASKED},
    "device error": {
        "status": 500,
        "body": '{"error":{"code":500,"message":"CUDA error: unspecified launch failure"}}',
    },
    "no HTTP": {"garbage_at": ASKED},
    "cut answer": {"break_after_bytes": 150},
    "flood": {"print_bytes_per_request": 2 << 20},
    "ignore TERM": {"ignore_term": True},
    "grow": {"grow_bytes": 1 << 20},
}

BROKEN = frozenset(("upstream_error", "cut", "model_failed crashed"))
EXPLAINS: Mapping[str, frozenset[str]] = {
    "kill": frozenset(("upstream_error", "cut", "model_failed killed")),
    "exit while loading": frozenset(("model_failed crashed",)),
    "exit at a request": BROKEN,
    "hang": BROKEN,
    "device error": BROKEN | {"500", "model_failed driver_fault"},
    "no HTTP": BROKEN,
    "cut answer": BROKEN,
}
"""What a client may be told because of it: a code, or a code of one cause only. The others hurt nobody."""


def do(bench: Bench, harm: Harm) -> bool:
    """Do it, and undo it when its time is over. False where there was no process to do it to."""
    if harm.kind in SWITCHES:
        path = "/v1/embeddings" if harm.model == EMBEDDER else "/v1/chat/completions"
        switches = {name: path if value == ASKED else value for name, value in SWITCHES[harm.kind].items()}
        bench.tell(harm.model, **{**USUAL, **switches})
        threading.Event().wait(harm.seconds)
        bench.tell(harm.model, **USUAL)
        return True
    pids = bench.pids(harm.model)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if harm.kind == "stop" else signal.SIGKILL)
    if harm.kind == "stop":
        threading.Event().wait(harm.seconds)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return bool(pids)
