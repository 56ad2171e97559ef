"""Log-probabilities of a closed set of answers behind a prompt, and rows of a model's inputs in one batch.

The rule: the score of a choice is the sum of the log-probabilities of its tokens behind the prompt; a longer choice
pays for each of its tokens, and nothing is divided by their number. Where the tokens of one choice begin another, which
could then never win, each choice also pays for the end of the answer behind it.

Letters: B rows, N tokens, K tokens whose logits are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Step = tuple[int, ...]
"""The tokens that may stand in one place of an answer: one, or at its end all that end it."""


def choice_steps(choices: Sequence[str], tokenizer: Any, prompt: str, ends: Sequence[int]) -> dict[str, list[Step]]:
    """The steps of each choice: its tokens as they are written behind `prompt`, and its end where that is needed.

    Args:
        choices: the closed set.
        tokenizer: of transformers, or a function that gives `input_ids` as one.
        prompt: as text, "" where it is not known; tokens that the choice would share with it are those of the choice
            alone.
        ends: the tokens that end an answer.

    Raises:
        ValueError: a choice has no tokens, or two have the same, or one begins another and nothing ends an answer.
    """
    tokens = {choice: _tokens(choice, tokenizer, prompt) for choice in choices}
    seen: dict[tuple[int, ...], str] = {}
    for choice, row in tokens.items():
        if not row:
            raise ValueError(f"choice {choice!r} has no tokens; expected words that the tokenizer knows")
        if (other := seen.setdefault(row, choice)) != choice:
            raise ValueError(f"choices {other!r} and {choice!r} have the same tokens {list(row)}; expected others")
    steps = {choice: [(token,) for token in row] for choice, row in tokens.items()}
    if any(row[:length] in seen for row in seen for length in range(1, len(row))):
        if not ends:
            raise ValueError("one choice begins another, and the model has no eos_token_id; expected one, or others")
        steps = {choice: [*row, tuple(ends)] for choice, row in steps.items()}
    return steps


def _tokens(choice: str, tokenizer: Any, prompt: str) -> tuple[int, ...]:
    before, whole, alone = (
        tuple(tokenizer(text, add_special_tokens=False).input_ids) for text in (prompt, prompt + choice, choice)
    )
    return whole[len(before) :] if whole[: len(before)] == before else alone


def suffixes(steps: Mapping[str, Sequence[Step]]) -> list[tuple[int, ...]]:
    """What must stand behind the prompt, a row each, so that every step of every choice is predicted somewhere."""
    heads = {tuple(token for (token, *_) in row[:-1]) for row in steps.values()}
    return sorted(head for head in heads if not any(head == more[: len(head)] for more in heads if more != head))


def choice_scores(
    steps: Mapping[str, Sequence[Step]], rows: Sequence[tuple[int, ...]], logits: Sequence[Tensor]
) -> dict[str, float]:
    """The score of each choice.

    Args:
        steps: of each choice.
        rows: what stood behind the prompt, as `suffixes` gives it.
        logits: for each row (len(row) + 1, vocabulary): behind the prompt, and behind each token of the row.
    """
    tables = [one.float().log_softmax(-1) for one in logits]
    scores = {}
    for choice, row in steps.items():
        head = tuple(token for (token, *_) in row[:-1])
        table = next(table for behind, table in zip(rows, tables, strict=True) if behind[: len(head)] == head)
        scores[choice] = sum(table[at, list(step)].logsumexp(-1).item() for at, step in enumerate(row))
    return scores


def joined(rows: Sequence[Mapping[str, Any]], behind: Sequence[Sequence[int]], pad: int) -> dict[str, Any]:
    """Inputs of B rows, each with more tokens behind it, as one batch that is padded on the left.

    Args:
        rows: inputs of one row each: input_ids (1, N), what else there is for each token, and of pictures and clips
            tensors that go one behind the other, or lists.
        behind: tokens to add to each row.
        pad: the token of padding.
    """
    made = [_extended(row, more) for row, more in zip(rows, behind, strict=True)]
    longest = max(row["input_ids"].shape[1] for row in made)
    batch: dict[str, Any] = {}
    for name, first in made[0].items():
        if _by_token(first, made[0]):
            value = pad if name == "input_ids" else 0
            padded = [
                torch.nn.functional.pad(row[name], (longest - row[name].shape[1], 0), value=value) for row in made
            ]
            batch[name] = torch.cat(padded)
        elif isinstance(first, Tensor):
            batch[name] = torch.cat([row[name] for row in made if name in row])
        else:
            batch[name] = [one for row in made for one in row[name]]
    return batch


def _by_token(value: Any, row: Mapping[str, Any]) -> bool:
    return isinstance(value, Tensor) and value.shape == row["input_ids"].shape


def _extended(row: Mapping[str, Any], more: Sequence[int]) -> dict[str, Any]:
    """A row of inputs with tokens behind it, which are text."""
    tokens = row["input_ids"]
    row = {"attention_mask": torch.ones_like(tokens), **row}
    new = {"input_ids": torch.tensor([more], dtype=tokens.dtype), "attention_mask": torch.ones(1, len(more))}
    return {
        name: torch.cat([value, new.get(name, torch.zeros(1, len(more))).to(value)], dim=1)
        if _by_token(value, row)
        else value
        for name, value in row.items()
    }
