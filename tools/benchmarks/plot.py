"""A plot of one table of docs/benchmarks.md, as SVG: bars of both engines, each pair relative to the first one's speed."""

from xml.sax.saxutils import escape

WIDTH, NAMES, RIGHT, ROW, BAR, TOP = 720, 280, 120, 46, 16, 56
COLOURS = ("#9aa4b2", "#2563eb")


def svg(title, engines, rows):
    """rows: (name, speed of each engine), tokens per second. Bars are ratios to the first engine's speed."""
    most = max(speed / speeds[0] for _, speeds in rows for speed in speeds)
    height = TOP + ROW * len(rows) + 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
             'font-family="sans-serif" font-size="13" role="img">', f"<title>{escape(title)}</title>",
             f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             f'<text x="12" y="22" font-weight="bold" font-size="15">{escape(title)}</text>']
    for i, engine in enumerate(engines):
        parts.append(f'<rect x="{NAMES + 150 * i}" y="32" width="12" height="12" fill="{COLOURS[i]}"/>'
                     f'<text x="{NAMES + 18 + 150 * i}" y="43">{escape(engine)}</text>')
    for r, (name, speeds) in enumerate(rows):
        y = TOP + ROW * r
        parts.append(f'<text x="{NAMES - 10}" y="{y + 22}" text-anchor="end">{escape(name)}</text>')
        for i, speed in enumerate(speeds):
            length = (WIDTH - NAMES - RIGHT) * speed / speeds[0] / most
            ratio = f" ({speed / speeds[0]:.1f} x)" if i else ""
            parts.append(f'<rect x="{NAMES}" y="{y + 4 + (BAR + 1) * i}" width="{length:.1f}" height="{BAR}" fill="{COLOURS[i]}"/>'
                         f'<text x="{NAMES + length + 6:.1f}" y="{y + 17 + (BAR + 1) * i}">{speed:,.0f}{ratio}</text>')
    return "\n".join(parts) + "\n</svg>\n"
