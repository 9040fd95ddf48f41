/* Sessions: limits and sequences. session_open allocates all memory: KV, slots, and the state of
 * session and device. */
#include "runtime/state/session_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized_struct.h"
#include "runtime/kv/kv_disk.h"
#include "runtime/ranks.h"
#include "runtime/state/rope_tables.h"

enum { MAX_CONTEXT = 1 << 28, MAX_SEQS = 1 << 16, MAX_SNAPSHOTS = 1 << 10 };

static llmc_status
limit_error(llmc_error *err, const char *what, int64_t have, int64_t max, const char *why)
{
	return error_set(err, LLMC_E_RANGE, "limit %s is %lld, possible are 1 .. %lld%s", what,
	                 (long long)have, (long long)max, why);
}

llmc_status
session_limits(const Plan *plan, const llmc_limits *lim, llmc_limits *out, llmc_error *err)
{
	llmc_limits l = { 0 };

	SIZED_TAKE(l, lim);
	int64_t max = plan->hard_limit && plan->max_positions < MAX_CONTEXT ? plan->max_positions
	                                                                    : MAX_CONTEXT;
	if (l.context == 0)
		l.context =
		    (int32_t)(plan->max_positions < LLMC_DEFAULT_CONTEXT ? plan->max_positions
		                                                         : LLMC_DEFAULT_CONTEXT);
	if (l.context < 1 || l.context > max)
		return limit_error(
		    err, "context", l.context, max,
		    plan->hard_limit ? ": as it is built the model has no positions beyond" : "");
	if (l.seqs == 0)
		l.seqs = 1;
	if (l.seqs < 1 || l.seqs > MAX_SEQS)
		return limit_error(err, "seqs", l.seqs, MAX_SEQS, "");
	if (l.chunk == 0) /* a prompt that must run in one chunk may be as long as the context */
		l.chunk = plan->prompt_whole && l.context > 512 ? l.context : 512;
	if (l.chunk < 1 || l.chunk > MAX_CONTEXT)
		return limit_error(err, "chunk", l.chunk, MAX_CONTEXT, "");
	/* an embedding model may pool all rows of a sequence; its rows are short */
	if (l.n_out == 0)
		l.n_out = plan->output == LLMC_OUTPUT_LOGITS ? l.seqs : l.chunk;
	if (l.n_out < 1)
		return limit_error(err, "n_out", l.n_out, l.chunk, "");
	if (l.n_out > l.chunk) /* a step has at most `chunk` rows */
		l.n_out = l.chunk;
	/* the pages of an encoder hold the rows of one step */
	if (plan->encoder)
		l.kv_tokens = kv_context(plan, l.chunk) + (int64_t)l.seqs * PLAN_KV_PAGE;
	bool given = l.kv_tokens != 0;
	if (!given)
		l.kv_tokens = (int64_t)l.context * l.seqs;
	if (l.kv_tokens < 1 || kv_pages(l.kv_tokens, l.context, l.seqs, given) > INT32_MAX / 2)
		return limit_error(err, "kv_tokens", l.kv_tokens,
		                   (int64_t)INT32_MAX / 2 * PLAN_KV_PAGE, "");
	if (l.n_threads == 0) {
		l.n_threads = topology_threads() / (plan->ranks * plan->stages);
		l.n_threads = l.n_threads > 0 ? l.n_threads : 1;
	}
	if (l.n_threads < 1 || l.n_threads > TOPOLOGY_MAX)
		return limit_error(err, "n_threads", l.n_threads, TOPOLOGY_MAX, "");
	if (l.snapshots < 0 || l.snapshots > MAX_SNAPSHOTS)
		return limit_error(err, "snapshots", l.snapshots, MAX_SNAPSHOTS, ", or 0: none");
	if (l.marks < 0 || l.marks > l.seqs)
		return limit_error(err, "marks", l.marks, l.seqs, ", or 0: none");
	if (!plan_has_state(plan))
		l.snapshots = l.marks = 0;
	if (l.host_tokens < 0 || l.host_tokens / PLAN_KV_PAGE > INT32_MAX / 2)
		return limit_error(err, "host_tokens", l.host_tokens,
		                   (int64_t)INT32_MAX / 2 * PLAN_KV_PAGE, ", or 0: none");
	*out = l;
	return LLMC_OK;
}

llmc_status
session_memory(const Plan *plan, const llmc_limits *lim, llmc_memory *out, llmc_error *err)
{
	const Device *device;
	llmc_limits l;
	llmc_memory m;

	TRY(session_limits(plan, lim, &l, err));
	TRY(device_find(plan->target, &device, err));
	TRY(session_need(device, plan, &l, &m, err));
	SIZED_GIVE(out, m);
	return LLMC_OK;
}

llmc_status
session_open_rank(Runtime *rt, const llmc_limits *lim, Comm *comm, Session **out, llmc_error *err)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_memory need;
	llmc_status status;

	*out = NULL;
	SIZED_TAKE(l, lim);
	if (l.n_threads == 0)
		l.n_threads = rt->n_threads;
	TRY(session_limits(rt->plan, &l, &l, err));
	TRY(session_need(rt->device, rt->plan, &l, &need, err));
	Session *s = calloc(1, sizeof *s);
	if (!s)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	session_set_limits(s, rt->device, rt->plan, &l);
	s->rt = rt;
	s->comm = comm;
	s->state_bytes = (size_t)session_lay_out(s, NULL);
	s->state = session_map((int64_t)s->state_bytes);
	if (!s->state) {
		status = error_set(err, LLMC_E_MEMORY,
		                   "out of memory: these limits need %zu MB in addition "
		                   "to the KV cache",
		                   s->state_bytes >> 20);
		goto fail;
	}
	session_lay_out(s, s->state);
	TRY_GOTO(s->device->open(s, &need, err));
	TRY_GOTO(forward_open(s, err));
	s->stats.size = sizeof s->stats;
	s->stats.kv_pages_total = s->kv.n_page;
	*out = s;
	return LLMC_OK;
fail:
	session_close(s);
	return status;
}

llmc_status
session_open(Runtime *rt, const llmc_limits *lim, Session **out, llmc_error *err)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	RankAffinity at;

	*out = NULL;
	if (rt->world) {
		SIZED_TAKE(l, lim);
		TRY(session_limits(rt->plan, &l, &l, err));
		TRY(ranks_announce(rt, &l, err));
		return ranks_rendezvous(out, rt, session_open_rank(rt, &l, NULL, out, err), err);
	}
	at = ranks_pin_cpus(0, rt->plan->partitions > 1 ? 1 : rt->n_rank);
	llmc_status status = session_open_rank(rt, lim, NULL, out, err);
	ranks_unpin_cpus(&at);
	if (status != LLMC_OK || rt->n_rank < 2)
		return status;
	status = ranks_open(*out, err);
	if (status != LLMC_OK) {
		session_close(*out);
		*out = NULL;
	}
	return status;
}

/* Release the adapter of a sequence, after stages that may still use it. */
static void
release_adapter(Session *s, llmc_seq q)
{
	if (!s->seq[q].adapter)
		return;
	ranks_exchange_sizes(s);
	runtime_adapter_unref(s->rt, s->seq[q].adapter);
	s->seq[q].adapter = 0;
}

void
session_close(Session *s)
{
	if (!s)
		return;
	for (int32_t q = 0; s->seq && q < s->lim.seqs; q++)
		release_adapter(s, q);
	kv_disk_close(s->disk);
	free(s->disk_page);
	ranks_close(s);
	forward_close(s);
	/* closed first, because one of the device's threads may still read comm */
	s->device->close(s);
	if (s->rt->world)
		comm_close(s->comm);
	session_unmap(s->state, (int64_t)s->state_bytes);
	free(s);
}

void
session_set_probe(Session *s, session_probe_fn fn, void *user)
{
	s->probe = fn;
	s->probe_user = user;
}

void
session_set_step_range(Session *s, int from, int to)
{
	s->span_from = from;
	s->span_to = to;
}

const llmc_limits *
session_limits_of(const Session *s)
{
	return &s->lim;
}

static bool
is_seq(const Session *s, llmc_seq q)
{
	return q >= 0 && q < s->lim.seqs && s->kv.seq[q].used;
}

static llmc_status
no_seq(llmc_error *err, llmc_seq q)
{
	return error_set(err, LLMC_E_RANGE, "there is no sequence %d in this session", q);
}

static llmc_status
all_taken(const Session *s, llmc_error *err)
{
	return error_set(err, LLMC_E_FULL,
	                 "all %d sequences of this session are taken; free one or open a session "
	                 "with more (seqs)",
	                 s->lim.seqs);
}

void
session_set_rope(Session *s, llmc_seq q, int32_t length_bound)
{
	SeqState *st = &s->seq[q];
	double *freq = st->freq;

	for (int i = 0; i < s->plan->n_rope; i++) {
		const float *const factors[2] = { s->rt->factors[i][0], s->rt->factors[i][1] };
		rope_frequencies(&s->plan->rope[i], length_bound, factors, freq, &st->factor[i]);
		freq += s->plan->rope[i].dims / 2;
	}
}

llmc_status
session_seq_new(Session *s, int32_t length_bound, llmc_seq *out, llmc_error *err)
{
	*out = -1;
	if (length_bound < 0 || length_bound > s->lim.context)
		return error_set(
		    err, LLMC_E_RANGE,
		    "a sequence of %d positions does not fit the context of %d (context)",
		    length_bound, s->lim.context);
	int32_t q = kv_seq_new(&s->kv);
	if (q < 0)
		return all_taken(s, err);
	SeqState *st = &s->seq[q];
	st->fresh = true;
	st->length_bound = length_bound ? length_bound : s->lim.context;
	st->prefix_len = st->mark = st->n_first = st->rope_shift = st->n_placed = 0;
	st->adapter = 0;
	st->salt = 0;
	s->adapter[q] = -1;
	session_set_rope(s, q, st->length_bound);
	ranks_sequence(s, q, st->length_bound);
	*out = q;
	return LLMC_OK;
}

llmc_status
session_seq_adapt(Session *s, llmc_seq q, int32_t adapter, llmc_error *err)
{
	if (!is_seq(s, q))
		return no_seq(err, q);
	if (s->kv.seq[q].len)
		return error_set(
		    err, LLMC_E_RANGE,
		    "sequence %d has %d positions already: an adapter is chosen before the first",
		    q, s->kv.seq[q].len);
	TRY(runtime_adapter_ref(s->rt, adapter, true, err));
	release_adapter(s, q);
	s->seq[q].adapter = adapter;
	s->seq[q].fresh = true;
	s->adapter[q] = adapter_slot(s->rt, adapter);
	ranks_sequence(s, q, s->seq[q].length_bound);
	return LLMC_OK;
}

void
session_seq_salt(Session *s, llmc_seq q, uint64_t salt)
{
	s->seq[q].salt = salt;
}

void
session_seq_pair(Session *s, llmc_seq q, int32_t n_first)
{
	s->seq[q].n_first = n_first;
}

llmc_status
session_seq_fork(Session *s, llmc_seq from, llmc_seq *out, llmc_error *err)
{
	*out = -1;
	if (!is_seq(s, from))
		return no_seq(err, from);
	int32_t q = kv_seq_fork(&s->kv, from), freqs = 0;
	if (q < 0)
		return all_taken(s, err);
	SeqState *to = &s->seq[q], *st = &s->seq[from];
	to->fresh = true;
	to->length_bound = st->length_bound;
	to->prefix_len = st->prefix_len;
	to->mark = st->mark;
	to->rope_shift = st->rope_shift;
	to->n_placed = st->n_placed;
	runtime_adapter_ref(s->rt, st->adapter, true, NULL);
	to->adapter = st->adapter;
	to->salt = st->salt;
	s->adapter[q] = s->adapter[from];
	for (int i = 0; i < s->plan->n_rope; i++)
		freqs += s->plan->rope[i].dims / 2;
	memcpy(to->freq, st->freq, (size_t)freqs * sizeof *to->freq);
	memcpy(to->factor, st->factor, (size_t)s->plan->n_rope * sizeof *to->factor);
	ranks_sequence(s, q, to->length_bound);
	*out = q;
	return LLMC_OK;
}

llmc_status
session_seq_trim(Session *s, llmc_seq q, int32_t len, llmc_error *err)
{
	if (!is_seq(s, q))
		return no_seq(err, q);
	if (len < 0 || len > s->kv.seq[q].len)
		return error_set(err, LLMC_E_RANGE,
		                 "sequence %d has %d positions, it cannot be trimmed to %d", q,
		                 s->kv.seq[q].len, len);
	if (len && len < s->seq[q].prefix_len)
		return error_set(err, LLMC_E_RANGE,
		                 "the first %d positions of sequence %d attend to each "
		                 "other: it can be trimmed to 0 or to at least %d",
		                 s->seq[q].prefix_len, q, s->seq[q].prefix_len);
	if (len && len < s->seq[q].n_placed)
		return error_set(
		    err, LLMC_E_RANGE,
		    "the first %d positions of sequence %d belong to images and to what "
		    "precedes them: it can be trimmed to 0 or to at least %d",
		    s->seq[q].n_placed, q, s->seq[q].n_placed);
	if (len && len < s->kv.seq[q].len && plan_has_state(s->plan) &&
	    !(s->kv.seq[q].mark && len == s->kv.seq[q].mark_len))
		return error_set(
		    err, LLMC_E_RANGE,
		    "this model has a recurrent state, kept for the last position only: "
		    "sequence %d can be trimmed to 0 or to its mark",
		    q);
	if (!kv_can_trim(&s->kv, q, len))
		return error_set(err, LLMC_E_RANGE,
		                 "sequence %d cannot be trimmed to %d: layers of this model see "
		                 "the last %d positions%s, and older ones are no longer kept",
		                 q, len, s->kv.keep,
		                 kv_exact_bytes(s->plan, 1) ? ", or read them in 16 bit (kv.window)"
		                                            : "");
	if (!len)
		s->seq[q].prefix_len = s->seq[q].mark = s->seq[q].rope_shift = s->seq[q].n_placed =
		    0;
	kv_seq_trim(&s->kv, q, len);
	return LLMC_OK;
}

llmc_status
session_seq_mark(Session *s, llmc_seq q, llmc_error *err)
{
	if (!is_seq(s, q))
		return no_seq(err, q);
	if (plan_has_state(s->plan) && !kv_seq_mark(&s->kv, q))
		return error_set(err, LLMC_E_FULL,
		                 "all %d marks of this session are taken (limit marks)",
		                 s->lim.marks);
	return LLMC_OK;
}

void
session_seq_unmark(Session *s, llmc_seq q)
{
	if (is_seq(s, q))
		kv_seq_unmark(&s->kv, q);
}

int32_t
session_seq_len(const Session *s, llmc_seq q)
{
	return is_seq(s, q) ? s->kv.seq[q].len : -1;
}

void
session_seq_free(Session *s, llmc_seq q)
{
	if (!is_seq(s, q))
		return;
	release_adapter(s, q);
	kv_seq_free(&s->kv, q);
}

void
session_stats(const Session *s, llmc_stats *out)
{
	llmc_stats st = s->stats;

	st.kv_pages_used = s->kv.n_page - s->kv.n_free;
	SIZED_GIVE(out, st);
}

void
pool_vector(const double *sum, int64_t width, int32_t n, bool normalize, float *out)
{
	double scale = 1.0 / n, square = 0;

	for (int64_t k = 0; normalize && k < width; k++)
		square += sum[k] * sum[k];
	if (square > 0)
		scale = 1 / sqrt(square);
	for (int64_t k = 0; k < width; k++)
		out[k] = (float)(sum[k] * scale);
}
