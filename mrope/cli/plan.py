"""`mrope plan`: what will happen to pictures and clips, told from their sizes alone."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mrope.cli.options import AsJson, FamilyName, MaxTokens, MinTokens
from mrope.cli.output import print_json, print_table

if TYPE_CHECKING:
    from mrope import Family
    from mrope.vision import Plan, Scanned, Summary

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
        Conflict, typer.Option(help="error, skip, pad, tile or family: where a picture does not fit.")
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
        str, typer.Option(metavar="NAME", help="The field of a JSONL file that holds the path, or a list of them.")
    ] = "image",
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
    if budget is not None and (clips or conflict != "error"):
        raise ValueError("--budget shares tokens between pictures that all fit; drop --clips and --conflict")
    record = mrope.family(family)
    asked = _Asked(record, min_tokens, max_tokens, conflict, on_error, column, clips, fps, bar=_watched())
    words = settings(record, min_tokens=min_tokens, max_tokens=max_tokens, conflict=asked.conflict, clips=clips)
    found = asked.scanned(pictures) if budget is None else asked.shared(pictures, budget)
    if summary:
        _print_summary(summarize(found, cutoffs=cutoff or ()), words, json)
        asked.print_skipped()
        return
    rows = list(found)
    if json:
        print_json([_as_json(one) for one in rows])
    elif explain:
        print("\n\n".join(f"{one.name}: {asked.explained(one)}" for one in rows))
    else:
        columns = ("picture", "original", "resized", "grid t x h x w", "tokens", "in a prompt", "scale h, w")
        print_table(columns, [_as_row(one) for one in rows])
        shared = "" if budget is None else f", {budget} tokens in all"
        print(f"{record.name}, {words['limits']}{shared}; {words['resize']}; {record.patch_order}; conflict {conflict}")
    asked.print_skipped()


@dataclass(slots=True)
class _Asked:
    """The options, and what was left out."""

    family: Family
    min_tokens: int | None
    max_tokens: int | None
    conflict: Any
    on_error: Any
    column: str
    clips: bool
    fps: float | None
    bar: Literal["none", "bar"]
    skipped: tuple[tuple[str, str], ...] = ()

    def scanned(self, pictures: list[str]) -> Iterator[Scanned]:
        """The plans of all pictures that the arguments name."""
        from mrope.vision import scan

        for picture in pictures:
            size = re.fullmatch(r"(\d+)x(\d+)", picture)
            clip = re.fullmatch(r"(\d+)x(\d+)x(\d+)(?:@(\d+(?:\.\d+)?))?", picture)
            if clip or (self.clips and not size):
                yield from self._clip(picture, clip)
                continue
            found = scan(
                {picture: (int(size[2]), int(size[1]))} if size else picture,
                self.family,
                min_tokens=self.min_tokens,
                max_tokens=self.max_tokens,
                conflict=self.conflict,
                on_error=self.on_error,
                column=self.column,
                progress="none" if size else self.bar,
            )
            yield from found
            self.skipped += tuple(found.skipped)

    def shared(self, pictures: list[str], budget: int) -> Iterator[Scanned]:
        """The plans of all pictures under one budget."""
        from mrope.vision import plan_many

        rows = list(self.scanned(pictures))
        if clip := next((one.name for one in rows if one.plan is not None and one.plan.frames is not None), None):
            raise ValueError(f"{clip}: --budget shares tokens between pictures; plan clips without it")
        sizes = [one.plan.original for one in rows if one.plan is not None]
        plans = iter(
            plan_many(sizes, self.family, budget=budget, min_tokens=self.min_tokens, max_tokens=self.max_tokens)
        )
        for one in rows:
            if one.plan is not None:
                known = {"source": one.plan.source, "orientation": one.orientation}
                one = replace(one, plan=replace(next(plans), **known))
            yield one

    def explained(self, one: Scanned) -> str:
        """The arithmetic of one plan."""
        from mrope.vision import explain

        if one.plan is None:
            return _why(one)
        return explain(
            one.plan, self.family, min_tokens=self.min_tokens, max_tokens=self.max_tokens, conflict=self.conflict
        )

    def print_skipped(self) -> None:
        """List what was left out, on stderr."""
        for name, error in self.skipped:
            print(f"mrope plan: skipped {name}: {error}", file=sys.stderr)

    def _clip(self, name: str, size: re.Match[str] | None) -> Iterator[Scanned]:
        from mrope.vision import Scanned

        try:
            yield Scanned(name=name, size=None, plan=self._clip_plan(name, size))
        except (ValueError, OSError) as error:
            if self.on_error == "raise":
                named = isinstance(error, OSError) or name in str(error)
                raise (error if named else ValueError(f"{name}: {error}")) from None
            if self.on_error == "skip":
                self.skipped += ((name, str(error)),)
            else:
                yield Scanned(name=name, size=None, error=str(error))

    def _clip_plan(self, name: str, size: re.Match[str] | None) -> Plan:
        from mrope.vision import plan_video

        limits: Any = {"min_tokens": self.min_tokens, "max_tokens": self.max_tokens}
        limits["conflict"] = "family" if self.conflict == "family" else "error"
        if size is None:
            return plan_video(name, self.family, fps=self.fps, **limits)
        width, height, frames = (int(size[number]) for number in (1, 2, 3))
        rate = self.fps
        if size[4] and self.family.sampling is not None:
            source_fps = float(size[4])
            picks = self.family.sampling.indices(frames, source_fps, fps=self.fps)
            rate, frames = len(picks) / frames * source_fps, len(picks)
        return plan_video((frames, height, width), self.family, fps=rate, **limits)


def _watched() -> Literal["none", "bar"]:
    return "bar" if sys.stderr.isatty() else "none"


def _why(one: Scanned) -> str:
    return one.error or "does not fit, left out by --conflict skip"


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


def _print_summary(found: Summary, words: dict[str, str], json: bool) -> None:
    if json:
        print_json({"settings": words, **asdict(found)})
        return
    print(
        f"{found.pictures} pictures, {found.planned} planned: {found.tokens} tokens, {found.prompt_tokens} in prompts"
    )
    print(f"{found.shrunk} have fewer tokens than their own size would take, {found.enlarged} more")
    for percent, tokens in found.percentiles:
        print(f"{percent} % of the pictures have at most {tokens} tokens")
    for tokens, count in found.histogram:
        print(f"up to {tokens} tokens: {count}")
    for limit, share in found.above:
        print(f"above {limit} prompt tokens: {100 * share:.2f} %")
    for what, names in (("does not fit", found.unfit), ("cannot be read", found.unread)):
        for name, why in names:
            print(f"{what}: {name}: {why}")
    for name in ("family", "resize", "token", "limits", "patch order", "conflict"):
        print(f"{name}: {words[name]}")


def _sides(size: tuple[float, float]) -> dict[str, float]:
    return {"height": size[0], "width": size[1]}


def _words(size: tuple[int, int]) -> str:
    return f"{size[1]} wide x {size[0]} high"
