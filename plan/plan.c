/* Sizes that follow from a plan, checked for overflow; used by the compiler (mem), the plan checker
 * and the runtime. */
#include "plan/plan.h"

#include <math.h>

#include "base/align.h"
#include "formats/layout.h"

const char *const plan_sym_text[SYM_COUNT] = {
#define X(name) #name,
	PLAN_SYM_LIST(X)
#undef X
};

const char *const plan_vision_name[3] = {
	[VISION_NONE] = "none", [VISION_ROWS] = "rows", [VISION_TOWER] = "tower"
};
const char *const plan_output_name[3] = { [LLMC_OUTPUT_LOGITS] = "logits",
	                                  [LLMC_OUTPUT_HIDDEN] = "hidden",
	                                  [LLMC_OUTPUT_LABELS] = "labels" };

const char *const plan_dir_text[DIR_COUNT] = {
	[DIR_IN] = "in",     [DIR_OUT] = "out",         [DIR_INOUT] = "inout", [DIR_POOL] = "pool",
	[DIR_ROPE] = "rope", [DIR_SCRATCH] = "scratch", [DIR_NONE] = "none",
};

const char *const plan_path_text[PATH_COUNT] = {
	[PATH_ANY] = "any", [PATH_OWN] = "own", [PATH_LIBRARY] = "library"
};

static int64_t
page_bytes(const PlanPool *p, KvType k, KvType v)
{
	const int64_t most = (int64_t)1 << 40;
	int64_t bytes;

	if (p->kv_heads < 0 || p->k_dim < 0 || p->v_dim < 0 || p->k_dim > most || p->v_dim > most ||
	    __builtin_mul_overflow(kv_row_bytes(k, p->k_dim) + kv_row_bytes(v, p->v_dim),
	                           p->kv_heads, &bytes) ||
	    __builtin_mul_overflow(bytes, (int64_t)PLAN_KV_PAGE, &bytes))
		return -1;
	return bytes;
}

int64_t
plan_layer_page_bytes(const PlanPool *p)
{
	return p->state ? 0 : page_bytes(p, p->k, p->v);
}

int64_t
plan_layer_exact_bytes(const PlanPool *p)
{
	return p->recent || p->sinks ? page_bytes(p, kv_exact(p->k), kv_exact(p->v)) : 0;
}

int64_t
plan_page_bytes(const Plan *p)
{
	int64_t sum = 0;

	for (int i = 0; i < p->n_pool; i++) {
		int64_t one = plan_layer_page_bytes(&p->pool[i]),
		        exact = plan_layer_exact_bytes(&p->pool[i]);
		if (one < 0 || exact < 0 || __builtin_add_overflow(one, exact, &one) ||
		    __builtin_mul_overflow(one, (int64_t)p->pool[i].n_layers, &one) ||
		    __builtin_add_overflow(sum, one, &sum))
			return -1;
	}
	return sum;
}

int64_t
plan_layer_state_bytes(const PlanPool *p)
{
	int64_t bytes;

	if (!p->state)
		return 0;
	if (p->kv_heads < 1 || p->k_dim < 1 || p->v_dim < 1 ||
	    __builtin_mul_overflow(p->k_dim, p->v_dim, &bytes) ||
	    __builtin_mul_overflow(bytes, p->kv_heads, &bytes) ||
	    __builtin_mul_overflow(bytes, (int64_t)sizeof(float), &bytes))
		return -1;
	return bytes;
}

bool
plan_mixed_serves(const PlanStep *p)
{
	return p->flops_per_row > 0 && !(op_info[p->op].flags & OPF_READS_KV);
}

bool
plan_has_state(const Plan *p)
{
	for (int i = 0; i < p->n_pool; i++)
		if (p->pool[i].state)
			return true;
	return false;
}

int64_t
plan_extent_elems(const PlanExtent *e, const int64_t sym[SYM_COUNT])
{
	int64_t n;

	if (e->sym == SYM_one)
		return e->mul;
	int64_t div = e->div > 1 ? e->div : 1, s = sym[e->sym];
	if (s < 0 || __builtin_mul_overflow(e->mul, s / div + (s % div != 0), &n))
		return -1;
	return n;
}

bool
plan_launch_runs(const PlanLaunch *u, const int64_t sym[SYM_COUNT])
{
	return u->rows == SYM_one ||
	       (sym[u->rows] >= u->least && (u->most == 0 || sym[u->rows] <= u->most));
}

/* Returns whether symbol a never exceeds b. Decode rows, prefill rows, sequences and output rows
 * are each at most n_tok. */
static bool
sym_below(PlanSym a, PlanSym b)
{
	if (a == b)
		return true;
	switch (b) {
	case SYM_n_tok:
		return a == SYM_n_dec || a == SYM_n_pre || a == SYM_n_seq || a == SYM_n_out;
	case SYM_n_seq:
		return a == SYM_n_dec;
	case SYM_one:
	case SYM_n_dec:
	case SYM_n_pre:
	case SYM_n_out:
	case SYM_n_part:
	case SYM_n_sm:
	case SYM_COUNT:
		break;
	}
	return false;
}

/* Returns whether the symbol is at least 1 in every step. */
static bool
sym_positive(PlanSym s)
{
	return s == SYM_one || s == SYM_n_tok || s == SYM_n_seq || s == SYM_n_part;
}

static int64_t
divisor(const PlanExtent *e)
{
	return e->sym != SYM_one && e->div > 1 ? e->div : 1;
}

/* Returns the bytes that extent a needs per unit of extent b: the smallest x such that x * ceil(s /
 * b.div) >= a.mul * a_bytes * ceil(s / a.div) for all s >= 0. This is a.mul * a_bytes * ceil(b.div
 * / a.div). b's symbol must be a's or a larger one. -1: overflow */
static int64_t
unit_bytes(const PlanExtent *a, int64_t a_bytes, const PlanExtent *b)
{
	int64_t n, da = divisor(a), db = divisor(b);

	if (__builtin_mul_overflow(a->mul, a_bytes, &n) ||
	    __builtin_mul_overflow(n, db / da + (db % da != 0), &n))
		return -1;
	return n;
}

bool
plan_extent_within(const PlanExtent *a, int64_t a_bytes, const PlanExtent *b, int64_t b_bytes)
{
	int64_t have, need;

	if (__builtin_mul_overflow(b->mul, b_bytes, &have))
		return false;
	if (a->sym == SYM_one)
		return !__builtin_mul_overflow(a->mul, a_bytes, &need) &&
		       (need == 0 || (sym_positive(b->sym) && need <= have));
	need = unit_bytes(a, a_bytes, b);
	return b->sym != SYM_one && sym_below(a->sym, b->sym) && need >= 0 && need <= have;
}

int64_t
plan_slot_bytes(const Plan *p, int slot, const int64_t sym[SYM_COUNT])
{
	int64_t n = plan_extent_elems(&p->slot[slot], sym);

	return n < 0 || n > INT64_MAX - 255 ? -1 : ALIGN_UP(n, 256);
}

int64_t
plan_source_row(const PlanSource *s, int64_t i)
{
	if (s->rope_pairs > 0) {
		int64_t d = s->rope_pairs, r = i % d;
		i += (r < d / 2 ? 2 * r : 2 * (r - d / 2) + 1) - r;
	}
	return s->first + i / s->block * s->stride + i % s->block;
}

Dtype
plan_source_dtype(const PlanTensor *t, const PlanSource *s)
{
	return s->stored ? dtype_from_text(s->stored) : t->dtype;
}

int64_t
plan_tensor_bytes(const PlanTensor *t)
{
	return layout_bytes(t->layout, t->dtype, t->rows, t->cols);
}

int64_t
plan_weights_as(const Plan *p, Dtype as)
{
	int64_t sum = 0;

	for (int i = 0; i < p->n_tensor; i++) {
		const PlanTensor *t = &p->tensor[i];
		int64_t now = dtype_row_bytes(t->dtype, t->cols ? t->cols : 1),
		        then = t->cols ? dtype_row_bytes(as, t->cols) : -1;
		sum += t->rows * (then > 0 && then < now ? then : now);
	}
	return sum;
}

int64_t
plan_step_weights(const Plan *p, const PlanStep *s, int64_t rows)
{
	const OpModel model = { p->vocab, p->max_positions, p->rank, p->ranks };
	ArgShape shape[OP_MAX_ARGS] = { 0 };
	double unread = 0;

	op_shapes(s->op, s->attr, s->n_attr, &model, shape);
	for (int k = 0; k < op_info[s->op].n_in; k++)
		if (s->arg[k].kind == REF_TENSOR && shape[k].kind == VAL_WEIGHT &&
		    shape[k].used < shape[k].pieces) {
			int64_t bytes = plan_tensor_bytes(&p->tensor[s->arg[k].index]);
			unread +=
			    (double)(bytes > 0 ? bytes : 0) *
			    pow(1 - (double)shape[k].used / (double)shape[k].pieces, (double)rows);
		}
	return s->weight_bytes - (int64_t)llround(unread);
}

bool
plan_step_cache(const Plan *p, const PlanStep *s, int64_t *bytes, int64_t *ops)
{
	for (int i = 0; i < s->n_arg && op_info[s->op].flags & OPF_READS_KV; i++)
		if (s->arg[i].kind == REF_POOL) {
			const PlanPool *pool = &p->pool[s->arg[i].index];
			*bytes = plan_layer_page_bytes(pool) / PLAN_KV_PAGE;
			*ops = 2 * step_int(s, "heads") *
			       (s->op == OP_index_select ? pool->k_dim
			        : pool->mla              ? 2 * pool->k_dim
			                                 : pool->k_dim + pool->v_dim);
			return true;
		}
	return false;
}

int64_t
plan_step_reach(const PlanStep *s)
{
	return s->op == OP_index_select     ? 0
	       : step_int(s, "index_top_k") ? step_int(s, "index_top_k")
	                                    : step_int(s, "window");
}

void
plan_tensor_row(const PlanTensor *t, const void *data, int64_t row, float *dst)
{
	layout_row(t->layout, t->dtype, t->rows, t->cols, data, row, dst);
}

const PlanGemm *
plan_library_gemm(const PlanKernel *k)
{
	for (int i = 0; i < k->n_launch; i++)
		if (!k->launch[i].fn)
			return &k->launch[i].product;
	return NULL;
}
