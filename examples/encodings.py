"""Splits, context extensions, encodings and attention with a cache: the third program of the README."""

import torch

import mrope
from mrope import AxisSplit, Frequencies, Rotary
from mrope.attention import KVCache, attend
from mrope.encodings import Alibi, Dinov3Rope, patch_coordinates
from mrope.extensions import Ntk, Yarn
from mrope.ops import choose
from mrope.probes import audit_encoding

torch.manual_seed(0)
prompt = mrope.family("qwen3-vl").positions(["text:4", "image:1x8x12", "text:3"])
q, k, v = torch.randn(1, 4, 31, 128), torch.randn(1, 2, 31, 128), torch.randn(1, 2, 31, 128)

split = AxisSplit.parse("TTHWHWHW*8")  # which axis each pair reads: MM-RoPE
print("pairs of t, h, w:", split.counts, "and in this ratio:", AxisSplit.by_ratio((2, 3, 3), 32).counts)
time_alone = Frequencies(5e6, (Ntk(4), None, None))  # an extension for each axis
rotary = Rotary(split, time_alone)
print("slowest pair of t:", *(f"{each.inv_freq(128, split.axis)[57]:.2e}" for each in (Frequencies(5e6), time_alone)))
config = {"model_type": "qwen2_5_vl", "rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 32768}
released = Rotary.from_config(config)
print("from a configuration:", released.frequencies.extension == Yarn(4.0, 32768))

for encoding in (rotary, Alibi(heads=4, axes=3)):
    whole = attend(q, k, v, encoding=encoding, positions=prompt)
    cache, first = KVCache(), 0
    for chunk in prompt.chunks(16):  # keys are turned once, and cached turned
        new = slice(first, first + chunk.length)
        last = attend(q[:, :, new], k[:, :, new], v[:, :, new], encoding=encoding, positions=chunk, cache=cache)
        first += chunk.length
    print(
        type(encoding).__name__, "in chunks as in one:", torch.allclose(last, whole[:, :, -last.shape[2] :], atol=1e-5)
    )

vision = Dinov3Rope(64)
print("DINOv3 over 3 x 5 patches:", tuple(vision.cos_sin(patch_coordinates((3, 5), rule="centres"))[0].shape))
print("it keeps:", audit_encoding(vision, axes=2, head_dim=64))
print("rotated by", choose(q, k, *rotary.cos_sin(prompt)))
