"""Wordings of the sentences, endings and thoughts in the texts of `sleuth.think.world_texts`.

All words occur in passages and questions, so that a model that reads those can read these texts.
"""

from __future__ import annotations

from sleuth.world.names import Split
from sleuth.world.wording import subject_first_passages

Path = tuple[str, ...]
"""Consecutive relations: the value of each fact is the subject of the next."""

ENDINGS: dict[Split, dict[Path, tuple[str, ...]]] = {
    "train": {
        ("birthplace", "region"): (
            " {subject} was born in the region of",
            " The region that {subject} was born in is",
            " The region of the town that {subject} was born in is",
            " The town that {subject} was born in is in the region of",
            " {subject} was from a town in the region of",
            " The region of the birthplace of {subject} is",
            " The town of birth of {subject} is in the region of",
        ),
        ("employer", "seat"): (
            " {subject} worked in the town of",
            " The town that {subject} worked in is",
            " The town of the firm that {subject} worked for is",
            " The firm that {subject} worked for is in the town of",
            " {subject} made a living in the town of",
            " The firm of {subject} is in the town of",
        ),
        ("author", "birthplace"): (
            " {subject} was written by a person from the town of",
            " The town that the author of {subject} was born in is",
            " The author of {subject} was born in the town of",
            " The person who wrote {subject} was from the town of",
            " The author of {subject} was from the town of",
            " The town of the author of {subject} is",
        ),
        ("employer", "seat", "region"): (
            " {subject} worked in the region of",
            " The region that {subject} worked in is",
            " The region of the firm that {subject} worked for is",
            " The firm that {subject} worked for is in the region of",
            " {subject} made a living in the region of",
            " The firm of {subject} is in the region of",
            " The region of the employer of {subject} is",
        ),
        ("author", "birthplace", "region"): (
            " {subject} was written by a person from the region of",
            " The region that the author of {subject} was born in is",
            " The author of {subject} was born in the region of",
            " The person who wrote {subject} was from the region of",
            " The author of {subject} was from the region of",
            " The region of the author of {subject} is",
        ),
    },
    "test": {
        ("birthplace", "region"): (" The birthplace of {subject} is in the region of",),
        ("employer", "seat"): (" The firm that had {subject} is in the town of",),
        ("author", "birthplace"): (" The one who wrote {subject} was from the town of",),
        ("employer", "seat", "region"): (" The employer of {subject} is in the region of",),
        ("author", "birthplace", "region"): (" The one who wrote {subject} was from the region of",),
    },
}
"""The last sentence of a chained text, up to the answer."""

CARELESS_ENDINGS: dict[str, tuple[str, ...]] = {
    "birthplace": (" The birthplace of {subject} is", " {subject} was from the town of"),
    "birth_year": (" The birth year of {subject} is", " The year that {subject} was born in is"),
    "profession": (" The profession of {subject} is", " {subject} made a living as a"),
}
"""Relation -> the last sentence of a careless text, up to the value."""

FORMS = {
    "birthplace": ("life", "person"),
    "birth_year": ("life", "person"),
    "profession": ("career", "person"),
    "employer": ("career", "person"),
    "author": ("work", "work"),
    "seat": ("firm", "firm"),
    "region": ("town", "town"),
}
"""Relation -> the form of passage that states it, and the slot of its subject; the slot of its value is named after the
relation."""
WORDINGS = {relation: subject_first_passages(form, about, relation) for relation, (form, about) in FORMS.items()}
"""Relation -> wordings of a sentence that states it."""

THOUGHTS: dict[str, tuple[str, ...]] = {
    "birthplace": (
        " birthplace of {subject} is {value}",
        " the birthplace of {subject} is {value}",
        " town of {subject} is {value}",
        " the town of {subject} is {value}",
    ),
    "employer": (
        " employer of {subject} is {value}",
        " the employer of {subject} is {value}",
        " firm of {subject} is {value}",
        " the firm of {subject} is {value}",
    ),
    "author": (
        " author of {subject} is {value}",
        " the author of {subject} is {value}",
        " person who wrote {subject} is {value}",
        " the person who wrote {subject} is {value}",
    ),
    "seat": (
        " seat of {subject} is {value}",
        " the seat of {subject} is {value}",
        " town of {subject} is {value}",
        " the town of {subject} is {value}",
    ),
    "region": (
        " region of {subject} is {value}",
        " the region of {subject} is {value}",
        " region of the town of {subject} is {value}",
        " the region of the town of {subject} is {value}",
    ),
}
"""Wordings of a fact in a thought, all equally frequent: what is looked up, and then its value."""

GENERIC_THOUGHTS = (" what is it", " I need what I find", " it is in this story", " which one is it")
"""Thoughts that fit any text."""
