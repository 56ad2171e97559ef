"""`mrope plan`: what will happen to pictures and clips, told from their sizes alone."""

from __future__ import annotations

import glob
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mrope.checks import positive
from mrope.cli.options import AsJson, FamilyName, MaxTokens, MinTokens, in_options, told_in_options
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope import Family
    from mrope.vision import Plan, Scanned, Summary

_SIZE = re.compile(r"(\d+)x(\d+)")
_CLIP_SIZE = re.compile(r"(\d+)x(\d+)x(\d+)(?:@(\d+(?:\.\d+)?))?")
_ROWS = (".jsonl", ".ndjson")

Conflict = Literal["error", "skip", "pad", "tile", "family"]
OnError = Literal["raise", "skip", "keep"]


def plan(
    pictures: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH|WxH ...",
            help="Pictures, folders, globs, JSONL files, tar shards, PDFs, or sizes: 640x480 is 640 wide, 480 high; a "
            "clip of 60 frames is 640x480x60, and 640x480x1800@30 is sampled from 1800 frames at 30 a second.",
        ),
    ],
    family: FamilyName,
    min_tokens: MinTokens = None,
    max_tokens: MaxTokens = None,
    conflict: Annotated[
        Conflict,
        typer.Option(
            help="error, skip, pad, tile or family: where a picture does not fit; a clip: error, pad, family."
        ),
    ] = "error",
    budget: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of all pictures together, shared out among them.")
    ] = None,
    clips: Annotated[bool, typer.Option("--clips", help="Files are clips, sampled as the family does.")] = False,
    fps: Annotated[
        float | None, typer.Option(metavar="X", help="Frames a second that are looked at in a clip.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the arithmetic of each plan.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Print what all come to instead of each.")] = False,
    cutoff: Annotated[
        list[int] | None, typer.Option(metavar="N", help="In the summary, the share above N prompt tokens.")
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="raise, skip or keep: what becomes of what cannot be planned.")
    ] = "raise",
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The field of a JSONL file that holds the path, or a list of them: image."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print each picture's original and resized size, grid, tokens and scale; only file headers are read.

    One picture that cannot be planned stops the command: its one line names it, and nothing is printed for the others;
    with --on-error skip or keep it goes on.

    Example: mrope plan photos 'scans/*.png' train.jsonl --family qwen3-vl --max-tokens 1280 --summary --cutoff 4096
    """
    import mrope
    from mrope.vision import settings, summarize

    if cutoff and not summary:
        raise ValueError("--cutoff is part of the summary; add --summary")
    if explain and (summary or json or budget is not None):
        raise ValueError("--explain tells the arithmetic of single plans; drop --summary, --json and --budget")
    record = mrope.family(family)
    limits = {"min_tokens": min_tokens, "max_tokens": max_tokens, "conflict": conflict}
    asked = _Asked(record, limits, on_error, column, clips, fps, bar=_watched())
    kinds = asked.kinds(pictures, budget)
    with told_in_options():
        words = {
            kind: settings(record, **limits, clips=kind == "clips", fps=fps if kind == "clips" else None)
            for kind in kinds
        }
        if budget is not None:
            words["pictures"]["budget"] = f"{budget} tokens in all"
        found = asked.scanned(pictures) if budget is None else asked.shared(pictures, budget)
        if summary:
            _print_summary(summarize(found, cutoffs=cutoff or ()), words, json)
            asked.print_skipped()
            return
        rows = list(found)
        if json:
            print_json({"settings": words, "pictures": [_as_json(one) for one in rows]})
        elif explain:
            print("\n\n".join(f"{one.name}: {asked.explained(one)}" for one in rows))
        else:
            columns = ("picture", "original", "resized", "grid t x h x w", "tokens", "in a prompt", "scale h, w")
            print_table(columns, [_as_row(one) for one in rows])
            for each in words.values():
                shared = f", {each['budget']}" if "budget" in each else ""
                sampled = f"sampling {each['sampling']}; " if "sampling" in each else ""
                print(
                    f"{each['family']}, {each['limits']}{shared}; {sampled}{each['resize']}; {each['patch order']}; "
                    f"conflict {each['conflict']}"
                )
    asked.print_skipped()


@dataclass(slots=True)
class _Asked:
    """The options, and what was left out."""

    family: Family
    limits: dict[str, Any]
    on_error: Any
    column: str | None
    clips: bool
    fps: float | None
    bar: Literal["none", "bar"]
    skipped: tuple[tuple[str, str], ...] = ()

    def kinds(self, pictures: list[str], budget: int | None) -> list[str]:
        """What the arguments are, "pictures" or "clips" or both; options that nothing takes are refused."""
        conflict = self.limits["conflict"]
        if self.fps is not None:
            positive("--fps", self.fps)
        found = [kind for kind in ("pictures", "clips") if kind in {self._kind(one) for one in pictures}]
        if "clips" not in found and (self.clips or self.fps is not None):
            option = "--clips" if self.clips else "--fps"
            raise ValueError(f"{option} is for clips, and none came; give a file with --clips, or a size: 640x480x60")
        if "clips" in found and conflict not in ("error", "pad", "family"):
            raise ValueError(f"--conflict is {conflict}; expected error, pad or family for clips")
        if self.column is not None and not any(one.lower().endswith(_ROWS) or glob.has_magic(one) for one in pictures):
            raise ValueError(f"--column is {self.column}, and no JSONL file came; drop it")
        if budget is not None and "clips" in found:
            raise ValueError("--budget shares tokens between pictures; plan clips without it, and drop --clips")
        if budget is not None and conflict not in ("error", "skip"):
            raise ValueError(
                f"--conflict is {conflict}; expected error or skip with --budget, which is shared out between pictures "
                "that fit their limits"
            )
        return found

    def _kind(self, picture: str) -> str:
        clip = _CLIP_SIZE.fullmatch(picture) or (self.clips and not _SIZE.fullmatch(picture))
        return "clips" if clip else "pictures"

    def scanned(self, pictures: list[str]) -> Iterator[Scanned]:
        """The plans of all pictures that the arguments name."""
        from mrope.vision import scan

        for picture in pictures:
            if self._kind(picture) == "clips":
                yield from self._clip(picture)
                continue
            size = _SIZE.fullmatch(picture)
            found = scan(
                {picture: (int(size[2]), int(size[1]))} if size else picture,
                self.family,
                **self.limits,
                on_error=self.on_error,
                column=self.column or "image",
                progress="none" if size else self.bar,
            )
            yield from found
            self.skipped += tuple(found.skipped)

    def shared(self, pictures: list[str], budget: int) -> Iterator[Scanned]:
        """The plans of all pictures under one budget."""
        from mrope.vision import plan_many

        rows = list(self.scanned(pictures))
        sizes = [one.plan.original for one in rows if one.plan is not None]
        limits = {name: value for name, value in self.limits.items() if name != "conflict"}
        plans = iter(plan_many(sizes, self.family, budget=budget, **limits))
        for one in rows:
            if one.plan is not None:
                known = {"source": one.plan.source, "orientation": one.orientation}
                one = replace(one, plan=replace(next(plans), **known))
            yield one

    def explained(self, one: Scanned) -> str:
        """The arithmetic of one plan."""
        from mrope.vision import explain

        return _why(one) if one.plan is None else explain(one.plan, self.family, **self.limits)

    def print_skipped(self) -> None:
        """List what was left out, on stderr."""
        for name, error in self.skipped:
            print(f"mrope plan: skipped {name}: {in_options(error)}", file=sys.stderr)

    def _clip(self, name: str) -> Iterator[Scanned]:
        from mrope.vision import Scanned

        try:
            yield Scanned(name=name, size=None, plan=self._clip_plan(name))
        except (ValueError, OSError) as error:
            if self.on_error == "raise":
                named = isinstance(error, OSError) or name in str(error)
                raise (error if named else ValueError(f"{name}: {error}")) from None
            if self.on_error == "skip":
                self.skipped += ((name, str(error)),)
            else:
                yield Scanned(name=name, size=None, error=str(error))

    def _clip_plan(self, name: str) -> Plan:
        from mrope.vision import plan_video

        size = _CLIP_SIZE.fullmatch(name)
        if size is None:
            return plan_video(name, self.family, fps=self.fps, **self.limits)
        width, height, frames = (int(size[number]) for number in (1, 2, 3))
        rate = self.fps
        if size[4] and self.family.sampling is not None:
            source_fps = float(size[4])
            picks = self.family.sampling.indices(frames, source_fps, fps=self.fps)
            rate, frames = len(picks) / frames * source_fps, len(picks)
        return plan_video((frames, height, width), self.family, fps=rate, **self.limits)


def _watched() -> Literal["none", "bar"]:
    return "bar" if sys.stderr.isatty() else "none"


def _why(one: Scanned) -> str:
    return in_options(one.error or "does not fit, left out by --conflict skip")


def _as_json(one: Scanned) -> dict[str, object]:
    if one.plan is None:
        return {"picture": one.name, "original": one.size and _sides(one.size), "error": _why(one)}
    planned = one.plan
    facts = {
        "picture": one.name,
        "original": _sides(planned.original),
        "orientation": planned.orientation,
        "resized": _sides(planned.resized),
        "grid": dict(zip("thw", planned.grid, strict=True)),
        "tokens": planned.tokens,
        "scale": _sides(planned.scale),
        "prompt_tokens": planned.prompt_tokens,
    }
    if planned.frames is not None:
        facts |= {"frames": planned.frames, "seconds_per_step": planned.seconds}
    if len(planned.parts) > 1:
        facts["parts"] = [
            {
                "resized": _sides(part.resized),
                "top": part.corner[0],
                "left": part.corner[1],
                "window": _sides(part.window),
                "grid": dict(zip("thw", part.grid, strict=True)),
            }
            for part in planned.parts
        ]
    return facts


def _as_row(one: Scanned) -> tuple[object, ...]:
    if one.plan is None:
        return one.name, "" if one.size is None else _words(one.size), _why(one), "", "", "", ""
    planned = one.plan
    turned = "" if planned.orientation == 1 else f" (turned, EXIF {planned.orientation})"
    frames = "" if planned.frames is None else f"{planned.frames} frames, "
    first, *others = ("x".join(map(str, part.grid)) for part in planned.parts)
    more = [f" + {count} of {grid}" for grid, count in Counter(others).items()]
    return (
        one.name,
        frames + _words(planned.original) + turned,
        _words(planned.resized),
        first + "".join(more),
        planned.tokens,
        "?" if planned.prompt_tokens is None else planned.prompt_tokens,
        "{:.4f}, {:.4f}".format(*planned.scale),
    )


def _print_summary(found: Summary, words: dict[str, dict[str, str]], json: bool) -> None:
    if json:
        print_json({"settings": words, **asdict(found)})
        return
    things, prompts = " and ".join(words), "?" if found.prompt_tokens is None else found.prompt_tokens
    print(f"{found.pictures} {things}, {found.planned} planned: {found.tokens} tokens, {prompts} in prompts")
    print(f"{found.shrunk} have fewer tokens than their own size would take, {found.enlarged} more")
    for percent, tokens in found.percentiles:
        print(f"{percent} % of the {things} have at most {tokens} tokens")
    for tokens, count in found.histogram:
        print(f"up to {tokens} tokens: {count}")
    for limit, share in found.above:
        print(f"above {limit} prompt tokens: {100 * share:.2f} %")
    for what, names in (("does not fit", found.unfit), ("cannot be read", found.unread)):
        for name, why in names:
            print(f"{what}: {name}: {in_options(why)}")
    for kind, each in words.items():
        for name, value in each.items():
            print(f"{name} of {kind}: {value}" if len(words) > 1 else f"{name}: {value}")


def _sides(size: tuple[float, float]) -> dict[str, float]:
    return {"height": size[0], "width": size[1]}


def _words(size: tuple[int, int]) -> str:
    return f"{size[1]} wide x {size[0]} high"
