/* The table of the reference: op name to function, attributes, scratch sizes, and the check of a step that will run here. */
#include "ref/internal.h"

typedef enum RefOp {
#define OP(name, in, out, flags, args, attrs, meaning) REF_OP_##name,
#include "compiler/ops.def"
#undef OP
	REF_OP_COUNT
} RefOp;

static const struct {
	const char *name, *args, *attrs;
	int         n_arg;
	ref_fn     *fn;
} table[REF_OP_COUNT] = {
#define OP(name_, in, out, flags, args_, attrs_, meaning)                                                                \
	[REF_OP_##name_] = { .name = #name_, .args = args_, .attrs = attrs_, .n_arg = (in) + (out), .fn = ref_##name_ },
#include "compiler/ops.def"
#undef OP
};

static RefOp
find(const char *op)
{
	int i = 0;

	while (i < REF_OP_COUNT && strcmp(table[i].name, op) != 0)
		i++;
	return (RefOp)i;
}

ref_fn *
ref_find(const char *op)
{
	RefOp i = find(op);

	return i == REF_OP_COUNT ? NULL : table[i].fn;
}

const PlanAttr *
ref_attr(const PlanStep *step, const char *key)
{
	for (int i = 0; i < step->n_attr; i++)
		if (!strcmp(step->attr[i].key, key))
			return &step->attr[i];
	return NULL;
}

int64_t
ref_int(const PlanStep *step, const char *key)
{
	const PlanAttr *a = ref_attr(step, key);

	return a && a->kind == ATTR_INT ? a->i : 0;
}

double
ref_num(const PlanStep *step, const char *key)
{
	const PlanAttr *a = ref_attr(step, key);

	if (!a)
		return 0;
	return a->kind == ATTR_INT ? (double)a->i : a->f;
}

const char *
ref_word(const PlanStep *step, const char *key)
{
	const PlanAttr *a = ref_attr(step, key);

	return a && a->kind == ATTR_WORD && a->s ? a->s : "";
}

/* --- scratch ---------------------------------------------------------------------------------------------------- */

/* *sum += a * b * c, false on overflow or a negative factor */
static bool
add_product(int64_t *sum, int64_t a, int64_t b, int64_t c)
{
	int64_t p;

	return a >= 0 && b >= 0 && c >= 0 && !__builtin_mul_overflow(a, b, &p) && !__builtin_mul_overflow(p, c, &p) &&
	       !__builtin_add_overflow(*sum, p, sum);
}

/* norm_linear: normed rows, then the norm's vectors or the matmul's row and bias */
static bool
add_norm_linear(int64_t *sum, int64_t n_tok, int64_t rows, int64_t cols)
{
	return add_product(sum, n_tok, cols, 1) && add_product(sum, 2, cols, 1) && add_product(sum, rows, 1, 1);
}

int64_t
ref_scratch_floats(const PlanStep *step, int64_t n_tok, int64_t kv_len)
{
	int64_t n = 0, rows = ref_int(step, "rows"), cols = ref_int(step, "cols"), hidden = ref_int(step, "hidden");
	int64_t dim = ref_int(step, "dim"), rank = ref_int(step, "kv_rank"), experts = ref_int(step, "n_experts");
	int64_t width = ref_int(step, "width");
	bool    ok = true;

	switch (find(step->op)) {
	case REF_OP_embed:
	case REF_OP_slice:
	case REF_OP_rope:
	case REF_OP_rope_2d:
	case REF_OP_kv_append:
	case REF_OP_mla_append:
	case REF_OP_act:
	case REF_OP_glu:
	case REF_OP_add:
	case REF_OP_gate_mul:
	case REF_OP_cap:
	case REF_OP_pick:
	case REF_OP_COUNT:
		return 0;
	case REF_OP_embed_pos:
		return hidden;
	case REF_OP_rmsnorm:
	case REF_OP_layernorm:
		ok = add_product(&n, 2, dim, 1);
		break;
	case REF_OP_matmul:
		ok = add_product(&n, rows, 1, 1) && add_product(&n, cols, 1, 1);
		break;
	case REF_OP_attention:
		return kv_len;
	case REF_OP_mla_attention:
		ok = add_product(&n, 2, n_tok, rank) && add_product(&n, rank, 1, 1) && add_product(&n, kv_len, 1, 1);
		break;
	case REF_OP_moe_route:
		ok = add_product(&n, 3, experts, 1) && add_product(&n, ref_int(step, "groups"), 1, 1);
		break;
	case REF_OP_moe_ffn:
		ok = add_product(&n, n_tok, ref_int(step, "top_k"), width) && add_product(&n, hidden, 1, 1) &&
		     add_product(&n, width, 1, 1);
		break;
	case REF_OP_norm_matmul:
	case REF_OP_norm_act:
		ok = add_norm_linear(&n, n_tok, rows, cols);
		break;
	case REF_OP_matmul_add:
		ok = add_product(&n, n_tok, rows, 1) && add_product(&n, rows, 1, 1) && add_product(&n, cols, 1, 1);
		break;
	case REF_OP_norm_qkv:
		ok = !__builtin_add_overflow(ref_int(step, "heads"), 2 * ref_int(step, "kv_heads"), &rows) &&
		     !__builtin_mul_overflow(rows, dim, &rows) && add_product(&n, n_tok, rows, 1) &&
		     add_norm_linear(&n, n_tok, rows, hidden) && add_product(&n, 2, dim, 1);
		break;
	case REF_OP_norm_glu:
		ok = add_product(&n, 2, n_tok, rows) && add_norm_linear(&n, n_tok, 2 * rows, cols);
		break;
	case REF_OP_head:
		ok = add_product(&n, n_tok, cols, 1) && add_norm_linear(&n, n_tok, rows, cols);
		break;
	}
	return ok ? n : -1;
}

/* --- checking --------------------------------------------------------------------------------------------------- */

typedef struct Check {
	const Plan     *p;
	const PlanStep *step;
	llmc_error     *err;
	const char     *op;
	PlanSym         rows; /* symbol that the rows of the op run over */
} Check;

#define BAD(k, ...) error_set((k)->err, LLMC_E_INPUT, __VA_ARGS__)

/* word: the list in `text` ("w nw? y") has `name` at place *at; the name's length in *len */
static const char *
list_word(const char *text, int at, size_t *len)
{
	const char *s = text;

	for (;;) {
		s += strspn(s, " ");
		*len = strcspn(s, " ");
		if (!*len || at-- == 0)
			return s;
		s += *len;
	}
}

/* Whole numbers lie in [0, 2^31); those named here may be 0, all others start at 1. */
static bool
may_be_zero(const char *key)
{
	static const char *const zero[] = { "first", "offset", "window", "plus_one", "qk_plus_one", "renorm", "groups",
		                            "keep_groups", "rope_dims" };

	for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
		if (!strcmp(key, zero[i]))
			return true;
	return false;
}

static bool
word_known(const char *key, const char *s)
{
	static const char *const known[][5] = {
		{ "norm", "none", "rms", "layer" },   { "act", "silu", "gelu", "gelu_tanh" },
		{ "mask", "causal", "prefix" },       { "style", "half", "interleaved", "none" },
		{ "score", "softmax", "sigmoid" },    { "group_score", "max", "top2", "none" },
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		if (strcmp(known[i][0], key) != 0)
			continue;
		for (int j = 1; j < 5 && known[i][j]; j++)
			if (!strcmp(known[i][j], s))
				return true;
		return false;
	}
	return false;
}

static llmc_status
check_attrs(Check *k)
{
	const char *attrs = table[find(k->op)].attrs, *w;
	size_t      len;
	int         n = 0;

	for (; w = list_word(attrs, n, &len), len; n++) {
		char            key[32] = { 0 };
		const PlanAttr *a;

		/* "name:i" */
		memcpy(key, w, len - 2 < sizeof key - 1 ? len - 2 : sizeof key - 1);
		a = ref_attr(k->step, key);
		if (!a)
			return BAD(k, "%s: attribute %s is missing", k->op, key);
		switch (w[len - 1]) {
		case 'i':
			if (a->kind != ATTR_INT)
				return BAD(k, "%s: attribute %s is not a whole number", k->op, key);
			if (a->i < (may_be_zero(key) ? 0 : 1) || a->i > INT32_MAX)
				return BAD(k, "%s: attribute %s = %lld is out of range", k->op, key, (long long)a->i);
			break;
		case 'f':
			if (a->kind != ATTR_NUM && a->kind != ATTR_INT)
				return BAD(k, "%s: attribute %s is not a number", k->op, key);
			if (!isfinite(ref_num(k->step, key)))
				return BAD(k, "%s: attribute %s is not finite", k->op, key);
			break;
		case 's':
			if (a->kind != ATTR_WORD || !a->s)
				return BAD(k, "%s: attribute %s is not a word", k->op, key);
			if (!word_known(key, a->s))
				return BAD(k, "%s: attribute %s has the unknown value '%s'", k->op, key, a->s);
			break;
		}
	}
	if (k->step->n_attr != n)
		return BAD(k, "%s: %d attributes, expected %d: %s", k->op, k->step->n_attr, n, attrs);
	return LLMC_OK;
}

/* Presence and kind of each argument. */
static llmc_status
check_args(Check *k)
{
	RefOp op = find(k->op);

	if (k->step->n_arg != table[op].n_arg)
		return BAD(k, "%s: %d arguments, expected %d: %s", k->op, k->step->n_arg, table[op].n_arg, table[op].args);
	for (int i = 0; i < k->step->n_arg; i++) {
		const PlanRef *a = &k->step->arg[i];
		size_t         len;
		const char    *name = list_word(table[op].args, i, &len);
		int            limit = 0;

		if (len == 4 && !strncmp(name, "done", 4))
			continue;
		switch (a->kind) {
		case REF_NONE:
			if (name[len - 1] != '?')
				return BAD(k, "%s: argument %.*s is missing", k->op, (int)len, name);
			continue;
		case REF_TENSOR: limit = k->p->n_tensor; break;
		case REF_BUFFER: limit = k->p->n_buffer; break;
		case REF_POOL: limit = k->p->n_pool; break;
		case REF_ROPE: limit = k->p->n_rope; break;
		}
		if (a->index < 0 || a->index >= limit)
			return BAD(k, "%s: argument %.*s has the index %d, of %d", k->op, (int)len, name, a->index, limit);
	}
	return LLMC_OK;
}

/* Argument `i` is a buffer of `width` elements for each row. */
static llmc_status
buffer(Check *k, int i, int64_t width, Dtype dtype)
{
	const PlanRef    *a = &k->step->arg[i];
	const PlanBuffer *b;

	if (a->kind != REF_BUFFER)
		return BAD(k, "%s: argument %d is not a buffer", k->op, i);
	b = &k->p->buffer[a->index];
	if (b->dtype != dtype)
		return BAD(k, "%s: argument %d is %s, expected %s", k->op, i, dtype_text(b->dtype), dtype_text(dtype));
	if (b->extent.sym != k->rows || b->extent.div > 1 || b->extent.mul < width)
		return BAD(k, "%s: buffer %s does not hold %lld elements for each row", k->op, b->id, (long long)width);
	return LLMC_OK;
}

static llmc_status
f32_rows(Check *k, int i, int64_t width)
{
	return buffer(k, i, width, DT_F32);
}

/* Argument `i`, when given, is a weight of at least `rows` rows; cols 0: a vector of exactly `rows` elements. */
static llmc_status
weight(Check *k, int i, int64_t rows, int64_t cols)
{
	const PlanRef    *a = &k->step->arg[i];
	const PlanTensor *t;

	if (a->kind == REF_NONE)
		return LLMC_OK;
	if (a->kind != REF_TENSOR)
		return BAD(k, "%s: argument %d is not a tensor", k->op, i);
	t = &k->p->tensor[a->index];
	if (t->cols != cols || (cols ? t->rows < rows : t->rows != rows))
		return BAD(k, "%s: tensor %s is %lld x %lld, expected %lld x %lld", k->op, t->id, (long long)t->rows,
		           (long long)t->cols, (long long)rows, (long long)cols);
	return LLMC_OK;
}

static llmc_status
rope(Check *k, int i, int64_t dims)
{
	const PlanRef *a = &k->step->arg[i];

	if (a->kind == REF_NONE)
		return LLMC_OK;
	if (a->kind != REF_ROPE)
		return BAD(k, "%s: argument %d is not a rotary table", k->op, i);
	if (k->p->rope[a->index].dims != dims || dims < 2 || dims % 2)
		return BAD(k, "%s: rotary table %d has %d elements, expected %lld, and an even number", k->op, a->index,
		           k->p->rope[a->index].dims, (long long)dims);
	return LLMC_OK;
}

static llmc_status
pool(Check *k, int i, bool mla, int64_t kv_heads, int64_t dim, int64_t v_dim)
{
	const PlanRef  *a = &k->step->arg[i];
	const PlanPool *p;

	if (a->kind != REF_POOL)
		return BAD(k, "%s: argument %d is not a pool", k->op, i);
	p = &k->p->pool[a->index];
	if (p->mla != mla || p->kv_heads != kv_heads || p->k_dim != dim || p->v_dim != v_dim)
		return BAD(k, "%s: pool %s has other head counts or widths than the op", k->op, p->id);
	if (p->dtype != DT_F16 && p->dtype != DT_BF16 && p->dtype != DT_F32)
		return BAD(k, "%s: pool %s is %s, expected f16, bf16 or f32", k->op, p->id, dtype_text(p->dtype));
	if (a->layer_slot < 0 || a->layer_slot >= p->n_layers)
		return BAD(k, "%s: layer %d of pool %s, which has %d", k->op, a->layer_slot, p->id, p->n_layers);
	return LLMC_OK;
}

static llmc_status
must(Check *k, bool ok, const char *rule)
{
	return ok ? LLMC_OK : BAD(k, "%s: attributes break the rule %s", k->op, rule);
}

/* x, nw?, nb?, w, b? of the ops that norm first; w and b have `rows` rows */
static llmc_status
norm_first(Check *k, int64_t rows, int64_t cols)
{
	TRY(weight(k, 1, cols, 0));
	TRY(weight(k, 2, cols, 0));
	return weight(k, 3, rows, cols);
}

/* Rows follow the output buffer; ops that look at the tokens of the step have n_tok of them. */
static PlanSym
row_sym(const Check *k, RefOp op)
{
	const PlanRef *a = &k->step->arg[k->step->n_arg - 1];

	switch (op) {
	case REF_OP_embed:
	case REF_OP_embed_pos:
	case REF_OP_rope:
	case REF_OP_rope_2d:
	case REF_OP_kv_append:
	case REF_OP_attention:
	case REF_OP_mla_append:
	case REF_OP_mla_attention:
	case REF_OP_norm_qkv:
	case REF_OP_pick: /* of x */
	case REF_OP_head:
		return SYM_n_tok;
	default:
		break;
	}
	if (a->kind == REF_BUFFER && k->p->buffer[a->index].extent.sym == SYM_n_out)
		return SYM_n_out;
	return SYM_n_tok;
}

static llmc_status
check_shapes(Check *k, RefOp op)
{
	const PlanStep *s = k->step;
	const Plan     *p = k->p;
	int64_t rows = ref_int(s, "rows"), cols = ref_int(s, "cols"), hidden = ref_int(s, "hidden"), dim = ref_int(s, "dim");
	int64_t width = ref_int(s, "width"), heads = ref_int(s, "heads"), kv_heads = ref_int(s, "kv_heads");
	int64_t v_dim = ref_int(s, "v_dim"), rope_dims = ref_int(s, "rope_dims"), first = ref_int(s, "first");
	int64_t rank = ref_int(s, "kv_rank"), rope_dim = ref_int(s, "rope_dim"), nope = ref_int(s, "nope_dim");
	int64_t experts = ref_int(s, "n_experts"), top_k = ref_int(s, "top_k"), groups = ref_int(s, "groups");

	switch (op) {
	case REF_OP_embed:
		TRY(weight(k, 0, p->vocab, hidden));
		return f32_rows(k, 1, hidden);
	case REF_OP_embed_pos:
		TRY(f32_rows(k, 0, hidden));
		TRY(weight(k, 1, p->max_positions + ref_int(s, "offset"), hidden));
		return f32_rows(k, 2, hidden);
	case REF_OP_rmsnorm:
		TRY(must(k, groups >= 1, "groups >= 1"));
		TRY(f32_rows(k, 0, groups * dim));
		TRY(weight(k, 1, dim, 0));
		return f32_rows(k, 2, groups * dim);
	case REF_OP_layernorm:
		TRY(f32_rows(k, 0, dim));
		TRY(weight(k, 1, dim, 0));
		TRY(weight(k, 2, dim, 0));
		return f32_rows(k, 3, dim);
	case REF_OP_matmul:
		TRY(f32_rows(k, 0, cols));
		TRY(weight(k, 1, rows, cols));
		TRY(weight(k, 2, rows, 0));
		return f32_rows(k, 3, rows);
	case REF_OP_slice:
		TRY(must(k, first + ref_int(s, "count") <= width, "first + count <= width"));
		TRY(f32_rows(k, 0, width));
		return f32_rows(k, 1, ref_int(s, "count"));
	case REF_OP_rope:
		TRY(must(k, first + rope_dims <= dim, "first + rope_dims <= dim"));
		TRY(f32_rows(k, 0, heads * dim));
		TRY(rope(k, 1, rope_dims));
		return f32_rows(k, 2, heads * dim);
	case REF_OP_rope_2d:
		TRY(must(k, rope_dims <= dim / 2, "rope_dims <= dim / 2"));
		TRY(f32_rows(k, 0, heads * dim));
		TRY(rope(k, 1, rope_dims));
		TRY(rope(k, 2, rope_dims));
		return f32_rows(k, 3, heads * dim);
	case REF_OP_kv_append:
		TRY(f32_rows(k, 0, kv_heads * dim));
		TRY(f32_rows(k, 1, kv_heads * v_dim));
		return pool(k, 2, false, kv_heads, dim, v_dim);
	case REF_OP_attention:
		TRY(must(k, heads % kv_heads == 0, "heads is a multiple of kv_heads"));
		TRY(f32_rows(k, 0, heads * dim));
		TRY(pool(k, 1, false, kv_heads, dim, v_dim));
		return f32_rows(k, 3, heads * v_dim);
	case REF_OP_mla_append:
		TRY(f32_rows(k, 0, rank));
		TRY(f32_rows(k, 1, rope_dim));
		return pool(k, 2, true, 1, rank + rope_dim, 0);
	case REF_OP_mla_attention:
		TRY(f32_rows(k, 0, heads * (nope + rope_dim)));
		TRY(weight(k, 1, heads * nope, rank));
		TRY(weight(k, 2, heads * v_dim, rank));
		TRY(pool(k, 3, true, 1, rank + rope_dim, 0));
		return f32_rows(k, 5, heads * v_dim);
	case REF_OP_act:
	case REF_OP_cap:
		TRY(must(k, op == REF_OP_act || ref_num(s, "cap") > 0, "cap > 0"));
		TRY(f32_rows(k, 0, width));
		return f32_rows(k, 1, width);
	case REF_OP_glu:
	case REF_OP_add:
		TRY(f32_rows(k, 0, width));
		TRY(f32_rows(k, 1, width));
		return f32_rows(k, 2, width);
	case REF_OP_gate_mul:
		TRY(f32_rows(k, 0, width));
		TRY(f32_rows(k, 1, 1));
		return f32_rows(k, 2, width);
	case REF_OP_moe_route:
		TRY(must(k, top_k <= experts, "top_k <= n_experts"));
		TRY(must(k, groups <= 1 || experts % groups == 0, "n_experts is a multiple of groups"));
		TRY(must(k, groups <= 1 || (ref_int(s, "keep_groups") >= 1 && ref_int(s, "keep_groups") <= groups),
		         "1 <= keep_groups <= groups"));
		TRY(f32_rows(k, 0, experts));
		TRY(weight(k, 1, experts, 0));
		TRY(buffer(k, 2, top_k, DT_I32));
		return f32_rows(k, 3, top_k);
	case REF_OP_moe_ffn:
		TRY(f32_rows(k, 0, hidden));
		TRY(buffer(k, 1, top_k, DT_I32));
		TRY(f32_rows(k, 2, top_k));
		TRY(weight(k, 3, experts * width, hidden));
		TRY(weight(k, 4, experts * width, hidden));
		TRY(weight(k, 5, experts * hidden, width));
		return f32_rows(k, 6, hidden);
	case REF_OP_pick:
		TRY(f32_rows(k, 0, width));
		k->rows = SYM_n_out;
		return f32_rows(k, 1, width);
	case REF_OP_norm_matmul:
	case REF_OP_norm_act:
		TRY(f32_rows(k, 0, cols));
		TRY(norm_first(k, rows, cols));
		TRY(weight(k, 4, rows, 0));
		return f32_rows(k, 5, rows);
	case REF_OP_norm_glu:
		TRY(f32_rows(k, 0, cols));
		TRY(norm_first(k, 2 * rows, cols));
		TRY(weight(k, 4, 2 * rows, 0));
		return f32_rows(k, 5, rows);
	case REF_OP_matmul_add:
		TRY(f32_rows(k, 0, cols));
		TRY(weight(k, 1, rows, cols));
		TRY(weight(k, 2, rows, 0));
		TRY(f32_rows(k, 3, rows));
		return f32_rows(k, 4, rows);
	case REF_OP_norm_qkv:
		TRY(must(k, s->arg[7].kind == REF_NONE || rope_dims <= dim, "rope_dims <= dim"));
		TRY(f32_rows(k, 0, hidden));
		TRY(norm_first(k, (heads + 2 * kv_heads) * dim, hidden));
		TRY(weight(k, 4, (heads + 2 * kv_heads) * dim, 0));
		TRY(weight(k, 5, dim, 0));
		TRY(weight(k, 6, dim, 0));
		TRY(rope(k, 7, rope_dims));
		TRY(pool(k, 8, false, kv_heads, dim, dim));
		return f32_rows(k, 9, heads * dim);
	case REF_OP_head:
		TRY(f32_rows(k, 0, cols));
		TRY(norm_first(k, rows, cols));
		k->rows = SYM_n_out;
		return f32_rows(k, 4, rows);
	case REF_OP_COUNT:
		break;
	}
	return LLMC_OK;
}

llmc_status
ref_check_step(const Plan *p, const PlanStep *step, llmc_error *err)
{
	Check k = { .p = p, .step = step, .err = err, .op = step->op };
	RefOp op = find(step->op);
	/* factors of sizes: below 2^31 each, products of three of them are refused here */
	static const char *const factor[][3] = { { "heads", "dim" }, { "n_experts", "width", "hidden" }, { "kv_heads", "dim" },
		                                 { "heads", "nope_dim", "kv_rank" }, { "heads", "v_dim", "kv_rank" } };

	if (op == REF_OP_COUNT)
		return error_set(err, LLMC_E_INPUT, "the op '%s' is unknown", step->op);
	TRY(check_attrs(&k));
	TRY(check_args(&k));
	for (size_t i = 0; i < sizeof factor / sizeof *factor; i++) {
		int64_t n = 1;

		for (int j = 0; j < 3 && factor[i][j]; j++) {
			const PlanAttr *a = ref_attr(step, factor[i][j]);

			if (a && __builtin_mul_overflow(n, a->i, &n))
				return BAD(&k, "%s: its sizes multiply to more than 64 bits", k.op);
		}
	}
	k.rows = row_sym(&k, op);
	return check_shapes(&k, op);
}
