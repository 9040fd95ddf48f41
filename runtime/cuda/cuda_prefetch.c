/* Slices of weights that decode kernels prefetch to L2 (templates/cuda/runtime/prefetch.h). The
 * plan names tensors and bytes. This file scales both to the device: to the number of CTAs that
 * prefetch, and to the share of L2 that prefetched bytes may fill. */
#include "runtime/cuda/cuda_session.h"

enum { LINE = 128, L2_SHARE = 4 /* share of L2 for prefetched bytes: a quarter */ };

static int64_t
lines(int64_t bytes)
{
	return bytes / LINE * LINE;
}

llmc_prefetch
cuda_prefetch_slices(const void *at, int64_t tensor_bytes, const PlanPrefetch *f, int64_t budget,
                     int64_t allowed, int n_sm)
{
	/* The plan's window, scaled to a smaller L2. Budgets are far below 2^31 bytes. */
	const int64_t most = allowed < budget ? allowed : budget,
	              from = f->first / LINE * most / budget * LINE,
	              to = (f->first + f->bytes) / LINE * most / budget * LINE;
	int64_t n = (int64_t)n_sm * f->runs;

	if (f->experts) {
		const int64_t one = tensor_bytes / f->experts,
		              many = one > 0 ? (to - from + one - 1) / one : 0,
		              share = many > 0 ? (to - from) / many / n_sm : 0;
		return (llmc_prefetch){ .at = at,
			                .stride = one,
			                .bytes = (unsigned)lines(share),
			                .n = lines(share) > 0 ? (int)many : 0 };
	}
	if (n > (to - from) / LINE) /* at least one line per slice */
		n = (to - from) / LINE;
	if (n < 1)
		return (llmc_prefetch){ 0 };
	const int64_t stride = lines(tensor_bytes / n), first = lines(from / n),
	              last = lines(to / n) < stride ? lines(to / n) : stride;
	if (last <= first)
		return (llmc_prefetch){ 0 };
	return (llmc_prefetch){ .at = (const unsigned char *)at + first,
		                .stride = stride,
		                .bytes = (unsigned)(last - first),
		                .n = (int)n };
}

void
cuda_bind_prefetch(const CudaSession *c, CudaStep *k)
{
	const Session *s = c->s;
	int n = 0;

	for (int i = 0; i < k->step->n_prefetch; i++) {
		const PlanPrefetch *f = &k->step->prefetch[i];
		const PlanRef tensor = { .kind = REF_TENSOR, .index = f->tensor };
		const llmc_prefetch slices = cuda_prefetch_slices(
		    session_argument(s, &tensor), plan_tensor_bytes(&s->plan->tensor[f->tensor]), f,
		    s->plan->l2_budget, c->m->dev.l2_bytes / L2_SHARE, c->m->dev.n_sm);
		if (f->experts)
			k->call.experts = slices;
		else if (n < LLMC_PREFETCHES)
			k->call.next[n++] = slices;
	}
}
