"""D13: an engine's word that its device fails is no answer to a client; every other answer passes byte for byte."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridsched.core.ids import InstanceId
from gridsched.core.job import Outcome, OutcomeKind
from gridsched.engine.causes import is_device_fault
from gridsched.engine.faultwatch import HELD_BYTES
from gridsched.engine.relay import relay
from gridsched.engine.stall import StallClocks
from gridsched.ports import UpstreamFailure, UpstreamFailureKind

EVENTS = ((b"content-type", b"text/event-stream"),)
JSON = ((b"content-type", b"application/json"),)
TOKEN = b'data: {"choices":[{"delta":{"content":"one \\"error\\": {\\" CUDA error"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
FAULT = b'{"error":{"code":500,"message":"CUDA error: unspecified launch failure","type":"server_error"}}'
OTHER = b'{"error":{"code":500,"message":"The model said: CUDA error","type":"server_error"}}'


@dataclass
class Given:
    """An answer that is given in these pieces, and then ends or breaks."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    pieces: list[bytes]
    breaks: bool = False
    sent: list[bytes] = field(default_factory=list)

    async def receive(self) -> bytes:
        """The next piece."""
        if self.breaks and not self.pieces:
            raise UpstreamFailure(UpstreamFailureKind.BROKEN, "gone")
        return self.pieces.pop(0) if self.pieces else b""

    async def send(self, data: bytes) -> None:
        """What reaches the client."""
        self.sent.append(data)

    async def outcome(self) -> Outcome:
        """Relay it."""
        return await relay(self, self.send, StallClocks().limit(InstanceId(1), 9.0))


def cut(data: bytes, size: int) -> list[bytes]:
    """In pieces of so many bytes."""
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_D13_a_500_that_names_the_device_never_reaches_the_client(size: int) -> None:
    """However it is cut: it is held back until it is known."""
    answer = Given(500, JSON, cut(FAULT, size))
    assert await answer.outcome() == Outcome(OutcomeKind.DEVICE_FAULT, 500, answered=False)
    assert answer.sent == []


@pytest.mark.parametrize("body", [OTHER, b"", b"x" * (HELD_BYTES + 1), FAULT + b" " * HELD_BYTES])
@pytest.mark.parametrize("size", [999, 100_000])
async def test_D13_any_other_500_passes_byte_for_byte(body: bytes, size: int) -> None:
    """Also one that is longer than what is held back: an error that says so is short."""
    answer = Given(500, JSON, cut(body, size))
    assert await answer.outcome() == Outcome(OutcomeKind.DONE, 500)
    assert b"".join(answer.sent) == body


@pytest.mark.parametrize("status", [200, 400, 503])
async def test_D13_other_statuses_are_not_looked_at(status: int) -> None:
    """An answer that quotes one is passed on as it comes, piece by piece."""
    answer = Given(status, JSON, [FAULT[:20], FAULT[20:]])
    assert await answer.outcome() == Outcome(OutcomeKind.DONE, status)
    assert answer.sent == [FAULT[:20], FAULT[20:]]


FRAMES = (
    b"data: " + FAULT + b"\n\n",
    b"error: " + FAULT[9:-1] + b"\n\n",
    b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"ROCm error: x"}}\n\n',
    b'event: error\ndata: {"type":"error","code":"500","message":"vk::Queue::submit: ErrorDeviceLost"}\n\n',
)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_D13_a_stream_that_begins_with_the_devices_fault_was_not_answered(frame: bytes, size: int) -> None:
    """In each form that an engine's error frame has."""
    answer = Given(200, EVENTS, cut(frame, size))
    assert await answer.outcome() == Outcome(OutcomeKind.DEVICE_FAULT, 200, answered=False)
    assert answer.sent == []


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_D13_after_a_token_the_frame_passes_and_the_fault_is_told(frame: bytes, size: int) -> None:
    """The client has seen a part of an answer: it sees the engine's error too, and nothing is run again."""
    answer = Given(200, EVENTS, cut(TOKEN + frame, size))
    assert await answer.outcome() == Outcome(OutcomeKind.DEVICE_FAULT, 200, answered=True)
    assert b"".join(answer.sent) == TOKEN + frame


@pytest.mark.parametrize("frames", [TOKEN + DONE, b"data: " + OTHER + b"\n\n", TOKEN + b"data: " + OTHER, b"dat", b""])
@given(size=st.integers(1, 120))
async def test_D13_other_streams_pass_byte_for_byte(frames: bytes, size: int) -> None:
    """Errors of another kind too, and what models write about errors."""
    answer = Given(200, EVENTS, cut(frames, size))
    assert await answer.outcome() == Outcome(OutcomeKind.DONE, 200)
    assert b"".join(answer.sent) == frames


async def test_an_ordinary_streams_first_token_is_not_held_back() -> None:
    """It goes out as it came, each piece by itself."""
    answer = Given(200, EVENTS, [TOKEN, TOKEN, DONE])
    await answer.outcome()
    assert answer.sent == [TOKEN, TOKEN, DONE]


async def test_P5_an_engine_that_dies_in_its_error_was_not_answered() -> None:
    """What was held back is dropped with it."""
    answer = Given(500, JSON, [FAULT[:30]], breaks=True)
    assert await answer.outcome() == Outcome(OutcomeKind.ENGINE_DIED, 500, answered=False)
    assert answer.sent == []


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "ROCm error: unspecified launch failure",
        "CUDA error",
        "ggml_cuda_compute_forward: MUL_MAT failed",
        "vk::Device::waitForFences: ErrorDeviceLost",
        "DeviceLost",
    ],
)
def test_D13_what_a_failing_device_is_called(message: str) -> None:
    """As a JSON error, as a bare word in its place, and as plain text."""
    assert is_device_fault(b'{"error":{"message":"%s"}}' % message.encode())
    assert is_device_fault(b'{"error":"%s"}' % message.encode())
    assert is_device_fault(message.encode())


@pytest.mark.parametrize(
    "body",
    [
        OTHER,
        b'{"error":{"message":"Failed to parse input at pos 12: CUDA error: out of memory"}}',
        b'{"error":{"message":"context is full","note":"CUDA error"}}',
        b'{"error":["CUDA error"]}',
        b'{"error":{"message":7}}',
        b'{"error":' + b"[" * 50_000,
        b"\xff\xfe",
        b"",
        b"no CUDA error",
    ],
)
def test_D13_what_people_and_models_write_is_no_fault(body: bytes) -> None:
    """An engine quotes them in its errors: a request must not be able to restart a process."""
    assert not is_device_fault(body)
