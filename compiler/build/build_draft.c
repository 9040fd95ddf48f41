/* Plans that make draft tokens from rows of another plan, and the rows that a model passes to them.
 * There are two kinds: an MTP head (arXiv 2412.19437), and a draft checkpoint (EAGLE-3, arXiv
 * 2503.01840). */
#include "compiler/build/build_model.h"
#include "compiler/build/build_tensor.h"

int
build_head_stream(ModelBuilder *b, int rows)
{
	const Spec *s = b->s;

	b->layer = 0;
	build_at(b, "mtp.part");
	int e = build_norm(b, true, b->embedded, "mtp_enorm", "came_token"),
	    h = build_norm(b, true, rows, "mtp_hnorm", "came_normed"),
	    y = build_value(b, "came_both");
	Op *o = OP(b, concat, .x = e, .z = h, .y = y);
	op_set_int(b->g, o, "width", s->hidden);
	op_set_int(b->g, o, "count", s->hidden);
	return build_matmul(b, y, "mtp_proj", false, s->hidden, 2 * s->hidden, "x0_both");
}

int
build_draft_stream(ModelBuilder *b, int rows)
{
	const Spec *s = b->s;
	const int64_t all = s->mtp.width + s->hidden;

	build_at(b, "mtp.width");
	int x = build_slice(b, rows, all, 0, s->mtp.width, "came_model"),
	    own = build_slice(b, rows, all, s->mtp.width, s->hidden, "came_own");
	x = build_matmul(b, x, "mtp_fc", false, s->hidden, s->mtp.width, "came_joined");
	return build_add(b, x, own, 1, "x0");
}

int
build_draft_input(ModelBuilder *b, int *x)
{
	const Spec *s = b->s;

	build_at(b, "mtp.part");
	int e = build_norm(b, true, b->embedded, "attn_norm", "came_token"),
	    h = build_norm(b, true, *x, "mtp_hnorm", "came_normed"), y = build_value(b, "attn_in");
	Op *o = OP(b, concat, .x = e, .z = h, .y = y);
	op_set_int(b->g, o, "width", s->hidden);
	op_set_int(b->g, o, "count", s->hidden);
	*x = s->mtp.norm_first ? h : *x;
	return y;
}

/* Record the name of the tensor of mtp.tokens, which the runtime reads. It is an error if the name
 * is unknown. */
void
build_draft_tokens(ModelBuilder *b)
{
	int part;

	if (b->s->mtp.part == MTP_DRAFT && strcmp(b->s->mtp.tokens, "none") != 0)
		source_rule(b->g, "mtp_tokens", &part, b->loc);
}

int
build_joined_streams(ModelBuilder *b, const int *at)
{
	const Spec *s = b->s;
	int x = at[s->mtp.from[0]];

	b->layer = -1;
	build_at(b, "mtp.from");
	for (int i = 1; i < s->mtp.n_from; i++) {
		int y = build_value(b, arena_printf(b->g->arena, "rows%d", i + 1));
		Op *o = OP(b, concat, .x = x, .z = at[s->mtp.from[i]], .y = y);
		op_set_int(b->g, o, "width", i * s->hidden);
		op_set_int(b->g, o, "count", s->hidden);
		x = y;
	}
	return x;
}
