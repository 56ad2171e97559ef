"""What an export wrote, read back: by number for a DataLoader, or from a sample of the package webdataset."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

import mrope
from mrope.layouts import OmniLayout
from mrope.vision import Part, Patches, Plan

from ..scanning.store import Catalogue


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """One exported picture, page or clip.

    Args:
        key: of its sample in the shard.
        source: where it came from, as the scan calls it.
        kind: "picture", "page" or "clip".
        patches: its patches as bytes, with its plan: what `patchify(..., dtype="uint8")` made.
        labels: what stood beside it in its source: the other fields of a table's row, of Parquet but those of bytes, or
            {"json": ..., "txt": ..., "cls": ...} of a shard; None where there is nothing.
    """

    key: str
    source: str
    kind: str
    patches: Patches
    labels: Any

    @property
    def plan(self) -> Plan:
        """Its sizes, grids, tokens and spans."""
        return self.patches.plans[0]

    def record(self) -> dict[str, Tensor]:
        """What a record for `mrope.hf.Collator` takes of it, beside its input_ids: patches, grids and times."""
        if self.kind != "clip":
            return {"pixel_values": self.patches.values, "image_grid_thw": self.patches.grids}
        made = {"pixel_values_videos": self.patches.values, "video_grid_thw": self.patches.grids}
        seconds = [span.seconds for span in self.plan.spans or () if isinstance(span, mrope.Video)]
        if None in seconds or not seconds:
            return made
        omni = isinstance(mrope.family(self.plan.family).layout, OmniLayout)
        return {**made, "video_second_per_grid" if omni else "second_per_grid_ts": torch.tensor(seconds)}


def exported_item(sample: Mapping[str, Any]) -> Exported:
    """The item of a sample that the package webdataset read from an exported shard, decoded or not.

        webdataset.WebDataset(urls, shardshuffle=100).shuffle(1000).map(exported_item)

    Raises:
        ValueError: it is no such sample.
    """
    if missing := [name for name in ("__key__", "patches.npy", "json") if name not in sample]:
        raise ValueError(
            f"the sample holds {', '.join(map(str, sample))}; expected {missing[0]}, as `mrope export` writes it"
        )
    values, words = sample["patches.npy"], sample["json"]
    if isinstance(values, bytes):
        values = np.load(io.BytesIO(values), allow_pickle=False)
    if isinstance(words, bytes):
        words = json.loads(words)
    planned = _plan(words["plan"])
    grids = torch.tensor([part.grid for part in planned.parts])
    patches = Patches(
        torch.from_numpy(values), grids, (planned,), tuple(words["mean"]), tuple(words["std"]), words["order"]
    )
    return Exported(sample["__key__"], words["source"], words["kind"], patches, words["labels"])


class ExportedItems(torch.utils.data.Dataset[Exported]):
    """The items of an export by number, for `DataLoader(items, batch_sampler=...)`; an item's number is its row's.

    Nothing is held but some 30 bytes an item; each is read where it lies, by any number of workers.

    Args:
        out: the folder of the export.

    Attributes:
        tokens: (M,) the tokens of each item; 0 of those that could not be exported.
        numbers: the numbers of those that could: what a sampler may draw.

    Raises:
        ValueError: it is no export, or one that is not done.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        catalogue = Catalogue(out)
        if not catalogue.settings.get("shards"):
            raise ValueError(f"{out} holds a scan; expected the folder that `mrope export` wrote")
        (limit,) = catalogue.limits
        self.out = Path(out)
        places: dict[str, int] = {}
        tokens, shards, offsets = [np.empty(0, np.int64)], [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for batch in catalogue.rows([f"tokens_{limit}", "shard", "offset"]):
            names = batch["shard"].dictionary_encode()
            known = [places.setdefault(name, len(places)) for name in names.dictionary.to_pylist()]
            tokens.append(batch[f"tokens_{limit}"].fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
            indices = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            shards.append(np.array([*known, -1], np.int32)[indices])
            offsets.append(batch["offset"].fill_null(-1).to_numpy(zero_copy_only=False))
        self.shards = list(places)
        self._shard, self._offset = np.concatenate(shards), np.concatenate(offsets)
        there = self._shard >= 0
        self.tokens: Int64[np.ndarray, " m"] = np.where(there, np.concatenate(tokens), 0)
        self.numbers: Int64[np.ndarray, " n"] = np.flatnonzero(there)

    def __len__(self) -> int:
        """M, with those that could not be exported."""
        return len(self._shard)

    def __getitem__(self, number: int) -> Exported:
        """The item with this number.

        Raises:
            TypeError: it is no whole number.
            IndexError: there is none.
            ValueError: it could not be exported.
        """
        if not hasattr(number, "__index__"):
            raise TypeError(f"number is {number!r:.60}; expected a whole number")
        if not 0 <= number < len(self):
            raise IndexError(f"number is {number}; expected 0 to {len(self) - 1}")
        if self._shard[number] < 0:
            raise ValueError(
                f"item {number} has no patches: its row in {self.out / 'rows'} says why; expected one of numbers"
            )
        with open(self.out / "shards" / self.shards[self._shard[number]], "rb") as file:
            file.seek(int(self._offset[number]))
            with tarfile.open(fileobj=file, mode="r:") as shard:
                sample: dict[str, Any] = {}
                for _ in range(2):
                    member = shard.next()
                    assert member is not None  # as the index says
                    key, _, extension = member.name.partition(".")
                    sample |= {"__key__": key, extension: cast(Any, shard.extractfile(member)).read()}
        return exported_item(sample)


def _plan(words: Mapping[str, Any]) -> Plan:
    """A plan that was written as JSON."""
    facts = {name: _tuples(value) for name, value in words.items()}
    facts["parts"] = tuple(Part(**{name: _tuples(value) for name, value in part.items()}) for part in words["parts"])
    if words["spans"] is not None:
        facts["spans"] = tuple(
            getattr(mrope, kind)(**{name: _tuples(value) for name, value in span.items()})
            for kind, span in words["spans"]
        )
    return Plan(**facts)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
