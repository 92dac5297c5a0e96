"""Short stories from a grammar: a hero, a wish or a loss, attempts, a helper, an end. And plain documents."""

from task import Task
from tasks_data import person, tell
from tasks_dates import ordinal_date, random_day
from tasks_text import sentence_of
from words import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLOURS,
    FOODS,
    JOBS,
    NAMES,
    OBJECTS,
    PEOPLE,
    PLACES,
    article,
    plural,
    spell_number,
)

TIMES = [
    "Once upon a time",
    "Long ago",
    "One winter",
    "Every summer",
    "In the days before clocks",
    "Not so long ago",
    "One spring",
    "Many years ago",
]
WEATHER = [
    "The wind was cold that day",
    "It had rained all night",
    "The sun had just come up",
    "Snow lay on the roofs",
    "A thick fog covered everything",
    "The stars were already out",
    "It was the warmest day of the year",
    "Leaves were falling everywhere",
]
FEELINGS = ["sad", "worried", "restless", "lonely", "afraid", "angry", "confused", "hopeful"]
MORALS = [
    "Since that day {name} has never been afraid to ask for help.",
    "From then on the two of them were friends.",
    "And {name} understood that a small light is enough in a dark night.",
    "And if you go there today, you may still meet them.",
    "{name} slept well that night.",
    "Nobody ever forgot that day.",
    "Sometimes the long way home is the best one, said {name}.",
    "After that {name} always shared what {she} had.",
    "And that was the end of the trouble.",
    "The next morning everything looked new to {name}.",
]


class Scene:
    """One story's choices, so that names and pronouns agree throughout."""

    def __init__(self, rng, hero=None, thing=None, place=None):
        self.rng, self.she = rng, rng.choice(("she", "he"))
        names = rng.sample(PEOPLE[self.she], 2)
        self.hero = hero or rng.choice(ANIMALS + JOBS)
        self.helper = rng.choice([a for a in ANIMALS if a != self.hero])
        self.slots = {
            "name": names[0],
            "she": self.she,
            "She": self.she.title(),
            "her": {"she": "her", "he": "his"}[self.she],
            "him": {"she": "her", "he": "him"}[self.she],
            "hero": self.hero,
            "helper": self.helper,
            "thing": thing or rng.choice(OBJECTS),
            "place": place or rng.choice(PLACES),
            "other": rng.choice(PLACES),
            "colour": rng.choice(COLOURS),
            "food": rng.choice(FOODS),
            "feeling": rng.choice(FEELINGS),
            "time": rng.choice(TIMES),
            "a_hero": article(rng.choice(ADJECTIVES) + " " + self.hero),
            "weather": rng.choice(WEATHER),
            "a_helper": article(rng.choice(ADJECTIVES) + " " + self.helper),
            "n": spell_number(rng.randint(2, 12)),
        }
        while self.slots["other"] == self.slots["place"]:
            self.slots["other"] = rng.choice(PLACES)

    def say(self, *options):
        text = self.rng.choice(options).format(**self.slots)
        return text[0].upper() + text[1:]


def loss(s):
    """The hero has lost something and finds it again."""
    yield s.say(
        "{time} {a_hero} named {name} lived near the {place}.",
        "{time} there was {a_hero} called {name}, who lived in a house by the {place}.",
        "In a little house by the {place} lived {a_hero} named {name}.",
    )
    yield s.say(
        "{She} owned only one thing that mattered to {him}: a {colour} {thing}.",
        "More than anything {she} loved {her} {colour} {thing}.",
        "{name} had {a} {thing} that {her} grandmother had left behind.".replace(
            "{a}", article(s.slots["thing"]).split()[0]
        ),
    )
    yield s.say(
        "One morning the {thing} was gone.",
        "But one evening {she} came home and the {thing} was not there.",
        "Then, on a windy night, the {thing} disappeared.",
    )
    yield s.say(
        "{weather}, and {name} felt {feeling}.",
        "{name} looked under the bed, behind the door and in the cellar, but found nothing.",
        "{weather}, but {name} put on {her} boots and went out to search.",
    )
    yield s.say(
        "{She} walked to the {other} and asked everyone {she} met.",
        "First {she} went to the {other}, but nobody there had seen it.",
        "For {n} days {she} searched the {other}, and every evening {she} came back with empty hands.",
    )
    yield s.say(
        "On the way {she} met {a_helper}.",
        "There, under a tree, sat {a_helper}.",
        "At last {a_helper} stopped {him} on the road.",
    )
    yield s.say(
        '"Why do you look so {feeling}?" asked the {helper}.',
        '"What are you looking for?" asked the {helper}.',
        'The {helper} listened to the whole story and nodded.',
    )
    yield s.say(
        '"I have seen {a} {colour} {thing} by the {other}," said the {helper}. "Come with me."'.replace("{a}", "a"),
        '"Last night I heard something fall near the {place}," said the {helper}. "Let us look there together."',
    )
    yield s.say(
        "They walked until the moon rose, and there it was: the {thing}, lying in the grass.",
        "Together they searched every corner, and in the end the {helper} pulled the {thing} out of the mud.",
        "They found the {thing} between two stones, wet but whole.",
    )
    yield s.say(
        "{name} laughed and gave the {helper} some {food}.",
        "{name} thanked the {helper} and invited everyone to eat {food}.",
        "That evening they ate {food} by the fire and told each other stories.",
    )


def journey(s):
    """The hero wants to see a place."""
    yield s.say(
        "{time} {a_hero} named {name} dreamed of seeing the {other}.",
        "{name} was {a_hero} who had never left the {place}.",
        "{time} {a_hero} called {name} heard a song about the {other}.",
    )
    yield s.say(
        "Everyone at the {place} said that the way was too long.",
        '"It is too far," said the others, "and nobody has ever come back."',
        "Nobody at the {place} knew the way.",
    )
    yield s.say(
        "But {name} packed {her} {thing} and some {food} and set out before sunrise.",
        "{She} took nothing but a {thing} and a little {food}.",
        "So one night {she} took {her} {thing} and left.",
    )
    yield s.say(
        "{weather}, and the road was empty.",
        "{weather}. {name} walked and sang to keep warm.",
        "After {n} miles {her} feet hurt, and {she} felt {feeling}.",
    )
    yield s.say(
        "At a crossing {she} met {a_helper} who was {feeling}.",
        "In the evening {a_helper} came out of the dark.",
        "Beside a river sat {a_helper}.",
    )
    yield s.say(
        '"I am hungry," said the {helper}, and {name} shared the {food}.',
        '"May I come with you?" asked the {helper}. "Of course," said {name}.',
        '"I cannot cross the water alone," said the {helper}, so {name} helped.',
    )
    yield s.say(
        "From there they went on together, and the way seemed shorter.",
        "The {helper} knew a path that was on no map.",
        "In return the {helper} showed {him} a hidden path.",
    )
    yield s.say(
        "On the third day they stood before the {other}.",
        "When the sun came up again, they saw the {other} below them.",
        "And then, behind the last hill, lay the {other}.",
    )
    yield s.say(
        "It was smaller than in the song, but {name} had never seen anything so beautiful.",
        "It was {colour} from one end to the other, and very quiet.",
        "{name} put down the {thing} and said nothing for a long time.",
    )
    yield s.say(
        "They stayed for {n} days, and then they walked home and told everyone.",
        "Later {she} built a little house there, with a {colour} door.",
        "When {she} came home, everyone wanted to hear about it.",
    )


def contest(s):
    """A problem of the whole place, solved by an idea."""
    yield s.say(
        "{time} the {place} was dark and nobody knew why.",
        "{time} there was no {food} left at the {place}.",
        "{time} the well at the {place} ran dry.",
    )
    yield s.say(
        "{name}, {a_hero}, wanted to help.",
        "Among those who lived there was {a_hero} named {name}.",
        "Only {name}, {a_hero}, did not complain.",
    )
    yield s.say(
        "The {helper} said that somebody strong was needed.",
        '"We need somebody who is strong," said the {helper}.',
        'The old {helper} shook its head. "Nothing can be done," it said.',
    )
    yield s.say(
        "{name} was not strong, but {she} had an idea.",
        "{name} thought about it for {n} nights.",
        "{She} sat down with a {thing} and thought.",
    )
    yield s.say(
        "{She} took the {thing} from the wall and went to the {other}.",
        "With a {colour} {thing} {she} walked to the {other}.",
        "Then {she} asked everyone to bring a {thing}.",
    )
    yield s.say(
        "{weather}, and it took all day.",
        "It was hard work, and more than once {she} felt {feeling}.",
        "At first the others laughed, but then they came to help.",
    )
    yield s.say(
        "Step by step, they carried everything that was needed from the {other}.",
        "They worked side by side until the evening.",
        "By midnight even the {helper} was helping.",
    )
    yield s.say(
        "And in the morning the trouble was over.",
        "When the sun rose, the {place} looked as it always had.",
        "The next day there was enough for everyone.",
    )
    yield s.say(
        "The {helper} bowed before {name}.",
        '"I was wrong," said the {helper}, and {name} smiled.',
        "Everyone danced, and the {helper} played the drum.",
    )
    yield s.say(
        "They kept the {thing} in the middle of the {place}, so that nobody would forget.",
        "To thank {him}, they gave {name} a {colour} {thing}.",
        "That night they shared {food} until nothing was left.",
    )


PLOTS = {"a lost thing": loss, "a journey": journey, "a problem and an idea": contest}


def story(rng, hero=None, thing=None, place=None):
    """(plan, text)"""
    plot = rng.choice(sorted(PLOTS))
    s = Scene(rng, hero, thing, place)
    lines = list(PLOTS[plot](s))
    keep = [i for i in range(len(lines)) if i < 3 or i > 7 or rng.random() < 0.85]
    text = [lines[i] for i in keep] + [s.say(*MORALS)]
    parts = [text[:3], text[3:-3], text[-3:]] if rng.random() < 0.5 else [text]
    plan = f"A story of {plot}. Hero: {s.slots['name']}, {article(s.hero)}. Helper: {article(s.helper)}. Place: {s.slots['place']}. Thing: {s.slots['thing']}."
    return plan, "\n\n".join(" ".join(p) for p in parts)


def tell_story(rng):
    hero = rng.choice(ANIMALS + JOBS)
    thing = rng.choice(OBJECTS) if rng.random() < 0.3 else None
    place = rng.choice(PLACES) if rng.random() < 0.2 else None
    asked = (
        f"about {article(hero)}"
        + (f" and {article(thing)}" if thing else "")
        + (f" in {'the ' + place}" if place else "")
    )
    text = rng.choice(
        [
            "Tell me a story {}.",
            "Tell me a short story {}.",
            "Write a story {}.",
            "Please write a short story {}.",
            "I would like to hear a story {}.",
            "A story {}, please.",
        ]
    )
    if rng.random() < 0.15:
        hero = thing = place = None
        asked = "now"
        text = rng.choice(
            [
                "Tell me a story.",
                "Tell me a short story.",
                "Write a story.",
                "Do you know a story?",
                "Another story, please.",
            ]
        )
    plan, told = story(rng, hero, thing, place)
    return Task("stories", told, text.format(asked), told, "A story with a beginning and an end.", plan, "free")


def document(rng):
    """Plain text, without the chat format."""
    kind = rng.randrange(5)
    if kind < 2:
        title = f"The {rng.choice(ADJECTIVES).title()} {rng.choice(ANIMALS).title()}" if rng.random() < 0.3 else ""
        return (title + "\n\n" if title else "") + story(rng)[1]
    if kind == 2:
        people = []
        for _ in range(rng.randint(2, 5)):
            people.append(person(rng, [p[0] for p in people]))
        return " ".join(tell(rng, *p) for p in people)
    if kind == 3:
        return f"{ordinal_date(random_day(rng))}. " + " ".join(sentence_of(rng) for _ in range(rng.randint(4, 15)))
    things = rng.sample(OBJECTS, rng.randint(2, 5))
    return f"Notes from {rng.choice(CITIES)}\n\n" + "\n".join(
        f"- {rng.randint(2, 40)} {plural(t)}, {rng.choice(COLOURS)}, for {rng.choice(NAMES)}" for t in things
    )
