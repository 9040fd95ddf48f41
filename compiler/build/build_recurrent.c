/* Recurrent blocks that replace the KV cache: convolutions, delta rules and selective scans. */
#include <math.h>

#include "compiler/build/build_heads.h"
#include "compiler/build/build_model.h"

/* y = act(w * x + wb), a convolution along the sequence; w has `taps` rows per channel. */
static int
conv(ModelBuilder *b, int x, int w, int wb, int64_t width, int taps, const char *gate,
     const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, conv1d, .x = x, .w = w, .b = wb, .state = b->conv[b->layer], .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_int(b->g, o, "taps", taps);
	op_set_word(b->g, o, "gate", gate);
	return y;
}

/* Concatenate the convolution weights of q, k and v in the order of the channels. */
static int
conv_weights(ModelBuilder *b, const int64_t rows[3])
{
	static const char *const role[] = { "lin_conv_q", "lin_conv_k", "lin_conv_v" };
	int part[3];

	for (int i = 0; i < 3; i++)
		if ((part[i] = build_matrix(b, role[i], rows[i] * b->s->linear.taps, 0)) < 0)
			return -1;
	int w = graph_stack(b->g, arena_printf(b->g->arena, "L%d.lin_conv", b->layer), part, 3);
	if (w < 0)
		err_at(
		    b->g->diag, b->loc,
		    "layer %d: the convolution's weights of q, k and v must be stored in one type",
		    b->layer);
	return w;
}

/* Multiply h by one matrix, or by two with inner dimension `low` if `low` is not 0. */
static int
build_low_rank(ModelBuilder *b, int h, const char *low, const char *role, int64_t rank,
               int64_t rows)
{
	if (rank)
		h = build_matmul(b, h, low, false, rank, b->s->hidden, low);
	return build_matmul(b, h, role, false, rows, rank ? rank : b->s->hidden, role);
}

int
build_delta_rule(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t k_heads = s->linear.k_heads, v_heads = s->linear.v_heads, k_dim = s->linear.k_dim,
	        v_dim = s->linear.v_dim;
	int64_t width = 2 * k_heads * k_dim + v_heads * v_dim,
	        decays = s->linear.per_channel ? k_dim : 1;
	static const char *const role[] = { "lin_q", "lin_k", "lin_v" };
	const int64_t rows[] = { k_heads * k_dim, k_heads * k_dim, v_heads * v_dim };
	const StorageRule as = spec_storage(s, role[0], b->layer);
	int part[3];
	bool there = true;

	build_at(b, "linear.layers");
	for (int i = 0; i < 3; i++) {
		const StorageRule own = spec_storage(s, role[i], b->layer);
		part[i] = build_matrix(b, role[i], rows[i], s->hidden);
		there &= part[i] >= 0;
		if (!same_word(own.order, as.order) || !same_word(own.factor, as.factor)) {
			err_at(b->g->diag, b->loc,
			       "layer %d: q, k and v before a convolution must share one column "
			       "order and one factor",
			       b->layer);
			return h;
		}
	}
	int w = there
	            ? graph_stack(b->g, arena_printf(b->g->arena, "L%d.lin_qkv", b->layer), part, 3)
	            : -1;
	if (w < 0) {
		if (there)
			err_at(
			    b->g->diag, b->loc,
			    "layer %d: q, k and v before a convolution must be stored in one type",
			    b->layer);
		return h;
	}
	int qkv = build_value(b, "lin_qkv"), in = build_permute_cols(b, h, role[0], s->hidden);
	Op *o = OP(b, matmul, .x = in, .w = w, .b = -1, .y = qkv);
	op_set_int(b->g, o, "rows", width);
	op_set_int(b->g, o, "cols", s->hidden);
	int z = build_low_rank(b, h, "lin_z_low", "lin_z", s->linear.gate_rank, v_heads * v_dim);
	int beta = build_matmul(b, h, "lin_b", false, v_heads, s->hidden, "lin_b");
	int a = build_low_rank(b, h, "lin_a_low", "lin_a", s->linear.decay_rank, v_heads * decays);
	int x = conv(b, qkv, conv_weights(b, rows), -1, width, s->linear.taps, "silu", "lin_conv");

	int rate = build_matrix(b, "lin_rate", v_heads, 0),
	    dt = build_matrix(b, "lin_dt", v_heads * decays, 0), y = build_value(b, "lin_y");
	o = OP(b, delta_rule, .x = x, .a = a, .b = beta, .rate = rate, .dt = dt,
	       .state = b->state[b->layer], .y = y);
	op_set_int(b->g, o, "k_heads", k_heads);
	op_set_int(b->g, o, "v_heads", v_heads);
	op_set_int(b->g, o, "k_dim", k_dim);
	op_set_int(b->g, o, "v_dim", v_dim);
	op_set_int(b->g, o, "g_dim", decays);
	op_set_num(b->g, o, "scale", 1 / sqrt((double)k_dim));
	op_set_num(b->g, o, "eps", 1e-6);
	op_set_int(b->g, o, "tiled", s->linear.tiled);
	op_set_int(b->g, o, "a_log", s->linear.a_log);
	op_set_num(b->g, o, "b_scale", s->linear.beta_scale);

	int nw = build_matrix(b, "lin_norm", v_dim, 0), gated = build_value(b, "lin_gated");
	o = OP(b, norm_gate, .x = y, .z = z, .w = nw, .y = gated);
	op_set_int(b->g, o, "dim", v_dim);
	op_set_int(b->g, o, "groups", v_heads);
	op_set_num(b->g, o, "eps", s->norm.linear_eps);
	op_set_word(b->g, o, "order", "norm_first");
	op_set_word(b->g, o, "gate", s->linear.gate);
	return build_matmul(b, gated, "lin_o", false, s->hidden, v_heads * v_dim, "attn_out");
}

static int
build_mul(ModelBuilder *b, int x, int z, int64_t width, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, mul, .x = x, .z = z, .y = y);

	op_set_int(b->g, o, "width", width);
	return y;
}

int
build_short_conv(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t hidden = s->hidden;

	build_at(b, "conv.layers");
	int gate = build_matmul(b, h, "conv_b", s->conv.bias, hidden, hidden, "conv_b"),
	    out = build_matmul(b, h, "conv_c", s->conv.bias, hidden, hidden, "conv_c");
	int x =
	    build_mul(b, gate, build_matmul(b, h, "conv_x", s->conv.bias, hidden, hidden, "conv_x"),
	              hidden, "conv_in");
	int w = build_matrix(b, "conv_w", hidden * s->conv.taps, 0),
	    wb = build_bias(b, s->conv.bias, "conv_w", hidden);
	x = conv(b, x, w, wb, hidden, s->conv.taps, "none", "conv_y");
	return build_matmul(b, build_mul(b, out, x, hidden, "conv_out"), "conv_o", s->conv.bias,
	                    hidden, hidden, "attn_out");
}

/* Gate the output of a scan by z. */
static int
scan_gate(ModelBuilder *b, int y, int z, int64_t inner)
{
	const Spec *s = b->s;
	int out = build_value(b, "ssm_gated");
	bool first = s->ssm.norm == SSM_GATE_FIRST;
	Op *o;

	if (s->ssm.norm == SSM_NO_NORM) {
		o = OP(b, glu, .g = z, .u = y, .y = out);
		op_set_int(b->g, o, "width", inner);
		op_set_word(b->g, o, "act", "silu");
		op_set_num(b->g, o, "limit", 0);
		return out;
	}
	int64_t dim = inner / s->ssm.norm_groups;
	o = OP(b, norm_gate, .x = y, .z = z, .w = build_matrix(b, "ssm_norm", inner, 0), .y = out);
	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "groups", s->ssm.norm_groups);
	op_set_num(b->g, o, "eps", s->norm.ssm_eps);
	op_set_word(b->g, o, "order", first ? "gate_first" : "norm_first");
	op_set_word(b->g, o, "gate", "silu");
	return out;
}

/* Return dt, B or C of a Mamba scan, after its norm if there is one. */
static int
scan_part(ModelBuilder *b, int x, const char *role, int64_t rows)
{
	const Spec *s = b->s;
	int y = build_matmul(b, x, role, false, rows, s->ssm.dim, role);
	const char *norm =
	    s->ssm.low_norm == LOW_WEIGHT ? arena_printf(b->g->arena, "%s_norm", role) : NULL;

	return s->ssm.low_norm == LOW_NO_NORM
	           ? y
	           : build_rmsnorm(b, y, norm, rows, 1, s->norm.ssm_eps, false,
	                           arena_printf(b->g->arena, "%s_normed", role));
}

int
build_channel_scan(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t inner = s->ssm.dim, n = s->ssm.state;

	int z = build_matmul(b, h, "ssm_z", s->ssm.bias, inner, s->hidden, "ssm_z"),
	    u = build_matmul(b, h, "ssm_x", s->ssm.bias, inner, s->hidden, "ssm_x");
	int cw = build_matrix(b, "ssm_conv", inner * s->ssm.taps, 0),
	    cb = build_bias(b, s->ssm.conv_bias, "ssm_conv", inner);
	int x = conv(b, u, cw, cb, inner, s->ssm.taps, "silu", "ssm_conv");
	int low = scan_part(b, x, "ssm_low", s->ssm.dt_rank), in = scan_part(b, x, "ssm_b", n),
	    out = scan_part(b, x, "ssm_c", n);
	int dt = build_matmul(b, low, "ssm_dt", false, inner, s->ssm.dt_rank, "ssm_dt");

	int rate = build_matrix(b, "ssm_rate", inner * n, 0),
	    bias = build_matrix(b, "ssm_dt_bias", inner, 0),
	    skip = build_matrix(b, "ssm_skip", inner, 0);
	int y = build_value(b, "ssm_y");
	Op *o = OP(b, channel_scan, .x = x, .dt = dt, .b = in, .c = out, .rate = rate, .bias = bias,
	           .skip = skip, .state = b->state[b->layer], .y = y);
	op_set_int(b->g, o, "width", inner);
	op_set_int(b->g, o, "n_state", n);
	op_set_int(b->g, o, "a_log", s->ssm.a_log);
	return build_matmul(b, scan_gate(b, y, z, inner), "ssm_o", s->ssm.bias, s->hidden, inner,
	                    s->ssm.parallel ? "ssm_out" : "attn_out");
}

int
build_scan(ModelBuilder *b, int h)
{
	const Spec *s = b->s;
	int64_t heads = s->ssm.heads, inner = heads * s->ssm.dim, width = spec_ssm_row(s);

	const double *gain = s->ssm.gain;
	const int64_t part = (int64_t)s->ssm.groups * s->ssm.state;
	int z = build_scaled(b, build_matmul(b, h, "ssm_z", s->ssm.bias, inner, s->hidden, "ssm_z"),
	                     gain[0], inner, "ssm_z_scaled");
	int in = build_matmul(b, h, "ssm_x", s->ssm.bias, width, s->hidden, "ssm_x");
	in = build_scaled_part(b, in, gain[1], width, 0, inner, "ssm_u_scaled");
	in = build_scaled_part(b, in, gain[2], width, inner, part, "ssm_b_scaled");
	in = build_scaled_part(b, in, gain[3], width, inner + part, part, "ssm_c_scaled");
	int dt =
	    build_scaled(b, build_matmul(b, h, "ssm_dt", s->ssm.bias, heads, s->hidden, "ssm_dt"),
	                 gain[4], heads, "ssm_dt_scaled");
	int cw = build_matrix(b, "ssm_conv", width * s->ssm.taps, 0),
	    cb = build_bias(b, s->ssm.conv_bias, "ssm_conv", width);
	int x = conv(b, in, cw, cb, width, s->ssm.taps, "silu", "ssm_conv");

	int rate = build_matrix(b, "ssm_rate", heads, 0),
	    bias = build_matrix(b, "ssm_dt_bias", heads, 0),
	    skip = build_matrix(b, "ssm_skip", heads, 0);
	int y = build_value(b, "ssm_y");
	Op *o = OP(b, selective_scan, .x = x, .dt = dt, .rate = rate, .bias = bias, .skip = skip,
	           .state = b->state[b->layer], .y = y);
	op_set_int(b->g, o, "heads", heads);
	op_set_int(b->g, o, "dim", s->ssm.dim);
	op_set_int(b->g, o, "groups", s->ssm.groups);
	op_set_int(b->g, o, "n_state", s->ssm.state);
	op_set_int(b->g, o, "a_log", s->ssm.a_log);
	op_set_num(b->g, o, "dt_min", s->ssm.dt_min);
	op_set_num(b->g, o, "dt_max", s->ssm.dt_max);
	return build_matmul(b, scan_gate(b, y, z, inner), "ssm_o", s->ssm.bias, s->hidden, inner,
	                    s->ssm.parallel ? "ssm_out" : "attn_out");
}
