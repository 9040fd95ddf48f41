"""Models that read images: the rows of a vision tower and the logits of a language model that takes them, against
transformers on tiny models (tests/golden/make_vision.py)."""

import ctypes as C
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import llmc
from llmc import _ffi
from cuda_emu import environment
from golden_run import LLMC, weights
from processor import RUNS

CASES = weights.cases(weights.VISION)
EXACT, ROUNDED = 2e-5, 5e-2  # relative to the range; bf16 weights on a GPU
CPU = {
    "smolvlm-plain": "generic v3 v4",
    "smolvlm-idefics3-bf16": "v3 v4 amx",
    "llava-bf16": "v3",
    "qwen2_vl-bf16": "v3",
    "qwen2_5_vl-bf16": "v3 amx",
    "qwen3_vl-bf16": "v3",
    "pixtral-bf16": "v3",
    "gemma3-bf16": "v3 v4 amx",
    "gemma3-narrow": "v3",
    "internvl-bf16": "v3",
}
GPU = {
    "smolvlm-plain": ("sm_90a",),
    "smolvlm-idefics3-bf16": ("sm_75", "sm_80", "sm_90a", "sm_120a"),
    "llava-bf16": ("sm_80",),
    "qwen2_vl-bf16": ("sm_90a",),
    "qwen2_5_vl-bf16": ("sm_75", "sm_80", "sm_90a"),
    "qwen3_vl-bf16": ("sm_80",),
    "pixtral-bf16": ("sm_90a",),
    "gemma3-bf16": ("sm_80", "sm_90a"),
    "gemma3-narrow": ("sm_80",),
    "internvl-bf16": ("sm_90a",),
}


def side(case):
    """Patches on a side of the square that becomes one row"""
    if "mm_tokens_per_image" in case.config:
        return round((case.grids[0][0] ** 2 / case.config["mm_tokens_per_image"]) ** 0.5)
    if "downsample_ratio" in case.config:
        return round(1 / case.config["downsample_ratio"])
    for config in case.config["vision_config"], case.config:
        for key in "spatial_merge_size", "scale_factor":
            if key in config:
                return config[key]
    return 1


def model(path, case, device="ref", arch=None, **more):
    case.build(path)
    given = {"kv.dtype": "f16" if device == "cuda" and case.dtype == "bf16" else "f32"}
    given |= more.pop("set", {})
    return llmc.Model(str(path), device=device, arch=arch, set=given, **more)


def hat(n, side):
    """Bilinear weights [n, side] of a row of `side` values that is resized to n, corners on corners"""
    at = np.linspace(0, side - 1, n)[:, None] if n > 1 else np.zeros((1, 1))
    return np.maximum(1 - np.abs(at - np.arange(side)), 0)


def position_weights(case, p, h, w, at):
    """Rows of patches followed by the weights of a table of positions that is resized"""
    table = case.config["vision_config"].get("num_position_embeddings")
    if not table:
        return p
    side = round(table**0.5)
    weights = hat(h, side)[at // w][:, :, None] * hat(w, side)[at % w][:, None]
    return np.hstack([p, weights.reshape(len(p), -1)]).astype(np.float32)


def windows(case, h, w):
    """Squares of patches of an image in the order of their windows, and the window of each"""
    v, n = case.config["vision_config"], side(case)
    most = v["window_size"] // n // v["patch_size"]
    y, x = np.divmod(np.arange(h * w // n**2), w // n)
    of = y // most * (w // n) + x // most
    order = np.argsort(of, kind="stable")
    return order, np.unique(of[order], return_inverse=True)[1]


def images(session, case):
    """Rows of all images, packed into one step"""
    chunks, given, orders, first = [], [], [], 0
    for (p, at), (h, w) in zip(case.patches(side(case)), case.grids):
        p = position_weights(case, p, h, w, at)
        n_out, more = len(p) // side(case) ** 2, {}
        if case.family == "qwen2_5_vl":
            order, window = windows(case, h, w)
            squares = np.arange(len(p)).reshape(n_out, -1)[order].ravel()
            p, at = np.ascontiguousarray(p[squares]), at[squares]
            more = dict(window=np.repeat(window, side(case) ** 2).tolist())
            orders.append(first + np.argsort(order))
            first += n_out
        row, col = at // w, at % w
        if case.family in ("llava", "internvl"):  # a class row
            p, at, row, col = (
                np.vstack([0 * p[:1], p]),
                *(np.append(0, a) for a in (1 + at, row, col)),
            )
        chunks.append((session.seq(), [0] * len(p), n_out))
        pos = [0] * len(p), row.tolist(), col.tolist()
        given.append(dict(row=p, pos=pos, number=at.tolist(), **more))
    rows = np.array(session.forward_images(chunks, given))
    return rows[np.concatenate(orders)] if orders else rows


def positions(case):
    """Index of each token's row; -1: it has none"""
    is_image = np.array(case.ids) == case.image_token
    return np.where(is_image, np.cumsum(is_image) - 1, -1).tolist()


def rope_positions(case):
    """Time, row and column of each token: an image has one time and is as long as its longer side"""
    out, grids, i, at = [], iter(case.grids), 0, 0
    while i < len(case.ids):
        if case.ids[i] != case.image_token:
            out.append((at, at, at))
            i, at = i + 1, at + 1
            continue
        h, w = (n // side(case) for n in next(grids))
        out += [(at, at + y, at + x) for y in range(h) for x in range(w)]
        i, at = i + h * w, at + max(h, w)
    return out


def chunks(case, at, n):
    """Bounds of chunks of n tokens. If the tokens of an image attend to each other, an image is a chunk."""
    if case.family != "gemma3":
        return [(i, i + n) for i in range(0, len(at), n)]
    out, i = [], 0
    while i < len(at):
        same = [(a >= 0) == (at[i] >= 0) for a in at[i:]] + [False]
        run = same.index(False)
        out.append((i, i + (run if at[i] >= 0 else min(run, n))))
        i = out[-1][1]
    return out


def read(session, case, rows, chunk=10**6):
    """chunk: tokens per step. The last step of a model with three positions has none: they continue."""
    at, out, seq = positions(case), [], session.seq()
    three = case.family.startswith("qwen") and rope_positions(case)
    for i, end in chunks(case, at, chunk):
        ids = case.ids[i:end]
        given = dict(row=rows, at=at[i:end])
        if three and (i == 0 or case.image_token in case.ids[i:]):
            given["pos"] = list(zip(*three[i:end]))
        out.append(np.array(session.forward_images([(seq, ids, len(ids))], [given])))
    session.free(seq)
    return np.concatenate(out)


def check(got, want, tolerance=EXACT):
    assert got.shape == want.shape and np.isfinite(got).all()
    error = np.abs(got - want).max() / np.ptp(want)
    assert error <= tolerance, error


def whole(path, case, tolerance=EXACT, **how):
    """Pixels to rows, and these to logits, in one step and in chunks that cut images."""
    with model(path, case, tower=True, **how).session(seqs=len(case.grids)) as s:
        rows = images(s, case)
    check(rows, case.rows, tolerance)
    with model(path, case, set={"vision.part": "rows"}, **how).session(n_out=512) as s:
        got = read(s, case, rows)
        check(got, case.logits, tolerance)
        # a chunk of one token is a decode step
        check(read(s, case, rows, 3), case.logits, tolerance)


@pytest.mark.parametrize("name", CASES)
def test_reference(name, tmp_path):
    whole(tmp_path, weights.Vision(name))


@pytest.mark.parametrize(
    "name,arch", [(n, a) for n, archs in CPU.items() for a in archs.split() if RUNS[a]]
)
def test_processors(name, arch, tmp_path):
    whole(tmp_path, weights.Vision(name), device="cpu", arch=arch)


@pytest.mark.parametrize("name,arch", [(n, a) for n, archs in GPU.items() for a in archs])
def test_emulated_gpus(name, arch, tmp_path, monkeypatch):
    for k, v in environment(arch, seed=3).items():
        monkeypatch.setenv(k, v)
    case = weights.Vision(name)
    whole(tmp_path, case, EXACT if case.dtype == "f32" else ROUNDED, device="cuda")


@pytest.mark.parametrize("name", [c for c in CASES if c.endswith("-plain")])
def test_text_alone(name, tmp_path):
    """A model that was opened without images computes the same logits for text as one that was
    opened with them."""
    case = weights.Vision(name)
    ids = [t for t in case.ids if t != case.image_token]
    with model(tmp_path, case).session(n_out=64, seqs=2) as s:
        plain = np.array(s.forward([(s.seq(), ids, len(ids))]))
        with pytest.raises(llmc.Error, match="opened without images"):
            s.forward_images([(s.seq(), ids, 1)], [dict(row=case.rows, at=[0] * len(ids))])
    with model(tmp_path, case, set={"vision.part": "rows"}).session(n_out=64, seqs=2) as s:
        assert np.array_equal(np.array(s.forward([(s.seq(), ids, len(ids))])), plain)
        assert np.array_equal(np.array(s.forward_images([(s.seq(), ids, len(ids))], [{}])), plain)


class ImagePart(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("row", C.POINTER(C.c_float)),
        ("n_row", C.c_int32),
        ("key", C.c_uint64),
        ("height", C.c_int32),
        ("width", C.c_int32),
    ]


@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_an_engine_continues_after_images(device, tmp_path, monkeypatch):
    """Requests with images in one batch, and again with a cached prefix, generate what a session does
    that is given the positions of the prompt."""
    case, n = weights.Vision("qwen2_vl-plain"), 5
    case.ids, case.grids = case.ids * 2, case.grids * 2
    rows = np.ascontiguousarray(np.vstack([case.rows] * 2), np.float32)
    parts, at = (ImagePart * len(case.grids))(), 0
    for i, (h, w) in enumerate(case.grids):
        row = rows[at:].ctypes.data_as(C.POINTER(C.c_float))
        parts[i] = ImagePart(C.sizeof(ImagePart), row, h * w // 4, i % 3 + 1, h // 2, w // 2)
        at += h * w // 4
    m = model(tmp_path, case, device, set={"vision.part": "rows"})
    with m.session() as s:
        want, seq = [], s.seq()
        given = dict(row=rows, at=positions(case), pos=list(zip(*rope_positions(case))))
        logits = s.forward_images([(seq, case.ids, 1)], [given])
        for _ in range(n):
            want.append(int(np.argmax(np.array(logits)[-1])))
            logits = s.forward([(seq, want[-1:], 1)])
    given = dict(images=C.cast(parts, C.c_void_p), n_images=len(parts))
    with m.engine(seqs=3) as e:
        monkeypatch.setattr(_ffi, "Request", partial(_ffi.Request, **given))
        ask = dict(max_tokens=n, temperature=0, ignore_eos=True)
        first = [e.submit(case.ids, **ask) for _ in range(2)]
        assert [list(r.wait()["tokens"]) for r in first] == [want] * 2
        assert list(e.submit(case.ids, **ask).wait()["tokens"]) == want
        assert e.stats()["prefix_hits"] > 0
        parts[0].width += 1
        with pytest.raises(
            llmc.Error, match="image 0 has 6 rows, its height and width are 2 and 4"
        ):
            e.submit(case.ids, **ask)


@pytest.mark.parametrize("name", [c for c in CASES if c.endswith("-plain")])
def test_a_tower_has_no_tokens(name, tmp_path):
    """Published folders name the tokens of the language model in two files."""
    case = weights.Vision(name)
    tokens = dict(eos_token_id=[1, 106], bos_token_id=2)
    case.config |= tokens
    case.build(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(tokens))
    assert llmc.Model(str(tmp_path), tower=True, no_weights=True)["text.eos"] == "[]"


def test_a_published_configuration(tmp_path):
    folder = os.path.join(weights.HERE, "config-fixtures", "gemma-3-4b-it")
    m = llmc.Model(folder, tower=True, no_weights=True)
    assert (m["n_layers"], m["vision.merge"], m["vision.out"]) == ("27", "16", "2560")


def test_exact_pages_need_a_causal_mask():
    """A wrapper whose images attend to themselves is a causal model if it is opened for text."""
    folder = os.path.join(weights.HERE, "config-fixtures", "gemma-3-4b-it")
    exact = {"kv.dtype": "int4", "kv.k": "int4c", "kv.window": "32", "kv.sinks": "4"}
    m = llmc.Model(folder, no_weights=True, set=exact)
    assert m["attention.mask"] == "images" and m["kv.window"] == "32"
    with pytest.raises(llmc.Error, match="kv.window = 32: not supported with mask images"):
        llmc.Model(folder, no_weights=True, set=exact | {"vision.part": "rows"})


def test_an_image_is_one_chunk(tmp_path, monkeypatch):
    """Images whose tokens attend to each other are refused if a chunk has no space for them."""
    case = weights.Vision("gemma3-plain")
    at, first = positions(case), case.ids.index(case.image_token)
    m = model(tmp_path, case, "cpu", set={"vision.part": "rows"})
    with m.session(n_out=64) as s, pytest.raises(llmc.Error, match="4 of 5 tokens have a row"):
        given = dict(row=case.rows, at=at[first - 1 : first + 4])
        s.forward_images([(s.seq(), case.ids[first - 1 : first + 4], 1)], [given])
    row = np.ascontiguousarray(case.rows, np.float32)
    part = ImagePart(
        C.sizeof(ImagePart), row.ctypes.data_as(C.POINTER(C.c_float)), len(row), 1, 0, 0
    )
    given = dict(images=C.cast(C.pointer(part), C.c_void_p), n_images=1)
    with m.engine(chunk=3) as e:
        monkeypatch.setattr(_ffi, "Request", partial(_ffi.Request, **given))
        with pytest.raises(llmc.Error, match="the image is longer than a step"):
            e.submit(case.ids, max_tokens=1).wait()


def test_a_sequence_is_not_trimmed_into_an_image(tmp_path):
    """Positions of later tokens continue from those of the last image; text after it can go."""
    case = weights.Vision("qwen2_vl-plain")
    tokens, three = case.ids, rope_positions(case)
    given = dict(row=case.rows, at=positions(case), pos=list(zip(*three)))
    with model(tmp_path, case, set={"vision.part": "rows"}).session(seqs=3) as s:
        seq = s.seq()
        s.forward_images([(seq, tokens, 1)], [given])
        want = s.forward([(seq, [5, 6], 2)])
        s.trim(seq, len(tokens))
        again = s.fork(seq)
        for q in seq, again:
            for n in 1, tokens.index(case.image_token) + 1, len(tokens) - 1:
                with pytest.raises(llmc.Error, match="belong to images"):
                    s.trim(q, n)
            assert np.array_equal(s.forward([(q, [5, 6], 2)]), want)
        s.trim(seq, 0)
        text = s.forward([(seq, [5, 6], 2)])
        assert np.array_equal(text, s.forward([(s.seq(), [5, 6], 2)]))


def test_an_image_that_attends_to_itself_is_not_trimmed(tmp_path):
    """Not in a fork and not in a saved sequence. Text after the image can go."""
    case = weights.Vision("gemma3-plain")
    at = positions(case)
    runs = [(i, end) for i, end in chunks(case, at, 10**6)]
    end = max(end for i, end in runs if at[i] >= 0)
    with model(tmp_path, case, set={"vision.part": "rows"}).session(seqs=3) as s:
        seq = s.seq()
        for i, to in runs:
            if i < end:
                given = dict(row=case.rows, at=at[i:to])
                s.forward_images([(seq, case.ids[i:to], 1)], [given])
        want = s.forward([(seq, [9, 10], 2)])
        again = s.fork(seq)
        for q in seq, again, s.load(s.save(seq)):
            for n in 1, end - 1:
                with pytest.raises(llmc.Error, match=f"first {end} positions .* belong to images"):
                    s.trim(q, n)
            s.trim(q, end)
            assert np.array_equal(s.forward([(q, [9, 10], 2)]), want)
        s.trim(seq, 0)


def test_what_a_tower_refuses(tmp_path):
    case = weights.Vision("smolvlm-plain")
    (patches, at), width = case.patches(2)[0], case.config["text_config"]["hidden_size"]
    m = model(tmp_path, case, tower=True)
    assert m.info["output"] == 1 and m.info["out_width"] == width
    given = dict(row=patches, number=at.tolist())
    with m.session(seqs=2) as s:
        with pytest.raises(llmc.Error, match="pass patches"):
            s.forward([(s.seq(), [0] * 16, 4)])
        with pytest.raises(llmc.Error, match="16 patches give 3 rows, this tower merges 4"):
            s.forward_images([(0, [0] * 16, 3)], [given])
        with pytest.raises(llmc.Error, match="without `at`"):
            s.forward_images([(0, [0] * 16, 4)], [dict(row=patches, at=[0] * 16)])
    with pytest.raises(llmc.Error, match="on one rank only"):
        model(tmp_path, case, set={"vision.part": "rows", "parallel.tp": 2}, no_weights=True)


def test_windows_that_are_refused(tmp_path):
    """They are numbered from 0, adjacent, and of the tower's size at most."""
    case = weights.Vision("qwen2_5_vl-plain")
    p, _ = case.patches(2)[0]
    m = model(tmp_path, case, tower=True)
    assert (m["attention.window"], m["attention.window_layers"]) == ("16", '"0,2"')
    with m.session(context=64) as s:
        zeros, seq = [0] * len(p), s.seq()
        for window in (
            None,
            [1] * 16 + [2] * (len(p) - 16),
            [i // 17 for i in range(len(p))],
            [i // 16 if i < 40 else 0 for i in range(len(p))],
            [2 * (i // 16) for i in range(len(p))],
        ):
            given = dict(row=p, pos=(zeros,) * 3) | (dict(window=window) if window else {})
            with pytest.raises(llmc.Error, match="from 0 on, each of 16 adjacent patches"):
                s.forward_images([(seq, zeros, len(p) // 4)], [given])
    for change, message in (
        ({"attention.window": 16385}, "windows of an image have 16384 patches at most"),
        (
            {"vision.class_row": "true"},
            "vision.class_row: not supported with attention.window_kind",
        ),
    ):
        with pytest.raises(llmc.Error, match=message):
            model(tmp_path, case, tower=True, set=change, no_weights=True)
    config = tmp_path / "config.json"
    text = json.loads(config.read_text())
    for key in "window_size", "fullatt_block_indexes":
        del text["vision_config"][key]
    text["vision_config"]["depth"] = 3
    config.write_text(json.dumps(text))
    with llmc.Model(str(tmp_path), tower=True, no_weights=True) as m:  # 112 pixels; 7, 15, 23, 31
        assert (m["attention.window"], m["attention.window_layers"]) == ("784", "all")
    plain = weights.Vision("qwen2_vl-plain")
    with model(tmp_path / "plain", plain, tower=True).session() as s:
        p, _ = plain.patches(2)[0]
        given = dict(row=p, pos=([0] * len(p),) * 3, window=[0] * len(p))
        with pytest.raises(llmc.Error, match="this model has no windows"):
            s.forward_images([(s.seq(), [0] * len(p), len(p) // 4)], [given])


def test_windows_that_take_too_many_pages(tmp_path):
    """Each begins in a page of its own. This tower's windows of 2 x 2 cells have 16 rows, a column
    of them 8 of a page of 32, so a sequence's block table has five times the pages of its
    context."""
    case = weights.Vision("qwen2_5_vl-plain")
    p = case.patches(2)[0][0][:32]
    with model(tmp_path, case, tower=True).session(context=32, chunk=32, seqs=1) as s:
        seq = s.seq()

        def run(window):
            zeros = [0] * len(window)
            given = dict(row=p[: len(window)], pos=(zeros,) * 3, window=window)
            return np.array(s.forward_images([(seq, zeros, len(window) // 4)], [given]))

        want = run([0] * 16 + [1] * 16)
        for window in list(range(8)), list(range(32)):
            with pytest.raises(llmc.Error, match=f"its windows take {len(window)} KV pages"):
                run(window)
        assert np.array_equal(run([0] * 16 + [1] * 16), want)
        assert run([0, 1, 2, 3]).shape[0] == 1


def test_a_model_without_a_tower(tmp_path):
    case = weights.Golden("llama-plain" if "llama-plain" in weights.cases() else weights.cases()[0])
    case.build(tmp_path)
    with pytest.raises(llmc.Error, match="reads text only"):
        llmc.Model(str(tmp_path), tower=True, no_weights=True)
    with pytest.raises(llmc.Error, match="vision.token is -1"):
        llmc.Model(str(tmp_path), set={"vision.part": "rows"}, no_weights=True)
    case = weights.Vision("smolvlm-plain")
    case.config["model_type"] = "unknown_vl"
    case.build(tmp_path / "other")
    with pytest.raises(llmc.Error, match="images are not supported for model_type = unknown_vl"):
        llmc.Model(str(tmp_path / "other"), tower=True, no_weights=True)


@pytest.mark.parametrize("layers", [[0] * 8, [1, 0], [0, 1, 1]])
def test_layers_with_mergers_ascend(layers, tmp_path):
    """A layer has one merger, and transformers orders rows by layer, not by position in the list."""
    case = weights.Vision("qwen3_vl-plain")
    tower = case.config["vision_config"]
    tower["deepstack_visual_indexes"] = layers
    tower["depth"] = max(layers) + 1
    merger = "model.visual.deepstack_merger_list.0."
    first = {n: shape for n, shape in case.tensors.items() if n.startswith(merger)}
    assert first
    for i in range(len(layers)):
        case.tensors |= {n.replace("list.0.", f"list.{i}."): t for n, t in first.items()}
    with pytest.raises(llmc.Error, match="vision.deep: layer . follows layer ., layers must asc"):
        model(tmp_path, case, tower=True)


def test_older_names(tmp_path):
    """Names of published LLaVA checkpoints; transformers 5 saves them without vision_model."""
    case = weights.Vision("llava-plain")
    assert any(n.startswith("vision_tower.encoder.") for n in case.tensors)
    values = case.values()
    case.build(tmp_path)
    weights.write_safetensors(
        str(tmp_path / "model.safetensors"),
        {n.replace("vision_tower.", "vision_tower.vision_model."): v for n, v in values.items()},
        case.dtype,
    )
    with llmc.Model(str(tmp_path), tower=True, device="ref").session(seqs=3) as s:
        check(images(s, case), case.rows)


def test_the_token_of_images(tmp_path):
    case = weights.Vision("smolvlm-plain")
    assert model(tmp_path, case, no_weights=True)["vision.token"] == str(case.image_token)
    case.tensors = {n: s for n, s in case.tensors.items() if "vision" not in n}
    assert model(tmp_path / "text", case, no_weights=True)["vision.token"] == "-1"


RUNNABLE = [c for c in CASES if os.path.exists(os.path.join(weights.VISION, c, "run.json"))]


def runnable(path, name="smolvlm-plain"):
    """A folder with the files of an image processor, an image, and what transformers generates."""
    with open(os.path.join(weights.VISION, name, "run.json")) as f:
        want = json.load(f)
    weights.Vision(name).build(path)
    for file in "preprocessor", "processor":
        (path / f"{file}_config.json").write_text(json.dumps(want[file]))
    return path, os.path.join(weights.VISION, "image.png"), want


def run(folder, ids, *args, code=0):
    ids = ",".join(map(str, ids))
    args = ["--tokens", ids, "--show-tokens", "-n", 8, "--set", "kv.dtype=f32", "-q", *args]
    p = subprocess.run([LLMC, "run", str(folder), *map(str, args)], capture_output=True, text=True)
    assert p.returncode == code, p.stderr
    return p.stderr if code else [int(t) for t in p.stdout.split(",")]


@pytest.mark.parametrize("name", RUNNABLE)
@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_run_with_an_image(device, name, tmp_path):
    """A file to tokens: decoding, processor, tower and language model, against transformers."""
    folder, image, want = runnable(tmp_path, name)
    assert want["gap"] > 0.01
    assert run(folder, want["ids"], "--image", image, "--device", device) == want["new"]


def test_the_session_of_a_tower_grows_while_its_memory_is_read(tmp_path):
    """An image of more patches than the first session of a tower has, and llmc_tower_bytes in
    another thread, whose answers are those of the small session and of the large one."""
    folder, image, _ = runnable(tmp_path, "qwen2_vl-plain")
    path = folder / "preprocessor_config.json"
    rules = json.loads(path.read_text()) | dict(min_pixels=4 * 4 * 4097, max_pixels=4 * 4 * 5000)
    path.write_text(json.dumps(rules))
    with open(image, "rb") as f:
        data = f.read()
    lib, err, tower, out = _ffi.lib, _ffi.Error(), C.c_void_p(), C.c_void_p()
    lib.llmc_tower_open.argtypes = [C.c_void_p] * 4
    lib.llmc_tower_bytes.argtypes = lib.llmc_tower_close.argtypes = [C.c_void_p]
    lib.llmc_tower_image_close.argtypes = [C.c_void_p]
    lib.llmc_tower_read.argtypes = [C.c_void_p, C.c_char_p, C.c_size_t] + [C.c_void_p] * 3
    lib.llmc_tower_bytes.restype = C.c_int64
    text = llmc.Model(str(folder), device="cpu", set={"vision.part": "rows"}, threads=1)
    with text, text._use() as h:
        assert lib.llmc_tower_open(h, None, C.byref(tower), C.byref(err)) == 0, err.text
        try:
            seen = {lib.llmc_tower_bytes(tower)}
            with ThreadPoolExecutor(1) as pool:
                status = pool.submit(
                    lib.llmc_tower_read, tower, data, len(data), None, C.byref(out), C.byref(err)
                )
                while not status.done():
                    seen.add(lib.llmc_tower_bytes(tower))
            assert status.result() == 0, err.text
            lib.llmc_tower_image_close(out)
            seen.add(lib.llmc_tower_bytes(tower))
            assert len(seen) == 2 and min(seen) > 0
        finally:
            lib.llmc_tower_close(tower)


def test_run_explains_mistakes(tmp_path):
    folder, image, want = runnable(tmp_path / "model")
    bad = tmp_path / "bad.png"
    bad.write_bytes(open(image, "rb").read()[:60])
    on = "--device", "ref", "--image"
    assert "bad.png: " in run(folder, want["ids"], *on, bad, code=1)
    assert "the prompt has 19 image tokens, its 1 images have 20 rows" in run(
        folder, want["ids"][:-3], *on, image, code=1
    )
    assert "exclude each other" in run(folder, want["ids"], *on, image, "--logits", "x", code=1)
    text = weights.Golden("llama-gqa" if "llama-gqa" in weights.cases() else weights.cases()[0])
    text.build(tmp_path / "text")
    assert "reads text only" in run(tmp_path / "text", [1], *on, image, code=1)
