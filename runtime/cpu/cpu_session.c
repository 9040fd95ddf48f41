/* A session on the CPU: its memory, and running a phase. The parts of a step are dealt to the
 * threads of the session (threads_deal), so that other threads run the parts of a late one. A step
 * of the reference has one part; consecutive steps of the reference form one stage. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/number.h"
#include "ref/ref.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/expert_ahead.h"
#include "runtime/state/rope_tables.h"
#include "runtime/state/session_state.h"

/* up to this many rows one thread computes all angles, which saves a barrier */
enum { ROPE_ALONE = 8 };

/* A step with everything that is fixed for the life of the session */
typedef struct StepRun {
	const PlanStep *step;
	llmc_kernel *kernel; /* NULL: the reference */
	ref_fn *ref;
	bool comm;       /* collective between ranks, done by all threads */
	bool ends_stage; /* the last step of a stage */
	bool window;     /* its pages are window pages */
	bool segments;   /* its sequences are the windows of a tower */
	bool slots;      /* a no-op if no sequence of the step has an adapter */
	ExpertLoad load; /* experts to read ahead */
	void *a[PLAN_MAX_ARGS];
	RefArg arg[PLAN_MAX_ARGS]; /* reference only */
} StepRun;

typedef struct PhaseRun {
	int n_step;
	StepRun *step;
	/* first step of each stage: [0] over all steps, [1] without the steps that only adapters
	 * need */
	int *stage[2];
	int n_stage[2];
} PhaseRun;

typedef struct CpuSession {
	PhaseRun phase[2];
	float *scratch; /* for reference steps */
	/* step: for most steps; window: for steps on window pages; segments: for steps on windows
	 * of a tower */
	llmc_step step, window, segments;
	char *state; /* memory of all of the above, and of the angles */
	int64_t state_bytes, slots_bytes, n_walk;
	unsigned faults; /* file_faults() when the weights were last looked at */
	bool lost;       /* a file of the weights was truncated */
	ExpertAhead ahead;
} CpuSession;

/* ---- opening ---- */

static int64_t
scratch_floats(const Session *s, BumpAllocator *b)
{
	int64_t most = 1;

	for (int ph = 0; ph < 2; ph++)
		for (int i = 0; i < s->plan->phase[ph].n_step; i++) {
			const PlanStep *st = &s->plan->phase[ph].step[i];
			int64_t n = st->kernel >= 0
			                ? 0
			                : ref_scratch_floats(st, s->lim.chunk, s->lim.context);
			b->over |= n < 0;
			most = n > most ? n : most;
		}
	return most;
}

/* Bytes of the state; -1: overflow */
static int64_t
lay_out(CpuSession *c, const Session *s, char *base)
{
	const Plan *p = s->plan;
	BumpAllocator b = { .base = base, .align = 64 };

	for (int i = 0; i < p->n_rope; i++) {
		float *angles =
		    bump(&b, s->sym[SYM_n_tok], (size_t)p->rope[i].dims * sizeof *angles);
		if (base)
			s->rope[i] = angles;
	}
	BUMP(&b, c->scratch, scratch_floats(s, &b));
	for (int ph = 0; ph < 2; ph++) {
		BUMP(&b, c->phase[ph].step, p->phase[ph].n_step);
		BUMP(&b, c->phase[ph].stage[0], p->phase[ph].n_step);
		BUMP(&b, c->phase[ph].stage[1], p->phase[ph].n_step);
	}
	return b.over ? -1 : b.at;
}

int64_t
cpu_state_bytes(const Session *s, int64_t host_bytes)
{
	CpuSession c = { 0 };
	int64_t own = lay_out(&c, s, NULL);

	return own < 0 || own > INT64_MAX / 4 - host_bytes ? -1 : host_bytes + own;
}

/* Reference steps run on the first thread. */
static bool
by_all(const PlanStep *st)
{
	return st->kernel >= 0 || op_info[st->op].flags & OPF_COMM;
}

static void
bind(Session *s, CpuSession *c)
{
	const CpuModel *m = s->rt->model;
	const Plan *p = s->plan;

	for (int ph = 0; ph < 2; ph++) {
		PhaseRun *run = &c->phase[ph];
		run->n_step = p->phase[ph].n_step;
		c->ahead.last = NULL;
		for (int i = 0; i < run->n_step; i++) {
			StepRun *r = &run->step[i];
			const PlanStep *st = r->step = &p->phase[ph].step[i];
			r->comm = op_info[st->op].flags & OPF_COMM;
			r->window = session_sees_window(s, st);
			r->segments = session_sees_segments(s, st);
			if (st->kernel >= 0)
				r->kernel = kernels_find(m->kernels, st->kernel);
			else
				r->ref = ref_find(st->op);
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
			expert_ahead_bind(&c->ahead, &r->load, st, r->a, p, m->weights);
			r->slots = r->kernel && op_info[st->op].flags & OPF_LORA &&
			           (op_info[st->op].arg[0].role != ROLE_SAME ||
			            r->a[0] == r->a[op_info[st->op].n_in]);
			r->ends_stage =
			    by_all(st) || i + 1 == run->n_step || by_all(&p->phase[ph].step[i + 1]);
			if (i > 0 && !run->step[i - 1].ends_stage)
				continue;
			run->stage[0][run->n_stage[0]++] = i;
			if (!r->slots)
				run->stage[1][run->n_stage[1]++] = i;
		}
	}
}

llmc_status
cpu_session_replace(Session *s, Weights *w, llmc_error *err)
{
	CpuSession *c = s->on;

	(void)err;
	((CpuModel *)s->rt->model)->weights = w;
	for (int ph = 0; ph < 2; ph++)
		memset(c->phase[ph].n_stage, 0, sizeof c->phase[ph].n_stage);
	bind(s, c);
	c->lost = false;
	return LLMC_OK;
}

llmc_status
cpu_session_open(Session *s, const llmc_memory *need, llmc_error *err)
{
	CpuSession *c = s->on = calloc(1, sizeof *c);

	if (!c)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	TRY(kv_open_on(&s->kv, NULL, s->plan, (int32_t)session_pages(&s->lim),
	               (int32_t)session_window_pages(s->plan, &s->lim), session_snapshots(&s->lim),
	               s->lim.context, s->lim.seqs, err));
	TRY(kv_marks_open(&s->kv, s->lim.marks, err));
	c->slots_bytes = need->scratch;
	c->state_bytes = lay_out(c, s, NULL);
	s->slots = session_map(c->slots_bytes);
	c->state = session_map(c->state_bytes);
	if (!s->slots || !c->state)
		return error_set(
		    err, LLMC_E_MEMORY,
		    "out of memory: these limits need %lld MB in addition to the KV cache",
		    (long long)((need->scratch + need->state) >> 20));
	lay_out(c, s, c->state);
	session_lay_out_slots(s);
	bind(s, c);
	return threads_open(s->lim.n_threads, &s->threads, err);
}

void
cpu_session_close(Session *s)
{
	CpuSession *c = s->on;

	if (!c)
		return;
	threads_close(s->threads);
	kv_release(&s->kv);
	session_unmap(s->slots, c->slots_bytes);
	session_unmap(c->state, c->state_bytes);
	free(c);
}

/* ---- a step ---- */

typedef struct PhaseArgs {
	Session *s;
	CpuSession *c;
	const PhaseRun *phase;
	bool plain;       /* no sequence of the step has an adapter */
	bool rope;        /* the first stage computes the angles */
	const int *stage; /* first step of each other stage */
	int end;          /* end of the steps */
} PhaseArgs;

static void
fill_rope(Session *s, int64_t first, int64_t end)
{
	for (int64_t t = first; t < end; t++) {
		const SeqState *st = &s->seq[s->step_seq[s->seq_of[t]]];
		const double *freq = st->freq;
		for (int i = 0; i < s->plan->n_rope; i++) {
			const PlanRope *r = &s->plan->rope[i];
			const int32_t pos[3] = { r->axis ? s->pos2[t] : s->rope_pos[t],
				                 s->rope_y[t], s->rope_x[t] };
			rope_row(r, freq, st->factor[i], pos, s->rope[i] + t * r->dims);
			freq += r->dims / 2;
		}
	}
}

static void
probe(Session *s, const StepRun *r)
{
	for (int i = 0; i < r->step->n_make; i++) {
		const PlanMake *m = &r->step->make[i];
		int64_t rows = session_probe_rows(s, r->step, m);
		const PlanBuffer *b =
		    rows >= 0 ? &s->plan->buffer[r->step->arg[m->arg].index] : NULL;
		if (b)
			s->probe(s->probe_user, r->step, m->value, b->dtype, r->a[m->arg], rows,
			         b->extent.mul);
	}
}

/* Run a collective. Rows with logits go to the first rank, which distributes them. */
static void
run_comm(const PhaseArgs *w, const StepRun *r, int part)
{
	const PlanStep *st = r->step;
	Session *s = w->s;
	int64_t width = step_int(st, "width");

	if (st->op == OP_stage_in) {
		if (part == 0 && plan_takes_rows(s->plan))
			session_given(s, r->a[ARG(stage_in, y)]);
		else if (part == 0)
			comm_pipe_receive(s->comm, r->a[ARG(stage_in, y)],
			                  (size_t)(s->size->n_tok * step_int(st, "hidden")) *
			                      sizeof(float));
		return;
	}
	if (st->op == OP_send || st->op == OP_recv) {
		const size_t bytes = (size_t)(s->size->n_tok * width) * sizeof(float);
		if (part == 0 && st->op == OP_send)
			comm_pipe_send(s->comm, r->a[ARG(send, x)], bytes);
		else if (part == 0)
			comm_pipe_receive(s->comm, r->a[ARG(recv, y)], bytes);
		return;
	}
	bool out =
	    s->plan->buffer[st->arg[op_info[st->op].n_arg - 1].index].extent.sym == SYM_n_out;
	int64_t rows = out ? s->size->n_out : s->size->n_tok;

	if (st->op == OP_all_reduce)
		comm_all_reduce(s->comm, part,
		                &(CommReduce){ .x = r->a[ARG(all_reduce, x)],
		                               .b = r->a[ARG(all_reduce, b)],
		                               .b2 = r->a[ARG(all_reduce, b2)],
		                               .r = r->a[ARG(all_reduce, r)],
		                               .y = r->a[ARG(all_reduce, y)],
		                               .scale = (float)step_num(st, "scale"),
		                               .rows = rows,
		                               .width = width });
	else
		comm_all_gather(s->comm, part,
		                &(CommGather){ .x = r->a[ARG(all_gather, x)],
		                               .y = !out || s->plan->rank == 0
		                                        ? r->a[ARG(all_gather, y)]
		                                        : NULL,
		                               .rows = rows,
		                               .width = width,
		                               .unit = step_int(st, "unit") });
}

static void
run_step(const PhaseArgs *w, const StepRun *r, int part, int n_parts)
{
	const llmc_step *s = r->window     ? &w->c->window
	                     : r->segments ? &w->c->segments
	                                   : &w->c->step;

	if (r->load.n_matrix)
		expert_ahead_load(&w->c->ahead, &r->load, w->s->size->n_tok, part, n_parts);
	if (r->comm)
		run_comm(w, r, part);
	else if (r->kernel)
		r->kernel(s, r->a, part, n_parts);
	else if (part == 0)
		r->ref(
		    &(RefCall){ .step = r->step, .s = s, .arg = r->arg, .scratch = w->c->scratch });
}

/* Run one stage of threads_deal. */
static void
run_phase(void *user, int stage, int part, int n_parts)
{
	const PhaseArgs *w = user;
	Session *s = w->s;
	int64_t n_tok = s->size->n_tok;

	if (w->rope && stage == 0) {
		fill_rope(s, n_tok * part / n_parts, n_tok * (part + 1) / n_parts);
		return;
	}
	for (int i = w->stage[stage - w->rope]; i < w->end; i++) {
		const StepRun *r = &w->phase->step[i];
		if (part == 0 && s->comm)
			comm_set_position(s->comm, w->c->n_walk, r->step->layer, (int)r->step->op);
		run_step(w, r, part, n_parts);
		if (r->ends_stage)
			break;
	}
}

/* Job kind for threads_deal: the phase and the order of magnitude of the rows. With collectives
 * every job is split over all threads, because all ranks must have equal parts. */
static int
kind_of(const PhaseArgs *w)
{
	int kind = w->phase == &w->c->phase[1] ? DEAL_KINDS / 2 : 0;

	for (int64_t n = w->s->size->n_tok; n > 1 && kind % (DEAL_KINDS / 2) < DEAL_KINDS / 2 - 1;
	     n /= 2)
		kind++;
	return w->s->comm ? DEAL_ALL : kind;
}

/* Run the steps of the phase that the session selects, and return the number of stages. With a
 * probe, each step is a job of one stage. */
static int
walk_all(PhaseArgs *w)
{
	Session *s = w->s;
	const PhaseRun *ph = w->phase;
	const int from = s->span_to > 0 ? s->span_from : 0,
	          end = s->span_to > 0 ? s->span_to : ph->n_step;
	int first = 0, n = 0;

	w->rope = s->size->n_tok > ROPE_ALONE && s->plan->n_rope;
	for (int i = from; s->probe && i < end; i++, w->rope = false) {
		w->stage = &i;
		w->end = i + 1;
		threads_deal(s->threads, DEAL_ALL, 1 + w->rope, run_phase, w);
		probe(s, &ph->step[i]);
		n += 1 + w->rope;
	}
	if (s->probe)
		return n;
	w->stage = ph->stage[w->plain];
	w->end = end;
	while (first < ph->n_stage[w->plain] && w->stage[first] < from)
		first++;
	while (first + n < ph->n_stage[w->plain] && w->stage[first + n] < end)
		n++;
	w->stage += first;
	threads_deal(s->threads, kind_of(w), n + w->rope, run_phase, w);
	return n + w->rope;
}

/* Does no sequence of the step have an adapter? */
static bool
is_plain(const Session *s)
{
	bool plain = true;

	for (int32_t i = 0; i < s->size->n_seq; i++)
		plain &= s->adapter[s->step_seq[i]] < 0;
	return plain;
}

/* Fail if a file that the weights are mapped from was truncated: the step has read zeros. */
static llmc_status
check_files(const Session *s, CpuSession *c, llmc_error *err)
{
	const unsigned now = file_faults();

	if (now != c->faults && !c->lost)
		c->lost = weights_lost(((const CpuModel *)s->rt->model)->weights);
	c->faults = now;
	return c->lost ? error_set(err, LLMC_E_DEVICE,
	                           "%s: a file of its weights was truncated while it ran; open "
	                           "the model again",
	                           s->plan->name)
	               : LLMC_OK;
}

llmc_status
cpu_forward(Session *s, int phase, const float **logits, llmc_error *err)
{
	CpuSession *c = s->on;
	PhaseArgs w = {
		.s = s, .c = c, .phase = &c->phase[phase], .plain = !s->probe && is_plain(s)
	};
	const PlanBuffer *b = &s->plan->buffer[s->plan->logits];

	c->n_walk++;
	c->step = (llmc_step){
		.n_tok = s->size->n_tok,
		.n_dec = s->size->n_dec,
		.n_seq = s->size->n_seq,
		.n_out = s->size->n_out,
		.tok = s->tok,
		.pos = s->pos,
		.pos2 = s->pos2,
		.seq_of = s->seq_of,
		.q_start = s->q_start,
		.kv_len = s->kv_len,
		.prefix_len = s->prefix_len,
		.out_row = s->out_row,
		.block_table = s->block_table,
		.block_stride = s->kv.stride,
		.seq = s->step_seq,
		.adapter = s->adapter,
	};
	c->window = c->step;
	c->window.block_table += s->kv.max_page;
	if (s->segments) {
		c->segments = c->step;
		c->segments.n_seq = s->segments->n_seq;
		c->segments.pos = s->segment_pos;
		c->segments.seq_of = s->segment_of;
		c->segments.q_start = s->segment_start;
		c->segments.kv_len = s->segment_len;
		c->segments.block_table = s->segment_table;
		c->segments.block_stride = s->segment_pages;
	}
	if (s->size->n_tok <= ROPE_ALONE)
		fill_rope(s, 0, s->size->n_tok);
	s->stats.barriers += walk_all(&w);
	s->stats.expert_bytes = atomic_load(&c->ahead.bytes);
	s->stats.expert_read_bytes = atomic_load(&c->ahead.read);
	TRY(check_files(s, c, err));
	if (s->comm && comm_ended(s->comm))
		return comm_error(s->comm, err);
	/* Every rank of a stage has the result of the stage and sends it to its peer in the next
	 * one. Only one rank receives the logits. */
	if (s->plan->stages > 1 && (plan_hands_on(s->plan) || s->plan->rank == 0) &&
	    !comm_pipe_send(s->comm, s->slot[b->slot],
	                    (size_t)((plan_hands_on(s->plan) ? s->size->n_tok : s->size->n_out) *
	                             b->extent.mul) *
	                        sizeof(float)))
		return comm_error(s->comm, err);
	if (s->comm)
		comm_set_position(s->comm, c->n_walk, -1, -1);
	if (logits)
		*logits = (const float *)(const void *)s->slot[b->slot];
	return LLMC_OK;
}

/* ---- times of steps ---- */

enum { ROUNDS = 63 };
static const double LONG_ENOUGH = 0.1,
                    /* seconds of all rounds: limits for more than two rounds, and for more than
                     * one */
    VERY_LONG = 2;

typedef struct TimedPhase {
	PhaseArgs run_phase;
	double *seconds; /* [n_step, ROUNDS] */
	int round;
} TimedPhase;

/* Run the steps with a barrier after each, where the first part reads the clock. */
static void
run_phase_timed(void *user, int part, int n_parts)
{
	const TimedPhase *t = user;
	double then = 0;

	threads_barrier(t->run_phase.s->threads);
	if (part == 0)
		then = clock_now();
	for (int i = 0; i < t->run_phase.phase->n_step; i++) {
		if (t->run_phase.phase->step[i].slots && t->run_phase.plain)
			continue;
		run_step(&t->run_phase, &t->run_phase.phase->step[i], part, n_parts);
		threads_barrier(t->run_phase.s->threads);
		if (part)
			continue;
		double now = clock_now();
		t->seconds[i * ROUNDS + t->round] = now - then;
		then = now;
	}
}

/* Repeat the last step. This is harmless: a step starts from the tokens and writes the same K and V
 * to the same positions. The result per step is the median, which is less sensitive to other
 * programs than the sum. */
llmc_status
cpu_op_times(Session *s, int phase, llmc_op_time_fn fn, void *user, llmc_error *err)
{
	CpuSession *c = s->on;
	const PhaseRun *ph = &c->phase[phase];
	TimedPhase t = { .run_phase = { .s = s, .c = c, .phase = ph, .plain = is_plain(s) } };

	t.seconds = calloc((size_t)ph->n_step * ROUNDS, sizeof *t.seconds);
	if (!t.seconds)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (double start = clock_now(), took = 0;
	     t.round < ROUNDS && (took < LONG_ENOUGH || (t.round < 3 && took < VERY_LONG));
	     t.round++) {
		if (s->rerun && !s->rerun(s, phase))
			break;
		threads_run(s->threads, run_phase_timed, &t);
		took = clock_now() - start;
	}
	if (s->comm && comm_ended(s->comm)) {
		free(t.seconds);
		return comm_error(s->comm, err);
	}
	for (int i = 0; i < ph->n_step; i++)
		qsort(t.seconds + i * ROUNDS, (size_t)t.round, sizeof *t.seconds, double_order);
	for (int i = 0; i < ph->n_step; i++) {
		const PlanStep *st = ph->step[i].step;
		llmc_op_time total = { .op = op_info[st->op].name };
		bool seen = ph->step[i].slots && t.run_phase.plain; /* skipped steps take no time */
		for (int j = 0; j < ph->n_step && !seen; j++) {
			const PlanStep *other = ph->step[j].step;
			if (other->op != st->op || other->kernel != st->kernel ||
			    (ph->step[j].slots && t.run_phase.plain))
				continue;
			seen = j < i;
			total.seconds += t.seconds[j * ROUNDS + t.round / 2];
			session_op_cost(s, other, &total);
		}
		if (!seen)
			fn(user, &total);
	}
	free(t.seconds);
	return LLMC_OK;
}
