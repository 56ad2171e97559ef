"""The built model: pictures through the encoder into the tokens of a language model, each token at (t, h, w).

Letters: B batch, N tokens, P patches, V values of a patch, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Cache,
    GenerationMixin,
    PreTrainedModel,
)

from mrope.hf.batch import TEXT
from mrope.hf.cache import cache_of, cached_tokens, remember
from mrope.vision import VisionEncoder
from mrope.vlm.call import CALL, GRIDS, MARK, NAMES, PIXELS, PLACED, Border
from mrope.vlm.config import VlmConfig
from mrope.vlm.encoder import restore
from mrope.vlm.guide import KEY, Given, axis_of_columns, guide, tables

_SEEN: ContextVar[list[Tensor] | None] = ContextVar("_SEEN", default=None)


class Vlm(PreTrainedModel, GenerationMixin):
    """A language model of transformers that sees: what `build_vlm` makes, and `from_pretrained` loads.

    Text goes through the language model as it came, so that its logits are the language model's own to the bit. In a
    batch with pictures or clips every token has a position (t, h, w) by the family's layout, and where a cache has such
    tokens what follows goes on from their largest position. Pictures may have any size, and differ in it.

    Args:
        config: of the whole.
        encoder: the vision encoder, with `hidden_size` channels a token; None: a fresh one by the configuration.
        language_model: None: a fresh one by the configuration.
    """

    config_class = VlmConfig
    config: VlmConfig
    generate: Any
    supports_gradient_checkpointing = True
    _no_split_modules = ["_Block"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: VlmConfig, encoder: VisionEncoder | None = None, language_model: Any = None):
        super().__init__(config)
        self.loss_type = "ForCausalLM"
        if config.encoder is None:
            raise ValueError("encoder of the configuration is None; expected one that build_vlm made")
        for module in [] if encoder is None else encoder.modules():  # or transformers would draw its weights again
            module._is_hf_initialized = True  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
        self.encoder = encoder = restore(config.encoder) if encoder is None else encoder
        if language_model is None:
            language_model = AutoModelForCausalLM.from_config(config.text_config)
        self.language_model = language_model
        shape = encoder.config
        wide, out = shape.merge**2 * shape.dim, config.text_config.hidden_size
        self.deepstack = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, out))
            for _ in config.deepstack
        )
        for number in config.deepstack:
            encoder.blocks[number].register_forward_hook(_note)
        decoder = language_model.get_decoder()
        guide(decoder)
        self.columns = axis_of_columns(decoder.rotary_emb, config.split.axis.tolist())
        self.border = Border(config.layout, config.image_token_id, config.video_token_id)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.language_model.set_input_embeddings(value)

    def get_output_embeddings(self) -> Any:
        return self.language_model.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.language_model.set_output_embeddings(new_embeddings)

    def get_decoder(self) -> Any:
        return self.language_model.get_decoder()

    def see(self, pixel_values: Tensor, grids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The tokens (n, C) of pictures or clips, and what DeepStack adds to each, (n, C) a layer.

        Args:
            pixel_values: (P, V) patches, as `Patches.values` has them.
            grids: (pictures, 3), (t, h, w) in patches.
        """
        seen: list[Tensor] = []
        token = _SEEN.set(seen)
        try:
            tokens = self.encoder((pixel_values, grids))
        finally:
            _SEEN.reset(token)
        merge = self.encoder.config.merge
        # Rows of prefix tokens come last, the patches of a token side by side.
        blocks = (each[: len(pixel_values)].unflatten(0, (-1, merge**2)).flatten(1) for each in seen)
        return tokens, [merger(block) for merger, block in zip(self.deepstack, blocks, strict=True)]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        pixel_values_videos: Tensor | None = None,
        video_grid_thw: Tensor | None = None,
        second_per_grid_ts: Any = None,
        mm_token_type_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Any = None,
        past_key_values: Any = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits, and the loss if there are labels: what the language model returns.

        Args:
            input_ids: (B, N), a placeholder for each token of a picture or clip.
            attention_mask: (B, N), or with a cache (B, cached + N), 1 for tokens and 0 for padding.
            position_ids: (3, B, N), (4, B, N) with those of the text first, for packed rows, or (B, N) for plain text;
                by default those of the layout.
            inputs_embeds: (B, N, C) in place of `input_ids`; with pictures, `mm_token_type_ids` say where they are.
            labels: (B, N), -100 where there is nothing to learn; placeholders count as such.
            pixel_values: (P, V), the patches of all pictures of the batch, row after row.
            image_grid_thw: (pictures, 3), their grids (t, h, w) in patches.
            pixel_values_videos: the patches of all clips.
            video_grid_thw: their grids.
            second_per_grid_ts: (clips,), where the layout scales time.
            mm_token_type_ids: (B, N), 0 text, 1 image, 2 video; by default the placeholders tell.
            logits_to_keep: of the last so many tokens; 0: of all.
            cache: a KV cache, of transformers from 5.24 on.
            past_key_values: the same, of earlier ones.
            return_dict: False gives a tuple.
            kwargs: what else the language model takes.

        Raises:
            ValueError: placeholders, grids and patches do not fit one another.
        """
        caches = {"cache": cache, "past_key_values": past_key_values}
        kwargs |= {name: value for name, value in caches.items() if value is not None}
        call = {
            "input_ids": input_ids,
            "inputs_embeds": inputs_embeds,
            "attention_mask": attention_mask,
            "mm_token_type_ids": mm_token_type_ids,
            "pixel_values": pixel_values,
            "image_grid_thw": image_grid_thw,
            "pixel_values_videos": pixel_values_videos,
            "video_grid_thw": video_grid_thw,
            "second_per_grid_ts": second_per_grid_ts,
            **kwargs,
        }
        past = cached_tokens(kwargs)
        kinds = self.border.kinds(call)
        ids = self.border.positions(call, kinds, past) if position_ids is None else position_ids
        given = Given()
        if kinds is not None:
            inputs_embeds, given = self._embedded(call, kinds)
            input_ids = None
        text_ids = ids if ids is None or ids.dim() == 2 else ids[0] if len(ids) == 4 else None
        if ids is not None and ids.dim() == 3:
            x = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
            rotary = self.get_decoder().rotary_emb
            given = Given(tables(rotary, x, ids[-3:], self.columns), given.seen, given.features)
        if given.tables is not None or given.features:
            kwargs[KEY] = given
        output = self.language_model(
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=text_ids,
            logits_to_keep=logits_to_keep,
            return_dict=True,
            **kwargs,
        )
        self._remember(cache_of(kwargs), output, past, ids)
        if labels is not None:
            for word in (self.config.image_token_id, self.config.video_token_id):
                labels = labels.masked_fill(labels == word, -100)
            options = {name: value for name, value in kwargs.items() if name == "num_items_in_batch"}
            words = self.config.text_config.vocab_size
            loss = self.loss_function(logits=output.logits, labels=labels, vocab_size=words, **options)
            output = type(output)(**{**output, "loss": loss})
        return output.to_tuple() if return_dict is False else output

    def _remember(self, cache: Any, output: Any, past: int, ids: Tensor | None) -> None:
        """Note on the cache where its tokens are."""
        cache = next((each for each in output.values() if isinstance(each, Cache)), cache)
        if cache is None or torch.compiler.is_compiling():
            return
        batch, length = output.logits.shape[0], int(cache.get_seq_length()) - past
        if ids is None:
            ids = (past + torch.arange(length, device=output.logits.device)).expand(batch, -1)
        remember(cache, past, ids.expand(batch, -1) if ids.dim() == 2 else ids, axes=3)
        if ids.dim() == 3:
            setattr(cache, MARK, True)

    # --------------------------------------------------------------------------------------------------------- pictures

    def _embedded(self, call: Mapping[str, Any], kinds: Tensor) -> tuple[Tensor, Given]:
        """Embeddings (B, N, C) with the tokens of pictures and clips in their places, and what DeepStack adds."""
        x = call["inputs_embeds"]
        if x is None:
            # Placeholders may lie behind the vocabulary.
            x = self.get_input_embeddings()(call["input_ids"].masked_fill(kinds != TEXT, 0))
        deep = [torch.zeros_like(x) for _ in self.deepstack]
        for kind, name in PIXELS.items():
            here = kinds == kind
            if call[name] is None:
                if bool(here.any()):
                    raise ValueError(f"{int(here.sum())} tokens are a {NAMES[kind]}'s, but no {name} came")
                continue
            if call[GRIDS[kind]] is None:
                raise ValueError(f"{name} came without {GRIDS[kind]}")
            tokens, features = self.see(call[name], call[GRIDS[kind]])
            if len(tokens) != int(here.sum()):
                raise ValueError(
                    f"{GRIDS[kind]} accounts for {len(tokens)} {NAMES[kind]} tokens; input_ids have {int(here.sum())}"
                )
            x = x.masked_scatter(here[..., None], tokens.to(x))
            deep = [
                one.masked_scatter(here[..., None], feature.to(x)) for one, feature in zip(deep, features, strict=True)
            ]
        seen = kinds != TEXT
        return x, Given(None, seen, [one[seen] for one in deep])

    # ------------------------------------------------------------------------------------------------------- generation

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        mixin: Any = super()
        inputs = mixin.prepare_inputs_for_generation(*args, **kwargs)
        if kwargs.get("position_ids") is None:  # 5.0 and 5.1 make ids at each step, as for text, and keep all else
            call = dict.fromkeys(CALL) | inputs | {"attention_mask": kwargs.get("attention_mask")}
            past, tokens = cached_tokens(call), call["input_ids"]
            over: list[str] = [] if tokens is None else ["mm_token_type_ids"]  # of the prompt, and placeholders tell
            words = torch.tensor([self.config.image_token_id, self.config.video_token_id])
            if past and tokens is not None and not bool(torch.isin(tokens.cpu(), words).any()):
                over += [*PIXELS.values(), *PLACED]
            call |= dict.fromkeys(over)
            ids = self.border.positions(call, self.border.kinds(call), past)
            inputs |= dict.fromkeys(over) | ({} if ids is None else {"position_ids": ids})
        return inputs

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """The ids of a prompt, its cached part included: the language model's own, (B, N), for text."""
        text = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        given = model_kwargs.get("input_ids")
        tokens = inputs_tensor if given is None or given.shape[1] == 0 else given
        past = cached_tokens(model_kwargs)
        new = tokens[:, tokens.shape[1] - (text.shape[1] - past) :]
        call = {name: model_kwargs.get(name) for name in CALL} | model_kwargs
        call |= {"input_ids": new, "inputs_embeds": None} if tokens.dim() == 2 else {"inputs_embeds": new}
        ids = self.border.positions(call, self.border.kinds(call), past)
        if ids is None:
            return text
        cached = text.expand(len(new), -1)[:, :past]  # never read: generate cuts off what the cache holds
        return torch.cat([cached.expand(*ids.shape[:-2], -1, -1), ids], dim=-1)

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        before = model_kwargs.get("position_ids")
        model_kwargs = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        after = model_kwargs.get("position_ids")
        if before is not None and after is not None and after.dim() == 3:
            # Each axis goes on from its own last id; what follows a picture goes on from the largest.
            last, new = before[-3:, :, -1:], after.shape[-1] - before.shape[-1]
            # 5.2 hands on the new ids alone, later versions append them.
            after[-3:, :, -new if new > 0 else 0 :] += last.amax(0) - last
        return model_kwargs

    def _expand_inputs_for_generation(
        self,
        expand_size: int = 1,
        is_encoder_decoder: bool = False,
        input_ids: Tensor | None = None,
        **model_kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Repeat rows, each with its own pictures and clips: the first dim of their patches is not the batch."""
        media = {name: model_kwargs.pop(name, None) for name in (*PIXELS.values(), *PLACED)}
        call = {name: model_kwargs.get(name) for name in CALL} | media | {"input_ids": input_ids}
        if expand_size > 1 and any(media[name] is not None for name in PIXELS.values()):
            media = self.border.repeated(call, media, expand_size)
        mixin: Any = super()
        input_ids, model_kwargs = mixin._expand_inputs_for_generation(
            expand_size, is_encoder_decoder, input_ids, **model_kwargs
        )
        return input_ids, model_kwargs | {name: value for name, value in media.items() if value is not None}


def _note(block: nn.Module, args: Any, output: Tensor) -> None:
    """Keep what a block of the encoder gives, where `Vlm.see` asks for it."""
    seen = _SEEN.get()
    if seen is not None:
        seen.append(output)


AutoConfig.register(VlmConfig.model_type, VlmConfig, exist_ok=True)
AutoModelForCausalLM.register(VlmConfig, Vlm, exist_ok=True)
AutoModelForImageTextToText.register(VlmConfig, Vlm, exist_ok=True)
