/* The expanded form of cpu_mla.h. The products are functions of their own, as PRODUCT of cpu_matmul.h makes them. */
#ifndef LLMC_CPU_MLA_EXPAND_H
#define LLMC_CPU_MLA_EXPAND_H

#include "common/cpu_matmul.h"
#include "common/cpu_mla.h"

enum { MLA_MADE = 64 }; /* positions whose keys and values are made at a time */

typedef void mla_tokens_fn(mm_work *m, int t0, const float *x, const int32_t *index, Norm norm);
typedef void mla_rows_fn(const mm_work *m, const uint8_t *w, int64_t row, int rows, float *out, int ld);

typedef struct MlaMatrix {
	Product        p;
	mla_tokens_fn *tokens;
	mla_rows_fn   *rows;
	const uint8_t *data;
	void          *scratch;      /* of mm_begin, this part's */
} MlaMatrix;

/* out[j][skip + i] = row head * dim + i of w times the latent of position j; returned: skip */
LLMC_INLINE int
mla_make(const MlaMatrix w, int head, int dim, const float *latent, int n, float *out, int ld)
{
	const int skip = head * dim % VL;
	mm_work m = mm_begin(w.p, n, 1, 0, 1, w.scratch);

	m.tok = 0;
	m.tok_end = n;
	m.unit_end = 1;
	w.tokens(&m, 0, latent, NULL, (Norm){ .kind = NORM_none });
	w.rows(&m, w.data, (int64_t)head * dim - skip, dim + skip, out, ld);
	return skip;
}

typedef struct MlaUnit {
	const llmc_step *s;
	const void *pool;
	const float *q;
	float *o;
	int    seq, row0, n, head;
	float *work;                 /* see heads/mla.head */
} MlaUnit;

/* rows [row0, row0 + n) of a sequence, n <= MLA_ROWS, one query head */
LLMC_INLINE void
mla_expand(const Mla a, const MlaUnit *u, const MlaMatrix kb, const MlaMatrix vb)
{
	const Att att = { .heads = 1, .kv_heads = 1, .dim = a.nope + a.rope, .v_dim = a.v_dim };
	const int dim = att.dim, vs = att_vs(att), width = mla_width(a), block = ATT_TILE_MR, most = mla_up(MLA_ROWS, block);
	const int ld = mla_up((a.nope > a.v_dim ? a.nope : a.v_dim) + 2 * VL, 2 * VL), blocks = (u->n + block - 1) / block, part = ATT_TILE_R / block;
	const llmc_step *s = u->s;
	float *q = u->work, *w = q + most * dim, *oc = w + ATT_TILE_R * ATT_CHUNK, *o = oc + ATT_TILE_R * vs, *m = o + MLA_ROWS * vs;
	float *l = m + MLA_ROWS, *keys = l + MLA_ROWS, *values = keys + ATT_CHUNK * dim, *x = values + ATT_CHUNK * vs;
	float *latent = x + MLA_MADE * mla_stride(a), *out = latent + MLA_MADE * a.rank;
	const int end = s->pos[u->row0 + u->n - 1] + 1;

	for (int r = 0; r < blocks * block; r++) {
		const float *from = u->q + ((size_t)(u->row0 + r) * (size_t)a.heads + (size_t)u->head) * (size_t)width;
		for (int d = 0; d < dim; d++)
			q[(r / block * dim + d) * block + r % block] = r < u->n ? from[d] * a.scale : 0;
		if (r < u->n)
			l[r] = 0;
	}
	for (int pos0 = 0; pos0 < end; pos0 += ATT_CHUNK) {
		const int see = end - pos0 < ATT_CHUNK ? end - pos0 : ATT_CHUNK;

		for (int j0 = 0; j0 < see; j0 += MLA_MADE) {
			const int n = see - j0 < MLA_MADE ? see - j0 : MLA_MADE;
			mla_fetch(a, s, u->pool, u->seq, pos0 + j0, n, x);
			for (int j = 0; j < n; j++)
				memcpy(latent + j * a.rank, x + j * mla_stride(a), (size_t)a.rank * sizeof *latent);
			int skip = mla_make(kb, u->head, a.nope, latent, n, out, ld);
			for (int j = 0; j < n; j++) {
				float *key = keys + (j0 + j) / KV_PAGE * dim * KV_PAGE + (j0 + j) % KV_PAGE;
				for (int d = 0; d < a.nope; d++)
					key[d * KV_PAGE] = out[j * ld + skip + d];
				for (int d = 0; d < a.rope; d++)
					key[(a.nope + d) * KV_PAGE] = x[j * mla_stride(a) + a.rank + d];
			}
			skip = mla_make(vb, u->head, a.v_dim, latent, n, out, ld);
			for (int j = 0; j < n; j++)
				for (int d = 0; d < vs; d++)
					values[(j0 + j) * vs + d] = d < a.v_dim ? out[j * ld + skip + d] : 0;
		}
		for (int b0 = 0; b0 < blocks; b0 += part) {
			const int nb = blocks - b0 < part ? blocks - b0 : part, r0 = b0 * block;
			if (s->pos[u->row0 + (r0 + nb * block < u->n ? r0 + nb * block : u->n) - 1] < pos0)
				continue;
			AttTile t = { .q = q + b0 * block * dim, .s = w, .oc = oc };
			for (int p = 0; p * KV_PAGE < see; p++) {
				t.x = keys + p * KV_PAGE * dim;
				att_tile_scores(att, &t, nb, p * KV_PAGE);
			}
			for (int r = 0; r < nb * block; r++) {
				int hi = r0 + r < u->n ? s->pos[u->row0 + r0 + r] + 1 - pos0 : 0;
				t.lc[r] = 0;
				if (hi > 0)
					att_softmax(att, ATT_CHUNK, w + r * ATT_CHUNK, pos0, 0, hi < ATT_CHUNK ? hi : ATT_CHUNK, 0, 0, &t.mc[r], &t.lc[r]);
				else
					memset(w + r * ATT_CHUNK, 0, ATT_CHUNK * sizeof *w);
			}
			for (int p = 0; p * KV_PAGE < see; p++) {
				t.x = values + p * KV_PAGE * vs;
				for (int d = 0; d < vs; d += att_tile_nv(att) * VL)
					att_tile_values(att, &t, nb, p * KV_PAGE, p * KV_PAGE, see < (p + 1) * KV_PAGE ? see : (p + 1) * KV_PAGE, d, p == 0);
			}
			for (int r = 0; r < nb * block && r0 + r < u->n; r++)
				if (t.lc[r] != 0)
					att_merge(a.v_dim, &m[r0 + r], &l[r0 + r], o + (r0 + r) * vs, t.mc[r], t.lc[r], oc + r * vs);
		}
	}
	for (int r = 0; r < u->n; r++)
		att_finish(a.v_dim, u->o + ((size_t)(u->row0 + r) * (size_t)a.heads + (size_t)u->head) * (size_t)a.rank, o + r * vs, l[r]);
}

#endif
