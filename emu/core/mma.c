/* Matrix instructions on fragments in the hardware's layout. With g = lane / 4, q = lane % 4:
 *
 *   16-bit A (16 x 16)   a0 (g, 2q..)  a1 (g+8, 2q..)  a2 (g, 2q+8..)  a3 (g+8, 2q+8..), two
 *                        values per register; k8 has a0, a1 only
 *   16-bit B (16 x 8)    b0 (k 2q.., n g)  b1 (k 2q+8.., n g)
 *   8-bit  A (16 x 32)   a0 (g, 4q..)  a1 (g+8, 4q..)  a2 (g, 4q+16..)  a3 (g+8, 4q+16..), four
 *                        values per register
 *   C (16 x 8)           c0, c1 (g, 2q..)  c2, c3 (g+8, 2q..)
 *
 * Terms are added in the order of k, in fp32. */
#include "emu.h"
#include "../cuda_api.h"
#include "../device/warp_ops.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static float
from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static void
read_words(const Fragments *f, int l, uint32_t w[10])
{
	memcpy(w, &f->a[l], 16);
	memcpy(w + 4, &f->b[l], 8);
	memcpy(w + 6, &f->c[l], 16);
}

static inline __attribute__((always_inline)) void
multiply(float (*c)[8], float (*a)[16], float (*b)[8], int kn)
{
	for (int m = 0; m < 16;
	     m += 4) { /* four independent rows at a time, for instruction-level parallelism */
		V8 s0 = *(V8 *)c[m], s1 = *(V8 *)c[m + 1], s2 = *(V8 *)c[m + 2],
		   s3 = *(V8 *)c[m + 3];
		for (int k = 0; k < kn; k++) {
			const V8 row = *(const V8 *)b[k];
			s0 += a[m][k] * row;
			s1 += a[m + 1][k] * row;
			s2 += a[m + 2][k] * row;
			s3 += a[m + 3][k] * row;
		}
		*(V8 *)c[m] = s0, *(V8 *)c[m + 1] = s1, *(V8 *)c[m + 2] = s2, *(V8 *)c[m + 3] = s3;
	}
}

__attribute__((target("avx2"))) static void
multiply_avx2(float (*c)[8], float (*a)[16], float (*b)[8], int kn)
{
	multiply(c, a, b, kn);
}

static bool
wide(void)
{
	static int known;

	if (!known)
		known = __builtin_cpu_supports("avx2") ? 2 : 1;
	return known == 2;
}

#if defined(__x86_64__)
static bool
has_f16c(void)
{
	static int known;
	unsigned a, b, c = 0, d;

	if (!known)
		known = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		                __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C
		            ? 2
		            : 1;
	return known == 2;
}

/* mma for 16-bit operands, whose multiplications are exact in fp32. The operands of four lanes at a
 * time are eight columns of two rows of A and one row of B. */
__attribute__((target("avx2,f16c,fma"))) static void
mma_half_avx2(int op, Fragments *f)
{
	_Alignas(32) float a[16][16], b[16][8];
	__m128i bt[16];
	bool bf = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_BF16_1688;
	int halves = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_F16_16816 ? 2 : 1;
#define WIDEN(h)                                                                                   \
	(bf ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))                 \
	    : _mm256_cvtph_ps(h))

	for (int g = 0; g < 8; g++) {
		const __m128i *p = (const __m128i *)&f->a[4 * g],
		              *q = (const __m128i *)&f->b[4 * g];
		__m128i l0 = _mm_unpacklo_epi32(p[0], p[1]), l1 = _mm_unpacklo_epi32(p[2], p[3]);
		_mm256_store_ps(a[g], WIDEN(_mm_unpacklo_epi64(l0, l1)));
		_mm256_store_ps(a[g + 8], WIDEN(_mm_unpackhi_epi64(l0, l1)));
		__m128 b0 = _mm_castsi128_ps(q[0]), b1 = _mm_castsi128_ps(q[1]);
		bt[g] = _mm_castps_si128(_mm_shuffle_ps(b0, b1, 0x88));
		if (halves == 2) {
			__m128i h0 = _mm_unpackhi_epi32(p[0], p[1]),
			        h1 = _mm_unpackhi_epi32(p[2], p[3]);
			_mm256_store_ps(a[g] + 8, WIDEN(_mm_unpacklo_epi64(h0, h1)));
			_mm256_store_ps(a[g + 8] + 8, WIDEN(_mm_unpackhi_epi64(h0, h1)));
			bt[8 + g] = _mm_castps_si128(_mm_shuffle_ps(b0, b1, 0xdd));
		}
	}
	for (int h = 0; h < halves; h++) { /* transposes 8 x 8 values */
		__m128i *x = bt + 8 * h, u[8], v[8];
		for (int i = 0; i < 4; i++) {
			u[2 * i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
			u[2 * i + 1] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
		}
		for (int i = 0; i < 8; i += 4) {
			v[i] = _mm_unpacklo_epi32(u[i], u[i + 2]);
			v[i + 1] = _mm_unpackhi_epi32(u[i], u[i + 2]);
			v[i + 2] = _mm_unpacklo_epi32(u[i + 1], u[i + 3]);
			v[i + 3] = _mm_unpackhi_epi32(u[i + 1], u[i + 3]);
		}
		for (int i = 0; i < 4; i++) {
			_mm256_store_ps(b[8 * h + 2 * i],
			                WIDEN(_mm_unpacklo_epi64(v[i], v[i + 4])));
			_mm256_store_ps(b[8 * h + 2 * i + 1],
			                WIDEN(_mm_unpackhi_epi64(v[i], v[i + 4])));
		}
	}
	for (int g = 0; g < 8;
	     g += 2) { /* c of two lanes holds two pairs of values, in rows g and g + 8 */
		__m256 c[4];
		for (int i = 0; i < 2; i++) {
			__m256 x = _mm256_loadu_ps((const float *)&f->c[4 * g + 4 * i]),
			       y = _mm256_loadu_ps((const float *)&f->c[4 * g + 4 * i + 2]);
			/* lanes 0 and 1: p0 p1 r0 r1 | p2 p3 r2 r3 */
			__m256d lo = _mm256_castps_pd(_mm256_permute2f128_ps(x, y, 0x20)),
			        hi = _mm256_castps_pd(_mm256_permute2f128_ps(x, y, 0x31));
			c[2 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(lo, hi));
			c[2 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(lo, hi));
		}
		for (int k = 0; k < 8 * halves; k++) {
			const __m256 row = _mm256_load_ps(b[k]);
			c[0] = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[g][k]), row, c[0]);
			c[1] = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[g + 8][k]), row, c[1]);
			c[2] = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[g + 1][k]), row, c[2]);
			c[3] = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[g + 9][k]), row, c[3]);
		}
		for (int i = 0; i < 2; i++) {
			__m256d lo = _mm256_unpacklo_pd(_mm256_castps_pd(c[2 * i]),
			                                _mm256_castps_pd(c[2 * i + 1]));
			__m256d hi = _mm256_unpackhi_pd(_mm256_castps_pd(c[2 * i]),
			                                _mm256_castps_pd(c[2 * i + 1]));
			_mm256_storeu_ps((float *)&f->c[4 * g + 4 * i],
			                 _mm256_permute2f128_ps(_mm256_castpd_ps(lo),
			                                        _mm256_castpd_ps(hi), 0x20));
			_mm256_storeu_ps((float *)&f->c[4 * g + 4 * i + 2],
			                 _mm256_permute2f128_ps(_mm256_castpd_ps(lo),
			                                        _mm256_castpd_ps(hi), 0x31));
		}
	}
#undef WIDEN
}
#endif

static void
mma_float(int op, Fragments *f)
{
#if defined(__x86_64__)
	if (op != EMU_W_MMA_TF32_1688 && has_f16c()) {
		mma_half_avx2(op, f);
		return;
	}
#endif
	float a[16][16], b[16][8], c[16][8];
	int kn = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_F16_16816 ? 16 : 8;
	uint32_t w[10];

	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		read_words(f, l, w);
		/* a0 (g,q) a1 (g+8,q) a2 (g,q+4) a3 (g+8,q+4); b0 (q,g) b1 (q+4,g); the low 13 bits
		 * are ignored */
		if (op == EMU_W_MMA_TF32_1688) {
			for (int i = 0; i < 4; i++)
				a[g + 8 * (i & 1)][q + 4 * (i >> 1)] = from_bits(w[i] & ~0x1fffu);
			for (int i = 0; i < 2; i++)
				b[q + 4 * i][g] = from_bits(w[4 + i] & ~0x1fffu);
		} else {
			bool bf = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_BF16_1688;
			for (int h = 0; h < 2; h++) {
				for (int i = 0; i < kn / 4; i++) {
					uint32_t v = w[i] >> 16 * h & 0xffff;
					a[g + 8 * (i & 1)][2 * q + h + 8 * (i >> 1)] =
					    bf ? from_bits(v << 16) : emu_half((uint16_t)v);
				}
				for (int i = 0; i < kn / 8; i++) {
					uint32_t v = w[4 + i] >> 16 * h & 0xffff;
					b[2 * q + h + 8 * i][g] =
					    bf ? from_bits(v << 16) : emu_half((uint16_t)v);
				}
			}
		}
		for (int i = 0; i < 4; i++)
			c[g + 8 * (i >> 1)][2 * q + (i & 1)] = from_bits(w[6 + i]);
	}
	if (wide())
		multiply_avx2(c, a, b, kn);
	else
		multiply(c, a, b, kn);
	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		float out[4] = { c[g][2 * q], c[g][2 * q + 1], c[g + 8][2 * q],
			         c[g + 8][2 * q + 1] };
		memcpy(&f->c[l], out, 16);
	}
}

float
emu_e4m3(uint8_t b)
{
	const uint16_t half = (uint16_t)((b & 0x80) << 8 | (b & 0x7f) << 7);

	return (b & 0x7f) == 0x7f ? __builtin_nanf("") : emu_half(half) * 256;
}

/* m16n8k32 of e4m3. Multiplications are exact; sums are fp32 in the order of k. Hardware keeps
 * fewer bits of a sum (docs/kernels/gemm.md). */
static void
mma_e4m3(Fragments *f)
{
	float a[2][16][16], b[2][16][8], c[16][8];
	uint32_t w[10];

	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		read_words(f, l, w);
		for (int h = 0; h < 4; h++) {
			for (int i = 0; i < 4; i++)
				a[i >> 1][g + 8 * (i & 1)][4 * q + h] =
				    emu_e4m3(w[i] >> 8 * h & 0xff);
			for (int i = 0; i < 2; i++)
				b[i][4 * q + h][g] = emu_e4m3(w[4 + i] >> 8 * h & 0xff);
		}
		for (int i = 0; i < 4; i++)
			c[g + 8 * (i >> 1)][2 * q + (i & 1)] = from_bits(w[6 + i]);
	}
	for (int i = 0; i < 2; i++)
		if (wide())
			multiply_avx2(c, a[i], b[i], 16);
		else
			multiply(c, a[i], b[i], 16);
	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		float out[4] = { c[g][2 * q], c[g][2 * q + 1], c[g + 8][2 * q],
			         c[g + 8][2 * q + 1] };
		memcpy(&f->c[l], out, 16);
	}
}

/* m16n8k32, m16n8k16 (half as many registers for A and B) and m8n8k16 (one register each for A and
 * B, two for C) */
static void
mma_int8(int op, Fragments *f)
{
	int8_t a[16][32], b[32][8];
	int32_t c[16][8];
	int rows = op == EMU_W_MMA_S8_8816 ? 8 : 16, kn = op == EMU_W_MMA_S8_16832 ? 32 : 16,
	    n_a = rows / 8 * kn / 16;
	uint32_t w[10];

	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		read_words(f, l, w);
		for (int h = 0; h < 4; h++) {
			for (int i = 0; i < n_a; i++) {
				int row = rows == 8 ? g : g + 8 * (i & 1),
				    col = 4 * q + h + (rows == 8 ? 0 : 16 * (i >> 1));
				a[row][col] = (int8_t)(w[i] >> 8 * h);
			}
			for (int i = 0; i < kn / 16; i++)
				b[4 * q + h + 16 * i][g] = (int8_t)(w[4 + i] >> 8 * h);
		}
		for (int i = 0; i < rows / 4; i++)
			c[g + 8 * (i >> 1)][2 * q + (i & 1)] = (int32_t)w[6 + i];
	}
	for (int m = 0; m < rows; m++)
		for (int n = 0; n < 8; n++) {
			uint32_t sum = (uint32_t)c[m][n];
			for (int k = 0; k < kn; k++)
				sum += (uint32_t)(a[m][k] * b[k][n]);
			c[m][n] = (int32_t)sum;
		}
	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		int32_t out[4] = { c[g][2 * q], c[g][2 * q + 1], 0, 0 };
		if (rows == 16)
			out[2] = c[g + 8][2 * q], out[3] = c[g + 8][2 * q + 1];
		memcpy(&f->c[l], out, 16);
	}
}

void
mma_run(int op, Fragments *f)
{
	if (op >= EMU_W_MMA_S8_16832)
		mma_int8(op, f);
	else if (op == EMU_W_MMA_E4M3_16832)
		mma_e4m3(f);
	else
		mma_float(op, f);
}

/* ldmatrix .x1 .x2 .x4. Lanes 8m..8m+7 pass the eight row addresses of matrix m. Of each matrix,
 * lane l gets row l/4, columns 2(l%4) and the next. The row address is the first 8 bytes of an
 * operand. Results are words 0-3. stmatrix takes its input from words 2-5. */
void
mma_ldmatrix(int op, int n, uint32_t mask, Thread *t, Site at)
{
	uint16_t mat[4][8][8];
	char *row[32];

	if (mask != ~0u)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "ldmatrix needs all 32 lanes (mask 0x%08x)",
		        mask);
	for (int l = 0; l < 8 * n; l++) {
		row[l] = (char *)(uintptr_t)t[l].io[0];
		Thread *self = emu_cur;
		emu_cur = &t[l]; /* a finding names the lane that passed the address */
		if ((uintptr_t)row[l] & 15)
			emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
			        "misaligned ldmatrix row: the address must be a multiple of 16");
		Region *r = region_of(row[l]);
		if (!r || r->kind != R_SHARED)
			emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
			        "ldmatrix row is not in shared memory");
		if (emu_check && op == EMU_W_STMATRIX)
			shadow_write(row[l], 16, NULL, at);
		else if (emu_check)
			shadow_read(row[l], 16, NULL, at);
		emu_cur = self;
	}
	if (op == EMU_W_STMATRIX) {
		for (int m = 0; m < n; m++) {
			for (int l = 0; l < 32; l++)
				memcpy(&mat[m][l / 4][l % 4 * 2], (char *)t[l].io + 8 + 4 * m, 4);
			for (int i = 0; i < 8; i++)
				memcpy(row[8 * m + i], mat[m][i], 16);
		}
		return;
	}
	for (int m = 0; m < n; m++)
		for (int i = 0; i < 8; i++)
			memcpy(mat[m][i], row[8 * m + i], 16);
	for (int m = 0; m < n; m++)
		for (int l = 0; l < 32; l++)
			for (int h = 0; h < 2; h++) {
				int i = l / 4, j = l % 4 * 2 + h;
				uint16_t v = op == EMU_W_LDMATRIX_T ? mat[m][j][i] : mat[m][i][j];
				memcpy((char *)t[l].io + 4 * m + 2 * h, &v, 2);
			}
}
