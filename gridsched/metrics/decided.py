"""What is counted of the decision log: steps, loads and how they end, evictions, restarts, estimates.

Owns those families, and which processes load, stay, or are begun anew. It is told every line once, as it is made.
"""

from collections.abc import Callable, Iterator, Mapping

from gridsched.core.events import FailureCause
from gridsched.core.job import JobClass
from gridsched.core.measuring import COMPONENTS
from gridsched.metrics import catalog
from gridsched.metrics.catalog import REQUEST_BUCKETS
from gridsched.metrics.series import Counts, Histogram, Labels
from gridsched.runtime.decisions import Line

RELIEF_RULE = "S5"
MOVE_RULE = "R9"
"""Under which a process is begun beside the one that it replaces."""

ANEW_RULES = frozenset(("P5", "L6b"))
"""Under which a process is stopped because it is of no use any more: dead, stalled, failing, grown."""

EVICTION_RULES = ("R1", "R6a")
OUTCOMES = ("ready", "aborted", *(cause.value for cause in FailureCause))


class Decided:
    """The families, and `saw`. `architecture` tells a model's, "" for one that nobody knows."""

    def __init__(self, architecture: Callable[[str], str]) -> None:
        self._architecture = architecture
        self.steps = Counts(catalog.STEPS)
        self.relief = Counts(catalog.RELIEF_STEPS)
        self.loads = Counts(catalog.MODEL_LOADS)
        self.load_seconds = Histogram(catalog.LOAD_SECONDS, REQUEST_BUCKETS)
        self.evictions = Counts(catalog.EVICTIONS)
        self.thrash = Counts(catalog.THRASH)
        self.needless = Counts(catalog.NEEDLESS_LOADS)
        self.pauses = Counts(catalog.PAUSES)
        self.aborts = Counts(catalog.ABORTS)
        self.restarts = Counts(catalog.CHILD_RESTARTS)
        self.refused = Counts(catalog.MEASUREMENTS_REFUSED)
        self.errors: dict[Labels, float] = {}
        self._loading: set[object] = set()
        self._anew: set[object] = set()
        self._staying: dict[str, set[object]] = {}
        self._heard: Mapping[str, Callable[[Line, str], None]] = {
            "dispatch": self._granted,
            "load": self._load_begins,
            "ready": self._became_ready,
            "measure": self._measured,
            "exit": self._exited,
            "pause": lambda line, model: self.pauses.of(model).add(),  # noqa: ARG005 - it says all by being there
            "abort": lambda line, model: self.aborts.of(model).add(),  # noqa: ARG005 - the same
            "thrash": self._alternate,
            "stop": self._stopped,
            "evict": self._evicted,
        }

    def families(self) -> Iterator[Counts | Histogram]:
        """Those that are counted here."""
        yield from (self.steps, self.relief, self.loads, self.load_seconds, self.evictions, self.thrash)
        yield from (self.needless, self.pauses, self.aborts, self.restarts, self.refused)

    def begin(self, model: str) -> None:
        """Have a model's counters at 0: whoever looks for an increase misses that from nothing to 1."""
        for job_class in JobClass:
            self.steps.of(job_class.label, model)
        for outcome in OUTCOMES:
            self.loads.of(model, outcome)
        for rule in EVICTION_RULES:
            self.evictions.of(model, rule)
        for family in (self.thrash, self.needless, self.pauses, self.aborts, self.restarts, self.refused):
            family.of(model)

    def saw(self, line: Line) -> None:
        """Count what a line says. Lines about processes carry the process's number."""
        hear = self._heard.get(str(line["event"]))
        if hear is not None:
            hear(line, str(line.get("model", "")))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _granted(self, line: Line, model: str) -> None:
        self.steps.of(str(line.get("class", "")), model).add()
        if line.get("rule") == RELIEF_RULE:
            self.relief.of().add()

    # --- processes --------------------------------------------------------------------------------------------------

    def _load_begins(self, line: Line, model: str) -> None:
        number = line.get("instance")
        staying = self._staying.setdefault(model, set())
        if staying and line.get("rule") != MOVE_RULE:
            self.needless.of(model).add()
        staying.add(number)
        self._loading.add(number)

    def _became_ready(self, line: Line, model: str) -> None:
        self._load_ended(line, model, "ready")
        if isinstance(seconds := line.get("load_s"), float):
            self.load_seconds.of(model).add(seconds)

    def _stopped(self, line: Line, model: str) -> None:
        self._goes(line, model)
        if not self._load_ended(line, model, "aborted") and line.get("rule") in ANEW_RULES:
            self._anew.add(line.get("instance"))
            self.restarts.of(model).add()

    def _evicted(self, line: Line, model: str) -> None:
        self._goes(line, model)
        self._load_ended(line, model, "aborted")
        self.evictions.of(model, str(line.get("rule", ""))).add()

    def _exited(self, line: Line, model: str) -> None:
        """A process is gone: a load that failed, a death in service, or the end that it was told. One that died before
        it was told is counted once."""
        self._goes(line, model)
        known = line.get("instance") in self._anew
        self._anew.discard(line.get("instance"))
        if "cause" in line and not self._load_ended(line, model, str(line["cause"])) and not known:
            self.restarts.of(model).add()

    def _goes(self, line: Line, model: str) -> None:
        """A process is gone or has been told to go: another of its model is no excess."""
        staying = self._staying.get(model, set())
        staying.discard(line.get("instance"))
        if not staying:
            self._staying.pop(model, None)

    def _load_ended(self, line: Line, model: str, outcome: str) -> bool:
        """Count the end of a load, if the process of this line was loading."""
        number = line.get("instance")
        if number not in self._loading:
            return False
        self._loading.discard(number)
        self.loads.of(model, outcome).add()
        return True

    def _alternate(self, line: Line, model: str) -> None:  # noqa: ARG002 - it names them all
        models = line.get("models")
        for each in models if isinstance(models, list) else ():
            self.thrash.of(str(each)).add()

    # --- estimates --------------------------------------------------------------------------------------------------

    def _measured(self, line: Line, model: str) -> None:
        """How far off an estimate was: of each component that is known on all devices."""
        errors, measured = line.get("error_bytes"), line.get("measured_bytes")
        if not isinstance(errors, Mapping) or not isinstance(measured, Mapping):
            self.refused.of(model).add()
            return
        total = sum(measured.values())
        architecture = self._architecture(model)
        for component in COMPONENTS:
            if total and all(component in found for found in errors.values()):
                self.errors[architecture, component] = sum(found[component] for found in errors.values()) / total
