"""Any image-text-to-text model of transformers, and what `mrope.hf.build_vlm` builds."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mrope.checks import whole
from mrope.data import Clip, Sample
from mrope.families import Family
from mrope.probes.spatial.reply import Reply
from mrope.probes.spatial.respondents.messages import (
    as_pictures,
    failed,
    has_clips,
    media,
    message,
    true_or_false,
)
from mrope.probes.spatial.respondents.scoring import choice_scores, choice_steps, joined, suffixes
from mrope.vision import Plan, plan

_TICKS = 1000
"""Frames a second that a clip is told to have, so that its frames have numbers for any times, to the millisecond."""


class TransformersRespondent:
    """A model of transformers: log-probabilities over the choices of a sample, and `generate` where there are none.

    A score is the sum of the log-probabilities of a choice's tokens behind the prompt, see
    `mrope.probes.spatial.respondents.scoring`. Prompts are written by the processor's chat template. A clip goes in
    with the times of its frames; as pictures with their times in words where the processor has no clips.

    Args:
        model: a checkpoint's folder, or the model.
        processor: of that model; a folder; or a function of one sample that gives the model's inputs for it, tensors of
            one row. None takes the model's folder. Of a folder of one of our families it is `mrope.hf.processor`, with
            which boxes find their way back to pixels of the picture, and `Sample.max_tokens` is kept.
        tokenizer: by default the processor's.
        plug: compute with our positions (see `mrope.hf.plug`), or a mapping of options for that.
        batch: rows of a forward.
        device: of a model from a folder "auto", "cpu" or "cuda"; one that is given stays where it is.
        dtype: of a model from a folder, "float32", "bfloat16" or "float16"; None is the checkpoint's.
        random_weights: the weights are not trained. Of a folder only the configuration is read, and the model is made
            from it, always the same; of a model it is what the facts say.
        new_tokens: most tokens of an answer that is written.
        name: what reports call it, by default the folder's name, or the model's class.

    Raises:
        ValueError, TypeError, OSError: a folder has no weights, or no processor; or an argument is of another kind.
    """

    def __init__(
        self,
        model: Any,
        processor: Any = None,
        *,
        tokenizer: Any = None,
        plug: bool | Mapping[str, Any] = False,
        batch: int = 8,
        device: str | None = None,
        dtype: str | None = None,
        random_weights: bool = False,
        new_tokens: int = 256,
        name: str | None = None,
    ) -> None:
        self.batch, self.new_tokens = whole("batch", batch, 1), whole("new_tokens", new_tokens, 1)
        true_or_false("random_weights", random_weights)
        if not isinstance(plug, Mapping):
            true_or_false("plug", plug, more=", or options")
        if dtype not in (None, "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype is {dtype!r}; expected float32, bfloat16 or float16")
        folder = Path(model) if isinstance(model, (str, os.PathLike)) else None
        if processor is None and folder is None:
            raise ValueError("processor is None; expected that of the model, a folder, or a function of a sample")
        if folder is None and (device, dtype) != (None, None):
            raise ValueError(f"device is {device!r} and dtype {dtype!r}; expected None with a model that is given")
        self.model: Any = model if folder is None else _load(folder, device, dtype, random_weights)
        source = folder if processor is None else processor
        self.processor: Any = _processor(Path(source)) if isinstance(source, (str, os.PathLike)) else source
        self.tokenizer: Any = getattr(self.processor, "tokenizer", None) if tokenizer is None else tokenizer
        if self.tokenizer is None:
            raise ValueError("tokenizer is None, and the processor has none; expected that of the model")
        self.plug = dict(plug) if isinstance(plug, Mapping) else {} if plug else None
        # A strip of patches has no dim of pictures to join along, and HunYuan-VL's own positions number the pictures of
        # a batch and not those of a row.
        strip = getattr(getattr(self.processor, "record", None), "patch_order", "") == "strip"
        alone = strip or (self.model.config.model_type == "hunyuan_vl" and self.plug is None)
        self._rows = 1 if alone else self.batch
        kind = type(self.model).__name__
        self.name = name or (kind if folder is None else folder.resolve().name)
        self.facts: Mapping[str, str] = {
            "model": kind,
            "family": getattr(getattr(self.processor, "record", None), "name", self.model.config.model_type),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "checkpoint": "given by the caller" if folder is None else str(folder),
            "random weights": "yes" if random_weights else "no",
            "positions": "the model's own" if self.plug is None else f"plugged {self.plug or ''}".strip(),
        }

    def refuses(self, sample: Sample) -> str:
        """Why the model cannot be asked this sample; "" if it can."""
        if sample.max_tokens is None or not self._templated:
            return ""
        if has_clips(sample):
            return f"the sample wants {sample.max_tokens} tokens a picture, and shows a clip"
        family = getattr(self.processor, "family", None)
        if family is None:
            what = f"a {type(self.processor).__name__}, whose limits are not known; expected one of mrope.hf.processor"
        elif family.resize in ("slices", "padded"):
            what = f"that of {family.name}, which has no limit in tokens"
        else:
            tuned = self.processor.image_processor.tuned(size=size_for(family, sample.max_tokens))
            sizes = [(one.height, one.width) for _, one in media(sample) if not isinstance(one, Clip)]
            most = max((plan(size, tuned, conflict="family").tokens for size in sizes), default=0)
            if most <= sample.max_tokens:
                return ""
            return f"the sample wants {sample.max_tokens} tokens a picture, and {family.name} makes {most} of one"
        return f"the sample wants {sample.max_tokens} tokens a picture, and the processor is {what}"

    def answer(self, samples: Sequence[Sample]) -> Iterator[Reply]:
        """One reply for each sample, in order, a batch at a time."""
        rest = iter(samples)
        while some := list(islice(rest, self._rows)):
            start = time.perf_counter()
            replies = self._some(some)
            seconds = (time.perf_counter() - start) / len(some)
            for reply in replies:
                yield Reply(reply.text, reply.scores, reply.failure, reply.plans, seconds)

    # ------------------------------------------------------------------------------------------------------- forwards

    def _some(self, samples: list[Sample]) -> list[Reply]:
        """Replies to the samples of one batch; where it fails each is asked alone, so that one does not spoil all."""
        replies: list[Reply] = [Reply()] * len(samples)
        for ask, closed in ((self._score, True), (self._write, False)):
            at = [index for index, sample in enumerate(samples) if bool(sample.choices) == closed]
            for index, reply in zip(at, _each(ask, [samples[index] for index in at]), strict=True):
                replies[index] = reply
        return replies

    def _score(self, samples: list[Sample]) -> list[Reply]:
        rows, texts = zip(*(self._inputs(sample) for sample in samples), strict=True)
        ends = self._ends()
        steps = [
            choice_steps(sample.choices, self.tokenizer, text, ends)
            for sample, text in zip(samples, texts, strict=True)
        ]
        behind = [suffixes(each) for each in steps]
        asked = [(row, more) for row, suffix in zip(rows, behind, strict=True) for more in suffix]
        parts = [asked[at : at + self._rows] for at in range(0, len(asked), self._rows)]
        logits = iter([one for part in parts for one in self._logits(part)])
        return [
            Reply(scores=choice_scores(each, suffix, list(islice(logits, len(suffix)))), plans=self._plans(sample))
            for sample, each, suffix in zip(samples, steps, behind, strict=True)
        ]

    def _logits(self, asked: Sequence[tuple[Mapping[str, Any], tuple[int, ...]]]) -> list[torch.Tensor]:
        """Of each row (1 + tokens behind it, vocabulary): behind the prompt, and behind each of the tokens."""
        rows, behind = zip(*asked, strict=True)
        inputs = self._placed(joined(rows, behind, self._pad()))
        keep = 1 + max(map(len, behind))
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            inputs["logits_to_keep"] = keep
        with torch.no_grad(), self._plugged():
            logits = self.model(**inputs, use_cache=False).logits[:, -keep:].float().cpu()
        return [row[-1 - len(more) :] for row, more in zip(logits, behind, strict=True)]

    def _write(self, samples: list[Sample]) -> list[Reply]:
        rows = [self._inputs(sample)[0] for sample in samples]
        inputs = self._placed(joined(rows, [()] * len(rows), self._pad()))
        with torch.no_grad(), self._plugged():
            written = self.model.generate(
                **inputs, max_new_tokens=self.new_tokens, do_sample=False, pad_token_id=self._pad()
            )
        new = written[:, inputs["input_ids"].shape[1] :].tolist()
        texts = [self.tokenizer.decode(row, skip_special_tokens=True) for row in new]
        return [Reply(text, plans=self._plans(sample)) for sample, text in zip(samples, texts, strict=True)]

    def _plugged(self) -> Any:
        from mrope.hf import plug

        return nullcontext() if self.plug is None else plug(self.model, **self.plug)

    def _placed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs where the model is, pixels in its dtype."""
        placed = {
            name: value.to(self.model.device) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        }
        pixels = {name: value.to(self.model.dtype) for name, value in placed.items() if name.startswith("pixel_values")}
        return placed | pixels

    def _ends(self) -> list[int]:
        """The tokens that end an answer."""
        stated = getattr(self.model.generation_config, "eos_token_id", None)
        stated = getattr(self.tokenizer, "eos_token_id", None) if stated is None else stated
        return [] if stated is None else stated if isinstance(stated, list) else [stated]

    def _pad(self) -> int:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return pad if pad is not None else next(iter(self._ends()), 0)

    # -------------------------------------------------------------------------------------------------------- prompts

    @property
    def _templated(self) -> bool:
        return hasattr(self.processor, "apply_chat_template")

    def _inputs(self, sample: Sample) -> tuple[dict[str, Any], str]:
        """The model's inputs for a sample, one row, and its prompt as text, "" if that is not known."""
        if why := self.refuses(sample):
            raise ValueError(why)
        if not self._templated:
            return dict(self.processor(sample)), ""
        clips = getattr(self.processor, "video_processor", None) is not None
        show = _placeholders if clips else _frames
        text = self.processor.apply_chat_template([message(sample, show)], tokenize=False, add_generation_prompt=True)
        shown = [one for _, one in media(sample)]
        if not clips:
            shown = [frame for one in shown for frame in (one.frames if isinstance(one, Clip) else (one,))]
        given: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
        bos = getattr(self.tokenizer, "bos_token", None)
        if bos is not None and text.startswith(bos):
            given["add_special_tokens"] = False
        if pictures := [one for one in shown if not isinstance(one, Clip)]:
            given["images"] = [pictures]
        if films := [one for one in shown if isinstance(one, Clip)]:
            given["videos"] = [[np.stack([np.asarray(frame.convert("RGB")) for frame in one.frames]) for one in films]]
            given |= {"video_metadata": [[_times(one) for one in films]], "do_sample_frames": False}
        if sample.max_tokens is not None:
            given["images_kwargs"] = {"size": size_for(self.processor.family, sample.max_tokens)}
        return dict(self.processor(**given)), text

    def _plans(self, sample: Sample) -> tuple[Plan | None, ...]:
        """The plan of each picture, where a place in one is asked for and the processor is one of ours."""
        if sample.kind not in ("point", "box") or not hasattr(self.processor, "plan"):
            return ()
        from mrope.hf.processors.pixels import planning

        with planning() as planned:
            self._inputs(sample)
        images, videos = iter(planned.images), iter(planned.videos)
        clips = getattr(self.processor, "video_processor", None) is not None
        plans: dict[int, Plan] = {}
        for index, one in media(sample):
            if isinstance(one, Clip) and not clips:
                plans[index], *_ = islice(images, len(one.frames))
            else:
                plans[index] = next(videos if isinstance(one, Clip) else images)
        return tuple(plans.get(index) for index in range(len(sample.pictures)))


def size_for(family: Family, tokens: int) -> dict[str, int]:
    """The limits in pixels of a picture of so many tokens at most, as processors have them; thin pictures may pass it.

    Args:
        family: whose pictures have limits in pixels.
        tokens: most of a picture; where that is below the family's least, there is no least.
    """
    counted = family.temporal_patch if family.resize == "volume" else 1  # a picture counts as so many frames
    (least, most), token = family.pixel_limits, family.factor**2
    most = min(most, tokens * token)
    return {"shortest_edge": (least if least < most else token) * counted, "longest_edge": most * counted}


def _each(ask: Callable[[list[Sample]], list[Reply]], samples: list[Sample]) -> list[Reply]:
    """What `ask` replies to the samples, together if that goes and one by one if not."""
    if not samples:
        return []
    try:
        return ask(samples)
    except Exception as error:
        return [failed(error)] if len(samples) == 1 else [one for each in samples for one in _each(ask, [each])]


def _placeholders(one: Any) -> list[dict[str, Any]]:
    return [{"type": "video" if isinstance(one, Clip) else "image"}]


def _frames(one: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in part.items() if name != "image"} for part in as_pictures(one)]


def _times(clip: Clip) -> dict[str, Any]:
    """What transformers calls the metadata of a clip: numbers of its frames that say when they are seen."""
    frames = [round(second * _TICKS) for second in clip.seconds]
    step = (frames[-1] - frames[0]) / (len(frames) - 1) if len(frames) > 1 else _TICKS
    total = max(round(step * len(frames)), 1)
    return {"total_num_frames": total, "fps": float(_TICKS), "frames_indices": frames, "duration": total / _TICKS}


def _load(folder: Path, device: str | None, dtype: str | None, random_weights: bool) -> Any:
    """The model of a checkpoint's folder, or one with random weights by its configuration."""
    import transformers

    import mrope.vlm  # noqa: F401  # which tells transformers of its models
    from mrope.devices import choose_device

    place = choose_device("auto" if device is None else device)
    made: Any
    if not (folder / "config.json").is_file():
        raise ValueError(f"model is {str(folder)!r}; expected a folder with a config.json")
    auto, local = transformers.AutoModelForImageTextToText, {"local_files_only": True}
    if random_weights:
        config = transformers.AutoConfig.from_pretrained(folder, **local)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = auto.from_config(config, **({} if dtype is None else {"dtype": dtype}))
    elif not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ValueError(f"{folder} has no weights; expected *.safetensors in it, or random_weights=True")
    else:
        made = auto.from_pretrained(folder, dtype="auto" if dtype is None else dtype, **local)
    return made.to(place).eval()


def _processor(folder: Path) -> Any:
    """Our processor where the folder is of one of our families, else that of transformers."""
    from transformers import AutoConfig, AutoProcessor

    from mrope.hf import processor
    from mrope.hf.reading import record_of

    if not folder.is_dir():
        raise ValueError(f"processor is {str(folder)!r}; expected a folder that is there")
    try:
        record_of(AutoConfig.from_pretrained(folder, local_files_only=True))
    except TypeError:
        return AutoProcessor.from_pretrained(folder, local_files_only=True)
    return processor(folder)
