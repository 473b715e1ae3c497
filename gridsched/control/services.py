"""What the verbs work on: the running server's inside, and the files beside it. Owns no behaviour.

A part that is None is not there (a simulated server has no configuration file, say), and the verbs that need it refuse
with a sentence. Put together by `app`, which alone knows what is real.
"""

from dataclasses import dataclass, field

from gridsched.control.authority import Authority
from gridsched.control.operations import Operations
from gridsched.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Services:
    """One per server."""

    runtime: Runtime
    authority: Authority
    operations: Operations = field(default_factory=Operations)
