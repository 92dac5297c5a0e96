"""Letters and words, copying over long ranges, memory of earlier turns."""

from task import Task
from words import ANIMALS, CITIES, COLOURS, FRUITS, JOBS, NAMES, OBJECTS, PLACES, WORDS, any_word, invented, plural

TIMES = {0: "no", 1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def quoted(rng, word):
    return rng.choice(['"{}"', '{}', "'{}'", '"{}"']).format(word)


def spaced(word):
    return " ".join(word)


def count_letter(rng):
    word = any_word(rng)
    letter = rng.choice(word) if rng.random() < 0.8 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    n, seen, walk = word.count(letter), 0, []
    for c in word:
        seen += c == letter
        walk.append(f"{c} {seen}")
    text = rng.choice(
        [
            "How many {l}'s are in {w}?",
            "How many times does the letter {l} occur in {w}?",
            "Count the letter {l} in {w}.",
            "How often does {w} contain the letter {l}?",
            "How many {l} are there in {w}?",
        ]
    ).format(l=letter, w=quoted(rng, word))
    answer = f"The letter {letter} occurs {n} time{'' if n == 1 else 's'} in {word}."
    work = f"{', '.join(walk)}."
    return Task(
        "counting letters",
        f"{word} {letter}",
        text,
        answer,
        work,
        f"{word}: {spaced(word)}. {work} So {n}.",
        "number",
        n,
    )


def word_length(rng):
    word = any_word(rng)
    walk = ", ".join(f"{c} {i + 1}" for i, c in enumerate(word))
    text = rng.choice(["How many letters does {} have?", "How long is the word {}?", "Count the letters of {}."])
    return Task(
        "counting letters",
        f"{word} length",
        text.format(quoted(rng, word)),
        f"{word} has {len(word)} letters.",
        f"{walk}.",
        f"{word}: {spaced(word)}. {walk}. So {len(word)}.",
        "number",
        len(word),
    )


def vowels(rng):
    word = any_word(rng)
    seen, walk = 0, []
    for c in word:
        seen += c in "aeiou"
        walk.append(f"{c} {seen}")
    return Task(
        "counting letters",
        f"{word} vowels",
        f"How many vowels are in {quoted(rng, word)}?",
        f"{word} has {seen} vowel{'' if seen == 1 else 's'}.",
        f"{', '.join(walk)}.",
        f"{word}: {spaced(word)}. {', '.join(walk)}. So {seen}.",
        "number",
        seen,
    )


def reverse(rng):
    word = any_word(rng)
    text = rng.choice(["Reverse the word {}.", "Write {} backwards.", "Spell {} backwards.", "What is {} reversed?"])
    back = word[::-1]
    return Task(
        "reversing",
        word,
        text.format(quoted(rng, word)),
        back,
        f"{spaced(word)}; {spaced(back)}.",
        f"{', '.join(f'{i + 1} {c}' for i, c in enumerate(word))}; {', '.join(f'{len(word) - i} {c}' for i, c in enumerate(back))}.",
        "exact",
        back,
    )


def spell_word(rng):
    word = any_word(rng)
    text = rng.choice(["Spell {}.", "Spell the word {}.", "How is {} spelled?"])
    dashed = "-".join(word)
    return Task(
        "reversing", f"spell {word}", text.format(quoted(rng, word)), dashed, f"{spaced(word)}.", "", "exact", dashed
    )


def join_letters(rng):
    word = any_word(rng)
    word = word[::-1] if rng.random() < 0.6 else word
    text = rng.choice(["Join these letters: {}", "Write {} as one word.", "Which word do the letters {} make?"])
    letters = rng.choice([" ", "-", ", "]).join(word)
    return Task("reversing", f"join {word}", text.format(letters), word, f"{spaced(word)}.", "", "exact", word)


def letter_at(rng):
    word = any_word(rng)
    which = rng.choice(["first", "last", "second", "third"])
    c = word[{"first": 0, "last": -1, "second": 1, "third": 2}[which]]
    return Task(
        "letters",
        f"{word} {which}",
        f"What is the {which} letter of {quoted(rng, word)}?",
        c,
        f"{spaced(word)}.",
        "",
        "exact",
        c,
    )


def upper(rng):
    word = any_word(rng)
    return Task(
        "letters",
        f"{word} upper",
        f"Write {quoted(rng, word)} in capital letters.",
        word.upper(),
        f"{spaced(word)}; {spaced(word.upper())}.",
        "",
        "exact",
        word.upper(),
    )


def sort_words(rng):
    items = rng.sample(WORDS, rng.randint(3, 5))
    ordered, left, steps = sorted(items), list(items), []
    while len(left) > 1:
        left.remove(min(left))
        steps.append(f"{sorted(items)[len(steps)]}, left {', '.join(left)}")
    heads = ", ".join(f"{w} {' '.join(w[:4])}" for w in items)
    work = f"{heads}; first {'; '.join(steps)}; {left[0]}."
    text = rng.choice(["Sort these words alphabetically: {}.", "Put these words in alphabetical order: {}"])
    return Task(
        "sorting words",
        f"{ordered}",
        text.format(", ".join(items)),
        ", ".join(ordered),
        work,
        "",
        "list",
        ", ".join(ordered),
    )


KINDS = {"animal": ANIMALS, "fruit": FRUITS, "colour": COLOURS, "job": JOBS, "place": PLACES, "city": CITIES}


def odd_one(rng):
    kind, other = rng.sample(sorted(KINDS), 2)
    odd = rng.choice([w for w in KINDS[other] if w not in KINDS[kind]])
    items = rng.sample([w for w in KINDS[kind] if w != odd], 3) + [odd]
    rng.shuffle(items)
    kinds = ", ".join(f"{w} {other if w == odd else kind}" for w in items)
    return Task(
        "words",
        f"{sorted(items)}",
        f"Which word does not belong: {', '.join(items)}?",
        f"{odd}: it is {'an' if other[0] in 'aeiou' else 'a'} {other}, the others are {plural(kind)}.",
        f"{kinds}.",
        "",
        "text",
        odd,
    )


def kind_of(rng):
    kind = rng.choice(sorted(KINDS))
    word = rng.choice(KINDS[kind])
    if rng.random() < 0.5:
        return Task(
            "words",
            f"kind {word}",
            f"What kind of thing is {word}?",
            f"{word} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}.",
            f"{word}: {kind}.",
            "",
            "text",
            kind,
        )
    n = rng.randint(2, 5)
    items = rng.sample(KINDS[kind], n)
    return Task(
        "words",
        f"list {items}",
        f"Name {TIMES[n]} {plural(kind)}.",
        f"{', '.join(items[:-1])} and {items[-1]}.",
        f"{TIMES[n].title()} {plural(kind)}.",
        "",
        "free",
        None,
    )


# ---- long ranges ----


def sentence_of(rng):
    name, thing, place, colour = rng.choice(NAMES), rng.choice(OBJECTS), rng.choice(PLACES), rng.choice(COLOURS)
    return rng.choice(
        [
            f"{name} left the {colour} {thing} in the {place}.",
            f"The {place} is closed on weekdays.",
            f"{name} saw a {colour} {rng.choice(ANIMALS)} near the {place}.",
            f"Nobody knew where {name} had put the {thing}.",
            f"The {thing} in the {place} is {colour}.",
            f"{name} works as a {rng.choice(JOBS)} in {rng.choice(CITIES)}.",
            f"It rained in {rng.choice(CITIES)} all day.",
            f"{name} bought {rng.randint(2, 90)} {plural(thing)} in {rng.choice(CITIES)}.",
        ]
    )


def repeat_text(rng):
    text = " ".join(sentence_of(rng) for _ in range(rng.choice([1, 2, 3, 4, 6, 9, 14, 20])))
    ask = rng.choice(
        [
            "Repeat this text exactly: {}",
            "Copy the following text word for word: {}",
            "Repeat: {}",
            "Say this again, unchanged: {}",
        ]
    )
    return Task("copying", text, ask.format(text), text, "Copy the text.", "", "exact", text)


def code_book(rng):
    """Codes are listed, then one is asked for: up to a few hundred tokens back."""
    names = rng.sample(NAMES, rng.choice([3, 5, 8, 12, 20, 30]))
    codes = {n: (str(rng.randint(1000, 99999)) if rng.random() < 0.6 else invented(rng)) for n in names}
    listing = rng.choice([" ", "\n"]).join(f"The code of {n} is {codes[n]}." for n in names)
    who = rng.choice(names)
    filler = " ".join(sentence_of(rng) for _ in range(rng.choice([0, 0, 3, 8])))
    text = f"{listing} {filler}".strip() + f"\n\nWhat is the code of {who}?"
    return Task(
        "looking up",
        listing + who,
        text,
        f"The code of {who} is {codes[who]}.",
        f"{who}: {codes[who]}.",
        "",
        "text",
        codes[who],
    )


def needle(rng):
    code, thing = str(rng.randint(100, 99999)), rng.choice(OBJECTS)
    hay = [sentence_of(rng) for _ in range(rng.choice([4, 8, 16, 24, 48]))]
    hay.insert(rng.randrange(len(hay) + 1), f"The secret number of the {thing} is {code}.")
    text = " ".join(hay) + f"\n\nWhat is the secret number of the {thing}?"
    return Task(
        "looking up", text, text, f"The secret number of the {thing} is {code}.", f"{thing}: {code}.", "", "text", code
    )


def remember(rng):
    """A fact of an earlier turn, with other talk between."""
    name = rng.choice(NAMES)
    slot, fact, say = rng.choice(
        [
            ("name", name, f"My name is {name}."),
            ("favourite colour", rng.choice(COLOURS), None),
            ("favourite animal", rng.choice(ANIMALS), None),
            ("home town", rng.choice(CITIES), None),
            ("job", rng.choice(JOBS), None),
        ]
    )
    say = say or f"My {slot} is {fact}."
    turns = [
        (
            rng.choice(["", "Hello! ", "Hi. ", "Please remember: "]) + say,
            rng.choice(["Nice to meet you!", "I will remember that.", "Good to know."]),
        )
    ]
    for _ in range(rng.randint(0, 2)):
        text = sentence_of(rng)
        turns.append((f"Repeat: {text}", text))
    return Task(
        "remembering",
        f"{slot}{fact}{turns[1:]}",
        f"What is my {slot}?",
        f"Your {slot} is {fact}.",
        f"The user said: {say}",
        "",
        "text",
        fact,
        turns=turns,
    )
