/* Times of the ops of a step. The launches of one kernel in all layers are repeated in a graph,
 * which is replayed: each launch reads its own layer's weights, so caches help no more than in a
 * whole step, and the host is not involved. */

#include "base/clock.h"
#include "runtime/cuda/cuda_session.h"

enum { LAUNCHES = 64, REPLAYS = 4 };
static const double SHORT =
    10e-3; /* seconds: kernels that take longer need no repetition to hide the cost of a launch */

static llmc_status
replay(CudaSession *c, CUgraphExec exec, int n, double *seconds, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	double t = clock_now();

	for (int i = 0; i < n; i++)
		CUDA_TRY(d, d->api.graph_launch(exec, c->stream), "launching one op again");
	CUDA_TRY(d, d->api.stream_sync(c->stream), "running one op again");
	*seconds = (clock_now() - t) / n;
	return LLMC_OK;
}

/* Seconds of all launches of a kernel in one step, from `times` rounds in one graph. */
static llmc_status
measure(CudaSession *c, int phase, const PlanKernel *kernel, int times, int replays,
        double *seconds, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	CUgraph g = NULL;
	CUgraphExec exec = NULL;
	llmc_status status = LLMC_OK;

	CUDA_TRY(d, d->api.capture_begin(c->stream, CU_CAPTURE_THREAD_LOCAL), "capturing one op");
	for (int i = 0; i < times && status == LLMC_OK; i++)
		status = cuda_launch_again(c, phase, kernel, err);
	CUresult r = d->api.capture_end(c->stream, &g);
	if (status == LLMC_OK && r == CU_OK)
		r = d->api.graph_make(&exec, g, 0);
	if (g)
		CUDA_RELEASE(d->api.graph_destroy(g));
	if (status == LLMC_OK && r != CU_OK)
		status = cuda_error(d, r, err, "capturing one op");
	if (status == LLMC_OK && replays > 1)
		status = replay(c, exec, 1, seconds, err); /* the first replay uploads the graph */
	if (status == LLMC_OK)
		status = replay(c, exec, replays, seconds, err);
	*seconds /= times;
	if (exec)
		CUDA_RELEASE(d->api.graph_exec_destroy(exec));
	return status;
}

/* Rounds of n launches that make a graph long enough: LAUNCHES launches, or fewer if they take
 * longer than SHORT. */
static int
rounds(int n, double seconds)
{
	int most = (LAUNCHES + n - 1) / n;

	return seconds * most < SHORT ? most : 1 + (int)(SHORT / seconds);
}

llmc_status
cuda_op_times(Session *s, int phase, llmc_op_time_fn fn, void *user, llmc_error *err)
{
	CudaSession *c = s->on;
	int n_step = c->s->plan->phase[phase].n_step;

	if (c->s->comm)
		return error_set(err, LLMC_E_MISSING,
		                 "single ops are not measured while GPUs share a model: they wait "
		                 "for each other");
	const int64_t rows = c->s->size->n_tok;
	const bool adapted = cuda_has_adapter(s);

	for (int i = 0; i < n_step; i++) {
		const CudaStep *k = cuda_step_for(c, phase, i, rows);
		llmc_op_time t = { .op = op_info[k->step->op].name,
			           .library = phase == 1 && cublaslt_choice(c, k, rows) };
		bool seen = k->slots && !adapted; /* skipped steps take no time */
		for (int j = 0; j < n_step; j++) {
			const CudaStep *other = cuda_step_for(c, phase, j, rows);
			if (other->kernel != k->kernel || (other->slots && !adapted))
				continue;
			seen = seen || j < i;
			session_op_cost(s, other->step, &t);
		}
		if (seen)
			continue;
		TRY(measure(c, phase, k->kernel, 1, 1, &t.seconds, err));
		if (t.seconds < SHORT)
			TRY(measure(c, phase, k->kernel, rounds(t.n, t.seconds), REPLAYS,
			            &t.seconds, err));
		fn(user, &t);
	}
	return LLMC_OK;
}
