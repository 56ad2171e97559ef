"""The checkup: which checks there are, and what each of them needs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mrope.hf.checkup import forwards, index, language, omni, processors, static
from mrope.hf.checkup import inputs as batches
from mrope.hf.checkup.compare import attempt
from mrope.hf.checkup.prompts import WIDE, batch
from mrope.hf.checkup.report import Finding, Report
from mrope.hf.checkup.saved import Batch
from mrope.hf.checkup.subject import Subject, read_subject
from mrope.hf.files import load_batch
from mrope.spans import Text

Needs = Literal["nothing", "index", "language", "forward"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Args:
        name: what its findings call it.
        run: yields what is wrong or risky.
        needs: what must run before it makes sense: "index", get_rope_index of the model; "language", its language
            model; "forward", both behind its vision tower.
    """

    name: str
    run: Callable[[Subject], Iterator[Finding]]
    needs: Needs = "nothing"


def doctor(
    target: Any, inputs: Mapping[str, Any] | str | os.PathLike[str] | None = None, *, deep: bool = False
) -> Report:
    """What is wrong or risky with a checkpoint, a configuration, a model or a batch, in the installed transformers.

    What a configuration and its files state is read. Then a small model with random weights is made from it, and what
    it does with prompts whose positions are known is held against the trained rule. A model that is given, plugged or
    not, is run itself, and left as it was. Nothing is downloaded.

    Args:
        target: a checkpoint folder, a JSON file, a configuration (object or dict), a model, a class of one of them, or
            the name of a class or model_type of transformers.
        inputs: a batch for it, by name, or a file that `torch.save(dict(inputs), file)` wrote. Beside what the model
            takes it may hold `image_sizes` (P, 2), the height and width of each picture before anything resized it,
            and `boxes` (n, 4), the corners that its text states.
        deep: compare the weights and the processor of a checkpoint folder with ours as well, as `mrope parity` does;
            where that cannot run, it is a finding.

    Raises:
        OSError: the file of `inputs` cannot be read.
        TypeError: `target` is nothing of that, or of a family that is not ours.
        ValueError: there is no such target, transformers takes no such configuration, `inputs` hold no batch, `deep`
            came without a checkpoint folder, or a model of `build_vlm` without `inputs`.

    >>> config = {"model_type": "qwen2_vl", "text_config": {"rope_parameters": {"mrope_section": [16, 24, 16]}}}
    >>> next(one.seen for one in doctor(config).findings if one.check == "rotary")
    'rope_parameters: mrope_section (16, 24, 16) sums to 56; rotary_dim 128 needs 64, as in (18, 28, 18)'
    """
    with _quiet(), torch.no_grad():
        subject = read_subject(target)
        if deep and subject.folder is None:
            raise ValueError(f"deep is True for {subject.name}; expected a checkpoint folder, with weights")
        built = hasattr(subject.config, "record")
        if built and (inputs is None or deep):
            raise ValueError(
                f"{subject.name} is of `build_vlm`, whose positions and rotary are ours: nothing of transformers' own "
                "is there to examine; expected inputs, a batch for it, and deep=False"
            )
        given, outcome = None if inputs is None else load_batch(inputs), _Outcome()
        try:
            if not built:
                _examine(subject, outcome)
            if given is not None:
                outcome.take(examine_batch(subject, given))
            if deep:
                outcome.run("parity", lambda: _parity(subject))
        finally:
            subject.restore()
    return outcome.report(subject.name)


class _Outcome:
    """What the checks came to."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.checked: list[str] = []
        self.skipped: list[tuple[str, str]] = []

    def run(self, name: str, findings: Callable[[], Iterable[Finding]]) -> None:
        """Run a check; one that breaks down has found nothing, and is told of."""
        try:
            found = list(findings())
        except Exception as error:  # whatever the library raises where nobody expected it
            self.skipped.append((name, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"))
        else:
            self.findings += found
            self.checked.append(name)

    def take(self, report: Report) -> None:
        """Add what another report says."""
        self.findings += report.findings
        self.checked += report.checked
        self.skipped += report.skipped

    def report(self, name: str) -> Report:
        """The findings, wrong ones first."""
        return Report(
            subject=name,
            findings=tuple(sorted(self.findings, key=lambda one: one.level != "wrong")),
            checked=tuple(dict.fromkeys(self.checked)),
            skipped=tuple(self.skipped),
        )


def _examine(subject: Subject, outcome: _Outcome) -> None:
    blocked = _blocked(subject)
    for check in CHECKS:
        if check.needs in blocked:
            outcome.skipped.append((check.name, blocked[check.needs]))
        else:
            outcome.run(check.name, lambda check=check: check.run(subject))
    told = {finding.check for finding in outcome.findings}
    if "model" in told and "rotary" not in told:
        # Nothing is stated that is wrong in itself, and yet it does not run: what the class takes in its place is.
        outcome.run("rotary", lambda: static.splits(subject))


def _blocked(subject: Subject) -> dict[str, str]:
    """What does not run, and why: what checks that need it cannot tell."""
    _, error = attempt(lambda: subject.base)
    if error is not None:
        return dict.fromkeys(("index", "language", "forward"), f"no model to run: {error}")
    _, error = attempt(lambda: subject.layout)
    if error is not None:
        return dict.fromkeys(("index", "language", "forward"), f"no rule for its positions: {error}")
    blocked = {}
    for need, probe in (("index", _index), ("language", _language), ("forward", _forward)):
        _, error = attempt(lambda probe=probe: probe(subject))
        if error is not None:
            blocked[need] = f"an ordinary prompt does not run: {error}"
    return blocked


def model(subject: Subject) -> Iterator[Finding]:
    """A model can be made of the configuration, and its language model runs with ids on several axes."""
    _, error = attempt(lambda: subject.model)
    rule = "a model of this configuration can be made"
    if error is None and subject.has_index:
        rule = "its language model runs with ids on several axes"
        _, error = attempt(lambda: _language(subject))
    if error is not None:
        yield Finding(
            check="model",
            level="wrong",
            rule=rule,
            seen=f"it raises {error}",
            right="no error",
            fix="state what the checkpoint states: head_dim, rope_parameters with mrope_section, partial_rotary_factor",
        )


def _index(subject: Subject) -> None:
    subject.index(batch(subject, [[Text(3), WIDE, Text(2)]]))


def _language(subject: Subject) -> None:
    words = torch.arange(20, 26, device=subject.device)[None]
    layout, _ = attempt(lambda: subject.layout)
    axes = len(subject.family.axes) if layout is None else layout.axes
    ids = torch.stack([torch.arange(6) * (axis + 1) for axis in range(axes)])[:, None]
    embeds = subject.base.get_input_embeddings()(words)
    subject.base.language_model(inputs_embeds=embeds, position_ids=ids.to(subject.device), use_cache=False)


def _forward(subject: Subject) -> None:
    subject.run(batch(subject, [[Text(3), WIDE, Text(2)]], pixels=True))


CHECKS = (
    Check("model", model),
    Check("rotary", static.rotary),
    Check("words", static.words),
    Check("sizes", static.sizes),
    Check("ids-per-second", static.rates),
    Check("extension", static.extension),
    Check("patches", static.patches),
    Check("budget", static.budgets),
    Check("processor", processors.pictures),
    Check("clip-prompt", processors.wrappers),
    Check("clip-budget", processors.clip_budget),
    Check("clip-calls", processors.clip_calls),
    Check("clip-seconds", omni.clip_seconds),
    Check("counts", processors.counts),
    Check("positions", index.positions, "index"),
    Check("batch-order", index.batch_order, "index"),
    Check("adjacent-pictures", index.adjacent, "index"),
    Check("truncated-picture", index.truncation, "index"),
    Check("empty-row", index.empty_row, "index"),
    Check("odd-prompts", omni.odd_prompts, "index"),
    Check("silent-clips", omni.silent_clips, "index"),
    Check("sound-lengths", omni.sound_lengths, "forward"),
    Check("rotation", language.rotation, "language"),
    Check("packing", language.packing, "language"),
    Check("decode", forwards.decoding, "forward"),
    Check("picture-and-clip", forwards.mixed_media, "forward"),
    Check("token-types", forwards.token_types, "forward"),
    Check("next-turn", forwards.next_turn, "forward"),
    Check("stale-offset", forwards.stale_offset, "forward"),
    Check("ends-on-picture", forwards.ends_on_picture, "forward"),
    Check("beams", forwards.beams, "forward"),
    Check("generated-pictures", forwards.generated_pictures, "forward"),
)


def examine_batch(subject: Subject, given: Mapping[str, Any]) -> Report:
    """What is wrong with a batch of a subject, the subject itself left out.

    Raises:
        ValueError: it has no tokens.
    """
    if given.get("input_ids") is None:
        raise ValueError("inputs have no input_ids; expected a batch by name, as the model takes it")
    whole, outcome = Batch(subject, given), _Outcome()
    for name, check in batches.CHECKS.items():
        told = {finding.check for finding in outcome.findings}
        if "tokens" in told:
            outcome.skipped.append((f"{name} of the batch", "its tokens cannot be read"))
        elif name in batches.BY_SPANS and "placeholders" in told:
            outcome.skipped.append((f"{name} of the batch", "its placeholders do not fit"))
        else:
            outcome.run(f"{name} of the batch", lambda check=check: check(whole))
    return outcome.report("this batch")


def _parity(subject: Subject) -> Iterator[Finding]:
    from mrope.hf.parity import check

    assert subject.folder is not None
    try:
        outcome = check(subject.folder)
    except Exception as error:  # of whatever file the library cannot read
        outcome = ()
        yield Finding(
            check="parity",
            level="wrong",
            rule="a checkpoint folder has what the library loads: weights, a processor and a tokenizer",
            seen=f"it raises {type(error).__name__}: {' '.join(str(error).split())}",
            right="no error",
            fix="put in its place the file that the error names, as it was released",
        )
    for one in outcome:
        if not one.passed:
            yield Finding(
                check="parity",
                level="wrong",
                rule=f"{one.name}: as ours",
                seen=one.detail,
                right="equal",
                fix="mrope parity FOLDER compares all of it",
            )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of prompts that are wrong on purpose."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
