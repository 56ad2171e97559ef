"""The built model: pictures through the encoder into the tokens of a language model, each token at (t, h, w).

Letters: B batch, N tokens, P patches, V values of a patch, C channels.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Cache,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.utils.generic import TransformersKwargs

from mrope.hf.batch import TEXT
from mrope.hf.cache import cache_of, cached_tokens, new_of, new_tokens, remember, remember_generated, repeat_rows
from mrope.hf.call import Border, ids_of_batch
from mrope.hf.drafts import expect_drafts, place_drafts
from mrope.vision import VisionEncoder
from mrope.vlm.call import (
    CALL,
    GRIDS,
    MARK,
    NAMES,
    PIXELS,
    PLACED,
    check_call,
    kinds_of,
    positions_of,
    repeated,
)
from mrope.vlm.config import VlmConfig
from mrope.vlm.encoder import restore
from mrope.vlm.guide import KEY, Given, axis_of_columns, guide, tables

_SEEN: ContextVar[list[Tensor] | None] = ContextVar("_SEEN", default=None)


class Vlm(PreTrainedModel, GenerationMixin):
    """A language model of transformers that sees: what `build_vlm` makes, and `from_pretrained` loads.

    Text goes through the language model as it came, so that its logits are the language model's own to the bit. In a
    batch with pictures or clips every token has a position (t, h, w) by the family's layout, and where a cache has such
    tokens what follows goes on from their largest position. Pictures may have any size, and differ in it.

    With gradient checkpointing (`activation_checkpointing_enable`, in earlier transformers
    `gradient_checkpointing_enable`) the encoder is run again as a whole, the language model layer by layer.

    Args:
        config: of the whole.
        encoder: the vision encoder, with `hidden_size` channels a token; None: a fresh one by the configuration.
        language_model: None: a fresh one by the configuration.
    """

    config_class = VlmConfig
    config: VlmConfig
    generate: Any
    gradient_checkpointing = False
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
        config.check(encoder.config)
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
        layout = config.layout
        self.border = Border(config, layout, layout)
        prepare: Any = GenerationMixin.__dict__["prepare_inputs_for_generation"]
        self.own_preparation = type(language_model).prepare_inputs_for_generation is not prepare
        self.known = {*TransformersKwargs.__optional_keys__, *TransformersKwargs.__required_keys__, "past_key_values"}
        for function in (language_model.forward, prepare):
            self.known |= {*inspect.signature(function).parameters}
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

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in transformers; a placeholder behind the vocabulary that would become a word moves behind it again."""
        config = self.config
        before = config.text_config.vocab_size
        made = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        words = config.text_config.vocab_size
        for name in ("image_token_id", "video_token_id"):
            if before <= getattr(config, name) < words:
                taken = (config.image_token_id, config.video_token_id)
                setattr(config, name, next(number for number in range(words, words + 3) if number not in taken))
        return made

    def see(self, pixel_values: Tensor, grids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The tokens (n, C) of pictures or clips, and what DeepStack adds to each, (n, C) a layer.

        Args:
            pixel_values: (P, V) patches, as `Patches.values` has them.
            grids: (pictures, 3), (t, h, w) in patches.
        """
        if self.gradient_checkpointing and self.training:
            made: Any = checkpoint(self._encoded, pixel_values, grids, use_reentrant=False)
        else:
            made = self._encoded(pixel_values, grids)
        tokens, *seen = made
        merge = self.encoder.config.merge
        # Rows of prefix tokens come last, the patches of a token side by side.
        blocks = (each[: len(pixel_values)].unflatten(0, (-1, merge**2)).flatten(1) for each in seen)
        return tokens, [merger(block) for merger, block in zip(self.deepstack, blocks, strict=True)]

    def _encoded(self, pixel_values: Tensor, grids: Tensor) -> tuple[Tensor, ...]:
        """What the encoder gives, and DeepStack's blocks of it."""
        seen: list[Tensor] = []
        token = _SEEN.set(seen)
        try:
            return (self.encoder((pixel_values, grids)), *seen)
        finally:
            _SEEN.reset(token)

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
                by default those of the layout. Documents are kept apart where ids of the text start again: padding
                may lie around them, and no cache is made. Three rows alone tell no documents apart.
            inputs_embeds: (B, N, C) in place of `input_ids`; with pictures, `mm_token_type_ids` say where they are.
            labels: (B, N), -100 where there is nothing to learn; placeholders count as such, but not beside
                `num_items_in_batch`, whose count they are in.
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

        A placeholder that is a word of the vocabulary counts as one where it comes on a cache without pixels.

        Raises:
            TypeError: an argument is of another kind, or unknown.
            ValueError: an argument has another shape, placeholders, grids and patches do not fit one another, packed
                rows come with a cache, or placeholders are among labels that someone else has counted.
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
        if not torch.compiler.is_compiling():
            if unknown := sorted(kwargs.keys() - self.known):
                raise TypeError(
                    f"{unknown[0]} is no argument of forward; expected {', '.join((*PIXELS.values(), *PLACED))}, or "
                    f"what {type(self.language_model).__name__} takes"
                )
            check_call(call)
            tokens: Any = inputs_embeds if input_ids is None else input_ids
            if position_ids is not None:
                position_ids = ids_of_batch(self.border, position_ids, tokens)
            self._check_labels(labels, tuple(tokens.shape[:2]), kwargs.get("num_items_in_batch"))
        kinds = kinds_of(self.config, call)
        ids = positions_of(self.border, call, kinds) if position_ids is None else position_ids
        given = Given()
        if kinds is not None:
            inputs_embeds, given = self._embedded(call, kinds)
            input_ids = None
        text_ids = ids if ids is None or ids.dim() == 2 else ids[0] if len(ids) == 4 else None
        packed = self.border.packed(call, position_ids)
        if packed is not None:
            text_ids, attention_mask, kwargs["use_cache"] = packed, None, False
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
        self._remember(cache_of(kwargs), output, past, ids, attention_mask)
        if labels is not None:
            for word in (self.config.image_token_id, self.config.video_token_id):
                labels = labels.masked_fill(labels == word, -100)
            options = {name: value for name, value in kwargs.items() if name == "num_items_in_batch"}
            words = self.config.text_config.vocab_size
            loss = self.loss_function(logits=output.logits, labels=labels, vocab_size=words, **options)
            output = type(output)(**{**output, "loss": loss})
        return output.to_tuple() if return_dict is False else output

    def _check_labels(self, labels: Tensor | None, shape: tuple[int, ...], counted: Any) -> None:
        """Refuse labels of another shape than the tokens', and placeholders among them that somebody has counted.

        With those the mean of the loss would be off.
        """
        if labels is not None and tuple(labels.shape) != shape:
            raise ValueError(f"labels have shape {tuple(labels.shape)}; expected {shape}, one for each token")
        for word in (self.config.image_token_id, self.config.video_token_id):
            if counted is not None and labels is not None and bool((labels == word).any()):
                raise ValueError(
                    f"labels hold the placeholder {word}, and num_items_in_batch counts it; expected -100 there, as "
                    "mrope.hf.Collator writes it"
                )

    def _remember(self, cache: Any, output: Any, past: int, ids: Tensor | None, mask: Any) -> None:
        """Note on the cache where its tokens are."""
        cache = next((each for each in output.values() if isinstance(each, Cache)), cache)
        if cache is None or torch.compiler.is_compiling():
            return
        batch, length = output.logits.shape[0], int(cache.get_seq_length()) - past
        if ids is None:
            ids = (past + torch.arange(length, device=output.logits.device)).expand(batch, -1)
        remember(cache, past, ids.expand(batch, -1) if ids.dim() == 2 else ids, axes=3, mask=mask)
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

    def _get_candidate_generator(self, **kwargs: Any) -> Any:
        mixin: Any = super()
        return mixin._get_candidate_generator(**expect_drafts(kwargs, axes=3))

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        mixin: Any = super()
        kwargs = dict(place_drafts(kwargs, (args[0] if args else kwargs["input_ids"]).shape[1], axes=3))
        if "is_first_iteration" in kwargs and cache_of(kwargs) is not None and not cached_tokens(kwargs):
            kwargs["is_first_iteration"] = True  # also of a model that assists another: it has to see the pictures
        if self._turns_long(*args[:1], **kwargs):
            kwargs |= dict.fromkeys({"cache", "past_key_values"} & kwargs.keys())
            kwargs |= {"next_sequence_length": None, "is_first_iteration": True}
        inputs = mixin.prepare_inputs_for_generation(*args, **kwargs)
        types, tokens = inputs.get("mm_token_type_ids"), inputs.get("input_ids")
        if types is not None and tokens is not None and types.shape[1] < tokens.shape[1]:
            # Behind a prompt, whose types came, stand words: those that are drafted, or that an assistant is handed.
            inputs["mm_token_type_ids"] = nn.functional.pad(types, (0, tokens.shape[1] - types.shape[1]))
        decodes = "next_sequence_length" in kwargs and not kwargs.get("is_first_iteration") and cached_tokens(kwargs)
        if decodes:  # before 5.24 each model sees to that
            inputs |= dict.fromkeys((*PIXELS.values(), *PLACED))
        if kwargs.get("position_ids") is None:  # 5.0 and 5.1 make ids at each step, as for text, and keep all else
            call = dict.fromkeys(CALL) | inputs | {"attention_mask": kwargs.get("attention_mask")}
            past, tokens = cached_tokens(call), call["input_ids"]
            over: list[str] = [] if tokens is None else ["mm_token_type_ids"]  # of the prompt, and placeholders tell
            words = torch.tensor([self.config.image_token_id, self.config.video_token_id])
            if past and tokens is not None and not bool(torch.isin(tokens.cpu(), words).any()):
                over += [*PIXELS.values(), *PLACED]
            call |= dict.fromkeys(over)
            ids = positions_of(self.border, call, kinds_of(self.config, call))
            inputs |= dict.fromkeys(over) | ({} if ids is None else {"position_ids": ids})
        return inputs

    def _turns_long(self, input_ids: Tensor, **kwargs: Any) -> bool:
        """Whether LongRoPE turns to its long factors at this step, with which nothing on the cache was made.

        Phi-3 looks for that, too, and begins again; in versions that count slots in place of new tokens it does so in
        vain.
        """
        rotary, past, ids = self.get_decoder().rotary_emb, cached_tokens(kwargs), kwargs.get("position_ids")
        if getattr(rotary, "rope_type", None) != "longrope" or not self.own_preparation:
            return False
        if not past or ids is None or kwargs.get("next_sequence_length") is None:
            return False
        limit, after = rotary.config.rope_parameters["original_max_position_embeddings"], int(ids[..., -1].max()) + 1
        return after - (input_ids.shape[1] - past) <= limit < after

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """The ids of a prompt, its cached part included: the language model's own, (B, N), for text."""
        text = super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        given = model_kwargs.get("input_ids")
        tokens = inputs_tensor if given is None or given.shape[1] == 0 else given
        past = cached_tokens(model_kwargs)
        new = new_of(tokens, past, text.shape[1])
        call = {name: model_kwargs.get(name) for name in CALL} | model_kwargs
        call |= {"input_ids": new, "inputs_embeds": None} if tokens.dim() == 2 else {"inputs_embeds": new}
        ids = positions_of(self.border, call, kinds_of(self.config, call))
        if ids is None:
            return text
        cached = text.expand(len(new), -1)[:, :past]  # never read: generate cuts off what the cache holds
        return torch.cat([cached.expand(*ids.shape[:-2], -1, -1), ids], dim=-1)

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        before = model_kwargs.get("position_ids")
        if before is not None:
            remember_generated(cache_of(outputs), before, axes=3)
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
        """Repeat rows, each with its own pictures and clips, and those of a cache that the caller passes with them.

        The first dim of patches is not the batch.
        """
        media = {name: model_kwargs.pop(name, None) for name in (*PIXELS.values(), *PLACED)}
        call = {name: model_kwargs.get(name) for name in CALL} | model_kwargs | media | {"input_ids": input_ids}
        if expand_size > 1 and cached_tokens(call):
            tokens: Any = call["inputs_embeds"] if input_ids is None else input_ids
            repeat_rows(cache_of(call), len(tokens), expand_size)
            if input_ids is not None:
                call["input_ids"] = input_ids[:, input_ids.shape[1] - new_tokens(call, input_ids.shape[1]) :]
        if expand_size > 1 and any(media[name] is not None for name in PIXELS.values()):
            media = repeated(self.border, call, media, expand_size)
        ids = model_kwargs.pop("position_ids", None)
        if ids is not None:  # whose rows are the second dim of three: before 5.24 each model sees to that
            media["position_ids"] = ids.repeat_interleave(expand_size, dim=-2)
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


for auto in (AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText):
    auto.register(VlmConfig, Vlm, exist_ok=True)
