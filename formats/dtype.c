#include "formats/dtype.h"

#include <string.h>

static const DtypeInfo info[DT_COUNT] = {
#define X(name, text, elems, bytes, ggml, st) [DT_##name] = { text, elems, bytes, ggml, st },
	DTYPE_LIST(X)
#undef X
};

const DtypeInfo *
dtype_info(Dtype d)
{
	return &info[d];
}

bool
dtype_is_float(Dtype d)
{
	return d == DT_F32 || d == DT_F16 || d == DT_BF16;
}

bool
dtype_row_factor(Dtype d)
{
	return d == DT_NVFP4;
}

DtypeGroup
dtype_group(Dtype d)
{
	switch ((int)d) {
		GROUP_DTYPES(DTYPE_CASE)
		break;
	default:
		return (DtypeGroup){ 0 };
	}
	const DtypeInfo *i = &info[d];
	const int zero = i->text[0] == 'u' ? 1 : i->text[0] == 'm' ? 4 : 0;
	DtypeValues values = zero                ? VALUES_INT
	                     : i->text[0] == 'n' ? VALUES_NF4
	                     : i->text[1] == 'p' ? VALUES_FP4
	                                         : VALUES_E4M3;
	int bits = values == VALUES_NF4 || values == VALUES_FP4 ? 4 : i->text[1] - '0';
	return (DtypeGroup){ i->block_elems, bits,
		             i->block_bytes - i->block_elems * bits / 8 - zero, zero, values };
}

const float *
dtype_codes(DtypeValues v)
{
	/* bitsandbytes' table, also in templates/common */
	static const float nf4[16] = { -1.0f,
		                       -0.6961928009986877f,
		                       -0.5250730514526367f,
		                       -0.39491748809814453f,
		                       -0.28444138169288635f,
		                       -0.18477343022823334f,
		                       -0.09105003625154495f,
		                       0.0f,
		                       0.07958029955625534f,
		                       0.16093020141124725f,
		                       0.24611230194568634f,
		                       0.33791524171829224f,
		                       0.44070982933044434f,
		                       0.5626170039176941f,
		                       0.7229568362236023f,
		                       1.0f };
	static const float fp4[16] = { 0.0f,       0.0625f / 12,  8.0f / 12,  1.0f,
		                       4.0f / 12,  0.5f,          2.0f / 12,  0.25f,
		                       0.0f,       -0.0625f / 12, -8.0f / 12, -1.0f,
		                       -4.0f / 12, -0.5f,         -2.0f / 12, -0.25f };

	return v == VALUES_NF4 ? nf4 : v == VALUES_FP4 ? fp4 : NULL;
}

Dtype
dtype_regroup(Dtype d, int columns)
{
	const DtypeGroup g = dtype_group(d);

	for (int i = 0; g.columns && i < DT_COUNT; i++) {
		const DtypeGroup have = dtype_group((Dtype)i);
		if (have.columns == columns && have.bits == g.bits &&
		    have.scale_bytes == g.scale_bytes && have.zero_bytes == g.zero_bytes &&
		    have.values == g.values)
			return (Dtype)i;
	}
	return DT_NONE;
}

int
dtype_kind(Dtype d)
{
	return d >= DT_Q2_K && d <= DT_TQ2_0 ? d - DT_Q2_K + 1 : 0;
}

const char *
dtype_text(Dtype d)
{
	return d >= 0 && d < DT_COUNT ? info[d].text : "none";
}

Dtype
dtype_from_text(const char *text)
{
	for (int d = 0; d < DT_COUNT; d++)
		if (strcmp(info[d].text, text) == 0)
			return (Dtype)d;
	return DT_NONE;
}

Dtype
dtype_from_ggml(uint32_t type)
{
	for (int d = 0; d < DT_COUNT; d++)
		if (info[d].ggml_type >= 0 && (uint32_t)info[d].ggml_type == type)
			return (Dtype)d;
	return DT_NONE;
}

Dtype
dtype_from_safetensors(const char *name, size_t n)
{
	for (int d = 0; d < DT_COUNT; d++)
		if (n > 0 && strlen(info[d].safetensors) == n &&
		    memcmp(info[d].safetensors, name, n) == 0)
			return (Dtype)d;
	return DT_NONE;
}

const char *
ggml_type_name(uint32_t type)
{
	/* missing numbers are types that ggml has removed */
	static const char *const name[] = {
		[0] = "F32",      [1] = "F16",     [2] = "Q4_0",     [3] = "Q4_1",
		[6] = "Q5_0",     [7] = "Q5_1",    [8] = "Q8_0",     [9] = "Q8_1",
		[10] = "Q2_K",    [11] = "Q3_K",   [12] = "Q4_K",    [13] = "Q5_K",
		[14] = "Q6_K",    [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS",
		[18] = "IQ3_XXS", [19] = "IQ1_S",  [20] = "IQ4_NL",  [21] = "IQ3_S",
		[22] = "IQ2_S",   [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",
		[26] = "I32",     [27] = "I64",    [28] = "F64",     [29] = "IQ1_M",
		[30] = "BF16",    [34] = "TQ1_0",  [35] = "TQ2_0",   [39] = "MXFP4",
		[40] = "NVFP4",   [41] = "Q1_0",   [42] = "Q2_0",
	};
	return type < sizeof name / sizeof *name ? name[type] : NULL;
}

int64_t
dtype_row_bytes(Dtype d, int64_t n_elems)
{
	int64_t bytes;

	if (d < 0 || d >= DT_COUNT || n_elems < 0 || n_elems % info[d].block_elems)
		return -1;
	if (__builtin_mul_overflow(n_elems / info[d].block_elems, (int64_t)info[d].block_bytes,
	                           &bytes))
		return -1;
	return bytes;
}
