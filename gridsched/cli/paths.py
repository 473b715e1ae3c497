"""Where each verb is under `/api`: `verbs.json`, written from the table of `control`.

The table itself brings half of the server along, which takes longer than most answers; so it is written down, and a
test compares. `python -m gridsched.cli.paths` writes it anew.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("verbs.json")


@cache
def known() -> Mapping[str, tuple[str, str]]:
    """Method and path of each verb."""
    return {name: (method, path) for name, (method, path) in json.loads(_FILE.read_text("utf-8")).items()}


def from_table() -> Mapping[str, tuple[str, str]]:
    """The same, of the table as it is."""
    from gridsched.control.verbs import VERBS  # noqa: PLC0415 - see above

    return {verb.name: (verb.rest.method, verb.rest.path) for verb in VERBS if verb.rest is not None}


def _write() -> None:
    rows = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(from_table().items()))
    _FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


if __name__ == "__main__":
    _write()
