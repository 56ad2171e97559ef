"""A model of Qwen2.5-VL's shape, with random weights, learns to write the box of the shape in a picture.

Pictures have many sizes, and their labels are boxes in their own pixels. The model sees each at the size of its plan,
and writes pixels of that: `transform_labels` takes a label there by the plan, and `Plan.decode_boxes` brings back what
the model wrote. Some grids of tokens are kept from training, so that the last score is about sizes that it never saw.

Run it: python examples/fine_tune_on_boxes.py [--steps 600]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

import mrope
from mrope.hf import plug
from mrope.vision import Plan, plan_sizes, transform_labels

FAMILY = mrope.family("qwen2.5-vl")
MOST = 24  # tokens of a picture
HELD_OUT = [(4, 5), (6, 3)]  # rows, columns of tokens
STEP = 7  # pixels between two words for a number, a quarter of a token
STEPS = 2 * MOST  # numbers
PAD, BEGIN, PICTURE, ASK, FIRST = range(5)  # words; from the last on, the numbers of each side of a box


def model() -> Any:
    """A fresh one, of 0.6 million parameters, with our positions in it."""
    text = {
        "vocab_size": FIRST + 4 * STEPS,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10.0, "mrope_section": [4, 6, 6]},
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "out_hidden_size": 128,
        "fullatt_block_indexes": [1],
    }
    words: dict[str, Any] = {"vision_start_token_id": BEGIN, "image_token_id": PICTURE, "video_token_id": -1}
    made = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **words))
    plug(made)
    return made


def sizes(count: int, rng: np.random.Generator, *, new: bool = False) -> np.ndarray:
    """(count, 2) heights and widths in pixels; `new` ones become grids that training never shows."""
    drawn = np.exp(rng.uniform(4, 6, (20 * count, 2))).astype(int)
    drawn = drawn[(drawn[:, 0] != drawn[:, 1]) & (drawn.max(1) < 2 * drawn.min(1))]
    tokens = plan_sizes(drawn, FAMILY, max_tokens=MOST).grids[:, 1:] // FAMILY.merge
    held_out = (tokens[:, None] == HELD_OUT).all(-1).any(-1)
    return drawn[held_out == new][:count]


def draw(count: int, rng: np.random.Generator, *, new: bool = False) -> tuple[list[Image.Image], list[list[int]]]:
    """Pictures with one shape each, and its box [left, top, right, bottom] in pixels of the picture."""
    pictures, boxes = [], []
    for height, width in sizes(count, rng, new=new).tolist():
        whole = np.array([width, height])
        sides = whole * rng.uniform(0.25, 0.6, 2)
        corner = rng.uniform(size=2) * (whole - sides)
        left, top, right, bottom = np.concatenate([corner, corner + sides]).round().astype(int).tolist()
        ground, colour = rng.integers(150, 256, 3), rng.integers(0, 106, 3)
        pictures.append(Image.new("RGB", (width, height), tuple(ground.tolist())))
        pen = ImageDraw.Draw(pictures[-1])
        shape = pen.ellipse if rng.random() < 0.5 else pen.rectangle
        shape((left, top, right - 1, bottom - 1), fill=tuple(colour.tolist()))
        boxes.append([left, top, right, bottom])
    return pictures, boxes


def batch(pictures: list[Image.Image], boxes: list[list[int]]) -> tuple[dict[str, Any], tuple[Plan, ...]]:
    """What the model takes, padded on the left, with the four words of a box at the end of each row; and the plans."""
    patches = FAMILY.patchify(pictures, max_tokens=MOST)
    rows = []
    for plan, box in zip(patches.plans, boxes, strict=True):
        seen = transform_labels({"box": box}, plan)["box"]
        answer = [FIRST + side * STEPS + round(pixel / STEP) for side, pixel in enumerate(seen)]
        rows.append(torch.tensor([BEGIN, *[PICTURE] * plan.tokens, ASK, *answer]))
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD, padding_side="left")
    inputs = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    inputs |= {"pixel_values": patches.values, "image_grid_thw": patches.grids}
    return inputs, patches.plans


def train(steps: int, *, rate: float = 2e-3, seed: int = 0) -> Any:
    """A model after `steps` steps of 32 pictures; `rate` is the peak of the learning rate."""
    torch.manual_seed(seed)
    rng, finder = np.random.default_rng(seed), model()
    optimiser = torch.optim.AdamW(finder.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    warmup = 0.1 if steps != 10 else 0.2  # OneCycleLR divides by zero where it takes one step
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps, pct_start=warmup)
    for step in range(steps):
        inputs, _ = batch(*draw(32, rng))
        labels = inputs["input_ids"].clone()
        labels[:, :-4] = -100
        loss = finder(**inputs, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(finder.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.2f}", flush=True)
    return finder.eval()


@torch.no_grad()
def find(finder: Any, pictures: list[Image.Image]) -> Tensor:
    """(n, 4) boxes in pixels of the pictures, as `generate` writes them."""
    inputs, plans = batch(pictures, [[0, 0, 0, 0]] * len(pictures))
    inputs |= {key: inputs[key][:, :-4] for key in ("input_ids", "attention_mask")}
    written = finder.generate(**inputs, max_new_tokens=4, do_sample=False)[:, -4:]
    pixels = (written - FIRST) % STEPS * STEP
    return torch.stack([plan.decode_boxes(box) for plan, box in zip(plans, pixels, strict=True)])


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union (IoU) of boxes (..., 4)."""
    shared = (torch.minimum(one, other)[..., 2:] - torch.maximum(one, other)[..., :2]).clamp(min=0).prod(-1)
    area, others = ((box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1) for box in (one, other))
    return shared / (area + others - shared)


def score(finder: Any, *, new: bool = False, count: int = 200) -> tuple[float, float]:
    """The mean IoU of what `finder` writes, and of the best box that is the same share of every picture."""
    pictures, boxes = draw(count, np.random.default_rng(1), new=new)
    truth = torch.tensor(boxes, dtype=torch.float64)
    shares = truth / torch.tensor([picture.size * 2 for picture in pictures])
    best = overlap(shares[:, None], shares).mean(1).max()
    return overlap(find(finder, pictures), truth).mean().item(), best.item()


def main(steps: int = 600) -> None:
    """Train, and print the scores in sizes of training, and in those that it never saw."""
    finder = train(steps)
    for kind, new in (("of training", False), ("that it never saw", True)):
        found, best = score(finder, new=new)
        print(f"mean IoU in sizes {kind}: {found:.2f}; of the best box that is the same for all: {best:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="optimiser steps")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; expected at least 1")
    main(options.steps)
