/* Warpgroup matrix instructions: m64nNk16 on f16 or bf16, m64nNk32 on e4m3, fp32 sums. An
 * instruction is queued when issued and computed when all 128 threads of its warpgroup wait for its
 * group. Until then its accumulators are NaN, and its operands in shared memory count as being
 * read. With g = lane / 4, q = lane % 4, w = index of the warp in its group:
 *
 *   D (64 x N)    d[4 j + 2 h + e] = (16 w + g + 8 h, 8 j + 2 q + e)
 *   A (64 x 16)   a[i], two values: (16 w + g + 8 (i & 1), 2 q + e + 8 (i >> 1))
 *
 * e4m3 has both operands in shared memory, K contiguous. A pair of bytes replaces each 16-bit
 * value. Multiplications are exact, and sums are fp32 in the order of k; hardware keeps fewer bits
 * of a sum.
 *
 * Descriptor: bits 0-13 start / 16, 16-29 leading offset / 16, 32-45 stride offset / 16, 49-51 base
 * offset, 62-63 swizzle: 0 none, 1 128, 2 64, 3 32 bytes.
 *
 *   K contiguous        rows in groups of eight, `stride` apart; without swizzle the two 8-wide
 *                       halves of K are `leading` apart
 *   M or N contiguous   with a swizzle of S bytes: S/2 rows contiguous, the next ones `leading`
 *                       apart, K in eights `stride` apart; without: rows in eights `stride` apart,
 *                       K in eights `leading` apart */
#include "emu.h"
#include "../cuda_api.h"
#include "../device/warp_ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
	int n, pending;
	float *d[128];
	float *c;
	bool dead;
} Acc; /* c: [64][n] */
typedef struct {
	int flags, n, issued, acc;
	bool regs, accumulate;
	uint64_t da, db;
	float *a;
	Site at;
} Inst; /* a: [64][16] */
typedef struct Wg {
	Inst *inst;
	int n_inst, cap, n_acc;
	/* base: number of inst[0]; want: number of the instruction that waiting threads need
	 * completed */
	uint32_t base, want;
	Acc *acc;
	int waiting;
	uint32_t lanes[4];
	Site at;
} Wg;

static Wg *
wg_of(EmuBlock *b, const Thread *t)
{
	if (!b->wg)
		b->wg = emu_alloc(sizeof *b->wg * 8);
	return &b->wg[t->warp / 4];
}

static WgThread *
mine(Thread *t)
{
	if (!t->wg)
		t->wg = emu_alloc(sizeof *t->wg);
	return t->wg;
}

static inline float
value(uint16_t h, bool f16)
{
	if (f16)
		return emu_half(h);
	uint32_t u = (uint32_t)h << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}

/* ---- descriptors ---- */

typedef struct {
	uint32_t start, lead, stride;
	unsigned width;
	bool rows;
} WgmmaLayout; /* width: bytes of the swizzle, 0: none; rows: M or N is contiguous */

static WgmmaLayout
decode(uint64_t d, bool rows, const char *which, Site at)
{
	static const unsigned widths[4] = { 0, 128, 64, 32 };
	WgmmaLayout l = { (uint32_t)(d & 0x3fff) * 16, (uint32_t)(d >> 16 & 0x3fff) * 16,
		          (uint32_t)(d >> 32 & 0x3fff) * 16, widths[d >> 62], rows };

	if (d >> 52 & 0x3ff || d >> 14 & 3 || d >> 30 & 3 || d >> 46 & 7)
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "descriptor of %s: bits are set that must be zero (0x%016lx)", which,
		        (unsigned long)d);
	if (d >> 49 & 7)
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "descriptor of %s: a base offset is not emulated; start the swizzle "
		        "pattern at its own multiple",
		        which);
	/* The swizzle pattern repeats every 8 rows. An operand may start anywhere within the first
	 * row, but at no other row of the pattern. */
	if (l.width && (l.start & (8 * l.width - 1)) >= l.width)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "descriptor of %s: swizzle of %u bytes starts at offset %u, not a multiple "
		        "of %u",
		        which, l.width, l.start, 8 * l.width);
	if (l.width && l.stride % (8 * l.width) && !rows)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "descriptor of %s: stride offset %u breaks the swizzle pattern of %u bytes",
		        which, l.stride, 8 * l.width);
	return l;
}

/* Returns the arena offset of 16 bytes: eight values along K of row i, or eight rows at one k. */
static uint32_t
place(const WgmmaLayout *l, int i, int k)
{
	uint32_t a, w = l->width;

	if (!l->rows)
		a = w ? (uint32_t)(i / 8) * l->stride + (uint32_t)(i % 8) * w + (uint32_t)k * 2
		      : (uint32_t)(i / 8) * l->stride + (uint32_t)(i % 8) * 16 +
		            (uint32_t)(k / 8) * l->lead;
	else
		a = w ? (uint32_t)i / (w / 2) * l->lead + (uint32_t)i % (w / 2) * 2 +
		            (uint32_t)(k % 8) * w + (uint32_t)(k / 8) * l->stride
		      : (uint32_t)(i / 8) * l->stride + (uint32_t)(k / 8) * l->lead +
		            (uint32_t)(k % 8) * 16;
	a += l->start;
	return w ? a ^ ((a >> 7 & (w / 16 - 1)) << 4) : a;
}

static void
check_operand(uint64_t desc, bool rows, int lo, int hi, const char *which, uint32_t clk, Site at)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	WgmmaLayout l = decode(desc, rows, which, at);
	int di = rows ? 8 : 1, dk = rows ? 1 : 8;

	for (int i = lo; i < hi; i += di)
		for (int k = 0; k < 16; k += dk) {
			uint32_t a = place(&l, i, k);
			if (emu_check)
				shadow_async_read(b->arena->lo + a, 16,
				                  CLOCK_WG(b, (int)t->warp / 4), clk, at);
			else if (!shared_within(b->arena, b->arena->lo + a, 16))
				emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
				        "descriptor of %s reaches byte %u, outside of the block's "
				        "shared memory",
				        which, a);
		}
}

/* out: [16][n], the n rows of the operand at 16 values of k; e4m3: [32][n] */
static void
fetch(EmuBlock *b, uint64_t desc, bool rows, int flags, int n, float *out, Site at)
{
	WgmmaLayout l = decode(desc, rows, "an operand", at);
	const bool f16 = flags & EMU_WG_F16;
	uint16_t v[8];
	uint8_t byte[16];

	if (flags & EMU_WG_E4M3) {
		for (int i = 0; i < n; i++)
			for (int k = 0; k < 16; k += 8) {
				memcpy(byte, b->arena->lo + place(&l, i, k), 16);
				for (int e = 0; e < 16; e++)
					out[(2 * k + e) * n + i] = emu_e4m3(byte[e]);
			}
		return;
	}
	if (!rows) {
		for (int i = 0; i < n; i++)
			for (int k = 0; k < 16; k += 8) {
				memcpy(v, b->arena->lo + place(&l, i, k), 16);
				for (int e = 0; e < 8; e++)
					out[(k + e) * n + i] = value(v[e], f16);
			}
		return;
	}
	for (int k = 0; k < 16; k++)
		for (int i = 0; i < n; i += 8) {
			memcpy(v, b->arena->lo + place(&l, i, k), 16);
			for (int e = 0; e < 8; e++)
				out[k * n + i + e] = value(v[e], f16);
		}
}

/* ---- issue ---- */

static float *
cell(const Acc *a, unsigned thread, int r)
{
	int w = (int)thread / 32, l = (int)thread & 31;

	return &a->c[(16 * w + l / 4 + 8 * (r >> 1 & 1)) * a->n + 8 * (r >> 2) + 2 * (l & 3) +
	             (r & 1)];
}

static void
hold(Thread *t, const void *p, size_t n, bool whole, Site at)
{
	WgThread *w = mine(t);

	for (int i = 0; i < w->n_busy; i++)
		if (w->busy[i].lo == p && w->busy[i].hi == (const char *)p + n) {
			w->busy[i].upto = w->next;
			return;
		}
	if (w->n_busy == (int)(sizeof w->busy / sizeof *w->busy)) {
		if (!whole)
			return;
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "more accumulators in flight than the emulator supports");
	}
	w->busy[w->n_busy++] = (EmuHeld){ p, (const char *)p + n, whole, w->next };
}

static int
acc_for(Wg *g, unsigned u, float *d, int n, Site at)
{
	for (int i = 0; i < g->n_acc; i++) {
		Acc *a = &g->acc[i];
		if (a->dead || !a->d[u] || a->d[u] + a->n / 2 <= d || d + n / 2 <= a->d[u])
			continue;
		if (a->d[u] != d || a->n != n)
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "accumulators overlap those of an instruction in flight of another "
			        "shape");
		return i;
	}
	return -1;
}

void
emu_wgmma(int flags, int n, float *d, const unsigned *ra, emu_u64 da, emu_u64 db, int accumulate,
          const char *file, int line)
{
	Site at = { file, line };
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	unsigned u = t->lin & 127;

	if (flags & EMU_WG_E4M3 && (ra || flags != EMU_WG_E4M3))
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "wgmma of e4m3: both operands in shared memory, K contiguous");
	if (n < 8 || n > 256 || n % 8)
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "wgmma with n = %d: a multiple of 8 up to 256", n);
	if (t->warp / 4 * 128 + 128 > (unsigned)b->nt || b->nt > 896)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "wgmma outside of a whole warpgroup (128 threads from a multiple of 128; "
		        "blocks of up to 896)");
	if (!mine(t)->fenced)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "wgmma without a wgmma_fence since the last group was committed");
	Wg *g = wg_of(b, t);
	uint32_t k = t->wg->next++;
	if (k >= 1u << 17)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "more matrix instructions in one kernel than the emulator can count");
	int i = (int)(k - g->base);
	if (i == g->n_inst) {
		if (g->n_inst == g->cap) {
			g->cap = g->cap ? 2 * g->cap : 32;
			g->inst = realloc(g->inst, sizeof *g->inst * (size_t)g->cap);
		}
		g->inst[g->n_inst++] =
		    (Inst){ flags, n,          0,
			    -1,    ra != NULL, accumulate != 0,
			    da,    db,         ra ? emu_alloc(64 * 16 * sizeof(float)) : NULL,
			    at };
	}
	Inst *in = &g->inst[i];
	if (in->flags != flags || in->n != n || in->regs != (ra != NULL) || (!ra && in->da != da) ||
	    in->db != db || in->accumulate != (accumulate != 0))
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "threads of a warpgroup disagree about the matrix instruction: others "
		        "issued another one, or other operands, in line %d",
		        in->at.line);
	int w = (int)u / 32;
	if (!t->lane) { /* each warp registers the memory that it reads */
		if (!ra)
			check_operand(da, flags & EMU_WG_TA, 16 * w, 16 * w + 16, "A", k + 1, at);
		check_operand(db, flags & EMU_WG_TB, 0, n, "B", k + 1, at);
	}
	int old = acc_for(g, u, d, n, at);
	if (old < 0) {
		if (in->acc < 0) {
			int free_one = 0;
			while (free_one < g->n_acc && !g->acc[free_one].dead)
				free_one++;
			if (free_one == g->n_acc) {
				g->acc = realloc(g->acc, sizeof *g->acc * (size_t)(g->n_acc + 1));
				g->n_acc++;
			}
			g->acc[free_one] =
			    (Acc){ .n = n, .c = emu_alloc(sizeof(float) * 64 * (size_t)n) };
			old = free_one;
		} else {
			old = in->acc;
		}
		Acc *a = &g->acc[old];
		if (a->d[u])
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "threads of a warpgroup disagree about the accumulators");
		a->d[u] = d;
		for (int r = 0; r < n / 2; r++)
			*cell(a, u, r) = d[r];
		memset(d, 0xff, sizeof *d * (size_t)n / 2);
		if (emu_check)
			hold(t, d, sizeof *d * (size_t)n / 2, true, at);
	}
	if (in->acc < 0) {
		in->acc = old;
		g->acc[old].pending++;
	}
	if (in->acc != old)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "threads of a warpgroup disagree about the accumulators");
	if (ra) {
		int l = (int)t->lane;
		for (int r = 0; r < 4; r++)
			for (int e = 0; e < 2; e++)
				in->a[(16 * w + l / 4 + 8 * (r & 1)) * 16 + 2 * (l & 3) + e +
				      8 * (r >> 1)] =
				    value((uint16_t)(ra[r] >> 16 * e), flags & EMU_WG_F16);
		if (emu_check)
			hold(t, ra, 16, false, at);
	}
	in->issued++;
}

void
emu_wgmma_fence(void)
{
	mine(emu_cur)->fenced = true;
}

void
emu_wgmma_commit(const char *file, int line)
{
	WgThread *w = mine(emu_cur);

	if (w->n_group == 16)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, (Site){ file, line },
		        "more than 16 groups of matrix instructions in flight");
	w->end[w->n_group++] = w->next;
	w->fenced = false;
}

/* ---- results ---- */

static inline __attribute__((always_inline)) void
multiply(float *restrict c, const float *restrict a, const float *restrict b, int n, int depth)
{
	for (int m = 0; m < 64; m++)
		for (int j = 0; j < n; j += 8) {
			V8 sum = *(V8 *)(c + m * n + j);
			for (int k = 0; k < depth; k++)
				sum += a[m * depth + k] * *(const V8 *)(b + k * n + j);
			*(V8 *)(c + m * n + j) = sum;
		}
}

/* depth: number of values of k, constant in each inlined copy */
static inline __attribute__((always_inline)) void
multiply_any(float *c, const float *a, const float *b, int n, int depth)
{
	if (depth == 16)
		multiply(c, a, b, n, 16);
	else
		multiply(c, a, b, n, 32);
}

__attribute__((target("avx2"))) static void
multiply_avx2(float *c, const float *a, const float *b, int n, int depth)
{
	multiply_any(c, a, b, n, depth);
}

static void
run(EmuBlock *b, Wg *g, Inst *in)
{
	Acc *acc = &g->acc[in->acc];
	/* static, because the stacks of fibers are small */
	static float a[64 * 32], at[32 * 64], bm[32 * 256];
	const int depth = in->flags & EMU_WG_E4M3 ? 32 : 16;

	if (in->issued != 128)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, in->at,
		        "only %d of a warpgroup's 128 threads issued the matrix instruction",
		        in->issued);
	fetch(b, in->db, in->flags & EMU_WG_TB, in->flags, in->n, bm, in->at);
	if (in->regs) {
		memcpy(a, in->a, 64 * 16 * sizeof *a);
		free(in->a);
	} else {
		fetch(b, in->da, in->flags & EMU_WG_TA, in->flags, 64, at, in->at);
		for (int m = 0; m < 64; m++)
			for (int k = 0; k < depth; k++)
				a[m * depth + k] = at[k * 64 + m];
	}
	if (!in->accumulate)
		memset(acc->c, 0, sizeof(float) * 64 * (size_t)in->n);
	if (__builtin_cpu_supports("avx2"))
		multiply_avx2(acc->c, a, bm, in->n, depth);
	else
		multiply_any(acc->c, a, bm, in->n, depth);
	acc->pending--;
}

static void
retire(EmuBlock *b, Wg *g, int first, uint32_t upto)
{
	int n = (int)(upto - g->base);

	for (int i = 0; i < n; i++)
		run(b, g, &g->inst[i]);
	memmove(g->inst, g->inst + n, sizeof *g->inst * (size_t)(g->n_inst - n));
	g->n_inst -= n;
	g->base = upto;
	for (int i = 0; i < g->n_acc; i++) {
		Acc *a = &g->acc[i];
		if (a->dead || a->pending)
			continue;
		for (unsigned u = 0; u < 128; u++) {
			WgThread *w = b->t[first + (int)u].wg;
			int k = 0;
			for (int r = 0; r < a->n / 2; r++)
				a->d[u][r] = *cell(a, u, r);
			for (int x = 0; x < w->n_busy; x++)
				if (w->busy[x].lo != (const char *)a->d[u])
					w->busy[k++] = w->busy[x];
			w->n_busy = k;
		}
		free(a->c);
		a->dead = true;
	}
	for (int u = 0; u < 128; u++) {
		Thread *t = &b->t[first + u];
		int k = 0;
		for (int x = 0; x < t->wg->n_busy; x++)
			if (t->wg->busy[x].whole || (int32_t)(t->wg->busy[x].upto - upto) > 0)
				t->wg->busy[k++] = t->wg->busy[x];
		t->wg->n_busy = k;
		if (emu_check)
			clock_order_after(t, CLOCK_WG(b, first / 128), upto);
	}
}

void
emu_wgmma_wait(int left, const char *file, int line)
{
	Site at = { file, line };
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	WgThread *w = mine(t);
	int done = w->n_group - left;

	if (done <= 0)
		return;
	uint32_t upto = w->end[done - 1];
	memmove(w->end, w->end + done, sizeof *w->end * (size_t)(w->n_group - done));
	w->n_group -= done;
	if (!b->wg)
		return;
	Wg *g = wg_of(b, t);
	if (upto <= g->base)
		return;
	if (g->waiting && g->want != upto)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "threads of a warpgroup wait for different groups of matrix instructions "
		        "(others in line %d)",
		        g->at.line);
	g->want = upto;
	g->at = at;
	g->lanes[t->warp & 3] |= 1u << t->lane;
	if (++g->waiting < 128) {
		block_wait(T_WGMMA, at);
		return;
	}
	retire(b, g, (int)t->warp / 4 * 128, upto);
	g->waiting = 0;
	emu_progress++;
	for (int i = 0; i < 4; i++) {
		int warp = (int)t->warp / 4 * 4 + i;
		uint32_t lanes = g->lanes[i];
		g->lanes[i] = 0;
		block_wake(b, warp, lanes & ~(warp == (int)t->warp ? 1u << t->lane : 0));
	}
	t->state = T_RUN;
}

void
wgmma_leave(Thread *t)
{
	if (!t->blk->wg || !t->wg)
		return;
	Wg *g = wg_of(t->blk, t);
	if (t->wg->next > g->base && g->n_inst)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, g->inst[0].at,
		        "a thread leaves the kernel while a matrix instruction is in flight "
		        "(wgmma_wait)");
}

void
wgmma_forget(EmuBlock *b)
{
	for (int i = 0; i < b->nt; i++) {
		free(b->t[i].wg);
		b->t[i].wg = NULL;
	}
	for (int i = 0; b->wg && i < 8; i++) {
		Wg *g = &b->wg[i];
		for (int k = 0; k < g->n_inst; k++)
			free(g->inst[k].a);
		for (int k = 0; k < g->n_acc; k++)
			if (!g->acc[k].dead)
				free(g->acc[k].c);
		free(g->inst);
		free(g->acc);
	}
	free(b->wg);
	b->wg = NULL;
}

/* Converts an address to the start field of a descriptor: the offset within the block's shared
 * memory. */
emu_u64
emu_smem_offset(const void *p, const char *file, int line)
{
	Site at = { file, line };
	EmuBlock *b = emu_cur->blk;

	if ((const char *)p < b->arena->lo || (const char *)p >= b->arena->hi)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "descriptor of an address that is not in this block's shared memory");
	if ((uintptr_t)p & 15)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "a matrix must start at a multiple of 16");
	return (emu_u64)((const char *)p - b->arena->lo);
}

/* setmaxnreg: only checks the rules. All threads of a warpgroup must call it, and the registers of
 * all threads must fit in the register file of 65536. */
void
emu_setmaxnreg(int n, int up, const char *file, int line)
{
	Site at = { file, line };
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	long sum = 0;

	if (n < 24 || n > 256 || n % 8)
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "setmaxnreg %d: a multiple of 8 from 24 to 256", n);
	if (t->warp / 4 * 128 + 128 > (unsigned)b->nt)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "setmaxnreg outside of a whole warpgroup");
	if (t->nreg && (up ? n < t->nreg : n > t->nreg))
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "setmaxnreg %s to %d, the thread has %d",
		        up ? "increase" : "decrease", n, t->nreg);
	t->nreg = n;
	for (int i = 0; i < b->nt; i++) {
		if (!b->t[i].nreg)
			return;
		sum += b->t[i].nreg;
	}
	if (sum > 65536)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "the warpgroups request %ld registers together, the SM has 65536", sum);
}
