"""API keys as they pass between the file that keeps them and whoever asks for one: frozen types, without a secret.

Owns no behaviour.
"""

from dataclasses import dataclass
from enum import Enum

from gridsched.core.job import JobClass


class Scope(Enum):
    """What a caller may do (H6): ask models, look, load and unload, change the machine."""

    INFERENCE = "inference"
    READ = "read"
    RESIDENCY = "residency"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key as it is kept, without its secret: `sha256` is the digest of that, in hexadecimal.

    `default_class` is for requests that name none, `highest_class` the best that may be asked for. `models` are the
    names that may be asked for, empty for all. `concurrency` bounds the requests that are open at once, `queue_share`
    the part of a class's queue that may be taken (above 0, at most 1); None for no bound. `created` is RFC 3339.
    """

    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    created: str = ""
    default_class: JobClass | None = None
    highest_class: JobClass | None = None
    models: tuple[str, ...] = ()
    concurrency: int | None = None
    queue_share: float | None = None
