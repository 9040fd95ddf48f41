/* Values, weights, and single equations */
#include "compiler/build/build_model.h"

#include "formats/quant_format.h"

int
build_value(ModelBuilder *b, const char *name)
{
	const char *full =
	    b->layer < 0 ? name : arena_printf(b->g->arena, "L%d.%s", b->layer, name);
	return graph_value(b->g, VAL_ACT, full, b->loc);
}

int
build_matrix(ModelBuilder *b, const char *role, int64_t rows, int64_t cols)
{
	return build_weight(b->g, role, b->layer, ".weight", rows, cols, b->loc);
}

int
build_bias(ModelBuilder *b, bool wanted, const char *role, int64_t rows)
{
	return wanted ? build_weight(b->g, role, b->layer, ".bias", rows, 0, b->loc) : -1;
}

Op *
build_op(ModelBuilder *b, OpKind kind, const int *arg)
{
	Op *o = graph_op(b->g, kind, b->layer, b->loc);
	const OpInfo *info = &op_info[kind];

	op_args(o, arg);
	for (int k = info->n_in; k < info->n_arg; k++)
		b->g->val[arg[k]].def = (int)b->g->n_op - 1;
	return o;
}

void
build_at(ModelBuilder *b, const char *key)
{
	b->loc = spec_loc(b->s, key);
}

/* --- single equations --- */

/* Gather columns of x by `order`, and multiply them by `factor`. Either may be -1, for none. */
static int
permute(ModelBuilder *b, int x, int order, int factor, int64_t cols, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, permute_cols, .x = x, .nw = -1, .nb = -1, .order = order, .factor = factor,
	           .y = y);

	op_set_int(b->g, o, "width", cols);
	op_set_word(b->g, o, "norm", "none");
	op_set_num(b->g, o, "eps", 0);
	op_set_int(b->g, o, "plus_one", 0);
	return y;
}

int
build_permute_cols(ModelBuilder *b, int x, const char *role, int64_t cols)
{
	const StorageRule r = spec_storage(b->s, role, b->layer);
	const int room = sizeof b->permuted / sizeof *b->permuted;

	if (!r.order && !r.factor)
		return x;
	for (int i = 0; i < room && i < b->n_permuted; i++)
		if (b->permuted[i].x == x && same_word(b->permuted[i].order, r.order) &&
		    same_word(b->permuted[i].factor, r.factor))
			return b->permuted[i].y;
	int order =
	    r.order ? build_adapter_input(b->g, r.order, b->layer, QUANT_FORMAT_ORDER, cols, b->loc)
	            : -1;
	int factor = r.factor ? build_adapter_input(b->g, r.factor, b->layer, QUANT_FORMAT_FACTOR,
	                                            cols, b->loc)
	                      : -1;
	int y = permute(b, x, order, factor, cols, arena_printf(b->g->arena, "%s_x", role));
	b->permuted[b->n_permuted++ % room].x = x;
	b->permuted[(b->n_permuted - 1) % room].y = y;
	b->permuted[(b->n_permuted - 1) % room].order = r.order;
	b->permuted[(b->n_permuted - 1) % room].factor = r.factor;
	return y;
}

int
build_times(ModelBuilder *b, int x, const char *role, int64_t width, const char *name)
{
	return permute(b, x, -1, build_matrix(b, role, width, 0), width, name);
}

/* Add an adapter's contribution b (a x) to y = x w^T, with the factors in the slot of the row's
 * sequence. */
static int
adapted(ModelBuilder *b, int x, int y, int fa, int fb, int64_t rows, int64_t cols, const char *name)
{
	const int rank = b->s->adapters.rank, slots = b->s->adapters.slots;
	int low = build_value(b, arena_printf(b->g->arena, "%s_low", name)),
	    sum = build_value(b, name);
	Op *o = OP(b, lora_down, .x = x, .a = fa, .t = low);

	op_set_int(b->g, o, "cols", cols);
	op_set_int(b->g, o, "rank", rank);
	op_set_int(b->g, o, "count", 1);
	op_set_int(b->g, o, "slots", slots);
	o = OP(b, lora_up, .x = y, .t = low, .b = fb, .y = sum);
	op_set_int(b->g, o, "rows", rows);
	op_set_int(b->g, o, "rank", rank);
	op_set_int(b->g, o, "count", 1);
	op_set_int(b->g, o, "first", 0);
	op_set_int(b->g, o, "slots", slots);
	return sum;
}

int
build_matmul(ModelBuilder *b, int x, const char *role, bool with_bias, int64_t rows, int64_t cols,
             const char *name)
{
	int factor[2];
	bool slots = build_factors(b->g, role, b->layer, rows, cols, b->loc, factor);
	int w = build_matrix(b, role, rows, cols), wb = build_bias(b, with_bias, role, rows);
	int y = build_value(b, slots ? arena_printf(b->g->arena, "%s_base", name) : name);
	Op *o = OP(b, matmul, .x = build_permute_cols(b, x, role, cols), .w = w, .b = wb, .y = y);

	op_set_int(b->g, o, "rows", rows);
	op_set_int(b->g, o, "cols", cols);
	return slots ? adapted(b, x, y, factor[0], factor[1], rows, cols, name) : y;
}

int
build_rmsnorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups, double eps,
              bool plus_one, const char *name)
{
	int w = role ? build_matrix(b, role, dim, 0) : -1, y = build_value(b, name);
	Op *o = OP(b, rmsnorm, .x = x, .w = w, .y = y);

	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "groups", groups);
	op_set_num(b->g, o, "eps", eps);
	op_set_int(b->g, o, "plus_one", plus_one);
	return y;
}

int
build_layernorm(ModelBuilder *b, int x, const char *role, int64_t dim, int64_t groups, bool each,
                double eps, const char *name)
{
	const Spec *s = b->s;
	int64_t n = each ? groups * dim : dim;
	int w = role ? build_matrix(b, role, n, 0) : -1,
	    wb = build_bias(b, role && s->norm.bias && !each, role, n), y = build_value(b, name);
	Op *o = OP(b, layernorm, .x = x, .w = w, .b = wb, .y = y);

	op_set_int(b->g, o, "dim", dim);
	op_set_int(b->g, o, "groups", groups);
	op_set_int(b->g, o, "per_group", each);
	op_set_num(b->g, o, "eps", eps);
	op_set_int(b->g, o, "plus_one", s->norm.plus_one);
	return y;
}

int
build_norm(ModelBuilder *b, bool wanted, int x, const char *role, const char *name)
{
	const Spec *s = b->s;

	if (!wanted || s->norm.kind == NORM_NONE)
		return x;
	const double eps = strcmp(role, "final_norm") == 0 ? s->norm.final_eps : s->norm.eps;
	if (s->norm.kind == NORM_RMS)
		return build_rmsnorm(b, x, s->norm.weight ? role : NULL, s->hidden, 1, eps,
		                     s->norm.plus_one, name);
	return build_layernorm(b, x, s->norm.weight ? role : NULL, s->hidden, 1, false, eps, name);
}

static int
gain_part(ModelBuilder *b, int x, const char *role, double scale, int64_t width, int64_t first,
          int64_t count, const char *name)
{
	int w = role ? build_matrix(b, role, 1, 0) : -1, y = build_value(b, name);
	Op *o = OP(b, scale_cols, .x = x, .w = w, .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "scale", scale);
	op_set_int(b->g, o, "first", first);
	op_set_int(b->g, o, "count", count);
	return y;
}

int
build_gain(ModelBuilder *b, int x, const char *role, double scale, int64_t width, const char *name)
{
	return gain_part(b, x, role, scale, width, 0, width, name);
}

int
build_scaled(ModelBuilder *b, int x, double scale, int64_t width, const char *name)
{
	return build_scaled_part(b, x, scale, width, 0, width, name);
}

int
build_scaled_part(ModelBuilder *b, int x, double scale, int64_t width, int64_t first, int64_t count,
                  const char *name)
{
	return scale == 1 ? x : gain_part(b, x, NULL, scale, width, first, count, name);
}

int
build_add_wide(ModelBuilder *b, int x, int r, double scale, int64_t width, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, add, .x = x, .r = r, .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_num(b->g, o, "scale", scale);
	return y;
}

int
build_add(ModelBuilder *b, int x, int r, double scale, const char *name)
{
	return build_add_wide(b, x, r, scale, b->s->hidden, name);
}

int
build_slice(ModelBuilder *b, int x, int64_t width, int64_t first, int64_t count, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, slice, .x = x, .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_int(b->g, o, "first", first);
	op_set_int(b->g, o, "count", count);
	return y;
}

const char *
build_act_word(ActKind a)
{
	switch (a) {
	case ACT_SILU:
		return "silu";
	case ACT_GELU:
		return "gelu";
	case ACT_GELU_TANH:
		return "gelu_tanh";
	case ACT_GELU_QUICK:
		return "gelu_quick";
	case ACT_RELU:
		return "relu";
	case ACT_RELU2:
		return "relu2";
	case ACT_SWIGLU_OAI:
		return "swiglu_oai";
	case ACT_SILU_LIMIT:
		return "silu_limit";
	case ACT_XIELU:
		return "xielu";
	}
	return "";
}
