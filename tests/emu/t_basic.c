/* Correct kernels give correct results, with several seeds and in both modes (LLMC_EMU_SEED,
 * LLMC_EMU_MODE). */
#include "host.h"

typedef struct {
	CUdeviceptr a, b, c;
	int n;
	CUdeviceptr u;
} Args;
enum { N = 3000 };
static float x[N], y[N], z[N];

static float
bf(unsigned short h)
{
	unsigned u = (unsigned)h << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

static void
collectives(CUfunction f, Args a)
{
	unsigned u[352];
	OK(launch(f, 1, 32, 0, NULL, 0, &a));
	OK(down(u, a.u, sizeof u));
	for (unsigned l = 0; l < 32; l++) {
		CHECK(u[l] == 15);
		CHECK(u[32 + l] == (l ^ 1));
		CHECK(u[64 + l] == (l < 2 ? l : l - 2));
		CHECK(u[96 + l] == (l % 8 < 4 ? l + 4 : l));
		CHECK(u[128 + l] == 0xaaaaaaaau);
		CHECK(u[160 + l] == 0xffu << l / 8 * 8);
		CHECK(u[192 + l] == 496);
		CHECK(u[224 + l] == (unsigned)-9);
		CHECK(u[256 + l] == (l < 16 ? 7 : 23));
		CHECK(u[288 + l] == 0);
		CHECK(u[320 + l] == 0x06020400u + 1 + 10 + 1 - 1 + 2 + 3);
	}
}

static void
matrices(CUmodule m, Args a)
{
	unsigned short h[16 * 16 + 8 * 16];
	signed char b[16 * 32 + 8 * 32];
	float c[128];

	for (int i = 0; i < 384; i++)
		h[i] = (unsigned short)(0x3f80 + (i * 37 % 64) - (i % 3 ? 0 : 0x8000));
	OK(up(a.u, h, sizeof h));
	OK(launch(function(m, "mma"), 1, 32, 768, NULL, 0, &a));
	OK(down(c, a.c, sizeof c));
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 8; j++) {
			float want = 0;
			for (int k = 0; k < 16; k++)
				want += bf(h[i * 16 + k]) * bf(h[256 + j * 16 + k]);
			CHECK(c[i * 8 + j] == want);
		}
	for (int i = 0; i < 768; i++)
		b[i] = (signed char)(i * 29 % 255 - 127);
	OK(up(a.u, b, sizeof b));
	OK(launch(function(m, "mma_int8"), 1, 32, 0, NULL, 0, &a));
	OK(down(c, a.c, sizeof c));
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 8; j++) {
			int want = 1;
			for (int k = 0; k < 32; k++)
				want += b[i * 32 + k] * b[512 + j * 32 + k];
			CHECK(c[i * 8 + j] == (float)want);
		}
}

static void
graphs(CUmodule m, Args a)
{
	CUstream s = stream();
	CUgraph g = NULL;
	CUgraphExec e = NULL;
	float zero[32] = { 0 }, out[32];
	CUfunction f = function(m, "step");
	size_t n = 0;

	OK(up(a.c, zero, sizeof zero));
	OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0));
	for (int i = 0; i < 5; i++)
		OK(launch(f, 1, 32, 0, s, PDL, &a));
	OK(CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g));
	OK(CU(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *)(g, NULL, &n));
	CHECK(n == 5);
	OK(CU(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)(&e, g, 0));
	for (int i = 0; i < 4; i++)
		OK(CU(cuGraphLaunch, CUgraphExec, CUstream)(e, s));
	OK(CU(cuStreamSynchronize, CUstream)(s));
	OK(down(out, a.c, sizeof out));
	for (int i = 0; i < 32; i++)
		CHECK(out[i] == 20 * x[i]);
	OK(CU(cuGraphExecDestroy, CUgraphExec)(e));
	OK(CU(cuGraphDestroy, CUgraph)(g));
	OK(CU(cuStreamDestroy_v2, CUstream)(s));
}

static CUresult
note(CUfunction f, Args a, int n, CUstream s)
{
	a.n = n;
	return launch(f, 1, 32, 0, s, 0, &a);
}

/* Queues two kernels in each of two streams. Within a stream they keep their order; between the
 * streams every order that the edges allow must occur. */
static void
orders(CUfunction f, Args a)
{
	CUstream s = stream(), t = stream();
	CUevent e;
	unsigned u[5], seen[2] = { 0 };
	const unsigned none[5] = { 0 };

	OK(CU(cuEventCreate, CUevent *, unsigned)(&e, 2));
	for (int round = 0; round < 64; round++) {
		bool edge = round & 1;
		/* up() waits for its copy; a memset would run in a third stream */
		OK(up(a.u, none, sizeof none));
		OK(note(f, a, 0, s));
		OK(CU(cuEventRecord, CUevent, CUstream)(e, s));
		OK(note(f, a, 1, s));
		if (edge)
			OK(CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(t, e, 0));
		OK(note(f, a, 2, t));
		OK(note(f, a, 3, t));
		OK(sync_all());
		OK(down(u, a.u, sizeof u));
		CHECK(u[0] == 4 && u[1] < u[2] && u[3] < u[4] && (!edge || u[1] < u[3]));
		unsigned last = u[2] < u[4]; /* the stream that ended first */
		seen[edge] |= 1u << (4 * last + 2 * (u[1] < u[3]) + (u[2] < u[3] || u[4] < u[1]));
	}
	/* six orders exist, and three of them with the edge */
	CHECK(__builtin_popcount(seen[0]) >= 4);
	CHECK(__builtin_popcount(seen[1]) >= 2);
	OK(CU(cuStreamDestroy_v2, CUstream)(s));
	OK(CU(cuStreamDestroy_v2, CUstream)(t));
	OK(CU(cuEventDestroy_v2, CUevent)(e));
}

/* An update changes the executable graph; a refused update leaves it unchanged. */
static void
updates(CUfunction f, Args a)
{
	CUstream s = stream();
	CUgraph g[3];
	CUgraphExec e;
	CUgraphNode node;
	CUgraphExecUpdateResultInfo info;
	CUDA_KERNEL_NODE_PARAMS p;
	unsigned u[8] = { 0, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u };
	size_t one = 1;
	Args other = a;
	void *params[] = { &other };

	other.n = 2;
	for (int i = 0; i < 3; i++) {
		OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0));
		OK(note(f, a, i, s));
		if (i == 2)
			OK(note(f, a, 6, s));
		OK(CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g[i]));
	}
	OK(CU(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)(&e, g[0],
	                                                                               0));
	OK(up(a.u, u, sizeof u));
	for (int i = 0; i < 4; i++) {
		if (i == 1) {
			OK(CU(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *)(g[0], &node,
			                                                         &one));
			OK(CU(cuGraphKernelNodeGetParams_v2, CUgraphNode,
			      CUDA_KERNEL_NODE_PARAMS *)(node, &p));
			CHECK(p.gridDimX == 1 && p.blockDimX == 32);
			p.kernelParams = params;
			OK(CU(cuGraphExecKernelNodeSetParams_v2, CUgraphExec, CUgraphNode,
			      const CUDA_KERNEL_NODE_PARAMS *)(e, node, &p));
		} else if (i == 2) {
			OK(CU(cuGraphExecUpdate_v2, CUgraphExec, CUgraph,
			      CUgraphExecUpdateResultInfo *)(e, g[1], &info));
			CHECK(info.result == 0);
		} else if (i == 3) {
			CHECK(CU(cuGraphExecUpdate_v2, CUgraphExec, CUgraph,
			         CUgraphExecUpdateResultInfo *)(e, g[2], &info) ==
			      CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
			CHECK(info.result == 2);
		}
		OK(CU(cuGraphLaunch, CUgraphExec, CUstream)(e, s));
		OK(CU(cuStreamSynchronize, CUstream)(s));
	}
	OK(down(u, a.u, sizeof u));
	/* the graph was launched as created, with other parameters, after an update, and again */
	CHECK(u[0] == 4 && u[1] == 0 && u[3] == 1 && u[2] == 3 && u[7] == ~0u);
	for (int i = 0; i < 3; i++)
		OK(CU(cuGraphDestroy, CUgraph)(g[i]));
	OK(CU(cuGraphExecDestroy, CUgraphExec)(e));
	OK(CU(cuStreamDestroy_v2, CUstream)(s));
}

static void
faults(Args a)
{
	void (*fail)(const char *, long, int) =
	    (void (*)(const char *, long, int))sym(cuda_lib, "emu_fail");
	long (*count)(const char *) = (long (*)(const char *))sym(cuda_lib, "emu_count");
	CUdeviceptr p;
	float f = 1;

	CHECK(count("cuLaunchKernelEx") > 5 && count(NULL) > count("cuLaunchKernelEx"));
	fail("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY);
	OK(CU(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, 16));
	CHECK(CU(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, 16) == CUDA_ERROR_OUT_OF_MEMORY);
	OK(CU(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, 16));
	CHECK(CU(cuMemAlloc_v2, CUdeviceptr *, size_t)(&p, (size_t)1 << 40) ==
	      CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(up(a.c, &f, (size_t)1 << 30) == CUDA_ERROR_INVALID_VALUE);
	/* A lost device stays lost until the context is destroyed; a new context works. */
	fail(NULL, 1, CUDA_ERROR_LAUNCH_FAILED);
	CHECK(up(a.c, &f, 4) == CUDA_ERROR_LAUNCH_FAILED);
	CHECK(up(a.c, &f, 4) == CUDA_ERROR_LAUNCH_FAILED);
	OK(CU(cuDevicePrimaryCtxRelease_v2, CUdevice)(0));
	CHECK(up(a.c, &f, 4) == CUDA_ERROR_INVALID_CONTEXT);
	device_open();
	p = device(4);
	OK(up(p, &f, 4));
	OK(CU(cuDevicePrimaryCtxRelease_v2, CUdevice)(0));
}

int
main(void)
{
	char *log;
	int major = 0;

	libs_open();
	device_open();
	OK(CU(cuDeviceGetAttribute, int *, int, CUdevice)(&major, 75, 0));
	CHECK(major == 9);
	CHECK(
	    !compile("extern \"C\" __global__ void k() { oops; }", "bad.cu", "sm_80", NULL, &log));
	CHECK(strstr(log, "bad.cu:1:") && strstr(log, "oops"));
	CHECK(!compile("extern \"C\" __global__ void k() { griddep_wait(); }", "old.cu", "sm_80",
	               NULL, &log));
	CUmodule m = module("tests/emu/t_basic.cu", NULL);
	Args a = { device(N * 4), device(N * 4), device(N * 4), N, device(4096) };
	float sum = 0;
	for (int i = 0; i < N; i++) {
		x[i] = (float)(i % 17) - 3;
		y[i] = (float)(i % 5);
		sum += x[i];
	}
	OK(up(a.a, x, sizeof x));
	OK(up(a.b, y, sizeof y));
	OK(launch(function(m, "add"), (N + 255) / 256, 256, 0, NULL, 0, &a));
	OK(down(z, a.c, sizeof z));
	for (int i = 0; i < N; i++)
		CHECK(z[i] == x[i] + y[i]);
	CHECK(launch(function(m, "add"), 1, 512, 0, NULL, 0, &a) ==
	      CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
	int n = N;
	float scale = 2;
	void *many[] = { &a.a, &a.b, &a.c, &n, &scale };
	OK(CU(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
	      unsigned, unsigned, CUstream, void **,
	      void **)(function(m, "add_many"), 3, 1, 1, 64, 1, 1, 0, NULL, many, NULL));
	OK(down(z, a.c, sizeof z));
	CHECK(z[N - 1] == 2 * (x[N - 1] + y[N - 1]));
	OK(CU(cuMemsetD32_v2, CUdeviceptr, unsigned, size_t)(a.u, 0, 1));
	OK(launch(function(m, "sum"), 6, 128, 0, NULL, 0, &a));
	OK(down(z, a.c, 7 * 4));
	CHECK(z[6] == sum);
	collectives(function(m, "warp"), a);
	matrices(m, a);
	a.n = 640;
	OK(launch(function(m, "ring"), 1, 96, 0, NULL, 0, &a));
	OK(down(z, a.c, 64 * 4));
	for (int i = 0; i < 64; i++) {
		float want = 0;
		for (int k = 0; k < 10; k++)
			want += x[k * 64 + i];
		CHECK(z[i] == want);
	}
	OK(launch(function(m, "halves"), 1, 128, 0, NULL, 0, &a));
	sync_all();
	OK(launch(function(m, "cluster"), 4, 32, 0, NULL, CLUSTER2, &a));
	OK(down(z, a.c, 128 * 4));
	for (int i = 0; i < 128; i++)
		CHECK(z[i] == x[i ^ 32]);
	OK(launch(function(m, "grid"), 4, 64, 0, NULL, COOPERATIVE, &a));
	OK(down(z, a.c, 256 * 4));
	for (int i = 0; i < 256; i++)
		CHECK(z[i] == (float)((i / 64 + 1) % 4));
	OK(CU(cuMemsetD32_v2, CUdeviceptr, unsigned, size_t)(a.u, 0, 1));
	OK(launch(function(m, "chain"), 4, 32, 0, NULL, COOPERATIVE, &a));
	OK(down(z, a.c, 16));
	CHECK(z[3] == 4);
	graphs(m, a);
	orders(function(m, "note"), a);
	updates(function(m, "note"), a);
	faults(a);
	return failures != 0;
}
