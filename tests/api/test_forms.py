"""Transcriptions: a multipart form is read and cut like a JSON body, and its upload passes byte for byte."""

import json
import random

import pytest
from trio.testing import MockClock
from werkzeug.sansio.multipart import Data, Field, File, MultipartDecoder, NeedData

from gridsched.api.decode import InferenceRequest, decode
from gridsched.api.forms import LONGEST_FIELD_BYTES, MOST_PARTS, BadForm, read_form
from gridsched.api.routes import ROUTES
from gridsched.control.problems import RequestError
from gridsched.core.job import JobClass, Quality
from tests.support.fakes import EVENTS, Script
from tests.support.front import serving

PATH = "/v1/audio/transcriptions"
BOUNDARY = b"----Web Kit'7MA4"
TYPE = f'multipart/form-data; charset=utf-8; boundary="{BOUNDARY.decode()}"'
HEADERS = {"Content-Type": TYPE}
UPLOAD = b"RIFF\0\xff\r\n--\r\n------Web Kit\r\n\r\n" + bytes(range(256)) * 8
"""Bytes that look like a boundary and are none."""


def part(name: str, value: bytes, filename: str | None = None, extra: str = "") -> bytes:
    """One field of a form."""
    disposition = f'Content-Disposition: form-data; name="{name}"'
    if filename is not None:
        disposition += f'; filename="{filename}"'
    return b"--%b\r\n%b%b\r\n\r\n%b\r\n" % (BOUNDARY, disposition.encode(), extra.encode(), value)


FILE = part("file", UPLOAD, 'a \\"; name=\\"model\\".wav', "\r\nContent-Type: audio/wav\r\nX-Odd:  1")
END = b"--%b--\r\n" % BOUNDARY


def form(*parts: bytes) -> bytes:
    """A whole one."""
    return b"".join(parts) + END


def read(body: bytes, content_type: str = TYPE) -> InferenceRequest:
    """Door 1 for a form."""
    return decode(ROUTES[PATH], {b"content-type": content_type.encode()}, body)


async def test_H2_a_form_goes_up_byte_for_byte_but_for_what_is_ours(autojump_clock: MockClock) -> None:
    """Its model is the engine's, our own fields are cut out wherever they stand, the boundary is the client's."""
    temperature, language = part("temperature", b"0.50"), part("language", "dé".encode())
    ours = (
        part("x_class", b"batch"),
        part("gridsched", b' {"ttl": 60, "max_wait_ms": 60000}\n') + part("keep_alive", b"5m"),
    )
    async with serving(autojump_clock) as house:
        house.upstream.scripts.append(Script([b'{"text":"a"}']))
        body = form(ours[0], temperature, part("model", b"Whisper-1", extra="\r\nX-A: b"), FILE, ours[1], language)
        answer = await house.ask("POST", PATH, body + b"epilogue", HEADERS)
        assert (answer.status, answer.body) == (200, b'{"text":"a"}')
        assert answer.headers["x-gridsched-class"] == "batch"
        assert answer.headers["x-gridsched-model"] == "sim-chat-2b"
        (asked,) = house.upstream.asked
        named = part("model", b"sim-chat-2b", extra="\r\nX-A: b")
        assert asked.body == form(temperature, named, FILE, language) + b"epilogue"
        assert asked.headers == ((b"content-type", TYPE.encode()), (b"accept-encoding", b"identity"))
        assert asked.target == PATH


def test_an_object_of_ours_is_heard_as_the_sdks_write_one_in_a_form() -> None:
    """`extra_body={"gridsched": {…}}` becomes a field for each member; all of them are cut out."""
    said = {"class": b"batch", "warm_only": b"true", "max_wait_ms": b"500", "quality": b"compact"}
    request = read(form(*(part(f"gridsched[{key}]", value) for key, value in said.items()), FILE))
    assert (request.job_class, request.warm_only, request.max_wait_seconds) == (JobClass.BATCH, True, 0.5)
    assert request.quality is Quality.COMPACT
    assert request.upstream_body("m", {}) == form(part("model", b"m"), FILE)


async def test_a_form_without_a_model_goes_to_one_that_hears(autojump_clock: MockClock) -> None:
    """And the engine is told its name, as with a body."""
    async with serving(autojump_clock) as house:
        answer = await house.ask("POST", PATH, form(FILE), HEADERS | {"X-Class": "background"})
        assert (answer.status, answer.headers["x-gridsched-model"]) == (200, "sim-chat-2b")
        assert answer.headers["x-gridsched-class"] == "background"
        assert isinstance(answer.json["text"], str)
        assert house.upstream.asked[0].body == form(part("model", b"sim-chat-2b"), FILE)


async def test_a_transcription_streams_where_the_form_says_so(autojump_clock: MockClock) -> None:
    """In events of its own; ours after a break is the one on which the SDK raises."""
    async with serving(autojump_clock) as house:
        asked = form(FILE, part("stream", b"true"), part("model", b"sim-chat-2b"))
        answer = await house.ask("POST", PATH, asked, HEADERS)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b'"type": "transcript.text.delta"' in answer.body
        house.upstream.scripts.append(Script([b"no"], status=500, headers=EVENTS))
        assert (await house.ask("POST", PATH, asked, HEADERS)).status == 500
        plain = await house.ask("POST", PATH, form(FILE, part("stream", b"false")), HEADERS)
        assert plain.headers["content-type"].startswith("application/json")


async def test_G9_a_model_that_does_not_hear_refuses_before_a_load(autojump_clock: MockClock) -> None:
    """Naming one that does; of a family one that hears is taken."""
    async with serving(autojump_clock) as house:
        for name in (b"sim-chat-12b", b"sim-embed"):
            answer = await house.ask("POST", PATH, form(FILE, part("model", name)), HEADERS)
            assert (answer.status, answer.error["code"]) == (400, "model_not_supported")
            assert "sim-chat-2b" in str(answer.error["message"])
        unknown = await house.ask("POST", PATH, form(FILE, part("model", b"whisper-2")), HEADERS)
        assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
        assert not house.logged("enqueue")
        answer = await house.ask("POST", PATH, form(FILE, part("model", b"sim-chat")), HEADERS)
        assert (answer.status, answer.headers["x-gridsched-model"]) == (200, "sim-chat-2b")


LONG = b"a" * (LONGEST_FIELD_BYTES + 1)
BAD = [
    (form(part("model", b"m")), "file"),  # no file
    (form(part("file", UPLOAD)), "file"),  # one without a name is a field
    (form(part("file", b"", "a.wav")), "file"),
    (form(FILE, FILE), "file"),
    (form(FILE, part("model", b"a"), part("model", b"b")), "model"),
    (form(FILE, part("gridsched", b"{}"), part("gridsched", b"{}")), "gridsched"),
    (form(FILE, part("gridsched", b"{")), "gridsched"),
    (form(FILE, part("gridsched", b"[1]")), "gridsched"),
    (form(FILE, part("gridsched", b'{"a":' + b"[" * 100_000)), None),  # too long
    (form(FILE, part("gridsched", b'{"a":' + b"[" * 50_000)), "gridsched"),
    (form(FILE, part("gridsched", b'{"ttl": NaN}')), "gridsched"),
    (form(FILE, part("gridsched", b'{"class": "\xff"}')), "gridsched"),
    (form(FILE, part("gridsched[class]", b"urgent")), "gridsched.class"),
    (form(FILE, part("gridsched[class]", b"5")), "gridsched"),
    (form(FILE, part("gridsched[class]", b"\xff")), "gridsched[class]"),
    (form(FILE, part("gridsched[ttl]", b"1e999")), "gridsched"),
    (form(FILE, part("gridsched[warm]", b"true")), "gridsched"),
    (form(FILE, part("gridsched[ttl]", b"1"), part("gridsched[ttl]", b"1")), "gridsched[ttl]"),
    (form(FILE, part("gridsched[ttl]", b"1"), part("gridsched", b"{}")), "gridsched"),
    (form(FILE, part("stream", b"yes")), "stream"),
    (form(FILE, part("stream", b'"true"')), "stream"),
    (form(FILE, part("ttl", b"5m")), "ttl"),
    (form(FILE, part("ttl", b"")), "ttl"),
    (form(FILE, part("ttl", b"-1")), "ttl"),
    (form(FILE, part("keep_alive", b"5 metres")), "keep_alive"),
    (form(FILE, part("x_class", b"urgent")), "x_class"),
    (form(FILE, part("model", b"\xff\xfe")), "model"),
    (form(FILE, part("model", b"a" * 2000)), "model"),
    (form(FILE, part("prompt", LONG)), "prompt"),
    (FILE + part("model", b"m"), None),  # no end
    (FILE[:-1], None),
    (form(FILE)[: -len(END)], None),
    (b"", None),
    (b"\r\n" + form(FILE), None),  # something before the boundary
    (END, None),
    (form(FILE).replace(BOUNDARY, b"other"), None),
    (form(FILE).replace(b"\r\n", b"\n"), None),
    (form(FILE, b"--%b\r\n\r\nvalue\r\n" % BOUNDARY), None),  # a field without a head
    (form(FILE, b"--%b\r\nContent-Type: a\r\n\r\nvalue\r\n" % BOUNDARY), None),
    (form(FILE, b"--%b\r\nContent-Disposition: attachment; name=a\r\n\r\nvalue\r\n" % BOUNDARY), None),
    (form(FILE, b"--%b\r\nX: %b\r\n\r\nvalue\r\n" % (BOUNDARY, LONG)), None),
    (form(part("a", b"\r\n--%b and more" % BOUNDARY), FILE), None),  # a boundary inside of a field
    (form(part("a", b"--%b" % BOUNDARY), FILE), None),
    (form(part("a", b"\n--%b\r\n" % BOUNDARY), FILE), None),
    (form(FILE, b"--%b\r\nContent-Disposition: form-data; name=a\r\nfolded\r\n\r\nvalue\r\n" % BOUNDARY), None),
    (form(FILE, b"--%b\r\nContent-Disposition: form-data; name=a\n\r\n\r\nvalue\r\n" % BOUNDARY), None),
    (form(FILE, *(part(f"f{number}", b"") for number in range(MOST_PARTS))), None),
    (b'{"model": "sim-chat-2b"}', None),
]


async def test_H1_a_form_that_is_wrong_is_a_400_before_a_load(autojump_clock: MockClock) -> None:
    """Whatever is wrong with it, and naming the field where it is one."""
    async with serving(autojump_clock) as house:
        for body, param in BAD:
            answer = await house.ask("POST", PATH, body, HEADERS)
            assert answer.status == (400 if body else 411), body[:200]
            assert answer.error["code"] in ("invalid_request", "invalid_class", "length_required")
            if param is not None:
                assert str(answer.error["param"]).startswith(param), answer.error
        assert not house.logged("enqueue")


HEADS = {
    b'form-data; name=file; filename="a.wav"': ("file", True),
    b'Form-Data;name="file" ;\tfilename=a.wav': ("file", True),
    b"form-data; filename*=UTF-8''a%20b.wav; name=file": ("file", True),
    b'form-data; name="two words"; filename=""': ("two words", True),
    b'form-data; name="a;b=c"': ("a;b=c", False),
    b'form-data; name="file"; filename="a ";name="model".wav"': None,  # read in three ways by three parsers
    b'form-data; name="a"; name="b"': None,
    b'form-data; name="a"; NAME="b"': None,
    b'form-data; name="a\\"b"': None,
    b"form-data; name=": None,
    b'form-data; name=""': None,
    b"form-data": None,
    b'form-data name="a"': None,
    b'form-data; name="a': None,
    b'form-data; name="a" b': None,
    b'form-datax; name="a"': None,
}


@pytest.mark.parametrize("said", HEADS)
def test_H1_a_fields_name_is_read_in_one_way_only(said: bytes) -> None:
    """Or its form is refused."""
    body = form(FILE, b"--%b\r\nContent-Disposition: %b\r\n\r\nvalue\r\n" % (BOUNDARY, said))
    found = HEADS[said]
    if found is not None:
        last = read_form(TYPE.encode(), body.replace(FILE, b"")).parts[-1]
        assert (last.name, last.is_file) == found
        return
    with pytest.raises(BadForm):
        read_form(TYPE.encode(), body)


NO_FORMS = ["application/json", "", "text/plain", "multipart/mixed; boundary=a", "multipart/form-datax; boundary=a"]
NO_BOUNDARIES = [
    *(f"{TYPE}; boundary=b", f"multipart/form-data; boundary=b; boundary={BOUNDARY.decode()!r}"),
    *(f"{TYPE}, {TYPE}", f"multipart/form-data; BOUNDARY*=utf-8''b; boundary=\"{BOUNDARY.decode()}\""),
    "multipart/form-data",
    "multipart/form-data; boundary=",
    'multipart/form-data; boundary=""',
    "multipart/form-data; boundary=" + "a" * 71,
]


def test_H6_a_spoilt_head_of_a_field_is_refused_without_reading_it_in_all_ways() -> None:
    """Blanks between parameters are of the one before or of the one behind; there are more ways than can be tried."""
    for said in (b"; a=b" + b" ;a=b" * 1000 + b' "', b"; name=a" + b" x" + b" " * 7000 + b"x"):
        body = b"--x\r\nContent-Disposition: form-data" + said + b"\r\n\r\nv\r\n--x--\r\n"
        with pytest.raises(BadForm, match="damaged"):
            read_form(b"multipart/form-data; boundary=x", body)


async def test_H1_another_content_type_is_415_and_a_boundary_that_is_none_400(autojump_clock: MockClock) -> None:
    """Before anything of the body is believed."""
    async with serving(autojump_clock) as house:
        for kind, status in [(kind, 415) for kind in NO_FORMS] + [(kind, 400) for kind in NO_BOUNDARIES]:
            answer = await house.ask("POST", PATH, form(FILE), {"Content-Type": kind} if kind else {})
            assert answer.status == status, kind
            assert answer.error["type"] == "invalid_request_error"
        assert (await house.ask("GET", PATH)).status == 405


@pytest.mark.parametrize("kind", ['Multipart/Form-Data; Boundary="a"', "multipart/form-data;boundary=a ; x=y"])
def test_a_content_type_is_read_whatever_way_it_is_written(kind: str) -> None:
    """Case, quotes and spaces."""
    body = form(FILE, part("model", b" m \n")).replace(BOUNDARY, b"a")
    request = read(body, kind)
    assert (request.model, request.content_type) == ("m", kind.encode())


def oracle(body: bytes) -> list[tuple[str, bytes, bool]] | None:
    """What werkzeug reads: name, value, whether it is a file; None where it raises or the form has no end."""
    decoder = MultipartDecoder(BOUNDARY)
    found: list[tuple[str, bytes, bool]] = []
    try:
        decoder.receive_data(body)
        decoder.receive_data(None)
        while not isinstance(event := decoder.next_event(), NeedData):
            match event:
                case Field(name=name) | File(name=name):
                    found.append((name, b"", isinstance(event, File)))
                case Data(data=data):
                    name, value, is_file = found[-1]
                    found[-1] = (name, value + data, is_file)
            if type(event).__name__ == "Epilogue":
                return found
    except ValueError:
        pass
    return None


def test_H2_whatever_form_is_taken_reads_the_same_to_another_parser() -> None:
    """A thousand damaged forms: each is refused, or its fields are those that werkzeug finds, and what goes up reads
    the same but for ours."""
    whole = form(part("model", b"m"), FILE, part("x_class", b"batch"), part("prompt", b"\r\n\r\nab"))
    source, taken = random.Random(7), 0  # noqa: S311 - the same every time
    tokens = (b"\r\n", b"--", BOUNDARY, b"\0", b'"', b";", b"name=", b"\n", b":", b"model", b"file", b"")
    for _ in range(1000):
        at = source.randrange(len(whole))
        body = whole[:at] + source.choice(tokens) + whole[at + source.choice((0, 0, 1, 2, 40)) :]
        try:
            request = read(body)
        except RequestError:
            continue
        taken += 1
        theirs = oracle(body)
        assert theirs is not None, body
        assert request.form is not None
        ours = [(one.name, body[one.value_start : one.value_end], one.is_file) for one in request.form.parts]
        assert ours == theirs, body
        up = oracle(request.upstream_body("new", {}))
        kept = [one for one in theirs if one[0] not in ("x_class", "gridsched")]
        expected = [("model", b"new", one[2]) if one[0] == "model" else one for one in kept]
        assert up == (expected if ("model", b"new", False) in expected else [("model", b"new", False), *expected])
    assert taken > 800


def test_a_model_named_with_a_class_in_a_form() -> None:
    """As everywhere: the name goes to door 2 as it is."""
    request = read(form(FILE, part("model", b"sim-chat-2b@batch"), part("service_tier", b"flex")))
    assert (request.model, request.tier_class is not None) == ("sim-chat-2b@batch", True)
    assert json.dumps(request.model)
