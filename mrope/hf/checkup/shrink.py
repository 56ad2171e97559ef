"""A configuration of the same model with far fewer weights, and the same rotary encoding, layout and words."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

VOCABULARY = 512
_HEADS, _KEY_HEADS = 2, 1

# What makes a model large -> how large it may be. The share of a head that turns, sections and patches stay.
_SIZES: Mapping[str, int] = {
    "intermediate_size": 64,
    "depth": 1,
    "num_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 64,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "hc_count": 2,
    "hc_lowrank": 8,
    "hc_mult": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "index_topk": 64,
    "index_head_dim": 64,
    "index_n_heads": 2,
    "projector_hidden_size": 64,
    "num_position_embeddings": 64,
    "max_image_size": 128,
    "num_patches": 16,
    "max_position_embeddings": 4096,
    "vision_vocab_size": VOCABULARY,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "d_model": 32,
    "num_mel_bins": 16,
    "downsample_hidden_size": 8,
    "embed_dim": 32,
    "num_embeddings": 64,
    "latent_channels": 32,
    "embedding_rank": 16,
    "ngram_vocab_size_base": 256,
    "split_ngram_parts": 1,
    "insert_layer_id": 0,
}
_OUTPUTS = ("out_hidden_size", "text_hidden_size", "output_dim")
_FIRST_LAYER = ("deepstack_visual_indexes", "fullatt_block_indexes")
_BY_LAYER = ("layer_types", "mlp_layer_types", "indexer_types")
_WORDS = ("_id", "_token_index")
_NO_WORDS = ("insert_layer_id",)


def head_dim_of(text: Mapping[str, Any]) -> int | None:
    """Channels of a head of the language model, as transformers has it."""
    if text.get("head_dim") is not None:
        return int(text["head_dim"])
    hidden, heads = text.get("hidden_size"), text.get("num_attention_heads")
    return None if not hidden or not heads else int(hidden) // int(heads)


def shrink(config: Any) -> Any:
    """A small configuration of the type of `config`, from which a model with few random weights is made.

    Head dim, rotary parameters, patches and merging stay; words (token ids) are mapped into a vocabulary of 512.

    Args:
        config: a transformers configuration with a text_config and a vision_config, or NeoMME's.
    """
    stated = deepcopy(config.to_dict())
    text = stated.get("text_config") or stated
    width = _HEADS * (head_dim_of(text) or 64)
    for name, section in stated.items():
        if isinstance(section, dict) and name.endswith("_config"):
            _shrink_section(section, width, language=section is text)
    _shrink_section(stated, width, language=text is stated)
    _map_words(stated)
    for key in ("architectures", "transformers_version", "_name_or_path", "dtype", "torch_dtype"):
        stated.pop(key, None)
    small = type(config).from_dict(stated)
    small._attn_implementation = "eager"
    return small


def _shrink_section(section: dict[str, Any], width: int, *, language: bool) -> None:
    for key, most in _SIZES.items():
        value = section.get(key)
        if isinstance(value, (list, tuple)) and value:
            section[key] = [min(each, most // (1 + number)) for number, each in enumerate(value)]
        elif isinstance(value, int) and not isinstance(value, bool):
            section[key] = min(value, most)
    for key in _OUTPUTS:
        if section.get(key) is not None:
            section[key] = width
    for key in _FIRST_LAYER:
        if section.get(key):
            section[key] = [0]
    if language:
        _shrink_language(section, width)
    else:
        _shrink_encoder(section, width)


def _shrink_language(text: dict[str, Any], width: int) -> None:
    if "vocab_size" not in text:
        return
    text.update(vocab_size=VOCABULARY, hidden_size=width)
    if "num_attention_heads" in text:
        text.update(num_attention_heads=_HEADS, num_key_value_heads=_KEY_HEADS)
    kinds = [text[key] for key in _BY_LAYER if text.get(key)]
    # One layer of each kind; two of a model whose layers are alike.
    layers = list({kind: number for number, kind in reversed(list(enumerate(zip(*kinds, strict=False))))}.values())
    layers = sorted(layers) or [0]
    layers = (layers * 2)[:2] if len(layers) < 2 else layers
    text["num_hidden_layers"] = len(layers)
    text.pop("per_layer_config", None)  # of layers that are gone; its words tell kinds of layers apart
    for key in _BY_LAYER:
        if text.get(key):
            text[key] = [text[key][number] for number in layers]
    if text.get("first_k_dense_replace") is not None:
        text["first_k_dense_replace"] = min(text["first_k_dense_replace"], 1)


def _shrink_encoder(section: dict[str, Any], width: int) -> None:
    if "embed_dim" in section and "hidden_size" in section:  # Qwen2-VL, whose hidden_size is what comes out
        section["hidden_size"] = width
    elif "hidden_size" in section:
        section["hidden_size"] = 32
    for key, most in (
        ("num_heads", 2),
        ("num_attention_heads", 2),
        ("num_key_value_heads", 2),
        ("num_hidden_layers", 1),
    ):
        if isinstance(section.get(key), int):
            section[key] = most
    patch = section.get("patch_size")
    if isinstance(section.get("image_size"), int) and isinstance(patch, int):
        section["image_size"] = min(section["image_size"], 4 * patch)


def _words(section: Mapping[str, Any]) -> dict[str, list[int]]:
    """Key -> the token ids there."""
    found = {}
    for key, value in section.items():
        if key.endswith(_WORDS) and key not in _NO_WORDS:
            ids = value if isinstance(value, (list, tuple)) else [value]
            if ids and all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
                found[key] = list(ids)
    return found


def _sections(stated: dict[str, Any]) -> list[dict[str, Any]]:
    return [stated, *(value for key, value in stated.items() if isinstance(value, dict) and key.endswith("_config"))]


def _map_words(stated: dict[str, Any]) -> None:
    """Give words beyond the small vocabulary ids within it, equal ones equal ids."""
    used = sorted({each for section in _sections(stated) for ids in _words(section).values() for each in ids})
    free = (number for number in range(VOCABULARY - 1, 0, -1) if number not in used)
    small = {word: word if word < VOCABULARY else next(free) for word in used}
    for section in _sections(stated):
        for key, ids in _words(section).items():
            section[key] = [small[each] for each in ids] if isinstance(section[key], (list, tuple)) else small[ids[0]]


def words_of(config: Any) -> set[int]:
    """All token ids that a configuration names."""
    stated = config.to_dict()
    return {each for section in _sections(stated) for ids in _words(section).values() for each in ids}
