"""Swap the allocation of a Qwen3-VL-shaped model, and see what changes: pictures do, text does not.

An allocation says which rotary pair reads which axis. A word has the same position on all three axes, so that whatever
axis a pair reads, it reads the same number: on text, every allocation is plain 1-D RoPE, to the bit. A patch has three
different positions, and which of them turns the fast pairs decides what the model tells apart most easily. HoPE
(arXiv:2505.20444) is the exception: it stops the pairs of time and so changes text as well, hardly at all a short one,
since they are the slowest pairs.

The model is tiny and its weights are random, but its heads have the released 128 channels, so that all tables are those
of the released ones. Only the allocation is swapped; VideoRoPE and HoPE also lay out clips in their own way.

Letters: B batch, N tokens, F rotary pairs.

Run it: python examples/swap_allocations.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import mrope
from mrope import AxisSplit, Frequencies, Image, Rotary, Text
from mrope.extensions import Zero

FAMILY = mrope.family("qwen3-vl")
PLAIN = FAMILY.frequencies
ALLOCATIONS = {
    "interleaved (Qwen3-VL)": Rotary(AxisSplit((24, 20, 20), "interleaved"), PLAIN),
    "chunked": Rotary(AxisSplit((24, 20, 20)), PLAIN),
    "alternating": Rotary(AxisSplit((24, 20, 20), "alternating"), PLAIN),
    "MM-RoPE": Rotary(AxisSplit.parse("TTHWHWHW*8"), PLAIN),
    "VideoRoPE": Rotary(AxisSplit.parse("HW*24 T*16"), PLAIN),
    "HoPE": Rotary(AxisSplit.parse("HW*24 T*16"), Frequencies(PLAIN.base, (Zero(), None, None))),
}
WORDS, IMAGE = 500, 500  # the token of a picture comes after those of words
PICTURE = Image((1, 8, 12))  # patches; a quarter as many tokens
BEFORE, AFTER = 5, 20  # words
FAR = 100_000  # words


def tiny_qwen3_vl() -> Any:
    """A Qwen3-VL of two layers with random weights, always the same."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 128}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": PLAIN.base, "mrope_section": [24, 20, 20]}}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 256}
    vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": []}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=IMAGE + 1)
    config._attn_implementation = "eager"  # it alone hands out its attention
    torch.manual_seed(0)
    return Qwen3VLForConditionalGeneration(config).eval()


@contextmanager
def swapped(model: Any, rotary: Rotary) -> Iterator[None]:
    """`model` with cos and sin of `rotary` in place of its own: an attribute of the instance shadows the method."""

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = rotary.cos_sin(position_ids)  # (B, N, F); transformers wants both halves
        return torch.cat((cos, cos), dim=-1).to(x.dtype), torch.cat((sin, sin), dim=-1).to(x.dtype)

    module = model.model.language_model.rotary_emb
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def kernel(rotary: Rotary, t: int, h: int, w: int) -> float:
    """K: the mean of cos over all pairs, at this distance; 1 where the rotation does not see it."""
    return rotary.cos_sin(torch.tensor([[t], [h], [w]]))[0].mean().item()


def wavelengths(rotary: Rotary, axis: int) -> list[float]:
    """The shortest and the longest wavelength of the pairs that read `axis`, in positions."""
    of_pair = rotary.split.axis
    inv_freq = rotary.frequencies.inv_freq(rotary.split.rotary_dim, of_pair)[of_pair == axis]
    return [(2 * math.pi / pace).item() for pace in (inv_freq.max(), inv_freq.min())]


@torch.no_grad()
def main() -> dict[str, dict[str, float]]:
    """Print what each allocation changes in the model and in its kernels, and return it for each of them."""
    model = tiny_qwen3_vl()
    generator = torch.Generator().manual_seed(1)
    cells = PICTURE.grid[1] * PICTURE.grid[2] // FAMILY.merge**2
    text = torch.randint(WORDS, (1, BEFORE + AFTER), generator=generator)
    row = torch.cat((text[:, :BEFORE], torch.full((1, cells), IMAGE), text[:, BEFORE:]), dim=-1)
    pixels = torch.randn(math.prod(PICTURE.grid), 3 * 2 * 16**2, generator=generator)
    seen = {"pixel_values": pixels, "image_grid_thw": torch.tensor([PICTURE.grid])}
    words = FAMILY.positions([Text(BEFORE + AFTER)]).ids[:, None]
    prompt = FAMILY.positions([Text(BEFORE), PICTURE, Text(AFTER)]).ids[:, None]

    def run(rotary: Rotary) -> tuple[Tensor, Tensor, float]:
        """Logits of the text, logits of the prompt with the picture, and the last token's attention to the picture."""
        with swapped(model, rotary):
            of_text = model(input_ids=text, position_ids=words).logits
            output = model(input_ids=row, position_ids=prompt, output_attentions=True, **seen)
        share = torch.stack(output.attentions)[..., -1, BEFORE : BEFORE + cells].sum(-1).mean()
        return of_text, output.logits, share.item()

    trained = model(input_ids=text, position_ids=words).logits, model(input_ids=row, position_ids=prompt, **seen).logits
    numbers: dict[str, dict[str, float]] = {}
    print(f"{'':22}  change of logits   attention to   kernel K of neighbours")
    print(f"{'':22}    text   picture    the picture    next frame     below     right")
    for name, rotary in ALLOCATIONS.items():
        of_text, of_prompt, share = run(rotary)
        numbers[name] = {
            "text": (of_text - trained[0]).abs().max().item(),
            "picture": (of_prompt - trained[1]).abs().max().item(),
            "attention": share,
            "next frame": kernel(rotary, 1, 0, 0),
            "below": kernel(rotary, 0, 1, 0),
            "right": kernel(rotary, 0, 0, 1),
            "far text": kernel(rotary, FAR, FAR, FAR),
        }
        text_change, change, share, frame, below, right, _ = numbers[name].values()
        print(
            f"{name:22}  {text_change:6.0e}   {change:7.2f}   {share:12.3f}    {frame:10.6f}  {below:.6f}  {right:.6f}"
        )
    print("\nwavelengths of its pairs, in positions")
    for name, rotary in ALLOCATIONS.items():
        shown = ""
        for a, axis in enumerate("thw"):
            shortest, longest = wavelengths(rotary, a)
            numbers[name] |= {f"shortest {axis}": shortest, f"longest {axis}": longest}
            reach = f"{shortest:,.0f} to {longest:,.0f}" if shortest < math.inf else "does not turn"
            shown += f"{axis} {reach}".ljust(28)
        print(f"{name:22}  {shown.rstrip()}")
    far, far_hope = (numbers[name]["far text"] for name in ("VideoRoPE", "HoPE"))
    print(f"\nK of two words at a distance of {FAR:,}: {far_hope:.2f} with HoPE, {far:.2f} with all others")
    return numbers


if __name__ == "__main__":
    main()
