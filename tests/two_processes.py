"""What one of two processes computes on the CPU; test_training_shapes starts them with torchrun and compares.

Each function has a twin there, or in here with one process: the whole at once.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import mrope
from mrope import Image, Text, Video
from mrope.attention import EncodedAttention, attend
from mrope.hf import Collator, plug


def records() -> list[dict[str, Any]]:
    """Two records of different lengths: a picture in one, a long clip in the other."""
    from tiny_models import clip, sample

    rows = [
        [Text(4), Image((1, 4, 6)), Text(5)],
        [Text(3), clip("qwen2-vl", (5, 4, 2)), Text(2), Image((1, 2, 8)), Text(9)],
    ]
    return [sample("qwen2-vl", [row], seed=number).inputs for number, row in enumerate(rows)]


def learnt(batch: dict[str, Any]) -> int:
    """How many tokens the loss is of."""
    return int((batch["labels"][:, 1:] != -100).sum())


def step(model: Any, batch: dict[str, Any], share: float) -> Tensor:
    """The summed loss of a batch, times `share`, without position ids: the plug makes them."""
    inputs = {name: value for name, value in batch.items() if name != "position_ids"}
    loss = model(**inputs).loss * learnt(batch) * share
    loss.backward()
    return loss.detach()


def fully_sharded(path: str | None = None) -> dict[str, Tensor]:
    """Loss and gradients of the mean over all learnt tokens; with FSDP2, one record a process, or all in this one."""
    from tiny_models import tiny_model
    from torch.distributed.fsdp import fully_shard

    model = tiny_model("qwen2-vl").train()
    collate, all_records = Collator(model), records()
    tokens = sum(learnt(collate([record])) for record in all_records)
    mine, world = all_records, 1
    if path is not None:
        mine, world = [all_records[dist.get_rank()]], dist.get_world_size()
        for layer in model.model.language_model.layers:
            fully_shard(layer)
        fully_shard(model)  # the vision tower with it: processes run it once for pictures and once for clips, or not
    with plug(model):
        loss = step(model, collate(mine), world / tokens)  # FSDP2 gives the mean of the gradients of all processes
    grads: dict[str, Any] = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    if path is not None:
        dist.all_reduce(loss)
        grads = {name: grad.full_tensor() for name, grad in grads.items()}
    return {"loss": loss / world, **grads}


def row() -> mrope.Positions:
    """Two documents in one row, each padded to what two ranks can share."""
    layout = mrope.GridLayout()
    spans = [[Text(5), Image((1, 4, 8)), Text(2)], [Video((3, 4, 2)), Text(6)]]
    return mrope.pack([layout(one).pad(multiple=4, side="right") for one in spans])


class Sharded(EncodedAttention):
    """Attention whose queries are those of one rank, and whose keys are gathered from all."""

    def across(self, x: Tensor, mine: mrope.Positions, keys: mrope.Positions) -> Tensor:
        from torch.distributed.nn.functional import all_gather

        q, k, v = (part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = (torch.cat(all_gather(each.contiguous()), dim=2) for each in (k, v))
        seen = attend(q, k, v, encoding=self.encoding, positions=mine, keys=keys, mask=self.mask)
        return self.out(seen.transpose(1, 2).flatten(2))


def context_parallel(path: str | None = None) -> dict[str, Tensor]:
    """Positions, outputs and gradients of one attention over a packed row, each process with its shard of it."""
    torch.manual_seed(0)
    packed = row()
    x, weights = torch.randn(1, len(packed.segments), 256), torch.randn(1, len(packed.segments), 256)
    module = Sharded(256, 2, kv_heads=1, encoding=mrope.family("qwen2-vl").rotary())
    kept = packed.segments != -1
    if path is None:
        out = module(x, packed)
        (out * weights)[:, kept].sum().backward()
        grads = {name: one.grad for name, one in module.named_parameters()}
        return {"ids": packed.ids, "out": out.detach()[:, kept], **grads}  # pyright: ignore[reportReturnType]
    rank, world = dist.get_rank(), dist.get_world_size()
    index = mrope.shard_index(packed.segments, world)
    mine, slots = packed.shard(rank, world), index[rank]
    out = module.across(x[:, slots], mine, packed.take(index.flatten()))
    (out * weights[:, slots])[:, mine.segments != -1].sum().backward()
    grads = {}
    for name, one in module.named_parameters():
        assert one.grad is not None
        dist.all_reduce(one.grad)
        grads[name] = one.grad
    ids = [torch.empty_like(mine.ids) for _ in range(world)]
    outs = [torch.empty_like(out) for _ in range(world)]
    dist.all_gather(ids, mine.ids.contiguous())
    dist.all_gather(outs, out.detach().contiguous())
    whole = mrope.unshard([one.transpose(1, 2) for one in outs], index).transpose(1, 2)
    return {"ids": mrope.unshard(ids, index), "out": whole[:, kept], **grads}


def main(what: str, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    made = {"fsdp": fully_sharded, "context": context_parallel}[what](path)
    if dist.get_rank() == 0:
        torch.save(made, path)
    dist.barrier()  # a process that leaves early takes the other's last messages with it
    os._exit(0)  # the threads of gloo may abort a process that is taken down while they run


if __name__ == "__main__":
    main(*sys.argv[1:])
