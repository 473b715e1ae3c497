"""Every metric family there is: name, kind, labels, help. The README's table is tested against this list.

Names and labels are the contract's. Label values come from bounded sets: classes, states, devices, and models as the
catalog names them; never a client's string. Owns no values.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One family. `name` is as on the page, a counter's `_total` included; units are in the name."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


REQUESTS = Family(
    "gridsched_requests_total",
    Kind.COUNTER,
    ("class", "model", "endpoint", "code"),
    "Requests answered; code 499 is a client that left first, an empty model one that was not found.",
)
REQUEST_SECONDS = Family(
    "gridsched_request_seconds", Kind.HISTOGRAM, ("class", "model"), "From a request read whole to its answer's end."
)
QUEUE_WAIT = Family(
    "gridsched_queue_wait_seconds", Kind.HISTOGRAM, ("class",), "From a job's arrival to the grant of its first step."
)
FIRST_BYTE = Family(
    "gridsched_time_to_first_byte_seconds",
    Kind.HISTOGRAM,
    ("class", "model"),
    "From a request read whole to the first byte of its answer; comment lines are none.",
)
NAN_EMBEDDINGS = Family(
    "gridsched_nan_embeddings_total",
    Kind.COUNTER,
    ("model",),
    "Embeddings requests refused because a vector of the engine's held a value that is no number.",
)
QUEUE_LENGTH = Family("gridsched_queue_length", Kind.GAUGE, ("class",), "Jobs that wait now.")
RUNNING = Family("gridsched_running", Kind.GAUGE, ("class",), "Jobs of which a step runs now.")
OLDEST_WAIT = Family(
    "gridsched_oldest_wait_seconds",
    Kind.GAUGE,
    ("class",),
    "How long the job has waited that has waited longest: since it came, or since its last step; 0 where none waits.",
)
STEPS = Family("gridsched_steps_total", Kind.COUNTER, ("class", "model"), "Steps granted.")
RELIEF_STEPS = Family(
    "gridsched_relief_steps_total", Kind.COUNTER, (), "Low steps granted in interactive mode, because they had starved."
)
PAUSES = Family(
    "gridsched_pauses_total", Kind.COUNTER, ("model",), "Processes halted in the middle of low work, for a chat (S10)."
)
ABORTS = Family(
    "gridsched_aborts_total",
    Kind.COUNTER,
    ("model",),
    "Steps of low work told to go for a chat, to be run again (S11).",
)
SLOTS = Family("gridsched_slots", Kind.GAUGE, ("model", "state"), "Slots of ready processes, busy and free.")
MODE = Family("gridsched_mode", Kind.GAUGE, ("device",), "1 while a device is in interactive mode, else 0.")
DEVICE_MEMORY = Family(
    "gridsched_device_memory_bytes",
    Kind.GAUGE,
    ("device", "kind"),
    "Memory of a device: total, used, external, reserved, freeing, lost (not given back), headroom (never planned).",
)
DEVICE_AVAILABLE = Family(
    "gridsched_device_available",
    Kind.GAUGE,
    ("device",),
    "1 while a device can be read, 0 while its driver does not answer and nothing is loaded there.",
)
HOST_PRESSURE = Family(
    "gridsched_host_memory_pressure_ratio",
    Kind.GAUGE,
    ("kind",),
    "Part of the last ten seconds in which some, or all (full), of the machine's work waited for memory.",
)
MODEL_MEMORY = Family(
    "gridsched_model_memory_bytes",
    Kind.GAUGE,
    ("model", "kind"),
    "Memory of a model's processes: estimated, and measured where it has been.",
)
MODEL_HOST_MEMORY = Family(
    "gridsched_model_host_memory_bytes",
    Kind.GAUGE,
    ("model",),
    "Host memory of a model's processes that nobody else can have: anonymous pages and what is swapped out.",
)
MODEL_STATE = Family(
    "gridsched_model_state",
    Kind.GAUGE,
    ("model", "state"),
    "1 for the state that a model is in (ready, loading, draining, cold, failed, unavailable), 0 for the others.",
)
MODEL_LOADS = Family(
    "gridsched_model_loads_total",
    Kind.COUNTER,
    ("model", "outcome"),
    "Loads that ended: ready, aborted, or the failure's cause.",
)
LOAD_SECONDS = Family(
    "gridsched_model_load_seconds", Kind.HISTOGRAM, ("model",), "From the start of a process to its readiness."
)
EVICTIONS = Family(
    "gridsched_evictions_total",
    Kind.COUNTER,
    ("model", "reason"),
    "Processes stopped to make room, by the rule behind it.",
)
THRASH = Family(
    "gridsched_thrash_total",
    Kind.COUNTER,
    ("model",),
    "Times that a model was found among those that take each other's memory again and again (R4a).",
)
NEEDLESS_LOADS = Family(
    "gridsched_needless_loads_total",
    Kind.COUNTER,
    ("model",),
    "Processes begun while the model had one that nobody had told to go; one that is to replace it is none (R9).",
)
CHILD_RESTARTS = Family(
    "gridsched_child_restarts_total",
    Kind.COUNTER,
    ("model",),
    "Processes that died while they served, or were started anew because they stalled, failed or had grown.",
)
LOST_LOG_LINES = Family(
    "gridsched_child_log_lines_lost_total",
    Kind.COUNTER,
    ("model",),
    "Lines that a model's processes printed and that are in no log file: they came too fast, or the disk refused.",
)
ESTIMATE_ERROR = Family(
    "gridsched_estimate_error_ratio",
    Kind.GAUGE,
    ("architecture", "component"),
    "Estimate less measurement of the last measured load, as a part of the measurement; above 0 is too much.",
)
MEASUREMENTS_REFUSED = Family(
    "gridsched_measurements_refused_total",
    Kind.COUNTER,
    ("model",),
    "Processes of which a reading was not believed, so that the estimate stands.",
)
BATCH_LINES = Family(
    "gridsched_batch_lines_total",
    Kind.COUNTER,
    ("outcome",),
    "Lines of batches that have their answer: completed, failed, damaged, cancelled, expired.",
)
BATCHES = Family("gridsched_batches", Kind.GAUGE, ("status",), "Batches that are kept, by where they are.")
BATCH_LINES_REMAINING = Family(
    "gridsched_batch_lines_remaining", Kind.GAUGE, (), "Lines of batches that have no answer yet."
)
CONFIG_VALID = Family(
    "gridsched_config_valid",
    Kind.GAUGE,
    (),
    "0 while the configuration on the disk is refused and the one before it runs on, else 1.",
)
DRAINING = Family(
    "gridsched_draining", Kind.GAUGE, (), "1 while the server takes nobody new and finishes what runs, else 0."
)
DECISION_LOG_LOST = Family(
    "gridsched_decision_log_lines_lost_total",
    Kind.COUNTER,
    (),
    "Lines of the decision log that are not in its file, because the disk refused or was too slow.",
)
DECISION_SECONDS = Family(
    "gridsched_decision_seconds", Kind.HISTOGRAM, (), "Time that the scheduler takes for one event."
)
BUILD_INFO = Family(
    "gridsched_build_info", Kind.GAUGE, ("version", "engine_version", "backend"), "Always 1; what is running."
)

FAMILIES: tuple[Family, ...] = (
    REQUESTS,
    REQUEST_SECONDS,
    QUEUE_WAIT,
    FIRST_BYTE,
    NAN_EMBEDDINGS,
    QUEUE_LENGTH,
    RUNNING,
    OLDEST_WAIT,
    STEPS,
    RELIEF_STEPS,
    PAUSES,
    ABORTS,
    SLOTS,
    MODE,
    DEVICE_MEMORY,
    DEVICE_AVAILABLE,
    HOST_PRESSURE,
    MODEL_MEMORY,
    MODEL_HOST_MEMORY,
    MODEL_STATE,
    MODEL_LOADS,
    LOAD_SECONDS,
    EVICTIONS,
    THRASH,
    NEEDLESS_LOADS,
    CHILD_RESTARTS,
    LOST_LOG_LINES,
    ESTIMATE_ERROR,
    MEASUREMENTS_REFUSED,
    BATCH_LINES,
    BATCHES,
    BATCH_LINES_REMAINING,
    CONFIG_VALID,
    DRAINING,
    DECISION_LOG_LOST,
    DECISION_SECONDS,
    BUILD_INFO,
)

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds, from a grant on a free slot to a long generation."""

BATCH_OUTCOMES = ("completed", "failed", "damaged", "cancelled", "expired")
"""Of a batch's line."""

DECISION_BUCKETS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1)
"""Seconds. A decision takes tens of microseconds; a millisecond is one to look into."""
