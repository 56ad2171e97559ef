"""Compiles plugged models; run by test_plug_families, without the run-time checks of annotations."""

from __future__ import annotations

import sys
from typing import Any

import torch
from plug_cases import CACHE
from plug_families import batch, by_hand, model_of, prompt
from transformers import CompileConfig, DynamicCache, StaticCache

from mrope.hf import plug


def goes_on(model: Any, inputs: dict[str, Any]) -> None:
    """A further turn on a cache that a compiled `generate` filled is as on one that it filled without."""
    compiled: Any = CompileConfig(backend="eager", fullgraph=False)
    compiled._compile_all_devices = True
    turn, logits = torch.tensor([[77, 78, 79], [87, 88, 89]]), []
    for way in ({"compile_config": compiled}, {"disable_compile": True}):
        memory = StaticCache(config=model.config.text_config, max_cache_len=inputs["input_ids"].shape[1] + 9)
        fixed = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
        whole = model.generate(**inputs, **fixed, **way, **{CACHE: memory})
        turn = torch.cat([whole[:, -1:], turn[:, -3:]], dim=1)
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, 8, dtype=torch.int64)], dim=1)
        logits.append(model(input_ids=turn, attention_mask=mask, **{CACHE: memory}).logits)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@torch.no_grad()
def main(model_types: list[str]) -> None:
    for model_type in model_types:
        model: Any = model_of(model_type)
        made = batch(model_type, prompt(model_type))
        ids, _ = by_hand(model_type, made)
        mask = torch.cat([made.inputs["attention_mask"], torch.ones(2, 1, dtype=torch.int64)], dim=1)
        after = {"input_ids": torch.tensor([[77], [78]]), "attention_mask": mask}
        with plug(model, rotary=True):
            memory = DynamicCache(config=model.config.text_config)
            wanted = model(**made.inputs, **{CACHE: memory}).logits, model(**after, **{CACHE: memory}).logits
            compiled = torch.compile(model, backend="eager")
            memory = DynamicCache(config=model.config.text_config)
            got = compiled(**made.inputs, **{CACHE: memory}).logits, compiled(**after, **{CACHE: memory}).logits
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
            torch._dynamo.reset()
            goes_on(model, made.inputs)
            one_graph = torch.compile(model.model.language_model, backend="eager", fullgraph=True)
            embeds = model.get_input_embeddings()(made.inputs["input_ids"])
            got = one_graph(inputs_embeds=embeds, position_ids=ids, use_cache=False).last_hidden_state
            wanted = model.model.language_model(inputs_embeds=embeds, position_ids=ids, use_cache=False)
            torch.testing.assert_close(got, wanted.last_hidden_state, rtol=1e-4, atol=1e-5)
            torch._dynamo.reset()
        print(model_type, "compiled")


if __name__ == "__main__":
    main(sys.argv[1:])
