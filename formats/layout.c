/* The table of layouts and the functions common to all: sizes, reading a row back. */
#include "formats/layout.h"

#include <string.h>

#include "formats/dequant.h"
#include "formats/layout_packed.h"

static void
row_pack(Dtype d, int64_t cols, const void *src, void *dst)
{
	memcpy(dst, src, (size_t)dtype_row_bytes(d, cols));
}

static void
row_row(Dtype d, int64_t cols, const void *packed, int r, float *dst)
{
	(void)r;
	dequant_row(d, packed, dst, cols);
}

static int64_t
f32_bytes(Dtype d, int64_t cols)
{
	return dtype_row_bytes(d, cols) < 0 ? -1 : dtype_row_bytes(DT_F32, cols);
}

static void
f32_pack(Dtype d, int64_t cols, const void *src, void *dst)
{
	dequant_row(d, src, dst, cols);
}

static void
f32_row(Dtype d, int64_t cols, const void *packed, int r, float *dst)
{
	(void)d, (void)r;
	memcpy(dst, packed, (size_t)cols * sizeof *dst);
}

static const Layout table[] = {
	{ "row", 1, dtype_row_bytes, row_pack, row_row },
	{ "f32", 1, f32_bytes, f32_pack, f32_row },
	{ "r4", 4, packed4_bytes, packed4_pack, packed4_row },
	{ "r8", 8, packed8_bytes, packed8_pack, packed8_row },
	{ "r16", 16, packed16_bytes, packed16_pack, packed16_row },
	{ "planes", 1, planes_bytes, planes_pack, planes_row },
};

const Layout *
layout_find(const char *name)
{
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

int64_t
layout_bytes(const char *layout, Dtype d, int64_t rows, int64_t cols)
{
	const Layout *l = layout_find(layout);
	int64_t n = cols ? rows : 1, bytes;

	if (!l || rows < 0 || cols < 0)
		return -1;
	int64_t one = l->group_bytes(d, cols ? cols : rows);
	if (one < 0 || __builtin_mul_overflow(n / l->group + (n % l->group != 0), one, &bytes))
		return -1;
	return bytes;
}

void
layout_row(const char *layout, Dtype d, int64_t rows, int64_t cols, const void *data, int64_t row,
           float *dst)
{
	const Layout *l = layout_find(layout);
	int64_t width = cols ? cols : rows, one = l->group_bytes(d, width);

	l->row(d, width, (const char *)data + row / l->group * one, (int)(row % l->group), dst);
}
