// Planted bugs in persistent kernels: tasks in order, separated by counters that only grow
struct Args { float *a, *b, *c; int n; unsigned *u; };
enum { THREADS = 128 };

/* Adds 1 to a counter when all threads of the block have stored. */
static __device__ void
arrive(unsigned *count)
{
	__syncthreads();
	if (threadIdx.x == 0)
		atom_add_release_gpu(count, 1u);
}

static __device__ void
wait(const unsigned *count, unsigned want)
{
	if (threadIdx.x == 0)
		while ((int)(ld_acquire_gpu(count) - want) < 0)
			;
	__syncthreads();
}

/* Block b's part of x = 2 a, y = x of the next block */
static __device__ float *
mine(float *x)
{
	return x + blockIdx.x * THREADS + threadIdx.x;
}
static __device__ float *
others(float *x)
{
	return x + (blockIdx.x + 1) % gridDim.x * THREADS + threadIdx.x;
}

/* The second task does not wait for the first. */
extern "C" __global__ void
step_no_wait(Args a)
{
	*mine(a.b) = 2 * *mine(a.a); // step_no_wait
	arrive(a.u);
	if (!BUG)
		wait(a.u, gridDim.x);
	*mine(a.c) = *others(a.b); // step_no_wait
}

/* It waits for one block too few. */
extern "C" __global__ void
step_count(Args a)
{
	*mine(a.b) = 2 * *mine(a.a); // step_count
	arrive(a.u);
	wait(a.u, gridDim.x - BUG);
	*mine(a.c) = *others(a.b); // step_count
}

/* It waits for the counter of a task before the one that it depends on. */
extern "C" __global__ void
step_order(Args a)
{
	*mine(a.c) = 0;
	arrive(a.u);
	wait(a.u, gridDim.x);
	*mine(a.b) = 2 * *mine(a.a); // step_order
	arrive(a.u + 1);
	wait(a.u + !BUG, gridDim.x);
	*mine(a.c) = *others(a.b); // step_order
}

/* The result of the third task overwrites the input of the second, which other blocks still
 * read. */
extern "C" __global__ void
step_reuse(Args a)
{
	*mine(a.b) = 2 * *mine(a.a);
	arrive(a.u);
	wait(a.u, gridDim.x);
	*mine(a.c) = *others(a.b); // step_reuse
	arrive(a.u + 1);
	if (!BUG)
		wait(a.u + 1, gridDim.x);
	*mine(a.b) = 1; // step_reuse
}

/* A thread that did not poll goes on at once. */
extern "C" __global__ void
step_one_waits(Args a)
{
	*mine(a.b) = 2 * *mine(a.a); // step_one_waits
	arrive(a.u);
	if (threadIdx.x == 0)
		while ((int)(ld_acquire_gpu(a.u) - gridDim.x) < 0)
			;
	if (!BUG)
		__syncthreads();
	*mine(a.c) = *others(a.b); // step_one_waits
}

/* The counter grows before the other warps have stored. */
extern "C" __global__ void
step_early(Args a)
{
	*mine(a.b) = 2 * *mine(a.a); // step_early
	if (!BUG)
		__syncthreads();
	if (threadIdx.x == 0)
		atom_add_release_gpu(a.u, 1u);
	wait(a.u, gridDim.x);
	*mine(a.c) = *others(a.b); // step_early
}

/* The counter grows without a release. */
extern "C" __global__ void
step_relaxed_add(Args a)
{
	*mine(a.b) = 2 * *mine(a.a); // step_relaxed_add
	__syncthreads();
	if (threadIdx.x == 0)
		BUG ? atom_add_relaxed_gpu(a.u, 1u) : atom_add_release_gpu(a.u, 1u);
	wait(a.u, gridDim.x);
	*mine(a.c) = *others(a.b); // step_relaxed_add
}

/* It is polled without an acquire. */
extern "C" __global__ void
step_relaxed_poll(Args a)
{
	*mine(a.b) = 2 * *mine(a.a); // step_relaxed_poll
	arrive(a.u);
	if (threadIdx.x == 0)
		while ((int)((BUG ? ld_relaxed_gpu(a.u) : ld_acquire_gpu(a.u)) - gridDim.x) < 0)
			;
	__syncthreads();
	*mine(a.c) = *others(a.b); // step_relaxed_poll
}

/* Counters wrap: values are compared, not their difference. The counter wraps to 0 when it
 * is full. */
extern "C" __global__ void
step_wrap(Args a)
{
	const unsigned base = 0u - gridDim.x, want = base + gridDim.x;

	*mine(a.b) = 2 * *mine(a.a); // step_wrap
	arrive(a.u);
	if (threadIdx.x == 0)
		while (BUG ? ld_acquire_gpu(a.u) + base < want
		           : (int)(ld_acquire_gpu(a.u) + base - want) < 0)
			;
	__syncthreads();
	*mine(a.c) = *others(a.b); // step_wrap
}

/* The second launch takes the counter of the last step for its own: it needs a base. */
extern "C" __global__ void
step_base(Args a)
{
	struct S { unsigned base; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		s.base = BUG ? 0 : ld_acquire_gpu(a.u + 1);
	__syncthreads();
	*mine(a.b) = 2 * *mine(a.a); // step_base
	arrive(a.u);
	wait(a.u, s.base + gridDim.x);
	*mine(a.c) = *others(a.b); // step_base
	arrive(a.u + 1);
}

/* The base is read from the first counter, which faster blocks have already increased: a slower
 * one waits for ever. */
extern "C" __global__ void
step_first_base(Args a)
{
	struct S { unsigned base; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		s.base = ld_acquire_gpu(a.u + !BUG);
	__syncthreads();
	*mine(a.b) = 2 * *mine(a.a);
	arrive(a.u);
	if (threadIdx.x == 0)
		while ((int)(ld_acquire_gpu(a.u) - (s.base + gridDim.x)) < 0) // step_first_base
			;
	__syncthreads();
	*mine(a.c) = *others(a.b);
	arrive(a.u + 1);
}

/* A task is copied to the slot of the current one, which other threads still read. */
extern "C" __global__ void
step_slot(Args a)
{
	struct S { float slot[2][4]; };
	SHARED(S, s);
	float sum = 0;
	if (threadIdx.x == 0)
		cp_async_16(s.slot[0], a.a);
	cp_async_wait_all();
	__syncthreads();
	for (int i = 0; i < 3; i++) {
		if (threadIdx.x == 0)
			cp_async_16(s.slot[(i + !BUG) & 1], a.a + 4 * (i + 1)); // step_slot
		sum += s.slot[i & 1][threadIdx.x & 3]; // step_slot
		cp_async_wait_all();
		__syncthreads();
	}
	*mine(a.c) = sum;
}

/* The next task is read before its copy has landed. */
extern "C" __global__ void
step_copy(Args a)
{
	struct S { float slot[2][4]; };
	SHARED(S, s);
	float sum = 0;
	if (threadIdx.x == 0)
		cp_async_16(s.slot[0], a.a);
	cp_async_wait_all();
	__syncthreads();
	for (int i = 0; i < 3; i++) {
		if (threadIdx.x == 0)
			cp_async_16(s.slot[(i + 1) & 1], a.a + 4 * (i + 1)); // step_copy
		sum += s.slot[i & 1][threadIdx.x & 3]; // step_copy
		if (!BUG)
			cp_async_wait_all();
		__syncthreads();
	}
	cp_async_wait_all();
	*mine(a.c) = sum;
}

/* A ring is filled while slower warps still read it as that of the task before. */
extern "C" __global__ void
step_ring(Args a)
{
	struct S { float ring[THREADS]; };
	SHARED(S, s);
	cp_async_4(&s.ring[threadIdx.x], mine(a.a));
	cp_async_wait_all();
	__syncthreads();
	*mine(a.b) = s.ring[THREADS - 1 - threadIdx.x]; // step_ring
	if (!BUG)
		__syncthreads();
	cp_async_4(&s.ring[threadIdx.x], mine(a.a) + THREADS * 4); // step_ring
	cp_async_wait_all();
	arrive(a.u);
	wait(a.u, gridDim.x);
	*mine(a.c) = *others(a.b) + s.ring[threadIdx.x];
}
