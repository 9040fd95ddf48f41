/* Opens the library, describes the plan's GEMMs to it, and runs one in a step. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cublaslt.h"
#include "plan/target.h"

/* ---- the library ---- */

static llmc_status
open_one(LtLibrary *l, const char *const *names, int driver, llmc_error *err)
{
	const char *missing_compiler = NULL;

	*l = (LtLibrary){ 0 };
	l->lib = cuda_lib_open(names, l->path, sizeof l->path);
	if (!l->lib)
		return error_set(err, LLMC_E_MISSING,
		                 "not found, and not needed: llmc's own matrix kernels are used "
		                 "(`pip install nvidia-cublas` "
		                 "brings it)");
#define X(type, member, symbol, args)                                                              \
	do {                                                                                       \
		void *at_ = dlsym(l->lib, #symbol);                                                \
		memcpy(&l->api.member, &at_, sizeof at_);                                          \
		missing_compiler = at_ || missing_compiler ? missing_compiler : #symbol;           \
	} while (0);
	LT_CALLS(X)
#undef X
	if (missing_compiler)
		return error_set(err, LLMC_E_MISSING,
		                 "%s is too old: it lacks %s; llmc's own matrix kernels are used",
		                 l->path, missing_compiler);
	l->version = l->api.version();
	int runtime = (int)l->api.runtime();
	if (driver && runtime / 1000 > driver / 1000)
		return error_set(err, LLMC_E_MISSING,
		                 "%s is of CUDA %d.%d, the driver is for CUDA %d: llmc's own "
		                 "matrix kernels are used",
		                 l->path, runtime / 1000, runtime % 1000 / 10, driver / 1000);
	return LLMC_OK;
}

llmc_status
lt_library_open(LtLibrary *l, int driver, llmc_error *err)
{
	llmc_status status = open_one(l, cuda_blaslt_names, driver, err);

	/* the first library may require a newer driver, while an older one next to it does not */
	for (const char *const *name = cuda_blaslt_names; status != LLMC_OK && l->lib && *name;
	     name++) {
		const char *const one[] = { *name, NULL };
		LtLibrary other;
		if (open_one(&other, one, driver, NULL) != LLMC_OK) {
			lt_library_close(&other);
			continue;
		}
		lt_library_close(l);
		*l = other;
		status = LLMC_OK;
	}
	if (status != LLMC_OK)
		lt_library_close(l);
	return status;
}

void
lt_library_close(LtLibrary *l)
{
	if (l->lib)
		dlclose(l->lib);
	l->lib = NULL;
}

/* ---- GEMMs of a session ---- */

typedef enum LtMode { LT_AUTO, LT_ALWAYS, LT_NEVER } LtMode;

/* LLMC_CUBLASLT; -1: not a known word */
static int
get_mode(const char **text)
{
	static const char *const name[] = {
		[LT_AUTO] = "auto", [LT_ALWAYS] = "always", [LT_NEVER] = "never"
	};

	*text = getenv("LLMC_CUBLASLT");
	for (int i = 0; *text && **text && i <= LT_NEVER; i++)
		if (!strcmp(*text, name[i]))
			return i;
	return *text && **text ? -1 : LT_AUTO;
}

static bool
has_products(const Plan *p)
{
	for (int i = 0; i < p->n_kernel; i++)
		if (plan_library_gemm(&p->kernel[i]))
			return true;
	return false;
}

static bool
is_wanted(const Session *s, int mode)
{
	return (mode == LT_ALWAYS || (mode == LT_AUTO && s->sym[SYM_n_tok] >= LT_MIN_ROWS)) &&
	       has_products(s->plan);
}

int64_t
cublaslt_bytes(const Session *s)
{
	const char *text;
	const Target *t = target_find(s->plan->target);

	if (!t || !is_wanted(s, get_mode(&text)))
		return 0;
	return t->arch >= 90 ? 32 << 20 : 4 << 20; /* NVIDIA's recommendation */
}

static void *
argument(const CudaStep *k, int i)
{
	return i < 0 ? NULL : k->call.a[i];
}

/* The library's heuristics assume that matrices are aligned to 256 bytes. */
static bool
is_aligned(const CudaStep *k, const PlanGemm *p)
{
	uintptr_t all = (uintptr_t)argument(k, p->act) | (uintptr_t)argument(k, p->w) |
	                (uintptr_t)argument(k, p->y) | (uintptr_t)argument(k, p->add);

	return all % 256 == 0;
}

static int
type_of(Dtype d)
{
	return d == DT_BF16 ? LT_R_16BF : d == DT_F16 ? LT_R_16F : LT_R_32F;
}

/* Returns false if the library does not support it. */
static bool
describe(CublasLt *lt, LtMatmul *p, Dtype weights)
{
	const LtApi *f = &lt->l.api;
	int type = type_of(weights), y = type_of(dtype_from_text(p->kernel->arg[p->p->y].type)),
	    yes = 1;
	uint64_t rows = (uint64_t)p->rows, cols = (uint64_t)p->cols;

	p->n = 1;
	return f->desc_create(&p->desc, LT_COMPUTE_32F, LT_R_32F) == LT_OK &&
	       f->desc_set(p->desc, LT_DESC_TRANSA, &yes, sizeof yes) == LT_OK &&
	       f->layout_create(&p->w, type, cols, rows, p->cols) == LT_OK &&
	       f->layout_create(&p->x, type, cols, p->n, p->cols) == LT_OK &&
	       f->layout_create(&p->y, y, rows, p->n, p->rows) == LT_OK;
}

static void
forget(CublasLt *lt, LtMatmul *p)
{
	const LtApi *f = &lt->l.api;

	if (p->desc)
		(void)f->desc_destroy(p->desc);
	if (p->w)
		(void)f->layout_destroy(p->w);
	if (p->x)
		(void)f->layout_destroy(p->x);
	if (p->y)
		(void)f->layout_destroy(p->y);
	p->desc = NULL;
	p->w = p->x = p->y = NULL;
}

/* One entry for each kernel of mixed steps that has a plain GEMM. */
static llmc_status
gather(CudaSession *c, CublasLt *lt, llmc_error *err)
{
	const Plan *plan = c->s->plan;

	lt->of = calloc((size_t)plan->n_kernel + 1, sizeof *lt->of);
	lt->product = calloc((size_t)plan->n_kernel + 1, sizeof *lt->product);
	if (!lt->of || !lt->product)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	memset(lt->of, -1, (size_t)plan->n_kernel * sizeof *lt->of);
	for (int i = 0; i < plan->phase[1].n_step; i++) {
		const CudaStep *k = &c->step[1][i];
		const PlanGemm *p = plan_library_gemm(k->kernel);
		if (!p)
			continue;
		int *of = &lt->of[k->step->kernel];
		if (*of < 0) {
			LtMatmul *to = &lt->product[lt->n_product];
			*to = (LtMatmul){ .kernel = k->kernel,
				          .p = p,
				          .rows = k->kernel->arg[p->y].extent.mul,
				          .cols = k->kernel->arg[p->act].extent.mul };
			*of = lt->n_product++;
			if (!describe(lt, to, plan->tensor[k->step->arg[p->w].index].dtype))
				forget(lt, to);
		}
		if (!is_aligned(k, p))
			forget(lt, &lt->product[*of]);
	}
	return LLMC_OK;
}

llmc_status
lt_start(CudaSession *c, llmc_error *err)
{
	const char *text;
	int mode = get_mode(&text);
	llmc_error why = { 0 };

	if (mode < 0)
		return error_set(err, LLMC_E_INPUT,
		                 "LLMC_CUBLASLT is \"%s\", expected auto, always or never", text);
	if (!is_wanted(c->s, mode))
		return LLMC_OK;
	CublasLt *lt = c->lt = calloc(1, sizeof *lt);
	if (!lt)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	lt->always = mode == LT_ALWAYS;
	if (lt_library_open(&lt->l, c->m->dev.driver, &why) != LLMC_OK) {
		cublaslt_close(c);
		return mode == LT_ALWAYS
		           ? error_set(err, LLMC_E_MISSING,
		                       "LLMC_CUBLASLT is \"always\", but cuBLASLt: %s", why.text)
		           : LLMC_OK;
	}
	lt->workspace_bytes = cublaslt_bytes(c->s);
	return gather(c, lt, err);
}

/* A failure of the library, or a lack of memory for its kernels, is not an error: our own kernels
 * run. */
llmc_status
lt_connect(CudaSession *c, bool *done, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	CublasLt *lt = c->lt;
	const LtApi *f = &lt->l.api;
	uint64_t bytes = (uint64_t)lt->workspace_bytes;

	*done = false;
	if (f->create(&lt->handle) != LT_OK || f->pref_create(&lt->pref) != LT_OK ||
	    f->pref_set(lt->pref, LT_PREF_WORKSPACE, &bytes, sizeof bytes) != LT_OK)
		return LLMC_OK;
	CUresult r = d->api.mem_alloc(&lt->workspace, bytes);
	if (r == CU_OUT_OF_MEMORY) {
		lt->workspace = 0;
		return LLMC_OK;
	}
	CUDA_TRY(d, r, "allocating the workspace of cuBLASLt");
	*done = true;
	return LLMC_OK;
}

void
cublaslt_close(CudaSession *c)
{
	CublasLt *lt = c->lt;

	c->lt = NULL;
	if (!lt)
		return;
	for (int i = 0; i < lt->n_product; i++)
		forget(lt, &lt->product[i]);
	if (lt->pref)
		(void)lt->l.api.pref_destroy(lt->pref);
	if (lt->handle)
		(void)lt->l.api.destroy(lt->handle);
	if (lt->workspace)
		CUDA_RELEASE(c->m->dev.api.mem_free(lt->workspace));
	lt_library_close(&lt->l);
	free(lt->product);
	free(lt->of);
	free(lt);
}

/* ---- a step ---- */

static bool
set_rows(const CublasLt *lt, LtMatmul *p, uint64_t n)
{
	const LtApi *f = &lt->l.api;

	if (p->n == n)
		return true;
	p->n = 0;
	if (f->layout_set(p->x, LT_LAYOUT_COLS, &n, sizeof n) != LT_OK ||
	    f->layout_set(p->y, LT_LAYOUT_COLS, &n, sizeof n) != LT_OK)
		return false;
	p->n = n;
	return true;
}

bool
lt_heuristic(const CublasLt *lt, LtMatmul *p, int32_t n, LtAlgo *out)
{
	LtHeuristic h = { .state = LT_NOT_SUPPORTED };
	int found = 0;

	if (!p->desc || !set_rows(lt, p, (uint64_t)n) ||
	    lt->l.api.heuristic(lt->handle, p->desc, p->w, p->x, p->y, p->y, lt->pref, 1, &h,
	                        &found) != LT_OK ||
	    found < 1 || h.state != LT_OK || h.workspace > (size_t)lt->workspace_bytes)
		return false;
	*out = h.algo;
	return true;
}

LtChoice *
lt_find(LtMatmul *p, int64_t n)
{
	/* A choice measured for many more rows does not apply to these: neighbouring choices differ
	 * by at most a factor of 4. */
	for (int i = 0; i < p->n_choice; i++)
		if (p->choice[i].rows >= n)
			return p->choice[i].rows < 4 * n ? &p->choice[i] : NULL;
	return NULL;
}

LtChoice *
cublaslt_choice(CudaSession *c, const CudaStep *k, int64_t n)
{
	CublasLt *lt = c->lt;

	if (!lt || k->step->kernel < 0 || lt->of[k->step->kernel] < 0 ||
	    (n < LT_MIN_ROWS && !lt->always))
		return NULL;
	LtChoice *by = lt_find(&lt->product[lt->of[k->step->kernel]], n);
	return by && by->library ? by : NULL;
}

/* Run the library's algorithm. It may reject a row count although it was chosen for a larger one;
 * then nothing has been queued and our own kernels run. */
static bool
is_refusal(int status)
{
	return status == LT_NOT_SUPPORTED || status == LT_INVALID_VALUE ||
	       status == LT_ARCH_MISMATCH || status == LT_ALLOC_FAILED;
}

llmc_status
cublaslt_matmul(CudaSession *c, const CudaStep *k, LtChoice *by, int64_t n, llmc_error *err)
{
	CublasLt *lt = c->lt;
	LtMatmul *p = &lt->product[lt->of[k->step->kernel]];
	float one = 1, beta = p->p->add < 0 ? 0 : (float)p->p->beta;
	void *y = k->call.a[p->p->y], *add = p->p->add < 0 ? y : k->call.a[p->p->add];
	int r = LT_NOT_SUPPORTED;

	if (set_rows(lt, p, (uint64_t)n))
		r = lt->l.api.matmul(lt->handle, p->desc, &one, k->call.a[p->p->w], p->w,
		                     k->call.a[p->p->act], p->x, &beta, add, p->y, y, p->y,
		                     &by->algo, (void *)(uintptr_t)lt->workspace,
		                     (size_t)lt->workspace_bytes, c->stream);
	if (is_refusal(r)) {
		by->library = 0;
		return LLMC_OK;
	}
	if (r != LT_OK)
		return error_set(err, LLMC_E_DEVICE,
		                 "cuBLASLt: multiplying %lld rows of %lld with weights [%lld, "
		                 "%lld] failed: %s (%s); "
		                 "LLMC_CUBLASLT=never does without the library",
		                 (long long)n, (long long)p->cols, (long long)p->rows,
		                 (long long)p->cols, lt->l.api.status_name(r), lt->l.path);
	lt->n_done++;
	return LLMC_OK;
}
