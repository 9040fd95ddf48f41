/* cuBLASLt for GEMMs of mixed steps: used where it is installed, supports the matrix, and measures
 * faster than our own kernels. The library is optional: our own kernels run every GEMM that it
 * lacks or rejects.
 *
 *   cublaslt.c           the library, descriptions of the plan's GEMMs, running one
 *   cublaslt_autotune.c  the choice, measured when a session opens and kept in the cache
 *
 * LLMC_CUBLASLT: auto (default), always (every GEMM that it supports, for experiments), never. */
#ifndef LLMC_RUNTIME_CUDA_CUBLASLT_H
#define LLMC_RUNTIME_CUDA_CUBLASLT_H

#include "runtime/cuda/cuda_session.h"

typedef struct LtHandle_ *LtHandle;
typedef struct LtDesc_ *LtDesc;
typedef struct LtLayout_ *LtLayout;
typedef struct LtPref_ *LtPref;
typedef struct LtAlgo {
	uint64_t data[8];
} LtAlgo; /* opaque; may be stored for the same version of the library */
typedef struct LtHeuristic {
	LtAlgo algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} LtHeuristic;
_Static_assert(sizeof(LtHeuristic) == 96, "the library's layout");

enum { /* results that are handled differently */
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

/* Steps with fewer rows, in use and in measurements, always run our own kernels, which have
 * variants for few rows. */
enum { LT_MIN_ROWS = 128, LT_MAX_CHOICES = 24 };

/* The choice for steps of up to `rows` rows. The cache file holds the same struct. */
struct LtChoice {
	int32_t rows, library;    /* library: 1; 0: our own kernel */
	float own_us, library_us; /* 0: not measured */
	LtAlgo algo;
};
_Static_assert(sizeof(LtChoice) == 80, "as it lies in the cache");

/* The GEMM of a kernel: shared by all steps that run it, each with its own weights. */
typedef struct LtMatmul {
	const PlanKernel *kernel;
	const PlanGemm *p;
	int64_t rows, cols; /* the weight matrix */
	LtDesc desc;
	LtLayout w, x, y; /* column-major: y^T = (w^T)^T x^T */
	uint64_t n;       /* number of columns that the layouts of x and y currently have */
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
	int *of;        /* [n_kernel] index of its GEMM; -1: none */
	int64_t n_done; /* GEMMs run by the library so far */
};

/* cublaslt.c: the library's algorithm for n rows. False: it has none. */
bool lt_heuristic(const CublasLt *lt, LtMatmul *p, int32_t n, LtAlgo *out);
/* cublaslt.c: the choice for a step of n rows; NULL: none (yet), use our own kernel. */
LtChoice *lt_find(LtMatmul *p, int64_t n);
/* cublaslt.c: set c->lt, with the plan's GEMMs and no choices; NULL if LLMC_CUBLASLT=never or there
 * is no library. */
llmc_status lt_start(CudaSession *c, llmc_error *err);
/* cublaslt.c: create a handle and its workspace. *done false: no library; an error is the
 * driver's. */
llmc_status lt_connect(CudaSession *c, bool *done, llmc_error *err);

#endif
