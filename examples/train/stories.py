"""Short stories from a small grammar: a cast, a plot, and a choice of words for every step."""

import random
import re
from collections.abc import Iterator

from plots import PLOTS

GIRLS = (
    "Anna Lily Mia Sara Lucy Ella Rosie Nora Ruby Zoe Emma Ivy Molly Daisy Bella Clara Tina Maya "
    "Hana Amina Lola Poppy Greta Nina Suki Wren Olive Pearl Kiki Dora Asha Leila Fern Hazel Juno "
    "Maple Tilly Penny Rita Uma"
)
BOYS = (
    "Tom Ben Max Sam Leo Tim Finn Jack Oscar Hugo Milo Theo Toby Noah Adam Kofi Ravi Omar Luca "
    "Otto Felix Bruno Pip Rolo Hector Arlo Jasper Remy Ned Gus Barney Ollie Teddy Rory Emil Ivan "
    "Juan Kenji Dan Zeke"
)

# kind: where it lives
KINDS = {
    "girl": "a small house|a little yellow house|a house on a hill|a quiet village",
    "boy": "a small house|a farmhouse|a house by the sea|a busy town",
    "rabbit": "a burrow under a hill|a warm burrow|a green meadow",
    "fox": "a den in the forest|a den under an oak tree",
    "bear": "a cave in the woods|a cozy cave",
    "mouse": "a hole in the wall|an old barn|a tiny house under the stairs",
    "cat": "a house with a red door|an old mill|an old farmhouse",
    "dog": "an old farmhouse|a house near the park|a white house",
    "duck": "a nest by the pond|the reeds by a lake",
    "frog": "a pond|a quiet pond full of lilies",
    "squirrel": "a hole in an old oak|a tall pine tree",
    "hedgehog": "a pile of leaves|a garden behind a school",
    "turtle": "a pond near the woods|a garden pond",
    "pig": "an old farmhouse|a barn with a blue roof",
    "elephant": "a wide green valley|the warm grassland",
    "otter": "a den by the river|a house by the river",
    "lamb": "a grassy field|a barn in the hills",
    "pony": "a stable|a barn near the mountains",
    "monkey": "a tall tree in the jungle|the jungle",
    "penguin": "a land of ice and snow|a cave of ice",
}
TRAITS = (
    "young|kind|shy|brave|curious|cheerful|quiet|playful|clever|gentle|funny|merry|friendly|lively"
)
COLORS = "red|blue|green|yellow|purple|orange|pink|white|brown"
TOYS = (
    "ball|kite|toy boat|hat|scarf|drum|toy train|bell|cup|blanket|ribbon|button|top|whistle|"
    "bucket|toy car|lantern|umbrella|bag|key"
)
# One and many.
FOODS = (
    "apple apples|pear pears|cookie cookies|bun buns|plum plums|pancake pancakes|muffin muffins|"
    "peach peaches|sandwich sandwiches|tart tarts|orange oranges|carrot carrots"
)
BAKED = "cookie|bun|pancake|muffin|tart|waffle|pie"
ELDERS = {
    "mom": "she",
    "dad": "he",
    "grandma": "she",
    "grandpa": "he",
    "aunt": "she",
    "uncle": "he",
}
PLACES = (
    "at park|in forest|in garden|in meadow|at river|at pond|on hill|at old mill|at market|"
    "in field|at lake|at bridge|in apple orchard|at playground|on beach"
)
PRONOUNS = {"she": ("she", "her", "her"), "he": ("he", "him", "his")}

OPENINGS = (
    "[Once upon a time|Once|Long ago], there was {hero_kind} named {A}. {Home}",
    "[Once upon a time|A long time ago], in {home}, there lived {hero_kind} named {A}.",
    "There [was once|once was] {hero_kind} [called|named] {A}. [{Home}|]",
    "{A} was {hero_kind} who lived in {home}[ with {his} {elder}|].",
    "In {home}, there lived a {kind} named {A}. {He} was {trait2} and {trait}.",
    "Not far from the {place} lived {hero_kind}. {His} name was {A}. [{He} was {trait2}, too.|]",
    "This is the story of {hero_kind} named {A}. {Home}",
    "{A} lived in {home}. {He} was a {trait} {kind}, and everybody liked {him}.",
)
REQUESTS = (
    "[Please tell|Tell|Can you tell] me a [story|short story|little story|bedtime story] about ",
    "[Please write|Write|Can you write|Could you write] a [story|short story|simple story] about ",
    "I [want|would like] to hear a [story|nice story] about ",
    "[Do you know|Make up] a story about ",
)
SUBJECTS = (
    "a {kind} named {A}",
    "a {kind} called {A}",
    "{hero}",
    "a {kind}",
    "{topic}",
    "{topic}",
    "a {trait} {kind}",
    "a {kind} and a {bkind}",
    "{A} and {B}",
    "{A}",
)
PLAIN_REQUESTS = (
    "Tell me a story.",
    "Please tell me a story.",
    "Can you tell me a story?",
    "Write a short story.",
    "I want to hear a story.",
    "Do you know a good story?",
    "Tell me a bedtime story, please.",
)


# Other words for the same, so that one step seldom reads the same twice.
SYNONYMS = {
    "do not": "don't",
    "did not": "didn't",
    "could not": "couldn't",
    "was not": "wasn't",
    "I am": "I'm",
    "Let us": "Let's",
    "It is": "It's",
    "very": "so",
    "big": "large|great big",
    "began to": "started to",
    "shouted": "called out|yelled",
    "At last": "Finally|In the end",
    "Soon": "Before long",
    "afraid": "scared",
    "Slowly": "Bit by bit",
    "all day": "the whole day",
    "every day": "each day",
    "laughed": "giggled|laughed out loud",
}
SYNONYM = re.compile(rf"\b({'|'.join(SYNONYMS)})\b")


def reword(rng: random.Random, text: str) -> str:
    """Exchange words of `text` for others of `SYNONYMS`, each with a chance of three in ten."""

    def other(match: re.Match[str]) -> str:
        return rng.choice(SYNONYMS[match[0]].split("|")) if rng.random() < 0.3 else match[0]

    return SYNONYM.sub(other, text)


def expand(rng: random.Random, text: str, facts: dict[str, str]) -> str:
    """Choose among the parts of every `[a|b]`, fill in `{facts}`, and mend spaces and articles.

    Args:
        rng: the source of all choices.
        text: words with choices and names of facts.
        facts: what each name stands for.

    Raises:
        KeyError: the text names a fact that is not given.
    """
    while "[" in text:
        text = re.sub(r"\[([^\[\]]*)\]", lambda m: rng.choice(m[1].split("|")), text)
    text = re.sub(r"[ \t]+", " ", text.format_map(facts)).strip()
    text = re.sub(r" (?=[.,!?])", "", re.sub(r" ?\n ?", "\n", text))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def pronouns(subject: str, prefix: str = "") -> dict[str, str]:
    """Give the facts `he`, `him`, `his`, `himself`, `He` and `His`, each after `prefix`.

    Args:
        subject: "he" or "she".
        prefix: begins each name; it takes the capital of `He` and `His` when not empty.
    """
    he, him, his = PRONOUNS[subject]
    facts = {"he": he, "him": him, "his": his, "himself": f"{him}self"}
    facts = {prefix + name: word for name, word in facts.items()}
    return facts | {
        (prefix + "he").capitalize(): he.capitalize(),
        (prefix + "his").capitalize(): his.capitalize(),
    }


def someone(rng: random.Random) -> tuple[str, str]:
    """Draw a name and its pronoun, "he" or "she"."""
    names, subject = rng.choice(((GIRLS, "she"), (BOYS, "he")))
    return rng.choice(names.split()), subject


def cast(rng: random.Random) -> dict[str, str]:
    """Draw the facts of one story: hero `A`, friend `B`, an elder, things, a place, weather."""
    hero, hero_subject = someone(rng)
    friend, friend_subject = someone(rng)
    while friend == hero:
        friend, friend_subject = someone(rng)
    animals = [kind for kind in KINDS if kind not in ("girl", "boy")]
    child = {"she": "girl", "he": "boy"}
    kind = child[hero_subject] if rng.random() < 0.4 else rng.choice(animals)
    bkind = rng.choice([animal for animal in animals if animal != kind])
    elder = rng.choice(list(ELDERS))
    food, foods = rng.choice(FOODS.split("|")).split()
    baked = rng.choice(BAKED.split("|"))
    at, _, place = rng.choice(PLACES.split("|")).partition(" ")
    trait, trait2 = rng.sample(TRAITS.split("|"), 2)
    facts = {
        "A": hero,
        "B": friend,
        "kind": kind,
        "hero": f"a {kind} named {hero}" if kind in child.values() else f"{hero} the {kind}",
        "bkind": bkind,
        "friend": rng.choice(("a {} named {}", "a {} called {}")).format(bkind, friend),
        "home": rng.choice(KINDS[kind].split("|")),
        "trait": trait,
        "trait2": trait2,
        "elder": elder,
        "color": rng.choice(COLORS.split("|")),
        "toy": rng.choice(TOYS.split("|")),
        "food": food,
        "foods": foods,
        "place": place,
        "at": f"{at} the {place}",
        "At": f"{at.capitalize()} the {place}",
        "bake": baked,
        "bakes": f"{baked}s",
        "weather": rng.choice(("sunny", "windy", "cloudy", "warm", "cool", "bright", "fine")),
    }
    facts |= pronouns(hero_subject) | pronouns(friend_subject, "b")
    facts |= pronouns(ELDERS[elder], "e")
    facts["hero_kind"] = rng.choice((f"a {trait} {kind}", f"a {trait} little {kind}"))
    facts["Home"] = f"{facts['He']} lived in {facts['home']}."
    if rng.random() < 0.3:
        facts["Home"] = f"{hero} and {facts['his']} {elder} lived in {facts['home']}."
    facts["Elder"] = f"{facts['His']} {elder}"
    return facts


def story(rng: random.Random) -> tuple[str, str]:
    """Write one story of about 100 to 220 words.

    Returns:
        a request that the story answers, and the story, its paragraphs apart by an empty line.
    """
    plot = rng.choice(PLOTS)
    facts = cast(rng)
    lines = [line.strip() for line in plot.text.strip().splitlines()]
    while match := re.match(r"(\w+) = (.*)", lines[0]):
        facts[match[1]] = rng.choice(match[2].split("|")).strip().format_map(facts)
        del lines[0]
    first, _, rest = "\n".join(lines).strip().partition("\n\n")
    text = f"{rng.choice(OPENINGS)}{rng.choice((' ', chr(10) * 2))}{first}\n\n{rest}"
    facts["topic"] = plot.topic.format_map(facts)
    request = rng.choice(PLAIN_REQUESTS)
    if rng.random() < 0.85:
        ask = rng.choice(REQUESTS)
        ask, subject = (expand(rng, part, facts) for part in (ask, rng.choice(SUBJECTS)))
        mark = "?" if ask.split()[0] in ("Can", "Could", "Do") else "."
        request = expand(rng, f"{ask} {subject}{mark}", facts)
    return request, expand(rng, reword(rng, text), facts)


def stories(rng: random.Random, n: int) -> Iterator[str]:
    """Write `n` documents, about half bare stories and half a request with its story."""
    for _ in range(n):
        request, text = story(rng)
        yield text if rng.random() < 0.5 else f"User: {request}\n\nAssistant: {text}"
