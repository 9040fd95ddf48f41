/* Separable resampling: first along rows, then along columns, with 8 bits per sample between the
 * passes. A pass that keeps its size is skipped. A filter is widened by the ratio of sizes when the
 * image shrinks.
 *
 * The vertical pass adds each row of the first pass to the sums of the output rows that need it, so
 * that memory is bounded by the output and not by the height of the input. */
#include "image/resample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* MAX_WORK: limit of input rows times output columns, and of input columns times output rows;
 * MAX_SIDE: largest side of the output before it is cropped */
enum { MAX_WORK = 1 << 26, MAX_SIDE = 1 << 22 };

/* Weights of one axis: output i is the sum of n[i] inputs from first[i] on. */
typedef struct Weights {
	int32_t outputs, taps; /* taps: largest n */
	int32_t *first, *n;
	int32_t *weight; /* [outputs, taps], fixed point */
	int precision;   /* bits after the point; 0: copy of the input */
} Weights;

static double
sinc(double x)
{
	return x == 0 ? 1 : sin(x * M_PI) / (x * M_PI);
}

static double
filter_at(ImageFilter f, double x)
{
	const double a = -0.5;

	x = fabs(x);
	switch (f) {
	case IMAGE_NEAREST:
		return 0;
	case IMAGE_LANCZOS:
		return x < 3 ? sinc(x) * sinc(x / 3) : 0;
	case IMAGE_BILINEAR:
		return x < 1 ? 1 - x : 0;
	case IMAGE_BICUBIC:
		if (x < 1)
			return ((a + 2) * x - (a + 3)) * x * x + 1;
		return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
	}
	return 0;
}

static double
support_of(ImageFilter f)
{
	switch (f) {
	case IMAGE_NEAREST:
		return 0.5;
	case IMAGE_LANCZOS:
		return 3;
	case IMAGE_BILINEAR:
		return 1;
	case IMAGE_BICUBIC:
		return 2;
	}
	return 0;
}

static void
weights_release(Weights *w)
{
	free(w->first);
	free(w->n);
	free(w->weight);
}

/* Return the number of bits after the point: torch uses as many as 16-bit weights allow. */
static int
precision_of(ImageBackend backend, double most)
{
	int bits = 0;

	if (backend == IMAGE_PILLOW)
		return 22;
	while (bits < 22 && (int)(0.5 + most * (1 << (bits + 1))) < 1 << 15)
		bits++;
	return bits;
}

/* Compute the weights of output i for the inputs from *first on. Return the number of weights. */
static int32_t
fill_weights(double *exact, int32_t *first, int64_t i, double scale, int32_t from, ImageFilter f)
{
	double wide = scale > 1 ? scale : 1, support = support_of(f) * wide, sum = 0;
	double center = ((double)i + 0.5) * scale;

	if (f == IMAGE_NEAREST) {
		*first = (int32_t)center < from ? (int32_t)center : from - 1;
		exact[0] = 1;
		return 1;
	}
	int32_t begin = (int32_t)(center - support + 0.5), end = (int32_t)(center + support + 0.5);
	begin = begin > 0 ? begin : 0;
	end = end < from ? end : from;
	for (int32_t k = begin; k < end; k++)
		sum += exact[k - begin] = filter_at(f, (k - center + 0.5) * (1 / wide));
	for (int32_t k = 0; k < end - begin; k++)
		exact[k] = sum != 0 ? exact[k] / sum : exact[k];
	*first = begin;
	return end - begin;
}

/* Return the largest weight of all outputs, which determines torch's precision. */
static double
largest_weight(double *scratch, int32_t from, int32_t to, double scale, ImageFilter f)
{
	double most = 0;
	int32_t first;

	for (int32_t i = 0; i < to; i++) {
		int32_t n = fill_weights(scratch, &first, i, scale, from, f);
		for (int32_t k = 0; k < n; k++)
			most = scratch[k] > most ? scratch[k] : most;
	}
	return most;
}

/* Compute the weights of the outputs start .. start + outputs - 1 of an axis that is resized from
 * `from` to `to`.
 */
static bool
weights_init(Weights *w, int32_t from, int32_t to, int32_t start, int32_t outputs, ImageFilter f,
             ImageBackend backend)
{
	double scale = (double)from / to;
	double taps = ceil(support_of(f) * (scale > 1 ? scale : 1)) * 2 + 1;

	*w = (Weights){ .outputs = outputs, .taps = (int32_t)(taps < from ? taps : from) };
	size_t n = (size_t)w->outputs * (size_t)w->taps;
	w->first = calloc((size_t)outputs, sizeof *w->first);
	w->n = calloc((size_t)outputs, sizeof *w->n);
	w->weight = malloc(n * sizeof *w->weight);
	double *exact = calloc((size_t)w->taps, sizeof *exact);
	if (!w->first || !w->n || !w->weight || !exact) {
		free(exact);
		return false;
	}
	if (from != to)
		w->precision = precision_of(
		    backend,
		    backend == IMAGE_PILLOW ? 1 : largest_weight(exact, from, to, scale, f));
	for (int32_t i = 0; i < outputs; i++) {
		int32_t *weight = w->weight + (size_t)i * (size_t)w->taps;
		w->first[i] = start + i;
		w->n[i] = 1;
		if (from != to)
			w->n[i] = fill_weights(exact, &w->first[i], start + i, scale, from, f);
		for (int32_t k = 0; k < w->n[i]; k++) {
			double v = exact[k] * (1 << w->precision);
			weight[k] = from == to ? 1 : (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
		}
	}
	free(exact);
	return true;
}

static uint8_t
clip(int32_t v)
{
	return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
}

static void
horizontal(const Weights *w, const uint8_t *from, uint8_t *to)
{
	if (!w->precision) {
		memcpy(to, from + 3 * (ptrdiff_t)w->first[0], 3 * (size_t)w->outputs);
		return;
	}
	for (int32_t i = 0; i < w->outputs; i++, to += 3) {
		const int32_t *k = w->weight + (size_t)i * (size_t)w->taps;
		const uint8_t *p = from + 3 * (ptrdiff_t)w->first[i];
		int32_t r = 1 << (w->precision - 1), g = r, b = r;
		for (int32_t t = 0; t < w->n[i]; t++, p += 3) {
			r += k[t] * p[0];
			g += k[t] * p[1];
			b += k[t] * p[2];
		}
		to[0] = clip(r >> w->precision);
		to[1] = clip(g >> w->precision);
		to[2] = clip(b >> w->precision);
	}
}

/* Buffers of the vertical pass */
typedef struct Columns {
	uint8_t *row;   /* one row of the first pass */
	int32_t *sum;   /* [active, samples] of the output rows from `done` on */
	int32_t active; /* most output rows that need one input row */
	int32_t done;   /* output rows that are complete */
	int32_t begun;
} Columns;

/* Return the largest number of outputs that need one input. Relies on `first` and the ends never
 * decreasing. */
static int32_t
most_active(const Weights *w)
{
	int32_t most = 1;

	for (int32_t i = 0, first = 0; i < w->outputs; i++) {
		while (w->first[first] + w->n[first] <= w->first[i])
			first++;
		most = i - first + 1 > most ? i - first + 1 : most;
	}
	return most;
}

static void
finish_row(Columns *c, const Weights *v, ImagePixels *out, size_t samples)
{
	const int32_t *sum = c->sum + (size_t)(c->done % c->active) * samples;
	uint8_t *to = out->pixel + (size_t)c->done * samples;

	for (size_t i = 0; i < samples; i++)
		to[i] = clip(sum[i] >> v->precision);
	c->done++;
}

/* Add input row y to each output row that needs it. */
static void
add_row(Columns *c, const Weights *v, int32_t y, ImagePixels *out, size_t samples)
{
	for (; c->begun < v->outputs && v->first[c->begun] <= y; c->begun++) {
		int32_t *sum = c->sum + (size_t)(c->begun % c->active) * samples;
		for (size_t i = 0; i < samples; i++)
			sum[i] = 1 << (v->precision - 1);
	}
	for (int32_t o = c->done; o < c->begun; o++) {
		int32_t *sum = c->sum + (size_t)(o % c->active) * samples;
		int32_t k = v->weight[(size_t)o * (size_t)v->taps + (size_t)(y - v->first[o])];
		for (size_t i = 0; i < samples; i++)
			sum[i] += k * c->row[i];
	}
	while (c->done < c->begun && v->first[c->done] + v->n[c->done] - 1 <= y)
		finish_row(c, v, out, samples);
}

static bool
resize_rows(const ImagePixels *im, ImageBox from, const Weights *h, const Weights *v,
            ImagePixels *out)
{
	size_t samples = 3 * (size_t)out->width;
	Columns c = { .active = most_active(v) };
	int32_t last = v->first[v->outputs - 1] + v->n[v->outputs - 1];

	c.row = malloc(samples);
	c.sum = malloc((size_t)c.active * samples * sizeof *c.sum);
	bool ok = c.row && c.sum;
	for (int32_t y = v->first[0]; ok && y < last; y++) {
		const uint8_t *p =
		    im->pixel + ((size_t)(from.y + y) * (size_t)im->width + (size_t)from.x) * 3;
		if (v->precision) {
			horizontal(h, p, c.row);
			add_row(&c, v, y, out, samples);
		} else {
			horizontal(h, p, out->pixel + (size_t)(y - v->first[0]) * samples);
		}
	}
	free(c.row);
	free(c.sum);
	return ok;
}

llmc_status
image_resize(const ImagePixels *im, ImageBox from, int32_t height, int32_t width, ImageBox window,
             ImageFilter filter, ImageBackend backend, ImagePixels *out, llmc_error *err)
{
	Weights h = { 0 }, v = { 0 };

	*out = (ImagePixels){ 0 };
	if ((int64_t)from.height * window.width > MAX_WORK ||
	    (int64_t)from.width * window.height > MAX_WORK || height > MAX_SIDE || width > MAX_SIDE)
		return error_set(
		    err, LLMC_E_INPUT,
		    "The image of %d x %d pixels is too narrow to be resized to %d x %d.",
		    im->width, im->height, width, height);
	*out = (ImagePixels){ .width = window.width, .height = window.height, .channels = 3 };
	out->pixel = malloc((size_t)window.height * (size_t)window.width * 3);
	bool ok = out->pixel &&
	          weights_init(&h, from.width, width, window.x, window.width, filter, backend) &&
	          weights_init(&v, from.height, height, window.y, window.height, filter, backend) &&
	          resize_rows(im, from, &h, &v, out);
	weights_release(&h);
	weights_release(&v);
	if (ok)
		return LLMC_OK;
	image_release(out);
	return error_set(err, LLMC_E_MEMORY, "No memory to resize an image to %d x %d pixels.",
	                 width, height);
}
