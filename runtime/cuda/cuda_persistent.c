/* Persistent decode steps: lists of tasks on the device
 * (templates/cuda/runtime/persistent.h, docs/internals/persistent-step.md). */
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cuda_session.h"

/* Number of buckets with a list of tasks: 1, 2 and 4 rows. Each list is built for the row count of
 * its bucket. */
enum { LISTS = 3 };
_Static_assert(1 << (LISTS - 1) == PLAN_PERSISTENT_ROWS, "a list per bucket");

void
cuda_persistent_lay_out(CudaSession *c, const Session *s, BumpAllocator *b)
{
	const int64_t n = s->plan->persistent.n_body ? s->plan->phase[0].n_step : 0;

	BUMP(b, c->task, LISTS * n);
	BUMP(b, c->task_count, n);
}

llmc_status
cuda_persistent_bind(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const Plan *p = c->s->plan;
	const size_t n = (size_t)p->phase[0].n_step;

	if (!c->persistent_rows)
		return LLMC_OK;
	llmc_task *list = calloc(LISTS * n, sizeof *list);
	if (!list)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	for (int b = 0; b < c->n_bucket && c->bucket[b] <= c->persistent_rows; b++)
		for (size_t i = 0; i < n; i++) {
			llmc_task *t = &list[(size_t)b * n + i];
			*t = (llmc_task){ .call = c->step[0][i].call,
				          .body = plan_body_of(&p->persistent,
				                               c->step[0][i].step->kernel),
				          .wait = (int)i - 1,
				          .done = (int)i };
			t->call.s.rows = c->bucket[b];
		}
	/* pageable memory: the driver has read it when the call returns */
	CUresult r =
	    d->api.copy_up(cuda_address(c->task), list, LISTS * n * sizeof *list, c->stream);
	free(list);
	CUDA_TRY(d, r, "copying the tasks of decode steps to the GPU");
	CUDA_TRY(d,
	         d->api.set8(cuda_address(c->task_count), 0, n * sizeof *c->task_count, c->stream),
	         "clearing counters");
	return LLMC_OK;
}
