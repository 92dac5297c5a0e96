"""Files of the product that name a weight format: what a new one touches.

usage: format_files.py [--check]   lists them for MXFP8; --check fails unless docs/design/adding.md has their number.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMAT = "kMxfp8"
PAGE = ROOT / "docs/design/adding.md"


def product(path):
    return path.suffix in (".h", ".cpp", ".cu", ".cuh") and not re.search(r"testing/|test_", str(path))


def main():
    paths = sorted(p for top in ("src", "apps", "python") for p in (ROOT / top).rglob("*") if p.is_file() and product(p))
    found = [p.relative_to(ROOT) for p in paths if FORMAT in p.read_text()]
    print("\n".join(map(str, found)))
    print(len(found), "files")
    if "--check" not in sys.argv[1:]:
        return 0
    written = re.search(r"\*\*(\d+) files\*\* name MXFP8", PAGE.read_text())
    if written and int(written[1]) == len(found):
        return 0
    print(f"{PAGE.relative_to(ROOT)} has {written[1] if written else 'no number'}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
