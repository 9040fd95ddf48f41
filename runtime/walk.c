/* Walking a phase: every thread calls each step with its part; a barrier follows each step. Steps of the reference run on
 * the first thread alone, and a run of them needs one barrier only. */
#include <string.h>

#include "runtime/rope.h"
#include "runtime/session.h"

enum { ROPE_ALONE = 8 }; /* rows whose angles are not worth a barrier */

typedef struct Walk {
	Session        *s;
	const PhaseRun *phase;
} Walk;

void *
session_argument(const Session *s, const PlanRef *r)
{
	switch (r->kind) {
	case REF_NONE:
		return NULL;
	case REF_TENSOR:
		return (void *)(s->cuda ? cuda_tensor(s->rt->cuda, r->index) /* kernels only read it */
		                        : weights_data(s->rt->weights, r->index));
	case REF_BUFFER:
		return s->slot[s->plan->buffer[r->index].slot] + s->plan->buffer[r->index].offset;
	case REF_POOL:
		return kv_layer(&s->kv, r->index, r->layer_slot);
	case REF_ROPE:
		return s->rope[r->index];
	}
	return NULL;
}

llmc_status
session_bind(Session *s, llmc_error *err)
{
	const Plan *p = s->plan;

	for (int ph = 0; ph < 2; ph++) {
		PhaseRun *run = &s->phase[ph];
		run->n_step = p->phase[ph].n_step;
		for (int i = 0; i < run->n_step; i++) {
			StepRun *r = &run->step[i];
			const PlanStep *st = r->step = &p->phase[ph].step[i];
			if (st->kernel >= 0) {
				r->kernel = kernels_find(s->rt->kernels, st->kernel);
			} else if (!(r->ref = ref_find(st->op))) {
				return error_set(err, LLMC_E_INPUT, "the plan names the op \"%s\", which this llmc does not know", st->op);
			}
			for (int k = 0; k < st->n_arg; k++) {
				const PlanRef *a = &st->arg[k];
				r->a[k] = session_argument(s, a);
				r->arg[k] = (RefArg){ .kind = a->kind, .data = r->a[k] };
				if (a->kind == REF_TENSOR)
					r->arg[k].tensor = &p->tensor[a->index];
				if (a->kind == REF_POOL)
					r->arg[k].pool = &p->pool[a->index];
				if (a->kind == REF_BUFFER)
					r->arg[k].buffer = &p->buffer[a->index];
			}
			run->weight_bytes += st->weight_bytes;
			r->meet = r->kernel || i + 1 == run->n_step || p->phase[ph].step[i + 1].kernel >= 0;
			run->n_meet += r->meet;
		}
	}
	return LLMC_OK;
}

static void
fill_rope(Session *s, int64_t first, int64_t end)
{
	for (int64_t t = first; t < end; t++) {
		const SeqState *st = &s->seq[s->step_seq[s->seq_of[t]]];
		const double *freq = st->freq;
		for (int i = 0; i < s->plan->n_rope; i++) {
			const PlanRope *r = &s->plan->rope[i];
			rope_row(r, freq, st->factor[i], r->axis ? s->pos2[t] : s->rope_pos[t], s->rope[i] + t * r->dims);
			freq += r->dims / 2;
		}
	}
}

static void
probe(Session *s, const StepRun *r)
{
	for (int i = 0; i < r->step->n_make; i++) {
		const PlanMake *m = &r->step->make[i];
		if (m->arg < 0 || r->step->arg[m->arg].kind != REF_BUFFER)
			continue;
		const PlanBuffer *b = &s->plan->buffer[r->step->arg[m->arg].index];
		if (b->dtype != DT_F32 || b->extent.div > 1)
			continue;
		int64_t rows = b->extent.sym == SYM_n_out ? s->step.n_out : b->extent.sym == SYM_n_tok ? s->step.n_tok : 1;
		s->probe(s->probe_user, r->step, m->value, r->a[m->arg], rows, b->extent.mul);
	}
}

static void
walk(void *user, int part, int n_parts)
{
	Session *s = ((Walk *)user)->s;
	const PhaseRun *ph = ((Walk *)user)->phase;
	int64_t n_tok = s->step.n_tok;

	if (n_tok > ROPE_ALONE && s->plan->n_rope) {
		fill_rope(s, n_tok * part / n_parts, n_tok * (part + 1) / n_parts);
		threads_barrier(s->threads);
	}
	for (int i = 0; i < ph->n_step; i++) {
		const StepRun *r = &ph->step[i];
		if (r->kernel)
			r->kernel(&s->step, r->a, part, n_parts);
		else if (part == 0)
			r->ref(&(RefCall){ .step = r->step, .s = &s->step, .arg = r->arg, .scratch = s->scratch });
		if (s->probe) { /* nobody may overwrite what is looked at */
			threads_barrier(s->threads);
			if (part == 0)
				probe(s, r);
		}
		/* the last barrier is the end of threads_run */
		if ((r->meet || s->probe) && i + 1 < ph->n_step)
			threads_barrier(s->threads);
	}
}

void
session_walk(Session *s, const PhaseRun *phase)
{
	Walk w = { s, phase };

	if (s->step.n_tok <= ROPE_ALONE)
		fill_rope(s, 0, s->step.n_tok);
	else
		s->stats.barriers += s->plan->n_rope > 0;
	threads_run(s->threads, walk, &w);
	s->stats.steps_run += phase->n_step;
	s->stats.barriers += phase->n_meet;
}
