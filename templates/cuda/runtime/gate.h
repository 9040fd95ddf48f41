/* Waits of the body of a decode kernel. A body is written once, over the type of its gate:
 *
 *     template <class GATE> DEV void body(const llmc_call &p, GATE &gate)
 *
 * Before gate.wait() it reads weights and what was written before the step, and writes only shared
 * memory. After gate.wait() the results of the op before are visible. All threads of the CTA call
 * wait() once, at one call site, on every path. */
#ifndef LLMC_CUDA_RUNTIME_GATE_H
#define LLMC_CUDA_RUNTIME_GATE_H

#include "cuda/ptx/ptx.h"

/* One launch per op: the wait of programmatic dependent launch */
struct pdl_gate {
	__device__ __forceinline__ void
	wait()
	{
		PDL_WAIT();
		PDL_LAUNCH();
	}
};

#endif
