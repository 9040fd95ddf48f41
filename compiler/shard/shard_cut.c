/* Cuts weights, adapter factors and their sources to the part of one rank. */
#include <inttypes.h>
#include <string.h>

#include "compiler/shard/shard.h"
#include "compiler/shard/shard_internal.h"

static const struct {
	const char *role;
	RowCut cut;
	ShareKind by;
} rule[] = {
	{ "q", CUT_ROWS, SHARE_Q },           { "q_b", CUT_ROWS, SHARE_Q },
	{ "k", CUT_ROWS, SHARE_KV },          { "v", CUT_ROWS, SHARE_KV },
	{ "k_b", CUT_ROWS, SHARE_Q },         { "v_b", CUT_ROWS, SHARE_Q },
	{ "o", CUT_COLS, SHARE_Q },           { "gate", CUT_ROWS, SHARE_FFN },
	{ "up", CUT_ROWS, SHARE_FFN },        { "down", CUT_COLS, SHARE_FFN },
	{ "e_gate", CUT_ROWS, SHARE_EXPERT }, { "e_up", CUT_ROWS, SHARE_EXPERT },
	{ "e_down", CUT_COLS, SHARE_EXPERT }, { "s_gate", CUT_ROWS, SHARE_SHARED },
	{ "s_up", CUT_ROWS, SHARE_SHARED },   { "s_down", CUT_COLS, SHARE_SHARED },
	{ "q_gate", CUT_ROWS, SHARE_Q },      { "lin_z", CUT_ROWS, SHARE_LIN },
	{ "lin_a", CUT_ROWS, SHARE_LIN },     { "lin_b", CUT_ROWS, SHARE_LIN },
	{ "lin_o", CUT_COLS, SHARE_LIN },     { "conv_b", CUT_ROWS, SHARE_CONV },
	{ "conv_c", CUT_ROWS, SHARE_CONV },   { "conv_x", CUT_ROWS, SHARE_CONV },
	{ "conv_o", CUT_COLS, SHARE_CONV },
};

/* Append rows [first, first + count) of a source. Evenly spaced runs are merged into one source. */
static void
push_rows(PlanSource *out, int *n, const PlanSource *s, int64_t first, int64_t count)
{
	while (count > 0) {
		int64_t b = first / s->block, at = first % s->block,
		        run = s->block - at < count ? s->block - at : count;
		PlanSource piece = *s, *last = *n ? &out[*n - 1] : NULL;

		piece.first = s->first + b * s->stride + at;
		piece.block = piece.stride = run;
		piece.n_block = 1;
		bool like = last && strcmp(last->name, s->name) == 0 && last->block == run &&
		            (last->n_block == 1 ||
		             piece.first == last->first + last->n_block * last->stride);
		if (like && piece.first > last->first &&
		    (!s->rope_pairs || run % s->rope_pairs == 0)) {
			last->stride =
			    last->n_block == 1 ? piece.first - last->first : last->stride;
			last->n_block++;
		} else {
			out[(*n)++] = piece;
		}
		first += run;
		count -= run;
	}
}

/* Add t, which is a part of weight v, as a separate tensor. */
static int
add_part(Graph *g, int v, PlanTensor t)
{
	int w = graph_value(g, VAL_WEIGHT, t.id, g->val[v].loc);

	g->tensor =
	    arena_grow(g->arena, g->tensor, &g->cap_tensor, g->n_tensor + 1, sizeof *g->tensor);
	g->tensor[g->n_tensor] = t;
	g->val[w].tensor = (int)g->n_tensor++;
	g->val[w].dtype = t.dtype;
	g->val[w].dim[0] = t.rows;
	g->val[w].dim[1] = t.cols;
	return w;
}

int
shard_cut_rows(ShardPass *p, int v, const char *id, const ShardShare *range, int n_range)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	int n = 0, most = 0;

	for (int k = 0; k < t.n_src; k++)
		most += (int)t.src[k].n_block * n_range + n_range;
	PlanSource *src = NEW(g->arena, PlanSource, most + 1);
	int64_t count = 0;
	for (int e = 0; e < n_range; e++) {
		int64_t from = range[e].first, end = from + range[e].count, before = 0;
		for (int k = 0; k < t.n_src; k++) {
			int64_t rows = t.src[k].n_block * t.src[k].block;
			int64_t lo = from > before ? from : before,
			        hi = end < before + rows ? end : before + rows;
			if (lo < hi)
				push_rows(src, &n, &t.src[k], lo - before, hi - lo);
			before += rows;
		}
		count += range[e].count;
	}
	t.id = id;
	t.src = src;
	t.n_src = n;
	t.rows = count;
	return add_part(g, v, t);
}

static int
shard_cut_cols(ShardPass *p, int v, const char *id, int64_t first, int64_t count)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	PlanSource *src = NEW(g->arena, PlanSource, t.n_src);

	for (int k = 0; k < t.n_src; k++) {
		src[k] = t.src[k];
		src[k].col_first = first;
		src[k].col_total = t.cols;
	}
	t.id = id;
	t.src = src;
	t.cols = count;
	return add_part(g, v, t);
}

int
shard_cut_factor(ShardPass *p, int v, ShardShare part)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	PlanSource *src = NEW(g->arena, PlanSource, 1);

	*src = t.src[0];
	if (t.factor == FACTOR_A) {
		src->col_first = part.first;
		src->col_total = src->cols;
		src->cols = part.count;
	} else {
		const int64_t block = src->lora_block, at = part.first % block;
		if (at + part.count > block && (at || part.count % block)) {
			err_at(g->diag, g->val[v].loc,
			       "adapters.slots: rows of %s are in blocks of %" PRId64
			       ", which %d ranks cannot share",
			       src->name, block, g->ranks);
			return v;
		}
		src->lora_first += part.first / block * src->lora_stride + at;
		if (at + part.count <= block)
			src->lora_block = src->lora_stride = part.count;
		src->block = src->stride = part.count;
	}
	t.src = src;
	t.rows = (int64_t)t.slots * t.rank * part.count;
	return add_part(g, v, t);
}

int64_t
shard_own(const ShardPass *p, ShareKind by, int64_t n)
{
	return n / p->s->total[by] * p->s->share[by][p->rank].count;
}

int64_t
shard_own_first(const ShardPass *p, ShareKind by, int64_t n)
{
	return n / p->s->total[by] * p->s->share[by][p->rank].first;
}

int
shard_cut_expert_factor(ShardPass *p, int v, bool whole)
{
	Graph *g = p->g;
	PlanTensor t = g->tensor[g->val[v].tensor];
	PlanSource *src = NEW(g->arena, PlanSource, t.n_src);
	const ShardShare mine = p->s->share[SHARE_EXPERT][p->rank];

	memcpy(src, t.src, (size_t)t.n_src * sizeof *src);
	if (whole) {
		t.rows = t.rows / t.experts * mine.count;
		t.experts = (int)mine.count;
		t.first_expert = (int)mine.first;
	}
	for (int k = 0; k < t.n_src && !whole; k++) {
		const int64_t n = t.factor == FACTOR_A ? src[k].cols : src[k].block,
		              first = shard_own_first(p, SHARE_EXPERT, n),
		              count = shard_own(p, SHARE_EXPERT, n);
		t.rows = k ? t.rows : t.rows / n * count;
		if (t.factor == FACTOR_A) {
			src[k].col_first = first;
			src[k].col_total = n;
			src[k].cols = count;
		} else {
			src[k].first += first;
			src[k].lora_first += first;
			src[k].block = src[k].lora_block = src[k].lora_stride = count;
		}
	}
	t.src = src;
	return add_part(g, v, t);
}

ShareKind
shard_kind_in(const ShardPass *p, ShareKind by, int layer)
{
	const Spec *s = p->g->spec;

	if (layer < 0)
		return by;
	if (p->s->total[SHARE_Q_WINDOW] && spec_windowed(s, layer))
		return by == SHARE_Q ? SHARE_Q_WINDOW : by == SHARE_KV ? SHARE_KV_WINDOW : by;
	return by == SHARE_FFN && s->ffn.wide_in && s->ffn.wide_in[layer] ? SHARE_FFN_WIDE : by;
}

RowCut
shard_cut_of(const ShardPass *p, int w, int layer, ShareKind *by)
{
	for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
		if (shard_role(&p->g->tensor[p->g->val[w].tensor], rule[i].role)) {
			*by = shard_kind_in(p, rule[i].by, layer);
			return rule[i].cut;
		}
	return CUT_NONE;
}

bool
shard_is_head(const ShardPass *p, const Op *op, int w)
{
	const PlanTensor *t =
	    p->g->val[w].kind == VAL_WEIGHT ? &p->g->tensor[p->g->val[w].tensor] : NULL;

	return t && op->layer < 0 && (shard_role(t, "head") || shard_role(t, "embed"));
}

void
shard_cut_arg(ShardPass *p, Op *op, int arg, RowCut cut, ShareKind by, int parts, const char *id)
{
	int v = op->arg[arg];

	if (v < 0)
		return;
	const PlanTensor *t = &p->g->tensor[p->g->val[v].tensor];
	const char *name = id ? id : t->id;
	int64_t n = cut == CUT_COLS ? t->cols : t->rows / parts;
	ShardShare *range = NEW(p->g->arena, ShardShare, parts);
	for (int e = 0; e < parts; e++)
		range[e] = (ShardShare){ e * n + shard_own_first(p, by, n), shard_own(p, by, n) };
	op->arg[arg] = cut == CUT_COLS ? shard_cut_cols(p, v, name, range->first, range->count)
	                               : shard_cut_rows(p, v, name, range, parts);
}
