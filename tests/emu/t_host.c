/* Mistakes in programs that use the driver, and similar correct programs. Every mistake is refused
 * or found in checking mode with any seed, with the expected code and words; every correct twin
 * passes in both modes. Each run is a process of its own. */
#include "host.h"

#include <pthread.h>
#include <sys/mman.h>

#include "tests/unit/waiting.h"

typedef struct {
	CUdeviceptr a, b, c;
	int n;
	CUdeviceptr u;
} Args;
enum { N = 4096, BYTES = N * 4 };
static CUmodule mod;
static Args A;
static CUstream s, t;

#define EVENT(e)                                                                                   \
	CUevent e;                                                                                 \
	OK(CU(cuEventCreate, CUevent *, unsigned)(&e, 2))
#define RECORD(e, s) CU(cuEventRecord, CUevent, CUstream)(e, s)
#define WAIT(s, e) CU(cuStreamWaitEvent, CUstream, CUevent, unsigned)(s, e, 0)
#define SYNC(s) CU(cuStreamSynchronize, CUstream)(s)
#define FREE(p) CU(cuMemFree_v2, CUdeviceptr)(p)
#define UP_ASYNC(d, p, n, s)                                                                       \
	CU(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream)(d, p, n, s)
#define DOWN_ASYNC(p, d, n, s)                                                                     \
	CU(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, CUstream)(p, d, n, s)
#define FILL_ASYNC(d, v, n, s)                                                                     \
	CU(cuMemsetD32Async, CUdeviceptr, unsigned, size_t, CUstream)(d, v, n, s)
#define BEGIN(s) OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0))
#define END(s, g) CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g)
#define REPLAY(e, s) CU(cuGraphLaunch, CUgraphExec, CUstream)(e, s)
#define RUN(name, s) launch(function(mod, name), 1, 128, 0, s, 0, &A)

static float *
pinned(size_t n)
{
	void *p = NULL;
	OK(CU(cuMemHostAlloc, void **, size_t, unsigned)(&p, n, 0));
	return p;
}

static CUresult
unpin(void *p)
{
	return CU(cuMemFreeHost, void *)(p);
}

static CUgraphExec
instantiate(CUgraph g)
{
	CUgraphExec e = NULL;
	OK(CU(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)(&e, g, 0));
	return e;
}

static CUgraphExec
captured(const char *name)
{
	CUgraph g = NULL;
	BEGIN(s);
	OK(RUN(name, s));
	OK(END(s, g));
	return instantiate(g);
}

#define HOW(name, ...) static CUresult name(bool bug)

/* ---- launches ---- */
HOW(grid_zero)
{
	CUresult r = launch(function(mod, "make"), bug ? 0 : 1, 128, 0, s, 0, &A);
	return r ? r : SYNC(s);
}
HOW(block_large)
{
	CUresult r = launch(function(mod, "use"), 1, bug ? 1025 : 1024, 0, s, 0, &A);
	return r ? r : SYNC(s);
}
HOW(bounds)
{
	CUresult r = launch(function(mod, "make"), 1, bug ? 512 : 256, 0, s, 0, &A);
	return r ? r : SYNC(s);
}
HOW(shared_large)
{
	if (!bug)
		OK(CU(cuFuncSetAttribute, CUfunction, int,
		      int)(function(mod, "dynamic"),
		           CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536));
	CUresult r = launch(function(mod, "dynamic"), 1, 128, 65536, s, 0, &A);
	return r ? r : SYNC(s);
}
HOW(shared_attribute)
{
	return CU(cuFuncSetAttribute, CUfunction, int,
	          int)(function(mod, "dynamic"), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
	               bug ? 256 << 10 : 200 << 10);
}
HOW(cluster_grid)
{
	CUresult r = launch(function(mod, "make"), bug ? 3 : 1, 128, 0, s, bug ? CLUSTER2 : 0, &A);
	return r ? r : SYNC(s);
}
HOW(few_parameters)
{
	void *p[] = { &A.a, bug ? (void *)16 : &A.b };
	CUresult r = CU(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned,
	                unsigned, unsigned, unsigned, CUstream, void **,
	                void **)(function(mod, "pair"), 1, 1, 1, 128, 1, 1, 0, s, p, NULL);
	return r ? r : SYNC(s);
}
HOW(buffer_size)
{
	size_t n = bug ? 8 : 16;
	void *extra[] = { CU_LAUNCH_PARAM_BUFFER_POINTER, &A, CU_LAUNCH_PARAM_BUFFER_SIZE, &n,
		          CU_LAUNCH_PARAM_END };
	CUresult r = CU(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned,
	                unsigned, unsigned, unsigned, CUstream, void **,
	                void **)(function(mod, "pair"), 1, 1, 1, 128, 1, 1, 0, s, NULL, extra);
	return r ? r : SYNC(s);
}
/* Parameters are copied when the kernel is queued; later changes to them have no effect. */
HOW(parameters_copied)
{
	Args *p = malloc(sizeof *p);
	*p = A;
	CUresult r = launch(function(mod, "make"), 1, 128, 0, s, 0, p);
	memset(p, 0xee, sizeof *p);
	free(p);
	if (bug)
		return CUDA_ERROR_INVALID_VALUE;
	return r ? r : SYNC(s);
}

/* ---- stale handles ---- */
HOW(stream_gone)
{
	CUstream x = stream();
	if (bug)
		OK(CU(cuStreamDestroy_v2, CUstream)(x));
	CUresult r = RUN("make", x);
	return r ? r : SYNC(x);
}
HOW(event_gone)
{
	EVENT(e);
	if (bug)
		OK(CU(cuEventDestroy_v2, CUevent)(e));
	return RECORD(e, s);
}
HOW(module_gone)
{
	CUmodule m = module("tests/emu/bugs/host.cu", NULL);
	CUfunction f = function(m, "make");
	for (int i = 0; bug && i < 2; i++) /* the bug: the module is loaded twice */
		OK(CU(cuModuleUnload, CUmodule)(m));
	CUresult r = launch(f, 1, 128, 0, s, 0, &A);
	return r ? r : SYNC(s);
}
HOW(module_queued)
{
	char *log,
	    *image = compile("extern \"C\" __global__ void k(float *p) { p[threadIdx.x] = 1; }",
	                     "k.cu", "sm_90a", NULL, &log);
	CUmodule m = NULL;
	OK(CU(cuModuleLoadData, CUmodule *, const void *)(&m, image));
	OK(launch(function(m, "k"), 1, 128, 0, s, 0, &A.b));
	if (!bug)
		OK(SYNC(s));
	return CU(cuModuleUnload, CUmodule)(m);
}
HOW(exec_gone)
{
	CUgraphExec e = captured("make");
	if (bug)
		OK(CU(cuGraphExecDestroy, CUgraphExec)(e));
	CUresult r = REPLAY(e, s);
	return r ? r : SYNC(s);
}
HOW(graph_module)
{
	char *log,
	    *image = compile("extern \"C\" __global__ void k(float *p) { p[threadIdx.x] = 1; }",
	                     "k.cu", "sm_90a", NULL, &log);
	CUmodule m = NULL;
	CUgraph g = NULL;
	OK(CU(cuModuleLoadData, CUmodule *, const void *)(&m, image));
	BEGIN(s);
	OK(launch(function(m, "k"), 1, 128, 0, s, 0, &A.b));
	OK(END(s, g));
	CUgraphExec e = instantiate(g);
	if (bug)
		OK(CU(cuModuleUnload, CUmodule)(m));
	CUresult r = REPLAY(e, s);
	return r ? r : SYNC(s);
}
HOW(no_such_kernel)
{
	CUfunction f;
	return CU(cuModuleGetFunction, CUfunction *, CUmodule,
	          const char *)(&f, mod, bug ? "makes" : "make");
}

/* ---- memory ---- */
HOW(free_twice)
{
	CUdeviceptr p = device(64);
	OK(FREE(p));
	return bug ? FREE(p) : FREE(0);
}
HOW(free_inside)
{
	CUdeviceptr p = device(64);
	return FREE(p + 16 * bug);
}
HOW(free_other)
{
	float *p = pinned(64);
	return bug ? FREE((CUdeviceptr)(uintptr_t)p) : unpin(p);
}
HOW(copy_beyond)
{
	static float x[N + 1];
	return up(A.b, x, BYTES + 4 * bug);
}
HOW(copy_from_device)
{
	static float x[64];
	return up(A.b, bug ? (void *)(uintptr_t)A.a : x, 256);
}
HOW(copy_to_device)
{
	static float x[64];
	return down(bug ? (void *)(uintptr_t)A.b : x, A.a, 256);
}
HOW(copy_overlap)
{
	return CU(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t)(A.b + 256, A.b,
	                                                             bug ? 512 : 256);
}
HOW(fill_unaligned)
{
	CUresult r = FILL_ASYNC(A.b + 2 * bug, 0, 16, s);
	return r ? r : SYNC(s);
}
HOW(fill_beyond)
{
	CUresult r = FILL_ASYNC(A.b, 0, bug ? BYTES : N, s);
	return r ? r : SYNC(s);
} /* the bug: the size is in bytes instead of elements */
HOW(register_twice)
{
	void *p = aligned_alloc(4096, 4096);
	OK(CU(cuMemHostRegister_v2, void *, size_t, unsigned)(p, 4096, 0));
	return bug ? CU(cuMemHostRegister_v2, void *, size_t, unsigned)(p, 4096, 0)
	           : CU(cuMemHostUnregister, void *)(p);
}
HOW(never_written)
{
	float x[64];
	CUdeviceptr p = device(256);
	if (!bug)
		OK(up(p, (float[64]){ 0 }, 256));
	return down(x, p, 256);
}
/* The copy of the output is longer than what the kernel writes. */
HOW(tail_unwritten)
{
	static float x[N];
	A.b = device(BYTES);
	OK(RUN("make", s));
	OK(SYNC(s));
	return down(x, A.b, bug ? 516 : 512);
}
HOW(freed_in_graph)
{
	CUdeviceptr old = A.c;
	CUgraphExec e = captured("use");
	if (bug)
		OK(FREE(old));
	CUresult r = REPLAY(e, s);
	return r ? r : SYNC(s);
}
/* Freeing device memory waits for queued work, as CUDA guarantees. */
HOW(free_waits)
{
	OK(RUN("use", s));
	return bug ? FREE(A.c + 4) : FREE(A.c);
}
HOW(old_context)
{
	CUdeviceptr p = A.c;
	OK(RUN("use", s));
	OK(SYNC(s));
	OK(CU(cuDevicePrimaryCtxRelease_v2, CUdevice)(0));
	if (bug)
		return down(&A.n, p, 4);
	device_open();
	p = device(4);
	OK(up(p, &A.n, 4));
	return down(&A.n, p, 4);
}

/* ---- pinned memory and the host ---- */
/* The host reads a step's result after the step's event, but the next step is queued already and
 * writes the same bytes. The emulator cannot observe a read by the host. It therefore sometimes
 * runs work that is queued later before a wait returns, so that the host may read the wrong
 * value. */
HOW(result_again)
{
	float *p = pinned(2 * 512);
	EVENT(e);
	Args first = A, second = A;
	first.a = A.a, first.b = (CUdeviceptr)p;
	second.a = A.c, second.b = bug ? first.b : first.b + 512;
	OK(FILL_ASYNC(A.c, 0x40000000, 128, s));
	for (int i = 0; i < 100; i++) {
		OK(launch(function(mod, "make"), 1, 128, 0, s, 0, &first));
		OK(RECORD(e, s));
		OK(launch(function(mod, "make"), 1, 128, 0, s, 0, &second));
		OK(CU(cuEventSynchronize, CUevent)(e));
		if (*(volatile float *)p != 1)
			return CUDA_ERROR_INVALID_VALUE;
		OK(SYNC(s));
	}
	return 0;
}
/* The staging buffer of the weights is refilled before the copy from it has finished. */
HOW(staging)
{
	float *p = pinned(BYTES);
	EVENT(e);
	for (int i = 0; i < 3; i++) {
		if (i && !bug)
			OK(CU(cuEventSynchronize, CUevent)(e));
		for (int k = 0; k < N; k++)
			p[k] = (float)(i * 10 + k);
		CUresult r = UP_ASYNC(A.b, p, BYTES, s);
		if (r)
			return r;
		OK(RECORD(e, s));
	}
	return SYNC(s);
}
/* Two buffers are filled in turn; each has its own event. */
HOW(staging_two)
{
	float *p[2] = { pinned(BYTES), pinned(BYTES) };
	EVENT(e0);
	EVENT(e1);
	CUevent e[2] = { e0, e1 };
	for (int i = 0; i < 6; i++) {
		int k = i & 1;
		/* the bug: waits for the event of the other buffer */
		OK(CU(cuEventSynchronize, CUevent)(e[bug ? k ^ 1 : k]));
		memset(p[k], i + 1, BYTES);
		CUresult r = UP_ASYNC(A.b, p[k], BYTES, s);
		if (r)
			return r;
		OK(RECORD(e[k], s));
		if (bug && i == 3)
			break;
	}
	if (bug) {
		memset(p[1], 9, BYTES);
		return SYNC(s);
	}
	return SYNC(s);
}
HOW(step_state)
{
	float *p = pinned(512);
	CUgraph g = NULL;
	BEGIN(s);
	OK(UP_ASYNC(A.a, p, 512, s));
	OK(RUN("make", s));
	OK(END(s, g));
	CUgraphExec e = instantiate(g);
	/* the host writes the input of the next step while this step runs */
	for (int i = 0; i < 3; i++) {
		for (int k = 0; k < 128; k++)
			p[k] = (float)i;
		CUresult r = REPLAY(e, s);
		if (r)
			return r;
		if (!bug)
			OK(SYNC(s));
	}
	return SYNC(s);
}
/* A page of host memory is copied to the device. Before the host has waited for this copy, another
 * page is copied from the device to the same host address. */
HOW(page_again)
{
	float *p = pinned(512);
	memset(p, 0, 512);
	for (int i = 0; i < 30; i++) {
		CUresult r = UP_ASYNC(A.c, p, 512, s);
		if (r)
			return r;
		if (bug && i == 0)
			p[5] = 7;
		r = RUN("make", s); /* the kernel must read the page that was copied first */
		if (!r)
			r = DOWN_ASYNC(p, A.b, 512, s);
		if (r)
			return r;
	}
	CUresult r = SYNC(s);
	return r ? r : p[0] == 1 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
HOW(pinned_freed)
{
	float *p = pinned(BYTES);
	memset(p, 0, BYTES);
	OK(UP_ASYNC(A.b, p, BYTES, s));
	if (!bug)
		OK(SYNC(s));
	return unpin(p);
}
/* The host reads the result without a wait. The result must not be visible, even if the kernel has
 * run. */
HOW(read_early)
{
	float *p = pinned(512);
	OK(RUN("make", s));
	OK(DOWN_ASYNC(p, A.b, 512, s));
	if (!bug)
		OK(SYNC(s));
	unsigned v;
	memcpy(&v, p, 4);
	CHECK(v == (bug ? 0xfbfbfbfbu : 0x3f800000u) ||
	      (bug && !strcmp(getenv("LLMC_EMU_MODE"), "fast")));
	OK(SYNC(s));
	CHECK(p[0] == 1);
	return bug ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
HOW(query_ignored)
{
	float *p = pinned(512);
	EVENT(e);
	OK(RUN("make", s));
	OK(DOWN_ASYNC(p, A.b, 512, s));
	OK(RECORD(e, s));
	CUresult q = CUDA_ERROR_NOT_READY;
	for (int i = 0; bug ? i < 1 : q == CUDA_ERROR_NOT_READY; i++)
		q = CU(cuEventQuery, CUevent)(e);
	if (bug) /* the query answers "not ready", or the result is complete */
		return q ? q : p[0] == 1 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
	CHECK(p[0] == 1);
	return q;
}
/* Operations that are queued after a copy on the device see its result. */
HOW(pinned_chain)
{
	float *p = pinned(512), out[128];
	OK(RUN("make", s));
	OK(DOWN_ASYNC(p, A.b, 512, s));
	OK(UP_ASYNC(A.c, p, 512, bug ? t : s));
	OK(SYNC(bug ? t : s));
	OK(down(out, A.c, 512));
	return out[0] == 1 && !bug ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
static void
relays(void *p)
{
	for (int k = 0; k < 128; k++)
		((float *)p)[128 + k] += ((float *)p)[k] + 1;
}
/* A host function computes the input of an upload from the result of a download. The program
 * accesses neither buffer in the meantime. */
HOW(host_relay)
{
	float *p = pinned(1024), out[128];
	memset(p, 0, 1024);
	for (int i = 0; i < 2; i++) {
		OK(RUN("make", s));
		OK(DOWN_ASYNC(p, A.b, 512, s));
		OK(CU(cuLaunchHostFunc, CUstream, CUhostFn, void *)(s, relays, p));
		OK(UP_ASYNC(A.c, p + 128, 512, s));
	}
	if (bug)
		p[130] = 7;
	CUresult r = SYNC(s);
	return r                     ? r
	       : down(out, A.c, 512) ? CUDA_ERROR_UNKNOWN
	       : out[0] == 4         ? CUDA_SUCCESS
	                             : CUDA_ERROR_UNKNOWN;
}
HOW(mapped)
{
	float *p = pinned(512);
	Args m = A;
	memset(p, 0, 512);
	OK(CU(cuMemHostGetDevicePointer_v2, CUdeviceptr *, void *, unsigned)(&m.b, p, 0));
	OK(launch(function(mod, "make"), 1, 128, 0, s, 0, &m)); /* writes it */
	m.n = bug ? N : 512;
	CUresult r = launch(function(mod, "look"), 1, 128, 0, s, 0, &m); /* reads it */
	if (!r)
		r = SYNC(s);
	CHECK(r || p[0] == 1);
	return r;
}
HOW(pageable_gone)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUgraph g = NULL;
	BEGIN(s);
	OK(UP_ASYNC(A.b, p, 4096, s));
	OK(END(s, g));
	CUgraphExec e = instantiate(g);
	if (bug)
		munmap(p, 4096);
	CUresult r = REPLAY(e, s);
	return r ? r : SYNC(s);
}

/* ---- order ---- */
HOW(event_never)
{
	EVENT(e);
	OK(RUN("make", s));
	if (!bug)
		OK(RECORD(e, s));
	OK(WAIT(t, e));
	CUresult r = RUN("use", t);
	return r ? r : sync_all();
}
HOW(event_early)
{
	EVENT(e);
	if (bug)
		OK(RECORD(e, s));
	OK(RUN("make", s));
	if (!bug)
		OK(RECORD(e, s));
	OK(WAIT(t, e));
	CUresult r = RUN("use", t);
	return r ? r : sync_all();
}
/* Two streams read a buffer; a third stream fills the buffer and has waited for one of the readers
 * only. */
HOW(readers_two)
{
	EVENT(e);
	EVENT(f);
	CUstream u = stream();
	OK(RUN("use", s));
	OK(RECORD(e, s));
	OK(RUN("look", t));
	OK(RECORD(f, t));
	OK(WAIT(u, e));
	if (!bug)
		OK(WAIT(u, f));
	CUresult r = FILL_ASYNC(A.b, 0, 128, u);
	return r ? r : sync_all();
}
/* The case readers_two, where one of the readers is a copy to the host */
HOW(readers_copy)
{
	float *p = pinned(512);
	EVENT(e);
	OK(RUN("look", t));
	OK(DOWN_ASYNC(p, A.b, 512, s));
	if (!bug) {
		OK(RECORD(e, t));
		OK(WAIT(s, e));
	}
	CUresult r = FILL_ASYNC(A.b, 0, 128, s);
	return r ? r : sync_all();
}
HOW(wrong_stream)
{
	static float x[128];
	OK(RUN("make", s));
	OK(SYNC(bug ? t : s));
	CUresult r = down(x, A.b, 512);
	return r ? r : sync_all();
}
/* A copy stream (t) copies pages of a KV cache while steps run (s). The bugs: a page is copied to
 * the host before the step that writes it has ended; a page is copied back for a step that does not
 * wait for the copy; a page is copied back into one that an earlier step still reads. */
HOW(page_out)
{
	float *p = pinned(512);
	EVENT(e);
	OK(RUN("make", s));
	if (!bug) {
		OK(RECORD(e, s));
		OK(WAIT(t, e));
	}
	CUresult r = DOWN_ASYNC(p, A.b, 512, t);
	return r ? r : sync_all();
}
HOW(page_back)
{
	float *p = pinned(512);
	memset(p, 0, 512);
	EVENT(e);
	OK(UP_ASYNC(A.b, p, 512, t));
	if (!bug) {
		OK(RECORD(e, t));
		OK(WAIT(s, e));
	}
	CUresult r = RUN("use", s);
	return r ? r : sync_all();
}
HOW(page_taken)
{
	float *p = pinned(512);
	memset(p, 0, 512);
	EVENT(e);
	OK(RUN("use", s));
	if (!bug) {
		OK(RECORD(e, s));
		OK(WAIT(t, e));
	}
	CUresult r = UP_ASYNC(A.b, p, 512, t);
	return r ? r : sync_all();
}
/* A synchronous copy runs in the null stream. A non-blocking stream does not synchronise with the
 * null stream. */
HOW(null_copy)
{
	static float x[128];
	OK(RUN("use", s));
	if (!bug)
		OK(SYNC(s));
	CUresult r = up(A.b, x, 512);
	return r ? r : sync_all();
}
HOW(graphs_share)
{
	CUgraphExec e = captured("use"), f = captured("use");
	CUresult r = REPLAY(e, s);
	if (!r)
		r = REPLAY(f, bug ? t : s);
	return r ? r : sync_all();
}
HOW(graph_twice)
{
	/* launches of one executable graph never overlap, whatever streams they are in */
	CUgraphExec e = captured("make");
	CUresult r = REPLAY(e, s);
	if (!r)
		r = REPLAY(e, t);
	if (!r && bug)
		r = RUN("make", s);
	return r ? r : sync_all();
}
HOW(graph_and_upload)
{
	float *p = pinned(512);
	CUgraphExec e = captured("make");
	memset(p, 0, 512);
	CUresult r = REPLAY(e, s);
	if (!r)
		r = UP_ASYNC(A.a, p, 512, bug ? t : s); /* the copy of the input of the next step */
	return r ? r : sync_all();
}

/* ---- capture and graphs ---- */
HOW(capture_query)
{
	EVENT(e);
	CUgraph g = NULL;
	BEGIN(s);
	OK(RUN("make", s));
	OK(RECORD(e, s));
	CUresult q = bug ? CU(cuEventQuery, CUevent)(e) : 0, r = END(s, g);
	CHECK(!r || bug);
	return q;
}
HOW(capture_blocking)
{
	CUstream b = NULL;
	CUgraph g = NULL;
	static float x[16];
	OK(CU(cuStreamCreate, CUstream *, unsigned)(&b, bug ? 0 : CU_STREAM_NON_BLOCKING));
	OK(CU(cuStreamBeginCapture_v2, CUstream, int)(b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(RUN("make", b));
	if (bug)
		up(A.b, x, 64); /* the legacy stream waits for blocking streams */
	return END(b, g);
}
HOW(capture_outside)
{
	EVENT(e);
	CUgraph g = NULL;
	OK(RUN("make", t));
	OK(RECORD(e, t));
	BEGIN(s);
	CUresult r = bug ? WAIT(s, e) : 0, end = END(s, g);
	return r ? r : end;
}
HOW(capture_wait)
{
	CUgraph g = NULL;
	EVENT(e);
	BEGIN(s);
	OK(RUN("make", s));
	OK(RECORD(e, s));
	CUresult r = bug ? CU(cuEventSynchronize, CUevent)(e) : 0, end = END(s, g);
	CHECK(bug || !end);
	return r;
}
static CUresult
update(int first, int second)
{
	CUgraph g = NULL, h = NULL;
	CUgraphExecUpdateResultInfo info;
	BEGIN(s);
	for (int i = 0; i < first; i++)
		OK(RUN("make", s));
	OK(END(s, g));
	CUgraphExec e = instantiate(g);
	CUresult r = REPLAY(e, s);
	BEGIN(s);
	for (int i = 0; i < second; i++)
		OK(RUN("make", s));
	OK(END(s, h));
	if (!r)
		r = CU(cuGraphExecUpdate_v2, CUgraphExec, CUgraph,
		       CUgraphExecUpdateResultInfo *)(e, h, &info);
	if (!r)
		r = REPLAY(e, s);
	return r ? r : SYNC(s);
}
HOW(graph_update)
{
	return update(2, bug ? 3 : 2);
}

/* ---- threads, contexts, callbacks ---- */
static CUfunction make;
static void *
elsewhere(void *arg)
{
	bool bug = *(bool *)arg;
	CUcontext c;
	if (!bug) {
		OK(CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&c, 0));
		OK(CU(cuCtxSetCurrent, CUcontext)(c));
	}
	CUresult r = launch(make, 1, 128, 0, s, 0, &A);
	return (void *)(intptr_t)(r ? r : SYNC(s));
}
HOW(other_thread)
{
	pthread_t th;
	void *r;
	make = function(mod, "make");
	pthread_create(&th, NULL, elsewhere, &bug);
	pthread_join(th, &r);
	return (CUresult)(intptr_t)r;
}
static CUresult called;
static void
calls(void *p)
{
	called = CU(cuMemsetD32Async, CUdeviceptr, unsigned, size_t, CUstream)(A.b, 0, 4,
	                                                                       *(CUstream *)p);
}
static void
counts(void *p)
{
	++*(int *)p;
}
HOW(callback)
{
	int n = 0;
	OK(CU(cuLaunchHostFunc, CUstream, CUhostFn, void *)(s, bug ? calls : counts,
	                                                    bug ? (void *)&t : (void *)&n));
	OK(SYNC(s));
	CHECK(bug || n == 1);
	return called;
}
HOW(other_device)
{
	CUcontext c;
	OK(CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&c, 1));
	if (bug)
		OK(CU(cuCtxSetCurrent, CUcontext)(c));
	CUresult r = RUN("make", s);
	return r ? r : SYNC(s);
}
HOW(other_event)
{
	CUcontext c;
	EVENT(e);
	OK(CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&c, 1));
	if (bug)
		OK(CU(cuCtxSetCurrent, CUcontext)(c));
	return RECORD(e, bug ? stream() : s);
}
static CUresult
tensor_map(size_t stride, unsigned box, size_t off)
{
	static unsigned char map[256] __attribute__((aligned(128)));
	uint64_t dim[2] = { 60, 16 }, st[1] = { stride };
	unsigned b[2] = { box, 16 }, step[2] = { 1, 1 };
	return CU(cuTensorMapEncodeTiled, void *, int, unsigned, void *, const uint64_t *,
	          const uint64_t *, const unsigned *, const unsigned *, int, int, int,
	          int)(map + off, 7, 2, (void *)(uintptr_t)A.b, dim, st, b, step, 0, 0, 0, 0);
}
HOW(map_stride)
{
	return tensor_map(bug ? 60 * 4 + 8 : 60 * 4, 32, 0);
} /* the rows of this map are not a multiple of 16 bytes long */
HOW(map_box)
{
	return tensor_map(240, bug ? 257 : 256, 0);
}
HOW(map_place)
{
	return tensor_map(240, 32, bug ? 64 : 0);
} /* newer headers align the type to 128 bytes */

/* Per row: the error code that the mistake causes, and a part of the message. NULL: the test checks
 * only the code. */
static const struct {
	const char *name;
	CUresult (*run)(bool bug);
	CUresult code;
	const char *words;
	bool fast;
} cases[] = {
#define X(name, code, ...) { #name, name, code, __VA_ARGS__ }
	X(grid_zero, 1, NULL, true),
	X(block_large, 1, NULL, true),
	X(bounds, 701, "launch bounds", true),
	X(shared_large, 1, NULL, true),
	X(shared_attribute, 1, NULL, true),
	X(cluster_grid, 912, NULL, true),
	X(few_parameters, 1, "parameter 2 of 2", true),
	X(buffer_size, 1, NULL, true),
	X(parameters_copied, 1, NULL, true),
	X(stream_gone, 400, NULL, true),
	X(event_gone, 400, NULL, true),
	X(module_gone, 400, NULL, true),
	X(module_queued, 719, "cuModuleUnload: the host has not waited for kernel 'k'"),
	X(exec_gone, 400, NULL, true),
	X(graph_module, 400, "module of node 0, a kernel, was unloaded", true),
	X(no_such_kernel, 500, NULL, true),
	X(free_twice, 1, NULL, true),
	X(free_inside, 1, NULL, true),
	X(free_other, 1, NULL, true),
	X(copy_beyond, 1, NULL, true),
	X(copy_from_device, 1, "is device memory", true),
	X(copy_to_device, 1, "is device memory", true),
	X(copy_overlap, 1, "overlap", true),
	X(fill_unaligned, 1, NULL, true),
	X(fill_beyond, 1, NULL, true),
	X(register_twice, 712, NULL, true),
	X(never_written, 719, "never written"),
	X(tail_unwritten, 719, "byte 512 of 516 was never written"),
	X(freed_in_graph, 700, "freed", true),
	X(free_waits, 1, NULL, true),
	X(old_context, 201, NULL, true),
	X(staging, 719, "the host wrote to its source"),
	X(staging_two, 719, "the host wrote to its source"),
	X(step_state, 719, "cuMemcpyHtoDAsync: the host wrote to its source"),
	X(page_again, 719, "the host wrote to its source"),
	X(pinned_freed, 719, "cuMemFreeHost: the host has not waited for a cuMemcpyHtoDAsync"),
	X(result_again, 1, NULL, true),
	X(read_early, 600, NULL),
	X(query_ignored, 600, NULL),
	X(pinned_chain, 999, NULL),
	X(host_relay, 719, "the host wrote to its source"),
	X(mapped, 700, "out-of-bounds"),
	X(pageable_gone, 700, "is no longer mapped", true),
	X(event_never, 719, "race"),
	X(event_early, 719, "race"),
	X(readers_two, 719, "race"),
	X(readers_copy, 719, "race"),
	X(wrong_stream, 719, "race"),
	X(null_copy, 719, "race"),
	X(page_out, 719, "race"),
	X(page_back, 719, "race"),
	X(page_taken, 719, "race"),
	X(graphs_share, 719, "race"),
	X(graph_twice, 719, "race"),
	X(graph_and_upload, 719, "race"),
	X(capture_query, 907, NULL, true),
	X(capture_blocking, 901, NULL, true),
	X(capture_outside, 905, NULL, true),
	X(capture_wait, 907, NULL, true),
	X(graph_update, 910, NULL, true),
	X(other_thread, 201, NULL, true),
	X(callback, 800, "host function", true),
	X(other_device, 400, "stream of device 0", true),
	X(other_event, 400, NULL, true),
	X(map_stride, 1, NULL, true),
	X(map_box, 1, NULL, true),
	X(map_place, 1, NULL, true),
};
enum { N_CASES = sizeof cases / sizeof *cases };

static int
child(int i, bool bug, bool check, int seed)
{
	char number[16];
	static float data[N];

	snprintf(number, sizeof number, "%d", seed);
	setenv("LLMC_EMU_MODE", check ? "check" : "fast", 1);
	setenv("LLMC_EMU_SEED", number, 1);
	setenv("LLMC_EMU_DEVICES", "2", 1);
	setenv("LLMC_EMU_QUIET", "1", 1);
	libs_open();
	device_open();
	mod = module("tests/emu/bugs/host.cu", NULL);
	A = (Args){ device(BYTES), device(BYTES), device(BYTES), 512, device(4096) };
	OK(up(A.a, data, BYTES));
	OK(up(A.b, data, BYTES));
	OK(up(A.c, data, BYTES));
	s = stream();
	t = stream();
	CUresult r = cases[i].run(bug);
	if (bug && !check && !cases[i].fast)
		return 0; /* in this mode the result depends on the schedule */
	bool right =
	    bug ? r == cases[i].code && (!cases[i].words || strstr(report(), cases[i].words)) : !r;
	if (right && !failures)
		return 0;
	fprintf(stderr, "%s: the %s gave %d in %s mode with seed %d, \"%s\"\n", cases[i].name,
	        bug ? "mistake" : "right twin", r, check ? "checking" : "fast", seed, report());
	return 1;
}

static int
spawn(int i, bool bug, bool check, int seed)
{
	int status;
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		alarm((unsigned)wait_scaled(WAIT_HANG_S));
		int rc = child(i, bug, check, seed);
		fflush(NULL);
		_exit(rc);
	}
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status))
		fprintf(stderr, "%s: signal %d\n", cases[i].name, WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

int
main(int argc, char **argv)
{
	int bad = 0, seeds = argc > 2 ? atoi(argv[2]) : 4;

	for (int i = 0; i < N_CASES; i++) {
		int wrong = 0;
		if (argc > 1 && *argv[1] && strcmp(argv[1], cases[i].name))
			continue;
		for (int k = 0; k < 4 * seeds && !wrong; k++)
			wrong = spawn(i, k & 1, k >> 1 & 1, k / 4);
		bad += wrong != 0;
	}
	printf("mistakes of programs: %d of %d found, their right twins silent\n", N_CASES - bad,
	       N_CASES);
	return bad != 0;
}
