/* A kernel with matmuls of two weight types, one of them with two matrices, as experts have. It
 * fails if formats or columns become macros again. LLMC_TARGET_<target> comes from the command
 * line, the names of the matmul functions from the test. */
#include "cpu/gemm/matmul.h"

enum { ROWS = 43 };
PRODUCT(wide, W_q4_k, 512, 16)
PRODUCT(narrow, W_q6_k, 256, 8)

#define RUN(kind, x, w, y, scratch)                                                                \
	do {                                                                                       \
		mm_work m = mm_begin(kind(), s->n_tok, mm_units(ROWS), part, n_parts, scratch);    \
		for (int t0 = m.tok; t0 < m.tok_end; t0 += m.n) {                                  \
			kind##_tokens(&m, t0, x, NULL, none);                                      \
			for (int u = m.unit; u < m.unit_end; u++) {                                \
				int row = u * MM_UNIT, n = mm_unit_rows(ROWS, u);                  \
				kind##_rows(&m, w, row, n, out[0], MM_UNIT);                       \
				MM_EACH(t, r, m.n, n)                                              \
				share_put((y) + (t0 + t) * ROWS + row + r, vf_load(out[t] + r),    \
				          n - r);                                                  \
			}                                                                          \
		}                                                                                  \
	} while (0)

void two_weight_types(const llmc_step *s, void *const *a, int part, int n_parts);

/* a: x [n_tok, 512], its matrix, x [n_tok, 256], its two matrices, y [3][n_tok, ROWS], scratch of
 * both types */
void
two_weight_types(const llmc_step *s, void *const *a, int part, int n_parts)
{
	const Norm none = { .kind = NORM_none };
	_Alignas(64) float out[MM_TOKENS][MM_UNIT];

	RUN(wide, a[0], a[1], (float *)a[5], a[8]);
	RUN(narrow, a[2], a[3], (float *)a[6], a[9]);
	RUN(narrow, a[2], a[4], (float *)a[7], a[9]);
}
