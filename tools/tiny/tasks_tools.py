"""Tools: their TypeScript form in the developer message, calls, results, and questions that need none."""

import json

from task import Task
from tasks_dates import random_day
from tasks_numbers import arithmetic
from words import CITIES, COLOURS, FOODS, NAMES, OBJECTS, PLACES, any_word, invented

# (name, description, parameters: key -> (type, description, required), request texts, result, answer).
# A request's {key} are the arguments; a result's and an answer's {r} are what the tool returned.


def known_tools(rng):
    degrees, sky = rng.randint(-10, 38), rng.choice(["sunny", "cloudy", "rainy", "snowy", "windy", "foggy"])
    clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    price, number = rng.randint(2, 900), rng.randint(1000, 99999)
    word = lambda: any_word(rng)
    city, name, thing, place = rng.choice(CITIES), rng.choice(NAMES), rng.choice(OBJECTS), rng.choice(PLACES)
    day = str(random_day(rng))
    S, N = "string", "number"
    return [
        (
            "get_weather",
            "Get the weather of a city.",
            {"location": (S, "The city", True)},
            {"location": city},
            [
                "What is the weather in {location}?",
                "How is the weather in {location}?",
                "Is it cold in {location}?",
                "Weather in {location}, please.",
            ],
            {"temperature": degrees, "sky": sky},
            f"It is {sky} in {city}, at {degrees} degrees.",
        ),
        (
            "get_time",
            "Get the current time in a city.",
            {"city": (S, None, True)},
            {"city": city},
            ["What time is it in {city}?", "Tell me the time in {city}."],
            {"time": clock},
            f"It is {clock} in {city}.",
        ),
        (
            "find_price",
            "Look up what an item costs.",
            {"item": (S, "Name of the item", True)},
            {"item": thing},
            ["What does a {item} cost?", "Find the price of a {item}.", "How much is a {item}?"],
            {"price": price},
            f"The {thing} costs {price}.",
        ),
        (
            "send_message",
            "Send a message to a person.",
            {"to": (S, "Who gets it", True), "text": (S, "The message", True)},
            {"to": name, "text": f"The {thing} is in the {place}."},
            ['Send {to} the message "{text}"', "Tell {to}: {text}", "Write to {to}: {text}"],
            {"sent": True},
            f"I sent the message to {name}.",
        ),
        (
            "set_timer",
            "Set a timer.",
            {"minutes": (N, "Minutes to wait", True)},
            {"minutes": rng.randint(1, 120)},
            ["Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Timer: {minutes} minutes."],
            {"ok": True},
            "The timer is set.",
        ),
        (
            "look_up_number",
            "Find a person's telephone number.",
            {"name": (S, None, True)},
            {"name": name},
            ["What is {name}'s number?", "Find the telephone number of {name}."],
            {"number": number},
            f"{name}'s number is {number}.",
        ),
        (
            "add_to_list",
            "Add an item to the shopping list.",
            {"item": (S, None, True), "count": (N, "How many", False)},
            {"item": rng.choice(FOODS), "count": rng.randint(2, 12)},
            ["Put {count} {item} on my shopping list.", "Add {count} {item} to the list."],
            {"items": rng.randint(1, 20)},
            None,
        ),
        (
            "set_light",
            "Change the colour of the light in a room.",
            {"room": (S, None, True), "colour": (S, "The new colour", True)},
            {"room": rng.choice(["kitchen", "cellar", "bedroom", "hall", "attic"]), "colour": rng.choice(COLOURS)},
            ["Make the light in the {room} {colour}.", "Turn the {room} light {colour}."],
            {"ok": True},
            None,
        ),
        (
            "search_notes",
            "Search the notes for a word.",
            {"query": (S, "The word", True), "limit": (N, "Most results", False)},
            {"query": (w := word()), "limit": rng.randint(1, 20)},
            ["Search my notes for {query}, at most {limit} results.", "Find {limit} notes about {query}."],
            {"found": (k := rng.randint(0, 9))},
            f"I found {k} note{'' if k == 1 else 's'} about {w}.",
        ),
        (
            "book_room",
            "Book a room.",
            {"city": (S, None, True), "date": (S, "Date as YYYY-MM-DD", True), "nights": (N, None, True)},
            {"city": city, "date": day, "nights": rng.randint(1, 9)},
            [
                "Book a room in {city} from {date} for {nights} nights.",
                "I need a room in {city} on {date}, {nights} nights.",
            ],
            {"booking": number},
            f"The room in {city} is booked. The booking number is {number}.",
        ),
        (
            "calculate",
            "Work out an expression.",
            {"expression": (S, None, True)},
            {"expression": f"{rng.randint(100, 9999)} * {rng.randint(100, 9999)}"},
            ["Use the calculator for {expression}.", "Calculate {expression} with the tool."],
            {"result": number},
            f"The result is {number}.",
        ),
    ]


def invented_tool(rng):
    """A tool seen nowhere else: the description and the parameters are all there is to go by."""
    verb, noun = rng.choice(
        ["open", "close", "move", "count", "check", "start", "stop", "find", "paint", "clean"]
    ), rng.choice(OBJECTS + PLACES + [invented(rng)])
    pool = {
        "speed": ("number", rng.randint(1, 100)),
        "level": ("number", rng.randint(0, 10)),
        "owner": ("string", rng.choice(NAMES)),
        "place": ("string", rng.choice(PLACES)),
        "colour": ("string", rng.choice(COLOURS)),
        "code": ("string", invented(rng)),
        "amount": ("number", rng.randint(1, 999)),
        "quiet": ("boolean", rng.random() < 0.5),
        "city": ("string", rng.choice(CITIES)),
    }
    keys = rng.sample(sorted(pool), rng.randint(1, 3))
    arguments = {k: pool[k][1] for k in keys}
    spoken = " and ".join(f"{k} {json.dumps(v) if not isinstance(v, str) else v}" for k, v in arguments.items())
    request = rng.choice([f"{verb.title()} the {noun} with {spoken}.", f"Please {verb} the {noun}, {spoken}."])
    status = rng.choice(["done", "ok", "failed"])
    answer = f"I could not {verb} the {noun}." if status == "failed" else f"The tool says: {status}."
    return (
        f"{verb}_{noun}",
        f"{verb.title()}{'s' if rng.random() < 0.2 else ''} the {noun}.",
        {k: (pool[k][0], None, True) for k in keys},
        arguments,
        [request.replace("{", "(")],
        {"status": status},
        answer,
    )


def type_script(tool):
    """One tool as the developer message shows it."""
    name, description, parameters = tool[:3]
    lines = [f"// {description}", f"type {name} = (_: {{"]
    for key, (kind, comment, required) in parameters.items():
        lines += ([f"// {comment}"] if comment else []) + [f"{key}{'' if required else '?'}: {kind},"]
    return "\n".join(lines) + "\n}) => any;\n"


def schema_of(tool):
    name, description, parameters = tool[:3]
    properties = {k: {"type": t, **({"description": c} if c else {})} for k, (t, c, _) in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": [k for k, p in parameters.items() if p[2]],
            },
        },
    }


def offered(rng, needed=None):
    tools = known_tools(rng)
    chosen = [needed] if needed else []
    for tool in rng.sample(tools, rng.randint(0 if needed else 1, 3)) + (
        [invented_tool(rng)] if rng.random() < 0.4 else []
    ):
        if tool[0] not in [t[0] for t in chosen]:
            chosen.append(tool)
    rng.shuffle(chosen)
    return chosen


def tool_call(rng):
    tool = invented_tool(rng) if rng.random() < 0.4 else rng.choice(known_tools(rng))
    name, _, parameters, arguments, requests, result, answer = tool
    request = rng.choice(requests)
    arguments = {k: v for k, v in arguments.items() if parameters[k][2] or "{" + k + "}" in request}
    text = request.format(**arguments) if "{" in request else request
    brief = f"Use {name}."
    full = f"The user asks: {text} The tool {name} does this. Arguments: {', '.join(f'{k} {json.dumps(v)}' for k, v in arguments.items())}."
    return Task(
        "tool calls",
        f"{name}{arguments}",
        text,
        answer or "Done.",
        brief,
        full,
        "call",
        {"name": name, "arguments": arguments},
        tools=offered(rng, tool),
        call=(name, arguments),
        result=json.dumps(result),
        after=f"The result is {json.dumps(result)}.",
    )


def no_tool(rng):
    """Tools are offered, but the question needs none."""
    task = arithmetic(rng)
    task.family, task.tools = "tools not needed", offered(rng)
    return task
