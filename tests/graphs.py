"""Compiles and exports the functions of `mrope.tracing`; run by test_shapes."""

from __future__ import annotations

import torch

from mrope import GridLayout, Image, Span, Text, Video
from mrope.tracing import decode_ids, run_ids, runs_of

STAMPS = GridLayout(time="stamps")
PROMPT: list[Span] = [Text(1), Video((3, 4, 6), stamp=2), Video((2, 2, 2), stamp=(0, 3)), Text(1)]
OTHERS: list[tuple[GridLayout, list[Span]]] = [
    (GridLayout(), [Text(3), Video((5, 4, 8)), Image((1, 6, 4)), Text(2)]),
    (GridLayout(time="seconds", ids_per_second=2), [Video((3, 4, 8), seconds=1.5), Text(2)]),
]


class Ids(torch.nn.Module):
    """The ids of a row with as many slots as `tokens`."""

    def forward(
        self, begins: torch.Tensor, origins: torch.Tensor, columns: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        return run_ids(begins, origins, columns, tokens.shape[0])


def inputs_of(layout: GridLayout, spans: list[Span]) -> tuple[torch.Tensor, ...]:
    runs = runs_of(spans, layout)
    return runs.begins, runs.origins, runs.columns, torch.zeros(layout(spans).length)


def main() -> None:
    wanted = STAMPS(PROMPT)
    compiled = torch.compile(Ids(), fullgraph=True, backend="eager", dynamic=True)
    for layout, spans in [(STAMPS, PROMPT), *OTHERS]:
        assert torch.equal(compiled(*inputs_of(layout, spans)), layout(spans).ids)
    decode = torch.compile(decode_ids, fullgraph=True, backend="eager", dynamic=True)
    slots = wanted.length + torch.arange(4)[None]
    assert torch.equal(decode(torch.tensor([wanted.offset]), slots)[:, 0], wanted.decode(4).ids)
    print("compiled")

    runs, tokens = torch.export.Dim("runs", min=2), torch.export.Dim("tokens", min=2)
    shapes = ({0: runs}, {0: runs}, {0: runs}, {0: tokens})
    program = torch.export.export(Ids(), inputs_of(STAMPS, PROMPT), dynamic_shapes=shapes)
    for layout, spans in OTHERS:
        assert torch.equal(program.module()(*inputs_of(layout, spans)), layout(spans).ids)
    print("exported")


if __name__ == "__main__":
    main()
