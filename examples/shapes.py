"""A prompt in the shapes of training and serving: padded, packed, cut, sharded, decoded, and gone on with."""

import mrope
from mrope.layouts import VideoRopeLayout

family = mrope.family("qwen3-vl")
chat = family.positions(["text:4", "image:1x4x8", "text:3"])
clip = family.positions(["video:2x4x4+5", "text:2"])  # 5 tokens of time stamp before each frame

batch = mrope.batch([chat, clip])  # padded on the left, for generation
print("batch", tuple(batch.ids.shape), "goes on at", batch.decode(1).ids[0, :, 0].tolist())
packed = mrope.pack([row.pad(multiple=8, side="right") for row in (chat, clip)])
print("packed", packed.cu_seqlens.tolist(), "first of two ranks:", packed.shard(0, 2).text.tolist())
print("prefilled in chunks of", [chunk.ids.shape[1] for chunk in chat.chunks(6)])
drafts = chat.decode(4)
print("drafts at positions", drafts.ids[0].tolist(), "in slots", drafts.text.tolist())
print("two of them stay:", chat.decode(2, skip=2).ids[0].tolist())
turn = family.positions(["image:1x8x4", "text:2"], start=chat)  # a new picture on top of the cache
print("the next turn begins in slot", turn.text[0].item(), "at", turn.ids[:, 0].tolist())
cut = mrope.truncate([mrope.Text(4), mrope.Image((1, 4, 8)), mrope.Text(3)], 9, family.layout, cut="drop")
print("cut to 9 tokens:", *cut.spans, "without", *cut.dropped)
spans = [mrope.Text(3), mrope.Video((6, 4, 4)), mrope.Text(1)]
for layout in (mrope.GridLayout(), mrope.GridLayout(advance="side"), VideoRopeLayout(delta=2)):
    print(layout(spans).ids[:, -2:].T.tolist(), layout)
