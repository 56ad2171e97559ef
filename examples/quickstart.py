"""From the size of a picture to rotated queries, in fifteen lines."""

import torch

import mrope
from mrope.data import asset

family = mrope.family("qwen2.5-vl")
plan = family.plan((480, 640))  # height, width; nothing is decoded
print("480 high x 640 wide ->", plan.resized, "grid", plan.grid, "tokens", plan.tokens)
patches = family.patchify(asset("photo.jpg"), max_tokens=200)
print(patches.plans[0].original, "->", patches.plans[0].resized, "patches", tuple(patches.values.shape))
prompt = family.positions(["text:4", mrope.Image(plan.grid), "text:1"])
first, last, text = (prompt.ids[:, token].tolist() for token in (4, -2, -1))
print("picture (t, h, w) from", first, "to", last, "and text at", text)
print(f"decoding goes on at {prompt.next} = {prompt.length} tokens {prompt.offset:+}")
q, k = family.rotary()(torch.randn(28, prompt.length, 128), torch.randn(4, prompt.length, 128), prompt)
print("rotated", tuple(q.shape), tuple(k.shape))
