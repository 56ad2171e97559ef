"""The demo: a look at pictures, the exam of the reader, the study behind it, and the report of all that."""

from mrope.probes.reading.demo import Screen, run_demo
from mrope.probes.reading.exam import Exam, Syllabus, take_exam
from mrope.probes.reading.grid import (
    CHANCE,
    GridScore,
    Move,
    ask_everything,
    draw_grids,
    effective_resolution,
    score_grid,
    swap_axes,
)
from mrope.probes.reading.look import Look, look
from mrope.probes.reading.report import Run, render, write_report
from mrope.probes.reading.study import run_study, ship

__all__ = [
    "CHANCE",
    "Exam",
    "GridScore",
    "Look",
    "Move",
    "Run",
    "Screen",
    "Syllabus",
    "ask_everything",
    "draw_grids",
    "effective_resolution",
    "look",
    "render",
    "run_demo",
    "run_study",
    "score_grid",
    "ship",
    "swap_axes",
    "take_exam",
    "write_report",
]
