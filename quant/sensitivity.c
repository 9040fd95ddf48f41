#include "quant/sensitivity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Relative energy of the noise: about that of 4-bit rounding, small enough for the divergence to
 * grow in proportion */
static const double NOISE = .004;

typedef struct ProbeState {
	const float *data;
	int64_t rows;
} ProbeState;

typedef struct SensitivityWork {
	const Plan *plan;
	ProbeState *seen;     /* [n_buffer] last write of each buffer by a step */
	const PlanStep *step; /* step whose output gets noise; NULL: none */
	/* mean energy of a matmul's output for inputs of length 1; 0: noise relative to the value
	 * itself */
	double energy;
	int x; /* argument index of its input */
	int64_t cols;
	uint64_t state;
} SensitivityWork;

/* Sum of four uniform numbers: nearly normal, variance 1 */
static float
normal(uint64_t *state)
{
	float sum = 0;

	for (int i = 0; i < 4; i++) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		sum += (float)(*state >> 40) / 16777216.0f - .5f;
	}
	return sum * 1.7320508f;
}

static double
squares(const float *x, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return sum;
}

static bool
probe(void *user, const PlanStep *step, const char *value, Dtype dtype, void *data, int64_t rows,
      int64_t width)
{
	SensitivityWork *w = user;
	float *y = data;
	bool made = false;

	if (dtype != DT_F32)
		return false;
	if (step == w->step && step->n_make && strcmp(step->make[0].value, value) == 0) {
		const ProbeState *in = w->energy > 0 ? &w->seen[step->arg[w->x].index] : NULL;
		for (int64_t t = 0; t < rows; t++) {
			double var = in && in->data && in->rows == rows
			                 ? w->energy * squares(in->data + t * w->cols, w->cols)
			                 : squares(y + t * width, width) / (double)width;
			float size = (float)sqrt(NOISE * var);
			for (int64_t i = 0; i < width; i++)
				y[t * width + i] += size * normal(&w->state);
		}
		made = true;
	}
	for (int k = 0; k < step->n_make; k++)
		if (strcmp(step->make[k].value, value) == 0 && step->make[k].arg >= 0)
			w->seen[step->arg[step->make[k].arg].index] = (ProbeState){ data, rows };
	return made;
}

static llmc_status
run(Session *s, const int32_t *tok, int32_t n_tok, int32_t n_out, float *logits, llmc_error *err)
{
	llmc_seq q;

	TRY(session_seq_new(s, n_tok, &q, err));
	llmc_status status = session_forward(
	    s, &(llmc_chunk){ .seq = q, .tok = tok, .n_tok = n_tok, .n_out = n_out }, 1, logits,
	    err);
	session_seq_free(s, q);
	return status;
}

static double
log_sum(const float *x, int64_t n)
{
	float top = x[0];
	double sum = 0;

	for (int64_t i = 1; i < n; i++)
		top = fmaxf(top, x[i]);
	for (int64_t i = 0; i < n; i++)
		sum += (double)expf(x[i] - top);
	return (double)top + log(sum);
}

/* Mean over rows of KL(softmax(a) || softmax(b)) */
static double
divergence(const float *a, const float *b, int64_t rows, int64_t n)
{
	double sum = 0;

	for (int64_t t = 0; t < rows; t++, a += n, b += n) {
		double la = log_sum(a, n), lb = log_sum(b, n), kl = 0;
		for (int64_t i = 0; i < n; i++)
			kl += (double)expf((float)((double)a[i] - la)) *
			      ((double)a[i] - la - (double)b[i] + lb);
		sum += kl > 0 ? kl : 0;
	}
	return sum / (double)rows;
}

/* Finds the requested matrices of tensor w of the plan; returns their number */
static int
add_to(Sensitivity *m, int n, const Plan *plan, const PlanRef *w, double kl, double *energy)
{
	const PlanTensor *t = w->kind == REF_TENSOR ? &plan->tensor[w->index] : NULL;
	int found = 0;

	for (int k = 0; t && k < t->n_src; k++)
		for (int i = 0; i < n; i++)
			if (strcmp(m[i].name, t->src[k].name) == 0) {
				found++;
				*energy += m[i].energy / t->n_src;
				m[i].cost += kl / NOISE;
			}
	return found;
}

llmc_status
sensitivity_measure(Sensitivity *m, int n, const Plan *plan, Session *s, const int32_t *tok,
                    int32_t n_tok, bool (*progress)(void *user, int32_t done, int32_t of),
                    void *user, llmc_error *err)
{
	const PlanPhase *ph = &plan->phase[1];
	const int32_t n_out =
	    session_limits_of(s)->n_out < n_tok ? session_limits_of(s)->n_out : n_tok;
	const size_t n_logits = (size_t)n_out * (size_t)plan->vocab;
	SensitivityWork w = { .plan = plan,
		              .seen = calloc((size_t)plan->n_buffer + 1, sizeof *w.seen) };
	float *base = malloc(2 * n_logits * sizeof *base), *other = base ? base + n_logits : NULL;
	llmc_status status = LLMC_OK;

	if (!w.seen || !base) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory for logits");
		goto fail;
	}
	for (int i = 0; i < n; i++)
		m[i].cost = 0;
	session_set_probe(s, probe, &w);
	TRY_GOTO(run(s, tok, n_tok, n_out, base, err));
	for (int i = 0; i < ph->n_step; i++) {
		const PlanStep *st = &ph->step[i];
		int at[3], n_at = 0, wanted = 0;
		double energy = 0;
		w.x = -1;
		switch (st->op) {
		case OP_matmul:
			at[n_at++] = ARG(matmul, w), w.x = ARG(matmul, x);
			break;
		case OP_embed:
			at[n_at++] = ARG(embed, w);
			break;
		case OP_moe_ffn:
			at[n_at++] = ARG(moe_ffn, gate), at[n_at++] = ARG(moe_ffn, up),
			at[n_at++] = ARG(moe_ffn, down);
			break;
		default:
			continue;
		}
		for (int k = 0; k < n_at; k++)
			wanted += add_to(m, n, plan, &st->arg[at[k]], 0, &energy);
		if (!wanted)
			continue;
		w.step = st;
		w.energy = w.x >= 0 && st->arg[w.x].kind == REF_BUFFER ? energy : 0;
		w.cols = w.energy > 0 ? plan->buffer[st->arg[w.x].index].extent.mul : 0;
		w.state = (uint64_t)i + 1;
		TRY_GOTO(run(s, tok, n_tok, n_out, other, err));
		double kl = divergence(base, other, n_out, plan->vocab);
		for (int k = 0; k < n_at; k++)
			add_to(m, n, plan, &st->arg[at[k]], isfinite(kl) ? kl : 0, &energy);
		if (progress && !progress(user, i + 1, ph->n_step)) {
			status = error_set(err, LLMC_E_CANCELLED,
			                   "stopped while measuring sensitivities");
			break;
		}
	}
fail:
	session_set_probe(s, NULL, NULL);
	free(w.seen);
	free(base);
	return status;
}
