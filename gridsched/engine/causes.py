"""From an exit status and the last lines of a log to a cause (P6a). Pure; owns the engine's phrases.

The phrases are those of llama.cpp's own error messages (builds 10434 to 11434); the first that matches, in the order of
the table, names the cause. Without one, the way the process ended does.
"""

import errno
import json
import re
import signal
from collections.abc import Mapping, Sequence

from gridsched.core.events import Failure, FailureCause
from gridsched.engine.child import CANNOT_EXECUTE, PARENT_WAS_GONE
from gridsched.threads import SHORTAGES

MEANINGFUL_LINES = 20

_CANNOT_LISTEN = r"couldn't bind .*socket|[Aa]ddress already in use"

_PHRASES: tuple[tuple[FailureCause, tuple[str, ...]], ...] = (
    # The host before the device: its buffers are called CPU or …_Host, and the sentences are otherwise the same.
    (
        FailureCause.HOST_OOM,
        (
            r"allocate (CPU|\S*_Host)\S* buffer",
            r"std::bad_alloc",
            r"mmap failed: Cannot allocate memory",
            r"insufficient memory \(attempted to allocate|[Cc]annot allocate memory|ErrorOutOfHostMemory",
        ),
    ),
    (
        FailureCause.DEVICE_OOM,
        (
            r"(cuda|hip|musa)Malloc failed: out of memory",
            r"(CUDA|ROCm) error: out of memory",
            r"ErrorOutOfDeviceMemory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
            r"Device memory allocation of size",
            r"unable to allocate \S+ buffer",
            r"failed to allocate (\S+ buffer of size|compute (pp |tg )?buffers|buffer for (kv|rs) cache)",
        ),
    ),
    (FailureCause.UNKNOWN_ARCHITECTURE, (r"unknown model architecture", r"unknown pre-tokenizer type")),
    (
        FailureCause.MISSING_FILE,
        (
            r"failed to open.*(No such file|Permission denied|Input/output error)",
            r"^cannot execute|error while loading shared libraries",
        ),
    ),
    # Which devices a process takes is ours to say, and was asked of the engine: one that it knows no more has failed.
    (FailureCause.DRIVER_FAULT, (r'argument "(--device|-dev)": invalid device',)),
    (
        FailureCause.DAMAGED_FILE,
        (
            r"invalid magic|bad GGUF version|corrupted|not within the file bounds|unexpectedly reached end of file",
            r"failed to read (magic|header|key-value|tensor)",
            r"exceeds (maximum|remaining file size)",
            r"missing tensor|wrong number of tensors|key not found in model|tensor '.*' not found",
            r"has invalid (data|GGUF type|ggml type)",
            r"error loading model (hyperparameters|vocabulary)",
        ),
    ),
    (
        FailureCause.BAD_FLAGS,
        (
            r"invalid argument|error while handling argument|expected value for argument|invalid device",
            r"unknown value for --|invalid value for|requires flash_attn|Unsupported cache type",
        ),
    ),
    (
        FailureCause.DRIVER_FAULT,
        (
            r"(CUDA|ROCm|MUSA) error|failed to initialize (CUDA|ROCm|MUSA)|DeviceLost",
            r"no CUDA-capable device|driver version is insufficient|[Dd]river/library version mismatch",
            r"ErrorIncompatibleDriver|ErrorInitializationFailed",
        ),
    ),
    (FailureCause.CRASHED, (r"GGML_ASSERT|GGML_ABORT|ggml_abort|terminate called|^\s*what\(\):|fatal error",)),
    (FailureCause.CRASHED, (_CANNOT_LISTEN,)),
)
_TABLE = tuple((cause, re.compile("|".join(phrases))) for cause, phrases in _PHRASES)

_SENTENCES = {
    FailureCause.DEVICE_OOM: "the device had not enough free memory",
    FailureCause.HOST_OOM: "the machine had not enough free memory",
    FailureCause.UNKNOWN_ARCHITECTURE: "this engine build does not know the model's architecture; a newer build may",
    FailureCause.MISSING_FILE: "a file is missing or cannot be read",
    FailureCause.DAMAGED_FILE: "the model file is damaged or incomplete; fetch it again",
    FailureCause.BAD_FLAGS: "the engine refused its flags",
    FailureCause.DRIVER_FAULT: "the graphics driver failed",
    FailureCause.CRASHED: "the engine gave up",
}
# Signals that say by themselves what happened; the log can only tell what came before.
_STOPPED = (FailureCause.KILLED, "the engine was told to stop by somebody else")
_TELLING_SIGNALS = {
    signal.SIGILL: (
        FailureCause.CRASHED,
        "the engine, built for another one, used an instruction that this processor does not have",
    ),
    signal.SIGKILL: (FailureCause.KILLED, "somebody else killed the engine"),
    signal.SIGTERM: _STOPPED,
    signal.SIGINT: _STOPPED,
    signal.SIGHUP: _STOPPED,
}
_SHELLS_SIGNAL = 128  # and the signal's number: a shell's status when its program was ended by one
_SHELLS_STATUSES = frozenset(_SHELLS_SIGNAL + number for number in signal.valid_signals())
# Lines that a healthy start prints too, and that say nothing about its end.
_NOISE = re.compile(r"^\s*$|CORS is set|security risk|more info:|^\S* ?[IWD]? ?srv +\S+: -+$")


# D13: what a served request is answered when the device fails under a process that lives on. Only where the message
# begins with it: an engine also quotes what people and models have written, further on.
_DEVICE_FAULT = re.compile(
    r"\s*(?:[\w:.~]+: +)?(?:(?:CUDA|ROCm|HIP|MUSA|Vulkan) error\b|\S*Error(?:DeviceLost)\b|DeviceLost\b"
    r"|ggml_(?:cuda|hip|musa|vk|vulkan|sycl)\w*\b)"
)


def is_device_fault(body: bytes) -> bool:
    """Whether an error that an engine answers says that its device fails: a JSON body, an event, or plain text."""
    return _DEVICE_FAULT.match(_message_of(body)) is not None


def _message_of(body: bytes) -> str:
    """The sentence in an error: OpenAI's and Anthropic's shape, as a body or as a frame; else the text itself."""
    line = body[body.find(b"{") :].split(b"\n\n")[0] if b"{" in body else b""
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
    said = said.get("error", said)
    said = said.get("message", "") if isinstance(said, Mapping) else said
    return said if isinstance(said, str) else ""


def of_the_program(returncode: int) -> int:
    """A process's exit status, negative for a signal, also where a shell that was wrapped around it tells of one."""
    return _SHELLS_SIGNAL - returncode if returncode in _SHELLS_STATUSES else returncode


def failure_of(returncode: int, tail: Sequence[str], moment: str = "", *, oom_killed: bool | None = None) -> Failure:
    """What a process that nobody had told to stop died of. `returncode` is negative for a signal, `moment` says when
    ("while it loaded"), `oom_killed` whether the kernel killed it for want of memory, where that is known."""
    lines = meaningful(tail)
    if -returncode not in _TELLING_SIGNALS and (found := _find(lines)):
        cause, line = found
        return Failure(cause, f"{_SENTENCES[cause]}: {line.strip()}", lines)
    when = f" {moment}" if moment else ""
    if returncode == -signal.SIGKILL and oom_killed:
        return Failure(FailureCause.HOST_OOM, f"the kernel killed the engine{when}, because memory ran out", lines)
    cause, sentence = _by_status(returncode)
    if returncode == -signal.SIGKILL and oom_killed is None:
        rest = "; the kernel does so when memory runs out"
    else:
        rest = f"; its last line: {lines[-1].strip()}" if lines and -returncode not in _TELLING_SIGNALS else ""
    return Failure(cause, f"{sentence}{when}{rest}", lines)


def not_started(error: OSError | ValueError) -> Failure:
    """Why there is not even a process. What the system lacks now passes: only arguments stay as they are."""
    lacking = isinstance(error, OSError) and error.errno != errno.E2BIG
    why = error.strerror if isinstance(error, OSError) and error.errno in SHORTAGES else error
    cause = FailureCause.CRASHED if lacking else FailureCause.BAD_FLAGS
    return Failure(cause, f"no process can be started: {why}")


def cause_in(tail: Sequence[str]) -> FailureCause | None:
    """The cause that a log names, if it does."""
    found = _find(meaningful(tail))
    return found[0] if found else None


def cannot_listen(tail: Sequence[str]) -> bool:
    """Whether a log says that the engine could not have the address that it was given."""
    return any(re.search(_CANNOT_LISTEN, line) for line in tail)


def meaningful(tail: Sequence[str]) -> tuple[str, ...]:
    """The last lines that may say something."""
    return tuple([line for line in tail if not _NOISE.search(line)][-MEANINGFUL_LINES:])


def _find(lines: Sequence[str]) -> tuple[FailureCause, str] | None:
    for cause, phrase in _TABLE:
        for line in lines:
            if phrase.search(line):
                return cause, line
    return None


def _by_status(returncode: int) -> tuple[FailureCause, str]:
    if -returncode in _TELLING_SIGNALS:
        return _TELLING_SIGNALS[signal.Signals(-returncode)]
    if returncode in CANNOT_EXECUTE:
        return FailureCause.MISSING_FILE, "the engine's program cannot be executed"
    if returncode == PARENT_WAS_GONE:
        return FailureCause.CRASHED, "the engine could not be tied to the life of this server"
    if returncode < 0:
        return FailureCause.CRASHED, f"the engine crashed ({_signal_name(-returncode)})"
    return FailureCause.CRASHED, f"the engine ended by itself with status {returncode}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
