/* Latent attention of a decode step on sm_90a: up to 64 heads of a row per tile, wgmma, pages by
 * TMA. Shared memory is divided as in FlashMLA: 64 queries and two blocks of 64 positions fill an
 * SM. There is one barrier per 64 positions.
 *
 *   producer (1 warp)      tile of 64 positions: 2 pages x BOXES of 64 columns --TMA--> ring of 2:
 *                          wait empty, expect bytes, load; pages older than the step are issued
 *                          before the PDL wait
 *   consumers (2 x 128)    queries --round--> shared (once per unit); mainloop, both warpgroups:
 *                          wait full; S (64 heads x own 32 positions) = Q K^T, both from shared;
 *                          own maximum, own weights --round--> shared
 *                          barrier; read the other's weights and maximum
 *                          O = O keep + P V (64 heads x own half of the latent, P from registers,
 *                          V is the same stage); arrive empty
 *   unit in one CTA: o; otherwise parts and a counter; last CTA to arrive combines them --> o
 *
 * The warpgroups exchange weights through the rotary columns of the stage, which are no longer
 * needed once S is complete. Each warpgroup writes to the rows of its own 32 positions. Its weights
 * are relative to the larger of two maxima: the previous common one, and that of its own scores.
 * After the barrier both compute the new common maximum, and rescale weights that are relative to a
 * smaller one.
 *
 * Cycles per tile for 512 + 64 dimensions: docs/kernels/mla.md.
 *
 * Queries and weights are rounded to the pool's type. */
#ifndef LLMC_CUDA_MLA_MLA_DECODE_SM90_H
#define LLMC_CUDA_MLA_MLA_DECODE_SM90_H

#include "cuda/attention/flash_sm90.h"
#include "cuda/mla/mla_decode.h"

/* Number of CTAs whose factors, for HB heads, fit in the memory of the queries */
template <class A> DEV constexpr int
mla90_blocks(int hb)
{
	return (A::RANK + 64) * 32 / hb < 256 ? (A::RANK + 64) * 32 / hb : 256;
}

template <class A, int HB> struct mla90_config
    : att_split<A, 64, HB, 1, mla90_blocks<A>(HB), 30 * (HB * A::RANK / 1024) / 8> {
	enum {
		THREADS = 384,
		STAGES = 2,
		BOXES =
		    A::RANK / 64 +
		    1, /* boxes of 64 columns; the last one is the rotary key, padded with zeros */
		BOX = 64 * 128, /* bytes per box of 64 positions or heads */
		STAGE = BOXES * BOX,
		HALF = A::RANK / 2,           /* columns of V per warpgroup */
		EXCHANGE = (BOXES - 1) * BOX, /* offset in a stage of the exchanged weights */
		BOTH = 1                      /* number of the named barrier of both warpgroups */
	};
	static_assert(A::RANK % 128 == 0 && A::RANK <= 512 && A::ROPE % 16 == 0 && A::ROPE <= 64,
	              "shapes");
};

template <class S> struct alignas(1024) mla90_shared_storage {
	unsigned char q[S::STAGE]; /* also holds the factors of parts while these are combined */
	unsigned char page[S::STAGES][S::STAGE];
	float most[2][2][64]; /* [parity][warpgroup]: maximum to which the weights are relative */
	float part[2][64], sum[64], top[64];
	mbar_t full[S::STAGES], empty[S::STAGES];
	int last;
	static_assert(sizeof(float) * S::BLOCKS * S::HB <= S::STAGE, "factors");
};

/* The consumer threads, in the role of att_block for att_combine */
struct mla90_team {
	DEV int
	thread()
	{
		return (int)threadIdx.x - 128;
	}
	DEV int
	threads()
	{
		return 256;
	}
	DEV void
	sync()
	{
		bar_sync(1, 256);
	}
};

/* ---- producer warp ---- */

template <class S> DEV void
mla90_load(unsigned char *to, mbar_t *full, const tensor_map *map, const llmc_step &step,
           const void *pool, const AttSegment &g, int tile)
{
	const int left = g.range.hi - tile * 64,
	          whole = left >= 64 ? 2 : left / KV_PAGE; /* full pages */
	const bool ragged = left < 64 && left % KV_PAGE;

	if (lane_id() == 0) {
		if (ragged)
			mbar_expect(full, S::STAGE - S::STAGE / 2);
		else
			mbar_arrive_expect(full, S::STAGE);
#pragma unroll
		for (int j = 0; j < 2; j++) {
			if (ragged && j == whole)
				continue;
			const int row =
			    j < whole
			        ? kv_page_of(step, g.seq, tile * 64 + j * KV_PAGE) * KV_PAGE
			        : -KV_PAGE; /* a box outside of the tensor, which loads zeros */
#pragma unroll
			for (int b = 0; b < S::BOXES; b++)
				tensor_load_2d(to + b * S::BOX + j * (S::BOX / 2), map, b * 64, row,
				               full);
		}
	}
	if (!ragged)
		return;
	/* Memory after the last position may hold any values, so zeros replace it. */
	const typename S::elem *from = S::page(step, pool, g.seq, tile * 64 + whole * KV_PAGE);
	for (int i = (int)lane_id(); i < KV_PAGE * S::BOXES * 8; i += 32) {
		const int r = i / (S::BOXES * 8), p = i % (S::BOXES * 8);
		const bool in = r < left % KV_PAGE && p * 8 < S::WIDTH;
		cp_async_16_fill(to + p / 8 * S::BOX + whole * (S::BOX / 2) + r * 128 +
		                     ((p ^ r) & 7) * 16,
		                 in ? from + r * S::WIDTH + p * 8 : from, in ? 16 : 0);
	}
	cp_async_wait_all();
	fence_proxy_async();
	__syncwarp();
	if (lane_id() == 0)
		mbar_arrive(full);
}

template <class S> DEV void
mla90_copy(mla90_shared_storage<S> &s, const llmc_call &call, const mla_args &a,
           const tensor_map *map)
{
	const llmc_step &step = call.s;
	flash90_ring<S::STAGES> ring;
	bool waited = false;
	AttList list = att_list<S>(step);

	while (list.at < list.end) {
		const AttSegment g = att_segment<S>(step, list);
		for (int tile = g.tile; tile < g.end; tile++, ring.next()) {
			if (!waited && (tile + 1) * 64 > g.pos) {
				PDL_WAIT();
				waited = true;
			}
			mbar_wait(&s.empty[ring.at], ring.round ^ 1);
			__syncwarp(); /* otherwise a lane that lags could wait for a parity that has
			                 already passed */
			mla90_load<S>(s.page[ring.at], &s.full[ring.at], map, step, a.kv, g, tile);
		}
	}
	prefetch_next(call, 0, 1); /* the last page has been issued, or there is none */
	if (!waited)
		PDL_WAIT();
}

/* ---- consumer warpgroups ---- */

DEV void
mla90_qk(kv_bf16, float (&d)[16], unsigned long long a, unsigned long long b, int acc)
{
	wgmma_bf16_m64n32k16(d, a, b, acc);
}
DEV void
mla90_qk(kv_f16, float (&d)[16], unsigned long long a, unsigned long long b, int acc)
{
	wgmma_f16_m64n32k16(d, a, b, acc);
}

/* Stores the unit's queries, rounded; zeros for heads and columns beyond the end. */
template <class S> DEV void
mla90_queries(mla90_shared_storage<S> &s, const mla_args &a, const AttSegment &g)
{
	const float *from = a.q + ((long long)g.row * S::HEADS + g.head) * S::WIDTH;

#pragma unroll 1
	for (int i = mla90_team::thread(); i < 64 * S::BOXES * 8; i += 256) {
		const int row = i / (S::BOXES * 8), c = i % (S::BOXES * 8);
		uint4 v[2] = {};
		if (row < g.n_head && c * 8 < S::WIDTH) {
			v[0] = ld_v4(from + row * S::WIDTH + c * 8);
			v[1] = ld_v4(from + row * S::WIDTH + c * 8 + 4);
		}
		unsigned half[4];
#pragma unroll
		for (int k = 0; k < 2; k++) {
			half[2 * k] =
			    flash_pack<S>(__uint_as_float(v[k].x), __uint_as_float(v[k].y));
			half[2 * k + 1] =
			    flash_pack<S>(__uint_as_float(v[k].z), __uint_as_float(v[k].w));
		}
		st_v4(s.q + c / 8 * S::BOX + row * 128 + ((c ^ row) & 7) * 16,
		      make_uint4(half[0], half[1], half[2], half[3]));
	}
	fence_proxy_async();
}

/* Multiplies rounded weights by f[0] (rows g) and f[1] (rows g + 8). */
template <class S> DEV void
mla90_scale(unsigned (&p)[2][4], const float (&f)[2])
{
	typedef kv_mma<typename S::E> M;

#pragma unroll
	for (int k = 0; k < 2; k++)
#pragma unroll
		for (int c = 0; c < 4; c++)
			p[k][c] = M::pair(M::lo(p[k][c]) * f[c % 2], M::hi(p[k][c]) * f[c % 2]);
}

/* Turns the scores of 32 positions into weights, relative to the maximum `most` of the row's scores
 * and its previous maximum m. share: shared memory from which the other warpgroup reads the maxima;
 * first: position of the lane's row group; last: end of the tile; hi: end of the visible
 * positions */
template <class S> DEV void
mla90_softmax(float (&x)[16], float (&most)[2], float (&sum)[2], const float (&m)[2], float unit,
              float *share, int row, int first, int last, int hi)
{
	const int lane = (int)lane_id();

	if (last > hi) {
#pragma unroll
		for (int i = 0; i < 16; i++)
			if (first + i / 4 * 8 + lane % 4 * 2 + i % 2 >= hi)
				x[i] = __uint_as_float(0xff800000u); /* -inf: its weight is 0 */
	}
#pragma unroll
	for (int h = 0; h < 2; h++) {
		float top = x[2 * h];
#pragma unroll
		for (int i = 0; i < 4; i++)
			top = fmaxf(top, fmaxf(x[4 * i + 2 * h], x[4 * i + 2 * h + 1]));
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
		top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
		most[h] = fmaxf(m[h], __fmul_rn(top, unit));
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				float &w = x[4 * i + 2 * h + c];
				w = flash_exp2(fmaf(w, unit, -most[h]));
				sum[h] += w;
			}
		if (lane % 4 == 0)
			share[row + 8 * h] = most[h];
	}
}

/* Ends a segment: stores the results, or partial results, which the last CTA to arrive combines. */
template <class S> DEV void
mla90_finish(mla90_shared_storage<S> &s, const mla_args &a, const AttSegment &g,
             const float (&o)[S::HALF / 2], const float (&m)[2], float (&l)[2], int row)
{
	const int group = flash90_group<S>(), lane = (int)lane_id();

#pragma unroll
	for (int h = 0; h < 2; h++) {
		l[h] += __shfl_xor_sync(~0u, l[h], 1);
		l[h] += __shfl_xor_sync(~0u, l[h], 2);
		if (lane % 4 == 0) {
			s.part[group][row + 8 * h] = l[h];
			if (group == 0)
				s.top[row + 8 * h] = m[h];
		}
	}
	mla90_team::sync();
	const bool whole = g.first_block == g.last_block;
	const AttOut out = { a.o + ((long long)g.row * S::HEADS + g.head) * S::RANK,
		             S::RANK,
		             a.part_o,
		             a.part_ml,
		             a.ticket + g.unit,
		             0 };
	float *part = out.part_o + (long long)(2 * (int)blockIdx.x + g.begins) * S::HB * S::RANK;
#pragma unroll
	for (int h = 0; h < 2; h++) {
		const int head = row + 8 * h;
		const float sum = s.part[0][head] + s.part[1][head],
		            scale = whole ? 1.0f / sum : 1.0f;
		if (group == 0 && lane % 4 == 0)
			s.sum[head] = sum;
		if (head >= g.n_head)
			continue;
		float *to = (whole ? out.y + (long long)head * out.y_step : part + head * S::RANK) +
		            group * S::HALF + lane % 4 * 2;
#pragma unroll
		for (int n = 0; n < S::HALF / 8; n++)
			st_v2(to + n * 8,
			      make_uint2(__float_as_uint(o[4 * n + 2 * h] * scale),
			                 __float_as_uint(o[4 * n + 2 * h + 1] * scale)));
	}
	if (!whole) {
		/* sums are stored, and the queries are no longer needed */
		mla90_team::sync();
		att_combine<S, mla90_team>(g, out, s.top, s.sum, &s.last, (float *)s.q);
	}
}

template <class S> DEV void
mla90_multiply(mla90_shared_storage<S> &s, const llmc_step &step, const mla_args &a)
{
	const int group = flash90_group<S>(), lane = (int)lane_id(),
	          thread = (int)threadIdx.x & 127, row = ((int)warp_id() & 3) * 16 + lane / 4;
	const float unit = a.scale * (float)ATT_LOG2E;
	const unsigned long long qd = smem_desc(s.q, 16, 1024, 128),
	                         kd = smem_desc(s.page[0] + group * (S::BOX / 2), 16, 1024, 128);
	const unsigned long long vd =
	    smem_desc(s.page[0] + group * (S::HALF / 64) * S::BOX, S::BOX, 1024, 128);
	flash90_ring<S::STAGES> ring;
	int turn = 0;

	PDL_WAIT();
	PDL_LAUNCH();
	AttList list = att_list<S>(step);
	while (list.at < list.end) {
		const AttSegment g = att_segment<S>(step, list);
		float o[S::HALF / 2], m[2] = { ATT_NONE, ATT_NONE }, l[2] = { 0, 0 };

#pragma unroll
		for (int i = 0; i < S::HALF / 2; i++)
			o[i] = 0;
		/* both warpgroups have finished with the previous queries and parts */
		mla90_team::sync();
		mla90_queries<S>(s, a, g);
		mla90_team::sync();
#pragma unroll 1
		for (int tile = g.tile; tile < g.end; tile++, turn ^= 1) {
			float x[16], most[2], sum[2] = { 0, 0 };
			unsigned mine[2][4], others[2][4];
			mbar_wait(&s.full[ring.at], ring.round);
			wgmma_fence();
#pragma unroll
			for (int i = 0; i < S::WIDTH / 16; i++)
				mla90_qk(
				    typename S::E(), x, qd + (i / 4 * S::BOX + i % 4 * 32) / 16,
				    kd + (ring.at * S::STAGE + i / 4 * S::BOX + i % 4 * 32) / 16,
				    i > 0);
			wgmma_commit();
			wgmma_wait<0>();
			wgmma_pin(x);
			mla90_softmax<S>(x, most, sum, m, unit, s.most[turn][group], row,
			                 tile * 64 + group * 32, (tile + 1) * 64, g.range.hi);
#pragma unroll
			for (int k = 0; k < 2; k++)
#pragma unroll
				for (int c = 0; c < 4; c++)
					mine[k][c] = flash_pack_weights<S>(x[8 * k + 2 * c],
					                                   x[8 * k + 2 * c + 1]);
			unsigned char *exchange = s.page[ring.at] + S::EXCHANGE;
#pragma unroll
			for (int k = 0; k < 2; k++)
				st_v4(exchange + group * 4096 + k * 2048 + thread * 16,
				      make_uint4(mine[k][0], mine[k][1], mine[k][2], mine[k][3]));
			mla90_team::sync(); /* the only barrier per 64 positions */
#pragma unroll
			for (int k = 0; k < 2; k++) {
				const uint4 v =
				    ld_v4(exchange + (1 - group) * 4096 + k * 2048 + thread * 16);
				others[k][0] = v.x;
				others[k][1] = v.y;
				others[k][2] = v.z;
				others[k][3] = v.w;
			}
			float keep[2], f[2], e[2];
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const float other = s.most[turn][1 - group][row + 8 * h],
				            top = fmaxf(most[h], other);
				keep[h] = flash_exp2(m[h] - top);
				f[h] = flash_exp2(most[h] - top);
				e[h] = flash_exp2(other - top);
				m[h] = top;
				l[h] = fmaf(l[h], keep[h], sum[h] * f[h]);
			}
			if (!__all_sync(~0u, keep[0] == 1 && keep[1] == 1)) {
				mla90_scale<S>(mine, f);
				mla90_scale<S>(others, e);
#pragma unroll
				for (int i = 0; i < S::HALF / 2; i++)
					o[i] *= keep[i / 2 % 2];
			}
			/* the positions of the other warpgroup come after those of this one */
			const int first = (1 - group) * 4096 / 16;
			wgmma_fence();
#pragma unroll
			for (int k = 0; k < 2; k++)
				flash90_pv(typename S::E(), o, mine[k],
				           vd + (ring.at * S::STAGE + k * 2048) / 16 +
				               group * 4096 / 16);
#pragma unroll
			for (int k = 0; k < 2; k++)
				flash90_pv(typename S::E(), o, others[k],
				           vd + (ring.at * S::STAGE + k * 2048) / 16 + first);
			wgmma_commit();
			wgmma_wait<0>();
			wgmma_pin(o);
			fence_proxy_async(); /* the weights are in memory that TMA will overwrite */
			flash90_arrive(&s.empty[ring.at]);
			ring.next();
		}
		mla90_finish<S>(s, a, g, o, m, l, row);
	}
}

template <class S> DEV void
mla90_run(const llmc_call &call, const mla_args &a, const tensor_map *map)
{
	const llmc_step &step = call.s;
	typedef mla90_shared_storage<S> shared_storage;
	SHARED_STORAGE(shared_storage, s);
	static_assert(sizeof(shared_storage) <= 3 * S::STAGE + 4096,
	              "must match shared in the @launch line");

	if (threadIdx.x < S::STAGES) {
		mbar_init(&s.full[threadIdx.x], 1);
		mbar_init(&s.empty[threadIdx.x], 8);
	}
	__syncthreads();
	if (threadIdx.x < 128) {
		reg_dec<40>();
		if (threadIdx.x < 32)
			mla90_copy<S>(s, call, a, map);
	} else {
		reg_inc<232>();
		mla90_multiply<S>(s, step, a);
	}
}

#endif
