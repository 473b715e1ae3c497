"""What a verb is: its words, its types, who may, and how it is reached. Owns this vocabulary, and no verb.

Arguments and answers are `msgspec` structs: the checks, the OpenAPI document and the tools' schemas are made from them.
A field's meaning is in its `Meta(description=…)`; sizes are bytes and end in `_bytes`, durations are seconds and end in
`_s`, because that is what JSON carries.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gridsched.control.asker import Asker as Asker  # noqa: PLC0414 - so a checker knows that it is passed on
from gridsched.control.problems import plain
from gridsched.control.services import Services
from gridsched.core.ids import ModelName
from gridsched.credentials import Scope

Method = Literal["GET", "POST", "PATCH", "DELETE"]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a verb takes. A field without a default must be given; unknown ones are refused."""


class Nothing(Arguments, frozen=True, kw_only=True):
    """No arguments."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb gives."""


def schema_of_anything(kind: type) -> dict[str, Any]:
    """JSON Schema of what msgspec has none for: whatever JSON can say. Raises NotImplementedError for other types, as
    msgspec wants it."""
    if kind is object or kind is msgspec.Raw:
        return {"description": "Any value."}  # an empty schema counts as none
    raise NotImplementedError


def as_builtins(answer: Answer) -> dict[str, object]:
    """An answer as JSON has it: objects, lists, texts, numbers."""
    told: dict[str, object] = msgspec.to_builtins(answer, enc_hook=plain, str_keys=True)
    return told


Tell = Callable[[float, float | None, str], None]
"""Says how far a long verb has come: how much is done, of how much (None: nobody knows), and one sentence."""


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a verb; of a long one `operation` is the id of the operation that it runs as. `may_go` are the models
    that may go for it, by the plan that was agreed to: None for any, where nobody was asked."""

    asker: Asker
    tell: Tell = lambda done, total, text: None  # noqa: ARG005 - nobody listens
    operation: str = ""
    may_go: tuple[ModelName, ...] | None = None


class Victim(Answer, frozen=True, kw_only=True):
    """A model that would have to go, what that frees, and how many of its steps run now."""

    model: str
    bytes: int
    running_steps: int


class Consequences(Answer, frozen=True, kw_only=True):
    """What a verb would do if it were carried out now. `harms`: somebody would notice: a model goes, work waits or
    ends, something is lost. `essence` is what must still be so when it is carried out; two plans with the same one do
    the same harm."""

    text: str
    harms: bool
    evicted: tuple[Victim, ...] = ()
    waiting_jobs: tuple[int, ...] = ()
    seconds: float | None = None
    details: Mapping[str, Any] = {}
    essence: str = ""


@dataclass(frozen=True, slots=True)
class Rest:
    """Where a verb is under `/api`. Fields of its arguments that are named in the `path` come from there, the others
    from the query and from the JSON body. `status` is of its answer."""

    method: Method
    path: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb. `name` is the OpenAPI operation's, and the MCP tool's where it is one (`tool`).

    `act` does it, and raises RequestError for what is refused. `long` ones run as operations: REST answers 202 with the
    operation's id, MCP tells their progress. `plan` says what it would do: a tool with a plan that harms is carried out
    only with the token of that plan. `refuse` raises RequestError for what is refused at once: such a long one does not
    begin. What `reads` changes nothing, and is not in the audit log. `own_scope` is
    enough for what is the caller's own; the verb itself looks whose it is.
    """

    name: str
    summary: str
    description: str
    scope: Scope
    takes: type[Arguments]
    gives: Any  # a type that msgspec knows
    act: Callable[[Services, Any, Call], Awaitable[object]]
    rest: Rest | None = None
    tool: bool = False
    reads: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    long: bool = False
    plan: Callable[[Services, Any, Call], Awaitable[Consequences]] | None = None
    refuse: Callable[[Services, Any, Call], Awaitable[None]] | None = None
    own_scope: Scope | None = None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Any of these lets a caller use it."""
        return (self.scope,) if self.own_scope is None else (self.scope, self.own_scope)
