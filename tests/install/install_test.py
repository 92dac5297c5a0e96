"""What `cmake --install` gives a stranger: install_test.py BUILD CMAKE CC CXX

Installs into a folder, moves it, and uses only that: the program finds the bundled model, a CMake project finds the
package, a C program builds by pkg-config, and both get an answer of models/tiny.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD, CMAKE, CC, CXX = sys.argv[1:5]
HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="moesaic-install-")
        cls.folder = pathlib.Path(cls.temporary.name)
        run(CMAKE, "--install", BUILD, "--prefix", cls.folder / "first place")
        cls.prefix = cls.folder / "second place"
        (cls.folder / "first place").rename(cls.prefix)
        cls.program = cls.prefix / "bin/moesaic"
        cls.model = cls.prefix / "share/moesaic/models/tiny"

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def found(self, pattern):
        files = list(self.prefix.glob(pattern))
        self.assertEqual(len(files), 1, pattern)
        return files[0]

    def assert_answers(self, program):
        self.assertEqual(run(program, self.model, "What is 17 + 25?"), "17 + 25 = 42\n")

    def test_the_program_finds_its_model(self):
        answer = run(self.program, "run", "-m", "tiny", "-p", "What is 17 + 25?", "--temp", "0", cwd=self.folder)
        self.assertIn("17 + 25 = 42", answer)
        config = self.model / "config.json"
        config.rename(config.with_suffix(".kept"))
        config.write_text("{")  # proves that it is this copy which was read, not the source tree's
        try:
            broken = subprocess.run([self.program, "run", "-m", "tiny", "-p", "Hi"], capture_output=True, text=True)
            self.assertEqual(broken.returncode, 1)
            self.assertIn(str(config), broken.stderr)
        finally:
            config.with_suffix(".kept").rename(config)

    def test_a_cmake_project_finds_the_package(self):
        source = self.folder / "stranger"
        source.mkdir()
        (source / "CMakeLists.txt").write_text((HERE / "stranger/CMakeLists.txt").read_text())
        headers = sorted((self.prefix / "include/moesaic").glob("*.h"))
        self.assertIn("engine.h", [h.name for h in headers])
        (source / "every_header.cpp").write_text("".join(f"#include <moesaic/{h.name}>\n" for h in headers))
        run(CMAKE, "-S", source, "-B", source / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={CXX}", f"-DEXAMPLES={EXAMPLES}")
        run(CMAKE, "--build", source / "build")
        self.assert_answers(source / "build/stranger")

    def test_a_c_program_builds_by_pkg_config(self):
        config = self.found("lib*/**/moesaic.pc")
        flags = run("pkg-config", "--static", "--cflags", "--libs", "moesaic",
                    env={**os.environ, "PKG_CONFIG_PATH": str(config.parent)})
        program = self.folder / "c_stranger"
        command = f'"{CC}" -std=c11 -pedantic -Wall -Wextra -Werror "{EXAMPLES}/generate.c" -o "{program}" {flags}'
        run("sh", "-c", command)
        self.assert_answers(program)

    def test_licence_and_pages_are_there(self):
        for name in ("LICENSE", "README.md", "CHANGELOG.md", "docs/api.md", "examples/generate.c"):
            self.assertTrue((self.prefix / "share/doc/moesaic" / name).is_file(), name)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
