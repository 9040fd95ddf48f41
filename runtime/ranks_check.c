/* Checks of messages that a follower receives, before it uses them as indices of its memory. Rank 0
 * sends valid messages, but a rank of another build or damaged shared memory may not. */
#include "runtime/ranks.h"
#include "runtime/ranks_internal.h"

static bool
is_index(int32_t v, int64_t n)
{
	return v >= 0 && v < n;
}

static bool
is_window_page(const Session *s, int32_t v)
{
	return !s->kv.window || v == -1 || is_index(v, s->kv.n_window);
}

bool
ranks_kv_op_fits(const Session *s, const Record *r)
{
	const Kv *kv = &s->kv;
	const int32_t to = r->a, from = r->b, snapshots = kv->n_snapshot + kv->n_mark;

	if (!is_window_page(s, r->window[0]) || !is_window_page(s, r->window[1]))
		return false;
	switch ((KvOp)r->more) {
	case KV_PAGE:
		return is_index(to, kv->n_page) && (from == -1 || is_index(from, kv->n_page));
	case KV_FORK:
		return is_index(to, kv->n_seq) && is_index(from, kv->n_seq);
	case KV_SNAPSHOT:
		return is_index(to, snapshots) && is_index(from, kv->n_seq);
	case KV_RESTORE:
		return is_index(to, kv->n_seq) && is_index(from, snapshots);
	case KV_SWAP_OUT:
		return is_index(to, kv->host.n) && is_index(from, kv->n_page);
	case KV_SWAP_IN:
		return is_index(to, kv->n_page) && is_index(from, kv->host.n);
	case KV_WAIT:
		return kv->host.n > 0;
	}
	return false;
}

/* Are the page numbers of sequence i of the step valid? */
static bool
table_fits(const Session *s, int32_t i)
{
	const int32_t *page = s->block_table + (size_t)i * (size_t)s->kv.stride;
	const int32_t n = (s->kv_len[i] - 1) / PLAN_KV_PAGE + 1;

	if (n > s->kv.max_page)
		return false;
	for (int32_t k = 0; k < n; k++)
		if (!is_index(page[k], s->kv.n_page) ||
		    (s->kv.window && !is_window_page(s, page[s->kv.max_page + k])))
			return false;
	return true;
}

/* Are the rows of sequence i of the step valid? */
static bool
rows_fit(const Session *s, int32_t i)
{
	const int32_t from = s->q_start[i], to = s->q_start[i + 1], len = s->kv_len[i];

	if (from >= to || to > s->size->n_tok || to - from > len || len > s->lim.context ||
	    s->prefix_len[i] < 0 || s->prefix_len[i] > s->lim.context ||
	    !is_index(s->step_seq[i], s->lim.seqs))
		return false;
	for (int32_t row = from; row < to; row++)
		if (!is_index(s->tok[row], s->plan->vocab) || s->seq_of[row] != i ||
		    s->pos[row] != len - (to - row) || s->rope_pos[row] < 0 || s->pos2[row] < 0 ||
		    (s->plan->token_types > 0 && s->pos2[row] >= s->plan->token_types))
			return false;
	return true;
}

bool
ranks_step_fits(const Session *s, int phase)
{
	const StepSize z = *s->size;

	if ((phase != 0 && phase != 1) || z.n_tok < 1 || z.n_tok > s->lim.chunk || z.n_seq < 1 ||
	    z.n_seq > s->sym[SYM_n_seq] || z.n_dec < 0 || z.n_dec > z.n_seq || z.n_out < 0 ||
	    z.n_out > s->sym[SYM_n_out] || s->q_start[0] != 0 || s->q_start[z.n_seq] != z.n_tok)
		return false;
	for (int32_t i = 0; i < z.n_seq; i++)
		if (!rows_fit(s, i) || !table_fits(s, i) ||
		    (i < z.n_dec && s->q_start[i + 1] != i + 1))
			return false;
	for (int32_t i = 0; i < z.n_out; i++)
		if (!is_index(s->out_row[i], z.n_tok))
			return false;
	return true;
}

bool
ranks_sequence_fits(const Session *s, const Record *r)
{
	return is_index(r->a, s->lim.seqs) && r->b >= 0 &&
	       (r->more == -1 || adapters_has_slot(s->rt, r->more));
}

bool
ranks_transfer_fits(const Session *s, const Record *r)
{
	return r->a >= 0 && r->a <= s->kv.n_page && r->b >= -1 && r->b < s->lim.seqs &&
	       r->more >= 0;
}

bool
ranks_pages_fit(const Session *s, const int32_t *page, const int32_t *window, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		if (!is_index(page[i], s->kv.n_page) || !is_window_page(s, window[i]))
			return false;
	return true;
}

llmc_status
ranks_bad_message(const Session *s, const char *what, llmc_error *err)
{
	return error_set(err, LLMC_E_CHECK,
	                 "rank %d received a message of rank 0 that is not possible: %s; all ranks "
	                 "need the same build of llmc",
	                 comm_rank(s->comm), what);
}
