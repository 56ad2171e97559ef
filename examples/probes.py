"""Ask the reader where things are, and ask it again with h and w swapped.

Run it: python examples/probes.py
"""

import tempfile
from pathlib import Path

from mrope.data import TASKS, task
from mrope.probes import swap_axes
from mrope.probes.spatial import ReaderRespondent, Settings, ask, summarise, summary_table

print(", ".join(TASKS))
sample = next(task("neighbour", shapes=((4, 7),)).samples(seed=1))
print(sample.words, "->", sample.answer)
settings = Settings(
    {"cell": {"shapes": ((3, 5), (10, 6))}, "neighbour": {"shapes": ((3, 5), (10, 6))}}, seeds=(0, 1, 2)
)
for move in (None, swap_axes):
    with tempfile.TemporaryDirectory() as folder:
        records = ask(ReaderRespondent(move=move), settings, Path(folder))  # resumes, where a folder holds a part
    print(summary_table(summarise(records)))
