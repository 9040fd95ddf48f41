/* Pipeline stages on GPUs of one process, one GPU per stage or per rank of a stage. The residual
 * stream of a step's rows goes to the next stage through pinned host memory and the pipes of
 * comm.h, from each rank to its peer in the next stage. A stage receives before the step's kernels
 * and sends after them. The logits of the last stage go the same way, from its first rank to rank
 * 0. Decode graphs do not contain these copies. Rows of a draft head also cross pinned memory: the
 * rows that come with its tokens, and the rows that a plan returns to the host. */
#include "runtime/cuda/cuda_session.h"

llmc_status
cuda_stage_bind(CudaSession *c, int phase, int i, llmc_error *err)
{
	const PlanStep *st = &c->s->plan->phase[phase].step[i];

	/* the rows are copied before the first kernel runs, so stage_in must be the first step */
	if (i > 0)
		return error_set(
		    err, LLMC_E_INPUT,
		    "phase %s: %s is step %d, but input from the previous stage must be "
		    "the first step on a GPU",
		    c->s->plan->phase[phase].id, op_info[st->op].name, i);
	c->stage_in[phase] = cuda_address(session_argument(c->s, &st->arg[ARG(stage_in, y)]));
	return LLMC_OK;
}

static size_t
stream_bytes(const Session *s)
{
	return (size_t)s->size->n_tok * (size_t)s->plan->hidden * sizeof(float);
}

static size_t
given_bytes(const Session *s)
{
	return (size_t)s->size->n_tok * (size_t)plan_row_width(s->plan) * sizeof(float);
}

llmc_status
cuda_stage_receive(CudaSession *c, int phase, llmc_error *err)
{
	const Session *s = c->s;
	CudaDevice *d = &c->m->dev;

	/* steps in flight may still read the buffer */
	if (s->rows_in && s->plan->vision != VISION_NONE)
		CUDA_TRY(d, d->api.stream_sync(c->stream), "waiting for an earlier step");
	if (s->rows_in)
		session_given(s, c->received);
	else if (!s->plan->stage)
		return LLMC_OK;
	else if (!comm_pipe_receive(s->comm, c->received, stream_bytes(s)))
		return comm_error(s->comm, err);
	CUDA_TRY(d,
	         d->api.copy_up(c->stage_in[phase], c->received,
	                        s->rows_in ? given_bytes(s) : stream_bytes(s), c->stream),
	         "copying what the stage before hands on to the GPU");
	return LLMC_OK;
}

llmc_status
cuda_stage_fetch(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const Plan *p = c->s->plan;

	if (p->outputs_rows)
		CUDA_TRY(d,
		         d->api.copy_down(
		             c->stage_out, cuda_address(c->s->slot[p->buffer[p->rows].slot]),
		             (size_t)c->s->size->n_tok * (size_t)plan_rows_width(p) * sizeof(float),
		             c->stream),
		         "copying rows for a draft head from the GPU");
	if (plan_hands_on(p))
		CUDA_TRY(d,
		         d->api.copy_down(c->stage_out, cuda_address(c->st.logits),
		                          stream_bytes(c->s), c->stream),
		         "copying what the next stage gets from the GPU");
	return LLMC_OK;
}

llmc_status
cuda_stage_send(CudaSession *c, llmc_error *err)
{
	const Session *s = c->s;
	const bool on = plan_hands_on(s->plan);

	if (s->plan->stages < 2 || (!on && s->plan->rank > 0))
		return LLMC_OK;
	const size_t logits =
	    (size_t)s->size->n_out * (size_t)plan_out_width(s->plan) * sizeof(float);
	return comm_pipe_send(s->comm, on ? c->stage_out : c->logits, on ? stream_bytes(s) : logits)
	           ? LLMC_OK
	           : comm_error(s->comm, err);
}
