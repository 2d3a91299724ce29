"""The questions that text is drawn for: topics times templates, some topics held out. No torch.

A topic belongs to the held-out set by its hash, so that it does so whatever else is added to the list.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

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

TOPICS: tuple[str, ...] = tuple(dict.fromkeys(" ".join(part.split()) for part in _THINGS.split(",")))

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
    "Write a short poem about {}.",
    "What do people use {} for?",
    "How would you describe {} to a friend?",
    "Write a short paragraph about {}.",
    "What is the history of {}? Keep it short.",
    "What should a beginner know about {}?",
    "Give me some tips about {}.",
    "What are the parts of {}?",
    "What is interesting about {}?",
    "Write a short dialogue about {}.",
    "Summarize what you know about {} in one paragraph.",
    "What would the world be like without {}?",
    "Name some words that have to do with {}.",
    "Describe {} in one sentence.",
    "Ask me a question about {} and answer it.",
    "What is a common mistake people make about {}?",
    "Write a short letter that mentions {}.",
    "How does one learn more about {}?",
    "What are the good and the bad sides of {}?",
)

PAIR_TEMPLATES: tuple[str, ...] = (
    "What is the difference between {} and {}?",
    "Compare {} with {} briefly.",
    "Write a very short story about {} and {}.",
    "What do {} and {} have in common?",
    "Write one paragraph about {} and {}.",
)

_HELD_OUT_OF_100 = 4


def is_held_out(topic: str) -> bool:
    """Whether no training text is drawn for ``topic``."""
    return int.from_bytes(hashlib.sha256(topic.encode()).digest()[:4], "big") % 100 < _HELD_OUT_OF_100


def questions(seed: int, *, held_out: bool) -> list[str]:
    """Every question of the training topics, or of the held-out ones, in an order that ``seed`` gives."""
    topics = [topic for topic in TOPICS if is_held_out(topic) == held_out]
    shuffled = random.Random(seed)
    singles = [template.format(topic) for topic in topics for template in TEMPLATES]
    pairs = [
        template.format(first, second)
        for template in PAIR_TEMPLATES
        for first in topics
        for second in shuffled.sample(topics, min(8, len(topics)))
        if first != second
    ]
    both = singles + pairs
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
