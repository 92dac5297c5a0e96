"""The examples of docs/user/python.md, run as they stand, one after the other."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/user/python.md"


def test_examples_run(capsys):
    pytest.importorskip("numpy")
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 7
    names = {}
    for example in examples:
        exec(compile(example, PAGE.name, "exec"), names)
    said = capsys.readouterr().out
    assert said.startswith("17 + 25 = 42\nget_weather {")
    assert "temperature: must be between 0 and 2" in said
