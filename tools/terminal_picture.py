#!/usr/bin/env python3
"""Makes docs/user/pictures/terminal.svg: a conversation with the bundled model as a terminal shows it, recorded under tmux.
Run by hand: MOESAIC=build/release/apps/moesaic python3 -B tools/terminal_picture.py"""

import os
import pathlib
import re
import sys
import tempfile
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/cli"))
from tmux import Tmux  # noqa: E402

PICTURE = ROOT / "docs/user/pictures/terminal.svg"
QUESTIONS = ("Hello! Who are you?", "What is 47 x 36?", "Tell me a story about an owl and a lantern.")
COLUMNS, FONT, LINE, MARGIN, BAR = 88, 14, 19, 16, 30
WIDTH = round(COLUMNS * FONT * 0.602) + 2 * MARGIN
# SGR parameters and the style that each begins; 0 ends all of them.
STYLES = {"1": "font-weight:bold", "2": "fill:#8b949e", "3": "font-style:italic", "4": "text-decoration:underline"}


def record(program):
    """The screen of a conversation, with its SGR sequences."""
    with tempfile.TemporaryDirectory() as state:
        terminal = Tmux([program, "run", "tiny", "--device", "cpu", "--temp", "0", "-t", "1"], columns=COLUMNS, rows=60, XDG_STATE_HOME=state)
        try:
            for count, question in enumerate(QUESTIONS, 1):
                terminal.wait(r"^> *$")
                terminal.type(question)
                terminal.keys("Enter")
                terminal.until(lambda screen, n=count: screen.count("tok/s") >= n, "an answer")
            terminal.wait(r"\n> *\n*\Z")
            return terminal.screen(styles=True)
        finally:
            terminal.close()


def runs(line, on):
    """(text, style) of each run of a line; `on`: the styles that hold at its beginning, which changes."""
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b"):
            if part:
                yield part, ";".join(STYLES[s] for s in sorted(on))
            continue
        for number in part[2:-1].split(";"):
            if number in ("", "0"):
                on.clear()
            elif number in STYLES:
                on.add(number)


def svg(screen):
    lines, on = screen.rstrip().splitlines(), set()
    height = BAR + 2 * MARGIN + LINE * len(lines)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="{FONT}" role="img">',
           "<title>moesaic run tiny, in a terminal</title>", f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>',
           *(f'<circle cx="{MARGIN + 4 + 20 * i}" cy="{BAR / 2 + 2}" r="5" fill="{c}"/>' for i, c in enumerate(("#ff5f57", "#febc2e", "#28c840")))]
    for i, line in enumerate(lines):
        spans = "".join(f'<tspan style="{style}">{escape(text)}</tspan>' if style else escape(text) for text, style in runs(line, on))
        if spans:
            out.append(f'<text x="{MARGIN}" y="{BAR + MARGIN + LINE * i + FONT}" fill="#e6edf3" xml:space="preserve">{spans}</text>')
    return "\n".join(out) + "\n</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(record(os.environ.get("MOESAIC", "moesaic"))))
