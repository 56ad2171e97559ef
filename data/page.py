"""The demo's document page: headings, justified text in two columns, a figure, a table and small print."""

from __future__ import annotations

from PIL import Image

from .canvas import BLUE, GREEN, GREY, INK, ORANGE, RULE, Canvas, Colour, Number, Point, text_width

HEIGHT, WIDTH = 1754, 1240
LEFT, COLUMN, GUTTER = 104, 496, 40
PAPER = (253, 252, 248)

SERIF, ITALIC, BOLD, SANS, HEAD, MONO = (
    "NotoSerif-Regular",
    "NotoSerif-Italic",
    "NotoSerif-Bold",
    "Inter-Regular",
    "Inter-Bold",
    "JetBrainsMono-Regular",
)

ABSTRACT = (
    "A model that first squeezes every picture into the same square has lost the small print before it reads a word. "
    "This note follows one page the other way: keep its shape, cut it into patches, give each patch a place in time, "
    "height and width, and let the text go on from there."
)
LEFT_COLUMN = [
    ("1", "Keep the page as it is"),
    "An A4 page scanned at 150 dots an inch is 1240 pixels wide and 1754 high. Squeezed into a square of 448 pixels it "
    "keeps 36 per cent of its width and 26 per cent of its height: thin strokes vanish, and the letters that are left "
    "are wider than anyone drew them.",
    "At native resolution the page is only rounded to the nearest multiple of a merged patch, here 28 pixels, and "
    "costs what its area costs. A receipt stays tall, a panorama stays wide, and an icon stays cheap.",
    ("2", "Three numbers for each token"),
    "Words stand in a row, so one number is enough for each of them. Patches stand in a grid, and a clip adds time. "
    "Here every token has three coordinates, (t, h, w). For a word all three are equal, and the encoding is the one "
    "that the language model has always known. For a patch, h counts rows and w counts columns from the place where "
    "the picture begins.",
    "The rotary pairs of each attention head are shared out among the axes. In a head of 128 channels, 16 pairs turn "
    "with time, 24 with height and 24 with width. Only differences enter the score, so the patch to the right is one "
    "step away in w, wherever on the page we look.",
    ("3", "Where the next word starts"),
    "After a picture the text goes on at the largest position used so far, plus one. A picture of 24 rows and 32 "
    "columns of patches, merged two by two, is 192 tokens long, yet it moves the text by 16 positions only. The gap "
    "between the length of a prompt and its next position is one number for each request. Whoever decodes must add "
    "it to every new token; whoever forgets it writes the answer into the margin.",
    "Nothing else has to be stored. The rule is the same for two pictures, for ten, and for none.",
]
RIGHT_COLUMN = [
    ("4", "What it costs"),
    "Tokens follow area. Table 1 compares the fixed square, always 256 tokens, with native resolution. Small pictures "
    "become cheaper than the square, large ones dearer, and nothing is bent out of shape.",
]
CLOSING = [
    ("5", "Three faults that hide well"),
    "Rows and columns change places: on square pictures every average still looks right. Pairs are dealt to the wrong "
    "axis: the loss goes down, only more slowly. Patches are numbered like words: small pictures work, tall ones fail. "
    "A test with a grid taller than wide finds all three in a second.",
    ("6", "A clip is a stack of pages"),
    "A clip repeats its rows and columns frame by frame while t goes up. Some families count frames, others seconds, "
    "and a third kind writes the time as text in front of every frame.",
]
TABLE = [
    ("Icon", 96, 96),
    ("Receipt", 384, 1216),
    ("Chart", 900, 610),
    ("This page", 1240, 1754),
    ("Panorama", 2400, 620),
]
"""Picture, width, height; tokens follow from merged patches of 28 pixels."""

SMALL_PRINT = (
    "This page was drawn by the program that ships with it. Its figures follow from arithmetic and none was measured: "
    "tokens are round(width / 28) x round(height / 28). Small print such as this is set in letters of 13 pixels, "
    "capitals about 9. After a squeeze to 448 pixels a capital is less than 3 pixels high. Whoever can answer what the "
    "last word of this paragraph is has read the page at its own size: marmalade."
)


def draw_page() -> Image.Image:
    """Draw the page, (1754, 1240) RGB.

    Example:
        >>> draw_page().size
        (1240, 1754)
    """
    canvas = Canvas(HEIGHT, WIDTH, PAPER)
    right_edge = WIDTH - LEFT
    canvas.text("NOTES ON SEEING  /  NO. 7", (92, LEFT), face=HEAD, size=14, ink=BLUE)
    canvas.text("page 1 of 1", (92, right_edge), face=SANS, size=14, ink=GREY, anchor="rs")
    canvas.line([(106, LEFT), (106, right_edge)], ink=BLUE, width=2)
    canvas.text("Every Page Its Own Size", (182, LEFT), face=HEAD, size=52)
    canvas.text("Native resolution and positions on three axes", (228, LEFT), face=ITALIC, size=25, ink=GREY)
    row = _paragraph(canvas, ABSTRACT, (286, LEFT), right_edge - LEFT, face=ITALIC, size=20, leading=31)
    canvas.line([(row - 8, LEFT), (row - 8, right_edge)], ink=RULE)

    top = row + 28
    _column(canvas, LEFT_COLUMN, (top, LEFT))
    second = LEFT + COLUMN + GUTTER
    row = _figure(canvas, (top - 14, second))
    row = _column(canvas, RIGHT_COLUMN, (row + 18, second))
    row = _table(canvas, (row + 4, second))
    _column(canvas, CLOSING, (row + 26, second))

    canvas.line([(1602, LEFT), (1602, right_edge)], ink=RULE)
    _paragraph(canvas, SMALL_PRINT, (1626, LEFT), right_edge - LEFT, face=SANS, size=13, leading=19, ink=GREY)
    return canvas.picture()


def _column(canvas: Canvas, blocks: list[str | tuple[str, str]], at: Point) -> Number:
    """Set headings and paragraphs one below the other; return the row of the next baseline."""
    row, col = at
    for index, block in enumerate(blocks):
        if isinstance(block, tuple):
            row += 16 if index else 0
            canvas.text(block[0], (row, col), face=HEAD, size=21, ink=BLUE)
            canvas.text(block[1], (row, col + 26), face=HEAD, size=21)
            row += 33
        else:
            row = _paragraph(canvas, block, (row, col), COLUMN, face=SERIF, size=19, leading=29) + 9
    return row


def _paragraph(
    canvas: Canvas,
    text: str,
    at: Point,
    width: Number,
    *,
    face: str,
    size: Number,
    leading: Number,
    ink: Colour = INK,
) -> Number:
    """Set a justified paragraph with its first baseline at `at`; return the row of the next baseline."""
    row, col = at
    words = text.split()
    widths = [text_width(word, face=face, size=size) for word in words]
    space = text_width(" ", face=face, size=size)
    lines = _break_lines(widths, space, width)
    for first, last in lines:
        gap = space
        if last < len(words):
            gap = (width - sum(widths[first:last])) / max(1, last - first - 1)
        at_col = col
        for word, length in zip(words[first:last], widths[first:last], strict=True):
            canvas.text(word, (row, at_col), face=face, size=size, ink=ink)
            at_col += length + gap
        row += leading
    return row


def _break_lines(widths: list[float], space: Number, width: Number) -> list[tuple[int, int]]:
    """Choose line breaks so that the squares of the gaps left over, the last line apart, are smallest in all."""
    count = len(widths)
    best: list[tuple[float, int]] = [(0.0, count)] * (count + 1)
    for first in range(count - 1, -1, -1):
        best[first] = (float("inf"), first + 1)
        length = -space
        for last in range(first + 1, count + 1):
            length += space + widths[last - 1]
            if length > width and last > first + 1:
                break
            cost = best[last][0] + (0.0 if last == count else (width - length) ** 2)
            best[first] = min(best[first], (cost, last))
    lines, first = [], 0
    while first < count:
        lines.append((first, best[first][1]))
        first = best[first][1]
    return lines


def _figure(canvas: Canvas, at: Point) -> Number:
    """Draw two words, a picture of 3 x 4 merged patches and two words, each with its (t, h, w); return the next row."""
    top, left = at
    canvas.box((left, top, left + COLUMN, top + 262), fill=(245, 245, 243), radius=8)
    cell_high, cell_wide, gap = 42, 66, 4
    words_left, grid_left = left + 18, left + 114
    words_right = grid_left + 4 * (cell_wide + gap) + 20
    grid_top = top + 64

    def token(col: Number, row: Number, text: str, tint: Colour, label: str = "") -> None:
        pale = (255 - (255 - tint[0]) // 6, 255 - (255 - tint[1]) // 6, 255 - (255 - tint[2]) // 6)
        canvas.box((col, row, col + cell_wide, row + cell_high), fill=pale, edge=tint, radius=4)
        below = cell_high / 2 + (8 if label else 0)
        canvas.text(text, (row + below, col + cell_wide / 2), face=MONO, size=14, anchor="mm")
        if label:
            canvas.text(label, (row + 12, col + cell_wide / 2), face=SANS, size=12, ink=GREY, anchor="mm")

    for index, label in enumerate(("read", "this")):
        token(words_left, grid_top + 24 + index * (cell_high + gap), f"{index} {index} {index}", BLUE, label)
    for r in range(3):
        for c in range(4):
            token(grid_left + c * (cell_wide + gap), grid_top + r * (cell_high + gap), f"2 {2 + r} {2 + c}", ORANGE)
    for index, label in enumerate(("Dear", "Sir")):
        p = 6 + index
        token(words_right, grid_top + 24 + index * (cell_high + gap), f"{p} {p} {p}", GREEN, label)
    for text, col, tint in (
        ("prompt", words_left + cell_wide / 2, BLUE),
        ("picture, 3 rows x 4 columns", grid_left + 2 * (cell_wide + gap), ORANGE),
        ("answer", words_right + cell_wide / 2, GREEN),
    ):
        canvas.text(text, (top + 36, col), face=HEAD, size=14, ink=tint, anchor="ms")
    caption = "Coordinates (t, h, w). The answer starts at 6 = 2 + max(3, 4)."
    canvas.text("Figure 1", (top + 242, left + 18), face=HEAD, size=14)
    canvas.text(caption, (top + 242, left + 84), face=SANS, size=14, ink=GREY)
    return top + 290


def _table(canvas: Canvas, at: Point) -> Number:
    """Draw the table of costs; return the row of the next baseline."""
    top, left = at
    right = left + COLUMN
    stops = (left + 278, left + 388, right - 8)
    canvas.text("Table 1", (top + 14, left), face=HEAD, size=14)
    canvas.text("Visual tokens of five pictures", (top + 14, left + 62), face=SANS, size=14, ink=GREY)
    canvas.line([(top + 26, left), (top + 26, right)], width=2)
    row = top + 49
    canvas.text("Picture", (row, left + 8), face=HEAD, size=15)
    for stop, word in zip(stops, ("wide x high", "square", "native"), strict=True):
        canvas.text(word, (row, stop), face=HEAD, size=15, anchor="rs")
    canvas.line([(row + 11, left), (row + 11, right)])
    for index, (name, wide, high) in enumerate(TABLE):
        tokens = round(wide / 28) * round(high / 28)
        row = top + 84 + index * 29
        if index % 2:
            canvas.box((left, row - 20, right, row + 9), fill=(243, 243, 240))
        canvas.text(name, (row, left + 8), face=BOLD if name == "This page" else SERIF, size=17)
        for stop, word in zip(stops, (f"{wide} x {high}", "256", f"{tokens:,}"), strict=True):
            canvas.text(word, (row, stop), face=SANS, size=16, anchor="rs")
    canvas.line([(row + 12, left), (row + 12, right)], width=2)
    return row + 40
