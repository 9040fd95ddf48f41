/* Choose between our own kernel and cuBLASLt for each GEMM and number of rows. Both run on the
 * session's own buffers and weights before its first step. The faster one is stored in the cache
 * with the algorithm that the library chose, so nothing is measured twice on a machine. One start
 * measures for at most BUDGET_S but makes at least one choice. GEMMs without a choice use our own
 * kernels until a later start. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/sha256.h"
#include "runtime/build/kernel_build.h"
#include "runtime/cuda/cublaslt.h"

#define BUDGET_S 0.5
enum {
	ROUNDS = 3,
	STEPS = 4 /* layers are used in turn, so that weights come from memory as in a model */
};
static const char mark[8] = "llmc lt1";

static void
keep(LtMatmul *p, const LtChoice *c)
{
	int at = p->n_choice;

	if (at == LT_MAX_CHOICES)
		return;
	for (p->n_choice++; at > 0 && p->choice[at - 1].rows > c->rows; at--)
		p->choice[at] = p->choice[at - 1];
	p->choice[at] = *c;
}

/* Row counts to measure: powers of two, then the largest step of the session. */
static int
list_rows(const CudaSession *c, int32_t first, int32_t rows[LT_MAX_CHOICES])
{
	int64_t most = c->s->sym[SYM_n_tok];
	int n = 0;

	for (int64_t r = first; r < most && n < LT_MAX_CHOICES - 1; r *= 2)
		rows[n++] = (int32_t)r;
	rows[n++] = (int32_t)most;
	return n;
}

/* ---- the cache ---- */

/* Key of a measurement: hash of device, driver, library and our own kernel. */
static llmc_status
cache_path(const CudaSession *c, const LtMatmul *p, char key[65], Strbuf *out, llmc_error *err)
{
	const CudaDevice *d = &c->m->dev;
	char text[1024];
	Sha256 sum;

	snprintf(text, sizeof text, "%s %d %d %d %zu %lld %s %lld %lld", d->name, d->cc, d->n_sm,
	         d->driver, c->lt->l.version, (long long)c->lt->workspace_bytes, p->kernel->symbol,
	         (long long)p->rows, (long long)p->cols);
	sha256_init(&sum);
	sha256_add(&sum, text, strlen(text) + 1);
	sha256_hex(&sum, key);
	TRY(file_cache_dir(out, err));
	strbuf_printf(out, "/cublaslt/%.32s", key);
	return out->failed ? error_set(err, LLMC_E_MEMORY, "out of memory") : LLMC_OK;
}

/* A missing or damaged file, or one of another user, is ignored. */
static void
read_cached_choice(const CudaSession *c, LtMatmul *p)
{
	Strbuf path = { 0 }, held = { 0 };
	char key[65];

	if (cache_path(c, p, key, &path, NULL) == LLMC_OK &&
	    checked_read(strbuf_str(&path), mark, key, &held, NULL) == LLMC_OK &&
	    held.len % sizeof(LtChoice) == 0)
		for (size_t i = 0; i < held.len / sizeof(LtChoice); i++) {
			LtChoice one;
			memcpy(&one, held.data + i * sizeof one, sizeof one);
			if (one.rows >= LT_MIN_ROWS && (one.library == 0 || one.library == 1))
				keep(p, &one);
		}
	strbuf_release(&path);
	strbuf_release(&held);
}

/* A failure to write only means that the next start measures again. */
static void
write_cached_choice(const CudaSession *c, const LtMatmul *p)
{
	Strbuf path = { 0 }, dir = { 0 };
	char key[65];

	if (cache_path(c, p, key, &path, NULL) == LLMC_OK &&
	    file_cache_dir(&dir, NULL) == LLMC_OK) {
		strbuf_puts(&dir, "/cublaslt");
		if (file_mkdirs_private(strbuf_str(&dir), NULL) == LLMC_OK)
			(void)!checked_write(strbuf_str(&path), mark, key, p->choice,
			                     (size_t)p->n_choice * sizeof *p->choice, NULL);
	}
	strbuf_release(&path);
	strbuf_release(&dir);
}

static bool
is_covered(const LtMatmul *p, int32_t rows)
{
	for (int i = 0; i < p->n_choice; i++)
		if (p->choice[i].rows >= rows && p->choice[i].rows < 2 * (int64_t)rows)
			return true;
	return false;
}

/* Read all choices from the cache. False: all are there, and all are our own kernels, so the
 * library is not needed. */
static bool
recall_all(CudaSession *c)
{
	int32_t rows[LT_MAX_CHOICES];
	bool needed = false;

	for (int i = 0, n = list_rows(c, LT_MIN_ROWS, rows); i < c->lt->n_product && !c->lt->always;
	     i++) {
		LtMatmul *p = &c->lt->product[i];
		if (!p->desc)
			continue;
		read_cached_choice(c, p);
		for (int k = 0; k < n; k++)
			needed = needed || !is_covered(p, rows[k]);
		for (int k = 0; k < p->n_choice; k++)
			needed = needed || p->choice[k].library;
	}
	return needed || c->lt->always;
}

/* ---- measuring ---- */

typedef struct Measure {
	CudaSession *c;
	LtMatmul *p;
	int n_step;
	CudaStep *step[STEPS];
	CUevent from, to;
	int64_t sym[SYM_COUNT];
	double end;     /* time at which the budget ends */
	int n_measured; /* choices made; each start makes progress however slow the machine is */
} Measure;

/* Use weights as activations. 16-bit weights have the right type, and their bits read as f32 are
 * finite too. With zeros or uninitialised memory the GPU would draw another power and run at
 * another clock frequency. */
static llmc_status
fill_step(Measure *m, const CudaStep *k, llmc_error *err)
{
	CudaDevice *d = &m->c->m->dev;
	const Session *s = m->c->s;
	CUdeviceptr from = cuda_address(k->call.a[m->p->p->w]);
	int64_t have = 2 * m->p->rows * m->p->cols;

	for (int i = 0; i < k->step->n_arg; i++) {
		const PlanKernelArg *a = &m->p->kernel->arg[i];
		const PlanRef *r = &k->step->arg[i];
		if (r->kind != REF_BUFFER || i == m->p->p->y ||
		    (a->dir != DIR_IN && a->dir != DIR_SCRATCH))
			continue;
		const PlanBuffer *b = &s->plan->buffer[r->index];
		int64_t bytes =
		    plan_extent_elems(&a->extent, s->sym) * dtype_info(b->dtype)->block_bytes;
		for (int64_t at = 0; b->dtype != DT_I32 && at < bytes; at += have)
			CUDA_TRY(d,
			         d->api.copy_on(cuda_address(k->call.a[i]) + (CUdeviceptr)at, from,
			                        (size_t)(bytes - at < have ? bytes - at : have),
			                        m->c->stream),
			         "preparing to measure GEMMs");
	}
	return LLMC_OK;
}

static llmc_status
set_step(Measure *m, int32_t rows, llmc_error *err)
{
	CudaDevice *d = &m->c->m->dev;
	const int n[4] = { rows, 0, 1, 0 };

	cuda_symbols(m->c, m->sym, rows, 0, 1, 0);
	/* pageable memory: the driver has read it when the call returns */
	CUDA_TRY(d, d->api.copy_up(cuda_address(m->c->st.s_n), n, sizeof n, m->c->stream),
	         "preparing to measure GEMMs");
	return LLMC_OK;
}

/* Time one run of a candidate. An untimed run is queued first, so that the device does not wait for
 * the host. by NULL: our own kernel. */
static llmc_status
time_once(Measure *m, LtChoice *by, int round, float *us, llmc_error *err)
{
	CudaDevice *d = &m->c->m->dev;
	CUstream stream = m->c->stream;

	TRY(cuda_launch_kernel(m->c, m->step[2 * round % m->n_step], m->sym, by, true, err));
	CUDA_TRY(d, d->api.event_record(m->from, stream), "measuring GEMMs");
	TRY(cuda_launch_kernel(m->c, m->step[(2 * round + 1) % m->n_step], m->sym, by, true, err));
	CUDA_TRY(d, d->api.event_record(m->to, stream), "measuring GEMMs");
	CUDA_TRY(d, d->api.event_sync(m->to), "measuring GEMMs");
	CUDA_TRY(d, d->api.event_ms(us, m->from, m->to), "measuring GEMMs");
	*us *= 1000;
	return LLMC_OK;
}

static float
median(const float t[ROUNDS])
{
	float low = t[0] < t[1] ? t[0] : t[1], high = t[0] < t[1] ? t[1] : t[0];

	return t[2] < low ? low : t[2] > high ? high : t[2];
}

/* Measure one row count. The library is chosen only if it is clearly faster. */
static llmc_status
measure_rows(Measure *m, int32_t rows, llmc_error *err)
{
	LtChoice one = { .rows = rows, .library = 1 };
	float own[ROUNDS], library[ROUNDS];
	llmc_error why = { 0 };

	if (!lt_heuristic(m->c->lt, m->p, rows, &one.algo)) {
		one.library = 0;
		keep(m->p, &one);
		return LLMC_OK;
	}
	TRY(set_step(m, rows, err));
	for (int i = 0; i < ROUNDS && one.library; i++) {
		TRY(time_once(m, NULL, i, &own[i], err));
		if (time_once(m, &one, i, &library[i], &why) == LLMC_OK)
			continue;
		if (atomic_load(&m->c->m->dev.lost)) {
			if (err)
				*err = why;
			return why.code;
		}
		one.library = 0; /* a library that fails here is not tried again */
	}
	if (one.library) { /* cleared when the library rejected it */
		one.own_us = median(own);
		one.library_us = median(library);
		one.library = one.library_us < 0.98f * one.own_us;
	}
	keep(m->p, &one);
	return LLMC_OK;
}

/* Measure the largest steps first, because they process most tokens of a prompt. */
static llmc_status
measure(Measure *m, llmc_error *err)
{
	CudaSession *c = m->c;
	int32_t rows[LT_MAX_CHOICES];
	int n = list_rows(c, LT_MIN_ROWS, rows);
	bool filled = false;

	m->n_step = 0;
	for (int i = 0; i < c->s->plan->phase[1].n_step && m->n_step < STEPS; i++)
		if (c->step[1][i].kernel == m->p->kernel)
			m->step[m->n_step++] = &c->step[1][i];
	while (n-- > 0) {
		if (is_covered(m->p, rows[n]) || (m->n_measured && clock_now() > m->end))
			continue;
		for (int i = 0; i < m->n_step && !filled; i++)
			TRY(fill_step(m, m->step[i], err));
		filled = true;
		TRY(measure_rows(m, rows[n], err));
		m->n_measured++;
	}
	if (filled)
		write_cached_choice(c, m->p);
	return LLMC_OK;
}

static llmc_status
measure_all(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	Measure m = { .c = c, .end = clock_now() + BUDGET_S };
	llmc_status status = LLMC_OK;

	CUDA_TRY(d, d->api.event_create(&m.from, 0), "making an event");
	CUresult r = d->api.event_create(&m.to, 0);
	if (r != CU_OK)
		status = cuda_error(d, r, err, "making an event");
	for (int i = 0; i < c->lt->n_product && status == LLMC_OK; i++) {
		m.p = &c->lt->product[i];
		if (m.p->desc)
			status = measure(&m, err);
	}
	if (status == LLMC_OK &&
	    (r = d->api.set8(cuda_address(c->st.s_n), 0, 4 * sizeof(int), c->stream)) != CU_OK)
		status = cuda_error(d, r, err, "clearing the step");
	CUDA_RELEASE(d->api.event_destroy(m.from));
	if (m.to)
		CUDA_RELEASE(d->api.event_destroy(m.to));
	return status;
}

static llmc_status
choose(CudaSession *c, llmc_error *err)
{
	int32_t rows[LT_MAX_CHOICES];

	if (!c->lt->always)
		return measure_all(c, err);
	for (int i = 0, n = list_rows(c, 1, rows); i < c->lt->n_product; i++)
		for (int k = 0; k < n; k++) {
			LtChoice one = { .rows = rows[k] };
			one.library = lt_heuristic(c->lt, &c->lt->product[i], rows[k], &one.algo);
			keep(&c->lt->product[i], &one);
		}
	return LLMC_OK;
}

llmc_status
cublaslt_open(CudaSession *c, llmc_error *err)
{
	bool done = false;

	TRY(lt_start(c, err));
	if (!c->lt)
		return LLMC_OK;
	if (recall_all(c))
		TRY(lt_connect(c, &done, err));
	if (!done) {
		cublaslt_close(c);
		return LLMC_OK;
	}
	return choose(c, err);
}
