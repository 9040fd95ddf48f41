"""First and last kernel of a step (templates/cuda/runtime): arrays and angles against numpy,
sampled tokens against the CPU sampler"""

import ctypes as C
import re

import numpy as np
import pytest

import cuda_harness as H

RUNTIME = H.TEMPLATES / "cuda" / "runtime"
SOURCES = [
    "runtime/sample/sampler.c",
    "runtime/sample/filters.c",
    "runtime/sample/candidates.c",
    "runtime/sample/mirostat.c",
    "runtime/sample/infill.c",
    "runtime/sample/sampler_options.c",
    "runtime/sample/softmax.c",
    "runtime/sample/watermark.c",
    "base/error.c",
    "runtime/sample/dry.c",
    "runtime/sample/thinking.c",
    "base/strbuf.c",
    "base/utf8.c",
    "tests/cuda/no_text.c",
]
RING, PARTS, SEEN = 4, 32, 1 << 30


def slot_type(state):
    """llmc_slot of the text of sampler_state.h"""
    kinds = {"float": "f4", "int": "i4"}
    options = re.findall(r"^\tX\((\w+), (\w+)\)", state, re.M)
    return np.dtype(
        [
            *((name, kinds[kind]) for kind, name in options),
            *(("penalties", "i4"), ("last", "i4"), ("seed", "u8"), ("n_pick", "u8")),
        ],
        align=True,
    )


SLOT = slot_type((H.TEMPLATES / "cuda" / "sampling" / "sampler_state.h").read_text())
PICKED = np.dtype([("id", "i4"), ("logprob", "f4"), ("status", "i4"), ("pad", "i4")])
STEP = "s_n s_tok s_pos s_pos2 s_seq_of s_q_start s_kv_len s_prefix_len s_out_row s_block_table".split()
POINTERS = (
    STEP
    + "rope_pos rope_y rope_x slot_of slot tables counts freq factor logits mask_at mask work part row_done all_done note picked count now".split()
)


def text(name):
    path = RUNTIME / f"{name}.cu"
    return H.inline(f'#line 1 "{name}.cu"\n' + path.read_text(), path.name, set())


def job(arrays, ropes, sizes, launches, fetch):
    """llmc_state of templates/cuda/sampling/sampler_state.h"""
    a = {k: np.zeros(1, np.int32) for k in POINTERS}
    a.update(arrays)
    fields = [0 if k in ("mask", "mask_at", "note") and k not in arrays else k for k in POINTERS]
    for i in range(8):
        fields += [*ropes[i]] + [0] * (9 - len(ropes[i])) if i < len(ropes) else [0] * 9
    return dict(
        arrays=a,
        pack="@" + "Q" * len(POINTERS) + "Q8i" * 8 + "7i",
        fields=fields + list(sizes) + [0] * (7 - len(sizes)),
        launches=launches,
        fetch=fetch,
    )


# ---- begin ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode,seed", H.RUNS)
@pytest.mark.parametrize("window", [0, 5])
def test_begin_makes_a_decode_step(mode, seed, window):
    stride, cap, n = 5 + window, 6, 3
    rng = np.random.default_rng(2)
    rows = [  # slot tok pos rope_pos pos2 prefix_len out_at table_from page_at page window
        [2, 7, 70, 71, 3, 0, 0, 0, 2, 44, 66],
        [0, -1, 131071 % 160, 131071, 0, 9, -1, 3, -1, 0, 0],
        [3, -1, 31, 31, 1, 0, 1, 0, 0, 55, 77],
    ]
    note = np.zeros((RING, cap, 16), np.int32)
    note[5 % RING, :, :2] = n, 2
    note[5 % RING, :n, 2:13] = rows
    slots = np.zeros(4, SLOT)
    slots["last"] = [100, 101, 102, 103]
    tables = rng.integers(1, 90, (4, stride)).astype(np.int32)
    freq = rng.random((4, 7)).astype(np.float32)
    factor = np.array([[1, 1.5]] * 3 + [[1, 0.7]])
    arrays = {k: np.full(cap + 1, -7, np.int32) for k in STEP}
    arrays.update(
        s_n=np.full(4, -7, np.int32),
        s_block_table=np.full((cap, stride), -7, np.int32),
        slot_of=np.full(cap, -7, np.int32),
        slot=slots,
        tables=tables,
        freq=freq,
        factor=factor,
        note=note,
        count=np.array([5], np.uint32),
        rope_a=np.zeros((cap, 8), np.float32),
        rope_b=np.zeros((cap, 6), np.float32),
    )
    fetch = [*STEP, "slot_of", "tables", "now", "rope_a", "rope_b", "slot"]
    ropes = [("rope_a", 8, 0, 0), ("rope_b", 6, 1, 4)]
    (got,) = H.submit(
        "sm_90a",
        mode,
        seed,
        4,
        job(
            arrays,
            ropes,
            (2, 7, stride, 1, 1, note.strides[0], window),
            [(text("begin"), "begin.cu", "llmc_begin", (5,), 128, 0, {})],
            fetch,
        ),
    )
    assert got["s_n"].tolist() == [3, 3, 3, 2] and got["now"][0] == 5
    assert got["s_tok"][:3].tolist() == [7, 100, 103]
    assert got["s_pos"][:3].tolist() == [70, 31, 31] and got["s_pos2"][:3].tolist() == [3, 0, 1]
    assert got["s_seq_of"][:3].tolist() == [0, 1, 2] and got["s_q_start"][:4].tolist() == [
        0,
        1,
        2,
        3,
    ]
    assert got["s_kv_len"][:3].tolist() == [71, 32, 32] and got["s_prefix_len"][:3].tolist() == [
        0,
        9,
        0,
    ]
    assert got["s_out_row"][:3].tolist() == [0, 2, -7] and got["slot_of"][:4].tolist() == [
        2,
        0,
        3,
        -7,
    ]
    want = np.full((cap, stride), -7)
    want[0, :3] = tables[2, 0], tables[2, 1], 44
    want[2, 0] = 55
    if window:
        want[0, 5:8] = tables[2, 5], tables[2, 6], 66
        want[2, 5] = 77
    assert (got["s_block_table"] == want).all()
    after = tables.copy()
    after[2, 2], after[3, 0] = 44, 55
    if window:
        after[2, 7], after[3, 5] = 66, 77
    assert (got["tables"] == after).all()
    for name, (_, dims, axis, at) in zip(("rope_a", "rope_b"), ropes):
        for r, w in enumerate(rows):
            a = (w[4] if axis else w[3]) * freq[w[0], at : at + dims // 2].astype(np.float64)
            both = np.concatenate([np.cos(a), np.sin(a)]) * factor[w[0], axis]
            assert np.abs(got[name][r] - both).max() < 1.3e-7
        assert (got[name][3:] == 0).all()


@pytest.mark.parametrize("mode,seed", [H.RUNS[0], H.RUNS[-1]])
@pytest.mark.parametrize("noted", [True, False])  # a decode graph that the host feeds; a mixed step
def test_begin_of_a_mixed_step(mode, seed, noted):
    n, slots = 5, np.zeros(3, SLOT)
    slots["last"] = [50, 51, 52]
    note = np.zeros((RING, 8, 16), np.int32)
    note[1, :, 0] = -1
    i32 = lambda *v: np.array(v, np.int32)
    arrays = dict(
        s_n=i32(n, 1, 2, 2),
        s_tok=i32(-3, 8, 9, 10, -1),
        s_pos=i32(3, 0, 1, 2, 3),
        s_pos2=i32(0, 0, 1, 1, 2),
        s_seq_of=i32(0, 1, 1, 1, 1),
        rope_pos=i32(3, 5, 6, 7, 8),
        rope_y=i32(3, 5, 6, 9, 8),
        rope_x=i32(3, 5, 7, 2, 8),
        slot_of=i32(2, 0),
        slot=slots,
        freq=np.array([[0.5, 0.25], [9, 9], [1, 2]], np.float32),
        factor=np.array([[2.0], [9], [1]]),
        **(dict(note=note) if noted else {}),
        count=np.array([9], np.uint32),
        rope=np.zeros((n, 4), np.float32),
    )
    (got,) = H.submit(
        "sm_75",
        mode,
        seed,
        4,
        job(
            arrays,
            [("rope", 4, 0, 0)],
            (1, 2, 1, 1, 1, note.strides[0]),
            [(text("begin"), "begin.cu", "llmc_begin", (8,), 128, 0, {})],
            ["s_tok", "rope", "now", "s_n"],
        ),
    )
    assert (
        got["s_tok"].tolist() == [52, 8, 9, 10, 50]
        and got["now"][0] == 9
        and got["s_n"].tolist() == [n, 1, 2, 2]
    )
    a = np.array([3, 5, 6, 7, 8])[:, None] * arrays["freq"][[2, 0, 0, 0, 0]].astype(np.float64)
    want = np.concatenate([np.cos(a), np.sin(a)], 1) * np.array([1, 2, 2, 2, 2])[:, None]
    assert np.abs(got["rope"] - want).max() < 2.5e-7


# ---- sample ---------------------------------------------------------------------------------------------------------


class Params(C.Structure):
    """llmc_params up to `stop`; its options are the rows of a table in the header."""

    _fields_ = [
        ("size", C.c_size_t),
        *(
            (name, {"FLOAT": C.c_float, "INT": C.c_int32, "BOOL": C.c_bool}[kind])
            for kind, name in re.findall(
                r"\tX\((FLOAT|INT|BOOL), (\w+),", (H.ROOT / "include" / "llmc.h").read_text()
            )
        ),
        ("seed", C.c_uint64),
        ("max_tokens", C.c_int32),
        ("stop", C.c_void_p),
    ]


@pytest.fixture(scope="session")
def cpu():
    """The CPU sampler, which tests/unit/test_sample.c compares with transformers"""
    lib = H.host_library("sampler", SOURCES)
    lib.llmc_sampler_accept.argtypes = [C.c_void_p, C.c_int32, C.c_bool]
    lib.llmc_sampler_sample.argtypes = [
        C.c_void_p,
        C.c_void_p,
        C.POINTER(C.c_int32),
        C.POINTER(C.c_float),
        C.c_void_p,
    ]
    lib.llmc_sampler_close.argtypes = [C.c_void_p]
    return lib


class Sampler:
    def __init__(self, lib, vocab, prompt, **p):
        self.lib, self.h = lib, C.c_void_p()
        q = Params(size=Params.stop.offset + 8, **p)
        assert lib.llmc_sampler_open(vocab, C.byref(q), C.byref(self.h), None) == 0
        for id_ in prompt:
            lib.llmc_sampler_accept(self.h, id_, True)

    def pick(self, logits):
        id_, logprob = C.c_int32(), C.c_float()
        status = self.lib.llmc_sampler_sample(
            self.h, logits.ctypes.data, C.byref(id_), C.byref(logprob), None
        )
        if status == 0:
            self.lib.llmc_sampler_accept(self.h, id_.value, False)
        return status, id_.value, logprob.value


def sample(
    logits,
    slots,
    counts,
    mode,
    seed,
    steps=1,
    arch="sm_90a",
    grid=None,
    count=6,
    masks=None,
    share=None,
):
    """logits [steps, rows, vocab]: returns the state after each step. Row o belongs to slot o.
    masks: (mask index per row, bits [masks, vocab]); share: number of CTAs per row."""
    _, rows, vocab = logits.shape
    ids = np.arange(rows, dtype=np.int32)
    launches = []
    for i in range(steps):
        launches.append(
            (
                text("sample"),
                "sample.cu",
                "llmc_sample",
                (share or (5 if grid else PARTS), grid or rows),
                512,
                0,
                dict(logits=np.ascontiguousarray(logits[i]), now=np.array([count + i], np.uint32)),
            )
        )
    arrays = dict(
        s_n=np.array([rows] * 4, np.int32),
        s_seq_of=ids,
        s_out_row=ids,
        slot_of=ids,
        slot=slots,
        counts=counts,
        logits=np.ascontiguousarray(logits[0]),
        work=np.zeros((rows, vocab, 2), np.float32),
        part=np.zeros((rows, PARTS, 8)),
        row_done=np.zeros(rows, np.uint32),
        all_done=np.zeros(1, np.uint32),
        picked=np.zeros((RING, rows), PICKED),
        count=np.array([count], np.uint32),
        now=np.array([count], np.uint32),
    )
    if masks is not None:
        at, bits = masks
        arrays["mask_at"] = np.array(at, np.int32)
        packed = np.packbits(np.pad(bits, ((0, 0), (0, -vocab % 32))), axis=1, bitorder="little")
        arrays["mask"] = np.ascontiguousarray(packed).view(np.uint32)
    return H.submit(
        arch,
        mode,
        seed,
        4,
        job(
            arrays,
            [],
            (0, 0, 1, vocab, rows, 16),
            launches,
            ["picked", "slot", "counts", "count", "row_done", "all_done"],
        ),
    )


CASES = [
    dict(),
    dict(temperature=1.0),
    dict(temperature=0.7, top_k=40),
    dict(temperature=1.3, top_k=5),
    dict(temperature=1.0, top_p=0.9),
    dict(temperature=0.8, top_p=0.3),
    dict(temperature=1.0, top_k=300, top_p=0.95),
    dict(temperature=1.5, min_p=0.02),
    dict(temperature=1.0, top_p=0.97, min_p=0.05),
    dict(temperature=1.0, top_k=700, top_p=0.8),
    dict(temperature=1.0, top_p=0.0001),
    dict(repetition_penalty=1.3),
    dict(temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.4),
    dict(temperature=1.1, top_k=20, top_p=0.8, min_p=0.1, presence_penalty=2.0),
    dict(temperature=30.0, top_p=0.9),
    dict(temperature=0.01, top_k=1),
]


# flat and peaked logits, with many ties; a vocabulary that fills the last CTA and one that does not
@pytest.mark.parametrize("vocab,spread,ties", [(1000, 3.0, 0), (20011, 6.0, 0), (2500, 1.0, 1)])
def test_samples_equal_the_cpus(cpu, vocab, spread, ties):
    rng, steps, rows = np.random.default_rng(vocab), 1 if vocab > 9999 else 2, len(CASES)
    logits = (rng.standard_normal((steps, rows, vocab)) * spread).astype(np.float32)
    logits[:, 1::3] -= 400  # a maximum initialised to 0 would leave no candidate
    if ties:
        logits = np.round(logits * 2) / np.float32(2)
    slots, counts, samplers = np.zeros(rows, SLOT), np.zeros((rows, vocab), np.int32), []
    for o, case in enumerate(CASES):
        slots[o]["repetition_penalty"] = 1
        for k, v in case.items():
            slots[o][k] = v
        slots[o]["penalties"] = any("penalty" in k for k in case)
        slots[o]["seed"] = 77 + o + vocab
        prompt = rng.integers(0, vocab, 20)
        counts[o, prompt] |= SEEN
        samplers.append(Sampler(cpu, vocab, [int(i) for i in prompt], seed=77 + o + vocab, **case))
        if o % 2:
            logits[:, o, int(prompt[0])] = logits[:, o].max() + 1
    want = [[s.pick(logits[i, o]) for o, s in enumerate(samplers)] for i in range(steps)]
    for s in samplers:
        cpu.llmc_sampler_close(s.h)
    for mode, seed in H.RUNS if vocab == 1000 else H.RUNS[:1]:
        which = [0, 3, 8, 12] if mode == "check" else list(range(rows))
        got = sample(
            logits[:, which],
            slots[which],
            counts[which],
            mode,
            seed,
            steps,
            grid=3,
            arch="sm_90a" if mode == "check" else "sm_75",
        )
        out = counts[which]
        for i in range(steps):
            picked = got[i]["picked"][(6 + i) % RING]
            for k, o in enumerate(which):
                assert (picked[k]["status"], picked[k]["id"]) == want[i][o][:2], (
                    f"step {i}, {CASES[o]}"
                )
                assert abs(picked[k]["logprob"] - want[i][o][2]) < 2e-5 * max(1, abs(want[i][o][2]))
                out[k, want[i][o][1]] += slots[o]["penalties"]
            assert (got[i]["slot"]["last"] == picked["id"]).all() and (
                got[i]["slot"]["n_pick"] == i + 1
            ).all()
            assert (
                got[i]["count"][0] == 7 + i
                and not got[i]["row_done"].any()
                and not got[i]["all_done"].any()
            )
        assert (got[-1]["counts"] == out).all()


def test_masks_leave_what_is_allowed(cpu):
    """Other tokens count as minus infinity, except for log probabilities, which are the model's.
    The vocabulary ends within a word of a mask."""
    rng, vocab = np.random.default_rng(11), 1003
    cases = [c for c in CASES if c != dict(temperature=0.01, top_k=1)]
    rows = len(cases)
    logits = (rng.standard_normal((1, rows, vocab)) * 4).astype(np.float32)
    bits = rng.random((4, vocab)) < np.array([[0.5], [0.02], [0], [0.9]])
    bits[2, 1002] = True  # one token, the last
    at = [[-1, 0, 1, 2, 3, 1][o % 6] for o in range(rows)]
    slots, counts, want = np.zeros(rows, SLOT), np.zeros((rows, vocab), np.int32), []
    for o, case in enumerate(cases):
        slots[o]["repetition_penalty"] = 1
        for k, v in case.items():
            slots[o][k] = v
        slots[o]["penalties"] = any("penalty" in k for k in case)
        slots[o]["seed"] = 5 + o
        prompt = rng.integers(0, vocab, 20)
        counts[o, prompt] |= SEEN
        sampler = Sampler(cpu, vocab, [int(i) for i in prompt], seed=5 + o, **case)
        held = logits[0, o].copy()
        if at[o] >= 0:
            held[~bits[at[o]]] = -np.inf
        want.append(sampler.pick(held)[:2])
        cpu.llmc_sampler_close(sampler.h)
    for mode, seed in H.FAST:
        (got,) = sample(logits, slots, counts, mode, seed, grid=3, masks=(at, bits))
        picked = got["picked"][6 % RING]
        for o in range(rows):
            assert (picked[o]["status"], picked[o]["id"]) == want[o], cases[o]
            v = logits[0, o].astype(np.float64)
            assert (
                abs(
                    picked[o]["logprob"]
                    - (v[want[o][1]] - v.max() - np.log(np.exp(v - v.max()).sum()))
                )
                < 1e-4
            )
            assert at[o] < 0 or bits[at[o], picked[o]["id"]]
    logits[0, 1, ~bits[0]] = np.nan  # a NaN is reported, allowed or not
    (got,) = sample(
        logits[:, :4],
        slots[:4],
        counts[:4],
        *H.RUNS[0],
        masks=([-1, 0, -1, 0], np.zeros((1, vocab), bool)),
    )
    assert got["picked"][6 % RING]["status"].tolist() == [0, 1, 0, 2]


# parts with two rounds of loads, parts with a few logits, and empty parts
@pytest.mark.parametrize("rows,vocab", [(1, 131101), (9, 20011), (64, 509)])
def test_greedy_rows_are_the_same_however_they_are_shared(rows, vocab):
    rng, piece = np.random.default_rng(vocab), -(-vocab // PARTS)
    logits = (
        rng.standard_normal((1, rows, vocab)) * 4 + rng.integers(-400, 400, rows)[:, None]
    ).astype(np.float32)
    # ties within a thread, between neighbours, between two warps, at the ends, between two parts
    for o in range(rows):
        first = int(rng.integers(vocab)) if o % 3 else 0
        second = min(first + [512, 1, 32, vocab, piece, 4096][o % 6], vocab - 1)
        logits[0, o, [first, second]] = logits[0, o].max() + rng.integers(0, 2) * 3
    slots = np.zeros(rows, SLOT)
    slots["repetition_penalty"] = 1
    v = logits[0].astype(np.float64)
    top = v.max(axis=1)
    want = -np.log(np.exp(v - top[:, None]).sum(axis=1))
    said = []
    for share, run in [(PARTS, H.RUNS[0]), (5, H.FAST[-1]), (2, H.FAST[0])] + [
        (1, r) for r in H.RUNS[1:] if vocab < 1000
    ]:
        (got,) = sample(logits, slots, np.zeros((rows, vocab), np.int32), *run, share=share)
        picked = got["picked"][6 % RING]
        assert (picked["id"] == v.argmax(axis=1)).all() and not picked["status"].any()
        assert np.abs(picked["logprob"] - want).max() < 2e-6
        assert got["count"][0] == 7 and not got["row_done"].any() and not got["all_done"].any()
        said.append(picked["logprob"].tobytes())
    assert len(set(said)) == 1


def test_nan_is_found_at_any_position():
    vocab, at = 70001, [0, 31, 512, 1100, 1536, 2187, 2188, 33333, 69999, 70000]
    logits = np.random.default_rng(5).standard_normal((1, len(at) + 1, vocab)).astype(np.float32)
    for o, i in enumerate(at):
        logits[0, o, i] = np.nan
    (got,) = sample(
        logits,
        np.zeros(len(at) + 1, SLOT),
        np.zeros((len(at) + 1, vocab), np.int32),
        *H.RUNS[0],
        share=2,
    )
    assert got["picked"][6 % RING]["status"].tolist() == [1] * len(at) + [0]


@pytest.mark.parametrize("mode,seed", [H.RUNS[0], H.RUNS[-1]])
def test_rows_that_cannot_be_sampled_are_reported(mode, seed):
    vocab, rows = 700, 6
    logits = np.random.default_rng(1).standard_normal((1, rows, vocab)).astype(np.float32)
    logits[0, 0, 699] = np.nan
    logits[0, 1] = -np.inf
    logits[0, 2, 5] = np.inf
    logits[0, 3, :] = -np.inf
    logits[0, 3, 333] = -5
    slots = np.zeros(rows, SLOT)
    slots["temperature"] = [0, 1, 1, 1, 1, 0]
    slots["repetition_penalty"], slots["last"], slots["seed"] = 1, 42, 3
    slots["penalties"][4] = 1
    slots["presence_penalty"][4] = np.nan  # a NaN penalty is reported like NaN logits
    counts = np.zeros((rows, vocab), np.int32)
    counts[4, 9] = 1
    (got,) = sample(logits, slots, counts, mode, seed, grid=2)
    picked = got["picked"][6 % RING]
    assert picked["status"].tolist() == [1, 2, 0, 0, 1, 0]
    assert picked["id"][:4].tolist() == [0, 0, 5, 333] and picked["id"][5] == logits[0, 5].argmax()
    assert picked["logprob"][2] == 0 and abs(picked["logprob"][3]) < 1e-6
    assert got["slot"]["last"].tolist() == [42, 42, 5, 333, 42, picked["id"][5]] and got["slot"][
        "n_pick"
    ].tolist() == [0, 0, 1, 1, 0, 1]
    assert got["count"][0] == 7


def test_a_temperature_that_is_all_but_zero_is_greedy(cpu):
    """The largest logit, negative, divided by the temperature is beyond the range of a float."""
    cases = [dict(), dict(top_k=5), dict(top_p=0.5), dict(min_p=0.1)]
    rows, vocab = len(cases), 300
    logits = (np.random.default_rng(4).standard_normal((1, rows, vocab)) - 50).astype(np.float32)
    slots = np.zeros(rows, SLOT)
    for o, case in enumerate(cases):
        for k, v in {"temperature": 1e-40, "repetition_penalty": 1, **case}.items():
            slots[o][k] = v
        sampler = Sampler(cpu, vocab, [], temperature=1e-40, **case)
        assert sampler.pick(logits[0, o])[:2] == (0, logits[0, o].argmax())
        cpu.llmc_sampler_close(sampler.h)
    (got,) = sample(logits, slots, np.zeros((rows, vocab), np.int32), *H.RUNS[0])
    assert (got["picked"][6 % RING]["id"] == logits[0].argmax(axis=1)).all()


def test_a_step_without_outputs_ends_too():
    arrays = dict(
        s_n=np.array([4, 0, 1, 0], np.int32),
        count=np.array([3], np.uint32),
        now=np.array([3], np.uint32),
    )
    for mode, seed in H.RUNS[1:]:
        (got,) = H.submit(
            "sm_90a",
            mode,
            seed,
            4,
            job(
                arrays,
                [],
                (0, 0, 1, 100, 1, 16),
                [(text("sample"), "sample.cu", "llmc_sample", (PARTS, 2), 512, 0, {})],
                ["count"],
            ),
        )
        assert got["count"][0] == 4


def test_real_compiler():
    found = H.nvrtc_tool()
    if found is None:
        pytest.skip("no libnvrtc")
    lib, tool = found
    todo = [(f"{n}.cu", text(n), a) for n in ("begin", "sample") for a in ("sm_75", "sm_90a")]
    for r in tool.compile_all(lib, todo, [H.TEMPLATES]):
        assert tool.bad(r) is None, f"{r['name']} {r['arch']}: {tool.bad(r)}\n{r['log']}"
