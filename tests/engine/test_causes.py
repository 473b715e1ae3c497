"""P6a: from an exit and a log to a cause. The lines are in the form that llama.cpp prints them."""

import signal
from collections import Counter

import pytest

from gridsched.core.events import FailureCause
from gridsched.engine.causes import MEANINGFUL_LINES, cause_in, failure_of, meaningful, of_the_program

LINES = {
    FailureCause.DEVICE_OOM: (
        "ggml_backend_cuda: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory",
        "ggml_vulkan: Device memory allocation of size 1073741824 failed.",
        "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 4294967296",
        "failed to initialize the context: failed to allocate compute pp buffers",
        "failed to initialize the context: failed to allocate buffer for kv cache",
        "CUDA error: out of memory",
    ),
    FailureCause.HOST_OOM: (
        "alloc_tensor_range: failed to allocate CPU buffer of size 99999999999",
        "unable to allocate CPU_REPACK buffer",
        "unable to allocate CUDA_Host buffer",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "error loading model: mmap failed: Cannot allocate memory",
    ),
    FailureCause.BAD_FLAGS: (
        "error: invalid argument: --frobnicate",
        'error while handling argument "--parallel": stoi',
        "invalid device: CUDA7",
        "expected value for argument",
        "error: unknown value for --flash-attn: 'maybe'",
        "quantized V cache requires flash_attn to be enabled",
    ),
    FailureCause.MISSING_FILE: (
        "gguf_init_from_file: failed to open GGUF file '/m/x.gguf' (No such file or directory)",
        "cannot execute /opt/llama-server: No such file or directory",
        "llama-server: error while loading shared libraries: libggml.so: cannot open shared object file",
    ),
    FailureCause.DAMAGED_FILE: (
        "gguf_init_from_reader: invalid magic characters: 'ABCD', expected 'GGUF'",
        "error loading model: tensor 'blk.0.attn_q.weight' data is not within the file bounds, model is corrupted",
        "gguf_init: failed to read key-value pairs",
        "error loading model: missing tensor 'output_norm.weight'",
        "error loading model: wrong number of tensors; expected 12, got 11",
    ),
    FailureCause.UNKNOWN_ARCHITECTURE: (
        "llama_model_load: error loading model: unknown model architecture: 'foo'",
        "error loading model vocabulary: unknown pre-tokenizer type: 'bar'",
    ),
    FailureCause.DRIVER_FAULT: (
        "CUDA error: an illegal memory access was encountered",
        "ggml_cuda_init: failed to initialize CUDA: unknown error",
        "vk::Queue::submit: ErrorDeviceLost",
        'error while handling argument "--device": invalid device: CUDA0',
        "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",
    ),
    FailureCause.CRASHED: (
        "/src/ggml/src/ggml.c:1234: GGML_ASSERT(ggml_nelements(a) == n) failed",
        "terminate called after throwing an instance of 'std::runtime_error'",
    ),
}
CASES = [(cause, line) for cause, lines in LINES.items() for line in lines]


@pytest.mark.parametrize(("cause", "line"), CASES)
@pytest.mark.parametrize("returncode", [1, -signal.SIGABRT])
def test_P6a_what_the_engine_printed_names_the_cause(cause: FailureCause, line: str, returncode: int) -> None:
    """Whether it ended by itself or aborted; the line is in the sentence."""
    failure = failure_of(returncode, ("0.1 I srv load_model: loading", line, "0.2 E srv exiting"))
    assert failure.cause is cause
    assert line in failure.message
    assert line in failure.log_tail
    assert cause_in((line,)) is cause


ENDS = (
    (1, None, FailureCause.CRASHED, "status 1"),
    (0, None, FailureCause.CRASHED, "status 0"),
    (126, None, FailureCause.MISSING_FILE, "cannot be executed"),
    (127, None, FailureCause.MISSING_FILE, "cannot be executed"),
    (125, None, FailureCause.CRASHED, "tied"),
    (-signal.SIGSEGV, None, FailureCause.CRASHED, "SIGSEGV"),
    (-signal.SIGILL, None, FailureCause.CRASHED, "processor"),
    (-signal.SIGKILL, None, FailureCause.KILLED, "the kernel does so"),
    (-signal.SIGKILL, False, FailureCause.KILLED, "somebody else killed"),
    (-signal.SIGKILL, True, FailureCause.HOST_OOM, "memory ran out"),
    (-signal.SIGTERM, True, FailureCause.KILLED, "somebody else"),
    (-200, None, FailureCause.CRASHED, "signal 200"),
)


@pytest.mark.parametrize(("returncode", "oom_killed", "cause", "word"), ENDS)
def test_P6a_a_silent_end_is_told_by_its_status(
    returncode: int, oom_killed: bool | None, cause: FailureCause, word: str
) -> None:
    """Each with a sentence for a person, that says when it was."""
    failure = failure_of(returncode, (), "while it loaded", oom_killed=oom_killed)
    assert failure.cause is cause
    assert word in failure.message
    assert "while it loaded" in failure.message


@pytest.mark.parametrize(("status", "end"), [(0, 0), (1, 1), (127, 127), (139, -11), (137, -9), (143, -15), (-9, -9)])
def test_P6a_a_wrappers_word_for_a_signal_is_taken_for_it(status: int, end: int) -> None:
    """A shell that runs an engine ends with 128 and the number."""
    assert of_the_program(status) == end


def test_P6a_each_cause_that_an_end_can_have_is_told_in_two_ways() -> None:
    """The other two are not told by an end: a limit that has passed, and a process that computes on the processor."""
    told = Counter(cause for cause, lines in LINES.items() for _ in lines) + Counter(cause for *_, cause, _ in ENDS)
    others = {FailureCause.START_TIMEOUT, FailureCause.CPU_FALLBACK}
    assert {cause for cause, times in told.items() if times > 1} == set(FailureCause) - others


@pytest.mark.parametrize("oom_killed", [None, False, True])
def test_a_kill_from_outside_is_not_blamed_on_an_older_line(oom_killed: bool | None) -> None:
    """The signal speaks for itself."""
    failure = failure_of(-signal.SIGKILL, LINES[FailureCause.DEVICE_OOM], oom_killed=oom_killed)
    assert failure.cause is (FailureCause.HOST_OOM if oom_killed else FailureCause.KILLED)


def test_B24_an_end_that_no_phrase_explains_names_the_last_line() -> None:
    """So that a person need not look for the log first."""
    assert "its last line: so long" in failure_of(3, ("hello", "so long", "  ")).message


def test_P7_only_lines_that_say_something_travel_and_not_too_many() -> None:
    """Empty ones and the engine's warning about browsers do not help."""
    noise = ("", "   ", "0.1 W srv  llama_server: CORS is set to allow all origins ('*')", "more info: x")
    lines = tuple(f"line {number}" for number in range(50))
    assert meaningful((*lines, *noise)) == lines[-MEANINGFUL_LINES:]


def test_a_healthy_log_names_no_cause() -> None:
    """A line in passing must not turn into a diagnosis."""
    assert (
        cause_in(("0.1 I srv load_model: loading model 'x'", "0.2 I srv model loaded", "warning: no usable GPU"))
        is None
    )
