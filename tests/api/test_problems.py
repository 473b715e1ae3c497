"""The one table from error to status, headers and body."""

import json
from pathlib import PurePosixPath
from types import MappingProxyType

import pytest

from gridsched.api.problems import STATUS, Problem, method_not_allowed, of_outcome, of_rejection, unknown_model
from gridsched.core.commands import Rejection, RejectionCode
from gridsched.core.job import Outcome, OutcomeKind

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
            "gridsched": {"retry_after_s": None, "required_bytes": 9},
        }
    }


def test_a_detail_of_any_kind_becomes_json() -> None:
    """Mappings that are no dict, and what JSON has no word for."""
    detail = {"per_device": MappingProxyType({"sim0": 1}), "path": PurePosixPath("a/b")}
    told = json.loads(Problem("model_failed", "x", detail=detail).body())["error"]["gridsched"]
    assert told == {"per_device": {"sim0": 1}, "path": "a/b"}


RETRIES = [
    (Problem("queue_full", "", retry_after_seconds=2.1), b"3", None),
    (Problem("queue_full", "", retry_after_seconds=0.0), b"1", None),
    (Problem("insufficient_vram", ""), None, b"false"),
    (Problem("insufficient_vram", "", retry_after_seconds=9), b"9", None),
    (Problem("model_failed", ""), None, b"false"),
    (Problem("not_resident", ""), None, b"false"),
    (Problem("internal", ""), None, b"false"),
    (Problem("upstream_error", ""), None, None),
    (Problem("queue_timeout", ""), None, None),
    (Problem("draining", ""), None, None),
    (Problem("model_not_found", ""), None, None),
]


@pytest.mark.parametrize(("problem", "after", "should"), RETRIES, ids=lambda value: getattr(value, "code", None))
def test_a_client_is_told_when_to_try_again_and_when_not(
    problem: Problem, after: bytes | None, should: bytes | None
) -> None:
    """SDKs repeat every 5xx, so what repeating cannot mend says so."""
    head = dict(problem.head())
    assert (head.get(b"retry-after"), head.get(b"x-should-retry")) == (after, should)


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
