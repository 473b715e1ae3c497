"""The one table from error to status, headers and body."""

import json
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import pytest

from gridsched.api.elsewhere import method_not_allowed, not_found
from gridsched.control.problems import (
    STATUS,
    Problem,
    invalid,
    of_outcome,
    of_rejection,
    unknown_model,
)
from gridsched.control.remedies import what_to_do
from gridsched.core.commands import Rejection, RejectionCode
from gridsched.core.events import FailureCause
from gridsched.core.job import Outcome, OutcomeKind

GOLDEN = Path(__file__).parent.parent / "golden" / "problems.json"

EXPECTED = {
    RejectionCode.QUEUE_FULL: 429,
    RejectionCode.QUEUE_TIMEOUT: 503,
    RejectionCode.NOT_RESIDENT: 503,
    RejectionCode.MODEL_NOT_FOUND: 404,
    RejectionCode.NOT_FOUND: 404,
    RejectionCode.MODEL_NOT_SUPPORTED: 400,
    RejectionCode.MODEL_FAILED: 503,
    RejectionCode.INSUFFICIENT_VRAM: 507,
    RejectionCode.GPU_UNAVAILABLE: 503,
    RejectionCode.UPSTREAM_ERROR: 502,
    RejectionCode.DRAINING: 503,
    RejectionCode.NOT_FOUND: 404,
    RejectionCode.CONFLICT: 409,
    RejectionCode.UNLOAD_UNVERIFIED: 500,
}


@pytest.mark.parametrize("code", RejectionCode)
def test_every_rejection_has_a_status(code: RejectionCode) -> None:
    """As the contract's table says."""
    problem = of_rejection(Rejection(code, "no"))
    assert problem.status == EXPECTED[code]
    assert json.loads(problem.body())["error"]["code"] == code.value


def test_a_rejections_detail_travels_to_the_client() -> None:
    """Under `gridsched`, with `retry_after_s` always there."""
    problem = of_rejection(Rejection(RejectionCode.INSUFFICIENT_VRAM, "too big", detail={"required_bytes": 9}))
    assert json.loads(problem.body()) == {
        "error": {
            "message": "too big",
            "type": "server_error",
            "param": None,
            "code": "insufficient_vram",
            "gridsched": {
                "retry_after_s": None,
                "required_bytes": 9,
                "do": "Use a smaller model or quantization, or lower this one's ctx_size or parallel.",
            },
        }
    }


def test_a_detail_of_any_kind_becomes_json() -> None:
    """Mappings that are no dict, and what JSON has no word for."""
    detail = {"per_device": MappingProxyType({"sim0": 1}), "path": PurePosixPath("a/b")}
    told = json.loads(Problem("model_failed", "x", detail=detail).body())["error"]["gridsched"]
    assert told.items() >= {"per_device": {"sim0": 1}, "path": "a/b"}.items()


SOON, LATE = 9.0, 61.0  # node's SDK waits for less than a minute only, as the header says it
RETRIES = [
    (Problem("queue_full", "", retry_after_seconds=2.1), b"3", b"true"),
    (Problem("queue_full", "", retry_after_seconds=0.0), b"1", b"true"),
    (Problem("queue_full", "", retry_after_seconds=58.1), b"59", b"true"),
    (Problem("queue_full", "", retry_after_seconds=59.1), b"60", b"false"),
    (Problem("queue_full", "", retry_after_seconds=LATE), b"61", b"false"),
    (Problem("queue_full", ""), None, b"false"),
    (Problem("conflict", ""), None, b"false"),
    (Problem("insufficient_vram", ""), None, b"false"),
    (Problem("insufficient_vram", "", retry_after_seconds=SOON), b"9", b"true"),
    (Problem("model_failed", ""), None, b"false"),
    (Problem("model_failed", "", retry_after_seconds=SOON, detail={"cause": "crashed"}), b"9", b"true"),
    (Problem("model_failed", "", retry_after_seconds=SOON, detail={"cause": "bad_flags"}), b"9", b"false"),
    (Problem("gpu_unavailable", "", retry_after_seconds=SOON), b"9", b"true"),
    (Problem("not_resident", ""), None, b"false"),
    (Problem("nan_embedding", ""), None, b"false"),
    (Problem("internal", ""), None, b"false"),
    (Problem("upstream_error", ""), None, b"true"),
    (Problem("cancelled", ""), None, b"false"),
    (Problem("queue_timeout", ""), None, b"true"),
    (Problem("request_timeout", ""), None, b"true"),
    (Problem("draining", ""), None, b"true"),
    (Problem("starting", "", retry_after_seconds=SOON), b"9", b"true"),
    (Problem("model_not_found", ""), None, b"false"),
    (Problem("invalid_request", ""), None, b"false"),
    (Problem("invalid_request", "", passed_status=501), None, b"false"),
]


@pytest.mark.parametrize(("problem", "after", "should"), RETRIES, ids=lambda value: getattr(value, "code", None))
def test_H15_a_client_is_told_when_to_try_again_and_when_not(
    problem: Problem, after: bytes | None, should: bytes
) -> None:
    """SDKs repeat every 408, 409, 429 and 5xx, at most a minute later: both answers are said."""
    head = dict(problem.head())
    assert (head.get(b"retry-after"), head.get(b"x-should-retry")) == (after, should)


@pytest.mark.parametrize("cause", FailureCause)
def test_P6a_every_cause_has_a_word_what_to_do(cause: FailureCause) -> None:
    """A sentence of its own, without a link."""
    problem = Problem("model_failed", "x", detail={"cause": cause.value})
    told = json.loads(problem.body())["error"]["gridsched"]
    assert told["cause"] == cause.value
    assert told["do"].endswith(".")
    assert "://" not in told["do"]
    assert told["do"] != what_to_do("model_failed", {})


def test_L7_a_refusal_with_a_suggestion_says_that() -> None:
    """The first is what to do."""
    detail = {"suggestions": ["Unpin a", "Release sim0"]}
    told = json.loads(Problem("insufficient_vram", "x", detail=detail).body())["error"]["gridsched"]
    assert told["do"] == "Unpin a."


EXAMPLES = [
    invalid("messages is missing", "messages").problem,
    invalid("x_class: 'urgent' is no class", "x_class", "invalid_class").problem,
    invalid("an image is given as https://…", "messages[0].content[1].image_url.url", "invalid_image_url").problem,
    invalid("m does not serve chat; it serves embedding", "model", "model_not_supported").problem,
    Problem("invalid_api_key", "this is no key of this server", headers=((b"www-authenticate", b"Bearer"),)),
    Problem("cross_origin", "requests from the origin 'null' are not taken"),
    Problem("insufficient_scope", "the key tom lacks the scope for this: it needs admin, and has read"),
    Problem("remote_admin_requires_credential", "this needs the admin token"),
    unknown_model("gemma", ("gemma4-12b", "gemma4-e4b")),
    not_found("/v1/nope"),
    method_not_allowed("GET", "/v1/chat/completions", ("POST", "OPTIONS")),
    Problem("request_timeout", "no byte of the body has come for 60 s"),
    of_rejection(Rejection(RejectionCode.CONFLICT, "sim0 is leased to me", detail={"owner": "me"})),
    Problem("length_required", "a body needs Content-Length, or Transfer-Encoding: chunked"),
    Problem("request_too_large", "the body is longer than 9 bytes, the longest that is taken"),
    Problem("unsupported_media_type", "a body that is compressed is not understood"),
    Problem("key_concurrency", "the key tom has 2 requests open, of 2 at once", retry_after_seconds=1.0),
    Problem("too_many_attempts", "too many wrong credentials", retry_after_seconds=60.0),
    of_rejection(Rejection(RejectionCode.QUEUE_FULL, "the batch queue is full", 7.2, {"max_length": 9})),
    Problem("internal", "an error of this server; its log has the details"),
    of_rejection(Rejection(RejectionCode.UNLOAD_UNVERIFIED, "the process of m does not end")),
    Problem("nan_embedding", "the engine's vector holds a value that is no number", "input"),
    of_outcome(Outcome(OutcomeKind.ENGINE_DIED), "m", ("the last line",)),
    Problem("cancelled", "a person has cancelled this job"),
    of_rejection(Rejection(RejectionCode.QUEUE_TIMEOUT, "waited 1.0 s", detail={"busy_models": ["m"]})),
    of_rejection(Rejection(RejectionCode.NOT_RESIDENT, "it is not loaded", detail={"asked": "warm_only"})),
    of_rejection(Rejection(RejectionCode.MODEL_FAILED, "m failed (bad_flags)", 59.2, {"cause": "bad_flags"})),
    of_rejection(Rejection(RejectionCode.MODEL_FAILED, "m failed (crashed)", 10.0, {"cause": "crashed"})),
    Problem("model_unavailable", "m cannot be served: its file is damaged", "model"),
    of_rejection(Rejection(RejectionCode.DRAINING, "the server is shutting down")),
    Problem("config_invalid", "c.yaml:1:1: modls: unknown key", detail={"faults": ["c.yaml:1:1: modls: unknown key"]}),
    Problem("starting", "the server is starting", retry_after_seconds=1.0),
    Problem("storage_unavailable", "the server's disk does not take it: Input/output error"),
    Problem("insufficient_storage", "the server's disk does not take it: No space left on device"),
    Problem("hub_forbidden", "hub.test gives this repository only to who has permission"),
    Problem("hub_error", "what came as m.gguf has another checksum than the hub tells; it is removed"),
    Problem("hub_unavailable", "hub.test cannot be reached: Connection refused"),
    Problem("hub_unavailable", "hub.test has had too many requests from here", retry_after_seconds=30.0),
    of_rejection(Rejection(RejectionCode.GPU_UNAVAILABLE, "sim0 does not answer", 30.0)),
    of_rejection(Rejection(RejectionCode.INSUFFICIENT_VRAM, "m never fits", detail={"suggestions": []})),
    of_rejection(Rejection(RejectionCode.INSUFFICIENT_VRAM, "m does not fit", 10.0, {"suggestions": ["Unpin a"]})),
]


def test_every_code_is_as_in_the_golden_table() -> None:
    """Status, headers and body of each code of the contract, byte for byte; a person reads what has changed."""
    assert {problem.code for problem in EXAMPLES} == set(STATUS)
    answers = [
        {
            "status": problem.status,
            "headers": {name.decode(): value.decode() for name, value in problem.head()},
            "body": json.loads(problem.body()),
        }
        for problem in EXAMPLES
    ]
    assert [problem.body() for problem in EXAMPLES] == [_line(answer["body"]) for answer in answers]
    assert answers == json.loads(GOLDEN.read_text(encoding="utf-8"))


def _line(body: object) -> bytes:
    """One line of JSON, as it is sent."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


TYPES = {400: "invalid_request_error", 403: "permission_error", 404: "invalid_request_error", 429: "rate_limit_error"}


@pytest.mark.parametrize("code", STATUS)
def test_every_code_has_openais_type(code: str) -> None:
    """Client errors and server errors are told apart."""
    error = json.loads(Problem(code, "x").body())["error"]
    assert error["type"] == TYPES.get(STATUS[code], "server_error" if STATUS[code] >= 500 else "invalid_request_error")


def test_a_draining_server_ends_its_connections() -> None:
    """So that a client's next request finds another one."""
    assert (b"connection", b"close") in Problem("draining", "").head()


def test_a_wrong_method_is_told_the_right_ones() -> None:
    """In `Allow`."""
    problem = method_not_allowed("GET", "/x", ("POST", "OPTIONS"))
    assert (problem.status, dict(problem.head())[b"allow"]) == (405, b"POST, OPTIONS")


def test_H5_an_unknown_model_names_the_closest_or_the_list() -> None:
    """Whatever the name holds."""
    assert "Did you mean a, b?" in unknown_model("c", ("a", "b")).message
    assert "GET /v1/models" in unknown_model("c\n\ud800", ()).message
    json.loads(unknown_model("c\n\ud800", ()).body())
    assert len(unknown_model("c" * 10_000, ()).body()) < 1_000


@pytest.mark.parametrize("kind", OutcomeKind)
def test_P7_a_broken_step_carries_the_engines_last_lines(kind: OutcomeKind) -> None:
    """Whatever way it broke."""
    problem = of_outcome(Outcome(kind), "m", ("last line",))
    assert (problem.status, problem.detail) == (502, {"log_tail": ("last line",)})
    assert "m" in problem.message
