"""`/api/models` and the command that shows it: what each model takes, and how far off the estimates were (L2)."""

import pytest
from trio.testing import MockClock

from gridsched.cli import models
from gridsched.cli.main import main
from tests.support.answering import answering
from tests.support.front import serving

CHAT = "/v1/chat/completions"
HELLO = {"model": "sim-chat-4b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


async def test_L2_models_are_listed_with_what_they_take_and_the_error_once_it_is_known(
    autojump_clock: MockClock,
) -> None:
    """Cold and estimated; then served, measured, and off by so much."""
    async with serving(autojump_clock) as house:
        cold = (await house.ask("GET", "/api/models")).json
        assert cold["errors"] == []
        (row,) = [each for each in cold["models"] if each["id"] == "sim-chat-4b"]  # type: ignore[attr-defined]  # JSON
        assert (row["state"], row["architecture"], row["error"]) == ("cold", "simulated", None)
        (device,) = row["devices"]
        assert (device["name"], device["measured_bytes"]) == ("sim0", None)
        await house.ask("POST", CHAT, HELLO)
        await house.until_logged("measure")
        told = (await house.ask("GET", "/api/models")).json
        (row,) = [each for each in told["models"] if each["id"] == "sim-chat-4b"]  # type: ignore[attr-defined]  # JSON
        (device,) = row["devices"]
        (line,) = house.logged("measure")
        assert {"sim0": device["measured_bytes"]} == line["measured_bytes"]
        off = device["estimated_bytes"] - device["measured_bytes"]
        assert row["error"]["components"]["total"] == {"median_bytes": off, "worst_bytes": off}
        assert told["errors"] == [row["error"]]
        assert row["state"] == "ready"


async def test_a_process_of_another_launch_is_told_as_it_is(autojump_clock: MockClock) -> None:
    """Not as the one that is configured: its context, its slots, and what it holds of its devices."""
    async with serving(autojump_clock) as house:
        asked = {"ctx": 32768, "parallel": 2}
        loaded = (await house.ask("POST", "/api/models/sim-chat-12b/load?wait=500", asked)).json
        row = (await house.ask("GET", "/api/models/sim-chat-12b")).json
        assert (row["ctx_size"], row["ctx_per_slot"], row["parallel"]) == (32768, 16384, 2)
        assert row["estimated_bytes"] == loaded["bytes"]
        assert row["devices"] == [{"name": "sim0", "estimated_bytes": loaded["bytes"], "measured_bytes": None}]


async def test_one_model_is_told_by_any_of_its_names(autojump_clock: MockClock) -> None:
    """Any case, a family's best, and a 404 that names the closest."""
    async with serving(autojump_clock) as house:
        for name in ("sim-chat-4b", "SIM-CHAT-4B"):
            assert (await house.ask("GET", f"/api/models/{name}")).json["id"] == "sim-chat-4b"
        family = house.runtime.parts.catalog.families()[0]
        assert family.best is not None
        assert (await house.ask("GET", f"/api/models/{family.name}")).json["id"] == family.best.name
        answer = await house.ask("GET", "/api/models/org/sim-chat-4c")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


TOLD = {
    "models": [
        {
            "id": "a",
            "state": "ready",
            "fits": "now",
            "size_bytes": 2 << 30,
            "quantization": "Q4_K_M",
            "architecture": "qwen3",
            "ctx_train": 40960,
            "estimated_bytes": 4 << 30,
            "measured_bytes": 3 << 30,
        },
        {
            "id": "b",
            "state": "unavailable",
            "fits": "never",
            "size_bytes": 0,
            "quantization": "",
            "architecture": "",
            "ctx_train": 0,
            "estimated_bytes": None,
            "measured_bytes": None,
        },
        {"id": "c", "state": "ready", "base": "a"},
    ],
    "errors": [
        {
            "architecture": "qwen3",
            "launches": 2,
            "median_ratio": 0.01234,
            "least_ratio": -0.002,
            "most_ratio": 0.03,
            "components": {
                "compute": {"median_bytes": 5, "worst_bytes": 2 << 20},
                "overhead": {"median_bytes": 0, "worst_bytes": 0},
                "total": {"median_bytes": 0, "worst_bytes": -(3 << 20)},
            },
        }
    ],
}


def test_the_tables_are_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    """A row a model, and a row an architecture with signs; plain where nobody looks, and every row as long."""
    models.show(TOLD, models.models)
    assert capsys.readouterr().out.splitlines() == [
        "model  state        fits          size  quant   arch   trained  estimated  measured",
        "a      ready        now          2 GiB  Q4_K_M  qwen3    40960      4 GiB     3 GiB",
        "b      unavailable  never            -  -       -            -          -         -",
        "c      ready        served by a      -  -       -            -          -         -",
    ]
    models.show(TOLD, models.errors)
    assert capsys.readouterr().out.splitlines()[1].split(None, 5) == [
        *("qwen3", "2", "+1.23%", "-0.20%", "+3.00%"),
        "compute +2 MiB, outside +0 B, total -3 MiB",
    ]


@pytest.mark.parametrize("told", [{}, {"models": 3}, {"models": [3]}, {"models": [{"id": "a"}]}])
def test_what_is_no_list_of_models_is_not_ours(told: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    """Another program's JSON is no traceback."""
    with answering(told) as url:
        assert main(["models", "--server", url]) == 1
    assert f"what answers at {url} is no gridsched" in capsys.readouterr().err
