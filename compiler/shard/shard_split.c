/* Computes the share of each rank: heads and everything that belongs to them, columns, channels,
 * rows of the head. Shares are multiples of units that keep the blocks of weight types whole. If a
 * model cannot be split, the error shows the arithmetic. */
#include "compiler/shard/shard.h"

#include <inttypes.h>
#include <string.h>

const char *const share_text[SHARE_COUNT] = {
#define X(name, text) text,
	SHARE_LIST(X)
#undef X
};

enum {
	EVEN = 32,
	EVEN_VOCAB = 64
}; /* preferred granularity of shares, for blocks of activations and row groups of layouts */

static int64_t
gcd(int64_t a, int64_t b)
{
	return b ? gcd(b, a % b) : a;
}

static int64_t
lcm(int64_t a, int64_t b)
{
	return a / gcd(a, b) * b;
}

/* Return the role in an id ("L3.o.bias" has "o") and set *len to its length. */
static const char *
role_of(const char *id, size_t *len)
{
	if (id[0] == 'L' && id[1] >= '0' && id[1] <= '9' && strchr(id, '.'))
		id = strchr(id, '.') + 1;
	*len = strcspn(id, ".");
	return id;
}

bool
shard_role(const PlanTensor *t, const char *role)
{
	size_t n;
	const char *at = role_of(t->id, &n);

	return strlen(role) == n && memcmp(at, role, n) == 0;
}

/* Return the number of columns at whose multiples every tensor of a role can be cut, and one such
 * tensor for the message. 0: no tensor has the role */
static int64_t
block_of(const Graph *g, const char *role, const PlanTensor **like)
{
	int64_t block = 0;

	for (size_t i = 0; i < g->n_tensor; i++) {
		const PlanTensor *t = &g->tensor[i];
		if (!t->cols || !shard_role(t, role))
			continue;
		int64_t own = dtype_info(t->dtype)->block_elems;
		if (own > block || !block)
			*like = t;
		block = block ? lcm(block, own) : own;
	}
	return block;
}

static void
divide_share(Graph *g, Shard *s, ShareKind k, int64_t total, int64_t unit)
{
	s->total[k] = total;
	s->unit[k] = unit;
	s->share[k] = NEW(g->arena, ShardShare, g->ranks);
	for (int r = 0; r < g->ranks; r++)
		op_share(total, unit, g->ranks, r, &s->share[k][r].first, &s->share[k][r].count);
}

/* Distribute columns of `role`, in units that keep blocks whole. */
static void
deal_columns(Graph *g, Shard *s, ShareKind k, const char *role, int64_t total)
{
	const PlanTensor *like = NULL;
	int64_t block = block_of(g, role, &like);

	if (!block || total <= 0)
		return;
	if (total / block < g->ranks) {
		err_at(g->diag, spec_loc(g->spec, "parallel.tp"),
		       "parallel.tp = %d: %s has %" PRId64 " block%s of %" PRId64
		       " columns (%s), fewer than %d ranks",
		       g->ranks, role, total / block, total / block == 1 ? "" : "s", block,
		       dtype_text(like->dtype), g->ranks);
		return;
	}
	int64_t even = lcm(block, EVEN);
	divide_share(g, s, k, total, total / even >= g->ranks ? even : block);
}

/* Distribute whole heads: a kv head with its query heads, or only query heads if a kv head is on
 * several ranks. Each share has whole blocks of columns of o. */
static void
deal_heads(Graph *g, Shard *s, const HeadShape *h, ShareKind by_q, ShareKind by_kv)
{
	const Spec *spec = g->spec;
	Loc loc = spec_loc(spec, "parallel.tp");
	bool latent = spec->attention.kind == ATT_MLA;
	const PlanTensor *like = NULL;
	int64_t n = g->ranks, q = h->n_heads, kv = latent ? q : h->n_kv_heads, group = q / kv;
	int64_t block = block_of(g, "o", &like), v_dim = h->v_dim;

	block = block ? block : 1; /* a stage may have no attention */
	if (latent && n > q) {
		err_at(g->diag, loc, "parallel.tp = %d: more ranks than the %" PRId64 " heads",
		       g->ranks, q);
		return;
	}
	if (n > kv && n % kv) {
		int64_t next = (n / kv + 1) * kv;
		err_at(g->diag, loc,
		       "parallel.tp = %d: more ranks than the %" PRId64
		       " kv heads must be a multiple of them: %" PRId64 ", %" PRId64 " or %" PRId64,
		       g->ranks, kv, next, next + kv, next + 2 * kv);
		return;
	}
	if (n <= kv) {
		int64_t unit = block / gcd(block, group * v_dim),
		        units = kv / unit + (kv % unit != 0);
		if (units < n) {
			err_at(g->diag, loc,
			       "parallel.tp = %d: blocks of %" PRId64
			       " columns of o (%s) contain %" PRId64 " kv head%s of %" PRId64
			       " columns each, which gives shares for only %" PRId64 " of %d ranks",
			       g->ranks, block, dtype_text(like->dtype), unit, unit == 1 ? "" : "s",
			       group * v_dim, units, g->ranks);
			return;
		}
		divide_share(g, s, by_kv, kv, unit);
		divide_share(g, s, by_q, q, unit * group);
		return;
	}
	const int copies = (int)(n / kv);
	int64_t unit = block / gcd(block, v_dim), units = group / unit + (group % unit != 0);
	if (units < copies) {
		err_at(g->diag, loc,
		       "parallel.tp = %d: %d ranks would share a kv head, which %" PRId64
		       " query heads read in %" PRId64 " unit%s: at most %" PRId64 " ranks",
		       g->ranks, copies, group, units, units == 1 ? "" : "s", units * kv);
		return;
	}
	divide_share(g, s, by_kv, kv, 1);
	divide_share(g, s, by_q, q, unit);
	s->copies[by_kv] = s->copies[by_q] = copies;
	for (int r = 0; r < g->ranks; r++) {
		int64_t head = r / copies;
		s->share[by_kv][r] = (ShardShare){ head, 1 };
		op_share(group, unit, copies, r % copies, &s->share[by_q][r].first,
		         &s->share[by_q][r].count);
		s->share[by_q][r].first += head * group;
	}
}

/* Distribute the value heads of delta rules together with their key head. Several value heads may
 * share a key head: consecutive ones, or every k_heads-th (tiled). */
static void
deal_states(Graph *g, Shard *s)
{
	const Spec *spec = g->spec;
	const PlanTensor *like = NULL;
	int64_t v = spec->linear.v_heads, k = spec->linear.k_heads,
	        block = block_of(g, "lin_o", &like);

	if (!block)
		return;
	int64_t unit = block / gcd(block, spec->linear.v_dim);
	if (!spec->linear.tiled)
		unit = lcm(unit, v / k);
	else if (v / k % g->ranks == 0 && k % unit == 0)
		unit = k; /* avoids key heads on several ranks if possible */
	int64_t units = v / unit + (v % unit != 0);
	if (units < g->ranks) {
		err_at(g->diag, spec_loc(spec, "parallel.tp"),
		       "parallel.tp = %d: the %" PRId64
		       " value heads of a delta rule are split by %" PRId64 " (%" PRId64
		       " key heads; blocks of %" PRId64
		       " columns of lin_o, %s), which gives shares for only %" PRId64 " ranks",
		       g->ranks, v, unit, k, block, dtype_text(like->dtype), units);
		return;
	}
	divide_share(g, s, SHARE_LIN, v, unit);
}

Shard *
shard_deal(Graph *g)
{
	const Spec *spec = g->spec;
	Shard *s = NEW(g->arena, Shard, 1);
	const HeadShape a = spec_heads(spec, -1), b = spec->attention.local;

	for (int i = 0; i < SHARE_COUNT; i++)
		s->copies[i] = 1;
	deal_heads(g, s, &a, SHARE_Q, SHARE_KV);
	if (a.n_heads != b.n_heads || a.n_kv_heads != b.n_kv_heads || a.head_dim != b.head_dim ||
	    a.v_dim != b.v_dim)
		deal_heads(g, s, &b, SHARE_Q_WINDOW, SHARE_KV_WINDOW);
	deal_columns(g, s, SHARE_FFN, "down", spec->ffn.width);
	if (spec->ffn.wide_in && memchr(spec->ffn.wide_in, 1, (size_t)spec->n_layers))
		deal_columns(g, s, SHARE_FFN_WIDE, "down", spec->ffn.wide);
	deal_states(g, s);
	deal_columns(g, s, SHARE_CONV, "conv_o", spec->hidden);
	if (!spec->experts_whole)
		deal_columns(g, s, SHARE_EXPERT, "e_down", spec->moe.width);
	else if (spec->moe.n_experts > 0 && spec->moe.n_experts < g->ranks)
		err_at(g->diag, spec_loc(spec, "parallel.experts"),
		       "parallel.experts = whole: %d ranks need at least as many experts, there "
		       "are %d",
		       g->ranks, spec->moe.n_experts);
	else if (spec->moe.n_experts > 0)
		divide_share(g, s, SHARE_EXPERT, spec->moe.n_experts, 1);
	deal_columns(g, s, SHARE_SHARED, "s_down", spec->moe.shared_width);
	if (spec->vocab_size < g->ranks)
		err_at(g->diag, spec_loc(spec, "parallel.tp"),
		       "parallel.tp = %d: more ranks than the %" PRId64 " rows of the head",
		       g->ranks, spec->vocab_size);
	else
		divide_share(g, s, SHARE_VOCAB, spec->vocab_size,
		             spec->vocab_size / EVEN_VOCAB >= g->ranks ? EVEN_VOCAB : 1);
	return s;
}
