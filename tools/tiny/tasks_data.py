"""Questions about a small table or a paragraph; JSON in and out."""

import json

from task import Task
from words import CITIES, COLOURS, FOODS, JOBS, NAMES, OBJECTS, PEOPLE, PLACES, article, plural

# ---- tables ----

COLUMNS = {  # column: (values, is a number)
    "age": (list(range(8, 90)), True),
    "city": (CITIES, False),
    "job": (JOBS, False),
    "points": (list(range(100)), True),
    "price": (list(range(1, 200)), True),
    "colour": (COLOURS, False),
    "weight": (list(range(1, 120)), True),
    "stock": (list(range(60)), True),
    "height": (list(range(90, 210)), True),
}
PEOPLE_COLUMNS, THING_COLUMNS = ["age", "city", "job", "points", "height"], ["price", "colour", "weight", "stock"]


def make_table(rng):
    """(what a row is, columns, rows): numbers of a column differ, so that extremes are unique."""
    people = rng.random() < 0.6
    columns = rng.sample(PEOPLE_COLUMNS if people else THING_COLUMNS, rng.randint(2, 3))
    names = rng.sample(NAMES if people else OBJECTS, rng.randint(3, 6))
    picks = {
        c: rng.sample(COLUMNS[c][0], len(names)) if COLUMNS[c][1] else rng.choices(COLUMNS[c][0], k=len(names))
        for c in columns
    }
    return (
        ("name" if people else "item"),
        columns,
        [(n, {c: picks[c][i] for c in columns}) for i, n in enumerate(names)],
    )


def show_table(rng, first, columns, rows):
    lines = [[first] + columns] + [[n] + [str(v[c]) for c in columns] for n, v in rows]
    if rng.random() < 0.6:
        text = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join([text[0], "|" + " --- |" * len(lines[0])] + text[1:])
    return "\n".join(",".join(line) for line in lines)


def marked(column, chosen):
    return ", ".join(f"{v} {'take' if n in chosen else 'skip'} {n}" for n, v in column)


def table(rng):
    first, columns, rows = make_table(rng)
    shown = show_table(rng, first, columns, rows)
    numeric = [c for c in columns if COLUMNS[c][1]]
    shape = rng.choice(["look", "look", "who", "count"] + (["most", "least", "sum", "over"] if numeric else []))
    name, values = rng.choice(rows)
    c = rng.choice(numeric if shape in ("most", "least", "sum", "over") else columns)
    column = [(n, v[c]) for n, v in rows]
    listed = ", ".join(f"{v} {n}" for n, v in column)  # the value first: what follows it is then looked up
    if shape == "look":
        q = rng.choice([f"What is the {c} of {name}?", f"Which {c} does {name} have?"])
        a, work, expect = f"The {c} of {name} is {values[c]}.", f"{name}: {c} {values[c]}.", str(values[c])
    elif shape == "who":
        matching = [n for n, v in column if v == values[c]]
        q = f"Which {first}s have {c} {values[c]}?"
        a = expect = ", ".join(matching)
        work = f"{marked(column, matching)}. {a}."
    elif shape == "count":
        matching = [n for n, v in column if v == values[c]]
        q = f"How many {first}s have {c} {values[c]}?"
        a, expect = str(len(matching)), str(len(matching))
        work = f"{marked(column, matching)}. {', '.join(f'{i + 1} {n}' for i, n in enumerate(matching))}. That is {len(matching)}."
    elif shape in ("most", "least"):
        pick = (max if shape == "most" else min)(column, key=lambda p: p[1])
        word = "highest" if shape == "most" else "lowest"
        q, a, expect = f"Who or what has the {word} {c}?", f"{pick[0]} has the {word} {c}: {pick[1]}.", pick[0]
        work = f"{listed}. The {word} is {pick[1]} {pick[0]}."
    elif shape == "sum":
        total, steps = column[0][1], []
        for _, v in column[1:]:
            steps.append(f"{total} + {v} = {total + v}")
            total += v
        q, a, expect = f"What is the sum of the column {c}?", f"The sum is {total}.", str(total)
        work = f"{listed}. {', '.join(steps)}."
    else:
        limit = sorted(v for _, v in column)[rng.randrange(len(column))]
        over = [n for n, v in column if v > limit]
        q = f"Which {first}s have {c} above {limit}?"
        a = expect = ", ".join(over) if over else "None"
        work = f"{marked(column, over)}. {a}."
    text = f"{shown}\n\n{q}" if rng.random() < 0.8 else f"{q}\n\n{shown}"
    return Task("tables", f"{rows}{q}", text, a, work, f"Column {c}. {work}", "text", expect, hard=shape == "sum")


# ---- paragraphs ----


def person(rng, names):
    she = rng.choice(("she", "he"))
    name = rng.choice([n for n in PEOPLE[she] if n not in names])
    facts = {
        "job": rng.choice(JOBS),
        "city": rng.choice(CITIES),
        "age": rng.randint(18, 80),
        "thing": rng.choice(OBJECTS),
        "colour": rng.choice(COLOURS),
        "place": rng.choice(PLACES),
        "food": rng.choice(FOODS),
        "day": rng.choice(["Monday", "Tuesday", "Friday", "Sunday"]),
    }
    return name, she, facts


def tell(rng, name, she, f):
    """Sentences about one person, and what each one answers."""
    She = she.title()
    her = {"she": "her", "he": "his"}[she]
    opening = rng.choice(
        [
            f"{name} is {f['age']} years old and works as {article(f['job'])} in {f['city']}.",
            f"{name}, {article(f['job'])} of {f['age']}, lives in {f['city']}.",
            f"In {f['city']} lives {name}, who is {f['age']} and works as {article(f['job'])}.",
        ]
    )
    more = [
        rng.choice(
            [
                f"On {f['day']} {she} went to the {f['place']} with {article(f['colour'])} {f['thing']}.",
                f"{She} carried {article(f['colour'])} {f['thing']} to the {f['place']} on {f['day']}.",
                f"Every {f['day']} {she} takes {her} {f['colour']} {f['thing']} to the {f['place']}.",
            ]
        ),
        rng.choice(
            [
                f"{She} likes {f['food']} more than anything else.",
                f"{She} never eats anything but {f['food']}.",
                f"For lunch {she} always has {f['food']}.",
            ]
        ),
    ]
    rng.shuffle(more)
    return " ".join([opening] + more)


def questions(name, f):
    return [
        (f"Where does {name} live?", f"{name} lives in {f['city']}.", f["city"]),
        (f"How old is {name}?", f"{name} is {f['age']} years old.", str(f["age"])),
        (f"What is {name}'s job?", f"{name} is {article(f['job'])}.", f["job"]),
        (f"What does {name} carry?", f"{name} carries {article(f['colour'])} {f['thing']}.", f["thing"]),
        (f"Which colour is {name}'s {f['thing']}?", f"It is {f['colour']}.", f["colour"]),
        (f"Where does {name} take the {f['thing']}?", f"To the {f['place']}.", f["place"]),
        (f"On which day does {name} go to the {f['place']}?", f"On {f['day']}.", f["day"]),
        (f"What does {name} eat?", f"{name} eats {f['food']}.", f["food"]),
    ]


def paragraph(rng):
    people = []
    for _ in range(rng.randint(1, 3)):
        people.append(person(rng, [p[0] for p in people]))
    told = {p[0]: tell(rng, *p) for p in people}
    text = " ".join(told.values())
    if len(people) > 1 and rng.random() < 0.25:
        old = rng.random() < 0.5
        best = (max if old else min)(people, key=lambda p: p[2]["age"])
        word = "oldest" if old else "youngest"
        q, a, expect = f"Who is the {word}?", f"{best[0]} is the {word}, at {best[2]['age']}.", best[0]
        work = f"{', '.join(str(f['age']) + ' ' + n for n, _, f in people)}. The {word} is {best[2]['age']} {best[0]}."
        full_work = work
    else:
        name, _, facts = rng.choice(people)
        q, a, expect = rng.choice(questions(name, facts))
        work = f"The text says: {told[name]} So {expect}."
        full_work = f"The question is about {name}. {work}"
    full = f"{text}\n\n{q}" if rng.random() < 0.8 else f"Read this and answer. {text} {q}"
    return Task("paragraphs", text + q, full, a, work, full_work, "text", expect)


# ---- JSON ----

FIELDS = {
    "name": "string",
    "age": "integer",
    "city": "string",
    "job": "string",
    "colour": "string",
    "item": "string",
    "count": "integer",
    "price": "number",
    "available": "boolean",
}


def field_value(rng, key):
    return {
        "name": lambda: rng.choice(NAMES),
        "age": lambda: rng.randint(1, 99),
        "city": lambda: rng.choice(CITIES),
        "job": lambda: rng.choice(JOBS),
        "colour": lambda: rng.choice(COLOURS),
        "item": lambda: rng.choice(OBJECTS),
        "count": lambda: rng.randint(0, 500),
        "price": lambda: rng.randint(1, 9999) / 100 if rng.random() < 0.5 else rng.randint(1, 300),
        "available": lambda: rng.random() < 0.5,
    }[key]()


def record(rng):
    return {k: field_value(rng, k) for k in rng.sample(sorted(FIELDS), rng.randint(2, 5))}


def in_prose(rng, data):
    text = {
        "name": f"The name is {data.get('name')}.",
        "age": f"The age is {data.get('age')}.",
        "city": f"The city is {data.get('city')}.",
        "job": f"The job is {data.get('job')}.",
        "colour": f"The colour is {data.get('colour')}.",
        "item": f"The item is {article(str(data.get('item')))}.",
        "count": f"There are {data.get('count')} of them.",
        "price": f"It costs {data.get('price')}.",
        "available": "It is available." if data.get("available") else "It is not available.",
    }
    if {"name", "age", "city"} <= data.keys() and rng.random() < 0.6:
        text["name"] = f"{data['name']} is {data['age']} and lives in {data['city']}."
        text["age"] = text["city"] = ""
    elif {"name", "job"} <= data.keys() and rng.random() < 0.6:
        text["name"], text["job"] = f"{data['name']} works as {article(data['job'])}.", ""
    if {"count", "item"} <= data.keys() and rng.random() < 0.6:
        text["count"], text["item"] = f"There are {data['count']} of the item {data['item']}.", ""
    order = sorted(data, key=lambda k: (k not in ("name", "item"), rng.random()))
    return " ".join(text[k] for k in order if text[k])


def schema_of(rng, data):
    properties = {k: {"type": FIELDS[k]} for k in data}
    schema = {"type": "object", "properties": properties, "required": list(data)}
    if rng.random() < 0.3:
        schema["additionalProperties"] = False
    return schema


def json_schema(rng):
    data = record(rng)
    schema = schema_of(rng, data)
    prose = in_prose(rng, data)
    line = json.dumps(schema)
    text = rng.choice(
        [
            f"{prose}\n\nAnswer with JSON that fits this schema: {line}",
            f"Extract the data as JSON with this schema:\n{line}\n\n{prose}",
            f"Schema: {line}\nText: {prose}\nAnswer with JSON only.",
        ]
    )
    instructions = ""
    if rng.random() < 0.25:
        text, instructions = prose, f"Answer with JSON that fits this schema:\n{line}"
    work = "Fields: " + ", ".join(f"{k} {json.dumps(v)}" for k, v in data.items()) + "."
    return Task(
        "JSON to schema",
        json.dumps(data),
        text,
        json.dumps(data),
        work,
        "",
        "json",
        data,
        instructions=instructions,
        schema=schema,
    )


def json_keys(rng):
    data = record(rng)
    text = f"{in_prose(rng, data)}\n\n{rng.choice(['Write this as a JSON object with the keys', 'Make JSON of it. Keys:'])} {', '.join(data)}."
    work = "Fields: " + ", ".join(f"{k} {json.dumps(v)}" for k, v in data.items()) + "."
    return Task("JSON", json.dumps(data), text, json.dumps(data), work, "", "json", data)


def json_read(rng):
    data = record(rng)
    k = rng.choice(sorted(data))
    v = data[k] if isinstance(data[k], str) else json.dumps(data[k])
    text = f"{json.dumps(data, indent=rng.choice([None, None, 2]))}\n\n{rng.choice([f'What is the value of {k}?', f'What is the {k}?'])}"
    return Task("JSON", json.dumps(data) + k, text, f"The {k} is {v}.", f"{k}: {v}.", "", "text", v)


def json_change(rng):
    data = record(rng)
    k = rng.choice(sorted(data))
    new = dict(data)
    if rng.random() < 0.4:
        del new[k]
        ask = f"Remove the key {k}."
    else:
        new[k] = field_value(rng, k)
        ask = f"Set {k} to {json.dumps(new[k])}."
    return Task(
        "JSON", json.dumps(data) + ask, f"{json.dumps(data)}\n\n{ask}", json.dumps(new), f"{ask}", "", "json", new
    )


def json_list(rng):
    kind = rng.choice(["numbers", "words", "objects"])
    if kind == "numbers":
        items = [rng.randint(0, 200) for _ in range(rng.randint(2, 7))]
    elif kind == "words":
        items = rng.sample(OBJECTS, rng.randint(2, 6))
    else:
        items = [{"item": o, "count": rng.randint(1, 99)} for o in rng.sample(OBJECTS, rng.randint(2, 4))]
    if kind == "objects":
        text = (
            "Write as a JSON list with item and count: "
            + ", ".join(f"{d['count']} {plural(d['item'])}" for d in items)
            + "."
        )
    else:
        text = f"Write as a JSON list: {', '.join(map(str, items))}."
    return Task("JSON", json.dumps(items), text, json.dumps(items), f"A list of {len(items)}.", "", "json", items)
