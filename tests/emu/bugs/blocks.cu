// Planted bugs between blocks, clusters and kernels
struct Args { float *a, *b, *c; int n; unsigned *u; };

/* Split-KV attention: the combining block reads parts that the others have not finished. */
extern "C" __global__ void
combine_early(Args a)
{
	struct S { unsigned last; };
	SHARED(S, s);
	a.b[blockIdx.x * 128 + threadIdx.x] = a.a[threadIdx.x]; // combine_early
	if (!BUG) {
		__syncthreads();
		if (threadIdx.x == 0)
			s.last = atom_add_acq_rel_gpu(a.u, 1u) == gridDim.x - 1;
		__syncthreads();
	} else if (threadIdx.x == 0) {
		s.last = blockIdx.x == gridDim.x - 1;
	}
	__syncthreads();
	if (s.last) {
		float v = 0;
		for (unsigned i = 0; i < gridDim.x; i++)
			v += a.b[i * 128 + threadIdx.x]; // combine_early
		a.c[threadIdx.x] = v;
	}
}

/* Last block to arrive: thread 0 increments the counter before the block has written. */
extern "C" __global__ void
count_early(Args a)
{
	struct S { unsigned last; };
	SHARED(S, s);
	a.b[blockIdx.x * 128 + threadIdx.x] = a.a[threadIdx.x]; // count_early
	if (!BUG)
		__syncthreads();
	if (threadIdx.x == 0)
		s.last = atom_add_acq_rel_gpu(a.u, 1u) == gridDim.x - 1;
	__syncthreads();
	if (s.last) {
		float v = 0;
		for (unsigned i = 0; i < gridDim.x; i++)
			v += a.b[i * 128 + threadIdx.x]; // count_early
		a.c[threadIdx.x] = v;
	}
}

/* The counter's atomic has block scope only. */
extern "C" __global__ void
count_scope(Args a)
{
	struct S { unsigned last; };
	SHARED(S, s);
	a.b[blockIdx.x * 128 + threadIdx.x] = a.a[threadIdx.x]; // count_scope
	__syncthreads();
	if (threadIdx.x == 0)
		s.last = (BUG ? atom_add_acq_rel_cta(a.u, 1u) : atom_add_acq_rel_gpu(a.u, 1u)) == gridDim.x - 1; // count_scope
	__syncthreads();
	if (s.last) {
		float v = 0;
		for (unsigned i = 0; i < gridDim.x; i++)
			v += a.b[i * 128 + threadIdx.x]; // count_scope
		a.c[threadIdx.x] = v;
	}
}

/* Only a number is passed on, by atomics whose scope does not contain both blocks. */
extern "C" __global__ void
atomic_scope(Args a)
{
	if (threadIdx.x == 0) {
		if (BUG)
			atom_add_relaxed_cta(a.u, 1u); // atomic_scope
		else
			atom_add_relaxed_gpu(a.u, 1u);
	}
}

/* The flag is read with a relaxed load, then plain data is read. */
extern "C" __global__ void
relaxed_flag(Args a)
{
	if (threadIdx.x)
		return;
	if (blockIdx.x == 0) {
		a.b[0] = 5; // relaxed_flag
		st_release_gpu(a.u, 1u);
	} else {
		if (BUG)
			while (ld_relaxed_gpu(a.u) != 1)
				;
		else
			while (ld_acquire_gpu(a.u) != 1)
				;
		a.c[0] = a.b[0]; // relaxed_flag
	}
}

/* One thread waits for the flag, the others read without a barrier after that. */
extern "C" __global__ void
flag_others(Args a)
{
	if (blockIdx.x == 0) {
		a.b[threadIdx.x] = 5; // flag_others
		__syncthreads();
		if (threadIdx.x == 0)
			st_release_gpu(a.u, 1u);
	} else {
		if (threadIdx.x == 0)
			while (ld_acquire_gpu(a.u) != 1)
				;
		if (!BUG)
			__syncthreads();
		a.c[threadIdx.x] = a.b[threadIdx.x]; // flag_others
	}
}

/* The flag is a plain store after a fence. */
extern "C" __global__ void
plain_flag(Args a)
{
	if (threadIdx.x)
		return;
	if (blockIdx.x == 0) {
		a.b[0] = 5;
		__threadfence();
		if (BUG)
			*a.u = 1; // plain_flag
		else
			st_relaxed_gpu(a.u, 1u);
	} else {
		while (ld_acquire_gpu(a.u) != 1) // plain_flag
			;
		a.c[0] = a.b[0];
	}
}

/* A lock is released without a fence. */
extern "C" __global__ void
unlock(Args a)
{
	if (threadIdx.x)
		return;
	while (atomicCAS(a.u, 0u, 1u) != 0)
		;
	__threadfence();
	a.c[0] += 1; // unlock
	if (!BUG)
		__threadfence();
	atomicExch(a.u, 0u);
}

/* Stores of two CTAs overlap by 8 elements. */
extern "C" __global__ void
tiles_overlap(Args a)
{
	a.c[blockIdx.x * (BUG ? 120 : 128) + threadIdx.x] = blockIdx.x; // tiles_overlap
}

/* The output of one block is the input of another, in place. */
extern "C" __global__ void
in_place(Args a)
{
	int i = blockIdx.x * 128 + threadIdx.x;
	float v = a.b[BUG ? (i + 1) % (128 * gridDim.x) : i]; // in_place
	a.b[i] = v; // in_place
}

extern "C" __global__ void
grid_one_thread(Args a)
{
	if (!BUG || threadIdx.x == 0)
		grid_sync(); // grid_one_thread
	a.c[blockIdx.x * 128 + threadIdx.x] = 1;
}

extern "C" __global__ void
grid_plain(Args a)
{
	if (BUG)
		grid_sync(); // grid_plain
	a.c[blockIdx.x * 128 + threadIdx.x] = 1;
}

/* A pointer to shared memory is passed to another block. */
extern "C" __global__ void
shared_pointer(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 1;
	__syncthreads();
	float **p = (float **)a.b;
	if (blockIdx.x == 0 && threadIdx.x == 0)
		*p = s.x;
	grid_sync();
	a.c[blockIdx.x * 128 + threadIdx.x] = (BUG ? *p : s.x)[threadIdx.x]; // shared_pointer
	grid_sync();
}

/* ---- clusters ---- */

/* Accesses the neighbour's shared memory before the neighbour has started. */
extern "C" __global__ void
peer_early(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	if (!BUG)
		cluster_sync();
	cluster_map(s.x, cluster_rank() ^ 1)[threadIdx.x] = a.a[threadIdx.x]; // peer_early
	cluster_sync();
	a.c[blockIdx.x * 128 + threadIdx.x] = s.x[threadIdx.x];
}

/* A block exits while its neighbour may still write to it: no barrier after the last access. */
extern "C" __global__ void
peer_leave(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 1;
	cluster_sync();
	a.c[blockIdx.x * 128 + threadIdx.x] = cluster_map(s.x, cluster_rank() ^ 1)[threadIdx.x]; // peer_leave
	if (!BUG)
		cluster_sync();
}

extern "C" __global__ void
peer_barrier(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	cluster_sync();
	cluster_map(s.x, cluster_rank() ^ 1)[threadIdx.x] = a.a[threadIdx.x]; // peer_barrier
	if (BUG)
		__syncthreads();
	else
		cluster_sync();
	a.c[blockIdx.x * 128 + threadIdx.x] = s.x[threadIdx.x]; // peer_barrier
	cluster_sync();
}

extern "C" __global__ void
peer_range(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 1;
	cluster_sync();
	a.c[blockIdx.x * 128 + threadIdx.x] = cluster_map(s.x, BUG ? cluster_rank() + 1 : cluster_rank())[threadIdx.x]; // peer_range
	cluster_sync();
}

/* Arrives without waiting. */
extern "C" __global__ void
peer_no_wait(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 1; // peer_no_wait
	cluster_arrive();
	if (!BUG)
		cluster_wait();
	a.c[blockIdx.x * 128 + threadIdx.x] = cluster_map(s.x, cluster_rank() ^ 1)[threadIdx.x]; // peer_no_wait
	if (BUG)
		cluster_wait();
	cluster_sync();
}

extern "C" __global__ void
peer_half(Args a)
{
	if (!BUG || threadIdx.x < 64)
		cluster_sync(); // peer_half
	a.c[blockIdx.x * 128 + threadIdx.x] = 1;
}

/* A release with cluster scope, to a block of another cluster */
extern "C" __global__ void
scope_cluster(Args a)
{
	if (threadIdx.x)
		return;
	if (blockIdx.x == 0) {
		a.b[0] = 5; // scope_cluster
		if (BUG)
			st_release_cluster(a.u, 1u); // scope_cluster
		else
			st_release_gpu(a.u, 1u);
	} else if (blockIdx.x == 2) {
		while (ld_acquire_gpu(a.u) != 1) // scope_cluster
			;
		a.c[0] = a.b[0]; // scope_cluster
	}
}

/* ---- dependent kernels: produce runs first, then the kernel of the case ---- */

extern "C" __global__ void
produce(Args a)
{
	griddep_launch();
	griddep_wait();
	a.b[threadIdx.x] = a.a[threadIdx.x] + 1; // depend_copy depend_branch depend_atomic depend_store
}

/* A copy of the predecessor's output is issued before the wait. */
extern "C" __global__ void
depend_copy(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	if (!BUG)
		griddep_wait();
	if (threadIdx.x < 32)
		cp_async_16(s.x + 4 * threadIdx.x, a.b + 4 * threadIdx.x); // depend_copy
	if (BUG)
		griddep_wait();
	cp_async_wait_all();
	__syncthreads();
	a.c[threadIdx.x] = s.x[threadIdx.x]; // depend_copy
}

/* Half of the block has no rows and does not wait, but it writes. */
extern "C" __global__ void
depend_branch(Args a)
{
	if (!BUG || threadIdx.x < 64)
		griddep_wait();
	a.b[threadIdx.x] = 0; // depend_branch
}

/* A counter that the predecessor also uses */
extern "C" __global__ void
depend_store(Args a)
{
	float v = a.a[threadIdx.x];
	if (BUG)
		a.b[threadIdx.x] = v; // depend_store
	griddep_wait();
	if (!BUG)
		a.b[threadIdx.x] = v;
}

/* The first block writes a norm for the others within one launch; later blocks read it at once. */
extern "C" __global__ void
norm_for_all(Args a)
{
	if (blockIdx.x == 0 && threadIdx.x == 0)
		a.b[0] = a.a[0] * a.a[0]; // norm_for_all
	if (BUG || blockIdx.x == 0)
		a.c[blockIdx.x * 128 + threadIdx.x] = BUG || threadIdx.x == 0 ? a.b[0] : 0; // norm_for_all
}

/* One block appends the cache's new row, and all blocks read it. */
extern "C" __global__ void
append_and_read(Args a)
{
	int pos = 40;
	float v = 0;
	if (blockIdx.x == 0)
		a.b[pos * 32 + lane_id()] = a.a[lane_id()]; // append_and_read
	for (int j = 0; j < pos + (BUG || blockIdx.x == 0); j++)
		v += a.b[j * 32 + lane_id()]; // append_and_read
	a.c[blockIdx.x * 32 + lane_id()] = v;
}
