/* cuBLASLt: products of mixed steps by the vendor's library, where it is there, takes them, and
 * measures faster than our own kernels. Nothing needs it: what it lacks or refuses is done by our
 * own.
 *
 *   cublaslt.c         the library, what it is told of a plan's products, and doing one as it was chosen
 *   cublaslt_autotune.c  choosing: which way is faster, measured when a session opens, kept in the
 * cache
 *
 * LLMC_CUBLASLT: auto (also when unset), always (every product that it takes: to try it), never. */
#ifndef LLMC_RUNTIME_CUDA_CUBLASLT_H
#define LLMC_RUNTIME_CUDA_CUBLASLT_H

#include "runtime/cuda/cuda_session.h"

typedef struct LtHandle_ *LtHandle;
typedef struct LtDesc_ *LtDesc;
typedef struct LtLayout_ *LtLayout;
typedef struct LtPref_ *LtPref;
typedef struct LtAlgo {
	uint64_t data[8];
} LtAlgo; /* opaque; may be kept for the same version of the library */
typedef struct LtHeuristic {
	LtAlgo algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} LtHeuristic;
_Static_assert(sizeof(LtHeuristic) == 96, "the library's layout");

enum { /* results that are told apart */
       LT_OK = 0,
       LT_ALLOC_FAILED = 3,
       LT_INVALID_VALUE = 7,
       LT_ARCH_MISMATCH = 8,
       LT_NOT_SUPPORTED = 15,
};
enum {
	LT_R_32F = 0,
	LT_R_16F = 2,
	LT_R_16BF = 14,
	LT_COMPUTE_32F = 68,
	LT_DESC_TRANSA = 3,
	LT_LAYOUT_COLS = 3,
	LT_PREF_WORKSPACE = 1
};

/* X(type, member, symbol, arguments) */
#define LT_CALLS(X) \
	X(size_t, version, cublasLtGetVersion, (void)) \
	X(size_t, runtime, cublasLtGetCudartVersion, (void)) \
	X(const char *, status_name, cublasLtGetStatusName, (int)) \
	X(int, create, cublasLtCreate, (LtHandle *)) \
	X(int, destroy, cublasLtDestroy, (LtHandle)) \
	X(int, desc_create, cublasLtMatmulDescCreate, (LtDesc *, int compute, int scale_type)) \
	X(int, desc_destroy, cublasLtMatmulDescDestroy, (LtDesc)) \
	X(int, desc_set, cublasLtMatmulDescSetAttribute, (LtDesc, int attribute, const void *, size_t bytes)) \
	X(int, layout_create, cublasLtMatrixLayoutCreate, (LtLayout *, int type, uint64_t rows, uint64_t cols, int64_t ld)) \
	X(int, layout_destroy, cublasLtMatrixLayoutDestroy, (LtLayout)) \
	X(int, layout_set, cublasLtMatrixLayoutSetAttribute, (LtLayout, int attribute, const void *, size_t bytes)) \
	X(int, pref_create, cublasLtMatmulPreferenceCreate, (LtPref *)) \
	X(int, pref_destroy, cublasLtMatmulPreferenceDestroy, (LtPref)) \
	X(int, pref_set, cublasLtMatmulPreferenceSetAttribute, (LtPref, int attribute, const void *, size_t bytes)) \
	X(int, heuristic, cublasLtMatmulAlgoGetHeuristic, (LtHandle, LtDesc, LtLayout a, LtLayout b, LtLayout c, LtLayout d, LtPref, int want, \
	                                                   LtHeuristic *, int *found)) \
	X(int, matmul, cublasLtMatmul, (LtHandle, LtDesc, const void *alpha, const void *a, LtLayout, const void *b, LtLayout, const void *beta, \
	                                const void *c, LtLayout, void *d, LtLayout, const LtAlgo *, void *workspace, size_t bytes, CUstream))

typedef struct LtApi {
#define X(type, member, symbol, args) type(*member) args;
	LT_CALLS(X)
#undef X
} LtApi;

typedef struct LtLibrary {
	LtApi api;
	void *lib;
	char path[1024];
	size_t version; /* 130002: 13.0.2 */
} LtLibrary;

/* E_MISSING: there is none, or none that works with this driver (0: any will do). */
llmc_status lt_library_open(LtLibrary *l, int driver, llmc_error *err);
void lt_library_close(LtLibrary *l);

/* Below so many rows (in steps and in what is measured) it is always our own: they have kernels for
 * few rows. */
enum { LT_MIN_ROWS = 128, LT_MAX_CHOICES = 24 };

/* Which way for steps of up to `rows` rows; also as it lies in the cache. */
struct LtChoice {
	int32_t rows, library;    /* library: 1, or 0: our own */
	float own_us, library_us; /* 0: not measured */
	LtAlgo algo;
};
_Static_assert(sizeof(LtChoice) == 80, "as it lies in the cache");

/* The product of a kernel: of all steps that run it, on their own weights. */
typedef struct LtMatmul {
	const PlanKernel *kernel;
	const PlanGemm *p;
	int64_t rows, cols; /* of the weights */
	LtDesc desc;
	LtLayout w, x, y; /* column by column: y^T = (w^T)^T x^T */
	uint64_t n;       /* columns of x and y as they are set */
	int n_choice;
	LtChoice choice[LT_MAX_CHOICES]; /* ascending rows */
} LtMatmul;

struct CublasLt {
	LtLibrary l;
	bool always;
	LtHandle handle;
	LtPref pref;
	CUdeviceptr workspace;
	int64_t workspace_bytes;
	int n_product;
	LtMatmul *product;
	int *of;        /* [n_kernel] index of its product; -1: none */
	int64_t n_done; /* products by the library so far */
};

/* cublaslt.c: the library's algorithm for n rows. False: it has none. */
bool lt_heuristic(const CublasLt *lt, LtMatmul *p, int32_t n, LtAlgo *out);
/* cublaslt.c: the choice for a step of n rows; NULL: none has been made (yet), so our own. */
LtChoice *lt_find(LtMatmul *p, int64_t n);
/* cublaslt.c: c->lt with the plan's products, without choices; NULL when they are not wanted, or
 * there is no library. */
llmc_status lt_start(CudaSession *c, llmc_error *err);
/* cublaslt.c: a handle and its workspace. Not done: without them; an error is one of the driver. */
llmc_status lt_connect(CudaSession *c, bool *done, llmc_error *err);

#endif
