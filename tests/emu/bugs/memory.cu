// Planted bugs in addresses and uninitialised memory
struct Args { float *a, *b, *c; int n; unsigned *u; };

extern "C" __global__ void
read_beyond(Args a)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < a.n - 1 + BUG)
		a.c[i] = a.a[i + 1 + (4096 - 512)]; // read_beyond
}

extern "C" __global__ void
write_beyond(Args a)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	a.c[i + 4096 - 512 + BUG] = 1; // write_beyond
}

extern "C" __global__ void
far_write(Args a)
{
	a.c[threadIdx.x + (BUG ? 1 << 26 : 0)] = 1; // far_write
}

extern "C" __global__ void
shared_beyond(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	float *p = s.x;
	p[threadIdx.x] = 0; // shared_beyond
	__syncthreads();
	a.c[threadIdx.x] = p[threadIdx.x + BUG]; // shared_beyond
}

extern "C" __global__ void
arena_beyond(Args a)
{
	SHARED_BYTES(arena);
	float *p = (float *)arena;
	p[threadIdx.x + BUG] = a.a[threadIdx.x]; // arena_beyond
	a.c[threadIdx.x] = p[threadIdx.x + BUG];
}

extern "C" __global__ void
array_overrun(Args a)
{
	struct S { float x[128], y[128]; };
	SHARED(S, s);
	s.y[threadIdx.x] = 0;
	s.x[threadIdx.x] = 1;
	__syncthreads();
	a.c[threadIdx.x] = s.x[threadIdx.x + BUG]; // array_overrun
}

extern "C" __global__ void
misaligned(Args a)
{
	uint4 v = ld_v4(a.a + 4 * threadIdx.x + BUG); // misaligned
	st_v4(a.c + 4 * threadIdx.x, v);
}

extern "C" __global__ void
unwritten(Args a)
{
	if (!BUG || threadIdx.x != 77)
		a.b[threadIdx.x] = 1;
}

extern "C" __global__ void
reads_unwritten(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	if (!BUG || threadIdx.x < 100)
		s.x[threadIdx.x] = 1;
	__syncthreads();
	a.c[threadIdx.x] = s.x[threadIdx.x]; // reads_unwritten
}

extern "C" __global__ void
null_pointer(Args a)
{
	float *p = BUG ? (float *)(a.n - a.n + 0l) : a.c;
	p[threadIdx.x] = 1; // null_pointer
}

extern "C" __global__ void
other_stack(Args a)
{
	struct S { float *p; };
	SHARED(S, s);
	float local = a.a[threadIdx.x];
	if (threadIdx.x == 5)
		s.p = &local;
	__syncthreads();
	a.c[threadIdx.x] = BUG || threadIdx.x == 5 ? *s.p : 0; // other_stack
}

extern "C" __global__ void
division(Args a)
{
	a.c[threadIdx.x] = 100 / (a.n - 512 * BUG); // division
}

/* The host frees c before the launch. */
extern "C" __global__ void
after_free(Args a)
{
	a.c[threadIdx.x] = 1; // after_free
}

/* A vector through a plain pointer: one instruction on a device, several on the host */
extern "C" __global__ void
misaligned_plain(Args a)
{
	uint4 v = *(const uint4 *)(a.a + 4 * threadIdx.x + BUG); // misaligned_plain
	*(uint4 *)(a.c + 4 * threadIdx.x) = v;
}

extern "C" __global__ void
misaligned_store(Args a)
{
	float4 v = make_float4(1, 2, 3, 4);
	*(float4 *)(a.c + 4 * threadIdx.x + 2 * BUG) = v; // misaligned_store
	if (!BUG)
		a.b[threadIdx.x] = ((const float2 *)a.a)[threadIdx.x].y;
}

extern "C" __global__ void
misaligned_array(Args a)
{
	const float2 *p = (const float2 *)(a.a + BUG);
	float s = 0;
	for (int i = 0; i < 4; i++)
		s += p[4 * threadIdx.x + i].x; // misaligned_array
	a.c[threadIdx.x] = s;
}
