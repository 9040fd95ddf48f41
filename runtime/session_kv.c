/* Data that outlives a sequence: its saved KV bytes, and its prompt's pages in the prefix cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sum64.h"
#include "runtime/kv/kv_disk.h"
#include "runtime/ranks.h"
#include "runtime/state/session_state.h"

/* Header of a saved sequence; its pages and states follow in the format of ranks_save. */
typedef struct SavedHead {
	char magic[8];
	char spec[72]; /* hash of the model description */
	char target[32];
	int64_t bytes; /* size of pages and states */
	int32_t len, length_bound, prefix_len, mark;
	int32_t windowless; /* leading pages stored without window pages */
	int32_t rope_shift, n_placed;
	uint64_t adapter; /* key of its adapter; 0: none */
	uint64_t salt;    /* salt of its prefix-cache pages */
	uint64_t sum;     /* checksum of pages and states */
} SavedHead;

static const char magic[8] = "llmckv6";

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
	return ranks_saved_bytes(s, kv_seq_pages(len),
	                         kv_windowless_pages(&s->kv, len - KV_MAX_ROLLBACK), true);
}

/* Return the sequence whose recurrent states are saved with its pages; -1: the model has none */
static llmc_seq
states_of(const Session *s, llmc_seq q)
{
	return plan_has_state(s->plan) ? q : -1;
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
	h.rope_shift = s->seq[q].rope_shift;
	h.n_placed = s->seq[q].n_placed;
	h.windowless = s->kv.seq[q].n_windowless;
	h.adapter = adapter_key(s->rt, s->seq[q].adapter);
	h.salt = s->seq[q].salt;
	h.bytes = ranks_saved_bytes(s, kv_seq_pages(h.len), h.windowless, true);
	*need = sizeof h + (size_t)h.bytes;
	if (cap < *need)
		return error_set(err, LLMC_E_RANGE,
		                 "the sequence needs %zu bytes, the buffer has %zu", *need, cap);
	kv_seq_wait(&s->kv, q);
	if (!ranks_save(s, s->kv.seq[q].page, kv_seq_pages(h.len), h.windowless, states_of(s, q),
	                (char *)buf + sizeof h))
		return comm_error(s->comm, err);
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
		return error_set(err, LLMC_E_INPUT, "the buffer does not hold a saved sequence");
	memcpy(&h, buf, sizeof h);
	if (memcmp(h.spec, own.spec, sizeof h.spec) ||
	    memcmp(h.target, own.target, sizeof h.target))
		return error_set(err, LLMC_E_INPUT,
		                 "the saved sequence belongs to another model, target or type of "
		                 "cached rows: they must be the same (here %s)",
		                 s->plan->target ? s->plan->target : "ref");
	if (h.len < 0 || h.length_bound < h.len || h.prefix_len < 0 || h.prefix_len > h.len ||
	    h.mark < 0 || h.rope_shift < -h.len || h.rope_shift > h.len || h.n_placed < 0 ||
	    h.n_placed > h.len ||
	    h.windowless < kv_windowless_pages(&s->kv, h.len - KV_MAX_ROLLBACK) ||
	    h.windowless > kv_windowless_pages(&s->kv, h.len) ||
	    h.bytes != ranks_saved_bytes(s, kv_seq_pages(h.len), h.windowless, true) ||
	    (size_t)h.bytes != n - sizeof h ||
	    h.sum != sum64((const char *)buf + sizeof h, (size_t)h.bytes, 1))
		return error_set(err, LLMC_E_INPUT, "the saved sequence is damaged or cut short");
	const int32_t adapter = h.adapter ? adapter_of_key(s->rt, h.adapter) : 0;
	if (h.adapter && !adapter)
		return error_set(err, LLMC_E_INPUT,
		                 "the saved sequence ran with an adapter that is not loaded here");
	llmc_status status = session_seq_new(s, h.length_bound, out, err);
	if (status == LLMC_OK)
		status = session_seq_adapt(s, *out, adapter, err);
	runtime_adapter_unref(s->rt, adapter);
	TRY(status);
	int64_t pages = kv_pages_needed(&s->kv, out, &h.len, 1);
	if (pages > s->kv.n_free) {
		session_seq_free(s, *out);
		*out = -1;
		return error_set(err, LLMC_E_FULL,
		                 "the saved sequence needs %lld KV pages, %d are free",
		                 (long long)pages, s->kv.n_free);
	}
	kv_seq_reserve(&s->kv, *out, h.len, h.windowless);
	if (!ranks_restore(s, s->kv.seq[*out].page, s->kv.seq[*out].n_page, h.windowless,
	                   states_of(s, *out), (const char *)buf + sizeof h))
		return comm_error(s->comm, err);
	s->seq[*out].prefix_len = h.prefix_len;
	s->seq[*out].mark = h.mark;
	s->seq[*out].rope_shift = h.rope_shift;
	s->seq[*out].n_placed = h.n_placed;
	s->seq[*out].salt = h.salt;
	return LLMC_OK;
}

/* Return the prefix-cache root of a sequence: a hash of its RoPE frequencies (which may depend on
 * its maximum length), its adapter, and its salt. The same tokens have different KV values under
 * another root. */
static int64_t
root_of(const Session *s, llmc_seq q)
{
	size_t freqs = 0;

	for (int i = 0; i < s->plan->n_rope; i++)
		freqs += (size_t)s->plan->rope[i].dims / 2;
	uint64_t h = sum64(s->seq[q].freq, freqs * sizeof *s->seq[q].freq, 2);
	h = sum64(s->seq[q].factor, (size_t)s->plan->n_rope * sizeof *s->seq[q].factor, h);
	const uint64_t key = adapter_key(s->rt, s->seq[q].adapter);
	if (key)
		h = sum64(&key, sizeof key, h);
	if (s->rt->n_replaced)
		h = sum64(&s->rt->n_replaced, sizeof s->rt->n_replaced, h + 2);
	if (s->seq[q].salt)
		h = sum64(&s->seq[q].salt, sizeof s->seq[q].salt, h + 1);
	return -(int64_t)(h >> 1) - 1;
}

/* Can pages be shared by prompts with a common prefix? Not in a prefix-LM, where each position
 * depends on the whole prompt. */
static bool
has_prefixes(const Session *s)
{
	return !s->plan->prompt_whole;
}

/* Read from disk the pages that follow those found in memory. */
static void
from_disk(Session *s, llmc_seq q, const int32_t *tok, int32_t n_tok)
{
	KvSeq *kv = &s->kv.seq[q];
	int64_t root = root_of(s, q);
	KvKey key = kv_disk_root(s->disk, root);

	for (int32_t i = 0; i < kv->len; i += PLAN_KV_PAGE)
		kv_disk_next(&key, tok + i);
	while (kv->len + PLAN_KV_PAGE < n_tok && kv->n_page < s->kv.max_page && s->kv.n_free > 0) {
		const int32_t *own = tok + kv->len;
		kv_disk_next(&key, own);
		if (!kv_disk_load(s->disk, &key, own, s->disk_page))
			break;
		kv_seq_reserve(&s->kv, q, kv->len + PLAN_KV_PAGE, 0);
		if (!ranks_restore(s, &kv->page[kv->n_page - 1], 1, 0, -1, s->disk_page)) {
			kv_seq_trim(&s->kv, q, kv->len - PLAN_KV_PAGE);
			break;
		}
	}
	kv_prefix_keep(&s->kv, q, kv->n_kept ? 0 : root, tok);
}

static void
to_disk(Session *s, llmc_seq q, const int32_t *tok, int32_t from)
{
	const KvSeq *kv = &s->kv.seq[q];
	KvKey key = kv_disk_root(s->disk, root_of(s, q));

	for (int32_t i = 0; i < kv->n_kept; i++) {
		const int32_t *own = tok + (size_t)i * PLAN_KV_PAGE;
		kv_disk_next(&key, own);
		void *page =
		    i >= from && kv_has_window(&s->kv, kv->page[i]) && kv_disk_wants(s->disk, &key)
		        ? kv_disk_page(s->disk)
		        : NULL;
		if (page && ranks_save(s, &kv->page[i], 1, 0, -1, page))
			kv_disk_save(s->disk, &key, own, page);
		else if (page)
			kv_disk_drop(page);
	}
}

int32_t
session_prefix_find(Session *s, llmc_seq q, const int32_t *tok, int32_t n_tok)
{
	if (!has_prefixes(s))
		return 0;
	kv_prefix_find(&s->kv, q, root_of(s, q), tok, n_tok);
	if (s->disk && !s->rt->n_replaced)
		from_disk(s, q, tok, n_tok);
	return s->kv.seq[q].len;
}

void
session_prefix_keep(Session *s, llmc_seq q, const int32_t *tok)
{
	const KvSeq *kv = &s->kv.seq[q];
	int32_t from = kv->n_kept;

	if (!has_prefixes(s) || (from >= kv->len / PLAN_KV_PAGE && !plan_has_state(s->plan)))
		return;
	kv_prefix_keep(&s->kv, q, from ? 0 : root_of(s, q), tok);
	if (s->disk && !s->rt->n_replaced)
		to_disk(s, q, tok, from);
}

/* Hash an adapter's files by content; their names do not identify it. */
static uint64_t
adapter_sum(const Plan *p)
{
	static const char *const files[] = { "adapter_config.json", "adapter_model.safetensors" };
	uint64_t sum = p->lora ? sum64(&p->lora_scale, sizeof p->lora_scale, 5) : 0;

	for (size_t i = 0; p->lora && i < sizeof files / sizeof *files; i++) {
		char path[4200];
		struct stat st;
		snprintf(path, sizeof path, "%s/%s", p->lora, files[i]);
		if (stat(path, &st) != 0 && stat(p->lora, &st) != 0)
			continue;
		int64_t fact[] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };
		sum = sum64(fact, sizeof fact, sum);
	}
	return sum;
}

llmc_status
session_prefix_dir(Session *s, const char *dir, int64_t max_bytes, const char *extra,
                   llmc_log_fn log, void *log_user, llmc_error *err)
{
	int64_t bytes = ranks_saved_bytes(s, 1, 0, false);
	char root[512], checkpoint[17], plan[17], together[17];

	/* files hold pages, not recurrent states */
	if (!has_prefixes(s) || plan_has_state(s->plan))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: prompts of this model are not reused: it %s", dir,
		                 s->plan->prompt_whole ? "processes them in one chunk"
		                                       : "has a recurrent state");
	if (bytes <= 0)
		return error_set(err, LLMC_E_DEVICE,
		                 "the pages of all ranks could not be measured");
	s->disk_page = malloc((size_t)bytes);
	if (!s->disk_page)
		return error_set(err, LLMC_E_MEMORY,
		                 "out of memory for a page of the prefix cache");
	runtime_fingerprint(s->rt, checkpoint, plan, together);
	snprintf(root, sizeof root, "llmc " LLMC_VERSION " %s %s %s %d %s %s %lld %016llx %s",
	         checkpoint, s->plan->spec_sha256 ? s->plan->spec_sha256 : "",
	         s->plan->target ? s->plan->target : "", s->plan->ranks, plan, together,
	         (long long)bytes, (unsigned long long)adapter_sum(s->plan), extra);
	return kv_disk_open(dir, max_bytes, root, (size_t)bytes, log, log_user, &s->disk, err);
}

void
session_prefix_counts(Session *s, uint64_t *read, uint64_t *written, uint64_t *wrong)
{
	KvDiskCounts c = s->disk ? kv_disk_counts(s->disk) : (KvDiskCounts){ 0 };

	*read = c.read * PLAN_KV_PAGE;
	*written = c.written * PLAN_KV_PAGE;
	*wrong = c.wrong * PLAN_KV_PAGE;
}
