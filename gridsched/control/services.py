"""What the verbs work on: the running server's inside, and the files beside it. Owns no behaviour.

A part that is None is not there (a simulated server has no configuration file, say), and the verbs that need it refuse
with a sentence. Put together by `app`, which alone knows what is real.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridsched.control.audit import Audit
from gridsched.control.authority import Authority
from gridsched.control.confirm import Confirmations
from gridsched.control.downloads import Downloads
from gridsched.control.keyring import Keyring
from gridsched.control.ladders import Ladders
from gridsched.control.operations import Operations
from gridsched.control.own_log import OwnLog
from gridsched.control.reloading import Reloader
from gridsched.runtime.bench import Benches
from gridsched.runtime.runtime import Runtime
from gridsched.store.benchmarks import BenchmarkStore

if TYPE_CHECKING:  # the schema takes long to load, and the command line wants the verbs only
    from gridsched.settings.configuration import Configuration


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server listens, and the recovery sidecar beside it. `watchdog_token` is the path of its credential."""

    host: str
    port: int
    has_tls: bool = False
    watchdog_port: int | None = None
    watchdog_token: str = ""

    @property
    def authority(self) -> str:
        """As a URL has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Services:
    """One per server."""

    runtime: Runtime
    authority: Authority
    operations: Operations = field(default_factory=Operations)
    confirmations: Confirmations = field(default_factory=Confirmations)
    place: Place | None = None
    reloader: Reloader | None = None
    ladders: Ladders = field(default_factory=Ladders)
    benchmarks: BenchmarkStore = field(default_factory=BenchmarkStore)
    benches: Benches = field(default_factory=Benches)
    hub: Downloads | None = None
    audit: Audit | None = None
    configuration: "Configuration | None" = None
    keyring: Keyring | None = None
    own_log: OwnLog | None = None
