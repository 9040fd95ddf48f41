/* Gates: the wait inside the body of a decode kernel. A body is a template over the type of its
 * gate, so that one body can run in a launch of its own or in a persistent kernel:
 *
 *     template <class GATE> DEV void body(const llmc_call &p, GATE &gate)
 *
 * Before gate.wait(), a body may read weights and data written before the step, and may write only
 * shared memory. After gate.wait(), the results of the previous op are visible. All threads of the
 * CTA call wait() once, at one call site, on every path. */
#ifndef LLMC_CUDA_RUNTIME_GATE_H
#define LLMC_CUDA_RUNTIME_GATE_H

#include "cuda/ptx/ptx.h"

/* Gate for one launch per op: waits by programmatic dependent launch */
struct pdl_gate {
	__device__ __forceinline__ void
	wait()
	{
		PDL_WAIT();
		PDL_LAUNCH();
	}
};

#endif
