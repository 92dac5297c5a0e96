"""The input items of Responses, as the openai package declares them: each form with its required members only, and
with all. Run as a program it writes tests/client/responses_items.json, which the tests without a network read. A form
that is refused has words of the error there, written by hand."""

import collections.abc
import json
import pathlib
import typing

import typing_extensions
from openai.types.responses import response_input_item_param

TABLE = pathlib.Path(__file__).resolve().parent.parent / "responses_items.json"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
SAMPLES = {"arguments": '{"a": "b"}', "name": "f", "parameters": SCHEMA, "schema": SCHEMA, "input_schema": SCHEMA,
           "output_schema": SCHEMA, "image_url": "data:image/png;base64,AA=="}
PLAIN = {str: None, int: 1, float: 0.5, bool: True, object: {"a": 1}, type(None): None}


def alternatives(kind):
    """The members of a union, None left out; one of another kind is itself."""
    if typing.get_origin(kind) in (typing.Union, getattr(__import__("types"), "UnionType", None)):
        return [one for part in typing.get_args(kind) if part is not type(None) for one in alternatives(part)]
    if typing.get_origin(kind) in (typing.Annotated, typing_extensions.Required, typing_extensions.NotRequired):
        return alternatives(typing.get_args(kind)[0])
    return [kind]


def value(name, kind, full):
    """A value of the kind for a member of that name. Of a union a full form has the last kind, a list one of each."""
    kinds = alternatives(kind)
    kind = kinds[-1 if full else 0]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if name in SAMPLES and (kind in PLAIN or origin is dict):
        return SAMPLES[name]
    if kind in PLAIN:
        return name if kind is str else PLAIN[kind]
    if origin is typing.Literal:
        return inner[0]
    if origin is dict:
        return {"key": value("value", inner[1], full)}
    if typing_extensions.is_typeddict(kind):
        return form(kind, full)
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        return [value(name, one, full) for one in alternatives(inner[0])[:None if full else 1]]
    raise TypeError(f"{name}: {kind}")


def form(kind, full):
    hints = typing_extensions.get_type_hints(kind, include_extras=True)
    wanted = [name for name in sorted(hints) if full or typing.get_origin(hints[name]) is typing_extensions.Required]
    return {name: value(name, hints[name], full) for name in wanted}


def forms():
    """{name: {"minimal": item, "full": item}} of every member of the union."""
    kinds = typing.get_args(response_input_item_param.ResponseInputItemParam)
    return {kind.__name__: {"minimal": form(kind, False), "full": form(kind, True)} for kind in kinds}


if __name__ == "__main__":
    old = json.loads(TABLE.read_text())
    table = {name: both | ({"refused": old[name]["refused"]} if "refused" in old.get(name, {}) else {})
             for name, both in forms().items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    TABLE.write_text("{\n" + lines + "\n}\n")
