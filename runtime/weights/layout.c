/* The table of layouts, and what holds for all of them: sizes, choice for a target, reading a row back. */
#include "runtime/weights/layout.h"

#include <string.h>

#include "formats/dequant.h"
#include "runtime/weights/layout_packed.h"
#include "runtime/weights/layout_planes.h"

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

const char *
layout_for(const char *target, Dtype d, int64_t rows, int64_t cols)
{
	static const struct { const char *target, *layout; } want[] = {
		{ "cpu-v4", "r16" },
		{ "cpu-v3", "r8" },
		{ "cpu-generic", "r4" },
	};

	if (rows < 1 || cols < 1)
		return "row";
	if (strncmp(target, "cuda-", 5) == 0)
		return planes_bytes(d, cols) < 0 ? "row" : "planes";
	for (size_t i = 0; i < sizeof want / sizeof *want; i++)
		if (strcmp(want[i].target, target) == 0)
			return layout_find(want[i].layout)->group_bytes(d, cols) < 0 ? "row" : want[i].layout;
	return "row";
}

/* A vector is one row of `rows` elements. */
static int64_t
tensor_cols(const PlanTensor *t)
{
	return t->cols ? t->cols : t->rows;
}

int64_t
layout_bytes(const PlanTensor *t)
{
	const Layout *l = layout_find(t->layout);
	int64_t rows = t->cols ? t->rows : 1, bytes;

	if (!l || rows < 0 || tensor_cols(t) < 0)
		return -1;
	int64_t one = l->group_bytes(t->dtype, tensor_cols(t));
	if (one < 0 || __builtin_mul_overflow(rows / l->group + (rows % l->group != 0), one, &bytes))
		return -1;
	return bytes;
}

void
layout_row(const PlanTensor *t, const void *data, int64_t row, float *dst)
{
	const Layout *l = layout_find(t->layout);
	int64_t cols = tensor_cols(t), one = l->group_bytes(t->dtype, cols);

	l->row(t->dtype, cols, (const char *)data + row / l->group * one, (int)(row % l->group), dst);
}
