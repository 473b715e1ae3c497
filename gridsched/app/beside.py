"""What stands beside a running server and is changed by its verbs: the configuration file, files and batches,
the API keys, the audit log.

Composition only: where each of them is. No rule of the product lives here.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gridsched.app.reloading import Source
from gridsched.app.start import Machine, Say
from gridsched.control.audit import FILE, Audit
from gridsched.control.authority import Authority
from gridsched.control.keyring import Keyring
from gridsched.runtime.past import FILE as DECISIONS
from gridsched.runtime.past import Past
from gridsched.runtime.tape import Recorder
from gridsched.settings.api_keys import KeyFile
from gridsched.settings.configuration import Configuration
from gridsched.settings.load import place
from gridsched.store.batches import BatchStore
from gridsched.store.benchmarks import NAME, BenchmarkStore
from gridsched.store.journal import Journal
from gridsched.traces.setup import tracing

if TYPE_CHECKING:  # which knows an optional extra
    from gridsched.traces.tracing import Tracing

Access = tuple[Authority, KeyFile | None]
"""Who may what, and the file whose changes it is to be told of."""


@dataclass(frozen=True, slots=True)
class Again:
    """Where settings are read from again, and who is told of each reload in a line."""

    source: Source
    tell: Say


@dataclass(frozen=True, slots=True)
class Beside:
    """What a server has beside its machine, where it has it: a tape, files and batches, a file to read again and to
    change, API keys, an audit log, results of benchmarks, the files of its decision log, whoever traces requests."""

    recorder: Recorder | None = None
    batches: BatchStore | None = None
    again: Again | None = None
    configuration: Configuration | None = None
    keyring: Keyring | None = None
    audit: Audit | None = None
    benchmarks: BenchmarkStore | None = None
    past: Past | None = None
    tracing: "Tracing | None" = None


NOTHING_BESIDE = Beside()


def configuration_in(source: Source) -> Configuration | None:
    """The file that is read, or would be found if it were made; None for a user who has no folder for one."""
    path = place(source.path, source.environ, Path())
    return None if path is None else Configuration(path.absolute(), source.environ, source.overridden)


@contextmanager
def beside_of(
    found: Machine,
    access: Access,
    tape: Recorder | None,
    again: Again,
    configuration: Configuration | None,
    say: Say,
) -> Iterator[Beside]:
    """All of it, for as long as the server runs; what the logs have not written by then is written."""
    authority, keys = access
    if found.data_dir is None:
        with tracing(again.source.environ, say) as traces:
            yield Beside(tape, None, again, configuration, tracing=traces)
        return
    logs = found.data_dir / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    with (
        tracing(again.source.environ, say) as traces,
        closing(BatchStore(found.data_dir, say)) as batches,
        closing(BenchmarkStore(found.data_dir / NAME, say)) as benchmarks,
        closing(Journal(logs / FILE, say)) as journal,
        closing(Past(logs / DECISIONS, say)) as past,
    ):
        keyring = Keyring(found.data_dir, keys, authority) if keys is not None else None
        audit = Audit(journal, found.parts.clock)
        yield Beside(tape, batches, again, configuration, keyring, audit, benchmarks, past, traces)
