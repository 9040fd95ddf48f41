/* What outlives a sequence: its KV as bytes, and its prompt's pages in the prefix cache. */
#include <string.h>

#include "base/sum64.h"
#include "runtime/ranks.h"
#include "runtime/state/state.h"

/* A saved sequence: this head, then its pages, rank by rank as ranks_pages_read has them, then its states. */
typedef struct SavedHead {
	char    magic[8];
	char    spec[72];       /* hash of the description */
	char    target[32];
	int64_t bytes;          /* of pages and states */
	int32_t len, length_bound, prefix_len, mark;
	uint64_t sum;           /* of them */
} SavedHead;

static const char magic[8] = "llmckv1";

static void
head_for(const Session *s, SavedHead *h)
{
	memset(h, 0, sizeof *h);
	memcpy(h->magic, magic, sizeof magic);
	if (s->plan->spec_sha256)
		strncpy(h->spec, s->plan->spec_sha256, sizeof h->spec - 1);
	if (s->plan->target)
		strncpy(h->target, s->plan->target, sizeof h->target - 1);
}

int64_t
session_seq_bytes(Session *s, int32_t len)
{
	return ranks_pages_bytes(s, kv_seq_pages(len)) + kv_state_bytes(s->plan, 1);
}

llmc_status
session_seq_save(Session *s, llmc_seq q, void *buf, size_t cap, size_t *need, llmc_error *err)
{
	SavedHead h;

	if (session_seq_len(s, q) < 0)
		return error_set(err, LLMC_E_RANGE, "there is no sequence %d in this session", q);
	head_for(s, &h);
	h.len = s->kv.seq[q].len;
	h.length_bound = s->seq[q].length_bound;
	h.prefix_len = s->seq[q].prefix_len;
	h.mark = s->seq[q].mark;
	h.bytes = session_seq_bytes(s, h.len);
	*need = sizeof h + (size_t)h.bytes;
	if (cap < *need)
		return error_set(err, LLMC_E_RANGE, "the sequence needs %zu bytes, the buffer has %zu", *need, cap);
	if (!ranks_pages_read(s, s->kv.seq[q].page, kv_seq_pages(h.len), (char *)buf + sizeof h))
		return comm_error(s->comm, err);
	kv_state_read(&s->kv, q, (char *)buf + *need - kv_state_bytes(s->plan, 1));
	h.sum = sum64((char *)buf + sizeof h, (size_t)h.bytes, 1);
	memcpy(buf, &h, sizeof h);
	return LLMC_OK;
}

llmc_status
session_seq_load(Session *s, const void *buf, size_t n, llmc_seq *out, llmc_error *err)
{
	SavedHead h, own;

	*out = -1;
	head_for(s, &own);
	if (n < sizeof h || memcmp(buf, magic, sizeof magic) != 0)
		return error_set(err, LLMC_E_INPUT, "these bytes are no saved sequence");
	memcpy(&h, buf, sizeof h);
	if (memcmp(h.spec, own.spec, sizeof h.spec) || memcmp(h.target, own.target, sizeof h.target))
		return error_set(err, LLMC_E_INPUT,
		                 "the saved sequence belongs to another model, target or type of cached rows: they must be the same (here %s)",
		                 s->plan->target ? s->plan->target : "ref");
	if (h.len < 0 || h.length_bound < h.len || h.prefix_len < 0 || h.prefix_len > h.len || h.mark < 0 ||
	    h.bytes != session_seq_bytes(s, h.len) || (size_t)h.bytes != n - sizeof h ||
	    h.sum != sum64((const char *)buf + sizeof h, (size_t)h.bytes, 1))
		return error_set(err, LLMC_E_INPUT, "the saved sequence is damaged or cut short");
	TRY(session_seq_new(s, h.length_bound, out, err));
	int64_t pages = kv_need(&s->kv, out, &h.len, 1);
	if (pages > s->kv.n_free) {
		session_seq_free(s, *out);
		*out = -1;
		return error_set(err, LLMC_E_FULL, "the saved sequence needs %lld KV pages, %d are free", (long long)pages,
		                 s->kv.n_free);
	}
	kv_seq_room(&s->kv, *out, h.len);
	if (!ranks_pages_write(s, s->kv.seq[*out].page, s->kv.seq[*out].n_page, (const char *)buf + sizeof h))
		return comm_error(s->comm, err);
	kv_state_write(&s->kv, *out, (const char *)buf + n - kv_state_bytes(s->plan, 1));
	s->seq[*out].prefix_len = h.prefix_len;
	s->seq[*out].mark = h.mark;
	return LLMC_OK;
}

/* Tables that depend on the length give other values for the same tokens: the root is a hash of what the sequence
 * rotates by. */
static int64_t
root_of(const Session *s, llmc_seq q)
{
	size_t freqs = 0;

	for (int i = 0; i < s->plan->n_rope; i++)
		freqs += (size_t)s->plan->rope[i].dims / 2;
	uint64_t h = sum64(s->seq[q].freq, freqs * sizeof *s->seq[q].freq, 2);
	h = sum64(s->seq[q].factor, (size_t)s->plan->n_rope * sizeof *s->seq[q].factor, h);
	return -(int64_t)(h >> 1) - 1;
}

int32_t
session_prefix_find(Session *s, llmc_seq q, const int32_t *tok, int32_t n_tok)
{
	/* a state is there for the last position alone */
	return s->plan->prompt_whole || plan_has_state(s->plan) ? 0 : kv_prefix_find(&s->kv, q, root_of(s, q), tok, n_tok);
}

void
session_prefix_keep(Session *s, llmc_seq q, const int32_t *tok)
{
	const KvSeq *kv = &s->kv.seq[q];

	if (!s->plan->prompt_whole && !plan_has_state(s->plan) && kv->n_kept < kv->len / PLAN_KV_PAGE)
		kv_prefix_keep(&s->kv, q, kv->n_kept ? 0 : root_of(s, q), tok);
}
