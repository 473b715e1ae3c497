"""What a client can do about an error: one sentence, and whether asking again may help. Pure tables.

Owns `gridsched.do` and the rule behind `x-should-retry`. The common SDKs repeat every 408, 409, 429 and 5xx by
themselves, and wait less than a minute for it; so both answers are said, never left to them. Must never name a link.
"""

import math
from collections.abc import Mapping
from typing import Final

from gridsched.core.events import FailureCause

LONGEST_WAITED_SECONDS = 59
"""Clients that repeat by themselves come back too early where `Retry-After` is longer: the SDK for node from 60 on."""

PASSING: Final = frozenset({"queue_timeout", "upstream_error", "draining", "starting", "request_timeout"})
"""Codes whose cause passes by itself, although nobody knows when."""

MENDED_BY_A_PERSON: Final = frozenset(
    cause.value
    for cause in (
        FailureCause.BAD_FLAGS,
        FailureCause.MISSING_FILE,
        FailureCause.DAMAGED_FILE,
        FailureCause.UNKNOWN_ARCHITECTURE,
        FailureCause.CPU_FALLBACK,
    )
)
"""Causes of a failed load that are the same at the next try."""

_BY_CAUSE: Final[Mapping[str, str]] = {
    "device_oom": "Lower ctx_size or parallel of this model, or free its device's memory; it is tried again by itself.",
    "host_oom": "Free host memory, or lower ctx_size of this model; it is tried again by itself.",
    "bad_flags": "Correct this model's flags in the configuration: the message and log_tail name what was refused.",
    "missing_file": "Put the file back, or correct the model's path in the configuration.",
    "damaged_file": "Download the model's file again.",
    "unknown_architecture": "Install an engine that knows this model's architecture, or use another model.",
    "driver_fault": "Ask again later; if it stays so, the device's driver must be started anew.",
    "crashed": "Ask again later; log_tail has the engine's last lines, and log names the whole of them.",
    "killed": "Find out who ended the engine: the system's log names the out-of-memory killer if it was that.",
    "start_timeout": "Raise engine.startup_timeout if it only needs longer; log_tail tells how far it came.",
    "cpu_fallback": "Use an engine that is built for this device, or mend its driver: it computed on the processor.",
}

_BY_CODE: Final[Mapping[str, str]] = {
    "hub_error": "Ask again; if it stays so, take another file, revision or repository.",
    "hub_unavailable": "Ask again when the hub can be reached from the server; HF_ENDPOINT names which one is asked.",
    "upstream_error": "Ask again: the engine is started anew by itself; log_tail has its last lines.",
    "nan_embedding": "Leave that input out or change it: the same input gives the same vector.",
    "cancelled": "Ask again only if it is still wanted: somebody who may end work here has ended it.",
    "queue_timeout": "Ask again, or let the request wait longer; GET /api/status tells what the server works on.",
    "not_resident": "Load the model first, or ask without the wish that nothing be loaded or evicted for it.",
    "model_failed": "Ask again later; GET /api/models tells what is wrong with the model.",
    "model_unavailable": "Mend what the message names, or use another model: GET /v1/models tells the state of each.",
    "gpu_unavailable": "Ask again later; if it stays so, the device's driver must be started anew.",
    "draining": "Ask again when the server has been started anew.",
    "starting": "Ask again in some seconds; GET /health tells when requests are served.",
    "storage_unavailable": "Start the server with a data directory it can write, or mend what the message names.",
    "insufficient_storage": "Make room on the disk of the server's data directory: delete files with DELETE /v1/files.",
    "insufficient_vram": "Use a smaller model or quantization, or lower this one's ctx_size or parallel.",
}


def what_to_do(code: str, detail: Mapping[str, object]) -> str | None:
    """One sentence, None where the message says it all."""
    suggestions = detail.get("suggestions")
    if isinstance(suggestions, list | tuple) and suggestions:
        return f"{suggestions[0]}."
    return _BY_CAUSE.get(str(detail.get("cause"))) or _BY_CODE.get(code)


def whole_seconds(retry_after_seconds: float) -> int:
    """As `Retry-After` says it: not too early, and at least one."""
    return max(1, math.ceil(retry_after_seconds))


def may_help_again(code: str, detail: Mapping[str, object], retry_after_seconds: float | None) -> bool:
    """Whether a client that repeats by itself may succeed."""
    if detail.get("cause") in MENDED_BY_A_PERSON:
        return False
    if retry_after_seconds is None:
        return code in PASSING
    return whole_seconds(retry_after_seconds) <= LONGEST_WAITED_SECONDS
