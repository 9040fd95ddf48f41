/* Images. The input and the output of a vision tower, and the op by which its rows enter a language
 * model. The layers of a tower are those of build_model.c. */
#include "compiler/build/build_model.h"

/* Rows that come with the tokens of a step, one per token, before all other steps. */
int
build_given_rows(ModelBuilder *b, const char *key, const char *name, int64_t width)
{
	b->layer = 0;
	build_at(b, key);
	int rows = build_value(b, name);
	Op *o = OP(b, stage_in, .y = rows);
	op_set_int(b->g, o, "hidden", width);
	b->layer = -1;
	return rows;
}

/* Add to each row x the row of a table that pos2 numbers; numbers beyond the table add nothing. */
static int
add_numbered(ModelBuilder *b, int x, const char *role, int64_t rows, const char *name)
{
	int w = build_matrix(b, role, rows, b->s->hidden), y = build_value(b, name);
	Op *o = OP(b, embed_type, .x = x, .w = w, .y = y);

	op_set_int(b->g, o, "hidden", b->s->hidden);
	op_set_int(b->g, o, "types", rows);
	return y;
}

int
build_patches(ModelBuilder *b)
{
	const Spec *s = b->s;
	int x = build_given_rows(b, "vision.part", "patches", s->vision.width);

	build_at(b, "vision.width");
	x = build_matmul(b, x, "patch", s->vision.bias, s->hidden, s->vision.width, "x0");
	if (s->vision.class_row) {
		/* the caller passes zeros for this row, and only it has position 0 */
		build_at(b, "vision.class_row");
		x = add_numbered(b, x, "class", 1, "x0_class");
	}
	if (s->vision.positions) {
		build_at(b, "vision.positions");
		x = add_numbered(b, x, "patch_pos", s->vision.positions, "x0_pos");
	}
	build_at(b, "norm.kind");
	return build_norm(b, s->norm.embed, x, "embed_norm", "x0_normed");
}

int
build_image_rows(ModelBuilder *b, int x, int rows)
{
	build_at(b, "vision.part");
	int y = build_value(b, "x0_images");
	Op *o = OP(b, scatter_rows, .x = x, .rows = rows, .y = y);
	op_set_int(b->g, o, "width", b->s->hidden);
	return y;
}

static int
activated(ModelBuilder *b, int x, int64_t width)
{
	int y = build_value(b, "project_act");
	Op *o = OP(b, act, .x = x, .p = -1, .y = y);

	op_set_int(b->g, o, "width", width);
	op_set_word(b->g, o, "act", build_act_word(b->s->vision.act));
	return y;
}

/* Norm, merger, and the projector to the language model's hidden size. */
void
build_tower_end(ModelBuilder *b, int x)
{
	const Spec *s = b->s;
	const int64_t merged = s->hidden * (s->vision.mean ? 1 : s->vision.merge);
	const bool bias = s->vision.out_bias;

	b->layer = -1;
	build_at(b, "norm.kind");
	x = build_norm(b, s->norm.final, x, "final_norm", "normed");
	build_at(b, "vision.merge");
	int y = build_value(b, "merged");
	Op *o = OP(b, merge_rows, .x = x, .y = y);
	op_set_int(b->g, o, "width", s->hidden);
	op_set_int(b->g, o, "count", s->vision.merge);
	op_set_int(b->g, o, "mean", s->vision.mean);
	if (!s->vision.out)
		return;
	build_at(b, "vision.out");
	int64_t width = merged;
	if (s->vision.inner) {
		width = s->vision.inner;
		y = activated(b, build_matmul(b, y, "project", bias, width, merged, "projected"),
		              width);
	}
	build_matmul(b, y, s->vision.inner ? "project_out" : "project", bias, s->vision.out, width,
	             "image_rows");
}
