/* Images of the public interface: bytes -> pixels -> patches -> rows of the vision tower. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/sized_struct.h"
#include "image/prepare.h"

struct llmc_tower {
	llmc_model *text;  /* the language model */
	llmc_model *model; /* the tower */
	/* the only session; NULL: opening a larger one failed, or there are no weights */
	llmc_session *session;
	pthread_mutex_t lock; /* held while the session is used or replaced */
	ImageRules rules;
	/* maximum rows of the session, which is opened again for a larger image */
	int64_t most_rows;
};

struct llmc_tower_image {
	float *row;
	int32_t n_row;
	int32_t height, width; /* rows and columns of tokens if there is a single tile, else 0 */
	uint64_t key;
	char *text;
};

static llmc_status
read_rules(const char *folder, ImageRules *out, llmc_error *err)
{
	llmc_image_processor *p;

	TRY(llmc_image_processor_open(folder, &p, err));
	*out = *image_processor_rules(p);
	llmc_image_processor_close(p);
	return LLMC_OK;
}

/* Check that the processor's rows fit the tower, and the tower's rows the model. */
static llmc_status
check_fit(const llmc_tower *t, const llmc_model *m, llmc_error *err)
{
	const Plan *p = t->model->plan;
	const int64_t width = (int64_t)3 * (t->rules.temporal > 0 ? t->rules.temporal : 1) *
	                      t->rules.patch * t->rules.patch;

	if (t->model->spec->vision.width != width)
		return error_set(
		    err, LLMC_E_INPUT,
		    "the processor makes patches of %lld values, the tower of %s reads "
		    "patches of %lld",
		    (long long)width, m->plan->name, (long long)t->model->spec->vision.width);
	if ((int64_t)t->rules.merge * t->rules.merge != p->merge)
		return error_set(
		    err, LLMC_E_INPUT,
		    "the processor merges %d x %d patches, the tower of %s merges %lld",
		    t->rules.merge, t->rules.merge, m->plan->name, (long long)p->merge);
	if (plan_out_width(p) != m->plan->row_width)
		return error_set(err, LLMC_E_INPUT,
		                 "the tower of %s makes rows of %lld elements, the model has %lld",
		                 m->plan->name, (long long)plan_out_width(p),
		                 (long long)m->plan->row_width);
	return LLMC_OK;
}

/* Rows of the first session. Images in native resolution differ in size, so the session grows with
 * them. */
enum { FIRST_ROWS = 4096 };

/* Return limits of a session for tiles of at least n rows */
static llmc_limits
limits_for(const llmc_tower *t, int64_t n)
{
	llmc_limits lim = LLMC_INIT(llmc_limits);
	const int64_t most = t->model->plan->max_positions;
	int64_t rows = FIRST_ROWS;

	while (rows < n && rows < most)
		rows *= 2;
	lim.context = lim.chunk = (int32_t)(rows < most ? rows : most);
	lim.n_threads = t->model->n_threads;
	return lim;
}

/* Open the session for tiles of at least n rows. */
static llmc_status
open_session(llmc_tower *t, int64_t n, llmc_error *err)
{
	const llmc_limits lim = limits_for(t, n);

	llmc_session_close(t->session);
	t->session = NULL;
	t->most_rows = 0;
	TRY(llmc_session_open(t->model, &lim, &t->session, err));
	t->most_rows = lim.context;
	return LLMC_OK;
}

llmc_status
llmc_tower_open(llmc_model *m, const llmc_options *opt, llmc_tower **out, llmc_error *err)
{
	llmc_options o = LLMC_INIT(llmc_options);
	const char *folder = m->mmproj ? m->mmproj : m->checkpoint;
	llmc_status status;

	*out = NULL;
	SIZED_TAKE(o, opt);
	if (m->plan->vision != VISION_ROWS)
		return error_set(err, LLMC_E_INPUT,
		                 "%s was opened without images (vision.part=rows)", m->plan->name);
	if (!folder || !(m->mmproj || file_is_dir(folder)))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: images need the Hugging Face folder of the model, or the "
		                 "file with the vision tower of a GGUF model (mmproj)",
		                 m->plan->name);
	llmc_tower *t = calloc(1, sizeof *t);
	if (!t)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a vision tower");
	pthread_mutex_init(&t->lock, NULL);
	llmc_retain(m);
	t->text = m;
	o.set = NULL;
	o.out_dir = NULL;
	o.weights = NULL;
	o.planned = NULL;
	o.mmproj = NULL;
	o.draft = NULL;
	o.draft_of = NULL;
	o.images = false;
	o.tower = true;
	o.no_weights |= !m->rt;
	if (!o.n_threads)
		o.n_threads = m->n_threads;
	TRY_GOTO(read_rules(folder, &t->rules, err));
	TRY_GOTO(llmc_open(folder, &o, &t->model, err));
	/* the tower merges consecutive rows, but the processor gives patches in raster order: make
	 * it order them by merged cells */
	while (t->rules.merge * t->rules.merge < t->model->plan->merge)
		t->rules.merge++;
	TRY_GOTO(check_fit(t, m, err));
	if (!o.no_weights)
		TRY_GOTO(open_session(t, FIRST_ROWS, err));
	*out = t;
	return LLMC_OK;
fail:
	llmc_tower_close(t);
	return status;
}

void
llmc_tower_close(llmc_tower *t)
{
	if (!t)
		return;
	llmc_session_close(t->session);
	llmc_close(t->model);
	llmc_close(t->text);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

const char *
llmc_tower_placeholder(const llmc_tower *t)
{
	return t->rules.placeholder;
}

const char *
llmc_tower_token(const llmc_tower *t)
{
	return t->rules.token;
}

/* Return the index of a patch in the table of learned positions, which has the position of the
 * class row, if any, and then a square of positions */
static int32_t
learned_position(const Spec *s, const ImageTile *tile, const int32_t at[2])
{
	const int32_t first = s->vision.class_row;
	int64_t side = 1;

	while ((side + 1) * (side + 1) + first <= s->vision.positions)
		side++;
	return first + (int32_t)(at[0] * side / tile->grid_h * side + at[1] * side / tile->grid_w);
}

/* Compute the weights of the `side` rows of a table for index i of n, along one axis. The
 * interpolation is bilinear, with aligned corners or with half-pixel centres; in the latter case
 * the filter widens if n is smaller than `side` */
static void
axis_weights(const Spec *s, int32_t i, int32_t n, int32_t side, float *w)
{
	const bool corners = strcmp(s->vision.interpolate, "corners") == 0;
	const double step = (double)side / n, wide = !corners && step > 1 ? step : 1,
	             at = corners ? (double)i * (side - 1) / (n > 1 ? n - 1 : 1)
	                          : (i + 0.5) * step - 0.5;
	double sum = 0;

	for (int32_t k = 0; k < side; k++) {
		const double far = fabs(k - at) / wide;
		w[k] = far < 1 ? (float)(1 - far) : 0;
		sum += far < 1 ? 1 - far : 0;
	}
	for (int32_t k = 0; k < side; k++)
		w[k] = (float)(w[k] / sum);
}

/* Make the input rows of a tile: zeros for the class row, then patches, each followed by the
 * weights of its position */
static llmc_status
input_rows(const Spec *s, const ImageRows *rows, const ImageTile *tile, float *out, llmc_error *err)
{
	const int64_t width = spec_patch_row(s), elems = rows->row_elems,
	              n = (int64_t)tile->grid_h * tile->grid_w;
	const float *row = rows->value + tile->first_row * elems;
	int32_t side = 0;

	out += s->vision.class_row * width;
	while ((side + 1) * (side + 1) <= width - elems)
		side++;
	float *high =
	    calloc(((size_t)tile->grid_h + (size_t)tile->grid_w) * (size_t)side + 1, sizeof *high);
	if (!high)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an image");
	float *wide = high + (size_t)tile->grid_h * (size_t)side;
	for (int32_t i = 0; side && i < tile->grid_h; i++)
		axis_weights(s, i, tile->grid_h, side, high + (size_t)i * (size_t)side);
	for (int32_t i = 0; side && i < tile->grid_w; i++)
		axis_weights(s, i, tile->grid_w, side, wide + (size_t)i * (size_t)side);
	for (int64_t i = 0; i < n; i++) {
		float *weight = out + i * width + elems;
		const int32_t *at = rows->position + (tile->first_row + i) * 2;
		memcpy(out + i * width, row + i * elems, (size_t)elems * sizeof *out);
		for (int32_t y = 0; y < side; y++)
			for (int32_t x = 0; x < side; x++)
				weight[y * side + x] = high[at[0] * (int64_t)side + y] *
				                       wide[at[1] * (int64_t)side + x];
	}
	free(high);
	return LLMC_OK;
}

/* Run the tower over the patches of one tile, as one sequence. window: window of each patch; NULL:
 * the tower has no windows */
static llmc_status
run_patches(llmc_tower *t, const ImageRows *rows, const ImageTile *tile, const int32_t *window,
            float *out, llmc_error *err)
{
	const Spec *s = t->model->spec;
	const int64_t patches = (int64_t)tile->grid_h * tile->grid_w,
	              first = t->model->plan->class_rows, n = patches + first;
	const bool numbered = s->vision.positions && spec_patch_row(s) == rows->row_elems,
	           made = first || spec_patch_row(s) > rows->row_elems;
	const float *row = rows->value + tile->first_row * rows->row_elems;
	llmc_seq q = -1;

	if (n > t->model->plan->max_positions)
		return error_set(
		    err, LLMC_E_RANGE, "the image has %lld patches, the tower takes %lld",
		    (long long)patches, (long long)t->model->plan->max_positions - first);
	int32_t *ids = calloc((size_t)n * 4, sizeof *ids), *y = ids + n, *x = y + n,
	        *number = x + n;
	float *own = made ? calloc((size_t)n, (size_t)spec_patch_row(s) * sizeof *row) : NULL;
	llmc_status status = ids && (own || !made)
	                         ? LLMC_OK
	                         : error_set(err, LLMC_E_MEMORY, "out of memory for an image");
	if (made && status == LLMC_OK)
		status = input_rows(s, rows, tile, own, err);
	if (status != LLMC_OK)
		return free(ids), free(own), status;
	for (int64_t i = 0; i < patches; i++) {
		const int32_t *at = rows->position + (tile->first_row + i) * 2;
		y[first + i] = at[0];
		x[first + i] = at[1];
		if (numbered)
			number[first + i] = learned_position(s, tile, at);
	}
	const llmc_image_rows in = { .row = made ? own : row,
		                     .pos = { ids, y, x },
		                     .number = numbered ? number : NULL,
		                     .window = window };
	pthread_mutex_lock(&t->lock);
	status = n > t->most_rows ? open_session(t, n, err) : LLMC_OK;
	const bool open = status == LLMC_OK;
	if (open) {
		runtime_lock_processors(t->text->rt);
		status = llmc_seq_new(t->session, 0, &q, err);
	}
	if (status == LLMC_OK) {
		const llmc_chunk c = { .seq = q,
			               .tok = ids,
			               .n_tok = (int32_t)n,
			               .n_out = (int32_t)(patches / t->model->plan->merge) };
		status = llmc_forward_images(t->session, &c, 1, &in, out, err);
		llmc_seq_free(t->session, q);
	}
	if (open)
		runtime_unlock_processors(t->text->rt);
	pthread_mutex_unlock(&t->lock);
	free(own);
	free(ids);
	return status;
}

/* Number the cells of merged patches by windows of side x side cells: windows are in raster order,
 * and cells are in raster order within each window. window [cells]: window of each cell, in this
 * order */
static void
order_cells(int32_t high, int32_t wide, int32_t side, int32_t *cell, int32_t *window)
{
	int32_t n = 0, at = 0;

	for (int32_t y0 = 0; y0 < high; y0 += side)
		for (int32_t x0 = 0; x0 < wide; x0 += side, n++)
			for (int32_t y = y0; y < high && y < y0 + side; y++)
				for (int32_t x = x0; x < wide && x < x0 + side; x++) {
					cell[at] = y * wide + x;
					window[at++] = n;
				}
}

/* Run the tower over one tile. With windows, its patches are ordered by window, and the rows of the
 * result are put back into the order of the image. */
static llmc_status
run_tile(llmc_tower *t, const ImageRows *rows, const ImageTile *tile, float *out, llmc_error *err)
{
	const int64_t most = plan_segment(t->model->plan), elems = rows->row_elems,
	              width = plan_out_width(t->model->plan), n = t->model->plan->merge;
	const int32_t high = tile->grid_h / t->rules.merge, wide = tile->grid_w / t->rules.merge,
	              cells = high * wide;
	int32_t side = 1;
	llmc_status status;

	if (!most)
		return run_patches(t, rows, tile, NULL, out, err);
	while ((side + 1) * (side + 1) * n <= most)
		side++;
	int32_t *cell = calloc((size_t)cells * (size_t)(2 + 3 * n), sizeof *cell);
	float *value = calloc((size_t)(cells * n), (size_t)elems * sizeof *value),
	      *made = calloc((size_t)cells, (size_t)width * sizeof *made);
	if (!cell || !value || !made) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory for an image");
		goto fail;
	}
	int32_t *of = cell + cells, *window = of + cells, *position = window + cells * n;
	order_cells(high, wide, side, cell, of);
	for (int32_t i = 0; i < cells; i++) {
		const int64_t from = tile->first_row + cell[i] * n;
		memcpy(value + i * n * elems, rows->value + from * elems,
		       (size_t)(n * elems) * sizeof *value);
		memcpy(position + i * n * 2, rows->position + from * 2,
		       (size_t)n * 2 * sizeof *position);
		for (int64_t k = 0; k < n; k++)
			window[i * n + k] = of[i];
	}
	const ImageRows own = { .value = value,
		                .position = position,
		                .row_elems = rows->row_elems };
	const ImageTile whole = { .grid_h = tile->grid_h, .grid_w = tile->grid_w };
	TRY_GOTO(run_patches(t, &own, &whole, window, made, err));
	for (int32_t i = 0; i < cells; i++)
		memcpy(out + cell[i] * width, made + i * width, (size_t)width * sizeof *out);
fail:
	free(cell);
	free(value);
	free(made);
	return status;
}

/* Count the rows that the tower makes, and check that the processor's text has as many tokens. */
static llmc_status
count_rows(const llmc_tower *t, const ImageRows *rows, llmc_tower_image *im, llmc_error *err)
{
	const int64_t n = rows->n_row / t->model->plan->merge;

	if (n != rows->n_token || n > INT32_MAX)
		return error_set(err, LLMC_E_INPUT,
		                 "the processor gives the image %lld tokens, the tower %lld rows",
		                 (long long)rows->n_token, (long long)n);
	im->n_row = (int32_t)n;
	if (rows->n_tile == 1) {
		im->height = rows->tile[0].grid_h / t->rules.merge;
		im->width = rows->tile[0].grid_w / t->rules.merge;
	}
	im->text = strdup(strbuf_str(&rows->text));
	return im->text ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory for an image");
}

static llmc_status
go_on(const llmc_read_options *opt, llmc_error *err)
{
	if (!opt->go_on || opt->go_on(opt->user))
		return LLMC_OK;
	return error_set(err, LLMC_E_CANCELLED, "the image is no longer needed");
}

static llmc_status
run_tower(llmc_tower *t, const ImageRows *rows, const llmc_read_options *opt, llmc_tower_image *im,
          llmc_error *err)
{
	const int64_t merge = t->model->plan->merge, hidden = plan_out_width(t->model->plan);

	im->row = calloc((size_t)(im->n_row * hidden) + 1, sizeof *im->row);
	if (!im->row)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an image");
	for (int32_t i = 0; i < rows->n_tile; i++) {
		TRY(go_on(opt, err));
		TRY(run_tile(t, rows, &rows->tile[i],
		             im->row + rows->tile[i].first_row / merge * hidden, err));
	}
	return LLMC_OK;
}

/* Hash a file and the options by which it is read */
static uint64_t
image_key_of(const void *data, size_t n, bool low)
{
	char hash[65];
	Sha256 sha;

	sha256_init(&sha);
	sha256_add(&sha, data, n);
	if (low)
		sha256_add(&sha, "low", 3);
	sha256_hex(&sha, hash);
	hash[16] = 0;
	return strtoull(hash, NULL, 16);
}

llmc_status
llmc_tower_read(llmc_tower *t, const void *data, size_t n, const llmc_read_options *opt,
                llmc_tower_image **out, llmc_error *err)
{
	llmc_read_options o = LLMC_INIT(llmc_read_options);
	ImageLimits limits = IMAGE_LIMITS_DEFAULT;
	ImageRules rules = t->rules;
	ImagePixels pixels = { 0 };
	ImageRows rows = { 0 };
	llmc_status status;

	*out = NULL;
	SIZED_TAKE(o, opt);
	limits.max_pixels = o.max_pixels > 0 ? o.max_pixels : limits.max_pixels;
	if (o.low && !(rules.tiling != IMAGE_TILE_NONE && rules.cut))
		return error_set(err, LLMC_E_INPUT,
		                 "%s reads images at one level of detail, not at a low one",
		                 t->text->plan->name);
	rules.cut &= !o.low;
	llmc_tower_image *im = calloc(1, sizeof *im);
	if (!im)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an image");
	TRY_GOTO(go_on(&o, err));
	TRY_GOTO(image_decode(data, n, &limits, &pixels, err));
	TRY_GOTO(o.count_only ? image_measure(&rules, pixels.width, pixels.height, &rows, err)
	                      : image_prepare(&rules, &pixels, &rows, err));
	image_release(&pixels);
	TRY_GOTO(count_rows(t, &rows, im, err));
	if (!o.count_only)
		TRY_GOTO(run_tower(t, &rows, &o, im, err));
	im->key = image_key_of(data, n, o.low);
	*out = im;
	im = NULL;
fail:
	image_rows_release(&rows);
	image_release(&pixels);
	llmc_tower_image_close(im);
	return status;
}

int64_t
llmc_tower_bytes(llmc_tower *t)
{
	llmc_memory mem = LLMC_INIT(llmc_memory);

	pthread_mutex_lock(&t->lock);
	const llmc_limits lim =
	    t->session ? *session_limits_of(t->session->s) : limits_for(t, FIRST_ROWS);
	pthread_mutex_unlock(&t->lock);
	if (session_memory(t->model->plan, &lim, &mem, NULL) != LLMC_OK)
		return 0;
	return mem.weights + mem.kv + mem.scratch + mem.state;
}

void
llmc_tower_image_close(llmc_tower_image *im)
{
	if (!im)
		return;
	free(im->row);
	free(im->text);
	free(im);
}

const char *
llmc_tower_image_text(const llmc_tower_image *im)
{
	return im->text;
}

void
llmc_tower_image_part(const llmc_tower_image *im, llmc_image_part *out)
{
	const llmc_image_part part = { .row = im->row,
		                       .n_row = im->n_row,
		                       .key = im->key,
		                       .height = im->height,
		                       .width = im->width };

	SIZED_GIVE(out, part);
}
