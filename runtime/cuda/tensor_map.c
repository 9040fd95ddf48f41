/* Tensor maps of steps: how TMA of sm_90 and later sees the memory of an argument. All inputs are
 * fixed for the life of a session, so maps are built once. */
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cuda_session.h"

enum { MAP_U16 = 1, MAP_L2_128 = 2 }; /* CUtensorMapDataType, CUtensorMapL2promotion */

/* Bytes of an argument's memory; -1: it has none. */
static int64_t
argument_bytes(const Session *s, const PlanRef *r)
{
	const Plan *p = s->plan;
	int64_t n;

	switch (r->kind) {
	case REF_TENSOR:
		return plan_tensor_bytes(&p->tensor[r->index]);
	case REF_BUFFER:
		n = plan_extent_elems(&p->buffer[r->index].extent, s->sym);
		return n < 0 ? -1 : n * dtype_info(p->buffer[r->index].dtype)->block_bytes;
	case REF_POOL:
		return (int64_t)kv_pool_pages(&s->kv, r->index) *
		       plan_layer_page_bytes(&p->pool[r->index]);
	case REF_NONE:
	case REF_ROPE:
		break;
	}
	return -1;
}

static llmc_status
make_map(CudaSession *c, const CudaStep *k, int i, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	const PlanMap *m = &k->kernel->map[i];
	int64_t bytes = argument_bytes(c->s, &k->step->arg[m->arg]);
	uint64_t dim[2] = { (uint64_t)m->cols, bytes < 0 ? 0 : (uint64_t)(bytes / (2 * m->cols)) },
	         stride[1] = { (uint64_t)m->cols * 2 };
	unsigned box[2] = { (unsigned)m->box[0], (unsigned)m->box[1] }, step[2] = { 1, 1 };
	int swizzle = m->swizzle == 128 ? 3 : m->swizzle / 32;

	if (!dim[1])
		return error_set(err, LLMC_E_INPUT,
		                 "op %s (layer %d): the plan maps argument %s, which has no memory "
		                 "for a row of %lld elements",
		                 op_info[k->step->op].name, k->step->layer,
		                 k->kernel->arg[m->arg].name, (long long)m->cols);
	if (!d->api.tensor_map)
		return error_set(
		    err, LLMC_E_MISSING,
		    "the NVIDIA driver is too old for this plan: it has no tensor maps "
		    "(cuTensorMapEncodeTiled); update the driver to 525 or newer");
	CUDA_TRY(d,
	         d->api.tensor_map(k->maps->map[i], MAP_U16, 2, k->call.a[m->arg], dim, stride, box,
	                           step, 0, swizzle, MAP_L2_128, 0),
	         "mapping argument %s of op %s (layer %d)", k->kernel->arg[m->arg].name,
	         op_info[k->step->op].name, k->step->layer);
	return LLMC_OK;
}

llmc_status
cuda_bind_maps(CudaSession *c, llmc_error *err)
{
	size_t n = 0;

	for (int ph = 0; ph < 2; ph++)
		for (int i = 0; i < c->s->plan->phase[ph].n_step; i++)
			n += c->step[ph][i].kernel->n_map > 0;
	if (!n)
		return LLMC_OK;
	c->maps = aligned_alloc(_Alignof(CudaMaps), n * sizeof *c->maps);
	if (!c->maps)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	memset(c->maps, 0, n * sizeof *c->maps);
	n = 0;
	for (int ph = 0; ph < 2; ph++)
		for (int i = 0; i < c->s->plan->phase[ph].n_step; i++) {
			CudaStep *k = &c->step[ph][i];
			if (!k->kernel->n_map)
				continue;
			k->maps = &c->maps[n++];
			for (int j = 0; j < k->kernel->n_map; j++)
				TRY(make_map(c, k, j, err));
		}
	return LLMC_OK;
}
