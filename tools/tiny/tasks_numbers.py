"""Arithmetic, comparing and sorting, spelled numbers."""

from task import Task
from words import NAMES, OBJECTS, PEOPLE, plural, spell_number

ASK = [
    "What is {}?",
    "What is {}?",
    "{}",
    "{} =",
    "Calculate {}.",
    "Work out {}.",
    "How much is {}?",
    "{} = ?",
    "Please compute {}.",
    "Tell me what {} is.",
]


# ---- the working, step by step ----


def add_steps(a, b):
    steps, carry, x, y = [], 0, a, b
    while x or y or carry:
        if not (x or y):
            break
        total = x % 10 + y % 10 + carry
        steps.append(f"{x % 10} + {y % 10}{' + 1' if carry else ''} = {total}" + (" carry 1" if total > 9 else ""))
        carry, x, y = total // 10, x // 10, y // 10
    return f"{a} + {b}: " + ", ".join(steps) + f", so {a + b}"


def subtract_steps(a, b):
    """a >= b."""
    steps, borrow, x, y = [], 0, a, b
    while x or y:
        top, bottom = x % 10 - borrow, y % 10
        took = top < bottom
        shown = f"{x % 10}" + (" - 1" if borrow else "")
        if took:
            steps.append(f"10 + {shown} - {bottom} = {top + 10 - bottom} borrow 1")
        else:
            steps.append(f"{shown} - {bottom} = {top - bottom}")
        borrow, x, y = int(took), x // 10, y // 10
    return f"{a} - {b}: " + ", ".join(steps) + f", so {a - b}"


def parts_of(n):
    """347 is [300, 40, 7]."""
    text = str(n)
    return [int(d) * 10 ** (len(text) - 1 - i) for i, d in enumerate(text) if d != "0"] or [0]


def times_digit_steps(a, d):
    """a x d, d below ten (or a round number)."""
    pieces = parts_of(a)
    if len(pieces) == 1:
        return f"{a} x {d} = {a * d}"
    text, total = ", ".join(f"{p} x {d} = {p * d}" for p in pieces), pieces[0] * d
    for p in pieces[1:]:
        text += f", {total} + {p * d} = {total + p * d}"
        total += p * d
    return text


def multiply_steps(a, b):
    pieces = parts_of(b)
    if len(pieces) == 1 and b < 10:
        return f"{a} x {b}: " + times_digit_steps(a, b) + f", so {a * b}"
    text, total = [], 0
    for p in pieces:
        digit, zeros = int(str(p)[0]), len(str(p)) - 1
        text.append(times_digit_steps(a, digit) + (f", {a} x {p} = {a * p}" if zeros else ""))
    sums = []
    for p in pieces:
        if total:
            sums.append(f"{total} + {a * p} = {total + a * p}")
        total += a * p
    return f"{a} x {b}: " + "; ".join(text) + ("; " + ", ".join(sums) if sums else "") + f", so {a * b}"


def steps(a, op, b):
    if op == "+":
        return add_steps(a, b)
    if op == "x":
        return multiply_steps(a, b)
    if a < b:
        return f"{a} is less than {b}. " + subtract_steps(b, a) + f", so {a - b}"
    return subtract_steps(a, b)


def value(a, op, b):
    return {"+": a + b, "-": a - b, "x": a * b}[op]


def check(a, op, b):
    r = value(a, op, b)
    if op == "+":
        return f"Check: {steps(r, '-', b)}."
    if op == "-":
        return f"Check: {r} + {b} = {a}."
    return f"Check: {multiply_steps(b, a)}." if min(a, b) > 0 else "Zero times anything is 0."


def phrase(rng, a, op, b):
    if op == "x":
        return f"{a} {rng.choice(['x', 'x', '*', 'times'])} {b}"
    word = {"+": "plus", "-": "minus"}[op]
    return f"{a} {word if rng.random() < 0.2 else op} {b}"


def ask(rng, text):
    return rng.choice(ASK).format(text)


# ---- families ----


def arithmetic(rng):
    op = rng.choice("+-xx")
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if op == "-" and rng.random() < 0.2:
        b = min(99, max(0, a + rng.randint(-9, 9)))
    if op == "-" and a < b and rng.random() < 0.6:
        a, b = b, a
    work = steps(a, op, b)
    return Task(
        "arithmetic",
        f"{a}{op}{b}",
        ask(rng, phrase(rng, a, op, b)),
        f"{a} {op} {b} = {value(a, op, b)}",
        f"{work}.",
        f"{work}. {check(a, op, b)}",
        "number",
        value(a, op, b),
    )


def long_arithmetic(rng):
    """Medium effort takes it in coarse steps, high effort digit by digit."""
    op = rng.choice("+-x")
    if op == "x":
        a, b = rng.randint(100, 999), rng.choice([rng.randint(2, 9), rng.randint(11, 99)])
        coarse = ", ".join(f"{a} x {p} = {a * p}" for p in parts_of(b))
    else:
        a, b = sorted((rng.randint(100, 99999), rng.randint(100, 99999)), reverse=True)
        coarse = f"{a} {op} {b} in one step"
    r = value(a, op, b)
    return Task(
        "long arithmetic",
        f"{a}{op}{b}",
        ask(rng, phrase(rng, a, op, b)),
        f"{a} {op} {b} = {r}",
        f"{coarse}, so {r}.",
        f"{steps(a, op, b)}.",
        "number",
        r,
        hard=True,
    )


def division_steps(n, d):
    """By tens of the divisor, then by ones."""
    q, left, text = n // d, n, ""
    if q > 9:
        tens = q // 10 * 10
        left -= d * tens
        text = f"{d} x {tens} = {d * tens}, {n} - {d * tens} = {left}, "
    ones = left // d
    text += f"{d} x {ones} = {d * ones}, {left} - {d * ones} = {left % d}"
    return f"{text}, so {q}" + (f" remainder {n % d}" if n % d else "")


def division(rng):
    d, q = rng.randint(2, 12), rng.randint(1, 20)
    n = d * q + rng.choice([0, 0, rng.randint(0, d - 1)])
    answer = f"{n} / {d} = {q}" + (f" remainder {n % d}" if n % d else "")
    work = division_steps(n, d) + "."
    check = f" Check: {multiply_steps(d, q)}" + (f", {d * q} + {n % d} = {n}." if n % d else ".")
    return Task(
        "division",
        f"{n}/{d}",
        ask(rng, f"{n} {rng.choice(['/', 'divided by'])} {d}"),
        answer,
        work,
        work + check,
        "exact",
        answer,
    )


def expression(rng):
    """Two or three operations: products first, then from left to right; sometimes parentheses."""
    a, b, c, d = (rng.randint(1, 20) for _ in range(4))
    shape = rng.randrange(6)
    if shape == 0:
        text, order = f"{a} + {b} x {c}", [(b, "x", c), (a, "+", b * c)]
    elif shape == 1:
        text, order = f"({a} + {b}) x {c}", [(a, "+", b), (a + b, "x", c)]
    elif shape == 2:
        text, order = f"{a} x {b} + {c} x {d}", [(a, "x", b), (c, "x", d), (a * b, "+", c * d)]
    elif shape == 3:
        text, order = f"{a} + {b} + {c} + {d}", [(a, "+", b), (a + b, "+", c), (a + b + c, "+", d)]
    elif shape == 4:
        text, order = f"{a} x {b} - {c}", [(a, "x", b), (a * b, "-", c)]
    else:
        big = a + b + rng.randint(0, 60)
        text, order = f"{big} - ({a} + {b})", [(a, "+", b), (big, "-", a + b)]
    r = value(*order[-1])
    brief = ", ".join(f"{x} {op} {y} = {value(x, op, y)}" for x, op, y in order)
    full = "; ".join(steps(*s) for s in order)
    return Task("expressions", text, ask(rng, text), f"{text} = {r}", f"{brief}.", f"{full}.", "number", r, hard=True)


def word_problem(rng):
    she = rng.choice(("she", "he"))
    name, other = rng.choice(PEOPLE[she]), rng.choice(NAMES)
    thing = plural(rng.choice(OBJECTS))
    a, b, c = rng.randint(5, 60), rng.randint(2, 40), rng.randint(2, 12)
    kind = rng.randrange(4)
    if kind == 0:
        text, order = f"{name} has {a} {thing}. {she.title()} buys {b} more. How many {thing} does {she} have now?", [
            (a, "+", b)
        ]
    elif kind == 1:
        text = f"{name} has {a + b} {thing} and gives {b} of them to {other}. How many {thing} are left?"
        order = [(a + b, "-", b)]
    elif kind == 2:
        text = f"There are {c} boxes with {b} {thing} in each. How many {thing} are there in all?"
        order = [(c, "x", b)]
    else:
        text = (
            f"{name} has {c} bags with {b} {thing} in each. {she.title()} gives {c} {thing} to {other}. "
            f"How many {thing} does {name} keep?"
        )
        order = [(c, "x", b), (c * b, "-", c)]
    r = value(*order[-1])
    brief = ", ".join(f"{x} {op} {y} = {value(x, op, y)}" for x, op, y in order)
    return Task(
        "word problems",
        text,
        text,
        f"{r} {thing}.",
        f"{brief}.",
        "; ".join(steps(*s) for s in order) + ".",
        "number",
        r,
    )


def compare(rng):
    a, b = (rng.randint(0, 10 ** rng.randint(1, 4)) for _ in range(2))
    if rng.random() < 0.3:
        b = max(0, a + rng.randint(-12, 12))
    if a == b:
        b = a + 1
    big = rng.random() < 0.5
    word = rng.choice(["larger", "bigger", "greater"] if big else ["smaller", "less"])
    answer = max(a, b) if big else min(a, b)
    long = f"{a} has {len(str(a))} digits, {b} has {len(str(b))}. "
    sign = ">" if a > b else "<"
    return Task(
        "comparing",
        f"{a}?{b}",
        f"Which is {word}, {a} or {b}?",
        f"{answer} is {word}.",
        f"{a} {sign} {b}.",
        f"{long}{a} {sign} {b}.",
        "number",
        answer,
    )


def sort_steps(items, pick):
    left, text = list(items), []
    while len(left) > 1:
        best = pick(left)
        left.remove(best)
        text.append(f"{best}, left {', '.join(map(str, left))}")
    return "; ".join(text) + f"; {left[0]}"


SORT_UP = [
    "Sort these numbers: {}.",
    "Sort these numbers: {}",
    "Sort {} in ascending order.",
    "Put {} in order, smallest first.",
    "Order these numbers from smallest to largest: {}",
    "Please sort: {}",
    "Sort from low to high: {}",
]
SORT_DOWN = [
    "Sort {} in descending order.",
    "Order these numbers from largest to smallest: {}",
    "Sort these numbers, largest first: {}",
    "Put {} in order, largest first.",
]


def listing(rng, items):
    texts = [str(x) for x in items]
    shape = rng.random()
    if shape < 0.7:
        return ", ".join(texts)
    return " ".join(texts) if shape < 0.85 else ", ".join(texts[:-1]) + " and " + texts[-1]


def sort_numbers(rng):
    top = rng.choice([20, 99, 99, 99, 999, 9999])
    items = rng.sample(range(top + 1), rng.randint(2, 6))
    down = rng.random() < 0.35
    ordered = sorted(items, reverse=down)
    listed = listing(rng, items)
    work = ("largest " if down else "smallest ") + sort_steps(items, max if down else min) + "."
    result = ", ".join(map(str, ordered))
    again = f" Check: {' > '.join(map(str, ordered)) if down else ' < '.join(map(str, ordered))}."
    return Task(
        "sorting",
        f"{sorted(items)}",
        rng.choice(SORT_DOWN if down else SORT_UP).format(listed),
        result,
        work,
        work + again,
        "list",
        result,
    )


def extreme(rng):
    items = rng.sample(range(rng.choice([99, 999])), rng.randint(3, 6))
    big = rng.random() < 0.5
    word, r = ("largest", max(items)) if big else ("smallest", min(items))
    best, text = items[0], f"{items[0]}"
    for x in items[1:]:
        best = max(best, x) if big else min(best, x)
        text += f"; {x}: {best}"
    return Task(
        "comparing",
        f"{sorted(items)}{word}",
        f"What is the {word} of {listing(rng, items)}?",
        f"{r} is the {word}.",
        f"{text}.",
        f"{text}. So the {word} is {r}.",
        "number",
        r,
    )


def spell(rng):
    n = rng.randint(0, 10 ** rng.randint(1, 6) - 1)
    words = spell_number(n)
    thousands = f"{n // 1000} thousand and {n % 1000}: " if n > 999 else f"{n}: "
    if rng.random() < 0.6:
        text = rng.choice(["Write {} in words.", "Spell the number {}.", "How do you say {} in words?", "{} in words?"])
        return Task(
            "spelled numbers", f"spell {n}", text.format(n), f"{words}", f"{thousands}{words}.", "", "text", words
        )
    text = rng.choice(["Write {} in digits.", "Which number is {}?", "Write the number {} with digits."])
    return Task("spelled numbers", f"spell {n}", text.format(words), f"{n}", f"{words}: {n}.", "", "number", n)


def count_range(rng):
    a, n = rng.randint(0, 90), rng.randint(3, 14)
    step = rng.choice([1, 1, 1, 2, 5, 10, -1])
    a += n if step < 0 else 0
    items = [a + step * i for i in range(n)]
    by = "" if step == 1 else f" in steps of {step}" if step > 0 else " backwards"
    result = ", ".join(map(str, items))
    return Task(
        "counting",
        f"{a} {n} {step}",
        f"Count from {a} to {items[-1]}{by}.",
        result,
        f"{n} numbers.",
        "",
        "list",
        result,
    )


def parity(rng):
    n = rng.randint(0, 10 ** rng.randint(1, 5))
    word = "even" if n % 2 == 0 else "odd"
    return Task(
        "comparing",
        f"parity {n}",
        f"Is {n} even or odd?",
        f"{n} is {word}.",
        f"The last digit is {n % 10}: {word}.",
        "",
        "text",
        word,
    )
