"""The questions that text is drawn for: topics times templates times styles, some topics held out. No torch."""

from __future__ import annotations

import enum
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_THINGS = """
a volcano, a rainbow, a bicycle, a lighthouse, a river, a lake, a forest, a desert, an island, a mountain, a glacier,
a cloud, a thunderstorm, a snowflake, a tree, a flower, a garden, a farm, a bridge, a castle, a library, a museum,
a school, a hospital, a market, a bakery, a kitchen, a window, a door, a clock, a calendar, a map, a compass, a camera,
a telescope, a microscope, a computer, a keyboard, a robot, a car, a train, a boat, a ship, an airplane, a balloon,
a rocket, a satellite, a planet, a star, the moon, the sun, the ocean, the sky, the wind, rain, snow, ice, fire, water,
sand, a stone, gold, iron, glass, paper, wood, wool, cotton, silk, bread, cheese, milk, butter, an apple, a banana,
a tomato, a potato, rice, soup, tea, coffee, chocolate, honey, salt, sugar, pepper, a cat, a dog, a horse, a cow,
a sheep, a goat, a pig, a chicken, a duck, a rabbit, a mouse, a fox, a wolf, a bear, a deer, a lion, a tiger,
an elephant, a giraffe, a monkey, a whale, a dolphin, a shark, an octopus, a turtle, a frog, a snake, a lizard, a bird,
an owl, an eagle, a penguin, a parrot, a bee, an ant, a butterfly, a spider, a snail, a song, a poem, a story, a book,
a letter, a newspaper, a painting, a piano, a guitar, a drum, a violin, a dance, a game, a puzzle, a chess board,
a football, a tennis match, a race, a holiday, a birthday, a wedding, a family, a friend, a neighbour, a teacher,
a doctor, a nurse, a farmer, a baker, a sailor, a pilot, a painter, a writer, a scientist, an engineer, a king,
a queen, a knight, a dragon, a giant, a fairy, a dream, a memory, a secret, a promise, a mistake, a question,
an answer, a number, a circle, a triangle, a square, a wheel, a lever, a magnet, a battery, a lamp, a candle,
a mirror, a shadow, an echo, a seed, a root, a leaf, a nest, a cave, a beach, a harbour, a village, a city, a street,
a park, a playground, a bench, a fountain, a statue, a tower, a roof, a wall, a fence, a gate, a path, a hill,
a valley, a waterfall, a pond, a swamp, a meadow, a vineyard, an orchard, a greenhouse, a compost heap, a scarecrow,
a tractor, a plough, a hammer, a saw, a needle, a rope, a knot, a sail, an anchor, a lantern, a tent, a backpack,
a blanket, a pillow, a chair, a table, a bed, a spoon, a knife, a plate, a cup, a bottle, a basket, a box, a key,
a coin, a stamp, a flag, a bell, a whistle, a kite, a toy, a doll, a mask, a hat, a coat, a shoe, a glove, a scarf,
an umbrella, a ring, a necklace, sleep, exercise, friendship, patience, courage, kindness, honesty, curiosity, music,
language, history, science, mathematics, geography, art, cooking, gardening, reading, writing, swimming, walking,
cycling, hiking, fishing, sailing, travelling, recycling, electricity, gravity, light, sound, heat, energy, weather,
the seasons, spring, summer, autumn, winter, morning, evening, night, time, money, work, play, health, food, a healthy
breakfast, the human heart, the brain, the lungs, the eye, the ear, blood, bones, muscles, skin, teeth, a cold,
a vaccine, bacteria, a fossil, a dinosaur, a mammoth, an earthquake, a tsunami, a hurricane, a drought, a flood,
the water cycle, the food chain, photosynthesis, evolution, the internet, a website, a password, an email, a programme,
an algorithm, a database, a network, a printer, a telephone, a radio, a television, a film, a theatre, a circus, a zoo
"""

_MORE_THINGS = """
a pen, a pencil, an eraser, a ruler, scissors, glue, a brush, a broom, a bucket, a mop, a sponge, soap, a towel,
a toothbrush, a comb, a razor, a button, a zipper, a belt, a pocket, a sock, a boot, a dress, a shirt, a jacket,
a carpet, a curtain, a sofa, a shelf, a drawer, a ladder, a stair, a chimney, a fireplace, an oven, a fridge, a kettle,
a pan, a pot, a bowl, a fork, a napkin, a menu, a recipe, a cake, a cookie, a pie, a pancake, pasta, pizza, a sandwich,
a salad, an onion, a carrot, a cucumber, a pumpkin, a mushroom, a bean, a pea, corn, wheat, a lemon, an orange, a pear,
a cherry, a grape, a strawberry, a peach, a melon, a walnut, an almond, cinnamon, vinegar, oil, juice, ice cream,
a crab, a lobster, a salmon, a trout, a jellyfish, a seal, a walrus, a beaver, a squirrel, a hedgehog, a badger, a mole,
a bat, a rat, a hamster, a donkey, a camel, a zebra, a hippopotamus, a rhinoceros, a kangaroo, a koala, a panda,
a crocodile, a swan, a goose, a turkey, a pigeon, a crow, a sparrow, a robin, a woodpecker, a flamingo, a peacock,
a mosquito, a fly, a beetle, a ladybird, a dragonfly, a caterpillar, a worm, moss, grass, a cactus, a rose, a tulip,
a sunflower, a daisy, an oak, a pine tree, a palm tree, bamboo, ivy, a bush, a hedge, a canal, a dam, a tunnel, a road,
a crossroads, a traffic light, a bus, a tram, a subway, a taxi, a truck, a motorcycle, a scooter, a helicopter,
a submarine, a canoe, a raft, a ferry, an airport, a railway station, a hotel, a restaurant, a cafe, a shop,
a supermarket, a post office, a bank, a police station, a fire station, a factory, a mine, a windmill, a warehouse,
a laboratory, a stadium, a swimming pool, a gym, a cinema, a gallery, a temple, a cathedral, a palace, a pyramid,
an engine, a pump, a pipe, a tap, a screw, a nail, a drill, a pair of pliers, an axe, a shovel, a rake, a wheelbarrow,
a hose, a thermometer, a barometer, a scale, a stopwatch, an hourglass, a calculator, a pair of glasses, a magnifying
glass, a prism, a laser, a microphone, a loudspeaker, headphones, a flute, a trumpet, a harp, an organ, an orchestra,
a choir, a melody, a rhythm, a novel, a dictionary, a diary, a postcard, an envelope, a poster, a photograph,
a sculpture, a mosaic, pottery, knitting, sewing, weaving, carpentry, painting, singing, dancing, running, jumping,
climbing, skiing, skating, surfing, rowing, archery, basketball, volleyball, baseball, golf, cricket, chess, cards,
a lawyer, a judge, a police officer, a firefighter, a soldier, a mechanic, a plumber, a carpenter, a tailor, a cook,
a waiter, a librarian, a journalist, a photographer, a musician, an actor, a dancer, an athlete, a coach, a student,
a child, a baby, a grandmother, a grandfather, a brother, a sister, a cousin, a guest, a stranger, a hero, a thief,
a wizard, a witch, a ghost, a mermaid, a unicorn, a pirate, a treasure, a journey, an adventure, a wish, a smile,
a tear, a laugh, a hug, a gift, a surprise, a party, a picnic, a parade, a festival, a competition, a medal, a prize,
a rule, a law, a vote, an election, a government, a border, a passport, a ticket, a suitcase, a tax, a loan, a budget,
a contract, a job, an interview, a meeting, a team, a leader, a plan, a goal, a habit, a hobby, a skill, a lesson,
an exam, a grade, homework, a holiday camp, anger, fear, joy, sadness, trust, respect, responsibility, creativity,
confidence, gratitude, generosity, humour, silence, beauty, freedom, justice, peace, teamwork, leadership, learning,
a molecule, an atom, a cell, a gene, a virus, oxygen, carbon, hydrogen, salt water, steam, smoke, dust, mud, clay,
a crystal, a diamond, silver, copper, steel, plastic, rubber, leather, a comet, an asteroid, an eclipse, a galaxy,
a black hole, a tide, a wave, a coral reef, a continent, a peninsula, a canyon, a plateau, a plain, a jungle, a savanna,
the tundra, a hot spring, a geyser, fog, dew, frost, hail, lightning, thunder, a breeze, a sandstorm, an avalanche
"""

_BLIND_THINGS = """
a sled, a lantern fish, a bicycle pump, a doorbell, a tortoise, a raspberry, a plum, a spinach leaf, a teapot, a wallet,
a pillowcase, a hammock, a snowman, an igloo, a totem pole, a saxophone, an accordion, a xylophone, a yacht, a trailer,
an escalator, an elevator, a vending machine, a scrapbook, a crossword, a jigsaw, a marathon, a trampoline, judo,
a shepherd, a beekeeper, a dentist, a surgeon, an astronaut, a detective, a magician, an otter, a raccoon, an ostrich,
a pelican, a seahorse, a starfish, a lavender bush, a maple tree, a clover, a quarry, an oasis, a lagoon, a marsh,
a meteor shower, the northern lights, a kneecap, an elbow, a sneeze, a yawn, shyness, punctuality, loyalty, ambition,
nostalgia, origami, calligraphy, astronomy, archaeology
"""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(" ".join(part.split()) for part in text.split(",")))


BLIND_TOPICS: tuple[str, ...] = _listed(_BLIND_THINGS)
TOPICS: tuple[str, ...] = tuple(topic for topic in _listed(f"{_THINGS}, {_MORE_THINGS}") if topic not in BLIND_TOPICS)

TEMPLATES: tuple[str, ...] = (
    "What is {}?",
    "Explain {} in simple words.",
    "Explain in three short sentences what {} is.",
    "Tell me something about {}.",
    "Write two sentences about {} for a child.",
    "List three facts about {}.",
    "Give me three reasons why {} matters.",
    "Why is {} important? Answer briefly.",
    "Write a very short story about {}.",
    "What do people use {} for?",
    "How would you describe {} to a friend?",
    "Write a short paragraph about {}.",
    "What is the history of {}? Keep it short.",
    "What should a beginner know about {}?",
    "Give me some tips about {}.",
    "What is interesting about {}?",
    "Summarize what you know about {} in one paragraph.",
    "Describe {} in one sentence.",
    "What is a common mistake people make about {}?",
    "How does one learn more about {}?",
)

PAIR_TEMPLATES: tuple[str, ...] = (
    "What is the difference between {} and {}?",
    "Compare {} with {} briefly.",
    "What do {} and {} have in common?",
    "Write one paragraph about {} and {}.",
)

# What a question may end with: it asks for a short answer.
STYLES: tuple[str, ...] = ("", " Answer in two sentences.", " Keep it short.", " Use simple words.")

_DEV_OF_100 = 4

# Pairs that a topic is the first of, for each pair template.
PARTNERS = 24


class Topics(enum.Enum):
    """Whose questions: what text is drawn for, what choices are made on, what is measured once at the end."""

    TRAIN = "train"
    DEV = "dev"
    BLIND = "blind"

    @property
    def names(self) -> tuple[str, ...]:
        """The topics of the set. No topic is in two; a dev topic is one by its hash, whatever else is listed."""
        if self is Topics.BLIND:
            return BLIND_TOPICS
        return tuple(topic for topic in TOPICS if _is_dev(topic) == (self is Topics.DEV))


def _is_dev(topic: str) -> bool:
    return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:4], "big") % 100 < _DEV_OF_100


def questions(seed: int, which: Topics, *, partners: int) -> list[str]:
    """Every question about the topics of a set, in an order that ``seed`` gives; ``partners``: pairs of a topic."""
    topics = which.names
    shuffled = random.Random(seed)
    singles = [template.format(topic) + style for topic in topics for template in TEMPLATES for style in STYLES]
    pairs = [
        template.format(first, second) + shuffled.choice(STYLES)
        for template in PAIR_TEMPLATES
        for first in topics
        for second in shuffled.sample(topics, min(partners, len(topics)))
        if first != second
    ]
    both = list(dict.fromkeys(singles + pairs))
    shuffled.shuffle(both)
    return both


_COPY = (
    "Repeat the following text word by word:\n{}",
    "Copy this text exactly:\n{}",
    "Say this again without changing anything:\n{}",
)
_REPLACE = (
    'Replace the word "{old}" by "{new}" in this text:\n{text}',
    'Rewrite this text with "{new}" instead of "{old}":\n{text}',
)
_LAST = ("Repeat only the last sentence of this text:\n{}", "Repeat only the first sentence of this text:\n{}")
_UPPER = ("Write this sentence twice:\n{}", "Write this in capital letters:\n{}")


# Sentences that no drawn text is made of: the editing tasks of the two held-out sets are over these.
_DEV_SENTENCES = (
    "A river is a body of water that flows from one place to another.",
    "The old lighthouse keeper walked down to the harbour every morning.",
    "Honey is sweet and golden.",
    "The children built a small boat out of paper and wood.",
    "It sailed across the pond until the evening came.",
    "Bread is made of flour, water and salt.",
    "A good friend listens and helps when things are hard.",
    "Every spring the farmer plants new seeds in the field behind the barn.",
    "The bus was late because the road was covered with snow.",
    "Anna found an old map in the attic of her house.",
    "Plants need light, air and water to grow.",
    "The museum opens at nine and closes at six.",
)
_BLIND_SENTENCES = (
    "The shepherd counted his flock twice before the storm arrived.",
    "Coral grows slowly in warm and shallow water.",
    "My aunt repairs violins in a small shop near the station.",
    "A compass points to the north because the earth is magnetic.",
    "They carried the heavy table up four flights of stairs.",
    "Most owls hunt at night and sleep during the day.",
    "The teacher wrote three questions on the board.",
    "Nobody in the village remembered who had built the wall.",
    "Steam pushed the piston and the wheel began to turn.",
    "Please close the window before you leave the room.",
    "The soup tasted better after it had cooked for an hour.",
    "Two foxes crossed the frozen lake without a sound.",
    "A marathon is a long race through the streets of a city.",
    "Her brother collects stamps from countries that no longer exist.",
    "The gardener waters the roses early in the morning.",
    "Glass is made from sand that has been melted in a furnace.",
)


def edit(sentences: Sequence[str], draw: random.Random) -> tuple[str, str]:
    """An editing task over ``sentences`` with its one right answer: copying is learnt from these."""
    text, kind = " ".join(sentences), draw.random()
    if kind < 0.45:
        return draw.choice(_COPY).format(text), text
    if kind < 0.8:
        words = sorted({word for word in text.split() if word.isalpha() and len(word) > 3})
        if words:
            old, new = draw.choice(words), draw.choice(TOPICS).split()[-1]
            edited = " ".join(new if word == old else word for word in text.split(" "))
            return draw.choice(_REPLACE).format(old=old, new=new, text=text), edited
    if kind < 0.9:
        which = draw.randrange(2)
        return _LAST[which].format(text), sentences[-1 if which == 0 else 0]
    if draw.random() < 0.7:
        return _UPPER[0].format(sentences[0]), f"{sentences[0]} {sentences[0]}"
    return _UPPER[1].format(sentences[0]), sentences[0].upper()


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts that acceptance is measured on: questions about held-out topics, and editing tasks."""

    questions: tuple[str, ...]
    edits: tuple[str, ...]

    @property
    def prompts(self) -> tuple[str, ...]:
        """All of them, questions first."""
        return self.questions + self.edits


def prompt_set(which: Topics) -> PromptSet:
    """The prompts of a held-out set, three questions for each editing task as drawn from fixed seeds."""
    sentences, count, seed = {Topics.DEV: (_DEV_SENTENCES, 48, 11), Topics.BLIND: (_BLIND_SENTENCES, 72, 12)}[which]
    draw = random.Random(seed)
    edits: dict[str, None] = {}
    while len(edits) < count // 3:
        edits[edit(draw.sample(sentences, draw.randint(1, 3)), draw)[0]] = None
    return PromptSet(tuple(questions(seed, which, partners=PARTNERS)[:count]), tuple(edits))


# Where a set lies beside the model.
FILES = {Topics.DEV: "held_out_prompts.json", Topics.BLIND: "blind_prompts.json"}


def as_json(which: Topics) -> str:
    """The prompts of a set, as its file has them."""
    return json.dumps(asdict(prompt_set(which)), indent=2) + "\n"
