/* Saving and restoring of pages and recurrent states of all ranks. */
#include <stdlib.h>
#include <string.h>

#include "runtime/ranks.h"
#include "runtime/ranks_internal.h"

static RankSizes
ranks_own_sizes(const Plan *p)
{
	return (RankSizes){ kv_bytes(p, 1), kv_state_bytes(p, 1) };
}

bool
ranks_collect_sizes(Session *s, RankSizes *all)
{
	const RankSizes own = ranks_own_sizes(s->plan);

	return comm_gather_to_root(s->comm, &own, sizeof own, all);
}

static bool
ranks_request_sizes(Session *s, RankSizes *all)
{
	return ranks_broadcast(s, (Record){ .kind = RECORD_SIZES }) && ranks_collect_sizes(s, all);
}

/* Sizes that each rank saves; NULL: the group has ended */
static const RankSizes *
ranks_all_sizes(Session *s)
{
	if (!s->kept) {
		RankSizes *all = calloc((size_t)comm_ranks(s->comm), sizeof *all);
		if (!all || !ranks_request_sizes(s, all)) {
			free(all);
			return NULL;
		}
		s->kept = all;
	}
	return s->kept;
}

void
ranks_exchange_sizes(Session *s)
{
	if (ranks_leads(s) && s->plan->stages > 1 && s->kept)
		(void)ranks_request_sizes(s, s->kept);
	else if (ranks_leads(s) && s->plan->stages > 1)
		(void)ranks_all_sizes(s);
}

int64_t
ranks_saved_bytes(Session *s, int32_t n, int32_t windowless, bool states)
{
	const RankSizes own = ranks_own_sizes(s->plan),
	                *all = ranks_leads(s) ? ranks_all_sizes(s) : &own;
	const int ranks = ranks_leads(s) ? comm_ranks(s->comm) : 1;
	int64_t sum = 0;

	for (int k = 0; all && k < ranks; k++)
		sum += n * all[k].page + (states ? all[k].state : 0);
	return !all ? -1 : ranks_leads(s) ? sum : sum - kv_windowless_bytes(s->plan, windowless);
}

/* Floats per rank in a message: the maximum over the ranks */
static int32_t
most_floats(const Session *s, bool states)
{
	int64_t most = 0;

	for (int k = 0; k < comm_ranks(s->comm); k++) {
		int64_t own = states ? s->kept[k].state : s->kept[k].page;
		most = own > most ? own : most;
	}
	return (int32_t)(most / 4 + (most % 4 != 0));
}

/* Address of page i of n of rank k in the saved data; i = n: of its recurrent states */
static char *
saved_at(const Session *s, const void *host, int32_t n, int k, int32_t i)
{
	char *at = (char *)(uintptr_t)host;

	for (int j = 0; j < (i < n ? k : comm_ranks(s->comm)); j++)
		at += n * s->kept[j].page;
	for (int j = 0; i == n && j < k; j++)
		at += s->kept[j].state;
	return i < n ? at + i * s->kept[k].page : at;
}

/* Transfer of saved data through memory with one slot per rank. Segment i of the n + 1 segments is
 * page i; segment n holds the states of sequence q */
typedef struct Transfer {
	RecordKind kind;
	const int32_t *page;
	int32_t n, windowless, floats[2];
	llmc_seq q;
	char *host;
} Transfer; /* host: saved data on rank 0; NULL on the others */

static bool
transfer_segment(Session *s, const Transfer *m, int32_t i, float *all)
{
	const bool states = i == m->n;
	const int ranks = comm_ranks(s->comm);
	const int64_t floats = m->floats[states];
	const size_t each = (size_t)floats * sizeof(float);
	float *own = all + (m->kind == RECORD_READ ? ranks : comm_rank(s->comm)) * floats;
	bool ok;

	if (m->kind == RECORD_READ) {
		if (states)
			kv_state_read(&s->kv, m->q, own);
		else
			kv_page_read(&s->kv, m->page[i], kv_lacks_window(&s->kv, i, m->windowless),
			             own);
		ok = comm_gather_to_root(s->comm, own, each, m->host ? all : NULL);
		for (int k = 0; k < ranks && ok && m->host; k++)
			memcpy(saved_at(s, m->host, m->n, k, i), all + k * floats,
			       (size_t)(states ? s->kept[k].state : s->kept[k].page));
		return ok;
	}
	for (int k = 0; k < ranks && m->host; k++)
		memcpy(all + k * floats, saved_at(s, m->host, m->n, k, i),
		       (size_t)(states ? s->kept[k].state : s->kept[k].page));
	ok = m->host ? comm_send(s->comm, all, (size_t)ranks * each)
	             : comm_receive(s->comm, all, (size_t)ranks * each);
	if (ok && states)
		kv_state_write(&s->kv, m->q, own);
	else if (ok)
		kv_page_write(&s->kv, m->page[i], kv_lacks_window(&s->kv, i, m->windowless), own);
	return ok;
}

/* Transfer one page at a time, then the states. The slot of each rank has the size that the rank
 * with the largest page needs, window page included. */
static bool
transfer_pages(Session *s, const Transfer *m)
{
	const int32_t most = m->floats[0] > m->floats[1] ? m->floats[0] : m->floats[1];
	float *all = calloc((size_t)comm_ranks(s->comm) + 1, (size_t)most * sizeof *all + 1);
	bool ok = all != NULL;

	for (int32_t i = 0; i < m->n && ok; i++)
		ok = transfer_segment(s, m, i, all);
	if (m->q >= 0 && ok)
		ok = transfer_segment(s, m, m->n, all);
	free(all);
	if (!ok)
		comm_end(s->comm);
	return ok;
}

static bool
lead_transfer(Session *s, RecordKind kind, const int32_t *page, int32_t n, int32_t windowless,
              llmc_seq q, const void *host)
{
	int32_t *window = calloc((size_t)n + 1, sizeof *window);

	for (int32_t i = 0; window && i < n; i++)
		window[i] = s->kv.window ? s->kv.window[page[i]] : -1;
	bool ok = window && ranks_all_sizes(s);
	const Transfer m = { .kind = kind,
		             .page = page,
		             .n = n,
		             .windowless = windowless,
		             .floats = { ok ? most_floats(s, false) : 0,
		                         ok ? most_floats(s, true) : 0 },
		             .q = q,
		             .host = (char *)(uintptr_t)host };
	ok = ok &&
	     ranks_broadcast(s, (Record){ .kind = kind, .a = n, .b = q, .more = windowless }) &&
	     comm_send(s->comm, m.floats, sizeof m.floats) &&
	     comm_send(s->comm, page, (size_t)n * sizeof *page) &&
	     comm_send(s->comm, window, (size_t)n * sizeof *window);
	free(window);
	return ok && transfer_pages(s, &m);
}

bool
ranks_save(Session *s, const int32_t *page, int32_t n, int32_t windowless, llmc_seq q, void *host)
{
	if (ranks_leads(s))
		return lead_transfer(s, RECORD_READ, page, n, windowless, q, host);
	kv_pages_read(&s->kv, page, n, windowless, host);
	if (q >= 0)
		kv_state_read(&s->kv, q,
		              (char *)host + kv_bytes(s->plan, n) -
		                  kv_windowless_bytes(s->plan, windowless));
	return true;
}

bool
ranks_restore(Session *s, const int32_t *page, int32_t n, int32_t windowless, llmc_seq q,
              const void *host)
{
	if (ranks_leads(s))
		return lead_transfer(s, RECORD_WRITE, page, n, windowless, q, host);
	kv_pages_write(&s->kv, page, n, windowless, host);
	if (q >= 0)
		kv_state_write(&s->kv, q,
		               (const char *)host + kv_bytes(s->plan, n) -
		                   kv_windowless_bytes(s->plan, windowless));
	return true;
}

/* Is a slot of `floats` floats plausible for a rank that saves `own` bytes? Slots are sized for the
 * largest rank, which may save at most 64 times as much, or 512 MB. */
static bool
slot_fits(int32_t floats, int64_t own, bool used)
{
	const int64_t bytes = (int64_t)floats * (int64_t)sizeof(float), large = (int64_t)1 << 29,
	              most = 64 * own > large ? 64 * own : large;

	return bytes >= (used ? own : 0) && bytes <= most;
}

static bool
slots_fit(const Session *s, const Transfer *m)
{
	const RankSizes own = ranks_own_sizes(s->plan);

	return slot_fits(m->floats[0], own.page, m->n > 0) &&
	       slot_fits(m->floats[1], own.state, m->q >= 0);
}

llmc_status
ranks_follow_transfer(Session *s, const Record *r, llmc_error *err)
{
	llmc_status status = LLMC_OK;

	if (!ranks_transfer_fits(s, r))
		return ranks_bad_message(s, "a transfer of pages", err);
	int32_t *page = calloc((size_t)r->a + 1, sizeof *page),
	        *window = calloc((size_t)r->a + 1, sizeof *window);
	Transfer m = { .kind = (RecordKind)r->kind,
		       .page = page,
		       .n = r->a,
		       .windowless = r->more,
		       .q = r->b };
	bool ok = page && window && comm_receive(s->comm, m.floats, sizeof m.floats) &&
	          comm_receive(s->comm, page, (size_t)r->a * sizeof *page) &&
	          comm_receive(s->comm, window, (size_t)r->a * sizeof *window);

	if (ok && (!slots_fit(s, &m) || !ranks_pages_fit(s, page, window, r->a)))
		status = ranks_bad_message(s, "pages of a transfer", err);
	for (int32_t i = 0; ok && status == LLMC_OK && i < r->a; i++)
		kv_set_window_page(&s->kv, page[i], window[i]);
	ok = ok && status == LLMC_OK && transfer_pages(s, &m);
	free(page);
	free(window);
	if (!ok)
		comm_end(s->comm);
	return status;
}
