"""What a wheel holds, installed into a fresh virtual environment: three lines print an answer. Needs no index."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

BUILD, CMAKE = os.environ.get("MOESAIC_BUILD"), os.environ.get("MOESAIC_CMAKE")
PROGRAM = """
from moesaic import LLM
llm = LLM("tiny")
print(llm.chat([{"role": "user", "content": "What is 17 + 25?"}])[0].outputs[0].text)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    if BUILD is None:
        pytest.skip("MOESAIC_BUILD names no build folder; ctest sets it")
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python3*/site-packages")
    subprocess.run([CMAKE, "--install", BUILD, "--component", "python", "--prefix", packages], check=True, capture_output=True)
    return folder


def python(environment, *arguments):
    """Without PYTHONPATH, and from another folder: only what is installed is found."""
    return subprocess.run([environment / "bin/python", "-I", *arguments], cwd=environment, capture_output=True, text=True,
                          check=True, timeout=60).stdout


def test_three_lines_print_an_answer(environment):
    assert "42" in python(environment, "-c", PROGRAM)


def test_the_draft_head_comes_with_it(environment):
    program = PROGRAM.replace('"tiny"', '"tiny", speculative="eagle3"') + "print(llm.info['speculative'])"
    assert python(environment, "-c", program).endswith("eagle3\n")


def test_examples_need_nothing_but_logits_numpy(environment):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/user/python.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    logits = [example for example in examples if "llm.logits" in example]
    program = "\n".join(example for example in examples if example not in logits)
    refused = "import moesaic\ntry: moesaic.LLM('tiny').logits('Hi')\nexcept moesaic.Unsupported as error: print(error)"
    said = python(environment, "-c", f"{program}\n{refused}")
    assert len(logits) == 1 and said.startswith("17 + 25 = 42\n") and "numpy cannot be imported (No module named 'numpy'): pip install numpy" in said


def test_it_is_this_copy_and_typed(environment):
    folder = pathlib.Path(python(environment, "-c", "import moesaic; print(moesaic.__path__[0])").strip())
    assert environment in folder.parents
    names = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert {"py.typed", "_engine.pyi", "models/tiny/config.json", "models/tiny/model.safetensors",
            "models/tiny-eagle3/model.safetensors"} <= names
    assert not any("test" in name or name.endswith(".cpp") for name in names)
    stub = (folder / "_engine.pyi").read_text()
    assert "class Engine" in stub and "def take(self, timeout: float" in stub
