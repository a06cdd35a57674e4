"""The tour: one chapter per capability."""

from openshelf.show.tour._courier import courier
from openshelf.show.tour._space import space_chapter

CHAPTERS = {"space": space_chapter}

__all__ = ["CHAPTERS", "courier", "space_chapter"]
