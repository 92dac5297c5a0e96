"""The closed world's words, written for this corpus."""

PEOPLE = {
    "she": """Anna Mia Clara Nora Ida Ella Ruth Lena Sara Maya Zoe Ivy Rosa Hana Emma Julia Alice Greta Leila Amara
        Freya Olga Tessa Wanda Vera Yuki Priya Carmen Molly Edith""".split(),
    "he": """Tom Ben Max Paul Karl Omar Leo Finn Hugo Adam Ravi Jonas Oscar Peter Felix Simon Marco Ivan Noah Otto
        Kenji Bruno Dario Emil Frank George Henry Jack Lucas Walter""".split(),
}
NAMES = PEOPLE["she"] + PEOPLE["he"]
CITIES = """Paris London Rome Oslo Berlin Madrid Lisbon Vienna Prague Dublin Athens Cairo Tokyo Lima Boston Chicago
    Sydney Toronto Delhi Seoul Bergen Lyon Porto Milan Geneva Zurich Helsinki Warsaw Hamburg Munich Kyoto Nairobi
    Havana Quito Denver Austin Seattle Montreal Krakow Venice""".split()
ANIMALS = """fox rabbit owl bear mouse cat dog hedgehog otter badger wolf deer squirrel crow sparrow turtle frog
    goat donkey horse duck goose swan heron beaver mole lynx seal whale dolphin penguin robin magpie lizard snail
    bee ant spider butterfly tiger lion monkey elephant giraffe zebra camel parrot pigeon falcon hare""".split()
FRUITS = """apple pear plum cherry peach lemon orange banana grape melon fig mango apricot blueberry strawberry
    raspberry kiwi lime coconut pineapple""".split()
FOODS = """bread cheese honey soup rice butter cake biscuit pancake noodle onion carrot potato tomato pumpkin pepper
    garlic mushroom walnut almond salad pudding jam tea coffee milk juice sugar salt cinnamon""".split()
OBJECTS = """lantern key box map compass bell book candle rope basket letter mirror ring clock kite drum flute
    bucket ladder umbrella button feather stone shell coin hammer needle blanket bottle pencil notebook cup spoon
    chair table lamp carpet window door boat wagon bicycle engine telescope camera radio violin piano puzzle""".split()
PLACES = """forest village harbour mountain valley river garden meadow island castle library market mill farm bridge
    lighthouse station school orchard beach cave tower workshop bakery museum hill lake field""".split()
COLOURS = "red blue green yellow black white brown grey purple pink silver golden".split()
JOBS = """baker teacher doctor farmer sailor painter carpenter gardener tailor miller smith nurse pilot writer
    singer librarian fisher cook driver engineer judge shepherd postman clockmaker""".split()
ADJECTIVES = """small old quiet brave clever kind tired happy curious careful gentle proud hungry shy cheerful lonely
    patient stubborn young tall bright warm cold soft heavy light round wooden broken hidden strange lovely dusty
    shiny narrow deep empty famous simple""".split()
VERBS = """walk run jump swim climb sleep dream sing dance laugh whisper listen watch follow carry build paint write
    read cook bake plant gather mend open close find lose remember forget wonder travel wander return begin finish
    share borrow promise explain answer question count measure polish repair discover""".split()
MORE = """water fire earth winter summer spring autumn morning evening night shadow silver thunder storm cloud rain
    snow wind sunlight moon star planet ocean desert street corner kitchen garden cellar attic blossom branch root
    leaf bark seed petal thorn berry harvest basket barrel anchor sail captain voyage treasure island journey number
    letter word sentence language grammar story poem chapter machine motor wheel handle pocket jacket sweater mitten
    scarf boot sandal pillow mattress cushion curtain chimney fireplace bonfire picnic holiday birthday festival
    market merchant shopkeeper customer bargain penny dollar balance account address message signal channel
    computer keyboard screen memory process thread token model expert router vector matrix tensor kernel buffer
    cache pattern symbol digit science history music rhythm melody chorus trumpet guitar theatre curtain audience
    mathematics geometry triangle circle square rectangle distance direction northern southern eastern western
    banana mississippi bookkeeper committee balloon coffee parallel successful address necessary occurrence
    rhinoceros hippopotamus crocodile alligator kangaroo caterpillar dragonfly grasshopper woodpecker nightingale
    different difficult important possible terrible wonderful beautiful dangerous delicious comfortable excellent
    yesterday tomorrow together sometimes everything nothing somewhere afternoon midnight century minute second
    mountain waterfall volcano glacier canyon peninsula continent horizon satellite telescope microscope laboratory
    experiment invention discovery knowledge wisdom courage patience friendship kindness happiness adventure mystery
    secret riddle puzzle answer solution problem reason purpose success failure victory""".split()
WORDS = sorted(set(ANIMALS + FRUITS + FOODS + OBJECTS + PLACES + COLOURS + JOBS + ADJECTIVES + VERBS + MORE))

WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen""".split()
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()


def spell_number(n):
    """0 to 999,999 in English words: 342 is "three hundred and forty-two"."""
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    if n < 1000:
        return ONES[n // 100] + " hundred" + (" and " + spell_number(n % 100) if n % 100 else "")
    rest = n % 1000
    joint = " and " if 0 < rest < 100 else " "
    return spell_number(n // 1000) + " thousand" + (joint + spell_number(rest) if rest else "")


def plural(noun):
    if noun.endswith(("s", "x", "ch", "sh")) or noun in ("mango", "potato", "tomato"):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return {"mouse": "mice", "goose": "geese", "deer": "deer", "wolf": "wolves"}.get(noun, noun + "s")


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def invented(rng):
    """A word that is in no list, of two to four syllables."""
    onset, vowel = (
        "b c d f g h j k l m n p r s t v w z br cl dr fl gr pl sh st th tr".split(),
        "a e i o u ee oo ai".split(),
    )
    coda = ["", "", "", "n", "r", "l", "s", "t", "m", "ck", "nd"]
    return "".join(rng.choice(onset) + rng.choice(vowel) + rng.choice(coda) for _ in range(rng.randint(2, 4)))


def any_word(rng):
    return invented(rng) if rng.random() < 0.4 else rng.choice(WORDS)
