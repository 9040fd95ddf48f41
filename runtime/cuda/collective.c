/* Collectives of a step as kernel launches: over peer memory
 * (templates/cuda/runtime/collective.cu), as an NCCL gather followed by llmc's own sum, or through
 * the host (host_staged_comm.c). */
#include "runtime/cuda/rank_group.h"

llmc_status
cuda_collective_bind(CudaSession *c, CudaStep *k, int number, llmc_error *err)
{
	const PlanStep *st = k->step;
	llmc_collective *to = &k->comm;
	const Session *s = c->s;
	bool sum = st->op == OP_all_reduce;
	const void *arg[LLMC_CALL_ARGS] = { 0 };
	const PlanRef *y = &st->arg[op_info[st->op].n_arg - 1];

	if (s->plan->ranks > LLMC_PEERS)
		return error_set(err, LLMC_E_MISSING,
		                 "parallel.tp is %d; on GPUs at most %d ranks share a layer",
		                 s->plan->ranks, LLMC_PEERS);
	for (int a = 0; a < st->n_arg && a < LLMC_CALL_ARGS; a++)
		arg[a] = session_argument(s, &st->arg[a]);
	bool out = k->of_out = s->plan->buffer[y->index].extent.sym == SYM_n_out;
	*to = (llmc_collective){ .peers = c->window.peers,
		                 .rows = c->st.s_n + (out ? 3 : 0),
		                 .scale = 1,
		                 .width = (int)step_int(st, "width"),
		                 .step = number };
	if (sum) {
		to->x = arg[ARG(all_reduce, x)];
		to->b = arg[ARG(all_reduce, b)];
		to->b2 = arg[ARG(all_reduce, b2)];
		to->r = arg[ARG(all_reduce, r)];
		to->scale = (float)step_num(st, "scale");
	} else {
		to->x = arg[ARG(all_gather, x)];
		for (int r = 0; r < s->plan->ranks; r++) {
			int64_t first, count;
			op_share(to->width, step_int(st, "unit"), s->plan->ranks, r, &first,
			         &count);
			to->first[r] = (int)first;
			to->first[r + 1] = (int)(first + count);
		}
	}
	to->y = session_argument(s, y);
	return LLMC_OK;
}

/* Run a collective through NCCL: gather the message in chunks; a kernel computes the op from each
 * chunk. */
static llmc_status
by_nccl(CudaSession *c, const CudaStep *k, int64_t rows, llmc_error *err)
{
	const int n = c->s->plan->ranks, rank = c->s->plan->rank;
	const int64_t room = c->window.room;
	const CudaDevice *d = &c->m->dev;
	llmc_gathered g = { .c = k->comm, .from = c->window.gather, .ranks = n };

	if (k->step->op == OP_all_reduce) {
		for (int64_t all = rows * k->comm.width; g.at < all; g.at += g.n) {
			g.n = (int)(all - g.at < room ? all - g.at : room);
			g.stride = g.n;
			TRY(nccl_all_gather(c->group->nccl, rank, k->comm.x + g.at,
			                    c->window.gather, g.n, c->stream, err));
			TRY(cuda_launch(
			    c, c->m->add_ranks, "llmc_add_ranks",
			    (int64_t[3]){ (g.n + LLMC_LANE_THREADS - 1) / LLMC_LANE_THREADS, 1, 1 },
			    LLMC_LANE_THREADS, 1, 0, PLAIN, &g, NULL, err));
		}
		return LLMC_OK;
	}
	const int64_t own = k->comm.first[rank + 1] - k->comm.first[rank];
	int64_t most = 1;
	for (int r = 0; r < n; r++)
		most = k->comm.first[r + 1] - k->comm.first[r] > most
		           ? k->comm.first[r + 1] - k->comm.first[r]
		           : most;
	for (; g.at < rows; g.at += g.n) {
		g.n = (int)(rows - g.at < room / most ? rows - g.at : room / most);
		g.stride = g.n * most;
		float *to = c->window.gather + rank * g.stride;
		CUDA_TRY(&c->m->dev,
		         d->api.copy_on(cuda_address(to), cuda_address(k->comm.x + g.at * own),
		                        (size_t)(g.n * own) * sizeof(float), c->stream),
		         "copying a rank's columns");
		TRY(nccl_all_gather(c->group->nccl, rank, to, c->window.gather, g.stride, c->stream,
		                    err));
		TRY(cuda_launch(c, c->m->place_ranks, "llmc_place_ranks", (int64_t[3]){ g.n, 1, 1 },
		                LLMC_LANE_THREADS, 1, 0, PLAIN, &g, NULL, err));
	}
	return LLMC_OK;
}

static llmc_status
by_peers(CudaSession *c, const CudaStep *k, bool two, llmc_error *err)
{
	bool sum = k->step->op == OP_all_reduce;
	llmc_collective one = k->comm;
	CUfunction f = !sum ? c->m->all_gather : two ? c->m->all_reduce_two : c->m->all_reduce;

	return cuda_launch(c, f,
	                   !sum  ? "llmc_all_gather"
	                   : two ? "llmc_all_reduce_two_shot"
	                         : "llmc_all_reduce",
	                   (int64_t[3]){ LLMC_LANES, 1, 1 }, LLMC_LANE_THREADS, 1, 0, TOGETHER,
	                   &one, NULL, err);
}

llmc_status
cuda_collective_run(CudaSession *c, const CudaStep *k, CommAlgorithm algorithm, int64_t rows,
                    llmc_error *err)
{
	return algorithm == ALGO_NCCL ? by_nccl(c, k, rows, err)
	                              : by_peers(c, k, algorithm == ALGO_TWO_SHOT, err);
}

/* Rows that a collective covers. In the decode phase this is the row count of the graph for the
 * step's bucket, even when a probe makes this rank launch op by op: another rank may launch the
 * graph at the same time. */
static int64_t
rows_of_graph(const CudaSession *c, const CudaStep *k, const int64_t sym[SYM_COUNT])
{
	int64_t bucket = sym[SYM_n_tok];

	if (k < c->step[0] || k >= c->step[0] + c->s->plan->phase[0].n_step)
		return sym[k->of_out ? SYM_n_out : SYM_n_tok];
	for (int i = c->n_bucket - 1; i >= 0 && c->bucket[i] >= sym[SYM_n_tok]; i--)
		bucket = c->bucket[i];
	return k->of_out && bucket > c->s->sym[SYM_n_out] ? c->s->sym[SYM_n_out] : bucket;
}

llmc_status
cuda_collective_launch(CudaSession *c, CudaStep *k, const int64_t sym[SYM_COUNT], llmc_error *err)
{
	const CudaGroup *g = c->group;

	if (k->step->op == OP_stage_in) /* received by pipeline_stages.c */
		return LLMC_OK;
	if (k->step->op == OP_send || k->step->op == OP_recv)
		return cuda_crossing_launch(c, k, sym[SYM_n_tok], err);
	const int64_t rows = rows_of_graph(c, k, sym);
	unsigned set = g ? g->set : 0;
	if (cuda_uses_host_comm(c) && !g)
		return cuda_host_comm_launch(c, k, rows, err);
	if (k->step->op == OP_all_gather &&
	    set & 1u << ALGO_ONE_SHOT) /* a gather has only the one-shot algorithm */
		set &= ~(1u << ALGO_TWO_SHOT);
	return cuda_collective_run(
	    c, k,
	    set ? comm_algorithm_best(&g->algorithms, set,
	                              rows * k->comm.width * (int64_t)sizeof(float))
	        : ALGO_ONE_SHOT,
	    rows, err);
}
