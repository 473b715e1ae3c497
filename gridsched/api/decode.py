"""Door 1: bytes and headers become an `InferenceRequest`, or a `RequestError` that says what is wrong with them.

Reads only what this server needs (model, class, stream, our own members); the rest of the body stays opaque. Knows no
model and no framework: whether the model exists is door 2's question.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from gridsched.api import outline
from gridsched.api.content import check_said
from gridsched.api.forms import FORM_TYPE, BadForm, Form, is_form, read_form
from gridsched.api.keep import NULL, ttl
from gridsched.api.members import BadBody, Member
from gridsched.api.outline import Outline
from gridsched.api.routes import Route, Shape
from gridsched.api.splice import upstream_body
from gridsched.control.problems import Problem, RequestError, invalid
from gridsched.core.job import JobClass, Quality
from gridsched.core.record import record

CLASS_WORDS: Final[Mapping[str, JobClass]] = {job_class.label: job_class for job_class in JobClass}
SWITCH_WORDS: Final[Mapping[str, bool]] = {"on": True, "off": False}
QUALITY_WORDS: Final[Mapping[str, Quality]] = {quality.label: quality for quality in Quality}
SERVICE_TIERS: Final[Mapping[str, JobClass]] = {"priority": JobClass.INTERACTIVE, "flex": JobClass.BACKGROUND}
MAX_WAIT_SECONDS = 30 * 24 * 3600.0
"""A longest wait longer than a month is a mistake in the unit."""

LONGEST_MODEL_NAME = 1024

_KINDS: Final[Mapping[str, str]] = {'"': "a string", "[": "an array", '"[': "a string or an array"}
_READ = frozenset({"model", "stream", "x_class", "gridsched", "service_tier", "ttl", "keep_alive"})

_number = msgspec.json.Decoder(float)  # what is none in JSON, as 1_0 and nan, is none in a header

T = TypeVar("T")


class Wishes(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The body's `gridsched` member: `quality` is a family's lowest (R10), `ttl` how long the model is kept (R6)."""

    job_class: str | None = msgspec.field(name="class", default=None)
    max_wait_ms: float | None = None
    warm_only: bool | None = None
    no_evict: bool | None = None
    quality: str | None = None
    ttl: float | None = None


_NO_WISHES: Final = Wishes()
_NOTHING: Final = Outline(b"", ())


@record
class InferenceRequest:
    """A request that has been understood as far as scheduling it needs.

    `model` is what the client asked for, "" for the default. `job_class` is by header or body, `tier_class` by
    `service_tier`, `comments` whether a stream may have comment lines; None where the channel is silent. `members` are
    the spans of the body's top level; a body that is a form has none, and an empty `outline`.
    """

    route: Route
    model: str
    job_class: JobClass | None
    tier_class: JobClass | None
    stream: bool
    comments: bool | None
    max_wait_seconds: float | None
    warm_only: bool
    no_evict: bool
    quality: Quality | None
    ttl_seconds: float | None
    body: bytes
    members: tuple[Member, ...]
    outline: Outline
    form: Form | None = None

    @property
    def content_type(self) -> bytes:
        """What goes up to the engine is told to be."""
        return b"application/json" if self.form is None else self.form.content_type

    def upstream_body(self, model: str, edits: Mapping[str, bytes]) -> bytes:
        """What goes up to the engine that serves `model` (H2); `edits` are of a JSON body's members."""
        if self.form is None:
            return upstream_body(self.body, self.members, model, edits)
        return self.form.upstream_body(self.body, model)


def decode(route: Route, headers: Mapping[bytes, bytes], body: bytes) -> InferenceRequest:
    """Understand a request. `headers` have names in lower case. Raises RequestError."""
    check_said(headers, body, form=route.form)
    spans: tuple[Member, ...] = ()
    short = _NOTHING
    form = None
    if route.form:
        form, fields = _read_form(headers, body)
    else:
        spans, short, fields = _read_json(body)
        _check_shapes(route, spans, body)
    wishes = _field(fields, "gridsched", Wishes) or _NO_WISHES
    return InferenceRequest(
        route=route,
        model=_model(fields),
        job_class=_asked_class(headers, fields, wishes),
        tier_class=_tier_class(fields),
        stream=route.streams and bool(_field(fields, "stream", bool)),
        comments=_comments(headers),
        max_wait_seconds=_max_wait(headers, wishes),
        warm_only=bool(wishes.warm_only),
        no_evict=bool(wishes.no_evict),
        quality=_quality(wishes),
        ttl_seconds=ttl(wishes.ttl, fields.get("ttl", NULL), fields.get("keep_alive", NULL)),
        body=body,
        members=spans,
        outline=short,
        form=form,
    )


def _read_json(body: bytes) -> tuple[tuple[Member, ...], Outline, dict[str, bytes]]:
    """The spans of a body's members, its outline, and the values that are read here. Raises RequestError."""
    try:
        spans, short = outline.read(body)
    except BadBody as error:
        raise invalid(str(error)) from None
    return spans, short, {member.key: body[member.value_start : member.end] for member in spans if member.key in _READ}


def _read_form(headers: Mapping[bytes, bytes], body: bytes) -> tuple[Form, dict[str, bytes]]:
    """A form with a file in it, and the values that are read here, as JSON. Raises RequestError."""
    if not is_form(headers):
        raise RequestError(Problem("unsupported_media_type", f"this takes {FORM_TYPE}, with the audio as file"))
    try:
        form = read_form(headers[b"content-type"], body)
        fields = form.fields(body)
    except BadForm as error:
        raise invalid(str(error), error.field) from None
    file = next((part for part in form.parts if part.name == "file"), None)
    if file is None or not file.is_file or file.value_start == file.value_end:
        raise invalid("file is missing: an upload under this name, with a filename", "file")
    return form, fields


def _field(fields: Mapping[str, bytes], key: str, kind: type[T]) -> T | None:
    """One member's value, None where it is absent or null. Raises RequestError for another type."""
    raw = fields.get(key, NULL)
    if raw == NULL:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(Wishes))
        hint = f"; there are {known}" if kind is Wishes and "unknown field" in str(error) else ""
        raise invalid(f"{key}: {str(error).replace('`', '')}{hint}", key) from None


def _model(fields: Mapping[str, bytes]) -> str:
    """The asked name, "" for none. Raises RequestError for what cannot be one, before it is compared with any."""
    name = (_field(fields, "model", str) or "").strip()
    if len(name) > LONGEST_MODEL_NAME:
        raise invalid(f"model: a name has at most {LONGEST_MODEL_NAME} characters", "model")
    return name


def _check_shapes(route: Route, spans: tuple[Member, ...], body: bytes) -> None:
    """What the engine could not do without is refused here, before any load. Raises RequestError."""
    given = {member.key: member for member in spans if not body.startswith(b"null", member.value_start)}
    for shape in route.shapes:
        found = next((given[name] for name in shape.names if name in given), None)
        if found is not None:
            _check_shape(shape, found, body)
        elif shape.needed:
            raise invalid(f"{' or '.join(shape.names)} is missing", shape.names[0])


def _check_shape(shape: Shape, found: Member, body: bytes) -> None:
    key = found.key
    if chr(body[found.value_start]) not in shape.beginnings:
        raise invalid(f"{key} must be {_KINDS[shape.beginnings]}", key)
    if shape.filled and not body[found.value_start + 1 : found.end - 1].strip():
        raise invalid(f"{key} is empty", key)


def _asked_class(headers: Mapping[bytes, bytes], fields: Mapping[str, bytes], wishes: Wishes) -> JobClass | None:
    """The first that is given: header, the other header, `x_class`, `gridsched.class`. Raises RequestError."""
    for name in (b"x-class", b"x-gridcore-class"):
        if word := headers.get(name, b"").decode("latin-1").strip():
            return _class(word, name.decode())
    if asked := _field(fields, "x_class", str):
        return _class(asked, "x_class")
    return _class(wishes.job_class, "gridsched.class") if wishes.job_class else None


def _class(word: str, channel: str) -> JobClass:
    known = CLASS_WORDS.get(word.lower())
    if known is None:
        raise invalid(f"{channel}: {word!r} is no class; there are {', '.join(CLASS_WORDS)}", channel, "invalid_class")
    return known


def _tier_class(fields: Mapping[str, bytes]) -> JobClass | None:
    """OpenAI's `service_tier`. Its other words are for the engine to judge."""
    try:
        return SERVICE_TIERS.get(_field(fields, "service_tier", str) or "")
    except RequestError:
        return None


def _quality(wishes: Wishes) -> Quality | None:
    """The lowest that will do. Raises RequestError."""
    if wishes.quality is None:
        return None
    known = QUALITY_WORDS.get(wishes.quality.lower())
    if known is None:
        words = ", ".join(QUALITY_WORDS)
        raise invalid(f"gridsched.quality: {wishes.quality!r} is no quality; there are {words}", "gridsched.quality")
    return known


def _comments(headers: Mapping[bytes, bytes]) -> bool | None:
    """What the client says of comment lines (H3). Raises RequestError."""
    word = headers.get(b"x-gridsched-comments", b"").decode("latin-1").strip().lower()
    if word and word not in SWITCH_WORDS:
        raise invalid(f"x-gridsched-comments: {word!r} is neither on nor off", "x-gridsched-comments")
    return SWITCH_WORDS.get(word)


def _max_wait(headers: Mapping[bytes, bytes], wishes: Wishes) -> float | None:
    """Seconds, from milliseconds in the header or the body. Raises RequestError."""
    channel, given = "gridsched.max_wait_ms", wishes.max_wait_ms
    if text := headers.get(b"x-max-wait-ms", b"").decode("latin-1").strip():
        channel = "x-max-wait-ms"
        try:
            given = _number.decode(text)
        except msgspec.DecodeError:
            raise invalid(f"{channel}: {text!r} is not a number of milliseconds", channel) from None
    if given is None:
        return None
    seconds = given / 1000
    if not 0 <= seconds <= MAX_WAIT_SECONDS:  # false for NaN too
        raise invalid(f"{channel}: must be between 0 and {MAX_WAIT_SECONDS * 1000:.0f} milliseconds", channel)
    return seconds
