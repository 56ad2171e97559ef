"""Without any positions, a causal mask alone lets attention count (NoPE, arXiv:2305.19466).

Token n sees n + 1 tokens, itself included. Let all queries be zero, so that attention is uniform, and let the first
token (BOS) be the only one whose value has a 1 in some channel: that channel of the output is 1 / (n + 1), and its
inverse is the position. The construction is exact. Without the mask every token sees all N tokens, the channel is 1 / N
everywhere, and no later layer can tell places apart.

Nor does it take a construction: one layer of random weights, on random tokens, already has the index in its outputs. A
small probe, trained on some rows, reads it from others. It is judged by R^2, the share of the variance of the index
that it explains: a probe that knows nothing gets 0, or less if it fancied something in the rows it was trained on.

Letters: B rows, N tokens, C channels.

Run it: python examples/seeds/nope_counts.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, one_hot, scaled_dot_product_attention

TOKENS, CHANNELS, WORDS = 48, 64, 20
STEPS, TRAIN, TEST = 150, 64, 64


def constructed(*, causal: bool) -> Tensor:
    """(N,) what uniform attention over a one-hot BOS gives each token."""
    tokens = torch.zeros(1, 1, TOKENS, dtype=torch.int64)  # BOS is word 0
    tokens[..., 1:] = torch.randint(1, WORDS, (TOKENS - 1,))
    values = one_hot(tokens, WORDS).float()
    return scaled_dot_product_attention(torch.zeros_like(values), values, values, is_causal=causal)[0, 0, :, 0]


def random_layer(rows: int, *, causal: bool) -> Tensor:
    """(B, N, C) outputs of one layer of random weights, the same in every call, on random rows that begin with BOS."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randn(WORDS, CHANNELS, generator=generator)
    weights = torch.randn(3, 1, CHANNELS, CHANNELS, generator=generator) / CHANNELS**0.5
    tokens = torch.randint(1, WORDS, (rows, TOKENS))
    tokens[:, 0] = 0
    x = words[tokens]
    q, k, v = x @ weights
    return scaled_dot_product_attention(q, k, v, is_causal=causal)


def probed(*, causal: bool) -> float:
    """R^2, on rows that it never saw, of a small probe that is trained to read the index of a token."""
    torch.manual_seed(0)
    index = torch.linspace(-1, 1, TOKENS)[:, None] * 3**0.5  # of variance 1
    probe = nn.Sequential(nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 64), nn.GELU(), nn.Linear(64, 1))
    outputs, unseen = random_layer(TRAIN, causal=causal), random_layer(TEST, causal=causal)
    optimizer = torch.optim.AdamW(probe.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(probe(outputs), index.expand(TRAIN, -1, -1)).backward()
        optimizer.step()
    with torch.no_grad():
        return 1 - (mse_loss(probe(unseen), index.expand(TEST, -1, -1)) / index.var(correction=0)).item()


def main() -> dict[str, float]:
    """Print what causal and bidirectional attention know of the index of a token, and return it."""
    torch.manual_seed(0)
    numbers: dict[str, float] = {}
    index = torch.arange(TOKENS)
    print(f"uniform attention over {TOKENS} tokens, one-hot BOS:")
    for name, causal in (("causal", True), ("bidirectional", False)):
        output = constructed(causal=causal)
        numbers[f"{name} counts"] = (1 / output - 1 - index).abs().max().item()
        shown = " ".join(f"{1 / value - 1:.0f}" for value in output[:6].tolist())
        print(f"  {name:13}  1 / output - 1 = {shown} ..., off by at most {numbers[f'{name} counts']:.2g}")
    print("one layer of random weights; a probe of the index, on unseen rows:")
    for name, causal in (("causal", True), ("bidirectional", False)):
        numbers[name] = probed(causal=causal)
        print(f"  {name:13}  R^2 {numbers[name]:.2f}")
    return numbers


if __name__ == "__main__":
    main()
