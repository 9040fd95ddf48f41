/* Windows of a tower as the sequences of a step, for layers that attend within windows. */
#include "runtime/state/session_state.h"

/* Return the window of row k of a chunk. Without images (when steps are timed) all windows have
 * full length */
static int32_t
window_of(const Session *s, int32_t chunk, int32_t k)
{
	const int32_t *window = s->rows_in ? s->rows_in[chunk].window : NULL;

	return window ? window[k] : k / (int32_t)plan_segment(s->plan);
}

int32_t
session_positions(const Session *s, int32_t i, int32_t n)
{
	int32_t pages = 0;

	if (!s->segments)
		return n;
	for (int32_t k = 0, first = 0; k < n; k++)
		if (k + 1 == n || window_of(s, i, k + 1) != window_of(s, i, k)) {
			pages += (k - first) / PLAN_KV_PAGE + 1;
			first = k + 1;
		}
	return pages * PLAN_KV_PAGE;
}

llmc_status
session_check_windows(const Session *s, size_t chunk, int32_t n, llmc_error *err)
{
	const int32_t take = session_positions(s, (int32_t)chunk, n) / PLAN_KV_PAGE;

	return !s->segments || take <= s->kv.max_page
	           ? LLMC_OK
	           : error_set(err, LLMC_E_RANGE,
	                       "chunk %zu: its windows take %d KV pages, one each at least, and a "
	                       "context of %d positions has %d; open a session with more (context)",
	                       chunk, take, s->lim.context, s->kv.max_page);
}

int64_t
session_pages_needed(Session *s, const llmc_chunk *chunk, size_t n)
{
	for (size_t i = 0; i < n; i++)
		s->add[i] = session_positions(s, s->order[i], chunk[s->order[i]].n_tok);
	const int64_t need = kv_pages_needed(&s->kv, s->step_seq, s->add, n);
	for (size_t i = 0; i < n; i++)
		s->add[i] = chunk[s->order[i]].n_tok;
	return need;
}

void
session_fill_segments(Session *s, int32_t i, int32_t row, int32_t n)
{
	const int32_t *page = s->kv.seq[s->step_seq[i]].page;
	int32_t at = s->segments->n_seq - 1;

	for (int32_t k = 0; k < n; k++) {
		if (k == 0 || window_of(s, s->order[i], k) != window_of(s, s->order[i], k - 1)) {
			if (k > 0)
				page += (s->segment_len[at] - 1) / PLAN_KV_PAGE + 1;
			s->segment_start[++at] = row + k;
			s->segment_len[at] = 0;
		}
		const int32_t pos = s->segment_pos[row + k] = s->segment_len[at]++;
		s->segment_of[row + k] = at;
		s->segment_table[at * s->segment_pages + pos / PLAN_KV_PAGE] =
		    page[pos / PLAN_KV_PAGE];
	}
	s->segments->n_seq = at + 1;
	s->segment_start[at + 1] = row + n;
}
