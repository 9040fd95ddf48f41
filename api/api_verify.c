/* llmc_verify: runs the plan and the fp32 reference on the same tokens and compares them value by
 * value. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

typedef struct ValueCopy {
	char *name;
	float *data; /* or int32_t values of the same number */
	int64_t n;
} ValueCopy;

typedef struct Comparison {
	ValueCopy *kept;
	size_t n, cap;
	bool failed; /* out of memory */
	/* fields of the second run */
	double tolerance; /* tolerance for values computed directly from the embedding */
	llmc_verify_fn on_row;
	void *user;
	int n_row, n_bad;
	char first_bad[512];
	const PlanStep *router; /* router step that was compared last */
	bool *other; /* [n_tok] rows for which that router chose other experts than the reference */
} Comparison;

/* First run: store the values of the reference. */
static bool
keep(void *user, const PlanStep *step, const char *value, Dtype dtype, void *data, int64_t rows,
     int64_t width)
{
	Comparison *c = user;
	int64_t n = rows * width;

	(void)step, (void)dtype;
	if (c->failed)
		return false;
	if (c->n == c->cap) {
		size_t cap = c->cap ? 2 * c->cap : 64;
		ValueCopy *k = realloc(c->kept, cap * sizeof *k);
		if (!k) {
			c->failed = true;
			return false;
		}
		c->kept = k;
		c->cap = cap;
	}
	ValueCopy k = { .name = strdup(value),
		        .data = malloc((size_t)n * sizeof(float) + 1),
		        .n = n };
	if (!k.name || !k.data) {
		free(k.name);
		free(k.data);
		c->failed = true;
		return false;
	}
	memcpy(k.data, data, (size_t)n * sizeof(float));
	c->kept[c->n++] = k;
	return false;
}

static int
by_name(const void *a, const void *b)
{
	return strcmp(((const ValueCopy *)a)->name, ((const ValueCopy *)b)->name);
}

static void
report(Comparison *c, const PlanStep *step, const char *value, double worst, double range,
       double tolerance, const float *want, int64_t rows, int64_t width)
{
	llmc_verify_row row = { .layer = step->layer,
		                .value = value,
		                .op = op_info[step->op].name,
		                .max_err = worst,
		                .range = range,
		                .tolerance = tolerance,
		                .ok = worst <= tolerance * (range > 0 ? range : 1),
		                .want = want,
		                .rows = rows,
		                .width = width };

	c->n_row++;
	if (!row.ok && c->n_bad++ == 0)
		snprintf(c->first_bad, sizeof c->first_bad,
		         "%s of layer %d: %s is off by %.3g (%.2g of its range; %.2g is allowed)",
		         op_info[step->op].name, step->layer, value, worst,
		         range > 0 ? worst / range : worst, tolerance);
	if (c->on_row)
		c->on_row(c->user, &row);
}

/* True if two rows hold the same experts, in any order */
static bool
same_experts(const int32_t *a, const int32_t *b, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		bool found = false;
		for (int64_t k = 0; k < n && !found; k++)
			found = a[i] == b[k];
		if (!found)
			return false;
	}
	return true;
}

/* Compare the experts that rows chose. If the scores of two experts differ by less than the
 * rounding error, either choice is right, but all later values differ. So the choice of the
 * reference replaces the plan's, which keeps later values comparable. compare() checks by the
 * weights that the scores were close. At most one row in eight may differ. */
static bool
compare_choice(Comparison *c, const PlanStep *step, const char *value, const ValueCopy *k,
               int32_t *id, int64_t rows, int64_t width)
{
	const int32_t *want = (const int32_t *)(const void *)k->data;
	int64_t others = 0;

	c->router = step;
	for (int64_t t = 0; t < rows; t++, id += width, want += width) {
		c->other[t] = !same_experts(id, want, width);
		others += c->other[t];
		if (c->other[t])
			memcpy(id, want, (size_t)width * sizeof *id);
	}
	report(c, step, value, (double)others, (double)rows,
	       rows > 8 ? 1.0 / 8 : 1.0 / (double)rows, NULL, rows, width);
	return others > 0;
}

/* Compare the positions that an indexer chose, in the same way. At most one position in eight may
 * differ. */
static bool
compare_positions(Comparison *c, const PlanStep *step, const char *value, const ValueCopy *k,
                  int32_t *sel, int64_t rows, int64_t width)
{
	const int32_t *const all = (const int32_t *)(const void *)k->data, *want = all, *have = sel;
	int64_t others = 0, i = 0;

	for (int64_t t = 0; t < rows;
	     t++, have += width, want += width) /* both lists are ascending and padded with -1 */
		for (int64_t at = i = 0; at < width; at++) {
			while (i < width && want[i] != -1 && want[i] < have[at])
				i++;
			others +=
			    have[at] == -1 ? want[at] != -1 : i == width || want[i] != have[at];
		}
	report(c, step, value, (double)others, (double)(rows * width), 1.0 / 8, NULL, rows, width);
	if (others)
		memcpy(sel, all, (size_t)(rows * width) * sizeof *sel);
	return others > 0;
}

static bool
choice_is_biased(const PlanStep *step)
{
	int bias = step->op == OP_norm_route ? ARG(norm_route, bias) : ARG(moe_route, bias);

	return step->arg[bias].kind != REF_NONE || step_int(step, "groups") > 1;
}

/* Second run: compare the plan's value with that of the reference. */
static bool
compare(void *user, const PlanStep *step, const char *value, Dtype dtype, void *values,
        int64_t rows, int64_t width)
{
	Comparison *c = user;
	ValueCopy key = { .name = (char *)value };
	const ValueCopy *k = c->n ? bsearch(&key, c->kept, c->n, sizeof *c->kept, by_name) : NULL;
	float *data = values;
	double worst = 0, range = 0;
	bool changed = false;

	if (!k || k->n != rows * width)
		return false;
	if (dtype == DT_I32 && step->op == OP_index_select)
		return compare_positions(c, step, value, k, values, rows, width);
	if (dtype == DT_I32)
		return step->op == OP_norm_route || step->op == OP_moe_route
		           ? compare_choice(c, step, value, k, values, rows, width)
		           : false;
	for (int64_t i = 0; i < k->n; i++) {
		double d = fabs((double)data[i] - k->data[i]);
		/* If the choice differs, the weights must still be close, because the scores were,
		 * unless scores include a bias or groups. */
		if (step == c->router && c->other[i / width]) {
			data[i] = k->data[i];
			changed = true;
			d = choice_is_biased(step) ? 0 : d;
		}
		if (!(d <= worst)) /* NaN on only one side counts as an infinite error */
			worst = isnan(data[i]) && isnan(k->data[i]) ? worst
			        : isnan(d)                          ? INFINITY
			                                            : d;
		if (fabsf(k->data[i]) > range)
			range = fabsf(k->data[i]);
	}
	/* errors of earlier layers are assumed independent, so they grow with the square root of
	 * the depth */
	report(c, step, value, worst, range,
	       c->tolerance * sqrt(2.0 + (step->layer < 0 ? 0 : step->layer)), k->data, rows,
	       width);
	return changed;
}

static llmc_status
run_once(Runtime *rt, const int32_t *tok, size_t n_tok, int n_threads, session_probe_fn probe,
         Comparison *c, llmc_error *err)
{
	llmc_limits lim = LLMC_INIT(llmc_limits);
	Session *s;
	llmc_seq q;

	lim.context = lim.chunk = (int32_t)n_tok;
	lim.n_threads = n_threads;
	TRY(session_open(rt, &lim, &s, err));
	session_set_probe(s, probe, c);
	llmc_status status = session_seq_new(s, (int32_t)n_tok, &q, err);
	if (status == LLMC_OK) {
		llmc_chunk chunk = { .seq = q, .tok = tok, .n_tok = (int32_t)n_tok, .n_out = 1 };
		status = session_forward(s, &chunk, 1, NULL, err);
	}
	session_close(s);
	return status;
}

/* Return the error that the arithmetic of a plan may have against fp32, relative to a value's
 * range. */
static double
plan_tolerance(const llmc_model *m)
{
	const Target *target = target_find(m->plan->target);
	double t = 1e-4;

	for (int i = 0; i < m->plan->n_tensor; i++) {
		Dtype d = m->plan->tensor[i].dtype;
		if (dtype_info(d)->block_elems > 1 && target->kind != TARGET_REF)
			t = m->spec->activations_i8 || (m->spec->activations_f8 && target->arch)
			        ? 6e-2
			        : 5e-3;
		if (m->spec->activations_bf16 && strcmp(m->plan->target, "cpu-amx") == 0 &&
		    t < 3e-2)
			t = 3e-2;
	}
	for (int i = 0; i < m->plan->n_pool; i++) {
		const PlanPool *p = &m->plan->pool[i];
		if ((p->k != KVT_F32 || p->v != KVT_F32) && t < 5e-3)
			t = 5e-3;
		/* A value halfway between two codes may round to either, so two runs differ by one
		 * full quantisation step. */
		if ((kv_quantised(p->k) || kv_quantised(p->v)) && t < 5e-2)
			t = 5e-2;
	}
	return t;
}

llmc_status
llmc_verify(llmc_model *m, const int32_t *tok, size_t n_tok, llmc_verify_fn on_row, void *user,
            llmc_error *err)
{
	Comparison c = { .on_row = on_row, .user = user, .tolerance = plan_tolerance(m) };
	llmc_model *ref = NULL;
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_status status;

	if (!m->rt)
		return error_set(err, LLMC_E_INPUT, "the model was opened without weights");
	if (n_tok < 1)
		return error_set(err, LLMC_E_INPUT, "verify needs at least one token");
	if (!(c.other = calloc(n_tok, sizeof *c.other)))
		return error_set(err, LLMC_E_MEMORY, "out of memory for the reference's values");
	o.device = "ref";
	o.weights = m->random_weights ? NULL : m->weights;
	o.random_weights = m->random_weights;
	o.allow_unknown_keys = true; /* unknown keys were reported when m was opened */
	o.set = m->set;
	o.n_threads = m->n_threads;
	TRY_GOTO(llmc_open(m->source, &o, &ref, err));
	TRY_GOTO(run_once(ref->rt, tok, n_tok, 1, keep, &c, err));
	if (c.failed) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory for the reference's values");
		goto fail;
	}
	qsort(c.kept, c.n, sizeof *c.kept, by_name);
	TRY_GOTO(run_once(m->rt, tok, n_tok, m->n_threads, compare, &c, err));
	if (c.n_row == 0)
		status = error_set(err, LLMC_E_BUG,
		                   "the plan names no value that the reference computes");
	else if (c.n_bad)
		status = error_set(err, LLMC_E_CHECK, "%s (%d of %d values beyond their tolerance)",
		                   c.first_bad, c.n_bad, c.n_row);
fail:
	for (size_t i = 0; i < c.n; i++) {
		free(c.kept[i].name);
		free(c.kept[i].data);
	}
	free(c.kept);
	free(c.other);
	llmc_close(ref);
	return status;
}
