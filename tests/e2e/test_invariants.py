"""Invariance of results, and the cost of a step.

A request's logits have the same bits in one chunk or token by token, alone or in a batch, with any
number of threads, after a fork or a trim. A step has a known number of kernels, barriers and bytes,
and allocates nothing."""

import os
import subprocess

import numpy as np
import pytest

import llmc
from bits import rows, whole
from golden_run import ROOT
from processor import cpu_archs

ARCHS = cpu_archs()
BEST = ARCHS[-1]
COMMON = "vocab_size: 320\nmax_positions: 1024\ntext: {bos: 1, eos: [2]}\n"
MODELS = {
    # quantised blocks, grouped queries, tied head; 7 query heads per group do not fill a vector
    "llama": COMMON
    + """name: inv-llama
family: llama
n_layers: 2
hidden: 224
attention: {n_heads: 7, n_kv_heads: 1, head_dim: 32}
ffn: {width: 96}
head: {tied: true}
storage: {default: q4_1, rules: [{tensor: embed, type: q8_0}]}
""",
    # post-norms, soft caps, a window on one layer, 16-bit weights
    "gemma": COMMON
    + """name: inv-gemma
family: gemma2
n_layers: 2
hidden: 64
attention: {n_heads: 4, n_kv_heads: 2, head_dim: 16, window: 40, window_layers: [0], score_cap: 50}
ffn: {width: 96}
head: {cap: 30}
""",
    # layer norms, biases, alibi
    "bloom": COMMON
    + """name: inv-bloom
family: bloom
n_layers: 2
hidden: 96
attention: {n_heads: 6}
ffn: {width: 128}
""",
    # MoE: rows of a chunk choose different experts
    "moe": COMMON
    + """name: inv-moe
family: qwen3_moe
n_layers: 2
hidden: 64
attention: {n_heads: 4, n_kv_heads: 2, head_dim: 16}
ffn: {width: 64}
moe: {n_experts: 8, top_k: 2, width: 32}
""",
    # prefill in absorbed form as in decode; the cheaper form depends on the rows of a chunk
    "mla": COMMON
    + """name: inv-mla
family: deepseek_v3
deterministic: true
n_layers: 2
hidden: 64
attention: {kind: mla, n_heads: 2, q_rank: 32, kv_rank: 32, nope_dim: 16, rope_dim: 8, v_dim: 16}
ffn: {width: 64}
moe: {n_experts: 4, top_k: 2, width: 32, layers: [1], groups: 2, keep_groups: 1, shared: {width: 32}}
""",
    # rows that choose among their positions, in two of three layers
    "chooses": COMMON
    + """name: inv-chooses
family: deepseek_v3
deterministic: true
n_layers: 3
hidden: 64
attention: {kind: mla, n_heads: 5, q_rank: 32, kv_rank: 40, nope_dim: 16, rope_dim: 8, v_dim: 16, index: {top_k: 37, heads: 24, dim: 16, layers: [0, 2]}}
ffn: {width: 64}
moe: {n_experts: 5, top_k: 2, width: 32, layers: [1], groups: 1, shared: {width: 32}}
""",
    # latents in groups; the last group is latent and key
    "mla4": COMMON
    + """name: inv-mla4
family: deepseek_v3
deterministic: true
n_layers: 2
hidden: 64
attention: {kind: mla, n_heads: 2, q_rank: 32, kv_rank: 40, nope_dim: 16, rope_dim: 8, v_dim: 16}
ffn: {width: 64}
moe: {n_experts: 4, top_k: 2, width: 32, layers: [1], groups: 2, keep_groups: 1, shared: {width: 32}}
kv: {dtype: int4}
""",
    # latents of 8 bits, also in groups
    "mla8": COMMON
    + """name: inv-mla8
family: deepseek_v3
n_layers: 2
hidden: 64
attention: {kind: mla, form: absorbed, n_heads: 3, q_rank: 32, kv_rank: 40, nope_dim: 16, rope_dim: 12, v_dim: 16}
ffn: {width: 64}
moe: {n_experts: 4, top_k: 2, width: 32, layers: [1], groups: 2, keep_groups: 1, shared: {width: 32}}
kv: {dtype: int8}
""",
    # parallel residual streams, rows cut off above their mean, layers that read the KV of others
    "streams": COMMON
    + """name: inv-streams
family: gemma3n
n_layers: 3
hidden: 60
attention: {n_heads: 3, n_kv_heads: 1, head_dim: 20, window: 40, window_layers: [0], kv_shared: 1}
ffn: {width: 70, sparsity: [0.9, 0.5, 0]}
per_layer: {width: 12, vocab: 300}
residual: {low_rank: 5}
streams: {count: 3, active: 1}
""",
    # one scale per row; the head size is not a power of two
    "int8": COMMON
    + """name: inv-int8
family: llama
n_layers: 2
hidden: 160
attention: {n_heads: 8, n_kv_heads: 2, head_dim: 20}
ffn: {width: 96}
kv: {dtype: int8}
""",
    # groups, two KV types, rotated
    "int64": COMMON
    + """name: inv-int64
family: llama
n_layers: 2
hidden: 160
attention: {n_heads: 2, n_kv_heads: 1, head_dim: 80}
ffn: {width: 96}
kv: {k: int6, v: int4, rotate: true}
""",
}
RUNS = [("llama", a) for a in ARCHS] + [(m, BEST) for m in MODELS if m != "llama"]
N = 300  # more than two pages and two chunks of keys
TOK = [int(t) for t in np.random.default_rng(1).integers(3, 320, N)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    opened = {}

    def get(name, arch):
        if (name, arch) not in opened:
            path = tmp_path_factory.mktemp(name) / f"{name}.yaml"
            path.write_text("llmc: 1\n" + MODELS[name])
            opened[name, arch] = llmc.open(path, random_weights=True, arch=arch)
        return opened[name, arch]

    yield get
    for m in opened.values():
        m.close()


@pytest.mark.sample(4)
@pytest.mark.parametrize("name,arch", RUNS)
def test_a_result_depends_on_the_request_alone(models, name, arch):
    m = models(name, arch)
    want = whole(m, TOK)

    # token by token, and in chunks of several lengths
    with m.session(context=N, chunk=N, n_out=N, seqs=2, threads=2) as s:
        q = s.seq()
        got = [rows(s, [(q, [t], 1)]) for t in TOK]
        assert np.array_equal(np.concatenate(got), want), "prefill and decode differ"
        s.free(q)
        q, at, got = s.seq(), 0, []
        for n in (1, 7, 31, 32, 33, 96, 2, N):
            part = TOK[at : at + n]
            got.append(rows(s, [(q, part, len(part))]))
            at += len(part)
        assert np.array_equal(np.concatenate(got), want), "chunks differ"
        # trimmed and run again; a fork that shares pages
        s.trim(q, 145)
        fork = s.fork(q)
        assert np.array_equal(rows(s, [(q, TOK[145:], N - 145)]), want[145:]), "after a trim"
        assert np.array_equal(rows(s, [(fork, TOK[145:], N - 145)]), want[145:]), "after a fork"

    # any number of threads
    for threads in (2, 3, 5, 8):
        with m.session(context=N, chunk=N, n_out=N, threads=threads) as s:
            q = s.seq()
            assert np.array_equal(rows(s, [(q, TOK[:290], 290)]), want[:290]), f"{threads} threads"
            for i in range(290, 300 if threads < 4 else 293):
                assert np.array_equal(rows(s, [(q, TOK[i : i + 1], 1)])[0], want[i]), (
                    f"decode with {threads} threads"
                )


@pytest.mark.sample(3)
@pytest.mark.parametrize("name,arch", RUNS)
def test_batching_changes_nothing(models, name, arch):
    """Four sequences that start at different times, with decode rows and chunks in one step,
    against each alone."""
    m = models(name, arch)
    tok = [TOK[:200], TOK[50:90], TOK[100:233], TOK[7:20]]
    want = [whole(m, t) for t in tok]
    rng = np.random.default_rng(3)
    with m.session(context=N, seqs=4, chunk=128, n_out=128, threads=2) as s:
        seq = [s.seq() for _ in tok]
        at = [0] * 4
        got = [[] for _ in tok]
        while any(a < len(t) for a, t in zip(at, tok)):
            chunks, who = [], []
            for i in rng.permutation(4):
                left = len(tok[i]) - at[i]
                n = min(left, int(rng.choice([0, 1, 1, 1, 5, 30])))
                if n:
                    chunks.append((seq[i], tok[i][at[i] : at[i] + n], n))
                    who.append((i, n))
            if not chunks:
                continue
            out, r = rows(s, chunks), 0
            for i, n in who:
                got[i].append(out[r : r + n])
                at[i] += n
                r += n
    for i in range(4):
        assert np.array_equal(np.concatenate(got[i]), want[i]), f"sequence {i}"


@pytest.mark.parametrize("name", ["int8", "int64"])
def test_quantised_rows_outlive_a_session(models, tmp_path, name):
    """Saved and reloaded sequences continue with the same bits, in sessions of the same KV type."""
    m = models(name, BEST)
    want = whole(m, TOK[:120])
    with (
        m.session(context=N, chunk=128, n_out=N) as s,
        m.session(context=N, chunk=128, n_out=N) as t,
    ):
        q = s.seq()
        s.forward([(q, TOK[:77], 0)])
        saved = s.save(q)
        again = t.load(saved)
        assert np.array_equal(rows(t, [(again, TOK[77:120], 43)]), want[77:])
    path = tmp_path / "other.yaml"
    path.write_text("llmc: 1\n" + MODELS[name])
    with (
        llmc.open(
            path, random_weights=True, arch=BEST, set=["kv.dtype=f8", "kv.k=f8", "kv.v=f8"]
        ) as other,
        other.session(context=N) as s,
    ):
        with pytest.raises(llmc.Error, match="another model, target or type of cached rows"):
            s.load(saved)
        per = other.memory(context=64)["kv_per_token"], m.memory(context=64)["kv_per_token"]
    assert (
        per
        == {"int8": (2 * 2 * 2 * 22, 2 * 2 * 2 * 22), "int64": (2 * 2 * 82, 2 * (3 * 26 + 3 * 20))}[
            name
        ]
    )


def test_rows_without_logits_change_nothing(models):
    m = models("llama", BEST)
    want = whole(m, TOK[:100])
    with m.session(context=N, chunk=128, n_out=8, seqs=2) as s:
        q = s.seq()
        assert s.forward([(q, TOK[:60], 0)]) is None
        assert np.array_equal(rows(s, [(q, TOK[60:100], 5)]), want[95:100])


def quantised(rows_, cols, block_bytes):
    return rows_ * cols // 32 * block_bytes


def test_cost_of_a_step(models):
    """Kernels and barriers per layer, and bytes per decoded token, computed here from the
    architecture."""
    m = models("llama", BEST)
    h, q, kv, f, v, layers = 224, 7 * 32, 32, 96, 320, 2
    layer = (
        quantised(q + 2 * kv, h, 20)
        + quantised(h, q, 20)
        + quantised(2 * f, h, 20)
        + quantised(h, f, 20)
    )
    bytes_ = layers * layer + quantised(v, h, 34)
    vectors = (2 * layers + 1) * h * 4
    plan = {p["id"]: p for p in m.plan["phase"]}
    for phase in ("decode", "mixed"):
        ops = [s["op"] for s in plan[phase]["step"]]
        assert ops == ["embed"] + [
            "norm_qkv",
            "attention",
            "matmul_add",
            "norm_glu",
            "matmul_add",
        ] * layers + ["lm_head"]
        assert all(s["kernel"] is not None for s in plan[phase]["step"]), "everything is a kernel"
    info = m.info
    assert info["token_bytes"] - bytes_ in (0, vectors), (
        "a token streams the matrices once, as large as in the file"
    )
    with m.session(context=64, chunk=32, threads=2) as s:
        q = s.seq()
        s.forward([(q, TOK[:20], 1)])
        before = s.stats()
        for t in TOK[20:30]:
            s.forward([(q, [t], 1)])
        after = s.stats()
        done = {k: after[k] - before[k] for k in ("steps_run", "barriers", "forwards", "tokens")}
        assert done == dict(
            steps_run=10 * (5 * layers + 2), barriers=10 * (5 * layers + 2), forwards=10, tokens=10
        )
        assert after["weight_bytes"] == info["token_bytes"]


COUNTER = r"""
/* Counts allocations of the whole process while told to. */
#include <llmc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int counting, n_alloc;
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
static void tick(void) { if (counting) n_alloc++; }
void *malloc(size_t n) { tick(); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { tick(); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { tick(); return __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { tick(); return __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { tick(); return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) { tick(); *p = __libc_memalign(a, n); return *p ? 0 : ENOMEM; }
void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { tick(); return (void *)syscall(SYS_mmap, a, n, p, f, fd, o); }

static llmc_error err;
static void check(llmc_status s) { if (s != LLMC_OK) { fprintf(stderr, "%s\n", err.text); exit(2); } }

int
main(int argc, char **argv)
{
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_model *m;
	llmc_session *s;
	llmc_seq q, r;
	int32_t tok[64];
	static float logits[8 * 320];

	(void)argc;
	for (int i = 0; i < 64; i++)
		tok[i] = 3 + i * 5;
	o.random_weights = true;
	o.arch = argv[2];
	lim.context = 200, lim.chunk = 64, lim.n_threads = 2, lim.seqs = 2, lim.n_out = 8;
	check(llmc_open(argv[1], &o, &m, &err));
	counting = 1; /* opening does allocate, or nothing is counted here */
	check(llmc_session_open(m, &lim, &s, &err));
	counting = 0;
	printf("%d\n", n_alloc > 0);
	n_alloc = 0;
	for (int round = 0; round < 2; round++) { /* also the first step of all allocates nothing */
		counting = 1;
		check(llmc_seq_new(s, 0, &q, &err));
		check(llmc_forward(s, &(llmc_chunk){ q, tok, 64, 8 }, 1, logits, &err));
		check(llmc_seq_fork(s, q, &r, &err));
		for (int i = 0; i < 40; i++)
			check(llmc_forward(s, (llmc_chunk[]){ { q, tok + i, 1, 1 }, { r, tok + i, 1 + i % 3, 1 } }, 2, logits, &err));
		check(llmc_seq_trim(s, q, 10, &err));
		check(llmc_forward(s, &(llmc_chunk){ q, tok, 33, 1 }, 1, logits, &err));
		llmc_seq_free(s, q);
		llmc_seq_free(s, r);
		counting = 0;
		printf("%d\n", n_alloc);
	}
	llmc_session_close(s);
	llmc_close(m);
	return 0;
}
"""


@pytest.mark.skipif(
    "san" in os.environ.get("LLMC_LIBRARY", ""), reason="a sanitizer has an allocator of its own"
)
@pytest.mark.parametrize("name", ["llama", "moe"])
def test_running_allocates_nothing(models, name, tmp_path):
    models(name, BEST)  # compile first
    (tmp_path / "m.yaml").write_text("llmc: 1\n" + MODELS[name])
    (tmp_path / "count.c").write_text(COUNTER)
    build = os.path.join(ROOT, "build")
    os.symlink(f"{build}/libllmc.so", tmp_path / "libllmc.so.0")
    subprocess.run(
        [
            "gcc",
            "-O1",
            f"-I{ROOT}/include",
            "count.c",
            "-o",
            "count",
            f"-L{build}",
            "-lllmc",
            "-lpthread",
        ],
        cwd=tmp_path,
        check=True,
    )
    env = dict(os.environ, LD_LIBRARY_PATH=str(tmp_path))
    p = subprocess.run(
        [tmp_path / "count", tmp_path / "m.yaml", BEST], capture_output=True, text=True, env=env
    )
    assert p.returncode == 0, p.stderr
    assert p.stdout.split() == ["1", "0", "0"], "allocations while running"
