/* Persistent decode step: one cooperative kernel, a CTA per SM, runs the bodies of all ops.
 *
 *   CTA      for each task:  copy of the next task --cp.async--> shared
 *                            body: ring of weights filled | gate: wait for a counter | results
 *                            barrier; one thread adds 1 to the task's counter (release)
 *   gate     one thread polls the counter (acquire) until all CTAs have added 1; barrier
 *
 * All CTAs run all tasks in order, and each runs its share of a task. Shares are those of a launch
 * per op with one CTA per SM. A CTA that has finished its share of an op fills the ring of the next
 * op at once, because no grid has to end and no CTA has to start. The bodies, their order of
 * addition and their results are those of one launch per op.
 *
 * Counters are never reset: each grows by gridDim.x per step, and values are compared by their
 * difference, so they may wrap. At the start of a step all counters are equal. A CTA reads this
 * base value from the last counter. No CTA adds to the last counter before all CTAs have run the
 * previous task, so the counter cannot change while a CTA reads it. */
#ifndef LLMC_CUDA_RUNTIME_PERSISTENT_H
#define LLMC_CUDA_RUNTIME_PERSISTENT_H

#include "cuda/runtime/gate.h"
#include "cuda/runtime/step.h"

/* Gate that opens when counter `at` has reached `want`; at NULL: nothing to wait for */
struct count_gate {
	const unsigned *at;
	unsigned want;

	__device__ __forceinline__ void
	wait()
	{
		if (!at)
			return;
		if (threadIdx.x == 0)
			while ((int)(ld_acquire_gpu(at) - want) < 0)
				;
		__syncthreads();
	}
};

struct task_storage {
	llmc_task task[2]; /* the current one and the next */
	unsigned base;     /* value of all counters before this step */
};

/* Iterates over the tasks in one CTA of 256 threads. All threads call. */
struct task_loop {
	const llmc_tasks &all;
	task_storage &s;
	int at;

	__device__ __forceinline__
	task_loop(const llmc_tasks &all, task_storage &s)
	    : all(all), s(s), at(0)
	{
		fetch(0);
		if (threadIdx.x == 0)
			s.base = ld_acquire_gpu(all.count + all.task[all.n - 1].done);
		cp_async_wait_all();
		__syncthreads();
	}

	/* Issues the copy of task i, if there is one. */
	__device__ __forceinline__ void
	fetch(int i)
	{
		static_assert(sizeof(llmc_task) % 16 == 0, "copied in vectors");
		const int v = (int)threadIdx.x;

		if (i < all.n && v < (int)sizeof(llmc_task) / 16)
			cp_async_16((char *)&s.task[i & 1] + 16 * v,
			            (const char *)&all.task[i] + 16 * v);
		cp_async_commit();
	}

	__device__ __forceinline__ const llmc_task &
	task() const
	{
		return s.task[at & 1];
	}

	__device__ __forceinline__ count_gate
	gate() const
	{
		const int wait = task().wait;

		return { wait < 0 ? (const unsigned *)0 : all.count + wait, s.base + gridDim.x };
	}

	/* Must be called before the body of the current task. */
	__device__ __forceinline__ void
	begin()
	{
		fetch(at + 1);
	}

	/* Publishes the results of the current task and advances to the next. Returns false if it
	 * was the last. */
	__device__ __forceinline__ bool
	next()
	{
		unsigned *const done =
		    all.count + task().done; /* saved, because the task's slot is reused at once */

		/* A body that returned early has copies in flight, and other warps may still read
		 * shared memory. */
		cp_async_wait_all();
		__syncthreads();
		if (threadIdx.x == 0)
			atom_add_release_gpu(done, 1u);
		return ++at < all.n;
	}
};

#endif
