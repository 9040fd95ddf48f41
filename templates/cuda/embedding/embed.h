/* Rows of an embedding table of any storage type. */
#ifndef LLMC_CUDA_EMBEDDING_EMBED_H
#define LLMC_CUDA_EMBEDDING_EMBED_H

#include "cuda/weights/weights.h"

/* y = scale * row `id` of w, or zero if the table has no such row. If x is given, it is added. All
 * threads of the CTA call. */
template <class W> DEV void
embed_row(const void *w, long long id, int rows, float scale, const float *x, float *y)
{
	const bool known = id >= 0 && id < rows;
	const unsigned char *row = (const unsigned char *)w + (known ? id : 0) * W::ROW;

	for (int u = threadIdx.x; u < W::UNITS; u += blockDim.x) {
		float v[W::UNIT];
		W::decode(W::load(row, u), u, v);
#pragma unroll
		for (int i = 0; i < W::UNIT; i++)
			if (i < W::width(u)) {
				const int c = W::column(u, i);
				const float e = known ? scale * v[i] : 0.0f;
				y[c] = x ? x[c] + e : e;
			}
	}
}

#endif
