#!/usr/bin/env python3
"""Compare src/grammar with the jsonschema package on random schemas, in both directions.

What random walks through the token masks produce must parse and be valid; valid instances, written in the grammar's
order and spelling, must be taken, and what jsonschema refuses must not be. Needs jsonschema and rfc3339-validator (PyPI).

    ninja -C build grammar_check
    tools/grammar/compare_jsonschema.py build/src/grammar/grammar_check --schemas 2000 --seed 1
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys

import jsonschema

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORDS = ["a", "b", "name", "näme", "na", "x\"y", "key", "id", "日本", ""]
PATTERNS = ["^[a-c]{1,3}$", "^(foo|ba[rz])$", "[0-9]", "^\\d{2,4}-[A-Z]+$", "^[^\"a]*$", "^x?y*z+$", "b$", "^\\w \\w$"]
FORMATS = ["date", "uuid", "ipv4", "ipv6", "email", "time", "date-time"]


class Schemas:
    """Random schemas, each with a way to make instances that tend to be valid."""

    def __init__(self, rng):
        self.rng = rng

    def chance(self, p):
        return self.rng.random() < p

    def schema(self, depth):
        kinds = ["string", "integer", "number", "enum", "constant", "boolean", "null", "pattern", "format"]
        if depth > 0:
            kinds += ["object", "array", "tuple", "map", "anyOf", "oneOf", "allOf", "ref", "any"] * 2
        return getattr(self, "make_" + self.rng.choice(kinds))(depth - 1)

    def make_any(self, _):
        return self.rng.choice([True, {}, {"type": ["string", "null", "array"]}])

    def make_boolean(self, _):
        return {"type": "boolean"}

    def make_null(self, _):
        return {"type": "null"}

    def make_string(self, _):
        low = self.rng.randrange(4)
        return {"type": "string"} | ({"minLength": low} if self.chance(.5) else {}) | (
            {"maxLength": low + self.rng.randrange(6)} if self.chance(.5) else {})

    def make_pattern(self, _):
        return {"type": "string", "pattern": self.rng.choice(PATTERNS)} | (
            {"maxLength": self.rng.randrange(3, 9)} if self.chance(.3) else {})

    def make_format(self, _):
        return {"type": "string", "format": self.rng.choice(FORMATS)}

    def bounds(self, scale):
        low = self.rng.randrange(-200, 200) / scale
        high = low + self.rng.randrange(1, 300) / scale
        low, high = (int(low), int(high) + 1) if scale == 1 else (low, high)
        return ({self.rng.choice(["minimum", "exclusiveMinimum"]): low} if self.chance(.6) else {}) | (
            {self.rng.choice(["maximum", "exclusiveMaximum"]): high + 1} if self.chance(.6) else {})

    def make_integer(self, _):
        return {"type": "integer"} | self.bounds(1)

    def make_number(self, _):
        return {"type": "number"} | self.bounds(self.rng.choice([1, 8, 100]))

    def make_enum(self, _):
        return {"enum": self.rng.sample(["a", "ab", "b\n", 1, -2, 2.5, None, True, [1, "x"], {"k": [None]}], 3)}

    def make_constant(self, _):
        return {"const": self.rng.choice(["x", 7, {"a": "b", "c": []}, [[]]])}

    def make_object(self, depth):
        names = self.rng.sample(WORDS, self.rng.randrange(1, 5))
        schema = {"type": "object", "properties": {name: self.schema(depth) for name in names}}
        schema["required"] = [name for name in names if self.chance(.5)]
        schema["additionalProperties"] = False if self.chance(.7) else self.schema(0)
        return schema

    def make_map(self, depth):
        low = self.rng.randrange(2)
        return {"type": "object", "additionalProperties": self.schema(depth)} | (
            {"minProperties": low} if self.chance(.3) else {}) | (
            {"maxProperties": low + 1} if self.chance(.3) else {})

    def make_array(self, depth):
        low = self.rng.randrange(3)
        return {"type": "array", "items": self.schema(depth)} | ({"minItems": low} if self.chance(.4) else {}) | (
            {"maxItems": low + self.rng.randrange(3)} if self.chance(.4) else {})

    def make_tuple(self, depth):
        first = [self.schema(depth) for _ in range(self.rng.randrange(1, 4))]
        return {"type": "array", "prefixItems": first, "items": False if self.chance(.5) else self.schema(0)} | (
            {"minItems": self.rng.randrange(len(first) + 1)} if self.chance(.5) else {})

    def make_anyOf(self, depth):
        return {"anyOf": [self.schema(depth) for _ in range(self.rng.randrange(1, 4))]}

    def make_oneOf(self, depth):
        """Of members that exclude each other: what is enforced is anyOf."""
        members = [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.schema(depth)},
                    "required": ["kind"], "additionalProperties": False} for kind in "abc"]
        return {"oneOf": members[:self.rng.randrange(1, 4)]}

    def make_allOf(self, depth):
        a, b = self.make_object(depth), self.make_object(depth)
        for schema in (a, b):
            schema.pop("additionalProperties")
            for name in set(a["properties"]) & set(b["properties"]):
                schema["properties"][name] = self.make_integer(0)
        # A property that belongs to neither is refused: said here for jsonschema, as the grammar does it by itself.
        merged = {"properties": {name: True for name in [*a["properties"], *b["properties"]]},
                  "additionalProperties": False}
        return {"allOf": [a, b, merged]}

    def make_ref(self, depth):
        node = {"type": "object", "properties": {"value": self.schema(depth - 1), "next": {
            "anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["next"], "additionalProperties": False}
        self.node = node
        return {"$ref": "#/$defs/node"}

    def document(self):
        self.node = {"type": "null"}
        schema = self.schema(3)
        return {**schema, "$defs": {"node": self.node}} if isinstance(schema, dict) else schema


class Instances:
    """Random values that are often valid for a schema, and their usual spelling."""

    def __init__(self, rng, document):
        self.rng, self.document = rng, document

    def value(self, schema, depth=6):
        rng = self.rng
        if isinstance(schema, bool) or not schema or depth < 1 and "allOf" not in schema and "properties" not in schema:
            return rng.choice([None, True, 0, "s", [], {}, [1, {"a": "b"}]])
        if "$ref" in schema:
            return self.value(self.document["$defs"]["node"], depth - 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.value(rng.choice(schema[key]), depth - 1)
        if "allOf" in schema:
            made = {k: v for part in schema["allOf"][:2] for k, v in self.value(part, depth).items()}
            return {name: made[name] for name in schema["allOf"][2]["properties"] if name in made}
        if "enum" in schema or "const" in schema:
            return rng.choice(schema.get("enum", [schema.get("const")]))
        if "type" not in schema:
            return self.value(True)
        kind = schema["type"] if isinstance(schema["type"], str) else rng.choice(schema["type"])
        return getattr(self, kind)(schema, depth - 1)

    def null(self, *_):
        return None

    def boolean(self, *_):
        return self.rng.random() < .5

    def integer(self, *_):
        return self.rng.randrange(-210, 510)

    def number(self, *_):
        return self.rng.choice([self.rng.randrange(-210, 510), round(self.rng.uniform(-30, 60), self.rng.randrange(1, 4))])

    def string(self, schema, _):
        if "format" in schema:
            return self.rng.choice(["2024-02-29", "2023-02-29", "1.2.3.4", "::1", "a@b.de", "10:11:12Z", "1::2:3",
                                    "2024-05-06T07:08:09+01:00", "123e4567-e89b-12d3-a456-426614174000"])
        pool = ["a", "b", "c", "foo", "bar", "12", "-", "AB", "x", "y", "z", " ", "\"", "\\", "\n", "é", "日", "😀"]
        if "pattern" in schema:
            pool.remove("\n")  # Python's $ also stands before a newline at the end
        return "".join(self.rng.choice(pool) for _ in range(self.rng.randrange(6)))

    def array(self, schema, depth):
        first = schema.get("prefixItems", [])
        return [self.value(first[i] if i < len(first) else schema.get("items", True), depth)
                for i in range(self.rng.randrange(5))]

    def object(self, schema, depth):
        properties = schema.get("properties", {})
        made = {name: self.value(sub, depth) for name, sub in properties.items()
                if name in schema.get("required", []) or self.rng.random() < .5}
        while schema.get("additionalProperties", False) is not False and self.rng.random() < .5:
            name = self.rng.choice(WORDS + ["new", "nam", "names"])
            if name not in properties:
                made[name] = self.value(schema["additionalProperties"], depth)
        return made


def usual(value):
    """As the grammar spells numbers: no exponent, no integer as 6.0."""
    return not re.search(r"[eE]|\.0\b", re.sub(r'"(\\.|[^"\\])*"', "", value))


class Program:
    def __init__(self, path):
        self.process = subprocess.Popen([path, os.path.join(ROOT, "models/tiny/tokenizer.json")], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def check(program, validator, schema, seed, counts):
    """The differences found, as lines."""
    rng = random.Random(seed)
    instances = Instances(rng, schema)
    values = [instances.value(schema) for _ in range(12)]
    texts = [json.dumps(value, ensure_ascii=False, separators=rng.choice([(",", ":"), (", ", ": ")])) for value in values]
    answer = program.ask(schema=schema, texts=texts, walks=6, seed=seed)
    if "error" in answer:
        counts["refused"] += 1
        return [] if "no JSON value" in answer["error"] else [answer["error"]]
    found = []
    for value, text, taken in zip(values, texts, answer["taken"]):
        valid = validator.is_valid(value)
        counts["valid" if valid else "invalid"] += 1
        if valid != taken and usual(text):
            found.append(f"{'not taken' if valid else 'taken'}: {text}")
    for text in answer["texts"]:
        counts["walks"] += 1
        if text is None:
            counts["endless"] += 1
            continue
        try:
            value = json.loads(text)
        except ValueError as error:
            found.append(f"walk does not parse ({error}): {text}")
            continue
        if not validator.is_valid(value):
            found.append(f"walk is not valid: {text}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--schemas", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    program = Program(args.program)
    counts = dict.fromkeys(["schemas", "refused", "valid", "invalid", "walks", "endless", "differences"], 0)
    for i in range(args.schemas):
        seed = args.seed * 1000003 + i
        schema = Schemas(random.Random(seed)).document()
        counts["schemas"] += 1
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        for line in check(program, validator, schema, seed, counts)[:3]:
            counts["differences"] += 1
            print(f"schema {seed}: {json.dumps(schema, ensure_ascii=False)}\n  {line[:500]}", flush=True)
    print(json.dumps(counts))
    return 1 if counts["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
