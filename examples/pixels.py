"""Plan pictures and clips, cut them into patches, and find the way back to their pixels.

Run it: python examples/pixels.py
"""

import torch

import mrope
from mrope.data import asset
from mrope.vision import Resized, fold_normalization, load, patchify, plan, plan_sizes, plan_video, unpatchify

page, photo = asset("page.png"), asset("photo.jpg")
for name in ("qwen3-vl", "hunyuan-vl", "minicpm-v4.7", "neomme"):
    family = mrope.family(name)
    seen = plan(photo, family)
    print(f"{name}: {[part.grid for part in seen.parts][:2]}, {seen.tokens} tokens, {seen.prompt_tokens} in a prompt")

family = mrope.family("qwen3-vl")
many = plan_sizes([(480, 640), (1080, 1920), (9, 2048)], family, max_tokens=1280, conflict="skip")
print("tokens of three sizes:", many.tokens.tolist())
print("padded:", plan((9, 2048), family, conflict="pad").canvas)
minute = plan_video((60, 720, 1280), family, fps=1.0)
print(f"a minute: grid {minute.grid}, {minute.tokens} tokens, {minute.prompt_tokens} with time stamps")

patches = patchify([page, photo], family, max_tokens=600)
print("patches", tuple(patches.values.shape), "of grids", patches.grids.tolist())
first, second = unpatchify(patches)
again = patchify(Resized(second, patches.plans[1]), family)
print("cut again, not resized again:", torch.equal(again.values, patches.values[-len(again.values) :]))

raw = patchify([page, photo], family, max_tokens=600, dtype="uint8")
print("bytes, an eighth:", patches.values.nbytes // raw.values.nbytes)
embed = torch.nn.Conv3d(3, 64, (2, 16, 16), stride=(2, 16, 16))
folded = fold_normalization(embed, mean=family.mean, std=family.std, temporal_patch=2)
same = folded(raw.values.view(-1, 3, 1, 16, 16)), embed(patches.values.view(-1, 3, 2, 16, 16))
print("the same from both:", torch.allclose(*same, atol=1e-5))

box = patches.plans[1].encode_boxes(torch.tensor([100.0, 200.0, 300.0, 400.0]))
print("a box as the model writes it:", box.round().int().tolist(), "of", load(photo).shape)
