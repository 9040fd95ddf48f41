/* Packs CODE_DTYPES and reads them back. Both layouts hold the fields of an unpacked block
 * (llmc_codes), in two orders. */
#include "formats/layout_codes.h"

#include "formats/dequant.h"
#include "templates/common/llmc_codes.h"

static llmc_codes_kind
kind_of(Dtype d)
{
	return (llmc_codes_kind)dtype_kind(d);
}

int
codes_bytes(Dtype d)
{
	const llmc_codes_shape s = llmc_codes_of(kind_of(d));

	return s.columns / 32 * (s.scales + s.high + 4 * s.words) + (s.columns ? 2 + 2 * s.min : 0);
}

/* Copies a field between a block and its packed bytes, in either direction: the n bytes of `field`
 * belong to row r of the R rows at *p. Advances *p past all R rows */
static void
move(uint8_t **p, void *field, int n, int R, int r, bool to)
{
	if (to)
		memcpy(*p + n * r, field, (size_t)n);
	else
		memcpy(field, *p + n * r, (size_t)n);
	*p += n * R;
}

/* Converts the extra bits of the grid indices (`high`) of 256 columns to and from words of a packed
 * row. Index 4 j + c is in byte c; each byte holds as many blocks as fit. */
static void
extra_bits(llmc_codes_kind kind, llmc_codes *c, uint32_t word[4], bool to)
{
	const int bits = llmc_codes_extra_bytes(kind), indices = kind == CODES_iq3_s ? 8 : 4,
	          blocks = 8 / bits, own = bits == 4 ? 3 : bits;

	for (int i = 0; i < 8; i++)
		for (int n = 0; n < indices; n++) {
			uint32_t *w = &word[n / 4 * bits + i / blocks];
			const int shift = 8 * (n % 4) + bits * (i % blocks);
			if (to) {
				*w |= (uint32_t)(c->high[i] >> own * n & ((1 << own) - 1)) << shift;
				*w |= own < bits
				          ? (uint32_t)(c->high[i] >> (12 + n) & 1) << (shift + own)
				          : 0;
			} else {
				c->high[i] =
				    (uint16_t)(c->high[i] | (*w >> shift & ((1u << own) - 1))
				                                << own * n);
				c->high[i] = (uint16_t)(c->high[i] |
				                        (own < bits ? *w >> (shift + own) & 1 : 0)
				                            << (12 + n));
			}
		}
}

/* Order: d, m, scales of all 32-column groups, extra bits of the indices, words */
static void
packed(llmc_codes_kind kind, uint8_t *p, llmc_codes *c, int R, int r, bool to)
{
	const llmc_codes_shape s = llmc_codes_of(kind);
	uint32_t word[4] = { 0 };

	move(&p, &c->d, 2, R, r, to);
	if (s.min)
		move(&p, &c->m, 2, R, r, to);
	for (int i = 0; i < s.columns / 32; i++)
		for (int k = 0; k < s.scales; k++)
			move(&p, &c->scale[i][k], 1, R, r, to);
	if (s.high && to)
		extra_bits(kind, c, word, true);
	for (int i = 0; i < 2 * s.high; i++)
		move(&p, &word[i], 4, R, r, to);
	if (s.high && !to)
		extra_bits(kind, c, word, false);
	for (int i = 0; i < s.columns / 32; i++)
		for (int k = 0; k < s.words; k++)
			move(&p, &c->word[i][k], 4, R, r, to);
}

void
codes_pack(Dtype d, const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R)
{
	for (int r = 0; r < R; r++) {
		llmc_codes c;
		llmc_codes_read(kind_of(d), src + r * row_bytes, &c);
		packed(kind_of(d), dst, &c, R, r, true);
	}
}

static void
values(Dtype d, const llmc_codes *c, float *y)
{
	llmc_codes_values(kind_of(d), c, f16_to_f32(c->d), f16_to_f32(c->m), y);
}

void
codes_read(Dtype d, const uint8_t *p, int R, int r, float *y)
{
	llmc_codes c = { 0 };

	packed(kind_of(d), (uint8_t *)(uintptr_t)p, &c, R, r, false);
	values(d, &c, y);
}

/* With three words per 32 columns the third is a plane of its own, so that accesses are 4, 8 or 16
 * bytes */
void
codes_planes(Dtype d, int bytes[4])
{
	const llmc_codes_shape s = llmc_codes_of(kind_of(d));
	const int n = s.columns / 32;

	bytes[0] = n * 4 * (s.words == 3 ? 2 : s.words);
	bytes[1] = n * 4 * (s.words == 3);
	bytes[2] = n * (s.scales + s.high);
	bytes[3] = s.columns ? 2 + 2 * s.min : 0;
}

static void
planes(Dtype d, uint8_t *p, llmc_codes *c, bool to)
{
	const llmc_codes_shape s = llmc_codes_of(kind_of(d));
	const int n = s.columns / 32, words = s.words == 3 ? 2 : s.words;

	for (int i = 0; i < n; i++)
		move(&p, c->word[i], 4 * words, 1, 0, to);
	for (int i = 0; s.words == 3 && i < n; i++)
		move(&p, &c->word[i][2], 4, 1, 0, to);
	for (int i = 0; i < n; i++) {
		move(&p, c->scale[i], s.scales, 1, 0, to);
		move(&p, &c->high[i], s.high, 1, 0, to);
	}
	move(&p, &c->d, 2, 1, 0, to);
	if (s.min)
		move(&p, &c->m, 2, 1, 0, to);
}

void
codes_plane_pack(Dtype d, const uint8_t *src, uint8_t *block)
{
	llmc_codes c;

	llmc_codes_read(kind_of(d), src, &c);
	planes(d, block, &c, true);
}

void
codes_plane_read(Dtype d, const uint8_t *block, float *y)
{
	llmc_codes c = { 0 };

	planes(d, (uint8_t *)(uintptr_t)block, &c, false);
	values(d, &c, y);
}
