/* Ranks that are processes with one GPU each and have no NCCL (rank_processes.c): collectives go
 * through host memory and comm.h, which adds in the order of ranks over any transport. A collective
 * is a copy to the host, a host function that the stream calls and that runs the collective, and a
 * copy back; decode graphs contain all three. The order of ranks makes the bits equal those of
 * ranks that are threads (rank_group.c). */
#include "runtime/cuda/cuda_session.h"
#include "runtime/cuda/comm_algorithm.h"

#include <stdlib.h>
#include <string.h>

bool
cuda_uses_host_comm(const CudaSession *c)
{
	return c->s->rt->world && c->s->plan->ranks > 1;
}

/* Number of floats that a rank contributes to a collective of `rows` rows */
static int64_t
send_floats(const CudaSession *c, const CudaStep *k, int64_t rows)
{
	const int rank = c->s->plan->rank;

	return rows * (k->step->op == OP_all_reduce
	                   ? k->comm.width
	                   : k->comm.first[rank + 1] - k->comm.first[rank]);
}

static int64_t
recv_floats(const CudaStep *k, int64_t rows)
{
	return rows * k->comm.width;
}

llmc_status
cuda_host_comm_open(CudaSession *c, llmc_error *err)
{
	const Session *s = c->s;
	CudaDevice *d = &c->m->dev;
	int64_t in = 1, out = 1;
	void *p = NULL;

	if (!cuda_uses_host_comm(c) || c->m->nccl)
		return LLMC_OK;
	if (!peer_algorithms())
		return error_set(err, LLMC_E_INPUT,
		                 "LLMC_PEER_SUMS is \"%s\", expected auto, one-shot or two-shot",
		                 getenv("LLMC_PEER_SUMS"));
	for (int ph = 0; ph < 2; ph++)
		for (int i = 0; i < s->plan->phase[ph].n_step; i++) {
			const CudaStep *k = &c->step[ph][i];
			if (k->step->op != OP_all_reduce && k->step->op != OP_all_gather)
				continue;
			const int64_t rows = s->sym[k->of_out ? SYM_n_out : SYM_n_tok];
			in = send_floats(c, k, rows) > in ? send_floats(c, k, rows) : in;
			out = recv_floats(k, rows) > out ? recv_floats(k, rows) : out;
		}
	CUDA_TRY(d,
	         d->api.host_alloc(&p, (size_t)(in + out) * sizeof(float),
	                           CU_HOST_PORTABLE | CU_HOST_MAPPED),
	         "pinning %zu MB for collectives", (size_t)(in + out) * sizeof(float) >> 20);
	c->comm_in = p;
	c->comm_out = c->comm_in + in;
	memset(p, 0, (size_t)(in + out) * sizeof(float));
	return LLMC_OK;
}

void
cuda_host_comm_close(CudaSession *c)
{
	if (c->comm_in)
		CUDA_RELEASE(c->m->dev.api.host_free(c->comm_in));
	c->comm_in = NULL;
}

/* Host function in the stream: run the collective for the rows of the step, which may be fewer than
 * those of the graph. It cannot return an error: the caller checks after the step whether the group
 * has ended. */
static void
host_exchange(void *user)
{
	const CudaStep *k = user;
	CudaSession *c = k->of;
	const Session *s = c->s;
	const int64_t rows = k->of_out ? s->size->n_out : s->size->n_tok;

	comm_set_position(s->comm, c->n_steps, k->step->layer, k->step->op);
	if (k->step->op == OP_all_reduce)
		(void)comm_all_reduce(s->comm, 0,
		                      &(CommReduce){ .x = c->comm_in,
		                                     .y = c->comm_out,
		                                     .scale = 1,
		                                     .rows = rows,
		                                     .width = k->comm.width });
	else
		(void)comm_all_gather(s->comm, 0,
		                      &(CommGather){ .x = c->comm_in,
		                                     .y = c->comm_out,
		                                     .rows = rows,
		                                     .width = k->comm.width,
		                                     .unit = step_int(k->step, "unit") });
}

llmc_status
cuda_host_comm_launch(CudaSession *c, CudaStep *k, int64_t rows, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const int64_t all = recv_floats(k, rows), room = c->window.room * c->s->plan->ranks;
	llmc_gathered g = { .c = k->comm, .from = c->window.gather, .ranks = 1 };

	if (rows <= 0)
		return LLMC_OK;
	k->of = c;
	CUDA_TRY(d,
	         d->api.copy_down(c->comm_in, cuda_address(k->comm.x),
	                          (size_t)send_floats(c, k, rows) * sizeof(float), c->stream),
	         "copying a rank's terms from the GPU");
	CUDA_TRY(d, d->api.host_func(c->stream, host_exchange, k),
	         "queueing the exchange with other ranks");
	if (k->step->op == OP_all_gather) {
		CUDA_TRY(d,
		         d->api.copy_up(cuda_address(k->comm.y), c->comm_out,
		                        (size_t)all * sizeof(float), c->stream),
		         "copying what ranks have joined to the GPU");
		return LLMC_OK;
	}
	/* the host only sums; the GPU adds biases and the residual after that */
	for (; g.at < all; g.at += g.n) {
		g.n = (int)(all - g.at < room ? all - g.at : room);
		g.stride = g.n;
		CUDA_TRY(d,
		         d->api.copy_up(cuda_address(c->window.gather), c->comm_out + g.at,
		                        (size_t)g.n * sizeof(float), c->stream),
		         "copying a sum of ranks to the GPU");
		TRY(cuda_launch(
		    c, c->m->add_ranks, "llmc_add_ranks",
		    (int64_t[3]){ (g.n + LLMC_LANE_THREADS - 1) / LLMC_LANE_THREADS, 1, 1 },
		    LLMC_LANE_THREADS, 1, 0, PLAIN, &g, NULL, err));
	}
	return LLMC_OK;
}
