/* Splitting rows of block formats into planes, and reading them back. See layout_planes.h for the order. */
#include "runtime/weights/layout_planes.h"

#include <string.h>

#include "formats/dequant.h"

enum { ALIGN = 16, MAX_BLOCK_BYTES = 210 };

/* A field: where it stands in the file's block, and its bytes. No field: bytes 0. */
typedef struct Field { int at, bytes; } Field;
typedef struct Fields { Field f[4]; } Fields;

static Fields
fields(Dtype d)
{
	switch (d) {
	case DT_Q4_0: return (Fields){ { { 2, 16 }, { 0, 2 } } };
	case DT_Q4_1: return (Fields){ { { 4, 16 }, { 0, 4 } } };
	case DT_Q5_0: return (Fields){ { { 6, 16 }, { 2, 4 }, { 0, 2 } } };
	case DT_Q5_1: return (Fields){ { { 8, 16 }, { 4, 4 }, { 0, 4 } } };
	case DT_Q8_0: return (Fields){ { { 2, 32 }, { 0, 2 } } };
	case DT_Q4_K: return (Fields){ { { 16, 128 }, { 0, 16 } } };
	case DT_Q5_K: return (Fields){ { { 48, 128 }, { 16, 32 }, { 0, 16 } } };
	case DT_Q6_K: return (Fields){ { { 0, 128 }, { 128, 64 }, { 192, 16 }, { 208, 2 } } };
	case DT_F32:
	case DT_F16:
	case DT_BF16:
	case DT_I32:
	case DT_I64:
	case DT_NONE:
	case DT_COUNT: break;
	}
	return (Fields){ 0 };
}

static int64_t
plane_bytes(Field f, int64_t blocks)
{
	return (blocks * f.bytes + ALIGN - 1) / ALIGN * ALIGN;
}

int64_t
planes_bytes(Dtype d, int64_t cols)
{
	Fields s = fields(d);
	int64_t n = 0;

	/* the file's row fits, so neither do a few bytes more overflow */
	if (!s.f[0].bytes || cols < 0 || dtype_row_bytes(d, cols) < 0 || dtype_row_bytes(d, cols) > INT64_MAX / 2)
		return -1;
	for (int i = 0; i < 4; i++)
		n += plane_bytes(s.f[i], cols / dtype_info(d)->block_elems);
	return n;
}

void
planes_pack(Dtype d, int64_t cols, const void *src, void *dst)
{
	Fields s = fields(d);
	const int64_t blocks = cols / dtype_info(d)->block_elems, block_bytes = dtype_info(d)->block_bytes;
	uint8_t *to = dst;

	for (int i = 0; i < 4; i++) {
		const Field f = s.f[i];
		const uint8_t *from = (const uint8_t *)src + f.at;
		int64_t used = blocks * f.bytes, all = plane_bytes(f, blocks);
		for (int64_t b = 0; b < blocks; b++)
			memcpy(to + b * f.bytes, from + b * block_bytes, (size_t)f.bytes);
		memset(to + used, 0, (size_t)(all - used));
		to += all;
	}
}

void
planes_row(Dtype d, int64_t cols, const void *packed, int r, float *dst)
{
	Fields s = fields(d);
	const int elems = dtype_info(d)->block_elems;
	const int64_t blocks = cols / elems;
	uint8_t block[MAX_BLOCK_BYTES];

	(void)r;
	for (int64_t b = 0; b < blocks; b++) {
		const uint8_t *plane = packed;
		for (int i = 0; i < 4; i++) {
			memcpy(block + s.f[i].at, plane + b * s.f[i].bytes, (size_t)s.f[i].bytes);
			plane += plane_bytes(s.f[i], blocks);
		}
		dequant_row(d, block, dst + b * elems, elems);
	}
}
