import json
from pathlib import Path

import pytest

from loadtest.clients import Measured
from loadtest.report import row_of
from loadtest.result import Event, Failure, Grant, Request, Result, ResultFault, Sample, Server

TIMES = {"p50_s", "p95_s", "p99_s", "queue_p50_s", "queue_p95_s", "ttft_p50_s"}


def a_result(errors: int = 0, needless: int | None = 0) -> Result:
    """One chat that went well, and as many that did not."""
    chats = [Measured("interactive", 200, 1.0, 0.001, 0.5)] + [Measured("interactive", error="503: no")] * errors
    return Result(
        classes={"interactive": row_of(chats)},
        loads=3,
        needless_loads=needless,
        evictions=2,
        relief_steps=4,
        seed=7,
        settings={"seconds": 5.0, "counts": {"chat": 1}},
        failures=(Failure(role="chat", error="503: no", count=errors),) if errors else (),
        server=Server(url="http://127.0.0.1:1", devices={"gpu0": 16}),
        requests=(
            Request(role="chat", row="interactive", job_class="interactive", model="m", at_s=0, end_s=1, status=200),
        ),
        grants=(Grant(at_s=0.1, end_s=None, row="batch", job=4, model="m", device="gpu0", rule="S5", relief=True),),
        events=(Event(at_s=0.2, event="load", model="m"),),
        samples=(Sample(at_s=1.0, models={"m": 5}, devices={"gpu0": 6}, waiting={"batch": 2}),),
    )


def test_the_json_has_the_public_keys() -> None:
    """The names that scripts rely on, first and under the same names as ever."""
    told = json.loads(a_result().as_json())
    public = ["classes", "loads", "needless_loads", "evictions", "relief_steps", "seed", "settings"]
    assert list(told)[: len(public)] == public
    assert (told["loads"], told["needless_loads"], told["evictions"], told["relief_steps"]) == (3, 0, 2, 4)
    assert {"requests", "errors"} | TIMES <= set(told["classes"]["interactive"])


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Figures, settings and everything over time."""
    path = tmp_path / "a.json"
    path.write_bytes(a_result(1).as_json())
    assert Result.read(path) == a_result(1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "truncated"),
        ("[]", "expected `object`"),
        ("{}", "classes"),
        ('{"classes": {"interactive": {"requests": "many"}}}', "$.classes"),
        (a_result().as_json().decode().replace('"seed":7', '"seed":"7"'), "$.seed"),
        (a_result().as_json().decode().replace('"loads":3', '"loads":3.5'), "$.loads"),
        (f'{{"settings": {{"a": {"[" * 100_000}', "nested too deep"),
    ],
)
def test_a_file_of_another_shape_is_named_with_its_key(text: str, names: str, tmp_path: Path) -> None:
    """One sentence, whatever it is."""
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ResultFault) as caught:
        Result.read(path)
    assert str(path) in str(caught.value)
    assert names.casefold() in str(caught.value).casefold()


def test_a_file_that_is_not_there_or_no_text_is_a_sentence(tmp_path: Path) -> None:
    """Not there, a folder, bytes."""
    (tmp_path / "bytes").write_bytes(b'{"\xff\xfe": 1}')
    for name in ("none", "", "bytes"):
        with pytest.raises(ResultFault, match=r"cannot be read|no result"):
            Result.read(tmp_path / name)


@pytest.mark.parametrize(
    ("errors", "needless", "problems"),
    [
        (0, 0, ()),
        (0, None, ()),
        (1, 0, ("1 failed request",)),
        (2, 1, ("2 failed requests", "1 needless load: the model had a process already")),
    ],
)
def test_errors_and_needless_loads_are_why_a_run_is_no_success(
    errors: int, needless: int | None, problems: tuple[str, ...]
) -> None:
    """What nobody knows is none."""
    assert a_result(errors, needless).problems == problems
