/* Steps that sample on the device. A note from the host lists the sequences of a step; the host
 * reads the tokens one step later. A decode step costs the host one graph launch and one event. */
#include <string.h>

#include "runtime/cuda/cuda_session.h"
#include "runtime/sample/sampler.h"

/* Is the option at this offset of llmc_params a field of llmc_slot? */
static bool
in_slot(size_t offset)
{
#define OFFSET(type, name) offsetof(llmc_params, name),
	static const size_t slot[] = { LLMC_SLOT_OPTIONS(OFFSET) };

	for (size_t i = 0; i < sizeof slot / sizeof *slot; i++)
		if (slot[i] == offset)
			return true;
	return false;
}

static bool
can_sample(const Session *s, const llmc_params *p)
{
	size_t n_option;
	const llmc_option *option = llmc_sampling_options(&n_option);

	(void)s;
	for (const llmc_option *o = option; o < option + n_option; o++)
		if (!in_slot(o->offset) && sampler_option_acts(o, p))
			return false;
	return !p->n_logit_bias && !p->n_bad_words &&
	       !(sampler_has_penalties(p) && p->repeat_last_n) && !sampler_has_order(p);
}

static void
count_tokens(int32_t *count, int64_t vocab, const int32_t *tok, size_t n, bool output)
{
	for (size_t i = 0; i < n; i++)
		if (tok[i] >= 0 && tok[i] < vocab) {
			if (!output)
				count[tok[i]] |= LLMC_SEEN;
			else if ((count[tok[i]] & LLMC_COUNT) < LLMC_COUNT)
				count[tok[i]]++;
		}
}

static llmc_status
set_slot(CudaSession *c, llmc_seq q, const llmc_slot *slot, const int32_t *prompt, size_t n_prompt,
         const int32_t *output, size_t n_output, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	int64_t vocab = c->s->plan->vocab;

	CUDA_TRY(
	    d,
	    d->api.copy_up((CUdeviceptr)(uintptr_t)(c->st.slot + q), slot, sizeof *slot, c->stream),
	    "copying sampling parameters to the GPU");
	if (!slot->penalties)
		return LLMC_OK;
	memset(c->counts, 0, (size_t)vocab * sizeof *c->counts);
	count_tokens(c->counts, vocab, prompt, n_prompt, false);
	count_tokens(c->counts, vocab, output, n_output, true);
	CUDA_TRY(d,
	         d->api.copy_up((CUdeviceptr)(uintptr_t)(c->st.counts + q * vocab), c->counts,
	                        (size_t)vocab * sizeof *c->counts, c->stream),
	         "copying sampling parameters to the GPU");
	return LLMC_OK;
}

static llmc_status
set_params(Session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt, size_t n_prompt,
           const int32_t *output, size_t n_output, llmc_error *err)
{
#define COPIED(type, name) .name = p->name,
	llmc_slot slot = { LLMC_SLOT_OPTIONS(COPIED).penalties = sampler_has_penalties(p),
		           .seed = p->seed, .n_sampled = n_output };

	if (slot.repetition_penalty == 0)
		slot.repetition_penalty = 1;
	if (n_output)
		slot.last = output[n_output - 1];
	return set_slot(s->on, q, &slot, prompt, n_prompt, output, n_output, err);
}

/* ---- notes ---- */

/* Do both block tables of a sequence, the device's and the host's, have the same page and the same
 * window page? */
static bool
same_page(const Kv *kv, const int32_t *have, const int32_t *page, int32_t i)
{
	return have[i] == page[i] &&
	       (!kv->window || have[kv->max_page + i] == page[kv->max_page + i]);
}

static llmc_status
copy_table(CudaSession *c, int32_t q, int32_t from, int32_t n, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;

	CUDA_TRY(
	    d,
	    d->api.copy_up(
	        (CUdeviceptr)(uintptr_t)(c->st.tables + (int64_t)q * c->st.block_stride + from),
	        c->s->kv.seq[q].page + from, (size_t)n * sizeof(int32_t), c->stream),
	    "copying a block table to the GPU");
	return LLMC_OK;
}

/* Update the device's block table of a sequence. A single new page is passed in the note; several
 * are copied. first: index of the first entry that changed */
static llmc_status
update_table(CudaSession *c, int32_t q, llmc_note_row *w, int32_t *first, llmc_error *err)
{
	const Kv *kv = &c->s->kv;
	const KvSeq *s = &kv->seq[q];
	int32_t *have = c->table + (size_t)q * (size_t)kv->stride, window = kv->max_page;
	int32_t n = s->n_page, from = 0, end = n;

	w->page_at = -1;
	while (from < n && same_page(kv, have, s->page, from))
		from++;
	*first = from;
	if (from == n)
		return LLMC_OK;
	while (same_page(kv, have, s->page, end - 1))
		end--;
	if (end - from == 1) {
		w->page_at = from;
		w->page = s->page[from];
		w->window = kv->window ? s->page[window + from] : 0;
	} else {
		TRY(copy_table(c, q, from, end - from, err));
		if (kv->window)
			TRY(copy_table(c, q, window + from, end - from, err));
	}
	memcpy(have + from, s->page + from, (size_t)(end - from) * sizeof *have);
	if (kv->window)
		memcpy(have + window + from, s->page + window + from,
		       (size_t)(end - from) * sizeof *have);
	return LLMC_OK;
}

static llmc_status
write_note(CudaSession *c, llmc_error *err)
{
	const Session *s = c->s;
	int32_t n = s->size->n_seq;
	llmc_note_row *row = cuda_note(c);

	cuda_note_rows(c, n, s->size->n_out);
	for (int32_t i = 0, out = 0; i < n; i++) {
		int32_t q = s->step_seq[i], first;
		llmc_note_row *w = &row[i];
		*w = (llmc_note_row){ .n = n,
			              .n_out = s->size->n_out,
			              .slot = q,
			              .tok = s->tok[i] < 0 ? -1 : s->tok[i],
			              .pos = s->pos[i],
			              .rope_pos = s->rope_pos[i],
			              .rope_y = s->rope_y[i],
			              .rope_x = s->rope_x[i],
			              .pos2 = s->pos2[i],
			              .prefix_len = s->prefix_len[i],
			              .out_at = -1 };
		if (out < s->size->n_out && s->out_row[out] == i)
			w->out_at = out++;
		TRY(update_table(c, q, w, &first, err));
		if (c->row_seq[i] == q && c->row_pages[i] < first)
			first = c->row_pages[i];
		w->table_from = c->row_seq[i] == q ? first : 0;
		c->row_seq[i] = q;
		c->row_pages[i] = s->kv.seq[q].n_page;
		/* another row of the step's table may hold outdated pages of this sequence */
		for (int32_t k = 0; first < s->kv.seq[q].n_page && k < s->sym[SYM_n_seq]; k++)
			if (k != i && c->row_seq[k] == q && c->row_pages[k] > first)
				c->row_pages[k] = first;
	}
	return LLMC_OK;
}

/* ---- steps ---- */

static llmc_status
begin(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err)
{
	CudaSession *c = s->on;
	bool samples = false;

	for (size_t i = 0; i < n; i++) {
		if (chunk[i].n_out > 1)
			return error_set(
			    err, LLMC_E_RANGE,
			    "chunk %zu: n_out is %d, only the last row can sample a token", i,
			    chunk[i].n_out);
		samples |= chunk[i].n_out > 0;
	}
	if (c->sample_pending)
		return error_set(err, LLMC_E_BUSY,
		                 "a queued step waits for its token masks (session_queue_sample)");
	if (samples && c->n_flight == CUDA_MAX_IN_FLIGHT)
		return error_set(err, LLMC_E_BUSY,
		                 "%d sampling steps are in flight: read the oldest first",
		                 CUDA_MAX_IN_FLIGHT);
	TRY(cuda_session_enter(s, err));
	llmc_status status = cuda_ring_take(c, err);
	if (status != LLMC_OK)
		cuda_session_leave(s);
	return status;
}

/* Call if a step was not queued: drop its note and table updates, and release its ring entry, which
 * nothing reads then. */
static void
undo_note(CudaSession *c)
{
	const Session *s = c->s;

	(void)!c->m->dev.api.stream_sync(c->stream);
	for (int32_t i = 0; i < s->size->n_seq; i++)
		memset(c->table + (size_t)s->step_seq[i] * (size_t)s->kv.stride, 0xff,
		       (size_t)s->kv.stride * sizeof *c->table);
	for (int64_t i = 0; i < s->sym[SYM_n_seq]; i++)
		c->row_seq[i] = -1;
}

/* Call when a step has been queued: its ring entry stays in use until the step has ended. */
static llmc_status
queued(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	int e = (int)(c->number % LLMC_RING);

	CUDA_TRY(d, d->api.event_record(c->event[e], c->stream), "marking the end of a step");
	c->busy[e] = true;
	c->number++;
	return LLMC_OK;
}

static llmc_status
queue(CudaSession *c, const llmc_chunk *chunk, size_t n, bool decode, bool sampling,
      llmc_error *err)
{
	const Session *s = c->s;

	TRY(cuda_session_check(c, err)); /* errors of page operations */
	TRY(cuda_upload_freq(c, err));
	if (decode) {
		TRY(write_note(c, err));
		TRY(cuda_launch_decode(c, s->size->n_tok, sampling, err));
	} else {
		TRY(cuda_upload_step(c, err));
		if (s->rows_in)
			TRY(cuda_stage_receive(c, 1, err));
		TRY(cuda_launch_mixed(c, 1, sampling, err));
	}
	const unsigned number = c->number;
	if (sampling)
		TRY(queued(c, err));
	c->sample_pending = !sampling;
	if (s->size->n_out) {
		CudaInFlight *f = &c->flight[c->n_flight++];
		f->number = number;
		f->n = 0;
		f->kept = false;
		for (size_t i = 0; i < n; i++)
			if (chunk[i].n_out)
				f->at[f->n++] = s->out_base[i];
	}
	return LLMC_OK;
}

static llmc_status
step(Session *s, const llmc_chunk *chunk, size_t n, bool decode, bool sampling, llmc_error *err)
{
	llmc_status status = queue(s->on, chunk, n, decode, sampling, err);

	if (status != LLMC_OK)
		undo_note(s->on);
	return status;
}

/* Copy the masks of the step's rows and launch the kernel that samples. */
static llmc_status
queue_sample(Session *s, const uint32_t *const *mask, llmc_error *err)
{
	CudaSession *c = s->on;
	CudaDevice *d = &c->m->dev;
	const CudaInFlight *f = c->n_flight ? &c->flight[c->n_flight - 1] : NULL;
	const size_t words = ((size_t)s->plan->vocab + 31) / 32,
	             head = (size_t)((char *)c->mask - (char *)c->mask_at);
	char *host = c->masks + (size_t)(c->number % LLMC_RING) * (size_t)c->mask_bytes;
	int *at = (int *)(void *)host, n = 0;

	if (!c->sample_pending)
		return error_set(err, LLMC_E_RANGE, "no queued step waits for token masks");
	c->sample_pending = false;
	for (int32_t o = 0; o < c->max_out; o++)
		at[o] = -1;
	for (int32_t i = 0; f && s->size->n_out && i < f->n; i++)
		if (mask[i]) {
			memcpy(host + head + (size_t)n * words * sizeof **mask, mask[i],
			       words * sizeof **mask);
			at[f->at[i]] = n++;
		}
	if (n)
		CUDA_TRY(d,
		         d->api.copy_up((CUdeviceptr)(uintptr_t)c->mask_at, host,
		                        head + (size_t)n * words * sizeof **mask, c->stream),
		         "copying masks to the GPU");
	TRY(cuda_launch_sample(c, s->size->n_out, n > 0, err));
	return queued(c, err);
}

static llmc_status
wait_for(CudaSession *c, CudaInFlight *f, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	int e = (int)(f->number % LLMC_RING);

	CUDA_TRY(d, d->api.event_sync(c->event[e]), "waiting for a step");
	c->busy[e] = false;
	cuda_in_flight_save(c, f);
	return LLMC_OK;
}

static llmc_status
take(Session *s, int32_t *ids, float *logprobs, llmc_error *err)
{
	CudaSession *c = s->on;
	llmc_status status = LLMC_OK;

	if (!c->n_flight)
		return error_set(err, LLMC_E_RANGE, "no sampling step is in flight");
	CudaInFlight f = c->flight[0];
	if (!f.kept) {
		TRY(cuda_session_enter(s, err));
		status = wait_for(c, &f, err);
		cuda_session_leave(s);
		if (status != LLMC_OK)
			return status;
	}
	for (int32_t i = 0; i < f.n; i++) {
		ids[i] = f.sampled[i].status ? -1 : f.sampled[i].id;
		if (logprobs)
			logprobs[i] = f.sampled[i].logprob;
		if (f.sampled[i].status)
			status = error_set(
			    err, LLMC_E_CHECK,
			    f.sampled[i].status == 1
			        ? "the logits hold NaN: weights or kernels are broken, try `llmc "
			          "verify`"
			        : "all logits are minus infinity: no token can be sampled");
	}
	memmove(c->flight, c->flight + 1, (CUDA_MAX_IN_FLIGHT - 1) * sizeof *c->flight);
	c->flight[CUDA_MAX_IN_FLIGHT - 1] = f; /* its arrays are reused by a later step */
	c->n_flight--;
	return status;
}

static void
drop(Session *s)
{
	((CudaSession *)s->on)->n_flight = 0;
}

const DeviceSampler cuda_sampler = { .can = can_sample,
	                             .params = set_params,
	                             .begin = begin,
	                             .step = step,
	                             .sample = queue_sample,
	                             .take = take,
	                             .drop = drop };
