/* Spec -> Graph: the model's equations, one op each, nothing fused. Families differ by what the Spec says and by nothing
 * else: no family is named here. Values are named for what they are ("L3.q"), which is what verify compares. */
#include "compiler/graph.h"
#include "formats/peft.h"

#include <math.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/scheme.h"

typedef struct Build {
	Graph      *g;
	const Spec *s;
	int         layer;   /* -1 outside the layers */
	Loc         loc;     /* of the YAML key that the ops being made come from */
	int         rope[2], rope2; /* values of the tables; rope2: second axis */
	int        *pool, *done; /* [n_layers] values: the cache that a layer reads, and that it has been appended to; -1: the layer has no attention */
	int        *conv, *state; /* [n_layers] of layers that keep a state; else -1 */
	int         ple;     /* what per-layer embeddings bring to all layers, side by side; -1: none */
	struct { int x, y; const char *order, *factor; } arranged[8]; /* of this layer, the last of them */
	int         n_arranged;
} Build;

/* --- values, weights --- */

static int
value(Build *b, const char *name)
{
	const char *full = b->layer < 0 ? name : arena_printf(b->g->arena, "L%d.%s", b->layer, name);
	return graph_value(b->g, VAL_ACT, full, b->loc);
}

static int
weight(Build *b, const char *role, int64_t rows, int64_t cols)
{
	return build_weight(b->g, role, b->layer, ".weight", rows, cols, b->loc);
}

static int
bias(Build *b, bool wanted, const char *role, int64_t rows)
{
	return wanted ? build_weight(b->g, role, b->layer, ".bias", rows, 0, b->loc) : -1;
}

/* An op with its arguments; attributes are set by the caller. */
static Op *
op_make(Build *b, OpKind kind, const int *arg)
{
	Op           *o = graph_op(b->g, kind, b->layer, b->loc);
	const OpInfo *info = &op_info[kind];

	op_args(o, arg);
	for (int k = info->n_in; k < info->n_arg; k++)
		b->g->val[arg[k]].def = (int)b->g->n_op - 1;
	return o;
}
#define OP(b, kind, ...) op_make(b, OP_##kind, OP_ARGS(kind, __VA_ARGS__))

static void
at(Build *b, const char *key)
{
	b->loc = spec_loc(b->s, key);
}

/* --- the small equations --- */

static bool
same_word(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

/* x as the columns of the role's matrix are stored; one value for all that are alike */
static int
arrange(Build *b, int x, const char *role, int64_t cols)
{
	const StorageRule r = spec_storage(b->s, role, b->layer);
	const int room = sizeof b->arranged / sizeof *b->arranged;

	if (!r.order && !r.factor)
		return x;
	for (int i = 0; i < room && i < b->n_arranged; i++)
		if (b->arranged[i].x == x && same_word(b->arranged[i].order, r.order) && same_word(b->arranged[i].factor, r.factor))
			return b->arranged[i].y;
	int order = r.order ? build_beside(b->g, r.order, b->layer, SCHEME_ORDER, cols, b->loc) : -1;
	int factor = r.factor ? build_beside(b->g, r.factor, b->layer, SCHEME_FACTOR, cols, b->loc) : -1;
	int y = value(b, arena_printf(b->g->arena, "%s_x", role));
	Op *o = OP(b, arrange, .x = x, .nw = -1, .nb = -1, .order = order, .factor = factor, .y = y);
	op_set_int(b->g, o, "width", cols);
	op_set_word(b->g, o, "norm", "none");
	op_set_num(b->g, o, "eps", 0);
	op_set_int(b->g, o, "plus_one", 0);
	b->arranged[b->n_arranged++ % room].x = x;
	b->arranged[(b->n_arranged - 1) % room].y = y;
	b->arranged[(b->n_arranged - 1) % room].order = r.order;
	b->arranged[(b->n_arranged - 1) % room].factor = r.factor;
	return y;
}

/* y = x w^T + b */
static int
matmul(Build *b, int x, const char *role, bool with_bias, int64_t rows, int64_t cols, const char *name)
{
	int w = weight(b, role, rows, cols), wb = bias(b, with_bias, role, rows), y = value(b, name);
	x = arrange(b, x, role, cols);
	Op *o = OP(b, matmul, .x = x, .w = w, .b = wb, .y = y);

	op_set_int(b->g, o, "rows", rows);
	op_set_int(b->g, o, "cols", cols);
	return y;
}

/* role NULL: without weights */
static int
rmsnorm(Build *b, int x, const char *role, int64_t dim, int64_t groups, double eps, bool plus_one, const char *name)
{
	int w = role ? weight(b, role, dim, 0) : -1, y = value(b, name);
	Op *o = OP(b, rmsnorm, .x = x, .w = w, .y = y);

	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "groups", groups);
	op_set_num(b->g, o, "eps", eps);
	op_set_int(b->g, o, "plus_one", plus_one);
	return y;
}

/* The norm of the stream: of the description's kind; x itself where there is none. */
static int
norm(Build *b, bool wanted, int x, const char *role, const char *name)
{
	const Spec *s = b->s;

	if (!wanted || s->norm.kind == NORM_NONE)
		return x;
	if (s->norm.kind == NORM_RMS)
		return rmsnorm(b, x, s->norm.weight ? role : NULL, s->hidden, 1, s->norm.eps, s->norm.plus_one, name);
	int w = s->norm.weight ? weight(b, role, s->hidden, 0) : -1, wb = bias(b, s->norm.bias, role, s->hidden), y = value(b, name);
	Op *o = OP(b, layernorm, .x = x, .w = w, .b = wb, .y = y);
	op_set_int(b->g, o, "dim", s->hidden);
	op_set_num(b->g, o, "eps", s->norm.eps);
	op_set_int(b->g, o, "plus_one", s->norm.plus_one);
	return y;
}

/* y = scale * x, or with a role that number of the checkpoint times it */
static int
gain(Build *b, int x, const char *role, double scale, int64_t width, const char *name)
{
	int w = role ? weight(b, role, 1, 0) : -1, y = value(b, name);
	Op *o = OP(b, gain, .x = x, .w = w, .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "scale", scale);
	return y;
}

/* y = scale * x + r, of any width */
static int
add_wide(Build *b, int x, int r, double scale, int64_t width, const char *name)
{
	int y = value(b, name);
	Op *o = OP(b, add, .x = x, .r = r, .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "scale", scale);
	return y;
}

static int
add(Build *b, int x, int r, double scale, const char *name)
{
	return add_wide(b, x, r, scale, b->s->hidden, name);
}

static int
slice(Build *b, int x, int64_t width, int64_t first, int64_t count, const char *name)
{
	int y = value(b, name);
	Op *o = OP(b, slice, .x = x, .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_int(b->g, o, "first", first);
	op_set_int(b->g, o, "count", count);
	return y;
}

static const char *
act_word(ActKind a)
{
	switch (a) {
	case ACT_SILU:
		return "silu";
	case ACT_GELU:
		return "gelu";
	case ACT_GELU_TANH:
		return "gelu_tanh";
	case ACT_RELU:
		return "relu";
	case ACT_RELU2:
		return "relu2";
	case ACT_SWIGLU_OAI:
		return "swiglu_oai";
	case ACT_XIELU:
		return "xielu";
	}
	return "";
}

static bool
is_linear(const Spec *s, int l)
{
	return s->linear.n > 0 && s->linear.layer_in[l];
}

static bool
is_conv(const Spec *s, int l)
{
	return s->conv.n > 0 && s->conv.layer_in[l];
}

/* Rotate dims [first, first + dims of the layer's table) of each head. */
static int
rotate(Build *b, int x, int64_t heads, int64_t dim, int64_t first, const char *name)
{
	const Spec *s = b->s;
	int         table = s->n_rope > 1 && spec_windowed(s, b->layer) ? 1 : 0;
	const char *style = s->rope_style == ROPE_HALF ? "half" : "interleaved";

	if (s->position != POS_ROPE || (s->rope_in && !s->rope_in[b->layer]))
		return x;
	int y = value(b, name);
	if (s->rope_axes == 2) {
		Op *o = OP(b, rope_2d, .x = x, .rope = b->rope[0], .rope2 = b->rope2, .y = y);
		op_set_int(b->g, o, "heads", heads);
		op_set_int(b->g, o, "dim", dim);
		op_set_int(b->g, o, "rope_dims", s->rope[0].dims);
		op_set_word(b->g, o, "style", style);
		return y;
	}
	Op *o = OP(b, rope, .x = x, .rope = b->rope[table], .y = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "first", first);
	op_set_int(b->g, o, "rope_dims", s->rope[table].dims);
	op_set_word(b->g, o, "style", style);
	return y;
}

/* --- attention --- */

/* The norm of q or k, if it stands here */
static int
qk_norm(Build *b, bool after, int x, const char *role, int64_t heads, const char *name)
{
	const Spec *s = b->s;
	bool        whole = s->attention.qk_norm == QK_WHOLE;
	int64_t     dim = spec_heads(s, b->layer).head_dim;

	if (s->attention.qk_norm == QK_NONE || s->attention.qk_after != after)
		return x;
	at(b, "attention.qk_norm");
	return rmsnorm(b, x, s->attention.qk_norm == QK_UNIT ? NULL : role, whole ? heads * dim : dim, whole ? 1 : heads, s->norm.qk_eps,
	               s->attention.qk_norm != QK_UNIT && s->norm.plus_one, name);
}

/* Queries grow with the position, where the description says so. It stands behind the append, where fused queries come out. */
static int
temper(Build *b, int q, int64_t width)
{
	const Spec *s = b->s;

	if (s->attention.temper.scale == 0 || !s->attention.temper.layer_in[b->layer])
		return q;
	at(b, "attention.temperature.scale");
	int y = value(b, "q_tempered");
	Op *o = OP(b, pos_scale, .x = q, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "scale", s->attention.temper.scale);
	op_set_int(b->g, o, "offset", s->attention.temper.offset);
	op_set_int(b->g, o, "base", s->attention.temper.positions);
	return y;
}

/* Keys and values of this layer go to the cache; what comes out orders that before its readers. */
static int
append(Build *b, int k, int v, const HeadShape *shape)
{
	int done = value(b, "kv");
	Op *o = OP(b, kv_append, .k = k, .v = v, .kv = b->pool[b->layer], .done = done);

	op_set_int(b->g, o, "kv_heads", shape->n_kv_heads);
	op_set_int(b->g, o, "dim", shape->head_dim);
	op_set_int(b->g, o, "v_dim", shape->v_dim);
	return done;
}

static int
gqa(Build *b, int h)
{
	const Spec     *s = b->s;
	const HeadShape shape = spec_heads(s, b->layer);
	int64_t         heads = shape.n_heads, kv_heads = shape.n_kv_heads, dim = shape.head_dim, v_dim = shape.v_dim;
	int             source = spec_kv_layer(s, b->layer), kv = b->pool[b->layer], k = -1, v = -1;
	bool            own = source == b->layer; /* keys and values */
	Op             *o;

	at(b, "attention.n_heads");
	int q = matmul(b, h, "q", s->attention.bias, heads * dim, s->hidden, "q");
	if (own) {
		k = v = matmul(b, h, "k", s->attention.bias, kv_heads * dim, s->hidden, "k");
		if (!s->attention.k_is_v[b->layer])
			v = matmul(b, h, "v", s->attention.bias, kv_heads * v_dim, s->hidden, "v");
	}
	q = qk_norm(b, false, q, "q_norm", heads, "q_normed");
	if (own)
		k = qk_norm(b, false, k, "k_norm", kv_heads, "k_normed");
	at(b, "position");
	q = rotate(b, q, heads, dim, 0, "q_rope");
	if (own)
		k = rotate(b, k, kv_heads, dim, 0, "k_rope");
	q = qk_norm(b, true, q, "q_norm", heads, "q_normed");
	if (own)
		k = qk_norm(b, true, k, "k_norm", kv_heads, "k_normed");
	if (own && s->attention.v_norm) {
		at(b, "attention.v_norm");
		v = rmsnorm(b, v, NULL, v_dim, kv_heads, s->norm.qk_eps, false, "v_normed");
	}
	if (own && s->attention.v_scale != 1) {
		at(b, "attention.v_scale");
		v = gain(b, v, NULL, s->attention.v_scale, kv_heads * v_dim, "v_scaled");
	}
	at(b, "attention.n_heads");
	int done = b->done[b->layer] = own ? append(b, k, v, &shape) : b->done[source];
	q = temper(b, q, heads * dim);

	at(b, "attention.n_heads");
	int sink = -1;
	if (s->attention.sinks && s->attention.sink_in[b->layer]) {
		at(b, "attention.sinks");
		sink = weight(b, "sinks", heads, 0);
	}
	int y = value(b, "attn");
	o = OP(b, attention, .q = q, .kv = kv, .done = done, .sink = sink, .y = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "kv_heads", kv_heads);
	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_num(b->g, o, "scale", s->attention.scale);
	op_set_num(b->g, o, "cap", s->attention.score_cap);
	op_set_int(b->g, o, "window", spec_windowed(s, b->layer) ? s->attention.window : 0);
	op_set_word(b->g, o, "mask", s->attention.mask == MASK_PREFIX ? "prefix" : "causal");
	op_set_num(b->g, o, "alibi", s->position == POS_ALIBI ? s->alibi_max_bias : 0);
	if (s->attention.out_gate != GATE_NONE) {
		at(b, "attention.out_gate");
		int64_t gates = s->attention.out_gate == GATE_HEAD ? heads : heads * v_dim;
		int     g = matmul(b, h, "q_gate", s->attention.bias, gates, s->hidden, "q_gate"), gated = value(b, "attn_gated");
		o = OP(b, gate_mul, .x = y, .s = g, .y = gated);
		op_set_int(b->g, o, "width", heads * v_dim);
		op_set_int(b->g, o, "groups", gates);
		y = gated;
	}
	return matmul(b, y, "o", s->attention.o_bias, s->hidden, heads * v_dim, "attn_out");
}

/* The cache holds the normed latent and one rotated key; k_b and v_b stay two factors beside it. */
static int
mla(Build *b, int h)
{
	const Spec *s = b->s;
	int64_t     heads = s->attention.n_heads, nope = s->attention.nope_dim, rope = s->attention.rope_dim;
	int64_t     rank = s->attention.kv_rank, q_rank = s->attention.q_rank, v_dim = s->attention.v_dim;
	int         kv = b->pool[b->layer], q;

	at(b, "attention.kind");
	if (q_rank > 0) {
		int low = matmul(b, h, "q_a", s->attention.bias, q_rank, s->hidden, "q_a");
		low = rmsnorm(b, low, "q_a_norm", q_rank, 1, s->norm.latent_eps, false, "q_a_normed");
		q = matmul(b, low, "q_b", false, heads * (nope + rope), q_rank, "q");
	} else {
		q = matmul(b, h, "q", false, heads * (nope + rope), s->hidden, "q");
	}
	q = rotate(b, q, heads, nope + rope, nope, "q_rope");
	int both = matmul(b, h, "kv_a", s->attention.bias, rank + rope, s->hidden, "kv_a");
	int latent = slice(b, both, rank + rope, 0, rank, "latent");
	latent = rmsnorm(b, latent, "kv_a_norm", rank, 1, s->norm.latent_eps, false, "latent_normed");
	int key = slice(b, both, rank + rope, rank, rope, "k_pe");
	key = rotate(b, key, 1, rope, 0, "k_rope");

	int done = value(b, "kv");
	Op *o = OP(b, mla_append, .latent = latent, .rope_k = key, .kv = kv, .done = done);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "rope_dim", rope);

	q = temper(b, q, heads * (nope + rope));
	at(b, "attention.kind");
	int k_b = weight(b, "k_b", heads * nope, rank), v_b = weight(b, "v_b", heads * v_dim, rank);
	int y = value(b, "attn");
	o = OP(b, mla_attention, .q = q, .k_b = k_b, .v_b = v_b, .kv = kv, .done = done, .y = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "kv_rank", rank);
	op_set_int(b->g, o, "nope_dim", nope);
	op_set_int(b->g, o, "rope_dim", rope);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_num(b->g, o, "scale", s->attention.scale);
	return matmul(b, y, "o", s->attention.o_bias, s->hidden, heads * v_dim, "attn_out");
}

/* --- a state in the place of a cache --- */

/* y = act(w * x) along the sequence, w of `taps` rows for each of the channels */
static int
conv(Build *b, int x, const char *role, bool with_bias, int64_t width, int taps, const char *gate, const char *name)
{
	int w = weight(b, role, width * taps, 0), wb = bias(b, with_bias, role, width), y = value(b, name);
	Op *o = OP(b, conv1d, .x = x, .w = w, .b = wb, .state = b->conv[b->layer], .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_int(b->g, o, "taps", taps);
	op_set_word(b->g, o, "gate", gate);
	return y;
}

/* The gated delta rule: q, k and v through one convolution, a state for each head, a norm that another projection gates. */
static int
delta(Build *b, int h)
{
	const Spec *s = b->s;
	int64_t     k_heads = s->linear.k_heads, v_heads = s->linear.v_heads, k_dim = s->linear.k_dim, v_dim = s->linear.v_dim;
	int64_t     width = 2 * k_heads * k_dim + v_heads * v_dim;
	static const char *const role[] = { "lin_q", "lin_k", "lin_v" };
	const int64_t rows[] = { k_heads * k_dim, k_heads * k_dim, v_heads * v_dim };
	const StorageRule as = spec_storage(s, role[0], b->layer);
	int         part[3];
	bool        there = true;

	at(b, "linear.layers");
	for (int i = 0; i < 3; i++) {
		const StorageRule own = spec_storage(s, role[i], b->layer);
		part[i] = weight(b, role[i], rows[i], s->hidden);
		there &= part[i] >= 0;
		if (!same_word(own.order, as.order) || !same_word(own.factor, as.factor)) {
			err_at(b->g->diag, b->loc, "layer %d: q, k and v in front of a convolution must have their columns in one order, with one factor", b->layer);
			return h;
		}
	}
	int w = there ? graph_stack(b->g, arena_printf(b->g->arena, "L%d.lin_qkv", b->layer), part, 3) : -1;
	if (w < 0) {
		if (there)
			err_at(b->g->diag, b->loc, "layer %d: q, k and v in front of a convolution must be stored in one type", b->layer);
		return h;
	}
	int qkv = value(b, "lin_qkv"), in = arrange(b, h, role[0], s->hidden);
	Op *o = OP(b, matmul, .x = in, .w = w, .b = -1, .y = qkv);
	op_set_int(b->g, o, "rows", width);
	op_set_int(b->g, o, "cols", s->hidden);
	int z = matmul(b, h, "lin_z", false, v_heads * v_dim, s->hidden, "lin_z");
	int beta = matmul(b, h, "lin_b", false, v_heads, s->hidden, "lin_b");
	int a = matmul(b, h, "lin_a", false, v_heads, s->hidden, "lin_a");
	int x = conv(b, qkv, "lin_conv", false, width, s->linear.taps, "silu", "lin_conv");

	int rate = weight(b, "lin_rate", v_heads, 0), dt = weight(b, "lin_dt", v_heads, 0), y = value(b, "lin_y");
	o = OP(b, delta_rule, .x = x, .a = a, .b = beta, .rate = rate, .dt = dt, .state = b->state[b->layer], .y = y);
	op_set_int(b->g, o, "k_heads", k_heads);
	op_set_int(b->g, o, "v_heads", v_heads);
	op_set_int(b->g, o, "k_dim", k_dim);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_int(b->g, o, "g_dim", 1);
	op_set_num(b->g, o, "scale", 1 / sqrt((double)k_dim));
	op_set_num(b->g, o, "eps", 1e-6);
	op_set_int(b->g, o, "tiled", s->linear.tiled);
	op_set_int(b->g, o, "a_log", s->linear.a_log);
	op_set_num(b->g, o, "b_scale", s->linear.beta_scale);

	int nw = weight(b, "lin_norm", v_dim, 0), gated = value(b, "lin_gated");
	o = OP(b, norm_gate, .x = y, .z = z, .w = nw, .y = gated);
	op_set_int(b->g, o, "dim", v_dim);
	op_set_int(b->g, o, "groups", v_heads);
	op_set_num(b->g, o, "eps", s->norm.eps);
	op_set_word(b->g, o, "order", "norm_first");
	op_set_word(b->g, o, "gate", "silu");
	return matmul(b, gated, "lin_o", false, s->hidden, v_heads * v_dim, "attn_out");
}

static int
mul(Build *b, int x, int z, int64_t width, const char *name)
{
	int y = value(b, name);
	Op *o = OP(b, mul, .x = x, .z = z, .y = y);

	op_set_int(b->g, o, "width", width);
	return y;
}

/* out(c * conv(b * x)) */
static int
short_conv(Build *b, int h)
{
	const Spec *s = b->s;
	int64_t     hidden = s->hidden;

	at(b, "conv.layers");
	int gate = matmul(b, h, "conv_b", s->conv.bias, hidden, hidden, "conv_b"), out = matmul(b, h, "conv_c", s->conv.bias, hidden, hidden, "conv_c");
	int x = mul(b, gate, matmul(b, h, "conv_x", s->conv.bias, hidden, hidden, "conv_x"), hidden, "conv_in");
	x = conv(b, x, "conv_w", s->conv.bias, hidden, s->conv.taps, "none", "conv_y");
	return matmul(b, mul(b, out, x, hidden, "conv_out"), "conv_o", s->conv.bias, hidden, hidden, "attn_out");
}

/* --- feed-forward --- */

typedef struct FfnRoles { const char *gate, *up, *down, *act, *out; } FfnRoles;

/* The two numbers of a layer's xielu */
static int
act_numbers(Build *b)
{
	int p[2];

	p[0] = weight(b, "act_p", 1, 0);
	p[1] = weight(b, "act_n", 1, 0);
	return graph_stack(b->g, arena_printf(b->g->arena, "L%d.act_numbers", b->layer), p, 2);
}

/* down(glu(gate x, up x)), or down(act(up x)) */
static int
ffn(Build *b, int h, const FfnRoles *r, int64_t width, bool gated, bool with_bias, ActKind act, double limit)
{
	int64_t hidden = b->s->hidden;
	int     y, g = -1;
	Op     *o;

	if (gated)
		g = matmul(b, h, r->gate, with_bias, width, hidden, r->gate);
	int u = matmul(b, h, r->up, with_bias, width, hidden, r->up);
	y = value(b, r->act);
	if (gated)
		o = OP(b, glu, .g = g, .u = u, .y = y);
	else
		o = OP(b, act, .x = u, .p = act == ACT_XIELU ? act_numbers(b) : -1, .y = y);
	op_set_int(b->g, o, "width", width);
	op_set_word(b->g, o, "act", act_word(act));
	if (gated)
		op_set_num(b->g, o, "limit", limit);
	return matmul(b, y, r->down, with_bias, hidden, width, r->out);
}

static int
dense(Build *b, int h)
{
	const Spec *s = b->s;

	at(b, "ffn.width");
	return ffn(b, h, &(FfnRoles){ "gate", "up", "down", "act", s->moe.beside && s->moe.layer_in[b->layer] ? "dense" : "ffn_out" }, spec_ffn_width(s, b->layer), s->ffn.gated, s->ffn.bias, s->ffn.act, s->ffn.limit);
}

/* x: the stream, which a router with a norm of its own reads */
static int
moe(Build *b, int h, int x)
{
	const Spec *s = b->s;
	int         n = s->moe.n_experts, shared_bias = -1, seen = h;
	int64_t     hidden = s->hidden, width = s->moe.width, shared = s->moe.shared_width;

	at(b, "moe.n_experts");
	if (s->moe.router_norm) {
		at(b, "moe.router_norm");
		seen = rmsnorm(b, x, "router_norm", hidden, 1, s->norm.eps, false, "router_normed");
		seen = gain(b, seen, NULL, pow((double)hidden, -0.5), hidden, "router_in");
	}
	int logits = matmul(b, seen, "router", s->moe.router_bias, n, hidden, "router");
	if (s->moe.choice_bias)
		shared_bias = bias(b, true, "router_bias", n);
	int id = value(b, "expert_id"), weights = value(b, "expert_weight");
	Op *o = OP(b, moe_route, .logits = logits, .bias = shared_bias, .id = id, .weight = weights);
	op_set_int(b->g, o, "n_experts", n);
	op_set_int(b->g, o, "top_k", s->moe.top_k);
	op_set_word(b->g, o, "score", s->moe.sigmoid ? "sigmoid" : "softmax");
	op_set_int(b->g, o, "renorm", s->moe.renorm);
	op_set_num(b->g, o, "scale", s->moe.scale);
	op_set_int(b->g, o, "groups", s->moe.groups > 0 ? s->moe.groups : 1);
	op_set_int(b->g, o, "keep_groups", s->moe.groups > 0 ? s->moe.keep_groups : 1);
	op_set_word(b->g, o, "group_score", s->moe.group_top2 ? "top2" : "max");

	if (s->moe.expert_gain) {
		at(b, "moe.expert_gain");
		int each = weight(b, "expert_gain", n, 0), y = value(b, "expert_weight_gained");
		o = OP(b, expert_gain, .id = id, .weight = weights, .w = each, .y = y);
		op_set_int(b->g, o, "n_experts", n);
		op_set_int(b->g, o, "top_k", s->moe.top_k);
		weights = y;
		at(b, "moe.n_experts");
	}
	int gate = build_experts(b->g, "e_gate", b->layer, n, width, hidden, b->loc);
	int up = build_experts(b->g, "e_up", b->layer, n, width, hidden, b->loc);
	int down = build_experts(b->g, "e_down", b->layer, n, hidden, width, b->loc);
	int gate_b = -1, up_b = -1, down_b = -1;
	if (s->moe.bias) {
		at(b, "moe.bias");
		gate_b = build_experts(b->g, "e_gate_b", b->layer, n, width, 0, b->loc);
		up_b = build_experts(b->g, "e_up_b", b->layer, n, width, 0, b->loc);
		down_b = build_experts(b->g, "e_down_b", b->layer, n, hidden, 0, b->loc);
		at(b, "moe.n_experts");
	}
	int y = value(b, shared > 0 || s->moe.beside ? "routed" : "ffn_out");
	o = OP(b, moe_ffn, .x = h, .id = id, .weight = weights, .gate = gate, .up = up, .down = down, .gate_b = gate_b, .up_b = up_b, .down_b = down_b, .y = y);
	op_set_int(b->g, o, "n_experts", n);
	op_set_int(b->g, o, "top_k", s->moe.top_k);
	op_set_int(b->g, o, "hidden", hidden);
	op_set_int(b->g, o, "width", width);
	op_set_word(b->g, o, "act", act_word(s->moe.act));
	op_set_num(b->g, o, "limit", s->moe.limit);
	if (shared <= 0)
		return y;

	at(b, "moe.shared.width");
	int z = ffn(b, h, &(FfnRoles){ "s_gate", "s_up", "s_down", "s_act", "shared" }, shared, true, s->ffn.bias, s->moe.act, s->moe.limit);
	if (s->moe.shared_gate) {
		int mix = matmul(b, h, "s_mix", false, 1, hidden, "s_mix"), gated = value(b, "shared_gated");
		o = OP(b, gate_mul, .x = z, .s = mix, .y = gated);
		op_set_int(b->g, o, "width", hidden);
		op_set_int(b->g, o, "groups", 1);
		z = gated;
	}
	return add(b, y, z, 1.0, "ffn_out");
}

/* --- a layer --- */

/* Attention, or what stands in its place */
static int
attention_block(Build *b, int h)
{
	const Spec *s = b->s;
	int         y = is_linear(s, b->layer) ? delta(b, h) : is_conv(s, b->layer) ? short_conv(b, h) : s->attention.kind == ATT_MLA ? mla(b, h) : gqa(b, h);

	at(b, "norm.kind");
	return norm(b, s->norm.attn_out, y, "attn_out_norm", "attn_out_normed");
}

/* h: the normed stream x */
static int
ffn_block(Build *b, int h, int x)
{
	const Spec *s = b->s;
	bool        sparse = s->moe.n_experts > 0 && s->moe.layer_in && s->moe.layer_in[b->layer];
	int         y;

	if (sparse && s->moe.beside) {
		int d = norm(b, true, dense(b, h), "dense_out_norm", "dense_normed");
		int e = moe(b, norm(b, true, x, "moe_norm", "moe_in"), x);
		y = add(b, d, norm(b, true, e, "moe_out_norm", "moe_normed"), 1.0, "ffn_out");
	} else {
		y = sparse ? moe(b, h, x) : dense(b, h);
	}

	at(b, "norm.kind");
	return norm(b, s->norm.ffn_out, y, "ffn_out_norm", "ffn_out_normed");
}

/* The end of a layer: x += norm(out(act(gate x) * what the token brings to this layer)), then the layer's number. */
static int
layer_end(Build *b, int x)
{
	const Spec *s = b->s;
	int64_t     width = s->ple_width;

	if (width) {
		at(b, "per_layer.width");
		int g = matmul(b, x, "ple_gate", false, width, s->hidden, "ple_gate");
		int u = slice(b, b->ple, s->n_layers * width, b->layer * width, width, "ple_u"), y = value(b, "ple_act");
		Op *o = OP(b, glu, .g = g, .u = u, .y = y);
		op_set_int(b->g, o, "width", width);
		op_set_word(b->g, o, "act", act_word(s->ffn.act));
		op_set_num(b->g, o, "limit", 0);
		y = matmul(b, y, "ple_out", false, s->hidden, width, "ple_out");
		x = add(b, x, norm(b, true, y, "ple_out_norm", "ple_normed"), 1.0, "with_ple");
	}
	if (!s->residual.layer_gain)
		return x;
	at(b, "residual.layer_gain");
	return gain(b, x, "layer_gain", 1.0, s->hidden, "gained");
}

static int
layer(Build *b, int x, int l)
{
	const Spec *s = b->s;
	double      skip = s->residual.skip_scale;

	b->layer = l;
	at(b, "norm.kind");
	int h = norm(b, s->norm.attn_in, x, "attn_norm", "attn_in");
	if (s->residual.parallel) {
		/* both blocks read the same stream; without a norm of its own the second shares the first's */
		int h2 = s->norm.ffn_in ? norm(b, true, x, "ffn_norm", "ffn_in") : h;
		int from = s->residual.from_norm ? h : x;
		int a = attention_block(b, h), f = ffn_block(b, h2, x);
		at(b, "residual.form");
		int mid = add(b, from, a, skip, "mid");
		return layer_end(b, add(b, mid, f, 1.0, "out"));
	}
	int a = attention_block(b, h);
	at(b, "residual.form");
	int mid = add(b, s->residual.from_norm ? h : x, a, skip, "mid");
	at(b, "norm.kind");
	int h2 = norm(b, s->norm.ffn_in, mid, "ffn_norm", "ffn_in");
	int f = ffn_block(b, h2, mid);
	at(b, "residual.form");
	return layer_end(b, add(b, s->residual.from_norm ? h2 : mid, f, skip, "out"));
}

/* --- the model --- */

/* Some models multiply by the square root of the width as its activations' dtype can hold it. */
static double
embed_scale(const Spec *s)
{
	if (!s->embed.round_scale)
		return s->embed.scale;
	if (s->dtype == DT_BF16)
		return bf16_to_f32(f32_to_bf16((float)s->embed.scale));
	if (s->dtype == DT_F16)
		return f16_to_f32(f32_to_f16((float)s->embed.scale));
	return (float)s->embed.scale;
}

static int
embed(Build *b, int *table)
{
	const Spec *s = b->s;

	at(b, "vocab_size");
	*table = weight(b, "embed", s->vocab_size, s->hidden);
	int x = value(b, "x0");
	Op *o = OP(b, embed, .w = *table, .y = x);
	op_set_int(b->g, o, "hidden", s->hidden);
	op_set_num(b->g, o, "scale", embed_scale(s));
	if (s->position == POS_LEARNED) {
		at(b, "position");
		int w = weight(b, "pos_embed", s->max_positions + s->pos_offset, s->hidden), y = value(b, "x0_pos");
		o = OP(b, embed_pos, .x = x, .w = w, .y = y);
		op_set_int(b->g, o, "hidden", s->hidden);
		op_set_int(b->g, o, "offset", s->pos_offset);
		x = y;
	}
	at(b, "norm.kind");
	return norm(b, s->norm.embed, x, "embed_norm", "x0_normed");
}

/* What a token brings to each layer: a row of its own table, and a product of its embedding, normed layer by layer; the mean of both
 * by the square root of two. */
static int
per_layer(Build *b, int x)
{
	const Spec *s = b->s;
	int64_t     width = s->ple_width, all = s->n_layers * width;

	at(b, "per_layer.width");
	int w = weight(b, "ple_embed", s->vocab_size, all), own = value(b, "ple_token");
	Op *o = OP(b, embed, .w = w, .y = own);
	op_set_int(b->g, o, "hidden", all);
	op_set_num(b->g, o, "scale", sqrt(width / 2.0));
	int p = matmul(b, x, "ple_proj", false, all, s->hidden, "ple_proj");
	p = gain(b, p, NULL, pow((double)s->hidden, -0.5), all, "ple_scaled");
	p = rmsnorm(b, p, "ple_norm", width, s->n_layers, s->norm.eps, s->norm.plus_one, "ple_projected");
	return add_wide(b, p, own, sqrt(0.5), all, "ple");
}

static void
head(Build *b, int x, int table)
{
	const Spec *s = b->s;
	bool        capped = s->head.cap > 0 || s->head.scale != 1;

	b->layer = -1;
	at(b, "vocab_size");
	int last = value(b, "last");
	Op *o = OP(b, pick, .x = x, .y = last);
	op_set_int(b->g, o, "width", s->hidden);
	at(b, "norm.kind");
	last = norm(b, s->norm.final, last, "final_norm", "final_norm");
	if (s->head.kind == LLMC_OUTPUT_HIDDEN)
		return;
	if (s->head.kind == LLMC_OUTPUT_LABELS) {
		at(b, "head.labels");
		int scores = value(b, "logits");
		o = OP(b, matmul, .x = last, .w = weight(b, "labels", s->head.labels, s->hidden), .b = bias(b, s->head.bias, "labels", s->head.labels), .y = scores);
		op_set_int(b->g, o, "rows", s->head.labels);
		op_set_int(b->g, o, "cols", s->hidden);
		return;
	}
	at(b, "head.tied");
	int w = s->head.tied && !s->head.row_norm ? table : weight(b, "head", s->vocab_size, s->hidden);
	int wb = bias(b, s->head.bias, "head", s->vocab_size), y = value(b, capped ? "logits_raw" : "logits");
	o = OP(b, matmul, .x = last, .w = w, .b = wb, .y = y);
	op_set_int(b->g, o, "rows", s->vocab_size);
	op_set_int(b->g, o, "cols", s->hidden);
	if (!capped)
		return;
	at(b, "head.cap");
	int z = value(b, "logits");
	o = OP(b, cap, .x = y, .y = z);
	op_set_int(b->g, o, "width", s->vocab_size);
	op_set_num(b->g, o, "scale", s->head.scale);
	op_set_num(b->g, o, "cap", s->head.cap);
}

static void
ropes(Build *b)
{
	const Spec *s = b->s;
	int         n = s->n_rope + (s->rope_axes == 2 ? 1 : 0);

	b->rope[0] = b->rope[1] = b->rope2 = -1;
	for (int i = 0; s->position == POS_ROPE && i < n; i++) {
		bool second_axis = i == s->n_rope;
		int  v = graph_value(b->g, VAL_ROPE, arena_printf(b->g->arena, "rope%d", i), spec_loc(s, "position"));
		b->g->val[v].tensor = i;
		b->g->val[v].dim[0] = 1;
		b->g->val[v].dim[1] = s->rope[second_axis ? 0 : i].dims;
		*(second_axis ? &b->rope2 : &b->rope[i]) = v;
	}
}

/* Pools of what a layer keeps of each sequence: the values of their arguments, [n_layers] */
static int *
state_pool(Build *b, const char *id, const uint8_t *layer_in, int64_t heads, int64_t rows, int64_t cols)
{
	const Spec *s = b->s;
	int        *v = NEW(b->g->arena, int, s->n_layers), index = b->g->n_pool++;
	PlanPool   *p = &b->g->pool[index];

	*p = (PlanPool){ .id = id, .state = true, .k = KVT_F32, .v = KVT_F32, .kv_heads = heads, .k_dim = rows, .v_dim = cols };
	for (int l = 0; l < s->n_layers; l++) {
		v[l] = -1;
		if (!layer_in[l])
			continue;
		v[l] = graph_value(b->g, VAL_POOL, arena_printf(b->g->arena, "%s.%d", id, p->n_layers), spec_loc(s, "linear.layers"));
		b->g->val[v[l]].tensor = index;
		b->g->val[v[l]].dim[0] = p->n_layers++;
	}
	return v;
}

/* One pool for all layers, or a second one for the layers that see a window only and may let old pages go. */
static void
pools(Build *b)
{
	const Spec *s = b->s;
	bool        mla_kind = s->attention.kind == ATT_MLA;
	int         count[2] = { 0 }, index[2] = { -1, -1 };

	b->pool = NEW(b->g->arena, int, s->n_layers);
	b->done = NEW(b->g->arena, int, s->n_layers);
	b->g->pool = NEW(b->g->arena, PlanPool, 5);
	for (int l = 0; l < s->n_layers; l++)
		count[spec_windowed(s, l)] += !is_linear(s, l) && !is_conv(s, l) && spec_kv_layer(s, l) == l;
	for (int w = 0; w < 2; w++)
		if (count[w]) {
			index[w] = b->g->n_pool++;
			const HeadShape h = w ? s->attention.local : spec_heads(s, -1);
			b->g->pool[index[w]] = (PlanPool){
				.id = w ? "kv_window" : "kv", .keep = w ? s->attention.window : 0,
				.mla = mla_kind, .k = s->kv.k, .v = s->kv.v, .rotate = s->kv.rotate,
				.kv_heads = mla_kind ? 1 : h.n_kv_heads,
				.k_dim = mla_kind ? s->attention.kv_rank + s->attention.rope_dim : h.head_dim,
				.v_dim = mla_kind ? 0 : h.v_dim,
			};
		}
	for (int l = 0; l < s->n_layers; l++) {
		b->pool[l] = -1;
		if (is_linear(s, l) || is_conv(s, l))
			continue;
		int      i = index[spec_windowed(s, l)], from = spec_kv_layer(s, l);
		if (from != l) {
			b->pool[l] = b->pool[from];
			continue;
		}
		PlanPool *p = &b->g->pool[i];
		int      v = graph_value(b->g, VAL_POOL, arena_printf(b->g->arena, "%s.%d", p->id, p->n_layers), spec_loc(s, "attention.n_heads"));
		b->g->val[v].tensor = i;
		b->g->val[v].dim[0] = p->n_layers++;
		b->pool[l] = v;
	}
	if (s->conv.n > 0)
		b->conv = state_pool(b, "short_conv", s->conv.layer_in, 1, s->conv.taps - 1, s->hidden);
	if (s->linear.n > 0) {
		int64_t k = (int64_t)s->linear.k_heads * s->linear.k_dim, v = (int64_t)s->linear.v_heads * s->linear.v_dim;
		int *other = b->conv;
		b->conv = state_pool(b, "conv", s->linear.layer_in, 1, s->linear.taps - 1, 2 * k + v);
		b->state = state_pool(b, "state", s->linear.layer_in, s->linear.v_heads, s->linear.k_dim, s->linear.v_dim);
		for (int l = 0; other && l < s->n_layers; l++)
			b->conv[l] = is_conv(s, l) ? other[l] : b->conv[l];
	}
}

/* Figures of a plan are sums and products of sizes; within these bounds none of them overflows, and no description makes a
 * plan of gigabytes. */
enum { MAX_EXPERT_TENSORS = 1 << 20 };
#define MAX_WEIGHTS ((int64_t)1 << 50)

static bool
experts_plausible(const Spec *s, Diag *d)
{
	int64_t n = (int64_t)s->n_layers * s->moe.n_experts;

	if (n <= MAX_EXPERT_TENSORS)
		return true;
	err_at(d, spec_loc(s, "moe.n_experts"), "moe.n_experts = %d in %d layers: more than the %d experts that a plan can hold",
	       s->moe.n_experts, s->n_layers, MAX_EXPERT_TENSORS);
	return false;
}

static void
check_size(const Graph *g, Diag *d)
{
	int64_t total = 0, n;

	for (size_t i = 0; i < g->n_tensor; i++) {
		const PlanTensor *t = &g->tensor[i];
		if (__builtin_mul_overflow(t->rows, t->cols ? t->cols : 1, &n) || n > MAX_WEIGHTS || (total += n) > MAX_WEIGHTS) {
			err_at(d, spec_loc(g->spec, "hidden"), "this description adds up to more than 2^50 weights");
			return;
		}
	}
	for (size_t i = 0; i < g->n_op; i++) {
		ArgShape   shape[OP_MAX_ARGS];
		llmc_error err;
		if (op_fits(g, &g->op[i], shape, &err) != LLMC_OK) {
			err_at(d, g->op[i].loc, "%s", err.text);
			return;
		}
	}
}

static void
close_adapter(void *p)
{
	peft_close(p);
}

/* Its names are read here, its values where the weights are. */
static bool
open_adapter(Graph *g, Diag *d, Arena *perm)
{
	llmc_error err;

	if (!g->spec->lora.path)
		return true;
	if (peft_open(g->spec->lora.path, g->spec->lora.scale, &g->peft, &err) != LLMC_OK) {
		err_at(d, spec_loc(g->spec, "lora.path"), "%s", err.text);
		return false;
	}
	arena_defer(perm, close_adapter, g->peft);
	return true;
}

/* requires: a Spec that spec.c has accepted
 * effect:   ops in the order of the equations; weights with the places of their rows in the checkpoint; names the tensor map
 *           lacks and shapes the storage formats cannot hold are errors. Shapes of values are graph_infer's. */
Graph *
graph_build(const Spec *s, Diag *d, Arena *perm)
{
	Build b = { .g = graph_new(s, d, perm), .s = s, .layer = -1, .ple = -1 };
	int   table, x, errors = d->n_error;

	if (!experts_plausible(s, d) || !open_adapter(b.g, d, perm))
		return NULL;
	ropes(&b);
	pools(&b);
	x = embed(&b, &table);
	if (s->ple_width)
		b.ple = per_layer(&b, x);
	for (int l = 0; l < s->n_layers; l++) {
		x = layer(&b, x, l);
		b.g->val[x].name = arena_printf(perm, "x%d", l + 1);
	}
	head(&b, x, table);
	check_size(b.g, d);
	return d->n_error == errors ? b.g : NULL;
}
