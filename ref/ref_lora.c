/* Low-rank adapters, row by row. Both factors are vectors of f32; plan.h defines the layout of
 * slots. */
#include "ref/ref_internal.h"

/* Slot of the row's adapter; negative: none */
static int32_t
slot_of(const RefCall *c, int64_t t)
{
	return c->s->adapter[c->s->seq[c->s->seq_of[t]]];
}

void
ref_lora_down(const RefCall *c)
{
	const int64_t cols = step_int(c->step, "cols"),
	              n = step_int(c->step, "rank") * step_int(c->step, "count");
	const float *x = ref_f32(c, ARG(lora_down, x)), *a = c->arg[ARG(lora_down, a)].data;
	float *y = ref_f32(c, ARG(lora_down, t));

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		const int32_t slot = slot_of(c, t);
		for (int64_t k = 0; k < n; k++)
			y[t * n + k] = slot < 0 ? 0
			                        : (float)ref_dot(a + (slot * n + k) * cols,
			                                         x + t * cols, cols);
	}
}

void
ref_lora_up(const RefCall *c)
{
	const int64_t rows = step_int(c->step, "rows"), rank = step_int(c->step, "rank"),
	              wide = rank * step_int(c->step, "count");
	const float *x = ref_f32(c, ARG(lora_up, x)), *b = c->arg[ARG(lora_up, b)].data;
	const float *low = ref_f32(c, ARG(lora_up, t)) + step_int(c->step, "first") * rank;
	float *y = ref_f32(c, ARG(lora_up, y));

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		const int32_t slot = slot_of(c, t);
		for (int64_t i = 0; i < rows; i++) {
			double sum = 0;
			for (int64_t k = 0; k < rank && slot >= 0; k++)
				sum += (double)low[t * wide + k] * b[(slot * rank + k) * rows + i];
			y[t * rows + i] = (float)(x[t * rows + i] + sum);
		}
	}
}

/* Columns of a factor */
static int64_t
factor_width(const RefCall *c)
{
	return step_int(c->step, "cols") +
	       (step_int(c->step, "heads") - 1) * step_int(c->step, "head_stride");
}

void
ref_lora_heads_down(const RefCall *c)
{
	const int64_t heads = step_int(c->step, "heads"), width = step_int(c->step, "width"),
	              cols = step_int(c->step, "cols"),
	              head_stride = step_int(c->step, "head_stride");
	const int64_t rank = step_int(c->step, "rank"), wide = factor_width(c);
	const float *x = ref_f32(c, ARG(lora_heads_down, x)),
	            *a = c->arg[ARG(lora_heads_down, a)].data;
	float *y = ref_f32(c, ARG(lora_heads_down, t));

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		const int32_t slot = slot_of(c, t);
		for (int64_t h = 0; h < heads; h++)
			for (int64_t k = 0; k < rank; k++)
				y[(t * heads + h) * rank + k] =
				    slot < 0 ? 0
				             : (float)ref_dot(a + (slot * rank + k) * wide +
				                                  h * head_stride,
				                              x + (t * heads + h) * width, cols);
	}
}

void
ref_lora_heads_up(const RefCall *c)
{
	const int64_t heads = step_int(c->step, "heads"), width = step_int(c->step, "width"),
	              cols = step_int(c->step, "cols"),
	              head_stride = step_int(c->step, "head_stride");
	const int64_t rank = step_int(c->step, "rank"), wide = factor_width(c);
	const float *x = ref_f32(c, ARG(lora_heads_up, x)), *b = c->arg[ARG(lora_heads_up, b)].data,
	            *low = ref_f32(c, ARG(lora_heads_up, t));
	float *y = ref_f32(c, ARG(lora_heads_up, y));

	for (int64_t t = 0; t < c->s->n_tok; t++) {
		const int32_t slot = slot_of(c, t);
		for (int64_t h = 0; h < heads; h++)
			for (int64_t i = 0; i < width; i++) {
				const int64_t at = (t * heads + h) * width + i;
				double sum = 0;
				for (int64_t k = 0; k < rank && slot >= 0 && i < cols; k++)
					sum += (double)low[(t * heads + h) * rank + k] *
					       b[(slot * rank + k) * wide + h * head_stride + i];
				y[at] = (float)(x[at] + sum);
			}
	}
}

/* Index of (slot, expert) in a factor for choice i of n_tok x top_k; negative: the row has no
 * adapter, or its expert is on another rank */
static int64_t
place_of(const RefCall *c, const int32_t *id, int64_t i)
{
	const int32_t slot = slot_of(c, i / step_int(c->step, "top_k"));

	return slot < 0 || id[i] < 0 ? -1 : slot * step_int(c->step, "n_experts") + id[i];
}

void
ref_lora_experts_down(const RefCall *c)
{
	const int64_t cols = step_int(c->step, "cols"), top_k = step_int(c->step, "top_k"),
	              n = step_int(c->step, "rank") * step_int(c->step, "count");
	const bool each = step_int(c->step, "per_group");
	const int32_t *id = c->arg[ARG(lora_experts_down, id)].data;
	const float *x = ref_f32(c, ARG(lora_experts_down, x)),
	            *a = c->arg[ARG(lora_experts_down, a)].data;
	float *y = ref_f32(c, ARG(lora_experts_down, t));

	for (int64_t i = 0; i < c->s->n_tok * top_k; i++) {
		const int64_t at = place_of(c, id, i);
		for (int64_t k = 0; k < n; k++)
			y[i * n + k] =
			    at < 0 ? 0
			           : (float)ref_dot(a + (at * n + k) * cols,
			                            x + (each ? i : i / top_k) * cols, cols);
	}
}

/* Element j of low * b, b [rank, rows] */
static double
up_one(const float *low, const float *b, int64_t rank, int64_t rows, int64_t j)
{
	double sum = 0;

	for (int64_t k = 0; k < rank; k++)
		sum += (double)low[k] * b[k * rows + j];
	return sum;
}

void
ref_lora_experts_up(const RefCall *c)
{
	const int64_t rows = step_int(c->step, "rows"), rank = step_int(c->step, "rank"),
	              count = step_int(c->step, "count");
	const int32_t *id = c->arg[ARG(lora_experts_up, id)].data;
	const float *low = ref_f32(c, ARG(lora_experts_up, t)),
	            *b = c->arg[ARG(lora_experts_up, b)].data;
	float *y = ref_f32(c, ARG(lora_experts_up, y));

	for (int64_t i = 0; i < c->s->n_tok * step_int(c->step, "top_k"); i++) {
		const int64_t at = place_of(c, id, i);
		for (int64_t m = 0; m < count; m++)
			for (int64_t j = 0; j < rows; j++)
				y[(i * count + m) * rows + j] =
				    at < 0 ? 0
				           : (float)up_one(low + (i * count + m) * rank,
				                           b + (at * count + m) * rank * rows, rank,
				                           rows, j);
	}
}

void
ref_lora_experts_add(const RefCall *c)
{
	const int64_t rows = step_int(c->step, "rows"), rank = step_int(c->step, "rank"),
	              top_k = step_int(c->step, "top_k");
	const int32_t *id = c->arg[ARG(lora_experts_add, id)].data;
	const float *x = ref_f32(c, ARG(lora_experts_add, x)),
	            *low = ref_f32(c, ARG(lora_experts_add, t)),
	            *weight = ref_f32(c, ARG(lora_experts_add, weight));
	const float *b = c->arg[ARG(lora_experts_add, b)].data;
	float *y = ref_f32(c, ARG(lora_experts_add, y));

	for (int64_t t = 0; t < c->s->n_tok; t++)
		for (int64_t j = 0; j < rows; j++) {
			double sum = 0;
			for (int64_t i = t * top_k; i < (t + 1) * top_k; i++) {
				const int64_t at = place_of(c, id, i);
				sum += at < 0 ? 0
				              : weight[i] * up_one(low + i * rank,
				                                   b + at * rank * rows, rank, rows,
				                                   j);
			}
			y[t * rows + j] = (float)(x[t * rows + j] + sum);
		}
}
