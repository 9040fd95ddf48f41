/* The types of cached keys and values. Kernels, plans and descriptions take them from this one
 * list. formats/kv_type.h describes the types. */
#ifndef LLMC_COMMON_KV_TYPES_H
#define LLMC_COMMON_KV_TYPES_H

/* name, name in capitals, bits per code, elements per group (0: one group per row), bytes of a
 * group's scale and zero (0: unquantised) */
#define KV_ROW_TYPES(X)            \
	X(f32, F32, 32, 0, 0)          \
	X(f16, F16, 16, 0, 0)          \
	X(bf16, BF16, 16, 0, 0)        \
	X(f8, F8, 8, 0, 2)             \
	X(int8, INT8, 8, 0, 2)         \
	X(f8_32, F8_32, 8, 32, 2)      \
	X(int8_32, INT8_32, 8, 32, 2)  \
	X(int6, INT6, 6, 32, 2)        \
	X(int4, INT4, 4, 32, 4)
/* int4c is for keys only */
#define KV_TYPES(X) KV_ROW_TYPES(X) X(int4c, INT4C, 4, 32, 4)

#endif
