/* Launches one kernel on the stream of a session. */
#include "runtime/cuda/cuda_session.h"

#include <string.h>

llmc_status
cuda_launch(CudaSession *c, CUfunction f, const char *name, const int64_t grid[3], int block,
            int cluster, int64_t shared, LaunchEdge edge, void *arg, void *maps, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	CudaLaunchAttr attr[2];
	CudaLaunchConfig k = { .grid_x = (unsigned)grid[0],
		               .grid_y = (unsigned)grid[1],
		               .grid_z = (unsigned)grid[2],
		               .block_x = (unsigned)block,
		               .block_y = 1,
		               .block_z = 1,
		               .shared_bytes = (unsigned)shared,
		               .stream = c->stream,
		               .attr = attr };
	void *params[] = { arg, maps };

	if (grid[0] < 0 || grid[0] > INT32_MAX || grid[1] < 0 || grid[1] > 65535 || grid[2] < 0 ||
	    grid[2] > 65535)
		return error_set(err, LLMC_E_RANGE,
		                 "%s needs a grid of %lld x %lld x %lld CTAs, more than a GPU "
		                 "allows; lower --chunk or --seqs",
		                 name, (long long)grid[0], (long long)grid[1], (long long)grid[2]);
	memset(attr, 0, sizeof attr);
	if (cluster > 1) {
		attr[k.n_attr].id = CU_LAUNCH_CLUSTER;
		attr[k.n_attr].value.cluster.x = (unsigned)cluster;
		attr[k.n_attr].value.cluster.y = attr[k.n_attr].value.cluster.z = 1;
		k.n_attr++;
	}
	if (edge == PROGRAMMATIC && c->m->pdl) {
		attr[k.n_attr].id = CU_LAUNCH_PDL;
		attr[k.n_attr++].value.pdl = 1;
	}
	if (edge == TOGETHER) {
		attr[k.n_attr].id = CU_LAUNCH_COOPERATIVE;
		attr[k.n_attr++].value.cooperative = 1;
	}
	CUDA_TRY(d, d->api.launch(&k, f, params, NULL), "launching %s", name);
	return LLMC_OK;
}
