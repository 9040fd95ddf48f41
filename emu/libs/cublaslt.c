/* Emulated cuBLASLt: the calls for one matmul D = epilogue(alpha op(A) op(B) + beta C), with fp32
 * sums, operands in f32, f16 or bf16, and column or row order. One heuristic is offered, which
 * needs no workspace. Terms are added in the order of k. */
#include "../core/stream_library.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define API(ret, name, args)                                                                       \
	__attribute__((visibility("default"))) ret name args;                                      \
	__attribute__((visibility("default"))) ret name args
enum {
	OK_ = 0,
	NOT_INITIALIZED = 1,
	ALLOC_FAILED = 3,
	INVALID_VALUE = 7,
	ARCH_MISMATCH = 8,
	EXECUTION_FAILED = 13,
	INTERNAL_ERROR = 14,
	NOT_SUPPORTED = 15
};
enum { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum { EPI_RELU = 2, EPI_BIAS = 4, EPI_GELU = 32 };

typedef struct {
	uint32_t magic;
} LtHandleState;
typedef struct {
	int compute, scale, pointer_mode, transa, transb, epilogue, bias_type;
	const void *bias;
} Desc;
typedef struct {
	int type, order;
	uint64_t rows, cols;
	int64_t ld;
	int batch;
	int64_t stride;
} MatrixLayout;
typedef struct {
	uint64_t workspace;
} Preference;
typedef struct {
	uint64_t data[8];
} Algo;
typedef struct {
	Algo algo;
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
} Heuristic;
typedef struct {
	Desc op;
	MatrixLayout a, b, c, d;
	const void *pa, *pb, *pc;
	void *pd;
	float alpha, beta;
} MatmulDesc;

API(size_t, cublasLtGetVersion, (void))
{
	return 130000;
}
API(size_t, cublasLtGetCudartVersion, (void))
{
	return 13000;
}

API(const char *, cublasLtGetStatusName, (int s))
{
	switch (s) {
	case OK_:
		return "CUBLAS_STATUS_SUCCESS";
	case NOT_INITIALIZED:
		return "CUBLAS_STATUS_NOT_INITIALIZED";
	case ALLOC_FAILED:
		return "CUBLAS_STATUS_ALLOC_FAILED";
	case INVALID_VALUE:
		return "CUBLAS_STATUS_INVALID_VALUE";
	case ARCH_MISMATCH:
		return "CUBLAS_STATUS_ARCH_MISMATCH";
	case EXECUTION_FAILED:
		return "CUBLAS_STATUS_EXECUTION_FAILED";
	case INTERNAL_ERROR:
		return "CUBLAS_STATUS_INTERNAL_ERROR";
	case NOT_SUPPORTED:
		return "CUBLAS_STATUS_NOT_SUPPORTED";
	default:
		return "CUBLAS_STATUS_UNKNOWN";
	}
}
API(const char *, cublasLtGetStatusString, (int s))
{
	return cublasLtGetStatusName(s);
}

/* Returns the status with which a call that was made to fail returns: the injected number if it is
 * a status of the library, otherwise `status`. */
static int
fails(const char *name, int status)
{
	int code = emu_library_call(name);

	return !code ? OK_
	       : code == ALLOC_FAILED || code == INVALID_VALUE || code == ARCH_MISMATCH ||
	               code == NOT_SUPPORTED
	           ? code
	           : status;
}
#define FAILS(name, status)                                                                        \
	do {                                                                                       \
		int r_ = fails(#name, status);                                                     \
		if (r_)                                                                            \
			return r_;                                                                 \
	} while (0)

API(int, cublasLtCreate, (LtHandleState * *h))
{
	if (!h)
		return INVALID_VALUE;
	FAILS(cublasLtCreate, NOT_INITIALIZED);
	if (emu_library_device() < 0)
		return NOT_INITIALIZED;
	*h = calloc(1, sizeof **h);
	(*h)->magic = 0x6c74;
	return OK_;
}

API(int, cublasLtDestroy, (LtHandleState * h))
{
	if (!h)
		return NOT_INITIALIZED;
	(void)emu_library_call("cublasLtDestroy");
	free(h);
	return OK_;
}

API(int, cublasLtMatmulDescCreate, (Desc * *d, int compute, int scale))
{
	if (!d)
		return INVALID_VALUE;
	FAILS(cublasLtMatmulDescCreate, ALLOC_FAILED);
	if (compute < 64 || compute > 78 || scale != R_32F)
		return NOT_SUPPORTED;
	*d = calloc(1, sizeof **d);
	**d = (Desc){ .compute = compute, .scale = scale, .epilogue = 1, .bias_type = -1 };
	return OK_;
}
API(int, cublasLtMatmulDescDestroy, (Desc * d))
{
	(void)emu_library_call("cublasLtMatmulDescDestroy");
	free(d);
	return OK_;
}

static int
set(void *to, size_t size, const void *from, size_t n)
{
	if (!from || n != size)
		return INVALID_VALUE;
	memcpy(to, from, n);
	return OK_;
}

API(int, cublasLtMatmulDescSetAttribute, (Desc * d, int attr, const void *v, size_t n))
{
	if (!d)
		return INVALID_VALUE;
	FAILS(cublasLtMatmulDescSetAttribute, INVALID_VALUE);
	switch (attr) {
	case 0:
		return set(&d->compute, 4, v, n);
	case 1:
		return set(&d->scale, 4, v, n);
	case 2:
		return set(&d->pointer_mode, 4, v, n);
	case 3:
		return set(&d->transa, 4, v, n);
	case 4:
		return set(&d->transb, 4, v, n);
	case 7:
		return set(&d->epilogue, 4, v, n);
	case 8:
		return set(&d->bias, sizeof d->bias, v, n);
	case 26:
		return set(&d->bias_type, 4, v, n);
	default:
		return NOT_SUPPORTED;
	}
}

API(int, cublasLtMatrixLayoutCreate,
    (MatrixLayout * *l, int type, uint64_t rows, uint64_t cols, int64_t ld))
{
	if (!l || !rows || !cols)
		return INVALID_VALUE;
	FAILS(cublasLtMatrixLayoutCreate, ALLOC_FAILED);
	*l = calloc(1, sizeof **l);
	**l = (MatrixLayout){ .type = type, .rows = rows, .cols = cols, .ld = ld, .batch = 1 };
	return OK_;
}
API(int, cublasLtMatrixLayoutDestroy, (MatrixLayout * l))
{
	(void)emu_library_call("cublasLtMatrixLayoutDestroy");
	free(l);
	return OK_;
}

API(int, cublasLtMatrixLayoutSetAttribute, (MatrixLayout * l, int attr, const void *v, size_t n))
{
	if (!l)
		return INVALID_VALUE;
	FAILS(cublasLtMatrixLayoutSetAttribute, INVALID_VALUE);
	switch (attr) {
	case 0:
		return set(&l->type, 4, v, n);
	case 1:
		return set(&l->order, 4, v, n);
	case 2:
		return set(&l->rows, 8, v, n);
	case 3:
		return set(&l->cols, 8, v, n);
	case 4:
		return set(&l->ld, 8, v, n);
	case 5:
		return set(&l->batch, 4, v, n);
	case 6:
		return set(&l->stride, 8, v, n);
	default:
		return NOT_SUPPORTED;
	}
}

API(int, cublasLtMatmulPreferenceCreate, (Preference * *p))
{
	if (!p)
		return INVALID_VALUE;
	FAILS(cublasLtMatmulPreferenceCreate, ALLOC_FAILED);
	*p = calloc(1, sizeof **p);
	return OK_;
}
API(int, cublasLtMatmulPreferenceDestroy, (Preference * p))
{
	(void)emu_library_call("cublasLtMatmulPreferenceDestroy");
	free(p);
	return OK_;
}
API(int, cublasLtMatmulPreferenceSetAttribute, (Preference * p, int attr, const void *v, size_t n))
{
	if (!p)
		return INVALID_VALUE;
	FAILS(cublasLtMatmulPreferenceSetAttribute, INVALID_VALUE);
	return attr == 1 ? set(&p->workspace, 8, v, n) : OK_;
}

static size_t
elem(int type)
{
	return type == R_32F ? 4 : type == R_16F || type == R_16BF ? 2 : 0;
}

/* Refuses descriptors that the library would refuse. */
static int
refuse(const Desc *op, const MatrixLayout *a, const MatrixLayout *b, const MatrixLayout *c,
       const MatrixLayout *d)
{
	const MatrixLayout *all[] = { a, b, c, d };

	if (!op || !a || !b || !c || !d)
		return INVALID_VALUE;
	for (int i = 0; i < 4; i++) {
		if (!elem(all[i]->type) || all[i]->batch != 1 || (unsigned)all[i]->order > 1 ||
		    op->pointer_mode)
			return NOT_SUPPORTED;
		if (all[i]->ld < (int64_t)(all[i]->order ? all[i]->cols : all[i]->rows))
			return INVALID_VALUE;
	}
	uint64_t m = op->transa ? a->cols : a->rows, ka = op->transa ? a->rows : a->cols,
	         kb = op->transb ? b->cols : b->rows, n = op->transb ? b->rows : b->cols;
	if (m != d->rows || n != d->cols || ka != kb || c->rows != d->rows || c->cols != d->cols ||
	    op->transa > 1 || op->transb > 1)
		return INVALID_VALUE;
	if (a->type != b->type || c->type != d->type || (d->type != R_32F && d->type != a->type))
		return NOT_SUPPORTED;
	if (op->epilogue & ~(1 | EPI_RELU | EPI_BIAS | EPI_GELU) ||
	    ((op->epilogue & EPI_BIAS) && d->order))
		return NOT_SUPPORTED;
	if (a->type == R_16BF && emu_library_arch() < 80)
		return ARCH_MISMATCH;
	return OK_;
}

API(int, cublasLtMatmulAlgoGetHeuristic,
    (LtHandleState * h, const Desc *op, const MatrixLayout *a, const MatrixLayout *b,
     const MatrixLayout *c, const MatrixLayout *d, const Preference *p, int want, Heuristic *out,
     int *n))
{
	if (!h || !p || !out || !n || want < 1)
		return INVALID_VALUE;
	*n = 0;
	FAILS(cublasLtMatmulAlgoGetHeuristic, INTERNAL_ERROR);
	int r = refuse(op, a, b, c, d);
	if (r)
		return r;
	memset(out, 0, sizeof *out);
	out->algo.data[0] = 0x6c74;
	out->waves = 1;
	*n = 1;
	return OK_;
}

static float
half_value(uint16_t h)
{
	int e = h >> 10 & 31;
	float m = (float)(h & 1023), v = e == 31 ? (m != 0 ? NAN : INFINITY)
	                                 : e     ? ldexpf(1024 + m, e - 25)
	                                         : ldexpf(m, -24);

	return h >> 15 ? -v : v;
}

static float
load(const void *p, int type, size_t i)
{
	uint32_t u;
	float f;

	if (type == R_32F)
		return ((const float *)p)[i];
	if (type == R_16F)
		return half_value(((const uint16_t *)p)[i]);
	u = (uint32_t)((const uint16_t *)p)[i] << 16;
	memcpy(&f, &u, 4);
	return f;
}

static void
store(void *p, int type, size_t i, float v)
{
	uint32_t u;

	if (type == R_32F) {
		((float *)p)[i] = v;
	} else if (type == R_16BF) {
		memcpy(&u, &v, 4);
		((uint16_t *)p)[i] =
		    v != v ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
	} else { /* rounds to nearest even, by the CPU's own addition */
		float a = fabsf(v);
		int e;
		uint16_t h;
		if (v != v) {
			h = 0x7fff;
		} else if (a >= 65520) {
			h = 0x7c00;
		} else {
			frexpf(a, &e);
			e = e < -13 ? -13 : e;
			float unit = ldexpf(1, e - 11),
			      n = nearbyintf(a / unit); /* a = n units, n <= 2048 */
			h = (uint16_t)(e == -13 ? (unsigned)n
			                        : (unsigned)((e + 13) << 10) + (unsigned)n);
		}
		((uint16_t *)p)[i] = (uint16_t)(h | (signbit(v) ? 0x8000 : 0));
	}
}

static size_t
at(const MatrixLayout *l, uint64_t r, uint64_t c)
{
	return l->order ? (size_t)(r * (uint64_t)l->ld + c) : (size_t)(c * (uint64_t)l->ld + r);
}

static size_t
bytes(const MatrixLayout *l)
{
	return (at(l, l->rows - 1, l->cols - 1) + 1) * elem(l->type);
}

static void
multiply(void *blob)
{
	const MatmulDesc *p = blob;
	const Desc *o = &p->op;
	uint64_t m = p->d.rows, n = p->d.cols, k = o->transa ? p->a.rows : p->a.cols;
	float *a = malloc(sizeof *a * m * k), *b = malloc(sizeof *b * k),
	      *sum = malloc(sizeof *sum * m);

	for (uint64_t x = 0; x < k; x++)
		for (uint64_t i = 0; i < m; i++)
			a[x * m + i] =
			    load(p->pa, p->a.type, o->transa ? at(&p->a, x, i) : at(&p->a, i, x));
	for (uint64_t j = 0; j < n; j++) {
		for (uint64_t x = 0; x < k; x++)
			b[x] =
			    load(p->pb, p->b.type, o->transb ? at(&p->b, j, x) : at(&p->b, x, j));
		memset(sum, 0, sizeof *sum * m);
		for (uint64_t x = 0; x < k; x++)
			for (uint64_t i = 0; i < m; i++)
				sum[i] += a[x * m + i] * b[x];
		for (uint64_t i = 0; i < m; i++) {
			float v = p->alpha * sum[i];
			if (p->beta != 0)
				v += p->beta * load(p->pc, p->c.type, at(&p->c, i, j));
			if (o->epilogue & EPI_BIAS)
				v += load(o->bias, o->bias_type < 0 ? p->d.type : o->bias_type, i);
			if (o->epilogue & EPI_RELU)
				v = v > 0 ? v : 0;
			if (o->epilogue & EPI_GELU)
				v = 0.5f * v *
				    (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
			store(p->pd, p->d.type, at(&p->d, i, j), v);
		}
	}
	free(a);
	free(b);
	free(sum);
}

API(int, cublasLtMatmul,
    (LtHandleState * h, const Desc *op, const float *alpha, const void *pa, const MatrixLayout *a,
     const void *pb, const MatrixLayout *b, const float *beta, const void *pc,
     const MatrixLayout *c, void *pd, const MatrixLayout *d, const Algo *algo, void *workspace,
     size_t workspace_bytes, void *stream))
{
	(void)workspace, (void)workspace_bytes;
	if (!h)
		return NOT_INITIALIZED;
	FAILS(cublasLtMatmul, EXECUTION_FAILED);
	int r = refuse(op, a, b, c, d);
	if (r)
		return r;
	if (!alpha || !beta || (algo && algo->data[0] != 0x6c74) ||
	    ((op->epilogue & EPI_BIAS) && !op->bias))
		return INVALID_VALUE;
	MatmulDesc p = { *op, *a, *b, *c, *d, pa, pb, pc, pd, *alpha, *beta };
	LibraryWork w = { .name = "cublasLtMatmul", .run = multiply };
	const void *read[] = { pa, pb, *beta != 0 ? pc : NULL,
		               (op->epilogue & EPI_BIAS) ? op->bias : NULL };
	size_t size[] = { bytes(a), bytes(b), bytes(c),
		          d->rows * elem(op->bias_type < 0 ? d->type : op->bias_type) };
	for (int i = 0; i < 4; i++) {
		if (!read[i])
			continue;
		if (!emu_library_memory(read[i], size[i]))
			return INVALID_VALUE;
		w.touch[w.n_touch].p = (void *)(uintptr_t)read[i];
		w.touch[w.n_touch++].n = size[i];
	}
	if (!emu_library_memory(pd, bytes(d)))
		return INVALID_VALUE;
	w.touch[w.n_touch].p = pd;
	w.touch[w.n_touch].n = bytes(d);
	w.touch[w.n_touch++].write = true;
	return emu_library_queue(stream, &w, &p, sizeof p) ? EXECUTION_FAILED : OK_;
}
