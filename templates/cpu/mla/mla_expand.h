/* The expanded form of cpu/mla/mla.h. Its GEMMs are those of cpu/gemm/matmul.h. */
#ifndef LLMC_CPU_MLA_MLA_EXPAND_H
#define LLMC_CPU_MLA_MLA_EXPAND_H

#include "cpu/gemm/matmul.h"
#include "cpu/mla/mla.h"

enum {
	MLA_MADE = (64 + MM_WHOLE - 1) / MM_WHOLE * MM_WHOLE
}; /* number of positions whose keys and values are computed at a time */

typedef void mla_tokens_fn(mm_work *m, int t0, const float *x, const int32_t *index, Norm norm);
typedef void mla_rows_fn(const mm_work *m, const uint8_t *w, int64_t row, int rows, float *out,
                         int ld);

typedef struct MlaMatrix {
	Product p;
	mla_tokens_fn *tokens;
	mla_rows_fn *rows;
	const uint8_t *data;
	void *scratch; /* scratch that mm_begin gets for this thread's part */
} MlaMatrix;

/* Computes out[j][skip + i] = row head * dim + i of w, times the latent of position j. The n
 * positions are padded to whole tiles. Returns skip. */
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
	int seq, row0, n, head;
	float *work; /* see mla/mla_attend.head */
} MlaUnit;

/* Scratch of a unit. Rows are in groups of MLA_EB: interleaved, for one page, or tile by tile. */
typedef struct MlaSpace {
	float *q, *w, *oc, *o, *m, *l, *keys, *values, *x, *latent, *out;
	float *row; /* a query or key, zero padded */
} MlaSpace;

enum { MLA_EB = MLA_TILES ? 16 : ATT_TILE_R };

/* number of elements of a key, and of a value, with padding */
LLMC_INLINE int
mla_kd(const Mla a)
{
	return MLA_TILES ? mla_up(a.nope + a.rope, 32) : a.nope + a.rope;
}

LLMC_INLINE int
mla_vd(const Mla a)
{
	return mla_up(a.v_dim, VL);
}

#if defined(LLMC_TILES)
/* On AMX, keys, values, queries and weights are two bf16 parts each, as in cpu/mla/mla_amx.h:
 *   q       [block of 16 rows][2][16][kd]     A of the scores
 *   keys    [2][kd / 2][128][2]               B of the scores
 *   values  [2][128 / 2][vd][2]               B of the sums, with weights [2][16][128] as A */
typedef uint32_t mla_bits __attribute__((vector_size(64), may_alias));

LLMC_INLINE void
mla_put16(uint16_t *to, vf x)
{
	_mm256_storeu_si256((__m256i *)(void *)to,
	                    _mm512_cvtepi32_epi16((__m512i)((mla_bits)x >> 16)));
}

/* rounds to bf16 */
LLMC_INLINE vf
mla_round(vf x)
{
	return (vf)((vi)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)) << 16);
}

LLMC_INLINE void
mla_put_query(const Mla a, const MlaSpace *p, int r, const float *row)
{
	uint16_t *to =
	    (uint16_t *)(void *)p->q + (size_t)(r / 16 * 32 + r % 16) * (size_t)mla_kd(a);

	for (int d = 0; d < mla_kd(a); d += VL) {
		vf x = vf_load(row + d), h = mla_round(x);
		mla_put16(to + d, h);
		mla_put16(to + 16 * mla_kd(a) + d, mla_round(x - h));
	}
}

LLMC_INLINE void
mla_put_key(const Mla a, const MlaSpace *p, int j, const float *row)
{
	uint32_t *to = (uint32_t *)(void *)p->keys + j;

	for (int d = 0; d < mla_kd(a); d += VL) {
		vf x = vf_load(row + d), part[2] = { x, x - mla_round(x) };
		for (int k = 0; k < 2; k++) {
			uint32_t pair[VL / 2];
			_mm256_storeu_si256((__m256i *)(void *)pair,
			                    (__m256i)_mm512_cvtneps_pbh((__m512)part[k]));
			for (int i = 0; i < VL / 2; i++)
				to[(k * mla_kd(a) / 2 + d / 2 + i) * ATT_CHUNK] = pair[i];
		}
	}
}

/* Stores the keys of positions j (even) and j + 1. */
LLMC_INLINE void
mla_put_values(const Mla a, const MlaSpace *p, int j, const float *row, const float *next)
{
	uint16_t *hi = (uint16_t *)(void *)p->values + j * mla_vd(a),
	         *lo = hi + ATT_CHUNK * mla_vd(a);

	for (int d = 0; d < mla_vd(a); d += VL) {
		vf x = vf_load(row + d), y = vf_load(next + d), h = mla_round(x), g = mla_round(y);
		_mm512_storeu_si512(hi + 2 * d, (__m512i)amx_two((vi)h, (vi)g));
		_mm512_storeu_si512(lo + 2 * d,
		                    (__m512i)amx_two((vi)mla_round(x - h), (vi)mla_round(y - g)));
	}
}

/* Computes scores w [16][128] of the block of rows from r0 on. */
LLMC_INLINE void
mla_block_scores(const Mla a, const MlaSpace *p, int r0, int see)
{
	const int kd = mla_kd(a);
	const uint16_t *qh = (const uint16_t *)(const void *)p->q + (size_t)(r0 * 2) * (size_t)kd,
	               *ql = qh + 16 * kd;
	const uint16_t *kh = (const uint16_t *)(const void *)p->keys, *kl = kh + ATT_CHUNK * kd;

#define MLA_KEYS(c)                                                                                \
	AMX_LOAD(6, kh + (d / 2 * ATT_CHUNK + j0 + 16 * (c)) * 2, 4 * ATT_CHUNK);                  \
	AMX_BF16(c, 4, 6);                                                                         \
	AMX_BF16(c, 5, 6);                                                                         \
	AMX_LOAD(7, kl + (d / 2 * ATT_CHUNK + j0 + 16 * (c)) * 2, 4 * ATT_CHUNK);                  \
	AMX_BF16(c, 4, 7)
	for (int j0 = 0; j0 < see; j0 += 64) {
		AMX_ZERO(0);
		AMX_ZERO(1);
		AMX_ZERO(2);
		AMX_ZERO(3);
		for (int d = 0; d < kd; d += 32) {
			AMX_LOAD(4, qh + d, 2 * kd);
			AMX_LOAD(5, ql + d, 2 * kd);
			MLA_KEYS(0);
			MLA_KEYS(1);
			MLA_KEYS(2);
			MLA_KEYS(3);
		}
		AMX_STORE(0, p->w + j0, 4 * ATT_CHUNK);
		AMX_STORE(1, p->w + j0 + 16, 4 * ATT_CHUNK);
		AMX_STORE(2, p->w + j0 + 32, 4 * ATT_CHUNK);
		AMX_STORE(3, p->w + j0 + 48, 4 * ATT_CHUNK);
	}
#undef MLA_KEYS
}

/* Computes sums oc [16][vd]. */
LLMC_INLINE void
mla_block_sums(const Mla a, const MlaSpace *p, int see)
{
	const int vd = mla_vd(a);
	uint16_t *parts = (uint16_t *)(void *)(p->w + 16 * ATT_CHUNK),
	         *rest = parts + 16 * ATT_CHUNK;
	const uint16_t *vh = (const uint16_t *)(const void *)p->values, *vl = vh + ATT_CHUNK * vd;

	for (int i = 0; i < 16 * ATT_CHUNK; i += VL) {
		vf x = vf_load(p->w + i), h = mla_round(x);
		mla_put16(parts + i, h);
		mla_put16(rest + i, mla_round(x - h));
	}
	for (int d = 0; d < vd; d += 16) {
		AMX_ZERO(0);
		for (int j = 0; j < see; j += 32) {
			AMX_LOAD(4, parts + j, 2 * ATT_CHUNK);
			AMX_LOAD(6, vh + (j / 2 * vd + d) * 2, 4 * vd);
			AMX_BF16(0, 4, 6);
			AMX_LOAD(5, rest + j, 2 * ATT_CHUNK);
			AMX_BF16(0, 5, 6);
			AMX_LOAD(7, vl + (j / 2 * vd + d) * 2, 4 * vd);
			AMX_BF16(0, 4, 7);
		}
		AMX_STORE(0, p->oc + d, 4 * vd);
	}
}
#else
LLMC_INLINE void
mla_put_query(const Mla a, const MlaSpace *p, int r, const float *row)
{
	for (int d = 0; d < mla_kd(a); d++)
		p->q[(r / ATT_TILE_MR * mla_kd(a) + d) * ATT_TILE_MR + r % ATT_TILE_MR] = row[d];
}

LLMC_INLINE void
mla_put_key(const Mla a, const MlaSpace *p, int j, const float *row)
{
	for (int d = 0; d < mla_kd(a); d++)
		p->keys[(j / KV_PAGE * mla_kd(a) + d) * KV_PAGE + j % KV_PAGE] = row[d];
}

/* Stores the values of positions j and j + 1. */
LLMC_INLINE void
mla_put_values(const Mla a, const MlaSpace *p, int j, const float *row, const float *next)
{
	memcpy(p->values + j * mla_vd(a), row, (size_t)mla_vd(a) * sizeof *row);
	memcpy(p->values + (j + 1) * mla_vd(a), next, (size_t)mla_vd(a) * sizeof *next);
}

LLMC_INLINE void
mla_block_scores(const Mla a, const MlaSpace *p, int r0, int see)
{
	const Att att = { .heads = 1, .kv_heads = 1, .dim = mla_kd(a), .v_dim = a.v_dim };
	AttTile t = { .q = p->q + r0 * mla_kd(a), .s = p->w };

	for (int page = 0; page * KV_PAGE < see; page++) {
		t.x = p->keys + page * KV_PAGE * mla_kd(a);
		att_tile_scores(att, &t, (const char *)t.x, ATT_TILE_R / ATT_TILE_MR,
		                page * KV_PAGE);
	}
}

LLMC_INLINE void
mla_block_sums(const Mla a, const MlaSpace *p, int see)
{
	const Att att = { .heads = 1, .kv_heads = 1, .dim = mla_kd(a), .v_dim = a.v_dim };
	AttTile t = { .s = p->w, .oc = p->oc };

	for (int at = 0; at < see; at += KV_PAGE) {
		t.x = p->values + at * mla_vd(a);
		for (int d = 0; d < mla_vd(a); d += att_tile_nv(att) * VL)
			att_tile_values(att, &t, mla_vd(a), ATT_TILE_R / ATT_TILE_MR, at, at,
			                see < at + KV_PAGE ? see : at + KV_PAGE, d, at == 0);
	}
}
#endif

/* Computes keys and values of positions [pos0, pos0 + see) for the unit's head */
LLMC_INLINE void
mla_make_all(const Mla a, const MlaUnit *u, const MlaSpace *p, const MlaMatrix kb,
             const MlaMatrix vb, int pos0, int see)
{
	const int ld = mla_up((a.nope > a.v_dim ? a.nope : a.v_dim) + 2 * VL, 2 * VL),
	          stride = mla_stride(a);

	for (int j0 = 0; j0 < see; j0 += MLA_MADE) {
		const int n = see - j0 < MLA_MADE ? see - j0 : MLA_MADE;
		mla_fetch(a, u->s, u->pool, u->seq, NULL, pos0 + j0, n, 0, p->x);
		for (int j = 0; j < n; j++)
			memcpy(p->latent + j * a.rank, p->x + j * stride,
			       (size_t)a.rank * sizeof *p->latent);
		const int whole = mla_up(n, MM_WHOLE);
		memset(p->latent + n * a.rank, 0,
		       (size_t)((whole - n) * a.rank) * sizeof *p->latent);
		int skip = mla_make(kb, u->head, a.nope, p->latent, whole, p->out, ld);
		for (int j = 0; j < n; j++) {
			memcpy(p->row, p->out + j * ld + skip, (size_t)a.nope * sizeof *p->row);
			memcpy(p->row + a.nope, p->x + j * stride + a.rank,
			       (size_t)a.rope * sizeof *p->row);
			mla_put_key(a, p, j0 + j, p->row);
		}
		skip = mla_make(vb, u->head, a.v_dim, p->latent, whole, p->out, ld);
		if (n % 2)
			memset(p->out + n * ld, 0, (size_t)ld * sizeof *p->out);
		for (int j = 0; j < n; j += 2)
			mla_put_values(a, p, j0 + j, p->out + j * ld + skip,
			               p->out + (j + 1) * ld + skip);
	}
}

/* Processes rows [row0, row0 + n) of a sequence, n <= MLA_ROWS, for one query head. */
LLMC_INLINE void
mla_expand(const Mla a, const MlaUnit *u, const MlaMatrix kb, const MlaMatrix vb)
{
	const int dim = a.nope + a.rope, kd = mla_kd(a), vd = mla_vd(a), width = mla_width(a),
	          rows = mla_up(MLA_ROWS, MLA_EB);
	const llmc_step *s = u->s;
	const int end = s->pos[u->row0 + u->n - 1] + 1;
	MlaSpace p = { .q = u->work };

	p.w = p.q + rows * kd;
	p.oc = p.w + ATT_TILE_R * ATT_CHUNK;
	p.o = p.oc + ATT_TILE_R * vd;
	p.m = p.o + MLA_ROWS * vd;
	p.l = p.m + MLA_ROWS;
	p.keys = p.l + MLA_ROWS;
	p.values = p.keys + ATT_CHUNK * kd;
	p.x = p.values + ATT_CHUNK * vd;
	p.latent = p.x + MLA_MADE * mla_stride(a);
	p.row = p.latent + MLA_MADE * a.rank;
	p.out = p.row + kd;
	memset(p.row, 0, (size_t)kd * sizeof *p.row);
	/* padding of positions and elements must be zero */
	memset(p.keys, 0, (size_t)(ATT_CHUNK * (kd + vd)) * sizeof *p.keys);
	for (int r = 0; r < mla_up(u->n, MLA_EB); r++) {
		const float *from =
		    u->q +
		    ((size_t)(u->row0 + r) * (size_t)a.heads + (size_t)u->head) * (size_t)width;
		for (int d = 0; d < dim; d++)
			p.row[d] = r < u->n ? from[d] * a.scale : 0;
		mla_put_query(a, &p, r, p.row);
		if (r < u->n)
			p.l[r] = 0;
	}
	for (int pos0 = 0; pos0 < end; pos0 += ATT_CHUNK) {
		const int see = end - pos0 < ATT_CHUNK ? end - pos0 : ATT_CHUNK;

		mla_make_all(a, u, &p, kb, vb, pos0, see);
#if defined(LLMC_TILES)
		amx_begin(MLA_EB, 64);
#endif
		for (int r0 = 0; r0 < u->n; r0 += MLA_EB) {
			const int n = u->n - r0 < MLA_EB ? u->n - r0 : MLA_EB;
			float mc[MLA_EB], lc[MLA_EB];
			if (s->pos[u->row0 + r0 + n - 1] < pos0)
				continue;
			mla_block_scores(a, &p, r0, see);
			for (int r = 0; r < MLA_EB; r++) {
				int hi = r < n ? s->pos[u->row0 + r0 + r] + 1 - pos0 : 0;
				lc[r] = 0;
				if (hi > 0)
					att_softmax((Att){ 0 }, ATT_CHUNK, p.w + r * ATT_CHUNK,
					            pos0, 0, hi < ATT_CHUNK ? hi : ATT_CHUNK, 0, 0,
					            &mc[r], &lc[r]);
				else
					memset(p.w + r * ATT_CHUNK, 0, ATT_CHUNK * sizeof *p.w);
			}
			mla_block_sums(a, &p, see);
			for (int r = 0; r < n; r++)
				if (lc[r] != 0)
					att_merge(a.v_dim, &p.m[r0 + r], &p.l[r0 + r],
					          p.o + (r0 + r) * vd, mc[r], lc[r], p.oc + r * vd);
		}
#if defined(LLMC_TILES)
		amx_end();
#endif
	}
	for (int r = 0; r < u->n; r++)
		att_finish(a.v_dim,
		           u->o + ((size_t)(u->row0 + r) * (size_t)a.heads + (size_t)u->head) *
		                      (size_t)a.rank,
		           p.o + r * vd, p.l[r]);
}

#endif
