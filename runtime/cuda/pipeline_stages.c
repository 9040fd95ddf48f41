/* Pipeline stages on GPUs of one process, a GPU each or one for each rank that a stage is split
 * over: the residual stream of a step's rows goes from one to the next through pinned memory of the
 * host, by the pipes of the ranks (comm.h), from each to its fellow of the next stage, in front of
 * the step's kernels and behind them; so do the logits of the last stage, from its first rank to
 * rank 0. A decode graph has nothing of it. Rows of a head that guesses go the same way: those that
 * come with its tokens, and those that a plan hands out, to where the host reads them. */
#include "runtime/cuda/cuda_session.h"

llmc_status
cuda_stage_bind(CudaSession *c, int phase, int i, llmc_error *err)
{
	const PlanStep *st = &c->s->plan->phase[phase].step[i];

	/* what it brings is there before the first kernel runs */
	if (i > 0)
		return error_set(err, LLMC_E_INPUT,
		                 "phase %s: %s is step %d, a GPU takes what the stage before hands "
		                 "on in front of all others",
		                 c->s->plan->phase[phase].id, op_info[st->op].name, i);
	c->stage_in[phase] =
	    (CUdeviceptr)(uintptr_t)session_argument(c->s, &st->arg[ARG(stage_in, y)]);
	return LLMC_OK;
}

static size_t
stream_bytes(const Session *s)
{
	return (size_t)s->size->n_tok * (size_t)s->plan->hidden * sizeof(float);
}

llmc_status
cuda_stage_take(CudaSession *c, int phase, llmc_error *err)
{
	const Session *s = c->s;
	CudaDevice *d = &c->m->dev;

	if (s->given)
		session_given(s, c->came);
	else if (!s->plan->stage)
		return LLMC_OK;
	else if (!comm_pipe_receive(s->comm, c->came, stream_bytes(s)))
		return comm_error(s->comm, err);
	CUDA_TRY(d, d->api.copy_up(c->stage_in[phase], c->came, stream_bytes(s), c->stream),
	         "copying what the stage before hands on to the GPU");
	return LLMC_OK;
}

llmc_status
cuda_stage_fetch(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const Plan *p = c->s->plan;

	if (p->hands_rows)
		CUDA_TRY(d,
		         d->api.copy_down(
		             c->goes, (CUdeviceptr)(uintptr_t)c->s->slot[p->buffer[p->rows].slot],
		             stream_bytes(c->s), c->stream),
		         "copying rows for a head that guesses from the GPU");
	if (plan_hands_on(p))
		CUDA_TRY(d,
		         d->api.copy_down(c->goes, (CUdeviceptr)(uintptr_t)c->st.logits,
		                          stream_bytes(c->s), c->stream),
		         "copying what the next stage gets from the GPU");
	return LLMC_OK;
}

llmc_status
cuda_stage_hand(CudaSession *c, llmc_error *err)
{
	const Session *s = c->s;
	const bool on = plan_hands_on(s->plan);

	if (s->plan->stages < 2 || (!on && s->plan->rank > 0))
		return LLMC_OK;
	const size_t logits =
	    (size_t)s->size->n_out * (size_t)plan_out_width(s->plan) * sizeof(float);
	return comm_pipe_send(s->comm, on ? c->goes : c->logits, on ? stream_bytes(s) : logits)
	           ? LLMC_OK
	           : comm_error(s->comm, err);
}
