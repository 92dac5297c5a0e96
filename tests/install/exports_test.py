"""The names that libmoesaic.so shows: exports_test.py LIBRARY NM HEADERS

They are the functions that the headers of include/moesaic declare, and no others: a name of the insides that is seen from
outside can clash with a program's own, and cannot be changed later.
"""

import pathlib
import re
import subprocess
import sys

LIBRARY, NM, HEADERS = sys.argv[1:4]

# The C++ functions with a place in the library, by hand: parsing C++ is beyond this test.
CPP = {
    "moesaic::Model": "Model ~Model operator= open info context vocab stop_tokens tokenize detokenize chat_prompt submit idle step run"
                      " start stop wait cached_prefix save_kv load_kv save_kv_file load_kv_file stats".split(),
    "moesaic::AnswerFormat": ["key"],
    "moesaic::AnswerGrammar": ["compile", "chat", "notes"],
    "moesaic::JsonSchema": ["parse"],
    "moesaic": ["list_devices", "set_log_callback", "version", "version_number"],
}


def declared():
    header = "".join((pathlib.Path(HEADERS) / name).read_text() for name in ("moesaic.h", "moesaic_ops.h"))
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    c_names = set(re.findall(r"^[a-z][\w *]*?\b(moesaic_\w+)\(", header, flags=re.M))
    return c_names | {f"{scope}::{name}" for scope, names in CPP.items() for name in names}


def exported():
    text = subprocess.run([NM, "-D", "--defined-only", "-C", LIBRARY], capture_output=True, text=True, check=True).stdout
    return {re.sub(r"\(.*", "", re.sub(r"\[abi:\w+\]", "", line.split(" ", 2)[2])) for line in text.splitlines()}


want, got = declared(), exported()
for name in sorted(got - want):
    print(f"exported, but not declared in {HEADERS}: {name}")
for name in sorted(want - got):
    print(f"declared, but not exported (cmake/exports.map): {name}")
print(f"{len(got)} names exported")
sys.exit(want != got or len(got) < 40)
