"""Check that mistakes in kernels of MoE, latent attention, recurrent states, parallel residual
streams and scale factors are found. The kernel source in an artifact is changed in one line, and
`llmc verify` must then fail. A change that passes would be a gap in the tests."""

import os
import re
import shutil
import subprocess

import pytest

from golden_run import LLMC, weights
from planted import loose

EVERY = "LLMC_CHECK_ALL" in os.environ  # make check-all
LATENT, MIXED, CHOOSES = "deepseek_v2-groups", "qwen2_moe-plain", "deepseek_v3-v32-chooses"
DELTA, SCAN, CHANNELS, STREAMS, INPUTS, GAINS = (
    "qwen3_next-plain",
    "nemotron_h-plain",
    "jamba-plain",
    "gemma3n-plain",
    "llama4-plain",
    "gemma4-experts",
)

# op, golden, file, code, replacement; the comment describes the planted mistake. By default only the
# first golden of each op runs
MUTATIONS = [
    (
        "norm_route",
        MIXED,
        "norm_route",
        r"logits \+ t \* LOGITS, bias",
        "logits + t * LOGITS + 1, bias",
    ),  # adds 1 to all logits of experts
    (
        "norm_route",
        LATENT,
        "norm_route",
        r"(const Route r = \{.*), ([^,]+), ([^,]+) \};",
        r"\1, 1.05f * (\2), \3 };",
    ),  # another scale of the weights
    (
        "norm_route",
        MIXED,
        "cpu/moe/route.h",
        r"choice\[e\] > choice\[best\]",
        "choice[e] < choice[best]",
    ),  # selects the worst experts
    (
        "norm_moe_glu",
        MIXED,
        "norm_moe_glu",
        r"ARG_gate, \(int64_t\)e \* WIDTH",
        "ARG_gate, (int64_t)(E - 1 - e) * WIDTH",
    ),  # reads the weights of another expert
    (
        "norm_moe_glu",
        LATENT,
        "norm_moe_glu",
        r": mm_units\(shared\)\)",
        ": 0)",
    ),  # omits the shared expert
    (
        "norm_moe_glu",
        LATENT,
        "norm_moe_glu",
        r"choice\[t\] % TOP_K : TOP_K",
        "TOP_K - 1 - choice[t] % TOP_K : TOP_K",
    ),  # reverses the order of the selected experts
    (
        "moe_down_add",
        MIXED,
        "moe_down_add",
        r"\(TOP_K \+ MIX\) \+ k\]",
        "(TOP_K + MIX) + (k + 1) % TOP_K]",
    ),  # uses the weight of the next expert
    (
        "moe_down_add",
        LATENT,
        "moe_down_add",
        r"if \(!ARG_s_down\)",
        "if (ARG_s_down)",
    ),  # omits the shared expert
    (
        "moe_down_add",
        MIXED,
        "moe_down_add",
        r"MIX \? ARG_weight\[[^;]*;",
        "1;",
    ),  # omits the gate of the shared expert
    (
        "mla_query",
        LATENT,
        "mla_query",
        r"page, s->pos\[row\], LATENT",
        "page, s->pos[row] + 1, LATENT",
    ),  # writes to the next position
    (
        "mla_query",
        LATENT,
        "mla_query",
        r"rope_rotate\(ROPE_\w+, x \+ NOPE",
        "rope_rotate(ROPE_half, x + NOPE",
    ),  # rotates a query in halves
    (
        "mla_query",
        LATENT,
        "mla_query",
        r"rope_rotate\(ROPE_\w+, x \+ RANK",
        "rope_rotate(ROPE_half, x + RANK",
    ),  # rotates a key in halves
    (
        "mla_query",
        LATENT,
        "mla_query",
        r"norm_rms\(c, RANK, kvn, 0",
        "norm_rms(c, RANK, kvn, 1",
    ),  # changes the norm of the latent
    (
        "mla_query",
        LATENT,
        "mla_query",
        r"k_b, RANK, u \* NOPE",
        "k_b, RANK, (HEADS - 1 - u) * NOPE",
    ),  # uses the weights of another head
    (
        "mla_attend",
        LATENT,
        "cpu/mla/mla.h",
        r"s->pos\[row\] \+ 1 \}",
        "s->pos[row] }",
    ),  # a row does not attend to itself
    (
        "mla_attend",
        CHOOSES,
        "cpu/mla/mla.h",
        r"sel \? sel\[pos0 \+ j\]",
        "sel ? pos0 + j",
    ),  # attends to the first positions instead of the selected ones
    (
        "index_append",
        CHOOSES,
        "index_append",
        r"s->pos\[row\]",
        "s->pos[row] / 2",
    ),  # writes to another position
    (
        "index_select",
        CHOOSES,
        "cpu/attention/indexer.h",
        r"vf_max\(vf_load\(s \+ h \* KV_PAGE \+ j\), vf_set1\(0\)\)",
        "vf_load(s + h * KV_PAGE + j)",
    ),  # keeps dot products below 0
    (
        "index_select",
        CHOOSES,
        "cpu/attention/indexer.h",
        r"c->score\[i\] < c->bar \|\|",
        "c->score[i] > c->bar ||",
    ),  # selects the worst positions
    (
        "index_select",
        CHOOSES,
        "index_select",
        r"indexer\(\), d->q \+ \(int64_t\)row",
        "indexer(), d->q + (int64_t)(row / 2)",
    ),  # uses the query of another row
    (
        "mla_value",
        LATENT,
        "mla_value",
        r"ARG_v_b, \(int64_t\)u \* V - skip, V",
        "ARG_v_b, 0, V",
    ),  # always uses the weights of the first head
    (
        "conv1d",
        DELTA,
        "conv1d",
        r"tap\[j\], seen\[j\]",
        "tap[j], seen[TAPS - 1 - j]",
    ),  # reads the window in the opposite order
    (
        "conv1d",
        DELTA,
        "conv1d",
        r"seen\[j\] = seen\[j \+ 1\]",
        "seen[j] = seen[TAPS - 1]",
    ),  # keeps only the last row of the window
    (
        "conv1d",
        SCAN,
        "conv1d",
        r"b \? share_get\(b \+ at, n\)",
        "0 ? share_get(b + at, n)",
    ),  # omits the bias
    (
        "delta_rule",
        DELTA,
        "cpu/ssm/delta_rule.h",
        r" - seen\[c\]\);",
        ");",
    ),  # adds the value instead of correcting by it
    (
        "delta_rule",
        DELTA,
        "cpu/ssm/delta_rule.h",
        r"h / \(d\.v_heads / d\.k_heads\)",
        "h % d.k_heads",
    ),  # uses another key head
    (
        "delta_rule",
        DELTA,
        "cpu/ssm/delta_rule.h",
        r"d\.a_log \? -vf_exp",
        "d.a_log ? vf_exp",
    ),  # lets the state grow instead of decay
    (
        "delta_rule",
        "kimi_linear-plain",
        "cpu/ssm/delta_rule.h",
        r"e\[d\.g_dim > 1 \? j : 0\]",
        "e[0]",
    ),  # uses one decay for all channels
    (
        "selective_scan",
        SCAN,
        "cpu/ssm/selective_scan.h",
        r"vf_fma\(vf_set1\(skip\), own\[i\], sum\[i\]\)",
        "sum[i]",
    ),  # omits the skip
    (
        "selective_scan",
        SCAN,
        "cpu/ssm/selective_scan.h",
        r"out = in \+ parts",
        "out = in",
    ),  # uses B instead of C
    (
        "selective_scan",
        SCAN,
        "cpu/ssm/selective_scan.h",
        r"add\[i\] = vf_set1\(d\) \* own",
        "add[i] = own",
    ),  # ignores the step size
    ("channel_scan", CHANNELS, "channel_scan", r"add = d \* u", "add = u"),  # ignores the step size
    (
        "channel_scan",
        CHANNELS,
        "channel_scan",
        r"vf_softplus\(",
        "(vf)(",
    ),  # omits the softplus of the step size
    (
        "channel_scan",
        CHANNELS,
        "channel_scan",
        r"vf_set1\(c\[j\]\)",
        "vf_set1(b[j])",
    ),  # uses B instead of C
    (
        "norm_gate",
        DELTA,
        "norm_gate",
        r"share_get\(z \+ j, n\)",
        "share_get(y + j, n)",
    ),  # uses the output as its own gate
    (
        "norm_gate",
        SCAN,
        "norm_gate",
        r"w \+ i % \d+ \* \d+",
        "w",
    ),  # uses the weights of the first group for all groups
    (
        "gate_mul",
        DELTA,
        "gate_mul",
        r"share_get\(gate \+ i, n\)",
        "share_get(x + i, n)",
    ),  # uses the input as its own gate
    (
        "stream_add",
        STREAMS,
        "stream_add",
        r"i % GROUPS >= \d+",
        "i % GROUPS >= 0",
    ),  # also adds to the first stream
    ("stream_correct", STREAMS, "stream_correct", r"1 \+ m\[i\]", "m[i]"),  # omits the 1 of 1 + m
    (
        "stream_mix",
        STREAMS,
        "stream_mix",
        r"m\[i \* GROUPS \+ j\]",
        "m[j * GROUPS + i]",
    ),  # transposes the matrix
    (
        "gaussian_topk",
        STREAMS,
        "gaussian_topk",
        r"norm_squares\(x, WIDTH, mean\)",
        "norm_squares(x, WIDTH, 0)",
    ),  # computes the deviation from 0
    (
        "match_rms",
        STREAMS,
        "match_rms",
        r"f32_sqrt\(target\)",
        "target",
    ),  # uses the square of the target
    (
        "pos_scale",
        INPUTS,
        "pos_scale",
        r"s->pos\[t\]",
        "s->pos[t] / 2",
    ),  # the factor grows half as fast
    ("expert_input", INPUTS, "expert_input", r"x\[i\] \* weight\[t\]", "x[i]"),  # omits the weight
    (
        "expert_input",
        INPUTS,
        "expert_input",
        r"one\[t\] = 1",
        "one[t] = weight[t]",
    ),  # applies the weight twice
    (
        "expert_gain",
        GAINS,
        "expert_gain",
        r"w\[id\[i\]\]",
        "w[0]",
    ),  # uses the factor of another expert
]
# goldens of make check; ops whose golden covers another op as well are left to make check-all
SAMPLE = (
    "norm_route",
    "norm_moe_glu",
    "mla_query",
    "mla_attend",
    "index_select",
    "delta_rule",
    "selective_scan",
    "channel_scan",
    "stream_mix",
    "expert_input",
    "expert_gain",
)
CASES = [
    m
    for i, m in enumerate(MUTATIONS)
    if EVERY or m[0] in SAMPLE and m[0] not in [x[0] for x in MUTATIONS[:i]]
]


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    """Return name -> (folder of the checkpoint, artifact, arguments of verify)."""
    made = {}

    def get(name):
        if name not in made:
            g = weights.Golden(name)
            folder = tmp_path_factory.mktemp(name)
            g.build(folder)
            sets = [
                a
                for k, v in (
                    {"kv.dtype": "f32", "attention.form": "absorbed"}
                    if name == LATENT
                    else {"kv.dtype": "f32"} | g.set
                ).items()
                for a in ("--set", f"{k}={v}")
            ]
            subprocess.run(
                [
                    LLMC,
                    "compile",
                    str(folder),
                    "-o",
                    str(folder / "artifact"),
                    "--arch",
                    "generic",
                    "-q",
                    *sets,
                ],
                check=True,
            )
            args = [
                "-w",
                str(folder),
                "--arch",
                "generic",
                "-q",
                "--tokens",
                ",".join(map(str, g.prompt)),
            ]
            made[name] = folder, folder / "artifact", args
            assert verify(folder / "artifact", args).returncode == 0
        return made[name]

    return get


def verify(artifact, args):
    return subprocess.run(
        [LLMC, "verify", str(artifact), "--trust-artifact", *args],
        capture_output=True,
        text=True,
        env=os.environ | {"LLMC_KERNEL_CFLAGS": "-O1 -w"},
    )


@pytest.mark.parametrize("op,golden,file,old,new", CASES, ids=[f"{m[0]}-{m[4]}" for m in CASES])
def test_a_mistake_shows(artifacts, tmp_path, op, golden, file, old, new):
    _, artifact, args = artifacts(golden)
    changed = tmp_path / "artifact"
    shutil.copytree(artifact, changed)
    found = 0
    for f in sorted((changed / "kernels").rglob("*")):
        name = str(f.relative_to(changed / "kernels"))
        if f.is_file() and (
            name == file or re.match(file + r"_(mixed|decode|both)\.|" + file + r"\.", name)
        ):
            text, n = re.subn(loose(old), new, f.read_text())
            f.write_text(text)
            found += n
    assert found, "the text that is to be changed is no longer there"
    r = verify(changed, args)
    assert r.returncode == 3, (r.returncode, r.stdout, r.stderr)
