"""The words of the world, and the split of each name.

Word lists depend on the size of the world, not on its seed: worlds of one size share their words. The split of a name
depends on the name alone, so that training texts of any seed never mention a name of the test split.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")

TEST_SHARE = 0.3


def _words(lines: str) -> tuple[str, ...]:
    return tuple(lines.split())


_FIRST = (
    "A Ba Be Bo Ca Ce Da De Do E Fa Fe Ga Ge Ha He I Ja Jo Ka Ke La Le Lo Ma Me Mi Na Ne No O Pa Pe Ra Re Ro Sa Se Ta "
    "Te To U Va Ve Vi Wa We Ya Ze Zo",
    "dan lia ric nna ton mir vel sia rin lo bert gar hild mund wen",
)
_FAMILY = (
    "Bar Bel Cal Dor El Fen Gar Hal Is Kel Lor Mar Nor Or Pel Quin Ros Sel Tor Ul Ver Wil Yar Zel Ash Brin Cor Dun "
    "Ever Fal Grim Hol Ing Jor Kes Lang Mil Nes Os Pen Rav Stan Thorn Und Vin Wes Yor Zan Ald Birk",
    "brook croft field strom holt ford wick mer gard lund stein vale berg moss ridge worth thorne fell marsh haven",
)
_PLACE = (
    "Bra Cre Dra Elm Fro Glo Har Ivo Kra Lin Mor Nar Oak Pri Que Ska Tre Ur Vor Wol Yel Zur Am Bly Cho Dul Eck Fle Gro "
    "Hin Ist Jul Kno Lud Mun Nyk Olm Plo Ruk Sto Tam Ulf Vem Wyn Ysk Zem Arv Bos Cla Dym",
    "ton by stad ville minster port dale mouth heim burg more ley",
)
REGIONS = _words(
    "Osmark Velland Torria Quessia Nordmar Halvonia Sudland Westria Karelund Ostovia Meridia Galmark Lothland Ravonia "
    "Bruneia Caldland Arvonia Tersia Ulmark Finmora"
)
PROFESSIONS = _words(
    "potter weaver baker doctor sailor painter lawyer teacher miller printer singer farmer banker engineer gardener "
    "tailor carpenter chemist clerk cook dancer diver geologist hunter jeweller nurse pilot sculptor surgeon watchmaker"
)
KINDS = _words("novel opera poem ballad play story")
FIRMS = _words("Mills Press Works Bank Institute Academy Brewery Foundry Museum Theatre Shipyard Library")
ADJECTIVES = _words(
    "Silent Golden Broken Hidden Distant Burning Frozen Crimson Hollow Gentle Bitter Ancient Silver Wandering Sleeping "
    "Forgotten Narrow Bright Empty Restless Sunken Quiet Scarlet Lonely Velvet Paper Iron Painted Falling Winter "
    "Stolen Crooked Shining Second Northern Drowned Yellow Patient Savage Tender Wooden Blind Faithful Midnight Naked "
    "Proud Secret Thirsty Unseen Violet Weary Young Amber Barren Copper Dancing Endless Fragile Glass Humble"
)
NOUNS = _words(
    "Harbor Garden Mirror River Tower Lantern Orchard Bridge Winter Crown Letter Forest Window Island Shepherd Clock "
    "Feather Horizon Kingdom Violin Candle Desert Harvest Anchor Compass Sparrow Station Mountain Ocean Palace Raven "
    "Road Shadow Storm Thread Valley Voyage Wheel Widow Wolf Meadow Needle Oracle Pearl Quarry Rose Sailor Tide "
    "Umbrella Veil Whisper Acre Bell Canal Door Engine Ferry Gate Hour Journey"
)
YEARS = tuple(range(1840, 1960))
ORDER = 7  # seed of the fixed shuffle of the syllable products


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The word lists that depend on the size of a world: given names, family names and towns."""

    first: tuple[str, ...]
    family: tuple[str, ...]
    places: tuple[str, ...]


def words_for(people: int) -> Words:
    """Word lists of a size at which about a third of all name pairs is used, so that most names have near-twins."""
    root = math.sqrt(people)
    return Words(
        first=_product(_FIRST, max(40, round(root * 1.4))),
        family=_product(_FAMILY, max(60, round(root * 2.2))),
        places=_product(_PLACE, max(40, people // 33)),
    )


def split_of(name: str) -> Split:
    """The split of a name in every world: "test" for about three names in ten."""
    return "test" if _hash(name) % 1000 < TEST_SHARE * 1000 else "train"


def _product(parts: tuple[str, str], count: int) -> tuple[str, ...]:
    words = [stem + end for stem in parts[0].split() for end in parts[1].split()]
    return tuple(sorted(words, key=lambda word: _hash(f"{ORDER}:{word}"))[:count])


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
