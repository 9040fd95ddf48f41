/* Measures the read bandwidth of the device: reads every byte once, 16 bytes per load, eight loads
 * in flight per thread. Its one argument is passed by value. */
#include "cuda/ptx/ptx.h"

typedef struct llmc_read {
	const uint4 *p;
	unsigned long long n;
	unsigned *out;
} llmc_read;

extern "C" __global__ void __launch_bounds__(512)
llmc_read_all(const llmc_read r)
{
	unsigned sum = 0;
	unsigned long long step = (unsigned long long)gridDim.x * 512,
	                   i = (unsigned long long)blockIdx.x * 512 + threadIdx.x;

	for (; i + 7 * step < r.n; i += 8 * step) {
		uint4 v[8];
#pragma unroll
		for (int k = 0; k < 8; k++)
			v[k] = ld_v4_stream(r.p + i + k * step);
#pragma unroll
		for (int k = 0; k < 8; k++)
			sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	for (; i < r.n; i += step)
		sum += ld_v4_stream(r.p + i).x;
	if (sum == 0x9e3779b9u) /* never true, but the compiler cannot infer that */
		*r.out = sum;
}
