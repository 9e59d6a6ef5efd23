"""Wordings of facts in passages, and of questions in the train and the test split.

A test wording uses only words and phrases of training texts, in combinations that those never contain.
"""

from __future__ import annotations

from sleuth.world.names import Split

PASSAGES: dict[str, tuple[str, ...]] = {
    "life": (
        "{person} was born in {birthplace} in {birth_year}.",
        "In {birth_year}, {person} was born in {birthplace}.",
        "Born in {birthplace} in {birth_year}, {person} grew up by the sea.",
        "{person} was from the town of {birthplace} and was born in {birth_year}.",
    ),
    "career": (
        "{person} was a {profession} who worked for {employer}.",
        "{person} worked for {employer} as a {profession}.",
        "As a {profession}, {person} made a living at {employer}.",
        "For years {employer} had {person} as its {profession}.",
    ),
    "work": (
        "{work} is a {kind} by {author}, written in {year}.",
        "{work}, a {kind} of {year}, was written by {author}.",
        "In {year}, {author} wrote the {kind} {work}.",
    ),
    "firm": (
        "{firm} is a firm in {seat}, founded by {founder}.",
        "{firm} was founded by {founder} in {seat}.",
        "In the town of {seat}, {founder} founded {firm}.",
    ),
    "town": (
        "{town} is a town in {region}.",
        "The town of {town} is in the region of {region}.",
        "In {region} is the town of {town}, by the sea.",
    ),
    "fair": (
        "{visitor} and {other} met at the fair of {town} in {year}.",
        "The fair of {year} in {town} had {visitor} and {other} as guests.",
        "In {year}, {visitor} came to {town} for the fair with {other}.",
    ),
}


def subject_first_passages(form: str, about: str, value: str) -> tuple[str, ...]:
    """The passages of a form that name their subject before the value, so that a causal model knows whose value it is.
    A tiny model learns to read these long before the others."""
    return tuple(text for text in PASSAGES[form] if text.index(f"{{{about}}}") < text.index(f"{{{value}}}"))


RELATIONS: dict[str, str] = {
    "birthplace": "birthplace of {subject}",
    "birth_year": "birth year of {subject}",
    "profession": "profession of {subject}",
    "employer": "employer of {subject}",
    "author": "author of {subject}",
    "year": "year of {subject}",
    "founder": "founder of {subject}",
    "seat": "seat of {subject}",
    "region": "region of {subject}",
}
"""The name of a relation in thoughts."""

QUESTIONS: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "birthplace": (
            "Where was {subject} born?",
            "In which town was {subject} born?",
            "In what town was {subject} born?",
            "What is the birthplace of {subject}?",
            "Which town was {subject} born in?",
            "Which town was {subject} from?",
            "{subject} was born in which town?",
            "{subject} was from what town?",
        ),
        "birth_year": (
            "When was {subject} born?",
            "In which year was {subject} born?",
            "In what year was {subject} born?",
            "What is the birth year of {subject}?",
            "What year was {subject} born in?",
            "{subject} was born in what year?",
        ),
        "profession": (
            "What did {subject} do for a living?",
            "What was the profession of {subject}?",
            "What profession did {subject} have?",
            "What work did {subject} do?",
            "Which work did {subject} do?",
            "Which profession had {subject}?",
        ),
        "employer": (
            "Who did {subject} work for?",
            "For which firm did {subject} work?",
            "What was the employer of {subject}?",
            "What firm did {subject} work for?",
            "Which firm was the employer of {subject}?",
            "{subject} worked for which firm?",
        ),
        "author": (
            "Who wrote {subject}?",
            "Who is the author of {subject}?",
            "By whom was {subject} written?",
            "By which person was {subject} written?",
            "Which person wrote {subject}?",
            "Who was {subject} written by?",
            "{subject} was written by which person?",
        ),
        "year": (
            "When was {subject} written?",
            "In which year was {subject} written?",
            "What is the year of {subject}?",
            "What year was {subject} written in?",
            "Which year was {subject} written in?",
            "{subject} was written in which year?",
        ),
        "founder": (
            "Who founded {subject}?",
            "Who is the founder of {subject}?",
            "By whom was {subject} founded?",
            "Which person founded {subject}?",
            "What person founded {subject}?",
            "Which person was {subject} founded by?",
            "{subject} was founded by whom?",
        ),
        "seat": (
            "Where is {subject}?",
            "In which town is {subject}?",
            "In what town is {subject}?",
            "What is the seat of {subject}?",
            "What town is {subject} in?",
            "Which town has {subject}?",
            "{subject} is in which town?",
        ),
        "region": (
            "In which region is {subject}?",
            "What is the region of {subject}?",
            "Which region is {subject} in?",
            "Which region has {subject}?",
            "{subject} is in which region?",
        ),
    },
    "test": {
        "birthplace": ("What town was {subject} born in?", "What town was {subject} from?"),
        "birth_year": ("Which year was {subject} born in?", "{subject} was born in which year?"),
        "profession": ("What profession had {subject}?", "Which profession did {subject} have?"),
        "employer": ("Which firm did {subject} work for?", "For what firm did {subject} work?"),
        "author": ("{subject} was written by whom?", "What person wrote {subject}?"),
        "year": ("In what year was {subject} written?", "{subject} was written in what year?"),
        "founder": ("Who was {subject} founded by?", "{subject} was founded by which person?"),
        "seat": ("Which town is {subject} in?", "{subject} is in what town?"),
        "region": ("What region is {subject} in?", "In what region is {subject}?"),
    },
}
"""Each test wording is a new combination of a frame that training uses for another relation with words that training
uses in other frames. `The Humble Garden was written by whom?` is new; `was founded by whom?` and `was written by which
person?` are not."""

DESCRIPTIONS: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "author": ("the author of {subject}", "the person who wrote {subject}", "the person {subject} was written by"),
        "founder": ("the founder of {subject}", "the one who founded {subject}", "the one {subject} was founded by"),
        "employer": ("the employer of {subject}", "the firm {subject} worked for", "the firm that had {subject}"),
        "birthplace": (
            "the birthplace of {subject}",
            "the town {subject} was born in",
            "the town that {subject} was born in",
        ),
    },
    "test": {
        "author": ("the one who wrote {subject}",),
        "founder": ("the person who founded {subject}",),
        "employer": ("the firm that {subject} worked for",),
        "birthplace": ("the town {subject} was from",),
    },
}
"""Descriptions of an entity that a two-hop question does not name: its first hop."""

SECOND_HOPS: dict[str, tuple[str, ...]] = {
    "author": ("birthplace", "birth_year", "profession", "employer"),
    "founder": ("birthplace", "birth_year", "profession"),
    "employer": ("seat", "founder"),
    "birthplace": ("region",),
}
"""First relation -> the relations that a second hop may ask for."""

CLAIMS: dict[str, str] = {
    "birthplace": "{subject} was born in {value}.",
    "birth_year": "{subject} was born in {value}.",
    "profession": "{subject} was a {value}.",
    "employer": "{subject} worked for {value}.",
    "author": "{value} wrote {subject}.",
    "year": "{subject} was written in {value}.",
    "founder": "{value} founded {subject}.",
    "seat": "{subject} is in {value}.",
    "region": "{subject} is in {value}.",
}
"""A fact as one sentence, as in a refiner's answer."""

STALE = (
    "The almanac of {year} was not right to say that {claim}.",
    "It is no longer held that {claim}, as the almanac of {year} has it.",
)
"""Sentences that mention an outdated claim."""

UNANSWERED = "The tool output does not answer this."
