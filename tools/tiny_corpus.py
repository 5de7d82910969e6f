"""The text that the shipped tiny model is trained on: written for this project, spun from templates by a fixed seed."""

from __future__ import annotations

import random

FACTS = """
A scheduler decides which sequence runs next. The device only does what it is told.
A prefill reads the whole prompt and leaves one row of logits. A decode adds one token to every active row.
The key and value cache is cut into blocks. A block table says where each position of a sequence lies.
When the pool runs dry, one row is parked and the others go on. A parked row comes back as soon as there is room.
A draft is a cheap guess. A verify looks at all drafts at once and keeps the longest prefix that is right.
A rejected draft costs nothing but time, because the sequence is cut back to the last token that was right.
A recurrent layer has no list of old keys. It folds every token into one matrix, so a rollback needs a copy.
A snapshot is a copy of the recurrent state at a known length. The prefix cache keeps a few of them.
Chunked prefill shares the tick between a long prompt and the rows that already decode.
The trace is a list of calls. Two runs with the same scenario give the same bytes.
A golden is a trace that somebody looked at and accepted. A change of a golden is a change of behaviour.
The fuzzer looks for schedules that nobody thought of. The shrinker makes them small enough to read.
An event marks a place in a stream. A wait makes another stream stand still until the mark is reached.
A missing wait is a race. In late order a race shows itself every time.
The mock answers from a script. The engine answers from its weights. The core cannot tell them apart.
Greedy decoding takes the largest logit. On a tie the lowest index wins.
A slot is a label. The memory behind it belongs to one sequence from birth to the end.
Spilled work lies in a file until its blocks fit again. A restored sequence goes on where it stopped.
An adapter adds a small product to a large one. Each row of a batch may carry its own.
The watchdog looks for loops. When it finds one, the sequence goes back to a boundary and tries again.
"""

OPENINGS = ("In tick {t}", "At tick {t}", "During tick {t}", "After tick {t}")
EVENTS = (
    "request {r} arrives with {n} tokens and waits in the queue",
    "the scheduler admits request {r} and gives it slot {s}",
    "sequence {r} is prefilled in {k} chunks of {c} tokens",
    "the batch of {b} rows decodes one token each",
    "sequence {r} finishes with reason {why} and its blocks go back",
    "the pool has {f} free blocks and nothing is evicted",
    "sequence {r} moves from slot {s} to slot 0",
    "{d} of {e} drafts of sequence {r} are accepted",
    "sequence {r} is spilled to disk and its slot becomes free",
    "sequence {r} comes back from disk and decodes again",
    "the prefix cache has {k} blocks of the prompt of request {r}",
)
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
QUESTIONS = (
    ("What is a block table?", "A block table says where each position of a sequence lies."),
    ("What does a prefill do?", "A prefill reads the whole prompt and leaves one row of logits."),
    ("What is a draft?", "A draft is a cheap guess."),
    ("What is a golden?", "A golden is a trace that somebody looked at and accepted."),
    ("Who decides?", "A scheduler decides which sequence runs next."),
    ("What happens when the pool runs dry?", "When the pool runs dry, one row is parked and the others go on."),
    ("What is a slot?", "A slot is a label."),
    ("What is a race?", "A missing wait is a race."),
)


def documents(count: int, seed: int = 1) -> list[str]:
    """``count`` short texts, the same for the same seed."""
    rng = random.Random(seed)
    facts = [line for line in FACTS.strip().splitlines() if line]
    kinds = (_story, _counting, _question)
    texts = []
    for _ in range(count):
        if rng.random() < 0.45:
            texts.append(" ".join(rng.sample(facts, 3)))
        else:
            texts.append(rng.choice(kinds)(rng))
    return texts


def _story(rng: random.Random) -> str:
    start = rng.randrange(1, 40)
    lines = []
    for step in range(rng.randrange(3, 7)):
        drafts = rng.randrange(2, 5)
        text = f"{rng.choice(OPENINGS)}, {rng.choice(EVENTS)}.".format(
            t=start + step,
            r=rng.randrange(1, 9),
            n=rng.randrange(4, 64),
            s=rng.randrange(8),
            k=rng.randrange(2, 6),
            c=rng.choice((4, 8, 16)),
            b=rng.randrange(2, 9),
            f=rng.randrange(0, 99),
            d=rng.randrange(drafts + 1),
            e=drafts,
            why=rng.choice(("stop", "length")),
        )
        lines.append(text)
    return " ".join(lines)


def _counting(rng: random.Random) -> str:
    first = rng.randrange(len(NUMBERS) - 4)
    last = rng.randrange(first + 3, len(NUMBERS))
    return "Count: " + ", ".join(NUMBERS[first : last + 1]) + "."


def _question(rng: random.Random) -> str:
    return " ".join(f"Q: {question} A: {answer}" for question, answer in rng.sample(QUESTIONS, 2))
