"""What is scheduled: jobs, their classes and kinds, and how a step can end.

Owns the frozen description of a job as it passes door 3. The body of a request never comes here: the
core sees sizes only. The scheduler's own mutable notes about a job live in `queues`.
"""

from enum import Enum, IntEnum

from gridsched.core.ids import JobId, ModelName
from gridsched.core.record import record


class JobClass(IntEnum):
    """S1: lower numbers go first, strictly. There is no ageing and there are no weights."""

    INTERACTIVE = 0
    BACKGROUND = 1
    BATCH = 2

    @property
    def label(self) -> str:
        """The word used by clients, logs and metrics."""
        return _CLASS_LABELS[self]

    @property
    def is_low(self) -> bool:
        """Background and batch together are *low* work."""
        return self is not JobClass.INTERACTIVE


_CLASS_LABELS = tuple(each.name.lower() for each in JobClass)
"""Asked for in every line of the log and every head of an answer: a member's name takes several times as long."""


class JobKind(Enum):
    """What a client asked for; embeddings and several completions have more than one step (S3)."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    TEMPLATE = "apply_template"
    INFILL = "infill"


class Quality(IntEnum):
    """R10: how good a variant of a family is; lower numbers are better."""

    PREFERRED = 0
    BALANCED = 1
    COMPACT = 2

    @property
    def label(self) -> str:
        """The word used in the configuration and by clients."""
        return self.name.lower()


class Medium(Enum):
    """R10: what a request brings beside text, and not every variant takes."""

    IMAGE = "image"
    AUDIO = "audio"


NO_MEDIA: frozenset[Medium] = frozenset()


@record
class Job:
    """One client request, as the core sees it.

    `steps` is at least 1; `max_wait_seconds` is the request's own longest wait (S9), None for the class's.
    `warm_only`: never load for me. `no_evict`: load for me only where nothing must go.
    `key` is the name of the API key that sent it, "" without keys; `queue_share` the part of its class's queue that
    the key's jobs may take (above 0, at most 1), None for all. `ttl_seconds`: how long the model is kept after it
    (R6), None for as configured; 0 is ignored. `model` may name a family: `quality` is then the lowest that will do,
    None for any, and `media` what the variant must take (R10). `looks`: it only asks whether the model serves, which is
    no use of it (R1, R5, R6).
    """

    id: JobId
    model: ModelName
    job_class: JobClass
    kind: JobKind
    steps: int = 1
    max_wait_seconds: float | None = None
    warm_only: bool = False
    no_evict: bool = False
    key: str = ""
    ttl_seconds: float | None = None
    quality: Quality | None = None
    media: frozenset[Medium] = NO_MEDIA
    queue_share: float | None = None
    looks: bool = False


class OutcomeKind(Enum):
    """How a step ended, seen from door 7."""

    DONE = "done"  # the engine answered to the end, whatever its status was
    CLIENT_GONE = "client_gone"  # the client left: the engine's connection was closed
    ENGINE_DIED = "engine_died"  # the process went away, or broke its answer off
    DEVICE_FAULT = "device_fault"  # it answered that its device does not work any more: to be started anew (D13)
    STALLED = "stalled"  # no byte from the engine for the stall limit (S9)
    ABORTED = "aborted"  # taken away for a chat before a byte of an answer was sent (S11): the job waits again


@record
class Outcome:
    """The end of one step.

    `answered` says whether a byte of an *answer* reached the client (comment lines are none): a step that was
    not answered may be run again once when its engine died (P5).
    """

    kind: OutcomeKind
    status: int = 200
    answered: bool = True
