/* What kernels of experts share: the order in which a row's experts are summed. */
#ifndef LLMC_CUDA_MOE_H
#define LLMC_CUDA_MOE_H

#include "common/cuda_math.h"

/* The block's threads: order[i] is the place in id[0 .. K) of the expert with i lower ones before it */
template <int K> DEV void
moe_order(const int *id, int *order)
{
	for (int k = threadIdx.x; k < K; k += blockDim.x) {
		int before = 0;
		for (int o = 0; o < K; o++)
			before += id[o] < id[k] || (id[o] == id[k] && o < k);
		order[before] = k;
	}
}

#endif
