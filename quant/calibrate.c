#include "quant/calibrate.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "quant/gram.h"

typedef struct StageCapture {
	CalibrationInput in;
	const PlanStep *step; /* first step that reads it */
	int buffer, segment;
	int chosen;        /* buffer with the selected experts per row; -1: none */
	int64_t room;      /* capacity of in.row, in rows */
	bool squared;      /* squares were gathered by an earlier run */
	float *x;          /* [rows][cols] of the current forward pass */
	int32_t *ids;      /* [rows][top_k] for MoE */
	int64_t rows, cap; /* cap: capacity of x in floats */
} StageCapture;

typedef struct WindowState {
	float *data;
	int64_t rows;
} WindowState;

/* Boundary before a step: whether a run may stop there, and which buffers are read across it */
typedef struct StepRange {
	bool here;
	int n, *buffer;
	int64_t width;
} StepRange; /* width: floats per token */

struct Calibration {
	const Plan *plan;
	int n;
	size_t cap;
	StageCapture *in;
	WindowState *seen;  /* [n_buffer] last state reported by the probe */
	atomic_bool failed; /* out of memory, in the probe or while gathering */
	Threads *threads;   /* threads of the run */
	Gram gram;
	StepRange *cut; /* [n_step + 1] boundary before each step */
	int at;         /* step at which the next run starts */
	/* [n][stride] per window: values of earlier steps that steps from `at` on read; NULL:
	 * none */
	float *kept;
	int64_t stride;
};

/* Finds the input and weights of a matmul step; returns their number, 0 for other steps */
static int
matrices(const PlanStep *s, int *x, int w[2])
{
	switch (s->op) {
	case OP_matmul:
		*x = ARG(matmul, x);
		w[0] = ARG(matmul, w);
		return 1;
	case OP_moe_ffn:
		*x = ARG(moe_ffn, x);
		w[0] = ARG(moe_ffn, gate);
		w[1] = ARG(moe_ffn, up);
		return 2;
	default:
		return 0;
	}
}

static void
name_add(Arena *a, CalibrationInput *in, const PlanTensor *t)
{
	const char **all = NEW(a, const char *, in->n_name + t->n_src);

	if (in->n_name)
		memcpy(all, in->name, (size_t)in->n_name * sizeof *all);
	for (int i = 0; i < t->n_src; i++)
		all[in->n_name + i] = t->src[i].name;
	in->name = all;
	in->n_name += t->n_src;
}

static void
moe_layer_of(StageCapture *in, const PlanStep *s, Arena *a)
{
	CalibrationInput *i = &in->in;

	if (s->arg[ARG(moe_ffn, id)].kind != REF_BUFFER)
		return;
	in->chosen = s->arg[ARG(moe_ffn, id)].index;
	i->experts = s;
	i->n_experts = (int)step_int(s, "n_experts");
	i->top_k = (int)step_int(s, "top_k");
	i->squares_of = NEW(a, float, i->n_experts * i->cols);
	i->seen_of = NEW(a, int64_t, i->n_experts);
}

/* ---- boundaries at which a run can stop ---- */

/* Scans the steps backwards for values that are read across each boundary, and for pages and
 * recurrent states that steps on both sides use (layers that share keys) */
static void
find_cuts(Calibration *c, Arena *a)
{
	const Plan *plan = c->plan;
	const PlanPhase *ph = &plan->phase[1];
	bool *live = NEW(a, bool, plan->n_buffer + 1), *made = NEW(a, bool, plan->n_buffer + 1);
	/* first: per slot, its first user (counted from 1); open: slots used on both sides */
	int **first = NEW(a, int *, plan->n_pool + 1), open = 0;
	bool **used = NEW(a, bool *, plan->n_pool + 1);

	for (int p = 0; p < plan->n_pool; p++) {
		first[p] = NEW(a, int, plan->pool[p].n_layers + 1);
		used[p] = NEW(a, bool, plan->pool[p].n_layers + 1);
	}
	for (int i = ph->n_step; i-- > 0;)
		for (int k = 0; k < ph->step[i].n_arg; k++)
			if (ph->step[i].arg[k].kind == REF_POOL)
				first[ph->step[i].arg[k].index][ph->step[i].arg[k].layer_slot] =
				    i + 1;
	for (int i = 0; i < ph->n_step; i++)
		for (int k = 0; k < ph->step[i].n_make; k++)
			if (ph->step[i].make[k].arg >= 0 &&
			    ph->step[i].arg[ph->step[i].make[k].arg].kind == REF_BUFFER)
				made[ph->step[i].arg[ph->step[i].make[k].arg].index] = true;
	c->cut = NEW(a, StepRange, ph->n_step + 1);
	c->cut[0].here = c->cut[ph->n_step].here = true;
	for (int i = ph->n_step; i-- > 1;) {
		const PlanStep *s = &ph->step[i];
		bool out[PLAN_MAX_ARGS] = { false };
		for (int k = 0; k < s->n_make; k++)
			if (s->make[k].arg >= 0) {
				out[s->make[k].arg] = true;
				if (s->arg[s->make[k].arg].kind == REF_BUFFER)
					live[s->arg[s->make[k].arg].index] = false;
			}
		for (int k = 0; k < s->n_arg; k++) {
			const PlanRef *r = &s->arg[k];
			if (r->kind == REF_BUFFER && !out[k] &&
			    made[r->index]) /* not if no step writes it: then it is scratch */
				live[r->index] = true;
			if (r->kind == REF_POOL) {
				open += !used[r->index][r->layer_slot];
				used[r->index][r->layer_slot] = true;
			}
		}
		for (int k = 0; k < s->n_arg; k++)
			if (s->arg[k].kind == REF_POOL &&
			    first[s->arg[k].index][s->arg[k].layer_slot] == i + 1 &&
			    used[s->arg[k].index][s->arg[k].layer_slot]) {
				open--;
				used[s->arg[k].index][s->arg[k].layer_slot] = false;
			}
		if (open || s->layer == ph->step[i - 1].layer)
			continue;
		StepRange *cut = &c->cut[i];
		cut->here = true;
		cut->buffer = NEW(a, int, plan->n_buffer);
		for (int b = 0; b < plan->n_buffer; b++)
			if (live[b]) {
				const PlanBuffer *buf = &plan->buffer[b];
				cut->buffer[cut->n++] = b;
				cut->width += buf->extent.mul;
				cut->here &= buf->dtype == DT_F32 && buf->extent.sym == SYM_n_tok &&
				             buf->extent.div == 1;
			}
		if (cut->here && cut->width > c->stride)
			c->stride = cut->width;
	}
	for (int i = 0, segment = 0; i < ph->n_step; i++) {
		segment += c->cut[i].here;
		for (int k = 0; k < c->n; k++)
			if (c->in[k].step == &ph->step[i])
				c->in[k].segment = segment;
	}
}

int
calibration_segment(const Calibration *c, int i)
{
	return c->in[i].segment;
}

bool
calibration_whole(const Calibration *c)
{
	for (int i = 0; i < c->n; i++)
		if (!c->in[i].squared)
			return false;
	return true;
}

Calibration *
calibration_new(const Plan *plan, Arena *a)
{
	Calibration *c = NEW(a, Calibration, 1);
	const PlanPhase *ph = &plan->phase[1];
	/* index of the input that a buffer holds, counted from 1; 0: overwritten since */
	int *fresh = NEW(a, int, plan->n_buffer + 1);

	c->plan = plan;
	c->seen = NEW(a, WindowState, plan->n_buffer + 1);
	for (int i = 0; i < ph->n_step; i++) {
		const PlanStep *s = &ph->step[i];
		int x, w[2], n = matrices(s, &x, w);
		if (n && s->arg[x].kind == REF_BUFFER) {
			const bool mixture =
			    /* an MoE layer gets an input of its own, even if other steps read the
			     * same value */
			    s->op == OP_moe_ffn;
			int b = s->arg[x].index, at = mixture ? 0 : fresh[b];
			if (!at) {
				c->in =
				    arena_grow(a, c->in, &c->cap, (size_t)c->n + 1, sizeof *c->in);
				int64_t cols = plan->buffer[b].extent.mul;
				c->in[c->n++] =
				    (StageCapture){ .in = { .layer = s->layer,
					                    .cols = cols,
					                    .squares = NEW(a, double, cols),
					                    .share = NEW(a, double, cols) },
					            .step = s,
					            .buffer = b,
					            .chosen = -1 };
				at = c->n;
				if (!mixture)
					fresh[b] = at;
			}
			if (mixture)
				moe_layer_of(&c->in[at - 1], s, a);
			for (int k = 0; k < n; k++)
				name_add(a, &c->in[at - 1].in, &plan->tensor[s->arg[w[k]].index]);
		}
		for (int k = 0; k < s->n_make; k++)
			if (s->make[k].arg >= 0 && s->arg[s->make[k].arg].kind == REF_BUFFER)
				fresh[s->arg[s->make[k].arg].index] = 0;
	}
	find_cuts(c, a);
	return c;
}

int
calibration_n(const Calibration *c)
{
	return c->n;
}

CalibrationInput *
calibration_at(Calibration *c, int i)
{
	return &c->in[i].in;
}

CalibrationInput *
calibration_find(Calibration *c, const char *tensor)
{
	for (int i = 0; i < c->n; i++)
		for (int k = 0; k < c->in[i].in.n_name; k++)
			if (strcmp(c->in[i].in.name[k], tensor) == 0)
				return &c->in[i].in;
	return NULL;
}

/* Reserves space for the rows of a forward pass in the kept input of an MoE layer */
static bool
rows_room(StageCapture *in)
{
	CalibrationInput *i = &in->in;
	const int64_t need = i->seen + in->rows, room = in->room * 2 > need ? in->room * 2 : need;

	if (need <= in->room)
		return true;
	float *row = realloc(i->row, (size_t)(room * i->cols) * sizeof *row);
	if (row)
		i->row = row;
	int32_t *chosen = realloc(i->chosen, (size_t)(room * i->top_k) * sizeof *chosen);
	if (chosen)
		i->chosen = chosen;
	if (!row || !chosen)
		return false;
	in->room = room;
	return true;
}

/* Called after each step; stores the step's input, which is still intact: a buffer is not
 * overwritten while a step reads it. */
static bool
probe(void *user, const PlanStep *step, const char *value, Dtype dtype, void *data, int64_t rows,
      int64_t width)
{
	Calibration *c = user;
	int x, w[2];

	(void)width, (void)dtype;
	if (matrices(step, &x, w) && step->arg[x].kind == REF_BUFFER)
		for (int i = 0; i < c->n; i++) {
			StageCapture *in = &c->in[i];
			const WindowState *seen = &c->seen[in->buffer];
			if (in->step != step || !seen->data || (in->squared && !in->in.hessian))
				continue;
			int64_t need = seen->rows * in->in.cols;
			if (need > in->cap) {
				free(in->x);
				in->x = malloc((size_t)need * sizeof *in->x);
				in->cap = in->x ? need : 0;
			}
			if (!in->x) {
				c->failed = true;
				return false;
			}
			memcpy(in->x, seen->data, (size_t)need * sizeof *in->x);
			in->rows = seen->rows;
			const WindowState *id = in->chosen >= 0 ? &c->seen[in->chosen] : NULL;
			if (id && id->rows != in->rows)
				in->rows = 0;
			if (id && in->rows) {
				const size_t bytes =
				    (size_t)(in->rows * in->in.top_k) * sizeof *in->ids;
				free(in->ids);
				if (!(in->ids = malloc(bytes))) {
					c->failed = true;
					return false;
				}
				memcpy(in->ids, id->data, bytes);
			}
		}
	for (int k = 0; k < step->n_make; k++)
		if (strcmp(step->make[k].value, value) == 0 && step->make[k].arg >= 0)
			c->seen[step->arg[step->make[k].arg].index] = (WindowState){ data, rows };
	return false;
}

static void
gather(void *user, int part, int n_parts)
{
	Calibration *c = user;

	for (int i = 0; i < c->n; i++) {
		StageCapture *in = &c->in[i];
		const int64_t n = in->in.cols;
		if (!in->rows)
			continue;
		for (int64_t t = 0; !in->squared && t < in->rows; t++) {
			const float *x = in->x + t * n;
			float length = 0;
			for (int64_t j = 0; j < n; j++)
				length += x[j] * x[j];
			const double by = length > 0 ? 1 / (double)length : 0;
			for (int64_t j = n * part / n_parts; j < n * (part + 1) / n_parts; j++) {
				double square = (double)x[j] * (double)x[j];
				in->in.squares[j] += square;
				in->in.share[j] += square * by;
			}
		}
		for (int64_t t = 0; in->ids && !in->squared && t < in->rows * in->in.top_k; t++) {
			const float *x = in->x + t / in->in.top_k * n;
			float *to = in->in.squares_of + in->ids[t] * n;
			for (int64_t j = n * part / n_parts; j < n * (part + 1) / n_parts; j++)
				to[j] += x[j] * x[j];
			in->in.seen_of[in->ids[t]] += part == 0;
		}
		if (in->in.h)
			gram_add(&c->gram, c->threads, part, in->x, in->rows, n, in->in.h);
	}
}

static void
scale(void *user, int part, int n_parts)
{
	Calibration *c = user;

	for (int i = 0; i < c->n; i++) {
		CalibrationInput *in = &c->in[i].in;
		for (int64_t r = part; in->h && in->seen && r < in->cols; r += n_parts)
			for (int64_t j = 0; j <= r; j++)
				in->h[r * in->cols + j] /= (float)in->seen;
	}
}

/* Copies the values that a window reads across the boundary, from the steps' buffers or back to
 * them */
static void
keep(Calibration *c, const StepRange *cut, int32_t width, float *kept, bool back)
{
	for (int k = 0; k < cut->n; k++) {
		const size_t n = (size_t)width * (size_t)c->plan->buffer[cut->buffer[k]].extent.mul;
		float *data = c->seen[cut->buffer[k]].data;
		memcpy(back ? data : kept, back ? kept : data, n * sizeof *kept);
		kept += n;
	}
}

/* Returns the end of the next run, which starts at step c->at */
static int
last_step(Calibration *c)
{
	const PlanPhase *ph = &c->plan->phase[1];
	int first = ph->n_step, last = -1;

	for (int i = 0; i < c->n; i++)
		if (c->in[i].in.hessian) {
			int step = (int)(c->in[i].step - ph->step);
			first = step < first ? step : first;
			last = step > last ? step : last;
		}
	if (first < c->at || c->at == ph->n_step)
		c->at = 0;
	if (last < 0)
		return ph->n_step;
	do
		last++;
	while (!c->cut[last].here);
	return last;
}

static llmc_status
run_window(Calibration *c, Session *s, Threads *threads, const int32_t *tok, int32_t width,
           float *kept, int to, llmc_error *err)
{
	const int32_t n_out = session_limits_of(s)->n_out;
	llmc_seq q;

	for (int i = 0; i < c->n; i++)
		c->in[i].rows = 0;
	TRY(session_seq_new(s, width, &q, err));
	if (c->at > 0)
		keep(c, &c->cut[c->at], width, kept, true);
	llmc_status status = session_forward(
	    s,
	    &(llmc_chunk){
	        .seq = q, .tok = tok, .n_tok = width, .n_out = width < n_out ? width : n_out },
	    1, NULL, err);
	session_seq_free(s, q);
	TRY(status);
	if (to < c->plan->phase[1].n_step)
		keep(c, &c->cut[to], width, kept, false);
	for (int i = 0; i < c->n; i++)
		c->failed |= c->in[i].rows && c->in[i].in.h &&
		             !gram_room(&c->gram, c->in[i].rows, c->in[i].in.cols);
	if (!c->failed)
		threads_run(threads, gather, c);
	if (c->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the inputs of %d tokens",
		                 width);
	for (int i = 0; i < c->n; i++) {
		StageCapture *in = &c->in[i];
		if (in->in.hessian && in->ids && in->rows) {
			if (!rows_room(in))
				return error_set(err, LLMC_E_MEMORY,
				                 "out of memory for the inputs of experts");
			memcpy(in->in.row + in->in.seen * in->in.cols, in->x,
			       (size_t)(in->rows * in->in.cols) * sizeof *in->x);
			memcpy(in->in.chosen + in->in.seen * in->in.top_k, in->ids,
			       (size_t)(in->rows * in->in.top_k) * sizeof *in->ids);
		}
		if (!in->squared || in->in.hessian)
			in->in.seen += in->rows;
	}
	return LLMC_OK;
}

llmc_status
calibration_run(Calibration *c, Session *s, Threads *threads, const int32_t *tok, int32_t n,
                int32_t width, bool (*progress)(void *user, int32_t done, int32_t of), void *user,
                llmc_error *err)
{
	const int to = last_step(c), n_step = c->plan->phase[1].n_step;
	const PlanStep *first = &c->plan->phase[1].step[c->at];
	const int64_t stride = c->stride * width;
	llmc_status status = LLMC_OK;

	for (int i = 0; i < c->n; i++) {
		StageCapture *in = &c->in[i];
		if (in->in.hessian && !in->in.experts && !in->in.h &&
		    !(in->in.h = calloc((size_t)in->in.cols * (size_t)in->in.cols, sizeof(float))))
			return error_set(err, LLMC_E_MEMORY, "out of memory for the Hessian of %s",
			                 in->in.name[0]);
		if (in->in.hessian && in->squared)
			in->in.seen = 0;
	}
	if (c->at == 0)
		memset(c->seen, 0, (size_t)c->plan->n_buffer * sizeof *c->seen);
	if (to < n_step && !c->kept &&
	    !(c->kept = malloc((size_t)(stride * n) * sizeof *c->kept + 1)))
		return error_set(err, LLMC_E_MEMORY,
		                 "out of memory for the values between layers (%lld bytes)",
		                 (long long)(stride * n * 4));
	c->threads = threads;
	gram_open(&c->gram, threads);
	session_set_probe(s, probe, c);
	session_set_step_range(s, c->at, to);
	for (int32_t w = 0; w < n && status == LLMC_OK; w++) {
		status = run_window(c, s, threads, tok + (int64_t)w * width, width,
		                    c->kept ? c->kept + w * stride : NULL, to, err);
		if (status == LLMC_OK && progress && !progress(user, w + 1, n))
			status = error_set(err, LLMC_E_CANCELLED, "stopped while calibrating");
	}
	if (status == LLMC_OK) {
		threads_run(threads, scale, c);
		for (int i = 0; i < c->n; i++) {
			CalibrationInput *in = &c->in[i].in;
			for (int64_t j = 0; !c->in[i].squared && in->seen && j < in->cols; j++)
				in->share[j] /= (double)in->seen;
			c->in[i].squared |=
			    c->in[i].step >= first && c->in[i].step < first + (to - c->at);
		}
	}
	c->at = status == LLMC_OK ? to : 0;
	if (c->at == n_step || c->at == 0) {
		free(c->kept);
		c->kept = NULL;
	}
	session_set_probe(s, NULL, NULL);
	session_set_step_range(s, 0, 0);
	gram_release(&c->gram);
	for (int i = 0; i < c->n; i++) {
		free(c->in[i].x);
		free(c->in[i].ids);
		c->in[i].x = NULL;
		c->in[i].ids = NULL;
		c->in[i].cap = 0;
	}
	return status;
}

void
calibration_drop(Calibration *c)
{
	for (int i = 0; i < c->n; i++) {
		free(c->in[i].in.h);
		free(c->in[i].in.row);
		free(c->in[i].in.chosen);
		c->in[i].in.h = c->in[i].in.row = NULL;
		c->in[i].in.chosen = NULL;
		c->in[i].room = 0;
		c->in[i].in.hessian = false;
	}
}

void
calibration_release(Calibration *c)
{
	calibration_drop(c);
	free(c->kept);
	c->kept = NULL;
	c->at = 0;
}

/* Computes the importance per expert from its own rows; an expert without rows gets that of all
 * rows */
static void
experts_imatrix(const CalibrationInput *in, const float *mean, Arena *a, Imatrix *out)
{
	const int n = in->n_experts;
	float *own = NEW(a, float, n * in->cols);

	for (int e = 0; e < n; e++)
		for (int64_t j = 0; j < in->cols; j++)
			own[e * in->cols + j] = in->seen_of[e] ? in->squares_of[e * in->cols + j] /
			                                             (float)in->seen_of[e]
			                                       : mean[j];
	/* gate and up: one tensor for all experts, or alternating tensors per expert */
	for (int k = 0; k < in->n_name; k++) {
		const bool each = in->n_name > 2;
		imatrix_add(out, a,
		            &(ImatrixEntry){ in->name[k], in->cols, each ? 1 : n,
		                             own + (each ? k % n * in->cols : 0),
		                             (double)in->seen });
	}
}

void
calibration_imatrix(const Calibration *c, Arena *a, Imatrix *out)
{
	for (int i = 0; i < c->n; i++) {
		const CalibrationInput *in = &c->in[i].in;
		float *mean = NEW(a, float, in->cols);
		if (!in->seen)
			continue;
		for (int64_t j = 0; j < in->cols; j++)
			mean[j] = (float)(in->squares[j] / (double)in->seen);
		if (in->experts) {
			experts_imatrix(in, mean, a, out);
			continue;
		}
		for (int k = 0; k < in->n_name; k++)
			imatrix_add(
			    out, a,
			    &(ImatrixEntry){ in->name[k], in->cols, 1, mean, (double)in->seen });
	}
}
