/* A model on a GPU and the CPU (compiler/shard/partition.c). The stream copies a value that crosses
 * through pinned memory. A send is a copy to the host, then a host function that passes the rows
 * on. A recv is a host function that waits for the rows, then a copy to the GPU. Decode graphs
 * contain both, so a step of the whole model is one graph launch. The stream is in order, so one
 * buffer per direction is enough. */
#include "runtime/cuda/cuda_session.h"

#include <string.h>

static int64_t
width_of(const CudaStep *k)
{
	return step_int(k->step, "width");
}

llmc_status
cuda_crossing_open(CudaSession *c, llmc_error *err)
{
	const Session *s = c->s;
	CudaDevice *d = &c->m->dev;
	int64_t most[2] = { 1, 1 };
	void *p = NULL;

	if (s->plan->partitions < 2)
		return LLMC_OK;
	for (int ph = 0; ph < 2; ph++)
		for (int i = 0; i < s->plan->phase[ph].n_step; i++) {
			const CudaStep *k = &c->step[ph][i];
			const int back = k->step->op == OP_recv;
			if ((k->step->op == OP_send || back) && width_of(k) > most[back])
				most[back] = width_of(k);
		}
	const size_t out = (size_t)(s->sym[SYM_n_tok] * most[0]),
	             in = (size_t)(s->sym[SYM_n_tok] * most[1]);
	CUDA_TRY(
	    d, d->api.host_alloc(&p, (out + in) * sizeof(float), CU_HOST_PORTABLE | CU_HOST_MAPPED),
	    "pinning %zu MB for values of the CPU", (out + in) * sizeof(float) >> 20);
	c->crossing[0] = p;
	c->crossing[1] = c->crossing[0] + out;
	/* rows of a graph beyond those of the step are copied too */
	memset(p, 0, (out + in) * sizeof(float));
	return LLMC_OK;
}

void
cuda_crossing_close(CudaSession *c)
{
	if (c->crossing[0])
		CUDA_RELEASE(c->m->dev.api.host_free(c->crossing[0]));
	c->crossing[0] = NULL;
}

/* Host function in the stream: pass on or wait for the rows of the step, which may be fewer than
 * those of the graph. It cannot return an error: the caller checks after the step whether the group
 * has ended. */
static void
cross(void *user)
{
	const CudaStep *k = user;
	CudaSession *c = k->of;
	const Session *s = c->s;
	const size_t bytes = (size_t)(s->size->n_tok * width_of(k)) * sizeof(float);

	if (k->step->op == OP_send)
		(void)comm_pipe_send(s->comm, c->crossing[0], bytes);
	else
		(void)comm_pipe_receive(s->comm, c->crossing[1], bytes);
}

llmc_status
cuda_crossing_launch(CudaSession *c, CudaStep *k, int64_t rows, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const bool back = k->step->op == OP_recv;
	const CUdeviceptr at =
	    cuda_address(session_argument(c->s, &k->step->arg[back ? ARG(recv, y) : ARG(send, x)]));
	const size_t bytes = (size_t)(rows * width_of(k)) * sizeof(float);

	k->of = c;
	if (!back)
		CUDA_TRY(d, d->api.copy_down(c->crossing[0], at, bytes, c->stream),
		         "copying a value for the CPU from the GPU");
	CUDA_TRY(d, d->api.host_func(c->stream, cross, k), "queueing the hand-over to the CPU");
	if (back)
		CUDA_TRY(d, d->api.copy_up(at, c->crossing[1], bytes, c->stream),
		         "copying a value of the CPU to the GPU");
	return LLMC_OK;
}
