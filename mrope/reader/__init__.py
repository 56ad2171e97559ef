"""The reader: a small VLM of our own, trained on glyph grids, that shows whether a position space works."""

from mrope.reader.model import FAMILY, PROMPT, WEIGHTS, WORDS, Answer, Question, Reader
from mrope.reader.runs import train_to
from mrope.reader.train import HELD_OUT_SHAPES, Recipe, train

__all__ = [
    "FAMILY",
    "HELD_OUT_SHAPES",
    "PROMPT",
    "WEIGHTS",
    "WORDS",
    "Answer",
    "Question",
    "Reader",
    "Recipe",
    "train",
    "train_to",
]
