"""Draw the pictures of the pages anew: `python docs/images/draw.py`, or `... arena training` for
some.

Some are drawn by hand here; others are what the code blocks of a page save. All are SVGs that
follow the reader's light or dark colours. The PNGs are drawn by benchmarks, which
benchmarks/README.md tells.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from dynbatch.pictures import Picture
from dynbatch.pictures.drawing import MARGIN, SMALL_SIZE, Drawing
from dynbatch.pictures.palette import BLUE, GREEN, GREY, GRID, INK, ORANGE, PANEL, PURPLE, SKY, SOFT

FOLDER = Path(__file__).parent
SENTENCES = (("the", "old", "duck"), ("yes",), ("we", "saw", "the", "red", "saw"))
COLOURS = (BLUE, ORANGE, GREEN)
LENGTHS = [len(words) for words in SENTENCES]
OFFSETS = [sum(LENGTHS[:k]) for k in range(len(LENGTHS) + 1)]


def box(
    drawing: Drawing, x: float, y: float, width: float, label: str, colour: str, height: float = 26
) -> None:
    """A rectangle with a label in its middle."""
    outline = GRID if colour == PANEL else ""
    drawing.rectangle(x, y, width, height, colour, radius=3, outline=outline)
    on = "" if colour == PANEL else colour
    middle, base = x + width / 2, y + height / 2 + 4
    drawing.text(middle, base, label, on=on, size=SMALL_SIZE, anchor="middle", within=width - 6)


def arrow(drawing: Drawing, begin: tuple[float, float], end: tuple[float, float]) -> None:
    """A straight arrow, downwards or to a side."""
    (x, y), (to_x, to_y) = begin, end
    length = max(abs(to_x - x), abs(to_y - y))
    along_x, along_y = (to_x - x) / length, (to_y - y) / length
    drawing.line([begin, end], SOFT, thick=1.5)
    back_x, back_y = to_x - 7 * along_x, to_y - 7 * along_y
    left = (back_x - 4 * along_y, back_y + 4 * along_x)
    right = (back_x + 4 * along_y, back_y - 4 * along_x)
    drawing.area([end, left, right], SOFT)


def packed() -> Picture:
    """Three sentences as one array of rows."""
    drawing = Drawing(
        "Three sentences become one array", note="A box is a row of numbers: a token."
    )
    width, gap, left, top = 74.0, 6.0, MARGIN, drawing.top
    for k, words in enumerate(SENTENCES):
        for t, word in enumerate(words):
            box(drawing, left + t * (width + gap), top + 34 * k, width, word, COLOURS[k])
        drawing.text(
            left + len(words) * (width + gap) + 8, top + 34 * k + 17, f"length {len(words)}",
            colour=SOFT, size=SMALL_SIZE,
        )  # fmt: skip
    row = top + 34 * 3 + 34
    arrow(drawing, (left + 120, row - 28), (left + 120, row - 6))
    drawing.text(left + 132, row - 12, "nothing lies between them", colour=SOFT, size=SMALL_SIZE)
    for k, words in enumerate(SENTENCES):
        for t, word in enumerate(words):
            box(drawing, left + (OFFSETS[k] + t) * width, row, width - 2, word, COLOURS[k])
    for offset in OFFSETS:
        x = left + offset * width - 1
        drawing.line([(x, row - 4), (x, row + 40)], INK)
        drawing.text(max(x, left + 4), row + 54, str(offset), anchor="middle", bold=True)
    drawing.text(left, row + 76, "offsets: sentence k has the rows offsets[k] to offsets[k + 1]")
    return drawing.finish(
        "Sentences of 3, 1 and 5 tokens lie one behind the other in an array of 9 rows. "
        "The offsets "
        "0, 3, 4 and 9 tell where each sentence begins and ends."
    )


def signatures() -> Picture:
    """The nodes of three sentences, and the batches that they form."""
    drawing = Drawing(
        "Equal signatures run together",
        note="A column is a sentence, a box one node, a band one batch: one call of a kernel. "
        "Lengths differ, signatures do not.",
    )
    kinds = (
        ("Lookup", "table", "{} × 32", SKY),
        ("Scan", "LSTM, its weights", "{} × 64", ORANGE),
        ("LinearMap", "W, b", "{} × 17", GREEN),
        ("CrossEntropy", "", "a number", PURPLE),
    )
    top, left = drawing.top + 22, 168.0
    for k, words in enumerate(SENTENCES):
        drawing.text(left + 190 * k + 75, drawing.top + 8, " ".join(words), anchor="middle",
                     size=SMALL_SIZE, within=180)  # fmt: skip
    for row, (kind, parameters, size, colour) in enumerate(kinds):
        y = top + 58 * row
        drawing.rectangle(MARGIN, y, 728, 42, PANEL, radius=6)
        drawing.text(MARGIN + 10, y + 18, kind, bold=True)
        drawing.text(MARGIN + 10, y + 33, parameters, colour=SOFT, size=SMALL_SIZE)
        for k, length in enumerate(LENGTHS):
            x = left + 190 * k
            box(drawing, x, y + 8, 150, size.format(length), colour)
            if row:
                arrow(drawing, (x + 75, y - 23), (x + 75, y + 6))
    y = top + 58 * 4
    for k in range(3):
        drawing.curve((left + 190 * k + 75, y - 23), (left + 190 + 75, y + 10), SOFT, thick=1.5)
    box(drawing, left + 190, y + 10, 150, "Mean: the loss", GREY)
    return drawing.finish(
        "Three sentences of 3, 1 and 5 tokens have four nodes each: a look-up, an LSTM, a "
        "linear map "
        "and a cross-entropy. The three nodes of a kind have one signature and are one batch. The "
        "mean of the three losses is a fifth batch."
    )


# Two trees: (node, its x, its level, its children, the step it runs in).
FIRST_TREE = (
    ("a", 0.0, 2, (), 0), ("b", 1.0, 2, (), 0), ("c", 2.0, 2, (), 0),
    ("ab", 0.5, 1, ("a", "b"), 1), ("abc", 1.25, 0, ("ab", "c"), 2), ("?", 1.25, -1, ("abc",), 3),
)  # fmt: skip
SECOND_TREE = (
    ("d", 3.3, 2, (), 0), ("e", 4.3, 2, (), 0), ("de", 3.8, 1, ("d", "e"), 1),
    ("? ", 3.8, 0, ("de",), 3),
)  # fmt: skip


def plan() -> Picture:
    """Two trees, computed batch by batch."""
    drawing = Drawing(
        "The plan: from the frontier, batch by batch",
        note="Two trees, from their leaves up. A node is ready when all nodes below it "
        "are computed.",
    )
    steps = ("1. five leaves", "2. two pairs", "3. one pair", "4. two classifiers")
    top, panel = drawing.top + 6, 176.0
    for step, name in enumerate(steps):
        left = MARGIN + 184 * step
        drawing.rectangle(left, top, panel, 182, PANEL, radius=6)
        drawing.text(left + 10, top + 20, name, bold=True)
        at = {
            node: (left + 20 + 32 * x, top + 74 + 36 * level)
            for node, x, level, _, _ in FIRST_TREE + SECOND_TREE
        }
        for node, _, _, children, _ in FIRST_TREE + SECOND_TREE:
            for child in children:
                drawing.line([at[node], at[child]], GRID, thick=1.5)
        for node, _, _, _, runs in FIRST_TREE + SECOND_TREE:
            x, y = at[node]
            colour = (SKY, ORANGE, ORANGE, GREEN)[runs]
            if runs < step:
                colour = GREY
            is_later = runs > step
            shade = PANEL if is_later else colour
            drawing.rectangle(x - 13, y - 10, 26, 20, shade, radius=3,
                              outline=GRID if is_later else "")  # fmt: skip
            on = "" if is_later else colour
            drawing.text(x, y + 4, node.strip(), on=on, colour=SOFT, size=SMALL_SIZE,
                         anchor="middle")  # fmt: skip
    below = top + 192
    drawing.legend(
        MARGIN, below,
        [(SKY, "leaf"), (ORANGE, "pair"), (GREEN, "classify the root"), (GREY, "computed before")],
    )  # fmt: skip
    drawing.text(
        MARGIN, below + 36, "In step 3 the smaller tree's classifier is ready too. It "
        "waits for the "
        "other one: four batches, not five.", size=SMALL_SIZE, within=728,
    )  # fmt: skip
    return drawing.finish(
        "Two trees of three and two leaves. Step 1 computes all five leaves, step 2 the two pairs "
        "whose children are there, step 3 the last pair, step 4 the classifiers of both roots. The "
        "classifier of the smaller tree was ready in step 3 and waited, so that both are one batch."
    )


def scan() -> Picture:
    """The steps of a recurrence over sentences of three lengths."""
    drawing = Drawing(
        "A recurrence over sentences of any length",
        note="Longest first, so that those still running are always the first rows. None "
        "is masked.",
    )
    order = sorted(range(3), key=lambda k: -LENGTHS[k])
    left, top, width, height = 210.0, drawing.top + 24, 84.0, 30.0
    for t in range(5):
        running = sum(length > t for length in LENGTHS)
        x = left + t * (width + 10)
        drawing.text(x + width / 2, top - 8, f"step {t + 1}", anchor="middle", size=SMALL_SIZE,
                     colour=SOFT)  # fmt: skip
        drawing.rectangle(x - 4, top - 2, width + 8, running * (height + 4), PANEL, radius=4)
        drawing.text(x + width / 2, top + 3 * (height + 4) + 16, f"{running} rows" if running > 1
                     else "1 row", anchor="middle", size=SMALL_SIZE)  # fmt: skip
    for row, k in enumerate(order):
        y = top + row * (height + 4)
        drawing.text(MARGIN, y + 18, " ".join(SENTENCES[k]), size=SMALL_SIZE, within=180)
        for t, word in enumerate(SENTENCES[k]):
            box(drawing, left + t * (width + 10), y, width, word, COLOURS[k])
    y = top + 3 * (height + 4) + 40
    drawing.text(MARGIN, y, "9 rows in 5 steps, as there are 9 tokens. Padded there would "
    "be 15, and "
                 "a mask to ignore 6 of them.", size=SMALL_SIZE, within=728)  # fmt: skip
    return drawing.finish(
        "Sentences of 5, 3 and 1 tokens run side by side. Step 1 has 3 rows, steps 2 and 3 have 2, "
        "steps 4 and 5 have one. A sentence that has ended leaves the loop."
    )


def attention() -> Picture:
    """Scores of attention, of each sentence's own tokens and padded."""
    drawing = Drawing(
        "Attention: who looks at whom",
        note="A cell is a score of two tokens. Each sentence has a square of its own size.",
    )
    top, cell = drawing.top + 22, 15.0

    def square(x: float, y: float, size: int, real: int, colour: str) -> None:
        inside = [(x + cell * i, y + cell * j, cell - 1.5, cell - 1.5)
                  for i in range(size) for j in range(size) if i < real and j < real]  # fmt: skip
        others = [(x + cell * i, y + cell * j, cell - 1.5, cell - 1.5)
                  for i in range(size) for j in range(size) if i >= real or j >= real]  # fmt: skip
        drawing.rectangles(others, GRID)
        drawing.rectangles(inside, colour)

    x = MARGIN
    drawing.text(x, top - 6, "without padding: 35 scores", bold=True)
    for k, length in enumerate(LENGTHS):
        square(x, top + 6, length, length, COLOURS[k])
        x += cell * length + 14
    x = 400.0
    drawing.text(x, top - 6, "padded: 75 scores, 40 of them masked", bold=True)
    for k, length in enumerate(LENGTHS):
        square(x, top + 6, 5, length, COLOURS[k])
        x += cell * 5 + 14
    return drawing.finish(
        "Sentences of 3, 1 and 5 tokens have 9, 1 and 25 scores, 35 together. Padded to 5 "
        "tokens each "
        "has 25, 75 together, of which 40 belong to padding."
    )


def backward() -> Picture:
    """A step forward and backward, with the gradients of parameters."""
    drawing = Drawing(
        "Backward: the same batches, the other way",
        note="Boxes hold the packed rows of all sentences; nothing is taken apart in between.",
    )
    top = drawing.top + 8
    names = (("ids", GREY), ("x (9, 32)", SKY), ("h (9, 64)", ORANGE), ("scores (9, 17)", GREEN),
             ("loss", PURPLE))  # fmt: skip
    kinds = ("Lookup", "Scan", "LinearMap", "CrossEntropy")
    gradients = ("rows of the table", "dW of the LSTM", "dW = dyᵀ h, db")
    for k, (name, colour) in enumerate(names):
        x = MARGIN + 152 * k
        box(drawing, x, top + 18, 112, name, colour)
        if k:
            box(drawing, x, top + 84, 112, f"d {name.split()[0]}", colour)
            arrow(drawing, (x - 38, top + 31), (x - 3, top + 31))
            drawing.text(x - 20, top + 10, kinds[k - 1], anchor="middle", size=SMALL_SIZE,
                         colour=SOFT, within=150)  # fmt: skip
        if k > 1:
            arrow(drawing, (x - 3, top + 97), (x - 38, top + 97))
        if 0 < k < 4:
            arrow(drawing, (x + 56, top + 113), (x + 56, top + 140))
            box(drawing, x - 12, top + 142, 136, gradients[k - 1], PANEL)
    drawing.text(MARGIN, top + 60, "forward →", bold=True, size=SMALL_SIZE)
    drawing.text(MARGIN, top + 101, "← backward", bold=True, size=SMALL_SIZE)
    drawing.text(MARGIN, top + 159, "parameters", bold=True, size=SMALL_SIZE)
    return drawing.finish(
        "Forward goes from ids over vectors x, LSTM outputs h and scores to the loss, in "
        "four batches. "
        "Backward goes through the same batches in reverse. Each leaves its parameters' gradient: "
        "one product over all nine rows of all sentences."
    )


# (name, first stage, the stage after its last, address, size, colour)
BLOCKS: Sequence[tuple[str, int, int, int, int, str]] = (
    ("x", 0, 6, 0, 2, SKY), ("h", 1, 5, 2, 4, ORANGE), ("gates", 1, 6, 6, 5, ORANGE),
    ("scores, then d scores in their place", 2, 5, 11, 2, GREEN), ("d h", 4, 6, 13, 4, PURPLE),
    ("d x", 5, 7, 2, 2, PURPLE),
)  # fmt: skip


def arena() -> Picture:
    """Blocks of one arena over a training step."""
    drawing = Drawing(
        "The arena: where every value lies, and how long",
        note="Planned before the first kernel. When nobody reads a block any more, "
        "another takes its room.",
    )
    stages = ("Lookup", "Scan", "scores", "loss", "d LinearMap", "d Scan", "d Lookup")
    left, top, width, unit = 76.0, drawing.top + 8, 95.0, 14.0
    bottom = top + 17 * unit
    for k, stage in enumerate(stages):
        x = left + width * k
        drawing.line([(x, top), (x, bottom)], GRID)
        drawing.text(x + width / 2, bottom + 16, stage, anchor="middle", size=SMALL_SIZE,
                     within=width - 4)  # fmt: skip
    for name, first, last, address, size, colour in BLOCKS:
        x, y = left + width * first, bottom - unit * (address + size)
        box(drawing, x + 1, y + 1, width * (last - first) - 2, name, colour, unit * size - 2)
    drawing.line([(left, bottom), (left + width * 7, bottom)], INK)
    drawing.line([(left, top), (left, bottom)], INK)
    drawing.text(MARGIN, top + 10, "address", size=SMALL_SIZE, colour=SOFT)
    drawing.text(MARGIN, bottom + 34, "forward, then backward →", size=SMALL_SIZE, colour=SOFT)
    return drawing.finish(
        "Time goes from left to right, addresses from below. The gradient of scores is "
        "written over "
        "them, and the gradient of x lies where h was: the arena is smaller than all "
        "blocks together."
    )


DRAWN: dict[str, Callable[[], Picture]] = {
    "packed": packed, "signatures": signatures, "plan": plan, "scan": scan,
    "attention": attention, "backward": backward, "arena": arena,
}  # fmt: skip


# The file that a page's blocks write, by picture.
SAVED = {
    "tour-padding": ("tour.md", "padding.svg"),
    "tour-sentence": ("tour.md", "sentence.svg"),
    "tour-timeline": ("tour.md", "timeline.svg"),
    "tour-memory": ("tour.md", "memory.svg"),
    "tour-tree": ("tour.md", "tree.svg"),
    "generation": ("guides/generation.md", "generation.svg"),
    "training": ("guides/training.md", "runs/plain/training.svg"),
}


def run_page(page: str, names: Sequence[str]) -> None:
    """Run a page's blocks, and store the pictures among what they write."""
    run_blocks = runpy.run_path(str(FOLDER.parent / "blocks.py"))["run_blocks"]
    with TemporaryDirectory() as folder, chdir(folder):
        run_blocks(FOLDER.parent / page)
        for name in names:
            text = Path(folder, SAVED[name][1]).read_text("utf-8")
            (FOLDER / f"{name}.svg").write_text(text, "utf-8")


def main(names: Sequence[str]) -> None:
    """Draw those that are named, or all."""
    wanted = names or [*DRAWN, *SAVED]
    for name, make in DRAWN.items():
        if name in wanted:
            make().save(FOLDER / f"{name}.svg")
    for page in dict.fromkeys([page for page, _ in SAVED.values()]):
        of_page = [name for name, (source, _) in SAVED.items() if source == page]
        if chosen := [name for name in of_page if name in wanted]:
            run_page(page, chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
