/* Rank 0 of a group: each step and each change of the KV cache becomes a record that the other
 * ranks follow. */
#include "runtime/ranks.h"
#include "runtime/ranks_internal.h"

bool
ranks_leads(const Session *s)
{
	return s->comm && comm_rank(s->comm) == 0;
}

bool
ranks_broadcast(Session *s, Record r)
{
	return comm_send(s->comm, &r, sizeof r);
}

bool
ranks_step(Session *s, int phase)
{
	return !ranks_leads(s) ||
	       (ranks_broadcast(s, (Record){ .kind = RECORD_STEP, .a = phase }) &&
	        comm_send(s->comm, s->block, (size_t)s->block_bytes));
}

void
ranks_sequence(Session *s, llmc_seq q, int32_t length_bound)
{
	if (ranks_leads(s) && !adapters_known(s->rt, s->adapter[q]) &&
	    ranks_broadcast(s, (Record){ .kind = RECORD_ADAPTER, .a = s->adapter[q] }))
		adapters_send(s->rt, s->adapter[q], s->comm);
	if (ranks_leads(s))
		ranks_broadcast(s, (Record){ .kind = RECORD_SEQUENCE,
		                             .a = q,
		                             .b = length_bound,
		                             .more = s->adapter[q] });
}

bool
ranks_is_page(KvOp op, int which)
{
	return op == KV_PAGE || op == (which ? KV_SWAP_OUT : KV_SWAP_IN);
}

static void
on_kv_op(void *user, KvOp op, int32_t to, int32_t from)
{
	const int32_t *window = ((Session *)user)->kv.window, a = ranks_is_page(op, 0) ? to : -1,
	              b = ranks_is_page(op, 1) ? from : -1;

	ranks_broadcast(user, (Record){ .kind = RECORD_KV,
	                                .a = to,
	                                .b = from,
	                                .more = (int32_t)op,
	                                .window = { window && a >= 0 ? window[a] : -1,
	                                            window && b >= 0 ? window[b] : -1 } });
}

static bool
step_again(Session *s, int phase)
{
	return ranks_broadcast(s, (Record){ .kind = RECORD_AGAIN, .a = phase });
}

void
ranks_lead(Session *s)
{
	s->kv.on_op = on_kv_op;
	s->kv.on_op_user = s;
	s->rerun = step_again;
}
