"""P6a: from an exit and a log to a cause. The lines are in the form that llama.cpp prints them."""

import signal

import pytest

from gridsched.core.events import FailureCause
from gridsched.engine.causes import MEANINGFUL_LINES, cause_in, failure_of, meaningful

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


@pytest.mark.parametrize(
    ("returncode", "cause", "word"),
    [
        (1, FailureCause.CRASHED, "status 1"),
        (0, FailureCause.CRASHED, "status 0"),
        (127, FailureCause.MISSING_FILE, "cannot be executed"),
        (125, FailureCause.CRASHED, "tied"),
        (-signal.SIGSEGV, FailureCause.CRASHED, "SIGSEGV"),
        (-signal.SIGILL, FailureCause.CRASHED, "processor"),
        (-signal.SIGKILL, FailureCause.KILLED, "memory"),
        (-signal.SIGTERM, FailureCause.KILLED, "somebody else"),
        (-200, FailureCause.CRASHED, "signal 200"),
    ],
)
def test_P6a_a_silent_end_is_told_by_its_status(returncode: int, cause: FailureCause, word: str) -> None:
    """Each with a sentence for a person."""
    failure = failure_of(returncode, ())
    assert failure.cause is cause
    assert word in failure.message


def test_a_kill_from_outside_is_not_blamed_on_an_older_line() -> None:
    """The signal speaks for itself."""
    failure = failure_of(-signal.SIGKILL, LINES[FailureCause.DEVICE_OOM])
    assert failure.cause is FailureCause.KILLED


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
