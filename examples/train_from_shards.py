"""A built model trains on exported shards with FSDP2, is stopped by whatever, and goes on to the same loss.

Pictures of many sizes, each of one colour under noise, are cut into patches once, by `mrope export`. Training reads
bytes from its shards, packs whole pictures into rows of equal cost for all processes, normalises on the device, and
saves model, optimiser, sampler and random numbers with torch.distributed.checkpoint. Killed (kill -9) and started again
with the same command, it prints the same losses to the last digit as one that nobody stopped.

Run it: torchrun --nproc-per-node 2 examples/train_from_shards.py [--folder DIR] [--steps 60] [--every 10]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.distributed as dist
from PIL import Image
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from transformers import Qwen3Config

from mrope.data import Exported, ExportedItems, TokenBudgetSampler, write_export
from mrope.hf import Collator
from mrope.vision import normalize
from mrope.vlm import Vlm, build_vlm

FAMILY = "qwen2-vl"
COLOURS = ((200, 40, 40), (40, 160, 60), (40, 70, 200), (210, 190, 40), (150, 50, 170), (60, 60, 60))
BEGIN, ASK = len(COLOURS), len(COLOURS) + 1  # words, behind those for the colours
BESIDE = 3  # words of a record beside its picture
ROW = 160  # most tokens of a row, and of a process in a step


def prepare(folder: Path, pictures: int = 240) -> None:
    """Draw pictures and a table with what is in them, and export both to shards."""
    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(pictures):
        colour = int(rng.integers(len(COLOURS)))
        height, width = rng.integers(56, 200, 2).tolist()
        pixels = np.array(COLOURS[colour]) + rng.normal(0, 60, (height, width, 3))
        name = f"pictures/{number}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
        rows.append({"image": name, "colour": colour})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_export(folder / "train.jsonl", folder / "shards", family=FAMILY, max_tokens=ROW - BESIDE, workers=1)


def model() -> Vlm:
    """A fresh one, of 0.2 million parameters; with dropout, so that random numbers matter."""
    vision = timm.create_model(
        "vit_tiny_patch16_224", patch_size=14, img_size=56, embed_dim=48, depth=2, num_heads=2, num_classes=0
    )
    language = Qwen3Config(
        vocab_size=ASK + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        attention_dropout=0.1,
        bos_token_id=None,
        eos_token_id=None,
    )
    return build_vlm(vision, language, family=FAMILY)


class Rows:
    """What makes a packed batch of exported items."""

    def __init__(self, reader: Vlm) -> None:
        self.place, self.collate = reader.config.image_token_id, Collator(reader.config, pack=True)

    def __call__(self, items: list[Exported]) -> dict[str, Any]:
        return self.collate([self.record(item) for item in items])

    def record(self, item: Exported) -> dict[str, Any]:
        """A picture between two words, and its colour, which alone is learnt."""
        ids = [BEGIN, *[self.place] * item.plan.tokens, ASK, item.labels["colour"]]
        return {"input_ids": ids, "labels": [-100] * (len(ids) - 1) + ids[-1:], **item.record()}


class Training(Stateful):
    """All that a checkpoint holds."""

    def __init__(self, reader: Any, optimiser: torch.optim.Optimizer, sampler: TokenBudgetSampler) -> None:
        self.reader, self.optimiser, self.sampler = reader, optimiser, sampler
        self.step, self.random = 0, f"random numbers of process {dist.get_rank()}"

    def state_dict(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self.reader, self.optimiser)
        made = {"weights": weights, "moments": moments, "sampler": json.dumps(self.sampler.state_dict())}
        made |= {"step": self.step, self.random: torch.get_rng_state()}
        if torch.cuda.is_available():
            made[f"{self.random}, CUDA"] = torch.cuda.get_rng_state()
        return made

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        set_state_dict(
            self.reader,
            self.optimiser,
            model_state_dict=state_dict["weights"],
            optim_state_dict=state_dict["moments"],
        )
        self.sampler.load_state_dict(json.loads(state_dict["sampler"]))
        self.step = state_dict["step"]
        torch.set_rng_state(state_dict[self.random])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(state_dict[f"{self.random}, CUDA"])

    def save(self, folder: Path) -> None:
        """A checkpoint that is there as a whole, or not at all."""
        place = folder / f"step-{self.step:06d}"
        save({"training": self}, checkpoint_id=f"{place}.tmp")
        if dist.get_rank() == 0:
            before = sorted(folder.glob("step-??????"))
            Path(f"{place}.tmp").rename(place)
            for old in before:
                shutil.rmtree(old)
        dist.barrier()

    def load(self, folder: Path) -> None:
        """Go on from the checkpoint, where there is one."""
        if dist.get_rank() == 0:
            for unfinished in folder.glob("*.tmp"):
                shutil.rmtree(unfinished)
        dist.barrier()
        if found := sorted(folder.glob("step-??????")):
            load({"training": self}, checkpoint_id=str(found[-1]))


def train(folder: Path, steps: int, every: int) -> None:
    """Train up to `steps` in all, with a checkpoint behind each `every` steps."""
    rank, world = dist.get_rank(), dist.get_world_size()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, rank % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)
    torch.manual_seed(0)  # the same weights in all processes
    reader: Any = model()
    reader.to(device).train()
    family, rows = reader.config.record, Rows(reader)
    mesh = init_device_mesh(kind, (world,))
    for layer in reader.get_decoder().layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(reader, mesh=mesh)  # the vision encoder with it: it may run more often in one process than in another
    torch.manual_seed(rank + 1)  # but other dropout
    optimiser = torch.optim.AdamW(reader.parameters(), lr=2e-3, betas=(0.9, 0.98))
    items = ExportedItems(folder / "shards")
    costs = items.tokens[items.numbers] + BESIDE
    sampler = TokenBudgetSampler(costs, budget=ROW, drop_last=True)
    training = Training(reader, optimiser, sampler)
    training.load(folder / "checkpoints")
    if rank == 0 and training.step:
        print(f"goes on behind step {training.step}", flush=True)
    there: Any = torch.utils.data.Subset(items, items.numbers.tolist())
    while training.step < steps:
        # A loader that begins draws a seed, which must not be of the numbers that a checkpoint keeps. With workers, the
        # state to save is that of torchdata's StatefulDataLoader: they are ahead of the training.
        loader = DataLoader(there, batch_sampler=sampler, collate_fn=rows, generator=torch.Generator())
        for batch in loader:
            batch = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in batch.items()}
            batch["pixel_values"] = normalize(batch["pixel_values"], family)
            learnt = (batch["labels"] != -100).sum()
            dist.all_reduce(learnt)
            # FSDP2 takes the mean of all processes, and the loss is one of all that is learnt in a step.
            loss = reader(**batch, num_items_in_batch=learnt / world).loss
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
            optimiser.step()
            told = loss.detach() / world
            dist.all_reduce(told)
            training.step += 1
            if rank == 0:
                print(f"step {training.step}: loss {told.item()!r}", flush=True)
            if training.step % every == 0 or training.step == steps:
                training.save(folder / "checkpoints")
            if training.step == steps:
                return
        sampler.set_epoch(sampler.epoch + 1)


def main(folder: Path, steps: int = 60, every: int = 10) -> None:
    """Prepare what is missing, and train."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if dist.get_rank() == 0 and not (folder / "shards" / "report.html").exists():
        prepare(folder)
    dist.barrier()
    train(folder, steps, every)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("out/train_from_shards"), help="of shards and checkpoints")
    parser.add_argument("--steps", type=int, default=60, help="optimiser steps in all")
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    options = parser.parse_args()
    for name in ("steps", "every"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected at least 1")
    main(options.folder, options.steps, options.every)
