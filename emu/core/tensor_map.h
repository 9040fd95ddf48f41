/* Content of a CUtensorMap (128 opaque bytes) in the emulator: written by cuTensorMapEncodeTiled,
 * read by tma.c. */
#ifndef EMU_CORE_TENSOR_MAP_H
#define EMU_CORE_TENSOR_MAP_H

#include <stdint.h>

enum { TENSOR_MAGIC = 0x544d4150 };

struct TensorMap {
	uint32_t magic;
	uint8_t rank, elem, swizzle, nan_fill; /* elem: bytes; swizzle: 0, 32, 64 or 128 */
	uint64_t addr, dim[5], stride[4];      /* stride: bytes, for dimensions 1 and up */
	uint16_t box[5];
	uint8_t step[5];
};

_Static_assert(sizeof(struct TensorMap) <= 128, "a CUtensorMap has 128 bytes");

#endif
