/* Rows of a GEMM by register tiles: weights are unpacked chunk by chunk, and each chunk is
 * multiplied by each tile of tokens. The multiplication uses the dot products of
 * cpu/gemm/gemm_tile.h or the matrix-multiply instructions of cpu/gemm/mmla.h. */
#ifndef LLMC_CPU_GEMM_TILE_ROWS_H
#define LLMC_CPU_GEMM_TILE_ROWS_H

#include "cpu/gemm/mmla.h"

/* A function that is instantiated per number of tokens (TILE_EACH, cpu/gemm/matmul_kernel.h),
 * because register allocation depends on that number */
typedef void tile_fn(const tile_weights *w, int first, int n, const act_rows *a, int t0,
                     tile_sums *sum, tile_ahead *ahead);

LLMC_INLINE void
tile_dot(const Product p, const int T, const tile_weights *w, int first, int n, const act_rows *a,
         int t0, tile_sums *sum, tile_ahead *ahead)
{
#if defined(LLMC_TILES) /* only float weights without an AMX version; cpu/gemm/amx.h handles the   \
                           others */
	if (act_is_bf16(p) || !w_is_float(p.w))
		return;
#endif
	if (w_is_float(p.w))
		tile_dot_floats(p, T, w, first, n, a, t0, sum, ahead);
	else if (VF_MMLA && act_tile_bytes(p))
		tile_dot_mmla(p, T, w, first, n, a, t0, sum, ahead);
	else
		tile_dot_blocks(p, T, w, first, n, a, t0, sum, ahead);
}

/* Computes out[t][row] for all rows of at most TILE_H groups, with at least 2 tokens. dot[T]:
 * tile_dot for T tokens; sum: scratch */
LLMC_INLINE void
tile_rows(const Product p, tile_fn *const *dot, const uint8_t *w, int groups, const act_rows *a,
          int tokens, tile_sums *sum, float *out, int ld)
{
	const int all = tile_units(p), chunk = tile_chunk(p), block_bytes = w_block_bytes(p.w);
	tile_weights unpacked;
	const int tiles = (tokens + TILE_T - 1) / TILE_T;

	memset(sum->d, 0, (size_t)tokens * sizeof *sum->d);
	if (p.w.min)
		memset(sum->m, 0, (size_t)tokens * sizeof *sum->m);
	for (int first = 0; first < all; first += chunk) {
		int n = all - first < chunk ? all - first : chunk;
		int next = first + chunk < all ? first + chunk : 0;
		tile_ahead ahead = {
			.p = w + (next ? 0 : groups * w_group_bytes(p.w, p.cols)) +
			     (int64_t)next * block_bytes,
			.end = (all - next < chunk ? all - next : chunk) * block_bytes,
		};
		ahead.step =
		    (ahead.end / (tiles * (w_is_float(p.w) ? (n + 7) / 8 : n)) + 63) / 64 * 64;
		tile_unpack(p, w, groups, first, n, &unpacked);
		for (int i = 0, t = 0, size; i < tiles; i++, t += size) {
			size = a->tile + (i < a->longer);
			dot[size](&unpacked, first, n, a, t, sum, &ahead);
		}
	}
	for (int t = 0; t < tokens; t++)
		for (int h = 0; h < groups; h++) {
			vf v = sum->d[t].v[h];
			if (p.w.min)
				v += sum->m[t].v[h];
			vf_store(out + (int64_t)t * ld + h * VL, v);
		}
}

#endif
