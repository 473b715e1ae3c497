"""Bodies and headers that are wrong, for every route that takes JSON. A table, and chance from given random numbers.

Owns no judgement: what an answer must be is said in the tests.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from gridsched.api.routes import ROUTES, Route

Fields = dict[str, object]

JSON_ROUTES = {path: route for path, route in ROUTES.items() if not route.form}


@dataclass(frozen=True)
class Bad:
    """One request that is wrong: how, where it goes, and which statuses say so."""

    how: str
    target: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    statuses: frozenset[int] = frozenset({400})


_VALUES: Mapping[str, object] = {
    "messages": [{"role": "user", "content": "hi"}],
    "documents": ["a", "b"],
    "tokens": [1, 2],
}


def good(route: Route) -> Fields:
    """The least that a route takes, with the default model."""
    return {shape.names[0]: _VALUES.get(shape.names[0], "x") for shape in route.shapes}


# --- whole bodies -----------------------------------------------------------------------------------------------------

NO_OBJECTS: Mapping[str, bytes] = {
    "empty": b"",
    "blank": b" \r\n\t ",
    "null": b"null",
    "true": b"true",
    "an array": b"[]",
    "an array of objects": b'[{"model":"m"}]',
    "a text": b'"x"',
    "a number": b"5",
    "NaN": b"NaN",
    "a brace": b"{",
    "a closing brace": b"}",
    "100,000 open brackets": b"[" * 100_000,
    "100,000 closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "a form": b"model=m&prompt=x",
    "a multipart form": b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n',
    "XML": b"<model>m</model>",
    "zeros": bytes(64),
    "all bytes": bytes(range(256)),
    "gzip": bytes.fromhex("1f8b08000000000000ff") + b"x" * 20,
}

WRITTEN_OTHERWISE: Mapping[str, str] = {"UTF-16": "utf-16", "UTF-16LE": "utf-16-le", "UTF-32": "utf-32"}


def _whole(text: bytes) -> Iterator[tuple[str, bytes]]:
    """A good body, spoilt as a whole."""
    yield "a byte order mark", b"\xef\xbb\xbf" + text
    yield "text behind it", text + b" x"
    yield "another object behind it", text + b"{}"
    yield "a NUL behind it", text + b"\0"
    yield "a NUL before it", b"\0" + text
    yield "a comma behind it", text + b","
    yield "without its end", text[:-1]
    yield "half of it", text[: len(text) // 2]
    yield "twice open", b"{" + text
    yield "single quotes", text.replace(b'"', b"'")
    yield "typographic quotes", text.replace(b'"', "”".encode())
    yield "no quotes", text.replace(b'"', b"")
    yield "a comment", text.replace(b":", b":/*x*/", 1)
    yield "a line comment", b"// x\n" + text
    yield "a hash comment", b"# x\n" + text
    yield "semicolons", text.replace(b":", b"=")
    yield "in a text", json.dumps(text.decode()).encode()
    yield "in an array", b"[" + text + b"]"
    for name, encoding in WRITTEN_OTHERWISE.items():
        yield name, text.decode().encode(encoding)


# --- members ----------------------------------------------------------------------------------------------------------

VALUES: Mapping[str, bytes] = {
    "NaN": b"NaN",
    "-NaN": b"-NaN",
    "nan": b"nan",
    "Infinity": b"Infinity",
    "-Infinity": b"-Infinity",
    "inf": b"inf",
    "1e999": b"1e999",
    "-1e999": b"-1e999",
    "1E+999": b"1E+999",
    "1 and 400 zeros": b"1" + b"0" * 400,
    "5,000 digits": b"9" * 5000,
    "5,000 digits before a point": b"9" * 5000 + b".5",
    "a leading zero": b"01",
    "a plus": b"+1",
    "a point without digits": b"1.",
    "a point first": b".5",
    "an exponent without digits": b"1e",
    "hexadecimal": b"0x10",
    "an underscore": b"1_000",
    "True": b"True",
    "None": b"None",
    "undefined": b"undefined",
    "nothing": b"",
    "a lone surrogate": b'"\\ud800"',
    "a lone low surrogate": b'"\\udc00 x"',
    "surrogates the wrong way round": b'"\\ude00\\ud83d"',
    "half a surrogate pair": b'"\\ud83d\\u0041"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "latin-1": b'"caf\xe9"',
    "an overlong form": b'"\xc0\xaf"',
    "beyond Unicode": b'"\xf4\x90\x80\x80"',
    "half a letter": b'"\xf0\x9f\xa6"',
    "a NUL in a text": b'"a\0b"',
    "a line end in a text": b'"a\nb"',
    "a wrong escape": b'"\\x41"',
    "half an escape": b'"\\u12"',
    "a text without its end": b'"a',
    "a trailing comma": b"[1,]",
    "a leading comma": b"[,1]",
    "no comma": b"[1 2]",
    "the wrong bracket": b"[1}",
    "10,000 deep": b"[" * 10_000 + b"]" * 10_000,
    "100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "10,000 objects deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "a lone surrogate as key": b'{"\\ud800":1}',
    "latin-1 as key": b'{"caf\xe9":1}',
    "a number as key": b"{1:1}",
    "a bare key": b"{a:1}",
    "a key alone": b'{"a"}',
    "a key without value": b'{"a":}',
}

NULL_LIKE = (b"5", b"true", b"{}", b"[]", b"1.5")
WRONG: Mapping[str, tuple[bytes, ...]] = {
    "model": (b"5", b"true", b"{}", b"[]", b'["m"]', b'"%s"' % (b"m" * 5000), b'"no such model"', b'"\\u0000"'),
    "x_class": (b"5", b"true", b"{}", b"[]", b'"urgent"', b'"0"', b'"INTERACTIVE "'),
    "gridsched": (
        b"5",
        b"true",
        b'"batch"',
        b"[]",
        b'{"class":5}',
        b'{"class":"urgent"}',
        b'{"max_wait_ms":"5"}',
        b'{"max_wait_ms":-1}',
        b'{"max_wait_ms":1e300}',
        b'{"warm_only":1}',
        b'{"no_evict":"yes"}',
        b'{"quality":"best"}',
        b'{"ttl":-1}',
        b'{"ttl":{}}',
        b'{"what":1}',
    ),
    "ttl": (b'"x"', b"{}", b"-1", b"true", b"1e300"),
    "keep_alive": (b'"5x"', b"{}", b"[]", b"true", b"1e300"),
}
STREAM = (b'"yes"', b"1", b"0", b"[]", b"{}", b'"true"')


def _with(text: bytes, member: bytes) -> bytes:
    """A body with one more member."""
    return b"{" + member + b"," + text[1:]


def _instead(fields: Fields, key: str, value: bytes) -> bytes:
    """A body in which a member has another value."""
    rest = {name: each for name, each in fields.items() if name != key}
    more = json.dumps(rest).encode()[1:]
    return b'{"%s":%s' % (key.encode(), value) + (b"," if rest else b"") + more


def _members(route: Route, text: bytes) -> Iterator[tuple[str, bytes]]:
    for name, value in VALUES.items():
        yield f"{name} as a member", _with(text, b'"temperature":' + value)
        yield f"{name} deeper down", _with(text, b'"metadata":{"a":[1,' + value + b"]}")
    for key, values in WRONG.items():
        for value in values:
            yield f"{key} is {value[:20].decode()}", _with(text, b'"%s":%s' % (key.encode(), value))
    for value in STREAM if route.streams else ():
        yield f"stream is {value.decode()}", _with(text, b'"stream":' + value)
    for key in ("model", *good(route)):
        twice = b'"%s":"a",' % key.encode()
        yield f"{key} twice", _with(_with(text, twice[:-1]), twice[:-1])
    for shape in route.shapes:
        key = shape.names[0]
        wrong = [value for value in (b"5", b"true", b"{}", b'"x"', b"[]") if chr(value[0]) not in shape.beginnings]
        for value in (*wrong, *((b"null",) if shape.needed else ()), *((b"[]", b"[ ]") if shape.filled else ())):
            yield f"{key} is {value.decode()}", _instead(good(route), key, value)
        if shape.needed:
            rest = {name: value for name, value in good(route).items() if name != key}
            yield f"no {key}", json.dumps(rest).encode()


# --- headers ----------------------------------------------------------------------------------------------------------

HEADERS: tuple[tuple[str, str, int], ...] = (
    ("X-Class", "urgent", 400),
    ("X-Class", "interactive, batch", 400),
    ("X-GridCore-Class", "?", 400),
    ("X-Max-Wait-Ms", "soon", 400),
    ("X-Max-Wait-Ms", "-1", 400),
    ("X-Max-Wait-Ms", "nan", 400),
    ("X-Max-Wait-Ms", "1e400", 400),
    ("X-Max-Wait-Ms", "5, 5", 400),
    ("X-Max-Wait-Ms", "1_0", 400),
    ("Content-Encoding", "gzip", 415),
    ("Content-Encoding", "br", 415),
    ("Content-Encoding", "identity, gzip", 415),
    ("Content-Type", "application/json; charset=utf-16", 415),
    ("Content-Type", 'application/json; charset="ISO-8859-1"', 415),
    ("Content-Type", "multipart/form-data; boundary=x", 415),
)


def table() -> Iterator[Bad]:
    """Everything, for every route."""
    for route in JSON_ROUTES.values():
        text = json.dumps(good(route)).encode()
        wrong = [*NO_OBJECTS.items(), *_whole(text), *_members(route, text)]
        for how, body in wrong:
            statuses = frozenset({411}) if not body else frozenset({404}) if "no such" in how else frozenset({400})
            statuses = frozenset({404}) if '"\\u0000"' in how else statuses
            yield Bad(how, route.path, body, {}, statuses)
        for name, value, status in HEADERS:
            yield Bad(f"{name}: {value}", route.path, text, {name: value}, frozenset({status}))


# --- chance -----------------------------------------------------------------------------------------------------------

_PIECES = (b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\0", b"\xff", b"\\ud800", b"1e999", b"NaN", b"null", b"-")


def mutated(random: Random, text: bytes) -> bytes:
    """A body with one to three faults: a piece taken out, put in, doubled, or bytes that are others."""
    data = bytearray(text)
    for _ in range(random.randint(1, 3)):
        start = random.randrange(len(data) or 1)
        end = min(len(data), start + random.randint(1, 6))
        match random.randrange(4):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = random.choice(_PIECES)
            case 2:
                data[start:start] = data[start:end]
            case _:
                data[start:end] = random.randbytes(end - start)
    return bytes(data)
