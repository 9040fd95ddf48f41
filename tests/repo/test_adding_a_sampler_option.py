"""docs/adding-a-sampler-option.md is true: an option for CPUs, and one that GPUs compute too, are added to a copy of the tree by changing the files of the page and no others. Command line, HTTP dialects, Python binding, the sampler of the CPU and that of the GPU have them."""

import ctypes as C
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
CC = [os.environ.get("LLMC_CC") or "gcc", "-std=gnu11", "-O0", "-fPIC", "-D_GNU_SOURCE"]
CC += ["-I.", "-Iinclude", "-Itemplates", "-Wall", "-Wextra", "-Wmissing-prototypes", "-Werror"]
LIBS = ["-lyaml", "-ljansson", "-lpcre2-8", "-lutf8proc", "-lm", "-lpthread", "-ldl"]
PAGE = (ROOT / "docs/adding-a-sampler-option.md").read_text()

# Each edit is (file, old text, new text); every occurrence of the old text is replaced.
# first_ids: only the first N tokens may be sampled. least_share: min_p under another name.
FIRST_IDS = [
    (
        "include/llmc.h",
        "\tX(FLOAT, min_p,",
        '\tX(INT, first_ids, OFF_0, 0, INT32_MAX, 0, 1e5, 0, 7, 9, "n_first", "first_k", "first", \\\n'
        '\t  "sample only from the first N tokens", "; 0: off", "; 0: all") \\\n\tX(FLOAT, min_p,',
    ),
    (
        "runtime/sample/filters.c",
        "\tif (p->top_k > 0 && p->top_k < m->vocab) {\n",
        "\tfor (int32_t i = p->first_ids; p->first_ids > 0 && i < m->vocab; i++)\n"
        "\t\tm->work[i] = -INFINITY;\n"
        "\tif (p->top_k > 0 && p->top_k < m->vocab) {\n",
    ),
]
LEAST_SHARE = [
    (
        "include/llmc.h",
        "\tX(INT, min_keep,",
        "\tX(FLOAT, least_share, OFF_0, 0, 1, 0, 1, 0, 0, 0, NULL, NULL, NULL, \\\n"
        '\t  "drop tokens below this share of the largest", "; 0: off", NULL) \\\n'
        "\tX(INT, min_keep,",
    ),
    ("include/llmc.h", '\tX(i, "infill")', '\tX(i, "infill") \\\n\tX(a, "least_share")'),
    (
        "runtime/sample/filters.c",
        "!late && p->min_p <= 0) {",
        "!late && fmaxf(p->min_p, p->least_share) <= 0) {",
    ),
    (
        "runtime/sample/filters.c",
        "\tif (p->min_p > 0)\n\t\tn = keep_min_p(cand, n, p->min_p);\n",
        "\tn = keep_min_p(cand, n, fmaxf(p->min_p, p->least_share));\n",
    ),
    (
        "runtime/sample/filters.c",
        "\t\tcase 'm':\n",
        "\t\tcase 'a':\n\t\t\tcut_min_p(m, largest, p->least_share, p->min_keep);\n\t\t\tbreak;\n"
        "\t\tcase 'm':\n",
    ),
    (
        "templates/cuda/sampling/sampler_state.h",
        "\tX(float, min_p) \\\n",
        "\tX(float, min_p) \\\n\tX(float, least_share) \\\n",
    ),
    ("templates/cuda/sampling/sample.h", "slot.min_p", "min_p"),
    (
        "templates/cuda/sampling/sample.h",
        "\tconst bool nucleus = slot.top_p",
        "\tconst float min_p = fmaxf(slot.min_p, slot.least_share);\n"
        "\tconst bool nucleus = slot.top_p",
    ),
]
# sources that depend on the size of llmc_params, and the tests' own window into the library
SOURCES = [f"runtime/sample/{n}.c" for n in "sampler filters mirostat dry sampler_options".split()]
SOURCES += ["serve/dialects/sampling_fields.c", "runtime/cuda/cuda_sampler.c", "window.c"]
WINDOW = """
#include <string.h>
#include "base/json.h"
#include "runtime/cuda/cuda_session.h"
#include "serve/dialects/fields.h"
#include "serve/dialects/sampling_fields.h"
#define SHOWN __attribute__((visibility("default")))
SHOWN bool read_body(const char *text, int server, llmc_params *to, char error[256]);
SHOWN bool options_of_ollama(const char *text, char out[256]);
SHOWN bool gpu_can_sample(const llmc_params *p);
SHOWN int32_t sample(llmc_params *p, const char *order, const float *logits, int32_t vocab);

int32_t
sample(llmc_params *p, const char *order, const float *logits, int32_t vocab)
{
	llmc_sampler *s = NULL;
	int32_t id = -1;

	p->size = sizeof *p;
	p->samplers = order;
	if (llmc_sampler_open(vocab, p, &s, NULL) == LLMC_OK)
		(void)llmc_sampler_sample(s, logits, &id, NULL, NULL);
	llmc_sampler_close(s);
	return id;
}

bool
read_body(const char *text, int server, llmc_params *to, char error[256])
{
	json_t *o = json_loads(text, 0, NULL);
	Problem p = { 0 };
	const SamplingDefaults defaults = { .server = (llmc_option_default)server };
	bool ok = sampling_read(o, &defaults, false, to, &p);

	snprintf(error, 256, "%.255s", p.text);
	json_decref(o);
	return ok;
}

bool
options_of_ollama(const char *text, char out[256])
{
	json_t *o = json_loads(text, 0, NULL), *chat = json_object();

	fields_copy(FIELDS_OLLAMA_CHAT, o, chat);
	size_t n = json_dumpb(chat, out, 255, JSON_COMPACT | JSON_SORT_KEYS);
	out[n < 255 ? n : 0] = 0;
	json_decref(o);
	json_decref(chat);
	return n < 255;
}

bool
gpu_can_sample(const llmc_params *p)
{
	return cuda_sampler.can(NULL, p);
}
"""


def files_of(example):
    """The number in the text above an example's table, and the table's files."""
    before, after = PAGE.split(f"<!-- example: `{example}` -->")
    table = re.findall(r"^\| `([\w./]+)` \|", after.split("<!-- example")[0], re.M)
    return int(re.findall(r"\b(\d+)\s+files\b", before)[-1]), set(table)


@pytest.mark.parametrize("edits, example", [(FIRST_IDS, "min_keep"), (LEAST_SHARE, "min_p")])
def test_the_new_options_change_the_files_of_the_page(edits, example):
    count, table = files_of(example)
    assert {e[0] for e in edits} == table and len(table) == count <= 4


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources with the new options, and the files that make writes."""
    top = tmp_path_factory.mktemp("toy") / "tree"
    folders = "include base plan ops formats grammar text templates runtime serve cli image tools bindings"
    for d in [*folders.split(), "compiler", "api"]:
        names = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / d, top / d, ignore=names)
    (top / "docs").mkdir()
    shutil.copy(ROOT / "docs/serving.md", top / "docs")
    for path, old, new in FIRST_IDS + LEAST_SHARE:
        text = (top / path).read_text()
        assert old in text, (path, old)
        (top / path).write_text(text.replace(old, new))
    (top / "window.c").write_text(WINDOW)
    for script in (["sampling_options.py"], ["serving_doc.py", "--fields"]):
        subprocess.run([sys.executable, f"tools/{script[0]}", *script[1:]], cwd=top, check=True)
    return top


def compile_in(tree, source):
    out = tree / (source[:-2].replace("/", "+") + ".o")
    r = subprocess.run(
        [*CC, "-c", source, "-o", str(out)], cwd=tree, capture_output=True, text=True
    )
    assert r.returncode == 0, r.stderr
    return str(out)


@pytest.fixture(scope="module")
def library(tree):
    """libllmc.so with the new options; objects that they do not change are those of the build."""
    with ThreadPoolExecutor(2) as pool:
        new = list(pool.map(lambda s: compile_in(tree, s), SOURCES))
    out = tree / "libllmc.so"
    old = ["-Wl,--whole-archive", str(BUILD / "libllmc.a"), "-Wl,--no-whole-archive"]
    flags = ["-shared", "-Wl,--allow-multiple-definition"]  # the first definition counts
    subprocess.run([CC[0], *flags, *new, *old, *LIBS, *images(), "-o", str(out)], check=True)
    return out


def images():
    """Decoders of images that the build has."""
    flags = (BUILD / "image/flags").read_text()
    names = {"JPEG": "-ljpeg", "PNG": "-lpng", "WEBP": "-lwebp"}
    return [lib for name, lib in names.items() if f"LLMC_HAVE_{name}" in flags]


@pytest.fixture(scope="module")
def lib(tree, library):
    sys.path.insert(0, str(ROOT / "tools"))
    import sampling_options

    rows = sampling_options.read((tree / "include/llmc.h").read_text())
    kinds = {"FLOAT": C.c_float, "INT": C.c_int32, "BOOL": C.c_bool}

    class Params(C.Structure):
        _fields_ = [
            ("size", C.c_size_t),
            *((o.name, kinds[o.kind]) for o in rows),
            *(("seed", C.c_uint64), ("rest", C.c_char * 512)),
        ]

    out = C.CDLL(str(library))
    out.Params = lambda **p: Params(size=Params.rest.offset, **p)
    return out


def test_the_command_line_has_the_options(tree):
    run = tree / "llmc"
    others = [str(o) for o in sorted((BUILD / "cli").glob("*.o")) if o.name != "cmd_run.o"]
    ours = compile_in(tree, "cli/cmd_run.c")
    lib = str(BUILD / "libllmc.a")
    subprocess.run([CC[0], ours, *others, lib, *LIBS, *images(), "-o", str(run)], check=True)
    r = subprocess.run([str(run), "run", "--help"], capture_output=True, text=True, check=True)
    assert re.search(r"--first-ids N +sample only from the first N tokens; 0: off \[0\]", r.stdout)
    assert re.search(
        r"--least-share X +drop tokens below this share of the largest; 0: off", r.stdout
    )
    assert "letters of edskypmxtia;" in r.stdout


@pytest.mark.parametrize(
    "server, body, want",
    [
        (0, {}, (0, 0)),
        (1, {}, (7, 0)),
        (2, {}, (9, 0)),
        (0, {"first_ids": 3, "least_share": 0.25}, (3, 0.25)),
        (0, {"n_first": 3}, (3, 0)),
        (0, {"first_ids": 100001}, "first_ids"),
        (0, {"least_share": 1.5}, "least_share"),
        (0, {"least_share": "a"}, "least_share"),
    ],
)
def test_requests_have_the_fields(lib, server, body, want):
    p, error = lib.Params(), C.create_string_buffer(256)
    ok = lib.read_body(json.dumps(body).encode(), server, C.byref(p), error)
    if isinstance(want, str):
        assert not (ok & 1) and want in error.value.decode()
    else:
        assert ok & 1 and (p.first_ids, p.least_share) == want, error.value


def test_ollama_has_the_fields(lib):
    out = C.create_string_buffer(256)
    body = {"options": {"n_first": 3, "least_share": 0.5}}
    assert lib.options_of_ollama(json.dumps(body).encode(), out)
    assert json.loads(out.value) == {"first_ids": 3, "least_share": 0.5}


def test_the_documents_of_the_server_have_the_fields(tree):
    show = "import sampling_options as s; print(s.openapi(open('serve/pages/assets/openapi.json').read()))"
    r = subprocess.run(
        [sys.executable, "-c", show],
        env=os.environ | {"PYTHONPATH": "tools"},
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    )
    doc = json.loads(r.stdout)
    for name in ("ChatRequest", "CompletionRequest"):
        assert doc["components"]["schemas"][name]["properties"]["first_ids"] == {
            "type": "integer",
            "minimum": 0,
            "maximum": 100000,
            "default": 0,
            "description": "Sample only from the first N tokens; 0: all.",
        }
    body = doc["paths"]["/api/chat"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    options = body["properties"]["options"]["properties"]
    assert options["n_first"]["default"] == 9 and options["least_share"]["maximum"] == 1
    page = (tree / "docs/serving.md").read_text()
    assert "`first_ids`" in page and "`options.least_share`" in page


def test_the_python_binding_has_the_options(tree, library):
    hints = (tree / "bindings/python/llmc/_sampling.py").read_text()
    assert "    first_ids: int\n" in hints and "    least_share: float\n" in hints
    use = """
from llmc import _params, SamplingParams
with _params.params("run", {"first_ids": 3, "least_share": 0.5}) as p:
    print(p.first_ids, p.least_share, {"first_ids", "least_share"} <= set(SamplingParams.__annotations__))
"""
    env = os.environ | {"PYTHONPATH": "bindings/python", "LLMC_LIBRARY": str(library)}
    r = subprocess.run(
        [sys.executable, "-c", use], cwd=tree, env=env, capture_output=True, text=True, check=True
    )
    assert r.stdout == "3 0.5 True\n"


def test_the_host_samples_what_the_gpu_cannot(lib):
    lib.gpu_can_sample.restype = C.c_bool
    assert lib.gpu_can_sample(C.byref(lib.Params(temperature=1, least_share=0.5)))
    assert not lib.gpu_can_sample(C.byref(lib.Params(temperature=1, first_ids=5)))


VOCAB = 40
LOGITS = np.linspace(0, -3, VOCAB)[np.random.default_rng(3).permutation(VOCAB)].astype(np.float32)


def sampled(lib, seed, order=None, **p):
    """The first token that a seed samples on the CPU."""
    params = C.byref(lib.Params(seed=seed, temperature=1, **p))
    token = lib.sample(params, order, LOGITS.ctypes.data_as(C.c_void_p), VOCAB)
    assert token >= 0
    return token


@pytest.mark.parametrize(
    "options",
    [
        dict(first_ids=11),
        dict(least_share=0.3),
        dict(least_share=0.3, order=b"least_share;temperature"),
        dict(least_share=0.3, order=b"ta"),
    ],
)
def test_the_sampler_of_the_cpu_has_the_options(lib, options):
    share = np.exp(LOGITS - LOGITS.max())
    allowed = np.arange(VOCAB) < options.get("first_ids", VOCAB)
    allowed &= share >= options.get("least_share", 0)
    assert 5 < allowed.sum() < VOCAB - 5
    found = {sampled(lib, seed, **options) for seed in range(600)}
    assert found == set(np.flatnonzero(allowed).tolist())


def test_the_sampler_of_the_gpu_has_the_option(tree, lib, monkeypatch):
    """In the emulator, with the state that the host's list of fields describes."""
    sys.path.insert(0, str(ROOT / "tests/cuda"))
    import test_cuda_sample as T

    rows = 24
    state = (tree / "templates/cuda/sampling/sampler_state.h").read_text()
    monkeypatch.setattr(T.H, "TEMPLATES", tree / "templates")
    monkeypatch.setattr(T, "RUNTIME", tree / "templates/cuda/runtime")
    monkeypatch.setattr(T, "SLOT", T.slot_type(state))
    slots = np.zeros(rows, T.SLOT)
    slots["temperature"] = slots["repetition_penalty"] = 1
    slots["least_share"], slots["seed"] = 0.3, np.arange(rows)
    logits = np.tile(LOGITS, (1, rows, 1))
    counts = np.zeros((rows, VOCAB), np.int32)
    mode, seed = T.H.RUNS[0]
    (got,) = T.sample(logits, slots, counts, mode, seed)
    want = [sampled(lib, s, least_share=0.3) for s in range(rows)]
    assert got["picked"][6 % T.RING]["id"].tolist() == want
    assert want != [sampled(lib, s) for s in range(rows)]
