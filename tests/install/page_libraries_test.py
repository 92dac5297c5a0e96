"""The page of a system without packages for its libraries: page_libraries_test.py CMAKE

Made from the release's file it is, byte for byte, the page that is made from the packages.
"""

import pathlib
import subprocess
import sys
import tempfile

CMAKE = sys.argv[1]
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

if not all(map(pathlib.Path.exists, map(pathlib.Path, ("/usr/share/javascript/marked", "/usr/share/nodejs/dompurify",
                                                       "/usr/share/nodejs/highlight.js", "/usr/share/javascript/katex")))):
    print("the page's libraries are not installed as Debian's packages")
    sys.exit(77)


def page(folder, *options):
    subprocess.run([CMAKE, "-S", HERE / "page_libraries", "-B", folder, f"-DSERVER={ROOT}/src/server", *options],
                   check=True, stdout=subprocess.DEVNULL)
    return (folder / "page/index.html").read_text()  # it names its files by the hash of all their bytes


with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    subprocess.run([ROOT / "tools/page_libraries.sh", folder / "libraries.tar.gz"], check=True)
    subprocess.run(["tar", "-C", folder, "-xzf", folder / "libraries.tar.gz"], check=True)
    packages, release, none = (page(folder / "packages"), page(folder / "release", f"-DMOESAIC_PAGE_FROM={folder}/moesaic-page-libraries"),
                               page(folder / "none", "-DMOESAIC_PAGE_LIBRARIES=OFF"))
    assert release == packages, "the release's file makes another page than the packages"
    assert none != packages, "the page does not tell whether it has libraries"
print("ok")
