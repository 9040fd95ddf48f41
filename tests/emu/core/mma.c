/* Matrix instructions on fragments as the hardware spreads them over lanes. With g = lane / 4, q = lane % 4:
 *   16-bit A (16 x 16): a0 (g, 2q..) a1 (g+8, 2q..) a2 (g, 2q+8..) a3 (g+8, 2q+8..), two values a register; k8 has a0, a1 only
 *   16-bit B (16 x 8):  b0 (k 2q.., n g) b1 (k 2q+8.., n g)
 *   8-bit  A (16 x 32): a0 (g, 4q..) a1 (g+8, 4q..) a2 (g, 4q+16..) a3 (g+8, 4q+16..), four values a register
 *   C (16 x 8): c0, c1 (g, 2q..) c2, c3 (g+8, 2q..)
 * Slots: words 0-3 a, 4-5 b, 6-9 c; the result replaces c. Products are added in the order of k, in fp32. */
#include "emu.h"
#include "../cuda_api.h"
#include "../device/warp_ops.h"

#include <string.h>
#if defined(__x86_64__)
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
read_words(const Thread *t, uint32_t w[10])
{
	memcpy(w, t->slot, 40);
}

static void
write_c(Thread *t, const void *c, size_t n)
{
	memcpy((char *)t->slot + 24, c, n);
}

static inline __attribute__((always_inline)) void
multiply(float (*c)[8], float (*a)[16], float (*b)[8], int kn)
{
	for (int m = 0; m < 16; m += 4) { /* four rows at a time: their sums do not wait for each other */
		V8 s0 = *(V8 *)c[m], s1 = *(V8 *)c[m + 1], s2 = *(V8 *)c[m + 2], s3 = *(V8 *)c[m + 3];
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

	if (!known)
		known = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") ? 2 : 1;
	return known == 2;
}

/* The same for 16-bit factors: pairs of them are stored as they come, then widened eight at a time. */
__attribute__((target("avx2,f16c"))) static void
mma_half_avx2(int op, Thread *t)
{
	_Alignas(32) uint16_t ah[16][16], bh[8][16]; /* b transposed */
	_Alignas(32) float a[16][16], bt[8][16], b[16][8], c[16][8];
	bool bf = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_BF16_1688;
	int kn = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_F16_16816 ? 16 : 8;

	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		uint32_t w[10];
		read_words(&t[l], w);
		for (int i = 0; i < kn / 4; i++)
			memcpy(&ah[g + 8 * (i & 1)][2 * q + 8 * (i >> 1)], &w[i], 4);
		for (int i = 0; i < kn / 8; i++)
			memcpy(&bh[g][2 * q + 8 * i], &w[4 + i], 4);
		memcpy(&c[g][2 * q], &w[6], 8);
		memcpy(&c[g + 8][2 * q], &w[8], 8);
	}
	for (int r = 0; r < 24; r++)
		for (int k = 0; k < kn; k += 8) {
			__m128i h = _mm_load_si128((const __m128i *)(r < 16 ? &ah[r][k] : &bh[r - 16][k]));
			__m256 f = bf ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)) : _mm256_cvtph_ps(h);
			_mm256_store_ps(r < 16 ? &a[r][k] : &bt[r - 16][k], f);
		}
	for (int k = 0; k < kn; k++)
		for (int n = 0; n < 8; n++)
			b[k][n] = bt[n][k];
	multiply(c, a, b, kn);
	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		float out[4] = { c[g][2 * q], c[g][2 * q + 1], c[g + 8][2 * q], c[g + 8][2 * q + 1] };
		write_c(&t[l], out, 16);
	}
}
#endif

static void
mma_float(int op, Thread *t)
{
#if defined(__x86_64__)
	if (op != EMU_W_MMA_TF32_1688 && has_f16c()) {
		mma_half_avx2(op, t);
		return;
	}
#endif
	float a[16][16], b[16][8], c[16][8];
	int kn = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_F16_16816 ? 16 : 8;
	uint32_t w[10];

	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		read_words(&t[l], w);
		if (op == EMU_W_MMA_TF32_1688) { /* a0 (g,q) a1 (g+8,q) a2 (g,q+4) a3 (g+8,q+4); b0 (q,g) b1 (q+4,g); low 13 bits unused */
			for (int i = 0; i < 4; i++)
				a[g + 8 * (i & 1)][q + 4 * (i >> 1)] = from_bits(w[i] & ~0x1fffu);
			for (int i = 0; i < 2; i++)
				b[q + 4 * i][g] = from_bits(w[4 + i] & ~0x1fffu);
		} else {
			bool bf = op == EMU_W_MMA_BF16_16816 || op == EMU_W_MMA_BF16_1688;
			for (int h = 0; h < 2; h++) {
				for (int i = 0; i < kn / 4; i++) {
					uint32_t v = w[i] >> 16 * h & 0xffff;
					a[g + 8 * (i & 1)][2 * q + h + 8 * (i >> 1)] = bf ? from_bits(v << 16) : emu_half((uint16_t)v);
				}
				for (int i = 0; i < kn / 8; i++) {
					uint32_t v = w[4 + i] >> 16 * h & 0xffff;
					b[2 * q + h + 8 * i][g] = bf ? from_bits(v << 16) : emu_half((uint16_t)v);
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
		float out[4] = { c[g][2 * q], c[g][2 * q + 1], c[g + 8][2 * q], c[g + 8][2 * q + 1] };
		write_c(&t[l], out, 16);
	}
}

/* m16n8k32, m16n8k16 (A and B half as many registers) and m8n8k16 (one register each of A and B, two of C). */
static void
mma_int8(int op, Thread *t)
{
	int8_t a[16][32], b[32][8];
	int32_t c[16][8];
	int rows = op == EMU_W_MMA_S8_8816 ? 8 : 16, kn = op == EMU_W_MMA_S8_16832 ? 32 : 16, n_a = rows / 8 * kn / 16;
	uint32_t w[10];

	for (int l = 0; l < 32; l++) {
		int g = l >> 2, q = l & 3;
		read_words(&t[l], w);
		for (int h = 0; h < 4; h++) {
			for (int i = 0; i < n_a; i++) {
				int row = rows == 8 ? g : g + 8 * (i & 1), col = 4 * q + h + (rows == 8 ? 0 : 16 * (i >> 1));
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
		write_c(&t[l], out, rows == 16 ? 16 : 8);
	}
}

void
mma_run(int op, Thread *lane0)
{
	if (op >= EMU_W_MMA_S8_16832)
		mma_int8(op, lane0);
	else
		mma_float(op, lane0);
}

/* ldmatrix .x1 .x2 .x4: matrix m's eight row addresses come from lanes 8m..8m+7; lane l gets row l/4, columns 2(l%4).. of each.
 * arg holds the count; slot 0 the row address; results are words 0-3 (stmatrix: words 2-5 in). */
void
mma_ldmatrix(int op, uint32_t mask, Thread *t, Site at)
{
	int n = (int)t[0].arg;
	uint16_t mat[4][8][8];
	char *row[32];

	if (mask != ~0u)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "ldmatrix needs all 32 lanes (mask 0x%08x)", mask);
	for (int l = 0; l < 8 * n; l++) {
		row[l] = (char *)(uintptr_t)t[l].slot[0];
		Thread *self = emu_cur;
		emu_cur = &t[l]; /* a finding names the lane that gave the address */
		if ((uintptr_t)row[l] & 15)
			emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at, "misaligned ldmatrix row: the address must be a multiple of 16");
		Region *r = region_of(row[l]);
		if (!r || r->kind != R_SHARED)
			emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at, "ldmatrix row is not in shared memory");
		if (emu_check)
			shadow_access(row[l], 16, op == EMU_W_STMATRIX, false, NULL, at);
		emu_cur = self;
	}
	if (op == EMU_W_STMATRIX) {
		for (int m = 0; m < n; m++) {
			for (int l = 0; l < 32; l++)
				memcpy(&mat[m][l / 4][l % 4 * 2], (char *)t[l].slot + 8 + 4 * m, 4);
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
				memcpy((char *)t[l].slot + 4 * m + 2 * h, &v, 2);
			}
}
