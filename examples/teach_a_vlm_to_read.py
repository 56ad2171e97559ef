"""A timm ViT and a small Qwen3, both with random weights, learn to read letters in pictures of many shapes.

A picture holds one letter in each cell of a grid. One word before it names a cell by its row and column, one behind it
asks for the letter there. Words and cells stand on the same three axes, so a cell knows by its distance from the first
word, in rows and in columns, whether it is meant, however large the picture is: what is learned goes for shapes that
training never showed. A blind twin, which is shown another picture than the one it is asked about, can but guess.

Run it: python examples/teach_a_vlm_to_read.py [--steps 1200] [--blind]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from transformers import Qwen3Config

from mrope import AxisSplit
from mrope.data import fonts
from mrope.vlm import Vlm, build_vlm

Shape = tuple[int, int]  # rows, columns
LETTERS = "ACEHKMTX"
SIDE = 6  # most rows or columns
HELD_OUT: list[Shape] = [(2, 5), (4, 3)]
SHAPES: list[Shape] = [
    (rows, cols)
    for rows in range(1, SIDE + 1)
    for cols in range(1, SIDE + 1)
    if rows != cols and rows * cols <= 12 and (rows, cols) not in HELD_OUT
]
FIRST = len(LETTERS)  # the number of the word for the first cell, of SIDE * SIDE row by row, behind those of letters
ASK = FIRST + SIDE * SIDE
CELL = 32  # pixels of a cell, which becomes one token


def model() -> Vlm:
    """A fresh one, of 0.6 million parameters."""
    vision = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, embed_dim=64, depth=2, num_heads=2, num_classes=0, pretrained=False
    )
    language = Qwen3Config(
        vocab_size=ASK + 1,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        bos_token_id=None,
        eos_token_id=None,
    )
    return build_vlm(vision, language, split=AxisSplit((6, 5, 5), "interleaved"), merge=2)


def draw(key: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """The letters of `key` (rows, columns), each somewhere near the middle of its cell."""
    rows, cols = key.shape
    picture = Image.new("L", (cols * CELL, rows * CELL), 255)
    face = ImageFont.truetype(fonts("train")[0].path, int(rng.integers(20, 26)))
    pen = ImageDraw.Draw(picture)
    for (row, col), letter in np.ndenumerate(key):
        down, right = rng.uniform(-2, 2, 2) + CELL / 2
        pen.text((col * CELL + right, row * CELL + down), LETTERS[letter], font=face, fill=0, anchor="mm")
    return picture


def batch(reader: Vlm, shapes: list[Shape], rng: np.random.Generator, *, blind: bool = False) -> dict[str, Any]:
    """What the model takes: a row a picture, padded on the left, with a question around it and the answer at the end.

    Labels name the letter of one cell in three as well, on the token behind the cell's: without them the encoder has
    nothing to learn from until attention finds the right cell, and attention finds nothing before letters are told
    apart.
    """
    place = reader.config.image_token_id
    keys = [rng.integers(len(LETTERS), size=shape) for shape in shapes]
    patches = reader.config.record.patchify([draw(key, rng) for key in keys])
    rows, labels = [], []
    for key in keys:
        asked = rng.integers(len(LETTERS), size=key.shape) if blind else key
        row, col = (int(rng.integers(side)) for side in key.shape)
        rows.append(torch.tensor([FIRST + row * SIDE + col, *[place] * key.size, ASK, asked[row, col]]))
        named = np.where(rng.random(key.size) < 1 / 3, key.flatten(), -100)
        labels.append(torch.tensor([-100, -100, *named, asked[row, col]]))
    return {
        "input_ids": padded(rows, 0),
        "labels": padded(labels, -100),
        "attention_mask": padded([torch.ones_like(row) for row in rows], 0),
        "pixel_values": patches.values,
        "image_grid_thw": patches.grids,
    }


def padded(rows: list[Tensor], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value, padding_side="left")


def train(steps: int, *, among: list[Shape] = SHAPES, rate: float = 2e-3, blind: bool = False, seed: int = 0) -> Vlm:
    """A model after `steps` steps of 32 pictures of shapes `among` these; `rate` is the peak of the learning rate."""
    torch.manual_seed(seed)
    rng, reader = np.random.default_rng(seed), model()
    optimiser = torch.optim.AdamW(reader.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    warmup = 0.1 if steps != 10 else 0.2  # OneCycleLR divides by zero where it takes one step
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=warmup)
    for step in range(steps):
        shapes = [among[int(index)] for index in rng.integers(len(among), size=32)]
        loss = reader(**batch(reader, shapes, rng, blind=blind)).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.2f}", flush=True)
    return reader.eval()


@torch.no_grad()
def accuracy(reader: Vlm, shapes: list[Shape], pictures: int = 100) -> float:
    """The share of right answers about `pictures` pictures of each shape, as `generate` writes."""
    rng, right = np.random.default_rng(1), 0
    for shape in shapes:
        asked = batch(reader, [shape] * pictures, rng)
        answers, prompt = asked.pop("labels")[:, -1], asked.pop("input_ids")[:, :-1]
        asked["attention_mask"] = asked["attention_mask"][:, :-1]
        written = reader.generate(prompt, **asked, max_new_tokens=1, do_sample=False)
        right += int((written[:, -1] == answers).sum())
    return right / (pictures * len(shapes))


def main(steps: int = 1200, *, blind: bool = False) -> tuple[float, float]:
    """Train, and print how much is read in the shapes of training, and in those that it never saw."""
    reader = train(steps, blind=blind)
    known, new = accuracy(reader, SHAPES), accuracy(reader, HELD_OUT)
    print(f"right answers: {known:.0%} in shapes of training, {new:.0%} in others; a guess: {1 / len(LETTERS):.0%}")
    return known, new


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200, help="optimiser steps")
    parser.add_argument("--blind", action="store_true", help="train the twin that is shown other pictures")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; expected at least 1")
    main(options.steps, blind=options.blind)
