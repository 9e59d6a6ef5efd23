"""Search protocols as data, one small file each."""

from sleuth.dialects.dialect import Dialect, Tags
from sleuth.dialects.search_r1 import SEARCH_R1
from sleuth.dialects.sleuth import SLEUTH

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (SLEUTH, SEARCH_R1)}

__all__ = ["DIALECTS", "Dialect", "Tags"]
