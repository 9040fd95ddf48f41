/* Included by cpu_tile.h once for each number of tokens T: the function TILE_DOT adds a chunk's products to the sums of the
 * tokens t0 .. t0 + T. Sums stay in registers within a block. */
#if W_FLOAT

static __attribute__((noinline, unused)) void
TILE_DOT(const tile_weights *w, int first, int n, const act_rows *a, int t0, tile_sum *sum, tile_ahead *ahead)
{
	vf d[T][TILE_H];
	const uint8_t *x = a->q + (size_t)t0 * ACT_ROW_BYTES + (size_t)first * 4;

	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			d[t][h] = sum[t].d[h];
	for (int k = 0; k < n; k++, x += 4) {
		vf v[TILE_H];
		if (k % 8 == 0)
			tile_fetch(ahead);
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			v[h] = w->w[k][h];
		LLMC_UNROLL
		for (int t = 0; t < T; t++) {
			vf xv = vf_set1(*(const float *)(const void *)(x + t * ACT_ROW_BYTES));
			LLMC_UNROLL
			for (int h = 0; h < TILE_H; h++)
				d[t][h] = vf_fma(v[h], xv, d[t][h]);
		}
	}
	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			sum[t].d[h] = d[t][h];
}

#else

static __attribute__((noinline, unused)) void
TILE_DOT(const tile_weights *w, int first, int n, const act_rows *a, int t0, tile_sum *sum, tile_ahead *ahead)
{
	const uint8_t *x = a->q + (size_t)t0 * ACT_ROW_BYTES + (size_t)first * ACT_BLOCK_BYTES;
	const size_t at = (size_t)t0 * W_BLOCKS + (size_t)first;

	for (int b = 0; b < n; b++, x += ACT_BLOCK_BYTES) {
#if TILE_WIDEN
		vi wide[T][TILE_H];
#endif
		tile_fetch(ahead);
		LLMC_UNROLL
		for (int part = 0; part < (TILE_WIDEN ? 2 : W_HALVES); part++) {
			enum { N = TILE_STEPS / (TILE_WIDEN ? 2 : W_HALVES) };
			vi acc[T][TILE_H];
			LLMC_UNROLL
			for (int i = part * N; i < part * N + N; i++) {
				vi v[TILE_H];
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++)
					v[h] = tile_load(&w->q[b][i][h]);
				LLMC_UNROLL
				for (int t = 0; t < T; t++)
					tile_token(acc[t], v, x + t * ACT_ROW_BYTES + 4 * i, i == part * N);
			}
#if TILE_WIDEN
			LLMC_UNROLL
			for (int t = 0; t < T; t++)
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++) {
					vi s = dot_bytes_sum(acc[t][h], 1);
					if (part)
						s += wide[t][h];
					wide[t][h] = s;
				}
			if (part == 0)
				continue;
#endif
			LLMC_UNROLL
			for (int t = 0; t < T; t++) {
				vf d = vf_set1(a->d[at + (size_t)(t * W_BLOCKS + b)]);
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++) {
#if TILE_WIDEN
					vi dot = wide[t][h];
#elif ACT_TILE_BYTES
					vi dot = dot_bytes_sum(acc[t][h], 1);
#else
					vi dot = acc[t][h];
#endif
#if ACT_TILE_BYTES && W_OFFSET
					dot -= vi_all(a->z[(at + (size_t)(t * W_BLOCKS + b)) * W_HALVES + (W_HALVES == 2 ? part : 0)]);
#endif
					vf scale = w->scale[b][W_HALVES == 2 ? part : 0][h];
					sum[t].d[h] = vf_fma(vf_of_vi(dot) * d, scale, sum[t].d[h]);
				}
			}
		}
	}
#if W_MIN
	vf m[T][TILE_H];
	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			m[t][h] = sum[t].m[h];
	for (int b = 0; b < n; b++)
		LLMC_UNROLL
		for (int t = 0; t < T; t++)
			LLMC_UNROLL
			for (int h = 0; h < TILE_H; h++)
				m[t][h] = vf_fma(w->min[b][h], vf_set1(a->s[at + (size_t)(t * W_BLOCKS + b)]), m[t][h]);
	LLMC_UNROLL
	for (int t = 0; t < T; t++)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			sum[t].m[h] = m[t][h];
#endif
}

#endif
#undef T
#undef TILE_DOT
