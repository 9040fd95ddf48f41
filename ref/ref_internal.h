/* Shared by the files of ref/: access to a call's arguments, and loops that several ops use. */
#ifndef LLMC_REF_REF_INTERNAL_H
#define LLMC_REF_REF_INTERNAL_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "formats/dequant.h"
#include "ref/ref.h"

#define OP(name, ...) ref_fn ref_##name;
#include "ops/ops.def"

static inline bool
ref_has(const RefCall *c, int arg)
{
	return c->arg[arg].kind != REF_NONE;
}

static inline float *
ref_f32(const RefCall *c, int arg)
{
	return c->arg[arg].data;
}

/* Row count of the op in this step, from the extent of one of its buffers. */
static inline int64_t
ref_rows(const RefCall *c, int arg)
{
	const PlanBuffer *b = c->arg[arg].buffer;

	return b && b->extent.sym == SYM_n_out ? c->s->n_out : c->s->n_tok;
}

/* sum a[i] * b[i], multiplied and added in double; the order depends only on n */
double ref_dot(const float *a, const float *b, int64_t n);
/* Dequantises a vector weight to dst [n]; returns NULL for an absent one. */
const float *ref_vector(const RefArg *a, float *dst);
/* y[t][0 .. n) = x[t] w[first .. first + n)^T for n_row rows, which are x_stride and y_stride
 * apart; row: scratch [cols] */
void ref_matmul_rows(const RefArg *w, int64_t first, int64_t n, int64_t cols, const float *x,
                     int64_t x_stride, int64_t n_row, float *y, int64_t y_stride, float *row);
/* The matmul op on plain pointers: all rows of w, then the bias. scratch: cols + rows floats */
void ref_linear(const RefArg *w, const RefArg *b, int64_t rows, int64_t cols, const float *x,
                int64_t n_row, float *y, float *scratch);
/* Norms of one row of `dim` elements; w, b may be NULL. */
void ref_rms_row(const float *x, const float *w, int64_t dim, double eps, bool plus_one, float *y);
void ref_layer_row(const float *x, const float *w, const float *b, int64_t dim, double eps,
                   bool plus_one, float *y);
/* The norm before a fused op: kind none, rms or layer; rows of x are dim apart. scratch: 2 * dim
 * floats */
void ref_norm_rows(const PlanStep *step, const RefArg *w, const RefArg *b, int64_t dim,
                   const float *x, int64_t n_row, float *y, float *scratch);
/* returns cap * tanh(scale * x / cap); cap 0: scale * x */
float ref_cap_one(float x, double scale, double cap);
double ref_activate(const char *act, double x);
/* Rotates elements [0, rope_dims) of x into y; angles: cos, then sin, rope_dims / 2 each. y may be
 * x. */
void ref_rotate(const float *x, const float *angles, int64_t rope_dims, bool interleaved, float *y);

/* Softmax in place; n > 0. sink: an additional score that is part of the sum but has no output;
 * NULL: none */
void ref_softmax(float *p, int64_t n, const float *sink);

/* Returns the positions that row t attends to, *n of them. NULL: the first *n positions. arg: the
 * op's optional selection */
static inline const int32_t *
ref_sel(const RefCall *c, int arg, int64_t t, int64_t *n)
{
	const int64_t chosen = step_int(c->step, "index_top_k");

	*n = c->s->pos[t] + 1;
	if (!ref_has(c, arg) || *n <= chosen)
		return NULL;
	*n = chosen;
	return (const int32_t *)c->arg[arg].data + t * chosen;
}

/* Returns the page of a position in one layer */
static inline char *
ref_page(const RefCall *c, int arg, int32_t seq, int64_t pos)
{
	const llmc_step *s = c->s;
	int64_t page = s->block_table[(int64_t)seq * s->block_stride + pos / PLAN_KV_PAGE];

	return (char *)c->arg[arg].data + page * plan_layer_page_bytes(c->arg[arg].pool);
}

/* Returns the exact page of a position. For windowed pools the caller passes the second half of the
 * block table */
static inline char *
ref_exact_page(const RefCall *c, int arg, int32_t seq, int64_t pos)
{
	const llmc_step *s = c->s;
	const PlanPool *p = c->arg[arg].pool;
	int64_t page = s->block_table[(int64_t)seq * s->block_stride +
	                              (p->keep ? 0 : s->block_stride / 2) + pos / PLAN_KV_PAGE];

	return (char *)c->arg[arg].data - (page + 1) * plan_layer_exact_bytes(p);
}

/* Returns whether a row at pos reads position j from its exact page */
static inline bool
ref_reads_exact(const PlanPool *p, int64_t pos, int64_t j)
{
	return j < p->sinks || (p->recent > 0 && pos - j < p->recent);
}

static inline float
ref_kv_get(KvType d, const char *page, int64_t i)
{
	uint16_t h;
	float f;

	if (d == KVT_F32) {
		memcpy(&f, page + i * 4, 4);
		return f;
	}
	memcpy(&h, page + i * 2, 2);
	return d == KVT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

static inline void
ref_kv_put(KvType d, char *page, int64_t i, float f)
{
	uint16_t h;

	if (d == KVT_F32) {
		memcpy(page + i * 4, &f, 4);
		return;
	}
	h = d == KVT_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
	memcpy(page + i * 2, &h, 2);
}

/* Writes a row to a plane of keys or values, and reads it back (ref_kv.c). rotated: scratch of dim
 * floats for the rotated row */
void ref_kv_put_row(KvType t, bool rotate, bool key, char *plane, int64_t at, const float *row,
                    int64_t dim, float *rotated);
void ref_kv_get_row(KvType t, bool rotate, bool key, const char *plane, int64_t at, float *row,
                    int64_t dim);
/* Quantises a full page's plane of per-channel keys from the plane of its exact page */
void ref_kv_close_plane(KvType t, char *plane, const char *exact, int64_t dim);
/* Like ref_kv_put_row, for a plane of an exact page; t: type of the quantised rows */
void ref_exact_put_row(KvType t, bool rotate, bool key, char *plane, int64_t at, const float *row,
                       int64_t dim, float *rotated);
void ref_exact_get_row(KvType t, bool rotate, bool key, const char *plane, int64_t at, float *row,
                       int64_t dim);

/* Element i of the latent and key at position `at` of a page */
float ref_latent_get(const PlanPool *p, const char *page, int64_t at, int64_t i);

/* Multiplies row by the Hadamard matrices of kv_rotation(dim), in place; the transform is its own
 * inverse */
void ref_hadamard(float *row, int64_t dim);

/* The plane of keys or values of a head in a page */
static inline char *
ref_plane(const PlanPool *p, char *page, bool key, int64_t head)
{
	int64_t k = PLAN_KV_PAGE * kv_row_bytes(p->k, p->k_dim),
	        v = PLAN_KV_PAGE * kv_row_bytes(p->v, p->v_dim);

	return page + (key ? head * k : p->kv_heads * k + head * v);
}

/* The plane of keys or values of a head in an exact page */
static inline char *
ref_exact_plane(const PlanPool *p, char *page, bool key, int64_t head)
{
	const PlanPool exact = { .k = kv_exact(p->k),
		                 .v = kv_exact(p->v),
		                 .kv_heads = p->kv_heads,
		                 .k_dim = p->k_dim,
		                 .v_dim = p->v_dim };

	return ref_plane(&exact, page, key, head);
}

/* Appends k [K][D] and v [K][V] of row t to the pool: the body of kv_append. rotated: scratch for
 * the wider row */
void ref_append_row(const RefCall *c, int kv_arg, int64_t t, const float *k, const float *v,
                    int64_t kv_heads, int64_t dim, int64_t v_dim, float *rotated);

#endif
