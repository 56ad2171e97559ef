"""JPEG bytes to patches, plans and PDF pages: time and memory, beside those who do the same.

Run it: python benchmarks/patchify.py [--json FILE] [--peers FOLDER] [--quick]

All take the same bytes at the same limits of Qwen2-VL. With one thread a time is that of the processor, which other
programs do not lengthen; with all cores it is that of the clock. A ratio compares calls of one round.
"""

from __future__ import annotations

import gc
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # a bare checkout will do

import mrope  # noqa: E402
from mrope.cli.output import print_table, progress  # noqa: E402
from mrope.vision import (  # noqa: E402
    Patches,
    load,
    patchify,
    patchify_all,
    pdf_pages,
    plan,
    plan_sizes,
    resize,
    scan,
)

QWEN = mrope.family("qwen2-vl")
LEAST, NATIVE = 4, 16384
SIZES = {"VGA": (480, 640), "HD": (1080, 1920), "A4": (2339, 1654), "12MP": (3024, 4032), "12MP odd": (3000, 4000)}
CASES = [*((name, 1280) for name in ("VGA", "HD", "A4", "12MP")), *((name, NATIVE) for name in list(SIZES)[1:])]
QUICK = [("VGA", 64)]
# What else than malloc's default and one thread is compared in: some cases, by those to whom it makes a difference.
KINDS = [("JPEG",), ("JPEG", 6), ("WEBP",), ("PNG", 6)]
"""Of the large photograph whose memory is measured: how it is encoded, and its EXIF orientation."""
FEWER = [("HD", 1280), ("12MP", 1280), ("A4", NATIVE), ("12MP", NATIVE)]

PEER, TENSOR, PILLOW = "transformers fast, PIL", "transformers fast, tensor", "transformers PIL"
QWEN_UTILS, TIMM, RUST = "qwen-vl-utils + fast", "timm NaFlex", "hf-processors-rs"
FRESH, REUSED, BYTES = "mrope, fresh", "mrope, reused", "mrope, uint8 reused"
FLOOR, FLOOR_OF_BYTES = "decode, resize, warm write", "decode, resize, warm write of bytes"
# (picture, tokens) -> times as fast as PEER: what is demanded with reused buffers, and what is aimed at.
GOALS = {
    **{(name, 1280): (2.2, 2.8) for name in ("VGA", "HD", "A4", "12MP")},
    ("HD", NATIVE): (2.4, 3.5), ("A4", NATIVE): (3.5, 4.4), ("12MP", NATIVE): (3.7, 5.7),
}  # fmt: skip
BYTES_GOALS = {("HD", NATIVE): (3.5, 4.4), ("A4", NATIVE): (4.5, 5.5), ("12MP", NATIVE): (5.5, 7.0)}

MALLOC = {
    "default": {},
    # glibc keeps what is freed, so that no call pays for fresh pages.
    "tuned": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"},
    # torch asks for pages of 2 MiB, where the system gives them to those who ask.
    "huge pages": {"THP_MEM_ALLOC_ENABLE": "1"},
}
SOME = (PEER, RUST, FRESH, REUSED, BYTES, FLOOR, FLOOR_OF_BYTES)
PATIENCE = 1.5
"""Seconds after which a case gets no further round, once it has three."""
Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------------------- inputs


@cache
def jpeg(name: str) -> bytes:
    """A mosaic of the photographs that scikit-image ships, or a page of text, as a JPEG file."""
    height, width = SIZES[name]
    return encoded(_page(height, width) if name == "A4" else _photographs(height, width), "JPEG")


def encoded(picture: Image.Image, kind: str, orientation: int = 1) -> bytes:
    """The picture as a file that is to be turned by its EXIF orientation."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    picture.save(file, kind, exif=exif, **({"compress_level": 1} if kind == "PNG" else {"quality": 90}))
    return file.getvalue()


def _photographs(height: int, width: int) -> Image.Image:
    """Photographs at twice their size side by side: sharp as prints, and no wider than a camera's noise is."""
    from pictures import photograph

    canvas, names, top = Image.new("RGB", (width, height)), ("rocket", "coffee", "chelsea", "astronaut"), 0
    for row in range(height // 600 + 1):
        for col in range(width // 800 + 1):
            photo = photograph(names[(row + col) % 4]).resize((800, 600), Image.Resampling.BICUBIC)
            canvas.paste(photo, (col * 800, top))
        top += 600
    grain = np.random.default_rng(0).normal(0, 3, (height, width, 1))
    return Image.fromarray((np.asarray(canvas) + grain).clip(0, 255).astype(np.uint8))


def _page(height: int, width: int) -> Image.Image:
    """Lines of text on paper that a scanner saw."""
    page = Image.new("RGB", (width, height), "white")
    font, pen = ImageFont.load_default(26), ImageDraw.Draw(page)
    for line, top in enumerate(range(120, height - 120, 36)):
        pen.text(
            (120, top), f"{line:03d} The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 2, 0, font
        )
    grain = np.random.default_rng(0).normal(0, 4, (height, width, 1))
    return Image.fromarray((np.asarray(page) + grain).clip(0, 255).astype(np.uint8))


def text_pdf(pages: int = 1) -> bytes:
    """A PDF of A4 pages with 60 lines of text each."""
    parts = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    for page in range(pages):
        lines = "".join(
            f"({page}.{line:02d} The quick brown fox jumps over the lazy dog, who sleeps.) Tj T* " for line in range(60)
        )
        content = f"BT /F 11 Tf 12 TL 60 780 Td {lines}ET".encode()
        parts += [
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents %d 0 R/Resources<</Font<</F 3 0 R>>>>>>"
            % (len(parts) + 2),
            b"<</Length %d>>stream\n%b\nendstream" % (len(content), content),
        ]
    kids = b" ".join(b"%d 0 R" % number for number in range(4, len(parts) + 1, 2))
    parts[1] = b"<</Type/Pages/Kids[%b]/Count %d>>" % (kids, pages)
    file, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(file))
        file += b"%d 0 obj%b endobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return file + b"xref\n0 %d\n0000000000 65535 f \n%btrailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        len(parts) + 1, table, len(parts) + 1, len(file)
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- calls


@cache
def processor(tokens: int, kind: str = "Qwen2VLImageProcessor") -> Any:
    import transformers

    unit = QWEN.factor**2
    return getattr(transformers, kind)(size={"shortest_edge": LEAST * unit, "longest_edge": tokens * unit})


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def by_transformers(data: bytes, tokens: int) -> Tensor:
    return processor(tokens)(opened(data), return_tensors="pt")["pixel_values"]


def by_transformers_from_tensor(data: bytes, tokens: int) -> Tensor:
    from torchvision.io import decode_jpeg

    pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return processor(tokens)(pixels, return_tensors="pt")["pixel_values"]


def by_pillow(data: bytes, tokens: int) -> Tensor:
    return processor(tokens, "Qwen2VLImageProcessorPil")(opened(data), return_tensors="pt")["pixel_values"]


def by_qwen_utils(data: bytes, tokens: int) -> Tensor:
    from qwen_vl_utils import fetch_image  # pyright: ignore[reportMissingImports]

    unit = QWEN.factor**2
    picture = fetch_image({"image": opened(data), "min_pixels": LEAST * unit, "max_pixels": tokens * unit})
    return processor(tokens)(picture, return_tensors="pt")["pixel_values"]


def by_timm(data: bytes, tokens: int) -> Tensor:
    from timm.data.naflex_transforms import Patchify, ResizeToSequence
    from torchvision import transforms

    steps = (
        ResizeToSequence(QWEN.patch, max_seq_len=tokens * QWEN.merge**2),
        transforms.ToTensor(),
        transforms.Normalize(QWEN.mean, QWEN.std),
        Patchify(QWEN.patch),
    )
    made: Any = transforms.Compose(steps)(opened(data).convert("RGB"))
    return made["patches"]


def by_rust(data: bytes, tokens: int) -> Tensor:
    from hf_processors_rs import Qwen2VLImageProcessor  # pyright: ignore[reportMissingImports]

    settings = processor(tokens).to_dict()
    return Qwen2VLImageProcessor.from_dict(settings)(opened(data), return_tensors="pt")["pixel_values"]


PEERS = {PEER: by_transformers, TENSOR: by_transformers_from_tensor, PILLOW: by_pillow, QWEN_UTILS: by_qwen_utils,
         TIMM: by_timm, RUST: by_rust}  # fmt: skip
EVERYONE = (*PEERS, FRESH, REUSED, BYTES, FLOOR, FLOOR_OF_BYTES)


def ours(data: bytes, tokens: int, **settings: Any) -> Patches:
    return patchify(data, QWEN, max_tokens=tokens, **settings)


def calls(name: str, tokens: int, contenders: Collection[str]) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Contender -> its call, made ready and found equal; and which of them cannot be called, with the reason."""
    data, skipped = jpeg(name), {}
    expected = by_transformers(data, tokens)
    found = ours(data, tokens)
    if not (torch.equal(found.values, expected) and torch.equal(by_transformers_from_tensor(data, tokens), expected)):
        raise AssertionError(f"{name} at {tokens} tokens: the patches are not those of transformers")
    made: dict[str, Callable[[], Any]] = {}
    for peer, call in PEERS.items():
        if peer not in contenders:
            continue
        try:
            call(data, tokens)
        except Exception as error:  # whatever ails a peer, the others are measured
            skipped[peer] = f"{type(error).__name__}: {error}"
        else:
            made[peer] = partial(call, data, tokens)
    buffer, pixels = torch.zeros_like(expected), torch.zeros(len(expected), QWEN.patch_dim // 2, dtype=torch.uint8)
    size = found.plans[0].resized
    room = torch.zeros(*size, 3, dtype=torch.uint8).permute(2, 0, 1)

    def floor() -> None:
        resize(load(data), size, out=room)
        buffer.fill_(1)

    def floor_of_bytes() -> None:
        resize(load(data), size, out=room)
        pixels.fill_(1)

    return made | {
        FRESH: partial(ours, data, tokens),
        REUSED: partial(ours, data, tokens, out=buffer),
        BYTES: partial(ours, data, tokens, dtype="uint8", out=pixels),
        FLOOR: floor,
        FLOOR_OF_BYTES: floor_of_bytes,
    }, skipped


def goals(name: str, tokens: int, contender: str) -> tuple[float, float] | None:
    """Times as fast as transformers' fast processor: floor and aim, both with default malloc and one thread."""
    if contender == FRESH:
        return (1.3, 1.3)
    return {REUSED: GOALS, BYTES: BYTES_GOALS}.get(contender, {}).get((name, tokens))


# -------------------------------------------------------------------------------------------------------------- speed


def work(malloc: str, threads: int, *, quick: bool) -> None:
    """Print, as JSON, a row for each case and contender; in a process whose malloc was set up."""
    torch.set_num_threads(threads)
    rows: list[Row] = []
    usual = (malloc, threads) == ("default", 1)
    for name, tokens in QUICK if quick else CASES if usual else FEWER:
        rows += speed(name, tokens, malloc, threads, 2 if quick else 7, EVERYONE if usual else SOME)
    print(json.dumps(rows))


def speed(name: str, tokens: int, malloc: str, threads: int, rounds: int, contenders: Collection[str]) -> list[Row]:
    """A row for each contender: its time, and how many times as fast as its peer it was, round by round."""
    made, skipped = calls(name, tokens, contenders)
    clock = time.process_time if threads == 1 else time.perf_counter
    taken: dict[str, list[float]] = {contender: [] for contender in made}
    for call in made.values():  # nobody is timed while something compiles
        call()
    begin = time.perf_counter()
    for turn in range(rounds):  # a round has all of them, so that a busy machine slows all alike
        if turn >= 3 and time.perf_counter() - begin > PATIENCE:
            break
        for contender, call in made.items():
            gc.collect()
            before = clock()
            result = call()
            taken[contender].append((clock() - before) * 1e3)
            del result
    height, width = SIZES[name]
    facts = {
        "picture": name,
        "size": [height, width],
        "bpp": 8 * len(jpeg(name)) / (height * width),
        "tokens": tokens,
        "malloc": malloc,
        "threads": threads,
        "unit": "ms",
    }
    rows = [
        facts
        | {
            "contender": contender,
            **dict(zip(("p20", "p50", "p80"), np.percentile(times, (20, 50, 80)).tolist(), strict=True)),
            "rounds": len(times),
            "ratio": _median_ratio(taken[PEER], times),
            "rust": _median_ratio(taken[RUST], times) if RUST in taken else None,
            "floor": _median_ratio(times, taken[FLOOR_OF_BYTES if contender in (BYTES, FLOOR_OF_BYTES) else FLOOR]),
            "goal": goals(name, tokens, contender) if (malloc, threads) == ("default", 1) and rounds > 2 else None,
        }
        for contender, times in taken.items()
    ]
    return rows + [facts | {"contender": contender, "skipped": why} for contender, why in skipped.items()]


def _median_ratio(times: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


# ------------------------------------------------------------------------------------------------------------- memory


def memory(name: str, tokens: int, contender: str, kind: str = "JPEG", orientation: int = 1) -> Row:
    """What a call takes at its peak beyond its result, in its own process."""
    command = f"import patchify; patchify.print_memory{(name, tokens, contender, kind, orientation)}"
    # Blocks from 64 KiB on go back to the system when they are freed: none is left in which a call could hide.
    return json.loads(_run(command, {"MALLOC_MMAP_THRESHOLD_": "65536"}))


def print_memory(name: str, tokens: int, contender: str, kind: str, orientation: int) -> None:
    """Measure and print what `memory` returns."""
    torch.set_num_threads(1)
    dtype = "uint8" if contender == BYTES else "float32"
    call = by_transformers if contender == PEER else partial(ours, dtype=dtype)
    height, width = SIZES[name]
    data = encoded(_photographs(height, width), kind, orientation)
    call(data, tokens)  # what is loaded and kept on a first call is no cost of the result
    begin = _peak_begins()
    result = call(data, tokens)
    peak = _peak_since(begin)
    values = result.values if isinstance(result, Patches) else result
    # A strip is eight rows of tokens of the wider of the two pictures; Pillow's decoders hold four bytes a pixel.
    wider = max(height if orientation >= 5 else width, plan(data, QWEN, max_tokens=tokens).resized[1])
    decoded, strip = (4 if kind == "PNG" else 3) * height * width, 3 * wider * 8 * QWEN.factor
    turned = f", turned by EXIF {orientation}" if orientation > 1 else ""
    row = {"picture": f"{name}, {kind}{turned}", "tokens": tokens, "contender": contender, "unit": "bytes"}
    row |= {"peak": peak, "result": values.nbytes, "above": peak - values.nbytes, "goal": decoded + 2 * strip}
    print(json.dumps(row))


def print_pages(pages: int, tokens: int) -> None:
    """Measure and print what the pages of a PDF take at their peak, one result after the other, each dropped."""
    torch.set_num_threads(1)
    data = text_pdf(pages)

    def work() -> int:
        stream = patchify_all(pdf_pages(data), QWEN, workers=1, ahead=0, max_tokens=tokens)
        return max(one.values.nbytes for one in stream if isinstance(one, Patches))

    work()
    begin = _peak_begins()
    result = work()
    peak = _peak_since(begin)
    row = {"picture": f"PDF of {pages} pages", "tokens": tokens, "contender": FRESH, "unit": "bytes", "peak": peak}
    height, width = plan(pdf_pages(data)[0], QWEN, max_tokens=tokens).resized
    # One result is made while the one before is in the caller's hands.
    goal = result + 3 * height * width + 2 * 3 * width * 8 * QWEN.factor
    print(json.dumps(row | {"result": result, "above": peak - result, "goal": goal}))


def _peak_begins() -> int:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    return _kilobytes("VmRSS")


def _peak_since(begin: int) -> int:
    return (_kilobytes("VmHWM") - begin) * 1024


def _kilobytes(name: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def _run(command: str, environment: dict[str, str]) -> str:
    """The last line that a process of this folder prints."""
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT / "benchmarks",
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"a measuring process ended with {done.returncode}:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


# ------------------------------------------------------------------------------------------- many pictures, plans, PDF


def others(*, quick: bool) -> None:
    """Print, as JSON, the rows that are no single picture."""
    torch.set_num_threads(1)
    print(json.dumps([*streams(quick=quick), *plans(quick=quick), *headers(quick=quick), *page(quick=quick)]))


def streams(*, quick: bool) -> list[Row]:
    """Pictures a second of a mixed stream, of two workers each, and of one of ours: seconds of the clock."""
    names, tokens = (["VGA"] * 6, 64) if quick else (["VGA"] * 10 + ["HD"] * 6 + ["A4"] * 4 + ["12MP"] * 2, 1280)
    stream = [jpeg(name) for name in names]

    def theirs() -> None:
        with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(partial(by_transformers, tokens=tokens), stream):
                pass

    def by_us(workers: int) -> None:
        for _ in patchify_all(stream, QWEN, workers=workers, max_tokens=tokens):
            pass

    by_transformers(stream[0], tokens)  # what it imports when it is first asked for, two threads cannot import at once
    taken = _compared([theirs, partial(by_us, 2), partial(by_us, 1)], 2 if quick else 3)
    what = f"{len(stream)} pictures, pictures a second"
    rates = [[len(stream) / seconds for seconds in times] for times in taken]
    return [
        _row(what, "transformers, 2 workers", rates[0], 1.0, None),
        _row(what, "mrope, 2 workers", rates[1], _median_ratio(rates[1], rates[0]), None if quick else 2.5),
        _row(what, "mrope, 1 worker", rates[2], _median_ratio(rates[2], rates[0]), None),
    ]


def plans(*, quick: bool) -> list[Row]:
    """Seconds to tell the size of a file, and of many sizes."""
    tokens, name, count = (64, "VGA", 200) if quick else (1280, "HD", 20000)
    sizes = np.random.default_rng(0).integers(200, 3000, (count, 2))
    theirs = processor(tokens)

    def loop() -> list[int]:
        return [theirs.get_number_of_image_patches(height, width) for height, width in sizes.tolist()]

    def at_once() -> list[int]:
        return plan_sizes(sizes, QWEN, min_tokens=LEAST, max_tokens=tokens).grids.prod(axis=1).tolist()

    if loop() != at_once():
        raise AssertionError("the sizes that were planned are not those of transformers")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.jpg"
        path.write_bytes(jpeg(name))

        def planned() -> None:
            for _ in range(50):
                plan(path, QWEN, max_tokens=tokens)

        def processed() -> None:
            by_transformers(path.read_bytes(), tokens)

        full, headers = _compared([processed, planned], 5)
    headers = [seconds / 50 for seconds in headers]
    looped, batch = _compared([loop, at_once], 9)
    files, many = f"a {name} file, s", f"{count} sizes, s"
    return [
        _row(files, "transformers, whole", full, 1.0, None),
        _row(files, "mrope, plan", headers, _median_ratio(full, headers), None if quick else 50.0),
        _row(many, "transformers, get_number_of_image_patches", looped, 1.0, None),
        _row(many, "mrope, plan_sizes", batch, _median_ratio(looped, batch), None if quick else 20.0),
    ]


def headers(*, quick: bool) -> list[Row]:
    """Files a second of a folder that are planned from their headers."""
    count, data = 50 if quick else 2000, jpeg("VGA")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            (Path(folder) / f"{number}.jpg").write_bytes(data)

        def scanned() -> None:
            if sum(one.plan is not None for one in scan(folder, QWEN)) != count:
                raise AssertionError("not all files were planned")

        (taken,) = _compared([scanned], 3)
    rates, goal = [count / seconds for seconds in taken], 3000
    what = f"a folder of {count} JPEG files, files a second"
    return [
        _row(what, "what is demanded", [goal], 1.0, None),
        _row(what, "mrope, scan", rates, statistics.median(rates) / goal, None if quick else 1.0),
    ]


def page(*, quick: bool) -> list[Row]:
    """Seconds from a page of text in a PDF to patches."""
    tokens, data = 64 if quick else 1280, text_pdf()

    def theirs() -> None:
        import pypdfium2

        document: Any = pypdfium2.PdfDocument(data)
        processor(tokens)(document[0].render(scale=200 / 72).to_pil(), return_tensors="pt")
        document.close()

    def straight() -> None:
        (sheet,) = pdf_pages(data)
        patchify(sheet, QWEN, max_tokens=tokens)

    rendered, ready = _compared([theirs, straight], 2 if quick else 7)
    what = f"a PDF page to {tokens} tokens, s"
    return [
        _row(what, "200 dpi, then transformers", rendered, 1.0, None),
        _row(what, "mrope, at its grid", ready, _median_ratio(rendered, ready), None if quick else 4.0),
    ]


def _compared(functions: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of the clock of each, in rounds that have all of them, after one that does not count."""
    taken: list[list[float]] = [[] for _ in functions]
    for turn in range(rounds + 1):
        for times, call in zip(taken, functions, strict=True):
            begin = time.perf_counter()
            call()
            if turn:
                times.append(time.perf_counter() - begin)
    return taken


def _row(what: str, contender: str, values: list[float], ratio: float, goal: float | None) -> Row:
    return {"what": what, "contender": contender, "value": statistics.median(values), "ratio": ratio, "goal": goal}


# ------------------------------------------------------------------------------------------------------------- report


def main(
    target: Annotated[Path | None, typer.Option("--json", help="Write all rows there, as JSON.")] = None,
    peers: Annotated[
        Path | None, typer.Option(help="A folder with packages of peers, from pip install --target.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One small picture: does it run?")] = False,
) -> None:
    """Compare mrope's patches with those of others; about 6 minutes on two cores."""
    if peers is not None and not peers.is_dir():
        raise typer.BadParameter(f"peers is {str(peers)!r}; expected a folder")
    cores = os.cpu_count() or 1
    kinds = [("default", 1), *([] if quick else [("tuned", 1), ("huge pages", 1), ("default", cores)])]
    measured: list[tuple[Any, ...]] = [("12MP odd", NATIVE), *(("12MP", 1280, *kind) for kind in KINDS)]
    path = os.environ.get("PYTHONPATH", "")
    inherited = {"PYTHONPATH": os.pathsep.join(filter(None, (path, str(peers.resolve()) if peers else "")))}
    found: dict[str, list[Row]] = {"speed": [], "memory": []}
    with progress() as bars:
        task = bars.add_task("", total=len(kinds) + 2)
        for malloc, threads in kinds:
            bars.update(task, description=f"speed, malloc {malloc}, {threads} threads")
            limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
            command = f"import patchify; patchify.work({malloc!r}, {threads}, quick={quick})"
            found["speed"] += json.loads(_run(command, inherited | limits | MALLOC[malloc]))
            bars.update(task, advance=1)
        bars.update(task, description="streams, plans, pages")
        found["others"] = json.loads(_run(f"import patchify; patchify.others(quick={quick})", {"OMP_NUM_THREADS": "1"}))
        bars.update(task, description="memory", advance=1)
        if Path("/proc/self/clear_refs").exists():
            found["memory"] = [
                memory(name, tokens, contender, *kind)
                for name, tokens, *kind in (QUICK if quick else measured)
                for contender in (PEER, FRESH, BYTES)
            ]
            pages = f"import patchify; patchify.print_pages({2 if quick else 200}, {64 if quick else 1280})"
            found["memory"].append(json.loads(_run(pages, {"MALLOC_MMAP_THRESHOLD_": "65536"})))
        bars.update(task, advance=1)
    _print(found)
    if target is not None:
        facts = _facts()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps({part: [facts | row for row in rows] for part, rows in found.items()}, indent=1))


def _facts() -> Row:
    import PIL
    import torchvision
    import transformers

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "transformers": transformers.__version__,
        "pillow": PIL.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }


def _print(found: dict[str, list[Row]]) -> None:
    print("\n" + ", ".join(f"{name} {value}" for name, value in _facts().items()) + "\n")
    print(
        "JPEG bytes to float32 patches; times as fast as transformers' fast processor (PIL object), and as the Rust one"
    )
    print_table(
        ("picture", "bpp", "tokens", "malloc", "threads", "contender", "p20 ms", "p50 ms", "p80 ms", "as fast",
         "as Rust", "of the floor", "goal"),
        [
            (
                row["picture"], f"{row['bpp']:.1f}", f"{row['tokens']:,}", row["malloc"], row["threads"],
                row["contender"], *(f"{row[part]:.1f}" for part in ("p20", "p50", "p80")), f"{row['ratio']:.2f}",
                "" if row["rust"] is None else f"{row['rust']:.2f}", f"{row['floor']:.2f}", _goal(row),
            )
            for row in found["speed"] if "skipped" not in row
        ],
    )  # fmt: skip
    for peer, why in {row["contender"]: row["skipped"] for row in found["speed"] if "skipped" in row}.items():
        print(f"skipped: {peer}: {why}")
    print("\nmany pictures, plans, a page")
    print_table(
        ("what", "contender", "value", "times as good", "goal"),
        [
            (
                row["what"],
                row["contender"],
                f"{row['value']:.3g}",
                f"{row['ratio']:.2f}",
                _reached(row["ratio"], row["goal"]),
            )
            for row in found["others"]
        ],
    )
    print("\npeak memory above the result; goal: one decoded picture and two strips")
    print_table(
        ("picture", "tokens", "contender", "peak MB", "result MB", "above MB", "goal"),
        [
            (
                row["picture"], f"{row['tokens']:,}", row["contender"],
                *(f"{row[part] / 1e6:.0f}" for part in ("peak", "result", "above")),
                f"at most {row['goal'] / 1e6:.0f}: {'reached' if row['above'] <= row['goal'] else 'missed'}"
                if row["contender"] in (FRESH, BYTES) else "",
            )
            for row in found["memory"]
        ],
    )  # fmt: skip


def _goal(row: Row) -> str:
    if row["goal"] is None:
        return ""
    floor, aim = row["goal"]
    return f"{_reached(row['ratio'], floor)}, aim {aim:g}: {'reached' if row['ratio'] >= aim else 'missed'}"


def _reached(value: float, goal: float | None) -> str:
    return "" if goal is None else f"at least {goal:g}: {'reached' if value >= goal else 'missed'}"


if __name__ == "__main__":
    typer.run(main)
