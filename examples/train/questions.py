"""Simple questions with short answers, and short friendly talks, as `User:` / `Assistant:` text."""

import random
from collections.abc import Callable, Iterator

from stories import BOYS, COLORS, GIRLS, expand, pronouns, someone

Turn = tuple[str, str]

COLOR_OF = (
    "the sky on a clear day:blue|grass:green|the sun:yellow|snow:white|a ripe banana:yellow|"
    "milk:white|a ripe tomato:red|a strawberry:red|coal:black|a carrot:orange|a leaf in "
    "summer:green|a lemon:yellow|a fire truck:red|a polar bear:white|a frog:green|a crow:black|a "
    "pumpkin:orange|chocolate:brown|the night sky:black|a cloud on a sunny day:white"
)
SOUND_OF = (
    "cow:moo|dog:woof|cat:meow|duck:quack|sheep:baa|pig:oink|lion:roar|mouse:squeak|owl:hoot|"
    "bee:buzz|rooster:cock-a-doodle-doo|snake:hiss|horse:neigh|frog:croak"
)
HOME_OF = (
    "bird:in a nest|bee:in a hive|fish:in the water|rabbit:in a burrow|bear:in a cave|spider:in "
    "a web|horse:in a stable|fox:in a den|whale:in the sea|ant:under the ground"
)
BABY_OF = (
    "dog:puppy|cat:kitten|cow:calf|sheep:lamb|horse:foal|duck:duckling|hen:chick|goat:kid|"
    "bear:cub|frog:tadpole|pig:piglet|lion:cub|goose:gosling|deer:fawn"
)
LEGS_OF = (
    "dog:four|cat:four|bird:two|spider:eight|ant:six|cow:four|horse:four|duck:two|bee:six|fish:no"
)
OPPOSITE_OF = (
    "hot:cold|big:small|up:down|day:night|happy:sad|fast:slow|open:closed|wet:dry|full:empty|"
    "old:young|left:right|hard:soft|long:short|dark:light|loud:quiet|clean:dirty|high:low|in:out|"
    "good:bad|yes:no|early:late|near:far|first:last|black:white"
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
SEASONS = ("spring", "summer", "fall", "winter")
NUMBERS = (
    *("zero", "one", "two", "three", "four", "five"),
    *("six", "seven", "eight", "nine", "ten"),
)
RHYMES = (
    "cat:hat|dog:frog|sun:run|bee:tree|moon:spoon|cake:lake|star:car|mouse:house|ball:wall|"
    "bed:red|king:ring|boat:coat|fox:box|night:light|rain:train|bear:chair"
)
PLURALS = (
    "cat:cats|mouse:mice|foot:feet|child:children|tooth:teeth|man:men|woman:women|goose:geese|"
    "box:boxes|baby:babies|leaf:leaves|sheep:sheep|fox:foxes|bus:buses|dog:dogs|berry:berries"
)
BODY = (
    "see:eyes|hear:ears|smell:nose|walk:feet|hold things:hands|chew:teeth|taste:tongue|think:brain"
)
USES = (
    "a knife:cut food|a cup:drink|a bed:sleep|a pencil:write|a broom:sweep the floor|an "
    "umbrella:stay dry in the rain|a key:open a lock|soap:wash your hands|scissors:cut paper|a "
    "spoon:eat soup|a clock:tell the time|a towel:dry yourself|a lamp:make light|a "
    "toothbrush:brush your teeth|a chair:sit|a hammer:hit nails|a comb:comb your hair"
)
JOBS = (
    "puts out fires:firefighter|helps sick people:doctor|teaches children at school:teacher|"
    "bakes bread:baker|grows food on a farm:farmer|flies a plane:pilot|fixes teeth:dentist|cooks "
    "food in a restaurant:cook|catches fish:fisher|helps sick animals:vet|paints pictures:painter"
)
KIND_OF = (
    "an apple:fruit|a banana:fruit|a pear:fruit|a carrot:vegetable|a potato:vegetable|a "
    "dog:animal|a horse:animal|a rose:flower|a tulip:flower|red:color|blue:color|a robin:bird|an "
    "owl:bird|an ant:insect|a bee:insect|a shark:fish|Monday:day|July:month"
)
SIZES = "an ant|a mouse|a cat|a sheep|a horse|an elephant|a whale"
SHAPES = (
    "How many sides does a triangle have?:A triangle has three sides.|How many sides does a "
    "square have?:A square has four sides.|What shape is a ball?:A ball is round.|What shape is "
    "a wheel?:A wheel is round.|How many corners does a square have?:A square has four corners."
)
# question:answer
FACTS = (
    "What do bees make?:Bees make honey.|Where does milk come from?:Milk comes from cows.|Where "
    "do eggs come from?:Eggs come from hens.|What is the sea made of?:The sea is made of salty "
    "water.|What do cows eat?:Cows eat grass.|What do rabbits like to eat?:Rabbits like to eat "
    "carrots.|What is ice?:Ice is frozen water.|What falls from the clouds when it rains?:Water "
    "falls from the clouds.|What shines in the sky during the day?:The sun shines during the "
    "day.|What can you see in the sky at night?:You can see the moon and the stars.|Is fire hot "
    "or cold?:Fire is hot.|Is ice hot or cold?:Ice is cold.|Is snow hot or cold?:Snow is cold.|"
    "What do plants need to grow?:Plants need water and light.|What do you wear on your "
    "feet?:You wear shoes on your feet.|What do you wear on your head?:You wear a hat on your "
    "head.|Can birds fly?:Yes, most birds can fly.|Can fish swim?:Yes, fish can swim.|Can a dog "
    "fly?:No, a dog cannot fly.|What do you call your mother's mother?:She is your grandmother.|"
    "What do you call your father's brother?:He is your uncle.|What is bread made from?:Bread is "
    "made from flour.|What is cheese made from?:Cheese is made from milk.|Where do fish "
    "live?:Fish live in the water.|How many days are in a week?:There are seven days in a week.|"
    "How many months are in a year?:There are twelve months in a year.|How many fingers do you "
    "have on one hand?:A hand has five fingers.|How many eyes does a cat have?:A cat has two "
    "eyes.|How many wheels does a bike have?:A bike has two wheels.|How many wheels does a car "
    "have?:A car has four wheels.|When do people sleep?:Most people sleep at night.|When do we "
    "eat breakfast?:We eat breakfast in the morning.|What do we need when it rains?:We need an "
    "umbrella or a coat.|What is a mountain?:A mountain is a very high hill.|What is a river?:A "
    "river is a long stream of water.|What is an island?:An island is land with water all around "
    "it.|What comes from the sun?:Light and heat come from the sun.|Where can you read many "
    "books?:You can read many books in a library."
)
# A greeting, a question about the speaker or a feeling, and the kind reply.
SMALL_TALK = (
    ("[Hi|Hello|Hey|Hi there|Good day][!|.]", "[Hello|Hi]! [How are you?|How can I help you?]"),
    ("Good morning[!|.]", "Good morning! [How are you today?|Did you sleep well?]"),
    ("[How are you|How do you do|How are you today]?", "I am [fine|well], thank you. How are you?"),
    (
        "[What is your name|What's your name|Who are you]?",
        "My name is Wim. I am a small language model.",
    ),
    (
        "[What are you|Are you a person|Are you a robot|Are you human]?",
        "I am a small language model. I like to tell stories.",
    ),
    (
        "What [can you do|do you like to do|do you like]?",
        "I like to tell stories and answer simple questions.",
    ),
    ("[Thanks|Thank you|Thank you very much][!|.]", "[You are welcome|I am glad to help]!"),
    (
        "[Bye|Goodbye|See you later|I have to go now][!|.]",
        "Goodbye! [See you soon.|Have a nice day.]",
    ),
    ("Good night[!|.]", "Good night! Sleep well."),
    (
        "I [am|feel] [sad|unhappy|down][ today|].",
        "I am sorry that you are sad. Do you want to tell me about it?",
    ),
    ("I [am|feel] [happy|great][ today|][!|.]", "That is wonderful! What made you happy?"),
    ("I am [tired|sleepy].", "Then you should rest a little."),
    ("I am hungry.", "You could eat an apple or some bread."),
    ("I am [scared|afraid][ of the dark|].", "That is all right. You can hold a friend's hand."),
    ("I am bored.", "I can tell you a story. Would you like that?"),
    ("I am [sick|ill].", "I am sorry. I hope you feel better soon."),
    (
        "What is my [name|favorite color|favorite food|dog's name]?",
        "I do not know. You have not told me.",
    ),
    (
        "[How old am I|Where do I live|What did I eat today|What am I holding]?",
        "I do not know. You have not told me.",
    ),
)
# Facts and, for each, a question with its answer.
THINGS = "ball|kite|hat|cup|bag|toy car|toy boat|book|coat|drum|doll|spoon|lamp|ring|key|scarf"
SPOTS = (
    "on the table|under the bed|in the garden|in the kitchen|behind the door|under a tree|by the "
    "river|in the box|on the chair|near the window|at school|in the park|in the barn"
)
PETS = "cat|dog|rabbit|goat|turtle|parrot|duck|pig|lamb|hamster|frog|horse"
MEALS = "apples|soup|bread|rice|cake|pears|noodles|carrots|cheese|eggs|plums|beans|honey|nuts"
DOES = "swim|sing|read books|play ball|draw|dance|cook|climb trees|fly kites|paint|run|bake"
PASSAGES = (
    (
        "{A} has a {color} {thing}.",
        (
            ("What color is {A}'s {thing}?", "{A}'s {thing} is {color}."),
            ("Who has a {thing}?", "{A} has a {thing}."),
            ("What does {A} have?", "{A} has a {color} {thing}."),
        ),
    ),
    (
        "{A} [has|owns] a {color} {thing}. {B} [has|owns] a {color2} {thing2}.",
        (
            ("Who has the {color} {thing}?", "{A} has the {color} {thing}."),
            ("Who has the {color2} {thing2}?", "{B} has the {color2} {thing2}."),
            ("What color is {B}'s {thing2}?", "{B}'s {thing2} is {color2}."),
            ("What color is {A}'s {thing}?", "{A}'s {thing} is {color}."),
        ),
    ),
    (
        "{A} put the {thing} {spot}. Then {he} [went home|went to bed|ate {meal}].",
        (
            ("Where is the {thing}?", "The {thing} is {spot}."),
            ("Who put the {thing} {spot}?", "{A} put it there."),
            ("What did {A} put {spot}?", "{A} put the {thing} {spot}."),
        ),
    ),
    (
        "{A} has {n} {pet}s. {B} has {m} {pet2}s.",
        (
            ("How many {pet}s does {A} have?", "{A} has {n} {pet}s."),
            ("How many {pet2}s does {B} have?", "{B} has {m} {pet2}s."),
            ("Who has {pet2}s?", "{B} has {m} {pet2}s."),
        ),
    ),
    (
        "{A} has a {pet} named {B}. {B} likes to sleep {spot}.",
        (
            ("What is the name of {A}'s {pet}?", "The {pet} is named {B}."),
            ("What kind of animal is {B}?", "{B} is a {pet}."),
            ("Where does {B} like to sleep?", "{B} likes to sleep {spot}."),
            ("Who has a {pet}?", "{A} has a {pet}."),
        ),
    ),
    (
        "{A} likes {meal}. {B} likes {meal2}.",
        (
            ("What does {A} like?", "{A} likes {meal}."),
            ("What does {B} like?", "{B} likes {meal2}."),
            ("Who likes {meal2}?", "{B} likes {meal2}."),
            ("Who likes {meal}?", "{A} likes {meal}."),
        ),
    ),
    (
        "{A} likes to {do}. {His} friend {B} likes to {do2}.",
        (
            ("What does {A} like to do?", "{A} likes to {do}."),
            ("Who likes to {do2}?", "{B} likes to {do2}."),
            ("What is the name of {A}'s friend?", "{A}'s friend is named {B}."),
        ),
    ),
    (
        "{A} went to [see|visit] {B} on {day}. They ate {meal}[ together|].",
        (
            ("When did {A} visit {B}?", "{A} visited {B} on {day}."),
            ("What did they eat?", "They ate {meal}."),
            ("Who did {A} visit?", "{A} visited {B}."),
        ),
    ),
    (
        "{A} lost {his} {color} {thing}. {B} found it {spot}.",
        (
            ("What did {A} lose?", "{A} lost {his} {color} {thing}."),
            ("Who found the {thing}?", "{B} found it."),
            ("Where was the {thing}?", "It was {spot}."),
            ("What color was the {thing}?", "The {thing} was {color}."),
        ),
    ),
    (
        "The {pet} is {spot}. The {pet2} is {spot2}.",
        (
            ("Where is the {pet}?", "The {pet} is {spot}."),
            ("Where is the {pet2}?", "The {pet2} is {spot2}."),
        ),
    ),
    (
        "{A} gave the {thing} to {B}. {B} was [happy|glad] and said thank you.",
        (
            ("Who has the {thing} now?", "{B} has the {thing}."),
            ("Who gave the {thing} to {B}?", "{A} gave it to {B}."),
            ("What did {A} give to {B}?", "{A} gave the {thing} to {B}."),
        ),
    ),
    (
        "My name is {A}. I have a {pet} named {B}.",
        (
            ("What is my name?", "Your name is {A}."),
            ("What is my {pet}'s name?", "Your {pet}'s name is {B}."),
            ("Do I have a pet?", "Yes, you have a {pet} named {B}."),
        ),
    ),
)
# Talks: each turn of the user with the reply; a talk keeps to its first two or more turns.
TALKS = (
    (
        ("[Hi|Hello]! My name is {A}.", "[Hello|Hi], {A}! [Nice to meet you.|How are you today?]"),
        ("I have a {pet}[ at home|].", "[How nice!|I like {pet}s!] What is your {pet}'s name?"),
        ("[Its|The {pet}'s] name is {B}.", "{B} is a [lovely|good|nice] name for a {pet}."),
        ("Do you remember my name?", "Yes, your name is {A}."),
        ("And what is my {pet}'s name?", "Your {pet} is called {B}."),
    ),
    (
        (
            "[What food do you like?|Do you eat?]",
            "I am a language model, so I do not eat. What do you like to eat?",
        ),
        ("I like {meal}[ the most|].", "[Yum!|That sounds good.] Do you eat {meal} every day?"),
        (
            "No, only on {day}s.",
            "I see. That must be a treat, then.",
        ),
        ("What food did I say I like the most?", "You said that you like {meal}."),
    ),
    (
        (
            "It is a [nice|beautiful|lovely] day[ today|].",
            "Then it is a good day to have fun. What will you do?",
        ),
        ("I [want|would like] to {do}.", "[That sounds fun!|What a good idea!] Who will join you?"),
        ("My friend {A}.", "[Great!|How nice!] Have fun with {A}."),
        ("What do I want to do today?", "You want to {do} with {A}."),
    ),
    (
        (
            "What game [shall|can] we play?",
            "[We can play a guessing game.|Let us play a guessing game.] Think of an animal.",
        ),
        ("[Okay. It has four legs and says meow.|It says meow.]", "Is it a cat?"),
        ("[Yes|Yes, you are right]!", "[That was fun!|I am glad!] Shall we play again?"),
        (
            "[No, thank you|Maybe later].",
            "All right. [See you soon!|Just tell me when you want to play.]",
        ),
    ),
    (
        (
            "My favorite color is {color}.",
            "{Color} is a [nice|beautiful|fine] color. What do you have that is {color}?",
        ),
        ("I have a {color} {thing}.", "I [would like to|wish I could] see your {color} {thing}!"),
        (
            "[What is my favorite color|Which color do I like best]?",
            "Your favorite color is {color}.",
        ),
    ),
    (
        ("Do you like stories?", "Yes, I like to tell stories. What should a story be about?"),
        (
            "[About a {pet}|A story about a {pet}], please.",
            "Once there was a {pet} named {A} who had a "
            "{color} {thing}. One day, {he} lost it. {His} friend {B} helped {him} look, and they "
            "found it. {A} was happy again.",
        ),
        (
            "[What was the {pet}'s name|What was the name of the {pet}]?",
            "The {pet}'s name was {A}.",
        ),
        ("What did {A} lose?", "{A} lost a {color} {thing}."),
        ("Who helped?", "{B} helped."),
    ),
    (
        ("I am sad[ today|].", "I am sorry to hear that. What happened?"),
        ("I [lost|cannot find] my {color} {thing}.", "Oh no. Where did you see your {thing} last?"),
        (
            "I think it was {spot}.",
            "Then look {spot} once more. Maybe your {thing} is still there.",
        ),
        ("I found it!", "[Hooray!|Wonderful!] I am glad that you have your {color} {thing} again."),
    ),
    (
        (
            "I went to the [park|zoo|beach] [today|with {A}].",
            "[That sounds fun!|How nice!] What did you see?",
        ),
        ("I saw {n} {pet}s.", "{N} {pet}s! What did they do?"),
        ("They [ran around|slept in the sun|ate].", "[I would like to see that.|How sweet!]"),
        ("How many {pet}s did I see?", "You saw {n} {pet}s."),
    ),
)


def pair(rng: random.Random, table: str) -> tuple[str, str]:
    """Draw one `left:right` of a table whose entries are apart by `|`."""
    left, _, right = rng.choice(table.split("|")).rpartition(":")
    return left, right


def fillers(rng: random.Random) -> dict[str, str]:
    """Draw the facts of a passage or a talk: names `A` and `B`, things, places, numbers, pets."""
    name, subject = someone(rng)
    other = rng.choice([n for n in (GIRLS + " " + BOYS).split() if n != name])
    facts = {"A": name, "B": other, "day": rng.choice(DAYS)} | pronouns(subject)
    pairs = {
        ("color", "color2"): COLORS.split("|"),
        ("thing", "thing2"): THINGS.split("|"),
        ("spot", "spot2"): SPOTS.split("|"),
        ("pet", "pet2"): PETS.split("|"),
        ("meal", "meal2"): MEALS.split("|"),
        ("do", "do2"): DOES.split("|"),
        ("n", "m"): NUMBERS[2:],
    }
    for names, values in pairs.items():
        facts |= dict(zip(names, rng.sample(values, 2), strict=True))
    return facts | {"Color": facts["color"].capitalize(), "N": facts["n"].capitalize()}


def knowledge(rng: random.Random) -> Turn:
    """Ask for a fact about the world."""
    make: Callable[[str, str], Turn]
    table, make = rng.choice(KNOWLEDGE)
    left, right = pair(rng, table)
    question, answer = make(left, right)
    return expand(rng, question, {}), expand(rng, answer[:1].upper() + answer[1:], {})


KNOWLEDGE: tuple[tuple[str, Callable[[str, str], Turn]], ...] = (
    (
        COLOR_OF,
        lambda x, y: (
            f"[What|Which] color is {x}?",
            f"{x} is {y}.",
        ),
    ),
    (
        SOUND_OF,
        lambda x, y: (f"[What sound does a {x} make|What does a {x} say]?", f"A {x} says {y}."),
    ),
    (HOME_OF, lambda x, y: (f"Where does a {x} live?", f"A {x} lives {y}.")),
    (BABY_OF, lambda x, y: (f"What is a baby {x} called?", f"A baby {x} is called a {y}.")),
    (LEGS_OF, lambda x, y: (f"How many legs does a {x} have?", f"A {x} has {y} legs.")),
    (OPPOSITE_OF, lambda x, y: (f"What is the opposite of {x}?", f"The opposite of {x} is {y}.")),
    (
        RHYMES,
        lambda x, y: (f"[What rhymes with|Which word rhymes with] {x}?", f"{y} rhymes with {x}."),
    ),
    (PLURALS, lambda x, y: (f"What is the plural of {x}?", f"The plural of {x} is {y}.")),
    (BODY, lambda x, y: (f"What do you {x} with?", f"You {x} with your {y}.")),
    (USES, lambda x, y: (f"What do you use {x} for?", f"You use {x} to {y}.")),
    (JOBS, lambda x, y: (f"[Who {x}|What do you call someone who {x}]?", f"A {y} {x}.")),
    (FACTS, lambda x, y: (x, y)),
    (FACTS, lambda x, y: (x, y)),
    (SHAPES, lambda x, y: (x, y)),
)


def category(rng: random.Random) -> Turn:
    """Ask whether a thing is of a kind; the answer may be no."""
    left, right = pair(rng, KIND_OF)
    wrong = rng.choice([kind for kind in ("color", "vegetable", "day", "month") if kind != right])
    name = left[0].upper() + left[1:]
    turn = rng.choice(
        (
            (f"Is {left} a {right}?", f"Yes, {left} is a {right}."),
            (f"Is {left} a {wrong}?", f"No, {left} is a {right}."),
            (f"What is {left}?", f"{name} is a {right}."),
        )
    )
    return expand(rng, turn[0], {}), expand(rng, turn[1], {})


def order(rng: random.Random) -> Turn:
    """Ask what comes before or after a day, a month, a season or a number."""
    values = rng.choice((DAYS, MONTHS, SEASONS, NUMBERS))
    i = rng.randrange(len(values) - 1)
    first, second = values[i], values[i + 1]
    what = {7: "day ", 12: "month ", 4: "season ", 11: "number "}[len(values)]
    ask = rng.choice((f"What {what}", "What "))
    if rng.random() < 0.6:
        return f"{ask}comes after {first}?", f"{second.capitalize()} comes after {first}."
    return f"{ask}comes before {second}?", f"{first.capitalize()} comes before {second}."


def arithmetic(rng: random.Random) -> Turn:
    """Ask for a sum, a difference, or the larger of two numbers, all within ten."""
    a, b = sorted(rng.sample(range(11), 2))
    if rng.random() < 0.3:
        return f"Which is bigger, {a} or {b}?", f"{b} is bigger than {a}."
    if rng.random() < 0.5:
        return expand(rng, f"What is {b} [minus|-] {a}?", {}), f"{b} minus {a} is {b - a}."
    a = rng.randint(0, 10 - b)
    return expand(rng, f"[What is|How much is] {a} [plus|+] {b}?", {}), f"{a} plus {b} is {a + b}."


def size(rng: random.Random) -> Turn:
    """Ask which of two animals is bigger or smaller."""
    animals = SIZES.split("|")
    small, big = sorted(rng.sample(range(len(animals)), 2))
    a, b = rng.sample((animals[small], animals[big]), 2)
    word, right, wrong = rng.choice((("bigger", big, small), ("smaller", small, big)))
    answer = f"{animals[right]} is {word} than {animals[wrong]}."
    return f"Which is {word}, {a} or {b}?", answer[0].upper() + answer[1:]


def small_talk(rng: random.Random) -> Turn:
    """Greet, ask who speaks, tell a feeling, or ask what cannot be known."""
    question, answer = rng.choice(SMALL_TALK)
    return expand(rng, question, {}), expand(rng, answer, {})


def passage(rng: random.Random) -> list[Turn]:
    """Tell one to three facts and ask about them once or, more seldom, twice."""
    facts = fillers(rng)
    text, asked = rng.choice(PASSAGES)
    text = expand(rng, text, facts)
    extra = rng.choice(("It was a [sunny|cold|windy] day. ", "", "", ""))
    turns = [
        (expand(rng, question, facts), expand(rng, answer, facts))
        for question, answer in rng.sample(asked, min(len(asked), rng.choice((1, 1, 1, 2))))
    ]
    (question, answer), *more = turns
    return [(f"{expand(rng, extra, facts)} {text} {question}".strip(), answer), *more]


def document(turns: list[Turn]) -> str:
    """Write turns as `User:` and `Assistant:` paragraphs apart by empty lines."""
    return "\n\n".join(f"User: {question}\n\nAssistant: {answer}" for question, answer in turns)


def questions(rng: random.Random, n: int) -> Iterator[str]:
    """Write `n` documents of questions: 35% on a passage, the rest of one to four turns."""
    kinds = (*[knowledge] * 8, *[order, arithmetic, small_talk] * 2, category, size)
    for _ in range(n):
        if rng.random() < 0.35:
            yield document(passage(rng))
        else:
            yield document([rng.choice(kinds)(rng) for _ in range(rng.choice((1, 1, 1, 2, 3, 4)))])


def dialogues(rng: random.Random, n: int) -> Iterator[str]:
    """Write `n` documents of a friendly talk, two to five turns each."""
    for _ in range(n):
        talk = rng.choice(TALKS)
        facts = fillers(rng)
        kept = talk[: rng.randint(2, len(talk))]
        yield document([(expand(rng, q, facts), expand(rng, a, facts)) for q, a in kept])
