"""What a crash of moesaic under vLLM leaves behind, and what the plugin does at the next start."""

import logging
import os
import signal
import subprocess
import sys

import pytest

import moesaic
from moesaic import _serving_engine, vllm_crash, vllm_fit, vllm_plugin


@pytest.fixture
def note(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _serving_engine.say.cache_clear()
    (tmp_path / "moesaic").mkdir()
    return tmp_path / "moesaic" / "vllm-crash.txt"


def test_nothing_is_noted_of_what_ends_well(note):
    assert vllm_crash.earlier() is None
    with vllm_crash.noted():
        pass
    assert not note.exists()


def test_an_error_of_a_step_is_noted_and_goes_on(note, caplog):
    with pytest.raises(moesaic.MoesaicError, match="lost"), vllm_crash.noted():
        raise moesaic.MoesaicError("the device is lost\nand more")
    assert note.read_text() == f"moesaic {moesaic.__version__}\nMoesaicError: the device is lost\n"
    [record] = caplog.records
    assert record.getMessage() == ("moesaic: MoesaicError: the device is lost; vLLM's own layers run at its next start (to try moesaic "
                                   f"again, remove {note})")
    assert vllm_crash.earlier() == f"it ended an earlier run (MoesaicError: the device is lost); to try again, remove {note}"


def test_the_next_start_is_vllms_own(note, monkeypatch, caplog):
    note.write_text(f"moesaic {moesaic.__version__}\nSIGSEGV\n")
    monkeypatch.setenv("MOESAIC_VLLM", "1")
    monkeypatch.setattr(vllm_fit, "misfit", lambda *_: pytest.fail("it must not go on"))
    vllm_plugin.register()
    [record] = caplog.records
    assert record.levelno == logging.WARNING and record.getMessage() == (
        "moesaic: vLLM's own kernels run gpt-oss's experts: it ended an earlier run (SIGSEGV); to try again, remove " + str(note))


@pytest.mark.parametrize("text", [b"", b"moesaic 0.0.0\nSIGSEGV\n", b"\xff\xfe" * 5000, b"SIGSEGV"])
def test_what_is_not_this_versions_note_does_not_count(note, text):
    note.write_bytes(text)
    assert vllm_crash.earlier() is None


def test_a_strange_note_is_one_short_line(note):
    note.write_bytes(f"moesaic {moesaic.__version__}\n".encode() + b"\x1b[2J\n\xff" * 100_000)
    assert len(vllm_crash.earlier()) < 1500 and vllm_crash.earlier().isprintable()
    note.unlink()
    note.mkdir()
    assert vllm_crash.earlier() is None


CRASH = """
import faulthandler, os, sys
from moesaic import _engine, vllm_crash
if sys.argv[1] == "with faulthandler":
    faulthandler.enable()
vllm_crash.watch()
if sys.argv[1] == "elsewhere":
    import ctypes
    ctypes.string_at(16)
_engine.prepare_dense(16, "bfloat16", 64, 64, 64, 0, "float32", "bf16", -1, 0)
"""


def crash(how):
    return subprocess.run([sys.executable, "-c", CRASH, how], capture_output=True, text=True, timeout=120, env=dict(os.environ))


@pytest.mark.parametrize("how", ["alone", "with faulthandler"])
def test_a_fatal_signal_leaves_the_note(note, how):
    ran = crash(how)
    assert ran.returncode == -signal.SIGSEGV, ran.stderr
    assert note.read_text() == f"moesaic {moesaic.__version__}\nSIGSEGV\n" and note.stat().st_mode & 0o777 == 0o600
    first, *rest = ran.stderr.splitlines()
    assert first == f"moesaic: crashed; vLLM's own layers run at its next start (to try moesaic again, remove {note})"
    assert bool(rest) == (how == "with faulthandler")


def test_a_crash_elsewhere_is_not_moesaics(note):
    ran = crash("elsewhere")
    assert ran.returncode == -signal.SIGSEGV and ran.stderr == "" and not note.exists()


def test_without_a_place_for_it_the_crash_is_what_it_was(note, monkeypatch):
    note.symlink_to("/etc/nothing")
    assert crash("alone").returncode == -signal.SIGSEGV and note.is_symlink()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert crash("alone").returncode == -signal.SIGSEGV
