/* Images: the input and the output of a vision tower, and the op by which the tower's rows enter a
 * language model. build_model.c builds the layers of a tower. */
#include "compiler/build/build_model.h"

/* Return the rows that the caller passes with the tokens of a step, one per token. They are read
 * before anything else. */
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

/* Add to each row of x the row of a table whose number is in pos2. Numbers outside of the table add
 * nothing. */
static int
add_numbered(ModelBuilder *b, int x, const char *role, int64_t rows, const char *name)
{
	int w = build_matrix(b, role, rows, b->s->hidden), y = build_value(b, name);
	Op *o = OP(b, embed_type, .x = x, .w = w, .y = y);

	op_set_int(b->g, o, "hidden", b->s->hidden);
	op_set_int(b->g, o, "types", rows);
	return y;
}

/* Add to each row of x a weighted sum of rows of a table. The weights are the elements after the
 * patch in the input row. */
static int
add_interpolated(ModelBuilder *b, int x, int given)
{
	const Spec *s = b->s;
	const int64_t patch = s->vision.width, n = s->vision.positions;
	int w = build_slice(b, given, patch + n, patch, n, "position_weights"),
	    y = build_matmul(b, w, "patch_pos", false, s->hidden, n, "positions");

	return build_add(b, x, y, 1, "x0_pos");
}

int
build_patches(ModelBuilder *b)
{
	const Spec *s = b->s;
	const int64_t width = s->vision.width, all = spec_patch_row(s);
	const int given = build_given_rows(b, "vision.part", "patches", all);

	build_at(b, "vision.width");
	const int patch =
	    spec_interpolates(s) ? build_slice(b, given, all, 0, width, "patch") : given;
	int x = build_matmul(b, patch, "patch", s->vision.bias, s->hidden, width, "x0");
	if (s->vision.second_frame) {
		build_at(b, "vision.second_frame");
		x = build_add(
		    b, x, build_matmul(b, patch, "patch_2", false, s->hidden, width, "x0_second"),
		    1, "x0_frames");
	}
	if (s->vision.class_row) {
		/* the caller passes zeros for this row, and no other row has position 0 */
		build_at(b, "vision.class_row");
		if (s->vision.bias) { /* the matmul has added the bias to this row too */
			x = build_gain(b, x, NULL, -1, s->hidden, "x0_minus");
			x = add_numbered(b, x, "patch_bias", 1, "x0_minus_class");
			x = build_gain(b, x, NULL, -1, s->hidden, "x0_no_bias");
		}
		x = add_numbered(b, x, "class", 1, "x0_class");
	}
	if (s->vision.positions) {
		build_at(b, "vision.positions");
		x = spec_interpolates(s)
		        ? add_interpolated(b, x, given)
		        : add_numbered(b, x, "patch_pos", s->vision.positions, "x0_pos");
	}
	build_at(b, "norm.kind");
	return build_norm(b, s->norm.embed, x, "embed_norm", "x0_normed");
}

static int
scattered(ModelBuilder *b, int x, int rows, const char *name)
{
	int y = build_value(b, name);
	Op *o = OP(b, scatter_rows, .x = x, .rows = rows, .y = y);
	op_set_int(b->g, o, "width", b->s->hidden);
	return y;
}

int
build_given_images(ModelBuilder *b)
{
	return build_given_rows(b, "vision.part", "images",
	                        b->s->hidden * (1 + b->s->vision.n_deep));
}

int
build_image_rows(ModelBuilder *b, int x)
{
	const Spec *s = b->s;
	int rows = b->images;

	build_at(b, "vision.part");
	if (s->vision.n_deep)
		rows = build_slice(b, rows, s->hidden * (1 + s->vision.n_deep), 0, s->hidden,
		                   "image_embedding");
	return scattered(b, x, rows, "x0_images");
}

/* Add part l + 1 of the image rows to the image tokens. Other tokens have no image row; the values
 * added to them are not used. */
int
build_deep_rows(ModelBuilder *b, int x, int l)
{
	const Spec *s = b->s;

	if (s->vision.part != VISION_ROWS || l >= s->vision.n_deep)
		return x;
	build_at(b, "vision.deep");
	int r = build_slice(b, b->images, s->hidden * (1 + s->vision.n_deep), s->hidden * (1 + l),
	                    s->hidden, "image_part");
	return scattered(b, x, build_add(b, x, r, 1, "with_images"), "deep");
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

static int
merged(ModelBuilder *b, int x, const char *name)
{
	const Spec *s = b->s;
	int y = build_value(b, name);
	Op *o = OP(b, merge_rows, .x = x, .y = y);

	op_set_int(b->g, o, "width", s->hidden);
	op_set_int(b->g, o, "count", s->vision.merge);
	op_set_int(b->g, o, "mean", s->vision.mean);
	return y;
}

/* Norm of merged rows, of the kind vision.merged_norm */
static int
norm_merged(ModelBuilder *b, int x, const char *kind, const char *role)
{
	const int64_t width = spec_merged(b->s);
	const double eps = b->s->vision.merged_eps;

	if (strcmp(kind, "none") == 0)
		return x;
	if (strcmp(kind, "layer") == 0)
		return build_layernorm(b, x, role, width, 1, false, eps, "merged_normed");
	return build_rmsnorm(b, x, role, width, 1, eps, strcmp(kind, "rms") != 0, "merged_normed");
}

/* Projector of one or two layers */
static int
projected(ModelBuilder *b, int y, const char *first, const char *second, const char *name)
{
	const Spec *s = b->s;
	const bool bias = s->vision.out_bias;
	int64_t width = spec_projector_in(s);

	if (!s->vision.inner)
		return build_matmul(b, y, first, bias, s->vision.out, width, name);
	y = activated(b, build_matmul(b, y, first, bias, s->vision.inner, width, "projected"),
	              s->vision.inner);
	return build_matmul(b, y, second, bias, s->vision.out, s->vision.inner, name);
}

void
build_tower_deep(ModelBuilder *b, int x, int l)
{
	const Spec *s = b->s;
	int i = 0;

	while (i < s->vision.n_deep && s->vision.deep[i] != l)
		i++;
	if (s->vision.part != VISION_TOWER || i == s->vision.n_deep)
		return;
	b->layer = i; /* the names of the merger's tensors contain its number */
	build_at(b, "vision.deep");
	x = norm_merged(b, merged(b, x, "deep_merged"), "layer", "deep_norm");
	b->deep[i] = projected(b, x, "deep_project", "deep_project_out", "deep_rows");
	b->layer = -1;
}

/* Norm, merger, and projector to the hidden size of the language model. */
void
build_tower_end(ModelBuilder *b, int x)
{
	const Spec *s = b->s;

	b->layer = -1;
	build_at(b, "norm.kind");
	x = build_norm(b, s->norm.final, x, "final_norm", "normed");
	build_at(b, "vision.merge");
	int y = merged(b, x, "merged");
	if (s->vision.merge_width)
		y = build_matmul(b, y, "merge", false, s->vision.merge_width, spec_merged(s),
		                 "merged_row");
	y = norm_merged(b, y, s->vision.merged_norm, "merged_norm");
	if (!s->vision.out)
		return;
	build_at(b, "vision.out");
	y = projected(b, y, "project", "project_out", "image_rows");
	for (int i = 0; i < s->vision.n_deep; i++) {
		int all = build_value(b, "image_rows_and_deep");
		Op *o = OP(b, concat, .x = y, .z = b->deep[i], .y = all);
		op_set_int(b->g, o, "width", s->vision.out * (i + 1));
		op_set_int(b->g, o, "count", s->vision.out);
		y = all;
	}
}
