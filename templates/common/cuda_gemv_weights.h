/* Weights of a GEMV on their way from memory to the tensor cores.
 *
 * Sixteen rows go through a warp together, two groups of eight: lane 4 g + t has a part of row g of each. A unit is GV_UNIT columns of these
 * rows. It is asked for by cp.async, 16 bytes a lane and less for scales, into one slot of the warp's ring (gv_ask, a group at a time), and
 * taken to registers when it has come (gv_take). A lane takes what it asked for itself, but for fields that its quad shares (GV_QUADS: the
 * warp meets before and after). A unit comes apart in GV_CHUNKS chunks of 8 weights a lane: 32 columns a row, two mma. Which columns these
 * are follows from the format alone: those of chunk c are at gv_col + 0..3 and at gv_col2 + 0..3; where GV_NIBBLES, each four in the order
 * 0 2 1 3 (nibbles are taken apart by one and).
 *
 * Rows of any whole number of blocks, and of 8 elements where there are none: a row's last unit then has GV_TAIL columns, and lanes beyond
 * them ask for its last bytes again. x is 0 there.
 *
 * Why not registers: a warp has six scoreboards, so a register ring deeper than that waits for its newest load when it wants the oldest.
 *
 * W_<dtype> and COLS are defined before inclusion. bf16 goes to the bf16 mma; everything else is f16 there: block formats as weight times
 * GV_GAIN, so that small scales do not meet f16's subnormals, rounded to 11 bits. Of q4_k and q5_k (GV_MINS) the mma sees whole numbers: nibbles times
 * their sub-block's scale, and in one mma more the sub-blocks' minima times sums of x; the block's two factors come after, in f32.
 *
 * `unit` of gv_take, gv_scales and gv_chunk need only be right modulo GV_WARPS: a warp's units are that far apart, and so what they look at in it
 * does not change. */
#ifndef LLMC_CUDA_GEMV_WEIGHTS_H
#define LLMC_CUDA_GEMV_WEIGHTS_H

#include "common/cuda_gemv_half.h"

/* A plane: `bytes` for each of the row's blocks, padded to 16 */
#define GV_PLANE(block, bytes) ((COLS / (block) * (bytes) + 15) / 16 * 16)

/* Place of 16 bytes in a plane of that many */
#define GV_WITHIN(at, plane) (unsigned)(GV_TAIL ? min((int)(at), (int)(plane) - 16) : (int)(at))

#if defined(W_bf16) || defined(W_f16)

enum { GV_UNIT = 32, GV_CHUNKS = 1, GV_QUADS = 0, GV_NIBBLES = 0, GV_ROW_BYTES = COLS * 2, GV_TAIL = COLS % GV_UNIT };
static_assert(GV_TAIL % 8 == 0, "rows of whole 16 bytes");
#define GV_GAIN 1.0f
struct gv_half { uint4 q[32]; };
struct gv_unit { uint4 q; };

DEV void
gv_ask(gv_half &s, const unsigned char *row, int unit, int lane, unsigned bytes)
{
	cp_async_16_fill(&s.q[lane], row + GV_WITHIN(unit * 64 + (lane & 3) * 16, GV_ROW_BYTES), bytes);
}

DEV void gv_take(gv_unit &u, const gv_half &s, int, int lane) { u.q = s.q[lane]; }
DEV int gv_col(int unit, int, int t) { return unit * 32 + t * 8; }
DEV int gv_col2(int unit, int c, int t) { return gv_col(unit, c, t) + 4; }

struct gv_scale {};
DEV void gv_scales(gv_scale &, const gv_unit &, int, int) {}
DEV void
gv_chunk(unsigned (&b)[4], const gv_unit &u, const gv_scale &, int, int, int)
{
	b[0] = u.q.x, b[1] = u.q.y, b[2] = u.q.z, b[3] = u.q.w;
}

#else

#if defined(W_q4_k) || defined(W_q5_k)
#define GV_MINS 1
#define GV_GAIN 1.0f
#else
#define GV_MINS 0
#define GV_GAIN 64.0f
#endif
#define GV_GAIN_H 0x54005400u

DEV unsigned gv_word(const uint4 &q, int i) { return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w; }

#if defined(W_q8_0)

enum { GV_UNIT = 64, GV_CHUNKS = 2, GV_QUADS = 0, GV_NIBBLES = 0, GV_AT_D = GV_PLANE(32, 32), GV_ROW_BYTES = GV_AT_D + GV_PLANE(32, 2),
       GV_TAIL = COLS % GV_UNIT };
static_assert(GV_TAIL % 32 == 0, "rows of whole blocks");
struct gv_half { uint4 q[32]; unsigned d[32]; };
struct gv_unit { uint4 q; unsigned d; };

/* A lane has 16 columns of block t / 2; scales come in pairs */
DEV void
gv_ask(gv_half &s, const unsigned char *row, int unit, int lane, unsigned bytes)
{
	cp_async_16_fill(&s.q[lane], row + GV_WITHIN(unit * 64 + (lane & 3) * 16, GV_AT_D), bytes);
	cp_async_4(&s.d[lane], row + (unsigned)(GV_AT_D + unit * 4));
}

DEV void
gv_take(gv_unit &u, const gv_half &s, int, int lane)
{
	u.q = s.q[lane];
	u.d = s.d[lane];
}

DEV int gv_col(int unit, int c, int t) { return unit * 64 + t * 16 + c * 8; }
DEV int gv_col2(int unit, int c, int t) { return gv_col(unit, c, t) + 4; }

struct gv_scale { unsigned d; };
DEV void
gv_scales(gv_scale &s, const gv_unit &u, int, int t)
{
	s.d = h2_mul(t & 2 ? h2_twice_hi(u.d) : h2_twice(u.d), GV_GAIN_H);
}

DEV void
gv_chunk(unsigned (&b)[4], const gv_unit &u, const gv_scale &s, int, int c, int)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		/* a byte, less its sign's weight, in the low bits of 1024 */
		const unsigned v = gv_word(u.q, c * 2 + i) ^ 0x80808080u;
		b[2 * i] = h2_mul(h2_add(__byte_perm(v, 0x64646464u, 0x4140), 0xe480e480u), s.d);
		b[2 * i + 1] = h2_mul(h2_add(__byte_perm(v, 0x64646464u, 0x4342), 0xe480e480u), s.d);
	}
}

#else

/* Nibbles: a lane's 16 bytes have 16 columns in the low halves (gv_col) and 16 in the high ones (gv_col2). */
enum { GV_UNIT = 128, GV_CHUNKS = 4, GV_NIBBLES = 1, GV_TAIL = COLS % GV_UNIT };
static_assert(GV_TAIL % 32 == 0, "rows of whole blocks");

#if defined(W_q4_0) || defined(W_q4_1) || defined(W_q5_0) || defined(W_q5_1)
DEV int gv_col(int unit, int c, int t) { return unit * 128 + t * 32 + c * 4; }
DEV int gv_col2(int unit, int c, int t) { return unit * 128 + t * 32 + 16 + c * 4; }
#elif defined(W_q6_k)
DEV int gv_col(int unit, int c, int t) { return unit * 128 + t * 16 + c * 4; }
DEV int gv_col2(int unit, int c, int t) { return unit * 128 + 64 + t * 16 + c * 4; }
#else
DEV int gv_col(int unit, int c, int t) { return unit * 128 + (t >> 1) * 64 + (t & 1) * 16 + c * 4; }
DEV int gv_col2(int unit, int c, int t) { return gv_col(unit, c, t) + 32; }
#endif

/* of the low halves and of the high ones; m: what is added; mins: of the two sub-blocks */
struct gv_scale { unsigned d[2], m[2], mins; };

/* A value in the low bits of 1024, or times 16, as what it is: less the format's zero */
template <int ZERO> DEV unsigned
gv_low(unsigned v)
{
	return h2_add(v, (0xe400u + ZERO) * 0x10001u); /* 1024 + v - (1024 + zero) */
}

template <int ZERO> DEV unsigned
gv_high(unsigned v)
{
	return h2_fma(v, 0x2c002c00u, (0xd400u + ZERO * 16) * 0x10001u); /* (1024 + 16 v) / 16 - (64 + zero) */
}

#if defined(W_q4_0) || defined(W_q4_1) || defined(W_q5_0) || defined(W_q5_1)

/* GV_D: bytes of a block's scale, and of its minimum where there is one; a plane of fifth bits before them where there are such */
#if defined(W_q5_0) || defined(W_q5_1)
enum { GV_FIFTH = 4 };
#else
enum { GV_FIFTH = 0 };
#endif
#if defined(W_q4_1) || defined(W_q5_1)
enum { GV_D = 4, GV_ZERO = 0 };
#else
enum { GV_D = 2, GV_ZERO = GV_FIFTH ? 16 : 8 };
#endif
enum { GV_QUADS = 0, GV_AT_H = GV_PLANE(32, 16), GV_AT_D = GV_AT_H + GV_PLANE(32, GV_FIFTH), GV_ROW_BYTES = GV_AT_D + GV_PLANE(32, GV_D) };
struct gv_half { uint4 q[32]; unsigned d[GV_FIFTH ? 64 : 32]; }; /* fifth bits behind the scales */
struct gv_unit { uint4 q; unsigned d, h; };

/* Lane t has block t of the four; a scale of 2 bytes comes with its neighbour's */
DEV void
gv_ask(gv_half &s, const unsigned char *row, int unit, int lane, unsigned bytes)
{
	const int t = lane & 3;

	cp_async_16_fill(&s.q[lane], row + GV_WITHIN(unit * 64 + t * 16, GV_AT_H), bytes);
	cp_async_4(&s.d[lane], row + (unsigned)(GV_AT_D + unit * 4 * GV_D + t * GV_D / 4 * 4));
	if (GV_FIFTH)
		cp_async_4(&s.d[32 + lane], row + (unsigned)(GV_AT_H + unit * 16 + t * 4));
}

DEV void
gv_take(gv_unit &u, const gv_half &s, int, int lane)
{
	u.q = s.q[lane];
	u.d = s.d[lane];
	u.h = GV_FIFTH ? s.d[32 + lane] : 0;
}

DEV void
gv_scales(gv_scale &s, const gv_unit &u, int, int t)
{
	s.d[0] = s.d[1] = h2_mul(GV_D == 2 && (t & 1) ? h2_twice_hi(u.d) : h2_twice(u.d), GV_GAIN_H);
	s.m[0] = s.m[1] = GV_D == 2 ? 0 : h2_mul(h2_twice_hi(u.d), GV_GAIN_H);
}

#elif defined(W_q4_k) || defined(W_q5_k)

enum { GV_QUADS = 1, GV_ZERO = 0, GV_AT_H = GV_PLANE(256, 128) };
#ifdef W_q5_k
enum { GV_AT_D = GV_AT_H + GV_PLANE(256, 32), GV_ROW_BYTES = GV_AT_D + GV_PLANE(256, 16) };
struct gv_half { uint4 q[32], d[8], h[16]; };
struct gv_unit { uint4 q, d, h; };
#else
enum { GV_AT_D = GV_AT_H, GV_ROW_BYTES = GV_AT_D + GV_PLANE(256, 16) };
struct gv_half { uint4 q[32], d[8]; };
struct gv_unit { uint4 q, d; };
#endif

/* The block's head and its fifth bits, of which a lane wants most: a quarter each */
DEV void
gv_ask(gv_half &s, const unsigned char *row, int unit, int lane, unsigned bytes)
{
	cp_async_16_fill(&s.q[lane], row + (unsigned)(unit * 64 + (lane & 3) * 16), bytes);
	cp_async_4((unsigned *)s.d + lane, row + (unsigned)(GV_AT_D + (unit >> 1) * 16 + (lane & 3) * 4));
#ifdef W_q5_k
	cp_async_8((uint2 *)s.h + lane, row + (unsigned)(GV_AT_H + (unit >> 1) * 32 + (lane & 3) * 8));
#endif
}

DEV void
gv_take(gv_unit &u, const gv_half &s, int, int lane)
{
	u.q = s.q[lane];
	u.d = s.d[lane >> 2];
#ifdef W_q5_k
	u.h = s.h[(lane >> 2) * 2 + (lane & 1)];
#endif
}

/* Scales and minima of the two sub-blocks in hand: bytes t & 2 and the next of four. Those of the first four have 6 bits of a byte of their own,
 * those of the second four 4 bits in one word, 2 in another. */
DEV void
gv_scales(gv_scale &s, const gv_unit &u, int unit, int t)
{
	const bool   second = unit & 1;
	const unsigned own = second ? 0x0f0f0f0fu : 0x3f3f3f3fu, more = second ? 0x30303030u : 0, at = (t & 2) * 0x0101u;
	const unsigned sc = ((second ? u.d.w : u.d.y) & own) | (u.d.y >> 2 & more);
	const unsigned mn = ((second ? u.d.w >> 4 : u.d.z) & own) | (u.d.z >> 2 & more);

	/* a byte in the low bits of 1024, less that */
	const unsigned a = h2_add(__byte_perm(sc, 0x64646464u, 0x4040 + at), 0xe400e400u);
	const unsigned b = h2_add(__byte_perm(sc, 0x64646464u, 0x4141 + at), 0xe400e400u);
	s.mins = h2_add(__byte_perm(mn, 0x64646464u, 0x4140 + at), 0xe400e400u);
	/* (1024 + v) a - 1024 a, (1024 + 16 v) b / 16 - 64 b: nothing is rounded, not even 63 x 1024 */
	s.d[0] = a;
	s.m[0] = h2_mul(a, 0xe400e400u);
	s.d[1] = h2_mul(b, 0x2c002c00u);
	s.m[1] = h2_mul(b, 0xd400d400u);
}

#elif defined(W_q6_k)

enum { GV_QUADS = 1, GV_ZERO = 32, GV_AT_H = GV_PLANE(256, 128), GV_AT_S = GV_AT_H + GV_PLANE(256, 64), GV_AT_D = GV_AT_S + GV_PLANE(256, 16),
       GV_ROW_BYTES = GV_AT_D + GV_PLANE(256, 2) };
struct gv_half { uint4 q[32], h[16]; unsigned s[32]; };
struct gv_unit { uint4 q, h; uint2 s; unsigned d; };

/* s: two words of scales and the one that has the block's d */
DEV void
gv_ask(gv_half &s, const unsigned char *row, int unit, int lane, unsigned bytes)
{
	const int t = lane & 3;

	cp_async_16_fill(&s.q[lane], row + (unsigned)(unit * 64 + t * 16), bytes);
	cp_async_8((uint2 *)s.h + lane, row + (unsigned)(GV_AT_H + unit * 32 + t * 8));
	if (t < 3)
		cp_async_4(&s.s[lane], row + (unsigned)(t < 2 ? GV_AT_S + unit * 8 + t * 4 : GV_AT_D + (unit >> 2) * 4));
}

DEV void
gv_take(gv_unit &u, const gv_half &s, int unit, int lane)
{
	u.q = s.q[lane];
	u.h = s.h[(lane >> 2) * 2 + (lane & 1)];
	u.s = *(const uint2 *)&s.s[lane & ~3];
	u.d = s.s[(lane & ~3) + 2] >> (unit & 2) * 8;
}

DEV void
gv_scales(gv_scale &s, const gv_unit &u, int, int t)
{
	const float d = f16_lo(u.d) * GV_GAIN;
	const float a = d * (float)(signed char)(u.s.x >> 8 * t), b = d * (float)(signed char)(u.s.y >> 8 * t);

	s.d[0] = pack_f16(a, a);
	s.d[1] = pack_f16(b, b);
	s.m[0] = s.m[1] = 0;
}

#else
#error "no GEMV for this type of weights"
#endif

/* What stands above the nibbles, 1024 and bits 4.. of low[], 8.. of high[]; index: bytes 0 and 2, bytes 1 and 3 */
DEV void
gv_more(unsigned (&low)[2], unsigned (&high)[2], const gv_unit &u, int unit, int c, int t)
{
	const unsigned one = 0x64006400u;

	low[0] = low[1] = high[0] = high[1] = one;
	(void)u, (void)unit, (void)c, (void)t;
#if defined(W_q5_0) || defined(W_q5_1)
	/* a bit and the next but one, 16 bits apart */
	const unsigned a = __byte_perm(u.h, u.h >> 2, 0x5410), b = __byte_perm(u.h, u.h >> 2, 0x7632);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int at = 4 * c + i;
		low[i] = h2_pick(at < 4 ? a << (4 - at) : a >> (at - 4), 0x00100010u, one);
		high[i] = h2_pick(at < 8 ? b << (8 - at) : b >> (at - 8), 0x01000100u, one);
	}
#elif defined(W_q5_k)
	const unsigned z = gv_word(u.h, c) >> ((unit & 1) * 4 + (t & 2));
	low[0] = h2_pick(z << 4, 0x00100010u, one);
	low[1] = h2_pick(z >> 4, 0x00100010u, one);
	high[0] = h2_pick(z << 7, 0x01000100u, one);
	high[1] = h2_pick(z >> 1, 0x01000100u, one);
#elif defined(W_q6_k)
	const unsigned z = gv_word(u.h, c) >> (t & 2);
	low[0] = h2_pick(z << 4, 0x00300030u, one);
	low[1] = h2_pick(z >> 4, 0x00300030u, one);
	high[0] = h2_pick(z << 4, 0x03000300u, one);
	high[1] = h2_pick(z >> 4, 0x03000300u, one);
#endif
}

DEV void
gv_chunk(unsigned (&b)[4], const gv_unit &u, const gv_scale &s, int unit, int c, int t)
{
	unsigned low[2], high[2];

	gv_more(low, high, u, unit, c, t);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const unsigned v = gv_word(u.q, c) >> 8 * i;
		const unsigned a = h2_pick(v, 0x000f000fu, low[i]), h = h2_pick(v, 0x00f000f0u, high[i]);
#if GV_MINS
		b[i] = h2_fma(a, s.d[0], s.m[0]);
		b[2 + i] = h2_fma(h, s.d[1], s.m[1]);
#elif defined(W_q4_1) || defined(W_q5_1)
		b[i] = h2_fma(gv_low<GV_ZERO>(a), s.d[0], s.m[0]);
		b[2 + i] = h2_fma(gv_high<GV_ZERO>(h), s.d[1], s.m[1]);
#else
		b[i] = h2_mul(gv_low<GV_ZERO>(a), s.d[0]);
		b[2 + i] = h2_mul(gv_high<GV_ZERO>(h), s.d[1]);
#endif
	}
}

#endif
#endif

#ifndef GV_MINS
#define GV_MINS 0
#endif

/* A unit of both groups */
struct gv_slot { gv_half half[2]; };

#endif
