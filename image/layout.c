#include "image/layout.h"

#include <math.h>
#include <stdlib.h>

/* Most tiles and pixels of an image after preprocessing */
enum { MAX_VIEWS = 4096, MAX_SIDE = 1 << 20 };
#define MAX_PIXELS ((int64_t)1 << 26)

static int32_t
multiple_up(double v, int32_t of)
{
	return (int32_t)ceil(v / of) * of;
}

static int32_t
multiple_down(double v, int32_t of)
{
	return (int32_t)floor(v / of) * of;
}

static llmc_status
too_narrow(ImageSize s, int limit, llmc_error *err)
{
	return error_set(
	    err, LLMC_E_INPUT,
	    "The image of %d x %d pixels is too narrow for this model: the ratio of its "
	    "sides is above %d.",
	    s.width, s.height, limit);
}

static llmc_status
smart_size(const ImageRules *r, ImageSize s, ImageSize *out, llmc_error *err)
{
	enum { MAX_RATIO = 200 };
	int32_t f = r->patch * r->merge;
	double h = s.height, w = s.width, most = fmax(h, w), least = fmin(h, w);

	if (most / least > MAX_RATIO)
		return too_narrow(s, MAX_RATIO, err);
	/* halves are rounded to even, as Python does */
	int64_t high = (int64_t)rint(h / f) * f, wide = (int64_t)rint(w / f) * f;
	if (high * wide > r->max_pixels) {
		double beta = sqrt(h * w / (double)r->max_pixels);
		high = multiple_down(h / beta, f);
		wide = multiple_down(w / beta, f);
		high = high > f ? high : f;
		wide = wide > f ? wide : f;
	} else if (high * wide < r->min_pixels) {
		double beta = sqrt((double)r->min_pixels / (h * w));
		high = multiple_up(h * beta, f);
		wide = multiple_up(w * beta, f);
	}
	*out = (ImageSize){ (int32_t)high, (int32_t)wide };
	return LLMC_OK;
}

static llmc_status
budget_size(const ImageRules *r, ImageSize s, ImageSize *out, llmc_error *err)
{
	int32_t pool = r->token_square * r->model_patch, f = r->patch * pool;
	int64_t patches = (int64_t)r->soft_tokens * pool * pool;
	double pixels = (double)patches * r->patch * r->patch, h = s.height, w = s.width;
	double scale = sqrt(pixels / (h * w));
	int32_t high = multiple_down(scale * h, f), wide = multiple_down(scale * w, f);

	int64_t longest = (int64_t)r->soft_tokens * f;
	if (high == 0) {
		int64_t v = (int64_t)floor(w / h) * f;
		high = f;
		wide = (int32_t)(v < longest ? v : longest);
	} else if (wide == 0) {
		int64_t v = (int64_t)floor(h / w) * f;
		wide = f;
		high = (int32_t)(v < longest ? v : longest);
	}
	if (high == 0 || wide == 0 || (double)high * wide > pixels)
		return error_set(err, LLMC_E_INPUT,
		                 "The image of %d x %d pixels does not fit %d tokens.", s.width,
		                 s.height, r->soft_tokens);
	*out = (ImageSize){ high, wide };
	return LLMC_OK;
}

static ImageSize
longest_size(const ImageRules *r, ImageSize s)
{
	double high = r->longest ? r->longest : r->height,
	       wide = r->longest ? r->longest : r->width;
	double ratio = fmax(s.height / high, s.width / wide);
	int32_t f = r->patch * r->token_square;

	if (ratio > 1) {
		s.height = (int32_t)floor(s.height / ratio);
		s.width = (int32_t)floor(s.width / ratio);
	}
	/* round up; the model's processor rounds a small side down to 0 and then fails */
	return (ImageSize){ (s.height + f - 1) / f * f, (s.width + f - 1) / f * f };
}

/* Return the size with the longer side `longest`. If the shorter side is odd, it grows by one. */
static ImageSize
even_size(int32_t longest, ImageSize s)
{
	enum { LARGEST = 4096 };
	double aspect = (double)s.width / s.height;
	ImageSize to;

	if (s.width >= s.height) {
		to.width = longest;
		to.height = (int32_t)(longest / aspect);
		to.height += to.height % 2;
	} else {
		to.height = longest;
		to.width = (int32_t)(longest * aspect);
		to.width += to.width % 2;
	}
	to.height = to.height > 1 ? to.height : 1;
	to.width = to.width > 1 ? to.width : 1;
	aspect = (double)to.width / to.height;
	if (to.width >= to.height && to.width > LARGEST) {
		to.width = LARGEST;
		to.height = (int32_t)(to.width / aspect);
	} else if (to.height > to.width && to.height > LARGEST) {
		to.height = LARGEST;
		to.width = (int32_t)(to.height * aspect);
	}
	to.height = to.height > 1 ? to.height : 1;
	to.width = to.width > 1 ? to.width : 1;
	return to;
}

static llmc_status
resized(const ImageRules *r, ImageSize s, ImageSize *out, llmc_error *err)
{
	switch (r->resize) {
	case IMAGE_RESIZE_SMART:
		return smart_size(r, s, out, err);
	case IMAGE_RESIZE_BUDGET:
		return budget_size(r, s, out, err);
	case IMAGE_RESIZE_LONGEST:
		*out = longest_size(r, s);
		return LLMC_OK;
	case IMAGE_RESIZE_EVEN:
		*out = even_size(r->longest, s);
		return LLMC_OK;
	case IMAGE_RESIZE_SIZE:
		break;
	}
	*out = (ImageSize){ r->height, r->width };
	if (r->shortest) {
		int64_t longer = s.width <= s.height ? s.height : s.width;
		int64_t shorter = s.width <= s.height ? s.width : s.height;
		double v = (double)(r->shortest * longer) / (double)shorter;
		int32_t other = v < INT32_MAX ? (int32_t)v : INT32_MAX;
		*out = s.width <= s.height ? (ImageSize){ other, r->shortest }
		                           : (ImageSize){ r->shortest, other };
	}
	return LLMC_OK;
}

static llmc_status
add_view(ImageLayout *l, ImageView v, llmc_error *err)
{
	if (l->n_view == MAX_VIEWS)
		return error_set(err, LLMC_E_INPUT,
		                 "The image of %d x %d pixels would be cut into more than %d "
		                 "tiles.",
		                 l->original.width, l->original.height, MAX_VIEWS);
	if (l->n_view == l->cap) {
		int32_t cap = l->cap ? 2 * l->cap : 16;
		ImageView *more = realloc(l->view, (size_t)cap * sizeof *more);
		if (!more)
			return error_set(err, LLMC_E_MEMORY, "No memory for %d tiles of an image.",
			                 cap);
		l->view = more;
		l->cap = cap;
	}
	l->view[l->n_view++] = v;
	return LLMC_OK;
}

static ImageView
whole(const ImageLayout *l, ImageSize to)
{
	return (ImageView){ .part = { 0, 0, l->original.height, l->original.width }, .size = to };
}

static llmc_status
add_grid(ImageLayout *l, int32_t side_h, int32_t side_w, llmc_error *err)
{
	for (int32_t y = 0; y < l->tiles_h; y++)
		for (int32_t x = 0; x < l->tiles_w; x++)
			TRY(add_view(
			    l,
			    (ImageView){ .of_base = true,
			                 .part = { y * side_h, x * side_w, side_h, side_w },
			                 .size = { side_h, side_w } },
			    err));
	return LLMC_OK;
}

static void
add_step(ImageLayout *l, ImageSize s)
{
	l->step[l->n_step++] = s;
	l->canvas = (ImageBox){ 0, 0, s.height, s.width };
}

static llmc_status
add_base(ImageLayout *l, llmc_error *err)
{
	return add_view(l,
	                (ImageView){ .of_base = true,
	                             .part = { 0, 0, l->canvas.height, l->canvas.width },
	                             .size = { l->canvas.height, l->canvas.width } },
	                err);
}

static llmc_status
plain(const ImageRules *r, ImageLayout *l, llmc_error *err)
{
	ImageSize s = l->original;

	if (r->do_resize)
		TRY(resized(r, s, &s, err));
	add_step(l, s);
	if (r->center_crop) {
		int32_t high = r->crop_height, wide = r->crop_width, y = s.height - high,
		        x = s.width - wide;
		/* An axis that is too short is padded at both ends, with an odd pixel at the second
		 * end. The offset of a crop of the other axis is rounded down. */
		l->canvas =
		    (ImageBox){ y < 0 ? -(-y / 2) : y / 2, x < 0 ? -(-x / 2) : x / 2, high, wide };
	}
	return add_base(l, err);
}

static llmc_status
split(const ImageRules *r, ImageLayout *l, llmc_error *err)
{
	ImageSize s = l->original, tile = { r->tile, r->tile };

	if (r->do_resize) {
		TRY(resized(r, s, &s, err));
		add_step(l, s);
	}
	if (!r->cut) {
		add_step(l, tile);
		return add_base(l, err);
	}
	double aspect = (double)s.width / s.height;
	if (s.width >= s.height) {
		s.width = multiple_up(s.width, r->tile);
		s.height = multiple_up((int32_t)(s.width / aspect), r->tile);
	} else {
		s.height = multiple_up(s.height, r->tile);
		s.width = multiple_up((int32_t)(s.height * aspect), r->tile);
	}
	add_step(l, s);
	if (s.height <= r->tile && s.width <= r->tile) {
		return add_base(l, err);
	}
	l->tiles_h = s.height / r->tile;
	l->tiles_w = s.width / r->tile;
	TRY(add_grid(l, r->tile, r->tile, err));
	return add_view(
	    l, (ImageView){ .of_base = true, .part = { 0, 0, s.height, s.width }, .size = tile },
	    err);
}

/* Select the grid of at most max_tiles with the nearest aspect ratio. Of grids with equal aspect a
 * larger one wins if the image covers more than half of it. */
static void
best_grid(const ImageRules *r, ImageLayout *l)
{
	double aspect = (double)l->original.width / l->original.height, best = INFINITY;
	double area = (double)l->original.width * l->original.height;

	l->tiles_h = l->tiles_w = 1;
	for (int32_t n = r->min_tiles; n <= r->max_tiles; n++) {
		for (int32_t w = 1; w <= n; w++) {
			if (n % w)
				continue;
			double far = fabs(aspect - (double)w / (n / w));
			bool fills = area > 0.5 * r->height * r->width * n;
			if (far < best || (far == best && fills)) {
				best = far;
				l->tiles_w = w;
				l->tiles_h = n / w;
			}
		}
	}
}

static llmc_status
by_aspect(const ImageRules *r, ImageLayout *l, llmc_error *err)
{
	best_grid(r, l);
	add_step(l, (ImageSize){ l->tiles_h * r->height, l->tiles_w * r->width });
	TRY(add_grid(l, r->height, r->width, err));
	if (l->n_view > 1)
		return add_view(l, whole(l, (ImageSize){ r->height, r->width }), err);
	l->tiles_h = l->tiles_w = 0;
	return LLMC_OK;
}

/* Select the pinpoint that keeps the most pixels of the image; of equal ones the smallest. */
static ImageSize
best_pinpoint(const ImageRules *r, ImageSize s)
{
	int64_t most = 0, least_waste = INT64_MAX;
	ImageSize best = { r->pinpoint[0][0], r->pinpoint[0][1] };

	for (int32_t i = 0; i < r->n_pinpoint; i++) {
		int32_t h = r->pinpoint[i][0], w = r->pinpoint[i][1];
		double scale = fmin((double)w / s.width, (double)h / s.height);
		int64_t used = (int64_t)(s.width * scale) * (int64_t)(s.height * scale);
		int64_t all = (int64_t)s.width * s.height;
		used = used < all ? used : all;
		int64_t waste = (int64_t)w * h - used;
		if (used > most || (used == most && waste < least_waste)) {
			most = used;
			least_waste = waste;
			best = (ImageSize){ h, w };
		}
	}
	return best;
}

static llmc_status
anyres(const ImageRules *r, ImageLayout *l, llmc_error *err)
{
	ImageSize s = l->original, to = best_pinpoint(r, s), fit = to;
	int32_t tile = r->center_crop ? r->crop_height : r->shortest ? r->shortest : r->height;
	int32_t side_h = r->shortest ? r->shortest : r->height,
	        side_w = r->shortest ? r->shortest : r->width;

	if (!tile || to.height % tile || to.width % tile || side_h != tile || side_w != tile)
		return error_set(err, LLMC_E_INPUT,
		                 "The processor's grid of %d x %d pixels has no tiles of %d x %d.",
		                 to.width, to.height, side_w, side_h);
	double scale_w = (double)to.width / s.width, scale_h = (double)to.height / s.height;
	if (scale_w < scale_h) {
		double v = ceil(s.height * scale_w);
		fit.height = v < to.height ? (int32_t)v : to.height;
	} else {
		double v = ceil(s.width * scale_h);
		fit.width = v < to.width ? (int32_t)v : to.width;
	}
	TRY(add_view(l, whole(l, (ImageSize){ side_h, side_w }), err));
	add_step(l, fit);
	l->canvas = (ImageBox){ -((to.height - fit.height) / 2), -((to.width - fit.width) / 2),
		                to.height, to.width };
	l->tiles_h = to.height / tile;
	l->tiles_w = to.width / tile;
	return add_grid(l, tile, tile, err);
}

static llmc_status
crops(const ImageRules *r, ImageLayout *l, llmc_error *err)
{
	ImageSize s = l->original, to = s;
	bool wide = s.width >= s.height;
	double longer = wide ? s.width : s.height, shorter = wide ? s.height : s.width;

	if (r->do_resize)
		TRY(resized(r, s, &to, err));
	TRY(add_view(l, whole(l, to), err));
	if (!r->cut || longer / shorter < r->min_ratio)
		return LLMC_OK;
	int64_t n = (int64_t)floor(longer / shorter + 0.5),
	        fit = (int64_t)floor(longer / r->min_crop);
	n = fit < n ? fit : n;
	n = n > 2 ? n : 2;
	n = n < r->max_tiles ? n : r->max_tiles;
	int32_t side = (int32_t)ceil(longer / (double)n);
	if ((side < shorter ? side : shorter) < r->min_crop)
		return LLMC_OK;
	for (int32_t i = 0; i < n; i++) {
		int32_t at = i * side, left = (int32_t)longer - at,
		        length = left < side ? left : side;
		TRY(add_view(l,
		             (ImageView){ .part = wide ? (ImageBox){ 0, at, s.height, length }
		                                       : (ImageBox){ at, 0, length, s.width },
		                          .size = to },
		             err));
	}
	l->tiles_h = wide ? 1 : (int32_t)n;
	l->tiles_w = wide ? (int32_t)n : 1;
	return LLMC_OK;
}

static llmc_status
no_pixels(const ImageLayout *l, ImageSize s, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT,
	                 "The image of %d x %d pixels would be resized to %d x %d.",
	                 l->original.width, l->original.height, s.width, s.height);
}

static llmc_status
check_sizes(const ImageLayout *l, llmc_error *err)
{
	int64_t pixels = 0;

	for (int32_t i = 0; i < l->n_step; i++) {
		ImageSize s = l->step[i];
		if (s.height < 1 || s.width < 1)
			return no_pixels(l, s, err);
		if (i + 1 < l->n_step) /* the last step needs only the pixels of the canvas */
			pixels += (int64_t)s.height * s.width;
	}
	for (int32_t i = 0; i < l->n_view; i++) {
		ImageSize s = l->view[i].size;
		if (s.height < 1 || s.width < 1)
			return no_pixels(l, s, err);
		if (s.height > MAX_SIDE || s.width > MAX_SIDE)
			return error_set(err, LLMC_E_INPUT,
			                 "The image of %d x %d pixels is too narrow.",
			                 l->original.width, l->original.height);
		pixels += (int64_t)s.height * s.width;
	}
	if (pixels > MAX_PIXELS || (int64_t)l->canvas.height * l->canvas.width > MAX_PIXELS)
		return error_set(err, LLMC_E_INPUT,
		                 "The image of %d x %d pixels would have %lld pixels after "
		                 "preprocessing; at most %lld are possible.",
		                 l->original.width, l->original.height, (long long)pixels,
		                 (long long)MAX_PIXELS);
	return LLMC_OK;
}

llmc_status
image_layout(const ImageRules *r, int32_t width, int32_t height, ImageLayout *out, llmc_error *err)
{
	*out = (ImageLayout){ .original = { height, width } };
	if (r->pad_square && width != height) {
		int32_t side = width > height ? width : height;
		if ((int64_t)side * side > MAX_PIXELS)
			return error_set(err, LLMC_E_INPUT,
			                 "The image of %d x %d pixels is too long for this model, "
			                 "which pads images to squares of at most %lld pixels.",
			                 width, height, (long long)MAX_PIXELS);
		out->paste_y = (side - height) / 2;
		out->paste_x = (side - width) / 2;
		out->original = (ImageSize){ side, side };
	}
	switch (r->tiling) {
	case IMAGE_TILE_NONE:
		TRY(plain(r, out, err));
		break;
	case IMAGE_TILE_SPLIT:
		TRY(split(r, out, err));
		break;
	case IMAGE_TILE_ASPECT:
		TRY(r->cut ? by_aspect(r, out, err) : plain(r, out, err));
		break;
	case IMAGE_TILE_ANYRES:
		TRY(anyres(r, out, err));
		break;
	case IMAGE_TILE_CROPS:
		TRY(crops(r, out, err));
		break;
	}
	return check_sizes(out, err);
}

void
image_layout_release(ImageLayout *l)
{
	free(l->view);
	*l = (ImageLayout){ 0 };
}
