/* Runtime: plan, weights and kernels, shared by sessions. */
#include "runtime/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/sum64.h"

/* Open the weights. This comes before kernels are compiled, so that a checkpoint that does not fit
 * is reported early. */
static llmc_status
open_weights(Runtime *rt, const RuntimeOptions *o, llmc_error *err)
{
	WeightsOptions w = { .path = o->weights,
		             .random_weights = o->random_weights,
		             .other = o->other,
		             .log = o->log,
		             .log_user = o->log_user };
	Strbuf path = { 0 };

	if (!w.path && rt->plan->weights) {
		file_join(&path, o->artifact, rt->plan->weights);
		w.path = strbuf_str(&path);
	}
	llmc_status status = weights_open(rt->plan, &w, &rt->weights, err);
	strbuf_release(&path);
	return status;
}

llmc_status
rope_factors_read(const PlanRope *r, int k, const Checkpoint *c, float **out, llmc_error *err)
{
	*out = NULL;
	if (!r->factors_tensor[k])
		return LLMC_OK;
	float *f = calloc((size_t)r->dims / 2, sizeof *f);
	if (!f)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	llmc_status status = checkpoint_vector(c, r->factors_tensor[k], f, r->dims / 2, err);
	for (int i = 0; i < r->dims / 2 && status == LLMC_OK; i++)
		if (!(f[i] > 0))
			status =
			    error_set(err, LLMC_E_INPUT,
			              "tensor \"%s\": rotary factor %d is %g, it must be above 0",
			              r->factors_tensor[k], i, (double)f[i]);
	if (status == LLMC_OK)
		*out = f;
	else
		free(f);
	return status;
}

/* Read RoPE factors that a checkpoint stores as tensors. Random weights have none: 1. */
static llmc_status
load_factors(Runtime *rt, llmc_error *err)
{
	const Checkpoint *c = weights_checkpoint(rt->weights);

	rt->factors = calloc((size_t)rt->plan->n_rope + 1, sizeof *rt->factors);
	if (!rt->factors)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (int i = 0; c && i < rt->plan->n_rope; i++)
		for (int k = 0; k < 2; k++)
			TRY(rope_factors_read(&rt->plan->rope[i], k, c, &rt->factors[i][k], err));
	return LLMC_OK;
}

/* Read the token of each column of a draft checkpoint's logits. */
static llmc_status
load_draft_tokens(Runtime *rt, llmc_error *err)
{
	const PlanDraft *d = &rt->plan->draft;
	const Checkpoint *c = weights_checkpoint(rt->weights);
	const int64_t n = plan_out_width(rt->plan);
	llmc_status status = LLMC_OK;

	if (!d->tokens || !c)
		return LLMC_OK;
	int64_t *read = calloc((size_t)n, sizeof *read);
	rt->draft_token = calloc((size_t)n, sizeof *rt->draft_token);
	if (!read || !rt->draft_token) {
		free(read);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	TRY_GOTO(checkpoint_integers(c, d->tokens, read, n, err));
	for (int64_t i = 0; i < n; i++) {
		int64_t id;
		if (__builtin_add_overflow(read[i], d->offsets ? i : 0, &id) || id < 0 ||
		    id >= rt->plan->vocab) {
			status = error_set(err, LLMC_E_INPUT,
			                   "tensor \"%s\": entry %lld is %lld, which gives no "
			                   "token of the %lld of "
			                   "the model",
			                   d->tokens, (long long)i, (long long)read[i],
			                   (long long)rt->plan->vocab);
			goto fail;
		}
		rt->draft_token[i] = (int32_t)id;
	}
fail:
	free(read);
	return status;
}

llmc_status
runtime_open(const Plan *plan, const RuntimeOptions *opt, Runtime **out, llmc_error *err)
{
	RuntimeOptions o = *opt;
	const Device *device;
	llmc_status status;

	*out = NULL;
	TRY(device_find(plan->target, &device, err));
	TRY(device->check_target(plan->target, err));
	Runtime *rt = calloc(1, sizeof *rt);
	if (!rt)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	fair_lock_init(&rt->processors);
	rt->plan = plan;
	rt->device = device;
	rt->world = o.world;
	rt->all = o.all;
	rt->n_all = o.n_all;
	rt->n_threads = o.n_threads = o.n_threads > 0 ? o.n_threads : topology_threads();
	TRY_GOTO(open_weights(rt, &o, err));
	TRY_GOTO(device->model_open(plan, &o, rt->weights, &rt->model, &rt->times, err));
	TRY_GOTO(load_factors(rt, err));
	TRY_GOTO(load_draft_tokens(rt, err));
	TRY_GOTO(adapters_open(rt, err));
	*out = rt;
	return LLMC_OK;
fail:
	runtime_close(rt);
	return status;
}

/* Extend hash `sum` by everything in which the ranks of a stage must agree: all-reduces and
 * all-gathers, and the pages, whose numbers rank 0 assigns for all ranks. */
static uint64_t
join_fingerprints(const Plan *p, uint64_t sum)
{
	for (int i = 0; i < p->n_pool; i++) {
		const PlanPool *pool = &p->pool[i];
		int64_t fact[] = { pool->state, pool->n_layers, pool->keep, pool->recent,
			           pool->sinks };
		sum = sum64(fact, sizeof fact, sum);
	}
	for (int ph = 0; ph < p->n_phase; ph++)
		for (int i = 0; i < p->phase[ph].n_step; i++) {
			const PlanStep *st = &p->phase[ph].step[i];
			int64_t fact[] = { ph, st->op, step_int(st, "width"), step_int(st, "unit"),
				           (int64_t)(step_num(st, "scale") * 1e6) };
			if (op_info[st->op].flags & OPF_COMM)
				sum = sum64(fact, sizeof fact, sum);
		}
	return sum;
}

/* Find the first send or recv at step *i or later; NULL: none. */
static const PlanStep *
next_crossing(const PlanPhase *ph, int *i)
{
	while (*i < ph->n_step && ph->step[*i].op != OP_send && ph->step[*i].op != OP_recv)
		++*i;
	return *i < ph->n_step ? &ph->step[(*i)++] : NULL;
}

/* Do the receives of one device match the sends of the other, in this direction? */
static bool
sends_match_receives(const PlanPhase *from, const PlanPhase *to)
{
	const PlanStep *s, *r;
	int i = 0, k = 0;

	do {
		do
			s = next_crossing(from, &i);
		while (s && s->op != OP_send);
		do
			r = next_crossing(to, &k);
		while (r && r->op != OP_recv);
		if (!s != !r || (s && (step_int(s, "width") != step_int(r, "width") ||
		                       step_int(s, "queued") != step_int(r, "queued"))))
			return false;
	} while (s);
	return true;
}

static bool
partitions_match(const Plan *a, const Plan *b)
{
	bool same =
	    a->partitions == 2 && b->partitions == 2 && a->partition == 0 && b->partition == 1;

	for (int ph = 0; ph < 2; ph++)
		same = same && sends_match_receives(&a->phase[ph], &b->phase[ph]) &&
		       sends_match_receives(&b->phase[ph], &a->phase[ph]);
	return same;
}

llmc_status
runtime_open_ranks(const Plan *const *plan, int n, const RuntimeOptions *opt, Runtime **out,
                   llmc_error *err)
{
	RuntimeOptions o = *opt;
	llmc_status status;

	*out = NULL;
	if (n < 2)
		return runtime_open(plan[0], opt, out, err);
	const bool split = plan[0]->partitions > 1;
	if (o.n_threads <= 0 && !split)
		o.n_threads = topology_threads() / n > 0 ? topology_threads() / n : 1;
	Runtime **rank = calloc((size_t)n, sizeof *rank), *first = NULL;
	if (!rank)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	/* ranks whose plans differ would wait for each other forever */
	for (int k = 0; k < n; k++) {
		const int lead = k / plan[k]->ranks * plan[k]->ranks;
		if (join_fingerprints(plan[k], 1) != join_fingerprints(plan[lead], 1) ||
		    plan[k]->ranks != plan[0]->ranks || plan[k]->stages != plan[0]->stages ||
		    plan[k]->window != plan[0]->window) {
			status =
			    error_set(err, LLMC_E_INPUT,
			              "rank %d of %d has another plan than rank %d: "
			              "their collectives, or the positions that they keep, differ",
			              k, n, lead);
			goto fail;
		}
	}
	if (split && (n != 2 || !partitions_match(plan[0], plan[1]))) {
		status =
		    error_set(err, LLMC_E_INPUT,
		              "the plans of the two devices differ: what one sends is not what "
		              "the other receives; compile the model again");
		goto fail;
	}
	for (int k = 0; k < n; k++) {
		RankAffinity at = ranks_pin_cpus(k, split ? 1 : n);
		o.device = opt->devices ? opt->devices[k] : opt->device;
		o.other = split ? plan[1 - k] : NULL;
		status = runtime_open(plan[k], &o, &rank[k], err);
		ranks_unpin_cpus(&at);
		if (status != LLMC_OK)
			goto fail;
		if (k) {
			rank[0]->times.compile_s += rank[k]->times.compile_s;
			rank[0]->times.pack_s += rank[k]->times.pack_s;
			rank[0]->times.load_s += rank[k]->times.load_s;
		}
	}
	first = rank[0];
	first->rank = rank;
	first->n_rank = n;
	*out = first;
	return LLMC_OK;
fail:
	for (int k = 0; k < n; k++)
		runtime_close(rank[k]);
	free(rank);
	return status;
}

void
runtime_close(Runtime *rt)
{
	if (!rt)
		return;
	ranks_dismiss(rt);
	for (int k = 1; k < rt->n_rank; k++)
		runtime_close(rt->rank[k]);
	free(rt->rank);
	for (int i = 0; rt->factors && i < rt->plan->n_rope; i++) {
		free(rt->factors[i][0]);
		free(rt->factors[i][1]);
	}
	free(rt->factors);
	free(rt->draft_token);
	adapters_close(rt);
	rt->device->model_close(rt->model);
	weights_close(rt->weights);
	fair_lock_release(&rt->processors);
	free(rt);
}

void
runtime_fingerprint(const Runtime *rt, char checkpoint[17], char plan[17], char together[17])
{
	int64_t alike[] = { rt->plan->stages, rt->plan->ranks, rt->plan->hidden, rt->plan->vocab,
		            rt->plan->window };
	uint64_t sum = sum64(alike, sizeof alike, 1);

	snprintf(plan, 17, "%016llx", (unsigned long long)sum);
	snprintf(together, 17, "%016llx", (unsigned long long)join_fingerprints(rt->plan, 1));
	sum = weights_checkpoint(rt->weights) ? checkpoint_content(weights_checkpoint(rt->weights))
	                                      : 0;
	snprintf(checkpoint, 17, "%016llx", (unsigned long long)sum);
}

llmc_status
runtime_lead(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err)
{
	if (rt->device->meet)
		TRY(rt->device->meet(rt, log, log_user, err));
	rt->led = true;
	return LLMC_OK;
}

llmc_status
runtime_follow(Runtime *rt, llmc_error *err)
{
	return ranks_follow(rt, err);
}

RuntimeTimes
runtime_times(const Runtime *rt)
{
	return rt->times;
}

bool
runtime_ships(const char *artifact, const char *target, int number)
{
	const Device *device;

	return device_find(target, &device, NULL) == LLMC_OK &&
	       device->ships(artifact, target, number);
}

llmc_status
runtime_build_aot(const Plan *plan, const char *artifact, llmc_log_fn log, void *log_user,
                  llmc_error *err)
{
	const Device *device;

	TRY(device_find(plan->target, &device, err));
	return device->build_aot(plan, artifact, log, log_user, err);
}
