/* Tiles of tensor maps, warpgroup matrix instructions, bulk stores (t_sm90.cu), and the emulated
 * libraries of NVIDIA. With EMU_CUDA=libcuda.so.1 EMU_NVRTC=libnvrtc.so.13 the kernels run on a
 * real GPU (sm_90a), which checks the emulator's layouts against the hardware. */
#include "host.h"

#include <pthread.h>

typedef struct {
	_Alignas(128) unsigned char map[4][128];
	CUdeviceptr c, a, u;
	int n;
} Args;
static unsigned short h[64 * 64 + 128 * 64];
static float c[64 * 128];
static const unsigned ones[5] = { 1, 1, 1, 1, 1 };

static float
bf(unsigned short x)
{
	unsigned u = (unsigned)x << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

static CUresult
encode(void *map, int type, unsigned rank, CUdeviceptr p, const uint64_t *dim,
       const uint64_t *stride, const unsigned *box, int swizzle)
{
	return CU(cuTensorMapEncodeTiled, void *, int, unsigned, void *, const uint64_t *,
	          const uint64_t *, const unsigned *, const unsigned *, int, int, int, int)(
	    map, type, rank, (void *)(uintptr_t)p, dim, stride, box, ones, 0, swizzle, 0, 0);
}

static void
products(CUmodule m, Args *p)
{
	static const char *const name[] = { "tiles32", "tiles64", "tiles128" };
	uint64_t da[] = { 64, 64 }, db[] = { 64, 128 }, stride[] = { 128 };

	for (int i = 0; i < 64 * 192; i++)
		h[i] = (unsigned short)(0x3f80 + (i * 37 % 61) - (i % 3 ? 0 : 0x8000));
	OK(up(p->a, h, sizeof h));
	for (int s = 0; s < 3; s++) {
		unsigned ba[] = { 16u << s, 64 }, bb[] = { 16u << s, 128 };
		OK(encode(p->map[0], 9, 2, p->a, da, stride, ba, s + 1));
		OK(encode(p->map[1], 9, 2, p->a + 64 * 128, db, stride, bb, s + 1));
		OK(launch(function(m, name[s]), 1, 128, 24576, NULL, 0, p));
		OK(down(c, p->c, sizeof c));
		for (int i = 0; i < 64; i++)
			for (int j = 0; j < 128; j++) {
				float want = 0;
				for (int k = 0; k < 64; k++)
					want += bf(h[i * 64 + k]) * bf(h[4096 + j * 64 + k]);
				CHECK(c[i * 128 + j] == want);
			}
	}
	for (int s = 0; s < 2; s++) {
		OK(launch(function(m, s ? "rows0" : "rows128"), 1, 128, 4096, NULL, 0, p));
		OK(down(c, p->c, 64 * 64 * 4));
		for (int i = 0; i < 64; i++)
			for (int j = 0; j < 64; j++) {
				float want = 1;
				for (int k = 0; k < 32; k++)
					want += bf(h[i * 32 + k]) * bf(h[2048 + k * 64 + j]);
				CHECK(c[i * 64 + j] == want);
			}
	}
	for (int i = 0; i < 1536; i++)
		h[i] = (unsigned short)((16 + i * 7 % 3) << 10); /* the values are powers of two */
	OK(up(p->a, h, sizeof h));
	OK(launch(function(m, "roles"), 1, 256, 3072 + 8192, NULL, 0, p));
	OK(down(c, p->c, 64 * 32 * 4));
	for (int i = 0; i < 64; i++)
		for (int j = 0; j < 32; j++) {
			float want = 0;
			for (int k = 0; k < 16; k++)
				want += (float)(2 << (i * 16 + k) * 7 % 3) *
				        (float)(2 << (1024 + j * 16 + k) * 7 % 3);
			CHECK(c[i * 32 + j] == want);
		}
}

static void
boxes(CUmodule m, Args *p)
{
	uint64_t dim[] = { 8, 5, 3 }, stride[] = { 32, 160 };
	unsigned box[] = { 8, 4, 2 }, odd[] = { 3, 4, 2 }, wide[] = { 64, 4, 2 };
	float in[120], out[120], zero[120] = { 0 };

	for (int i = 0; i < 120; i++)
		in[i] = (float)i + 1;
	OK(up(p->a, in, sizeof in));
	OK(up(p->c, zero, sizeof zero));
	OK(encode(p->map[2], 7, 3, p->a, dim, stride, box, 0));
	OK(encode(p->map[3], 7, 3, p->c, dim, stride, box, 0));
	CHECK(encode(p->map[0], 7, 3, p->c + 4, dim, stride, box, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(encode(p->map[0], 7, 3, p->c, dim, stride, odd, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(encode(p->map[0], 7, 3, p->c, dim, stride, wide, 3) == CUDA_ERROR_INVALID_VALUE);
	OK(launch(function(m, "boxes"), 1, 32, 256, NULL, 0, p));
	OK(down(out, p->c, sizeof out));
	for (int z = 0; z < 3; z++)
		for (int y = 0; y < 5; y++)
			for (int x = 0; x < 8; x++) {
				float want = 0;
				if (z >= 1 && x < 4 && y < 3)
					want = in[(z - 1) * 40 + (y + 2) * 8 + x + 4];
				CHECK(out[z * 40 + y * 8 + x] == want);
			}
}

static void *
library(const char *name)
{
	const char *dir = getenv("EMU_DIR");
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", dir ? dir : "build/emu", name);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		fprintf(stderr, "%s\n", dlerror());
	return lib;
}
#define LIB(lib, name, ...) (((int (*)(__VA_ARGS__))sym(lib, #name)))

/* Computes y [n][rows] = x [n][cols] w [rows][cols]^T + bias + y in row-major memory, once with
 * direct calls and once in a graph. */
static void
matmul(Args *p)
{
	enum { ROWS = 24, COLS = 40, COUNT = 5 };
	void *lib = library("libcublasLt.so.13"), *lt, *op, *lw, *lx, *ly, *pref;
	static float y[COUNT * ROWS], bias[ROWS];
	struct {
		uint64_t algo[8];
		size_t workspace;
		int state;
		float waves;
		int reserved[4];
	} best;
	float one = 1;
	int found, t = 1, epilogue = 4, f32 = 0;
	CUdeviceptr b = device(sizeof bias);
	CUstream s = stream();
	CUgraph g = NULL;
	CUgraphExec e = NULL;

	for (int i = 0; i < ROWS * COLS + COUNT * COLS; i++)
		((unsigned short *)c)[i] =
		    (unsigned short)(0x3f80 + (i * 29 % 50) - (i % 4 ? 0 : 0x8000));
	unsigned short *v = (unsigned short *)c;
	OK(up(p->a, v, (ROWS + COUNT) * COLS * 2));
	for (int i = 0; i < ROWS; i++)
		bias[i] = (float)i;
	for (int i = 0; i < COUNT * ROWS; i++)
		y[i] = 100;
	OK(up(b, bias, sizeof bias));
	OK(up(p->c, y, sizeof y));
	OK(LIB(lib, cublasLtCreate, void **)(&lt));
	OK(LIB(lib, cublasLtMatmulDescCreate, void **, int, int)(&op, 68, 0));
	OK(LIB(lib, cublasLtMatmulDescSetAttribute, void *, int, const void *, size_t)(op, 3, &t,
	                                                                               4));
	OK(LIB(lib, cublasLtMatmulDescSetAttribute, void *, int, const void *,
	       size_t)(op, 7, &epilogue, 4));
	OK(LIB(lib, cublasLtMatmulDescSetAttribute, void *, int, const void *, size_t)(op, 8, &b,
	                                                                               8));
	OK(LIB(lib, cublasLtMatmulDescSetAttribute, void *, int, const void *, size_t)(op, 26, &f32,
	                                                                               4));
	OK(LIB(lib, cublasLtMatrixLayoutCreate, void **, int, uint64_t, uint64_t,
	       int64_t)(&lw, 14, COLS, ROWS, COLS));
	OK(LIB(lib, cublasLtMatrixLayoutCreate, void **, int, uint64_t, uint64_t,
	       int64_t)(&lx, 14, COLS, COUNT, COLS));
	OK(LIB(lib, cublasLtMatrixLayoutCreate, void **, int, uint64_t, uint64_t,
	       int64_t)(&ly, 0, ROWS, COUNT, ROWS));
	OK(LIB(lib, cublasLtMatmulPreferenceCreate, void **)(&pref));
	OK(LIB(lib, cublasLtMatmulAlgoGetHeuristic, void *, void *, void *, void *, void *, void *,
	       void *, int, void *, int *)(lt, op, lw, lx, ly, ly, pref, 1, &best, &found));
	CHECK(found == 1 && best.workspace == 0);
	OK(CU(cuStreamBeginCapture_v2, CUstream, int)(s, 0));
	OK(LIB(lib, cublasLtMatmul, void *, void *, const float *, CUdeviceptr, void *, CUdeviceptr,
	       void *, const float *, CUdeviceptr, void *, CUdeviceptr, void *, void *, void *,
	       size_t, CUstream)(lt, op, &one, p->a, lw, p->a + ROWS * COLS * 2, lx, &one, p->c, ly,
	                         p->c, ly, &best, NULL, 0, s));
	OK(CU(cuStreamEndCapture, CUstream, CUgraph *)(s, &g));
	OK(CU(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long)(&e, g, 0));
	OK(CU(cuGraphLaunch, CUgraphExec, CUstream)(e, s));
	OK(CU(cuGraphLaunch, CUgraphExec, CUstream)(e, s));
	OK(CU(cuStreamSynchronize, CUstream)(s));
	OK(down(y, p->c, sizeof y));
	for (int i = 0; i < COUNT; i++)
		for (int j = 0; j < ROWS; j++) {
			float sum = 0;
			for (int k = 0; k < COLS; k++)
				sum += bf(v[j * COLS + k]) * bf(v[(ROWS + i) * COLS + k]);
			CHECK(y[i * ROWS + j] == sum + (sum + 100 + (float)j) + (float)j);
		}
	OK(LIB(lib, cublasLtDestroy, void *)(lt));
}

/* Runs three ranks in one thread; each stream also has work before and after the collective
 * call. */
static void
ranks(void)
{
	enum { RANKS = 3, COUNT = 100 };
	void *lib = library("libnccl.so.2"), *comm[RANKS];
	struct {
		char c[128];
	} id;
	CUdeviceptr in[RANKS], out[RANKS];
	CUstream s[RANKS];
	float v[COUNT], got[RANKS * COUNT];

	OK(LIB(lib, ncclGetUniqueId, void *)(&id));
	OK(LIB(lib, ncclGroupStart, void)());
	for (int r = 0; r < RANKS; r++) {
		int rc = ((int (*)(void **, int, __typeof__(id), int))sym(lib, "ncclCommInitRank"))(
		    &comm[r], RANKS, id, r);
		OK(rc);
		in[r] = device(COUNT * 4);
		out[r] = device(RANKS * COUNT * 4);
		s[r] = stream();
	}
	OK(LIB(lib, ncclGroupEnd, void)());
	for (int r = 0; r < RANKS; r++) {
		for (int i = 0; i < COUNT; i++)
			v[i] = (float)(r * 1000 + i);
		OK(CU(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t,
		      CUstream)(in[r], v, sizeof v, s[r]));
		OK(LIB(lib, ncclAllGather, CUdeviceptr, CUdeviceptr, size_t, int, void *,
		       CUstream)(in[r], out[r], COUNT, 7, comm[r], s[r]));
		OK(LIB(lib, ncclAllReduce, CUdeviceptr, CUdeviceptr, size_t, int, int, void *,
		       CUstream)(in[r], in[r], COUNT, 7, 0, comm[r], s[r]));
	}
	for (int r = 0; r < RANKS; r++) {
		OK(CU(cuStreamSynchronize, CUstream)(s[r]));
		OK(down(v, in[r], sizeof v));
		OK(down(got, out[r], sizeof got));
		for (int i = 0; i < COUNT; i++)
			CHECK(v[i] == (float)(3000 + 3 * i));
		for (int i = 0; i < RANKS * COUNT; i++)
			CHECK(got[i] == (float)(i / COUNT * 1000 + i % COUNT));
		OK(LIB(lib, ncclCommDestroy, void *)(comm[r]));
	}
}

typedef struct {
	void *lib;
	CUcontext context;
	int rank;
	char id[128];
	float got;
} Rank;

/* Runs a rank in its own thread, which waits for its stream before the other rank has called. */
static void *
rank_thread(void *arg)
{
	struct {
		char c[128];
	} id;
	Rank *r = arg;
	void *comm;
	float v = (float)r->rank + 1;

	memcpy(&id, r->id, sizeof id);
	OK(CU(cuCtxSetCurrent, CUcontext)(r->context));
	OK(((int (*)(void **, int, __typeof__(id), int))sym(r->lib, "ncclCommInitRank"))(
	    &comm, 2, id, r->rank));
	CUstream s = stream();
	CUdeviceptr p = device(4);
	OK(up(p, &v, 4));
	for (int i = 0; i < 5; i++)
		OK(LIB(r->lib, ncclAllReduce, CUdeviceptr, CUdeviceptr, size_t, int, int, void *,
		       CUstream)(p, p, 1, 7, 0, comm, s));
	OK(CU(cuStreamSynchronize, CUstream)(s));
	OK(down(&r->got, p, 4));
	OK(LIB(r->lib, ncclCommDestroy, void *)(comm));
	return NULL;
}

static void
threads(void)
{
	Rank r[2] = { { .rank = 0 }, { .rank = 1 } };
	pthread_t t[2];

	for (int i = 0; i < 2; i++) {
		r[i].lib = library("libnccl.so.2");
		OK(CU(cuCtxGetCurrent, CUcontext *)(&r[i].context));
		if (!i)
			OK(LIB(r[0].lib, ncclGetUniqueId, void *)(r[0].id));
		memcpy(r[i].id, r[0].id, sizeof r[i].id);
	}
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, rank_thread, &r[i]);
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i], NULL);
		CHECK(r[i].got == 48);
	}
}

int
main(void)
{
	libs_open();
	device_open();
	CUmodule m = module("tests/emu/t_sm90.cu", NULL);
	Args p = { .c = device(sizeof c), .a = device(sizeof h), .u = device(4096) };
	products(m, &p);
	boxes(m, &p);
	if (getenv("EMU_CUDA"))
		return failures != 0;
	matmul(&p);
	ranks();
	threads();
	return failures != 0;
}
