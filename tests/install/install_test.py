"""What `cmake --install` gives a stranger: install_test.py BUILD CMAKE CC CXX

Installs into a folder, moves it, and uses only that: the program finds the bundled model, a CMake project finds the
package, a C program builds by pkg-config, and both get an answer of models/tiny.
"""

import os
import pathlib
import re
import shutil
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

    def test_what_no_build_has_made_is_named_before_anything_is_installed(self):
        script = pathlib.Path(BUILD, "cmake_install.cmake").read_text()
        prefix = self.folder / "half"
        for file in ("libmoesaic", "apps/pages/moesaic.1"):
            half = self.folder / "half_install.cmake"
            half.write_text(re.sub(re.escape(f"{BUILD}/{file}"), f"{BUILD}/not_there/{file}", script))
            done = subprocess.run([CMAKE, f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", half], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            message = " ".join(done.stderr.split())  # CMake wraps its lines
            self.assertIn(f"not built yet: {BUILD}/not_there/{file}", message)
            self.assertIn(f"cmake --build {BUILD} --target moesaic moesaic_whole pages", message)
            self.assertFalse(prefix.exists())

    def found(self, pattern):
        files = list(self.prefix.glob(pattern))
        self.assertEqual(len(files), 1, pattern)
        return files[0]

    def assert_answers(self, program, **options):
        self.assertEqual(run(program, self.model, "What is 17 + 25?", **options), "17 + 25 = 42\n")

    def test_the_program_finds_its_model(self):
        self.assertTrue((self.model.parent / "tiny-eagle3/model.safetensors").is_file())
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

    def test_a_project_in_plain_c_finds_the_package(self):
        build = self.folder / "plain_c_build"
        run(CMAKE, "-S", HERE / "plain_c", "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_C_COMPILER={CC}", f"-DEXAMPLES={EXAMPLES}")
        self.assertNotIn("CMAKE_CXX_COMPILER:", (build / "CMakeCache.txt").read_text())
        run(CMAKE, "--build", build)
        self.assert_answers(build / "plain_c")

    def test_a_c_program_builds_by_pkg_config(self):
        config = self.found("lib*/**/moesaic.pc")
        # A shared library needs nobody else's .pc files, nor a static one's flags.
        shared = any(self.prefix.glob("lib*/**/libmoesaic.so"))
        search = {"PKG_CONFIG_LIBDIR" if shared else "PKG_CONFIG_PATH": str(config.parent)}
        flags = run("pkg-config", *([] if shared else ["--static"]), "--cflags", "--libs", "moesaic",
                    env={**os.environ, **search})
        program = self.folder / "c_stranger"
        command = f'"{CC}" -std=c11 -pedantic -Wall -Wextra -Werror "{EXAMPLES}/generate.c" -o "{program}" {flags}'
        run("sh", "-c", command)
        # A shared library in a folder that the loader does not know by itself.
        self.assert_answers(program, env={**os.environ, "LD_LIBRARY_PATH": str(config.parent.parent)})

    def test_the_programs_of_the_page_compile_and_say_when_there_is_no_model(self):
        config = self.found("lib*/**/moesaic.pc")
        shared = any(self.prefix.glob("lib*/**/libmoesaic.so"))
        flags = run("pkg-config", *([] if shared else ["--static"]), "--cflags", "--libs", "moesaic",
                    env={**os.environ, "PKG_CONFIG_PATH": str(config.parent)})
        page = (HERE.parent.parent / "docs/user/api.md").read_text()
        programs = re.findall(r"^```(cpp|c)\n(.*?)^```$", page, flags=re.M | re.S)
        self.assertEqual(sorted(language for language, _ in programs), ["c", "cpp"])
        for language, text in programs:
            source, program = self.folder / f"page.{language}", self.folder / f"page_{language}"
            source.write_text(text)
            compiler = f'"{CXX}" -std=c++20' if language == "cpp" else f'"{CC}" -std=c11'
            run("sh", "-c", f'{compiler} -pedantic -Wall -Wextra -Werror "{source}" -o "{program}" {flags}')
            environment = {**os.environ, "LD_LIBRARY_PATH": str(config.parent.parent)}
            self.assertEqual(run(program, self.model, env=environment), "17 + 25 = 42\n")
            absent = subprocess.run([program, self.folder / "no model"], capture_output=True, text=True, env=environment)
            self.assertEqual((absent.returncode, absent.stdout), (1, ""))
            self.assertIn("no model", absent.stderr)
            self.assertEqual(absent.stderr.count("\n"), 1, absent.stderr)

    def complete(self, *words):
        """What bash offers for the last of the words."""
        script = self.prefix / "share/bash-completion/completions/moesaic"
        ask = 'source "$1"; shift; COMP_WORDBREAKS=" :"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _moesaic; printf "%s\\n" "${COMPREPLY[@]}"'
        place = self.folder / "names"
        place.mkdir(exist_ok=True)
        return run("bash", "-euc", ask, "bash", script, self.program, *words, cwd=place).split()

    def test_bash_completes(self):
        self.assertEqual(self.complete("ser"), ["serve"])
        self.assertEqual(self.complete("run", "-m", "tiny", "--dense", "q"), ["q8_0"])
        self.assertEqual(self.complete("serve", "--max-b"), ["--max-batch", "--max-body", "--max-bodies"])
        self.assertEqual(self.complete("serve", "--device", ""), ["auto", "cpu", "cuda", "reference"])
        self.assertEqual(self.complete("serve", "-m", "./a"), [])  # file names, by readline
        self.assertEqual(self.complete("serve", "-m", "tin"), ["tiny"])
        self.assertEqual(self.complete("run", "tin"), ["tiny"])
        self.assertEqual(self.complete("run", "tiny", ""), [])
        (self.folder / "names/models").mkdir()
        (self.folder / "names/models/$(touch obeyed).gguf").write_bytes(b"GGUF")
        self.assertIn("tiny", self.complete("run", ""))
        # bash parts words at colons, and replaces what is behind the last one.
        (self.folder / "names/models/a:b.gguf").write_bytes(b"GGUF")
        for words in (("models/a", ":"), ("models/a", ":", "b"), ("-m", "models/a", ":", "b")):
            self.assertEqual(self.complete("run", *words), ["b.gguf"])
        self.assertEqual(self.complete("run", "-m", "models/a", ":", "b.gguf", "--dense", "q"), ["q8_0"])
        self.assertFalse((self.folder / "names/obeyed").exists())

    def test_other_shells_accept_their_scripts(self):
        for shell, script in (("zsh", "zsh/site-functions/_moesaic"), ("fish", "fish/vendor_completions.d/moesaic.fish")):
            self.assertTrue((self.prefix / "share" / script).stat().st_size > 1000)
            if shutil.which(shell):
                run(shell, "-n", self.prefix / "share" / script)

    def test_the_man_page_is_clean(self):
        page = self.prefix / "share/man/man1/moesaic.1"
        self.assertIn(r"\-\-max\-waiting", page.read_text())
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", page], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("moesaic serve", done.stdout)
        if shutil.which("mandoc"):
            lint = subprocess.run(["mandoc", "-Tlint", "-Wwarning", page], capture_output=True, text=True).stdout
            # The page has the version where others have a date, which would differ with every build.
            self.assertEqual([line for line in lint.splitlines() if "missing date" not in line], [])

    def test_systemd_accepts_the_unit(self):
        unit = self.folder / "moesaic.service"
        text = (self.prefix / "lib/systemd/system/moesaic.service").read_text()
        self.assertIn(f"ExecStart={self.folder}/first place/bin/moesaic serve", text)
        # A path with a space is this test's own doing, and the prefix has moved.
        unit.write_text(text.replace(f"{self.folder}/first place/bin/moesaic", "/bin/true"))
        if shutil.which("systemd-analyze"):
            done = subprocess.run(["systemd-analyze", "--man=no", "verify", unit], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_nothing_installed_names_the_folder_it_was_built_in(self):
        source = str(HERE.parent.parent)
        for file in (self.program, *self.prefix.glob("lib*/**/libmoesaic*"), *self.prefix.glob("lib*/**/*.cmake"),
                     *self.prefix.glob("lib*/**/*.pc")):
            self.assertNotIn(source.encode() + b"/", file.read_bytes(), file)

    def test_the_archive_carries_what_the_program_loads(self):
        place = self.folder / "archive"
        run(pathlib.Path(CMAKE).parent / "cpack", "--config", f"{BUILD}/CPackConfig.cmake", "-G", "TGZ", "-B", place)
        archive, = place.glob("moesaic-*.tar.gz")
        # Root's tar would give owner and mode of its folders to those of /usr/local.
        for line in run("tar", "-tvzf", archive).splitlines():
            self.assertRegex(line, r"\A(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--|l\S+) root/root ")
        run("tar", "-xzf", archive, "-C", place)
        top = place / archive.name.removesuffix(".tar.gz")
        self.assertEqual(sorted(path.name for path in top.iterdir()), ["bin", "include", "lib", "share"])
        unit = (top / "lib/systemd/system/moesaic.service").read_text()
        self.assertIn("ExecStart=/usr/local/bin/moesaic serve", unit)
        for file in (path for path in top.rglob("*") if path.is_file()):
            self.assertNotIn(str(place).encode(), file.read_bytes(), file)
        libraries = {path.name for path in (top / "lib/moesaic").glob("*.so.*") if path.suffix != ".copyright"}
        loaded = dict(re.findall(r"(\S+) => (\S+)", run("ldd", top / "bin/moesaic")))
        if libraries:  # none where the licences are not known
            self.assertIn("libpcre2-8.so.0", libraries)
            system = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
            self.assertLessEqual(set(loaded) - libraries, system)
        for name in libraries & set(loaded):
            self.assertEqual(pathlib.Path(loaded[name]).resolve().parent, top / "lib/moesaic")
            self.assertTrue((top / f"lib/moesaic/{name}.copyright").stat().st_size > 500, name)
        answer = run(top / "bin/moesaic", "run", "-m", "tiny", "-p", "What is 17 + 25?", "--temp", "0", cwd=self.folder)
        self.assertIn("17 + 25 = 42", answer)

    def test_licence_and_pages_are_there(self):
        for name in ("LICENSE", "THIRD_PARTY_NOTICES", "README.md", "CHANGELOG.md", "docs/user/server.md", "examples/generate.c"):
            self.assertTrue((self.prefix / "share/doc/moesaic" / name).is_file(), name)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=2)
